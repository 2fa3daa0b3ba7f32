package object

import (
	"fmt"
	"slices"
	"strings"
)

// Validate checks a descriptor and its placement before anything is done with
// them: that they belong to the wanted key, that stripes 0..n-1 are there exactly
// once, each where it begins and as long as it is, on a shard and directory of the
// deployment, in its own file. Every kind of fault is one error that names all the
// stripes concerned; all faults found are joined.
func Validate(o *Object, want Key, nodes []Node) error {
	if o.Key != want {
		return fmt.Errorf("%w: asked for %s, got %s", ErrForeign, want, o.Key)
	}
	if err := checkDescriptor(o); err != nil {
		return fmt.Errorf("%s: %w", want, err)
	}
	count, err := StripeCount(o.Size, o.StripeBytes)
	if err == nil {
		err = checkStripes(o, count, nodes)
	}
	if err == nil {
		if h := LayoutHash(o); h != o.Placement.LayoutHash {
			err = fmt.Errorf("%w: layout hash %s, the placement gives %s", ErrDescriptor, quote(o.Placement.LayoutHash), h)
		}
	}
	if err != nil {
		return fmt.Errorf("%s generation %d: %w", want, o.Generation, err)
	}
	return nil
}

func checkDescriptor(o *Object) error {
	p, ok := parseHandle(o.Handle)
	switch {
	case !ok:
		return fmt.Errorf("%w: handle %s", ErrDescriptor, quote(o.Handle))
	case p.digest != keyDigest(o.Key):
		return fmt.Errorf("%w: handle %s belongs to another key", ErrForeign, o.Handle)
	case o.Generation == 0 || p.generation != o.Generation:
		return fmt.Errorf("%w: generation %d with handle %s", ErrDescriptor, o.Generation, o.Handle)
	case o.LayoutVersion != LayoutVersion || p.layout != o.LayoutVersion:
		return fmt.Errorf("%w: layout version %d, this program reads %d", ErrDescriptor, o.LayoutVersion, LayoutVersion)
	}
	if o.XXH3 == "" {
		return fmt.Errorf("%w: nor has the object one", ErrNoChecksum)
	}
	if _, ok := ParseHex(o.XXH3); !ok {
		return fmt.Errorf("%w: xxh3 %s is not 16 lower-case hex digits", ErrDescriptor, quote(o.XXH3))
	}
	return nil
}

// faults collects the stripes that share a fault.
type faults struct {
	kinds []error
	of    map[error][]uint32
	first map[error]string
}

func (f *faults) add(kind error, index uint32, format string, args ...any) {
	if f.of == nil {
		f.of, f.first = map[error][]uint32{}, map[error]string{}
	}
	if _, ok := f.of[kind]; !ok {
		f.kinds = append(f.kinds, kind)
		f.first[kind] = fmt.Sprintf(format, args...)
	}
	f.of[kind] = append(f.of[kind], index)
}

func (f *faults) err() error {
	var all error
	for _, k := range f.kinds {
		detail := ""
		if d := f.first[k]; d != "" {
			detail = ": " + d
		}
		all = both(all, fmt.Errorf("%w: %s%s", k, stripeList(f.of[k]), detail))
	}
	return all
}

func checkStripes(o *Object, count int, nodes []Node) error {
	dirs := make(map[int]int, len(nodes))
	for _, n := range nodes {
		dirs[n.Shard] = n.Dirs
	}
	var f faults
	seen := make([]bool, count)
	for i := range o.Placement.Stripes {
		s := &o.Placement.Stripes[i]
		if uint64(s.Index) >= uint64(count) {
			f.add(ErrOutOfBounds, s.Index, "%d bytes in stripes of %d are %d stripes", o.Size, o.StripeBytes, count)
			continue
		}
		if seen[s.Index] {
			f.add(ErrDuplicateStripe, s.Index, "")
			continue
		}
		seen[s.Index] = true
		checkStripe(&f, o, s, dirs)
	}
	for i, ok := range seen {
		if !ok {
			f.add(ErrMissingStripe, uint32(i), "")
		}
	}
	return f.err()
}

func checkStripe(f *faults, o *Object, s *Stripe, dirs map[int]int) {
	off, n := stripeSpan(o.Size, o.StripeBytes, s.Index)
	if s.Offset != off {
		f.add(ErrOutOfBounds, s.Index, "stripe %d begins at %d, not at %d", s.Index, off, s.Offset)
	}
	if s.Length != n {
		f.add(ErrWrongLength, s.Index, "stripe %d has %d bytes, not %d", s.Index, n, s.Length)
	}
	if d, ok := dirs[s.Shard]; !ok {
		f.add(ErrUnknownShard, s.Index, "the deployment has no shard %d that stores objects", s.Shard)
	} else if s.Dir < 0 || s.Dir >= d {
		f.add(ErrUnknownShard, s.Index, "shard %d has %d directories, not one numbered %d", s.Shard, d, s.Dir)
	}
	if name, err := FileName(o.Handle, s.Index); err != nil || s.File != name {
		f.add(ErrForeign, s.Index, "file %s is not of this object", quote(s.File))
	}
	if s.XXH3 == "" {
		f.add(ErrNoChecksum, s.Index, "")
	} else if _, ok := ParseHex(s.XXH3); !ok {
		f.add(ErrDescriptor, s.Index, "xxh3 %s is not 16 lower-case hex digits", quote(s.XXH3))
	}
}

// stripeList writes stripe numbers as "stripes 1, 4-7 (5)".
func stripeList(idx []uint32) string {
	idx = slices.Clone(idx)
	slices.Sort(idx)
	if len(idx) == 1 {
		return fmt.Sprintf("stripe %d", idx[0])
	}
	const most = 8
	var parts []string
	for i := 0; i < len(idx); {
		j := i
		for j+1 < len(idx) && idx[j+1]-idx[j] <= 1 {
			j++
		}
		if len(parts) == most {
			parts = append(parts, "...")
			break
		}
		if idx[i] == idx[j] {
			parts = append(parts, fmt.Sprint(idx[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", idx[i], idx[j]))
		}
		i = j + 1
	}
	return fmt.Sprintf("stripes %s (%d in all)", strings.Join(parts, ", "), len(idx))
}

package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/ctrl"
)

// ScrubOptions of one scrub.
type ScrubOptions struct {
	Fix bool // remove orphans and garbage; damage cannot be mended
	// Doubted removes also old orphans of a shard of which the catalog knows nothing at
	// all, as an empty catalog in the place of a lost one would.
	Doubted bool
	Quick   bool          // files and trailers only, not the data
	Rate    uint64        // bytes of data that are read in a second at most, whole stripes at a time; 0: as fast as the disks
	Grace   time.Duration // orphans that are younger may belong to a put under way; 0: SweepGrace
}

// Kinds of damage.
const (
	DamageMissing    = "missing"    // the file is not there
	DamageCorrupt    = "corrupt"    // the file does not match its own checksums, or was cut
	DamageDiffers    = "differs"    // the file is whole, and not what the catalog says
	DamageUnreadable = "unreadable" // the disk gives an error
	DamageAway       = "away"       // its directory is not there
)

// Damage is one stripe that cannot be read as it was stored.
type Damage struct {
	Namespace    string `json:"namespace"`
	Object       string `json:"object"`
	Generation   uint64 `json:"generation"`
	Stripe       uint32 `json:"stripe"`
	Shard        int    `json:"shard"`
	Directory    int    `json:"directory"`
	Path         string `json:"path"` // of the directory
	File         string `json:"file"` // below it
	ObjectOffset uint64 `json:"object_offset"`
	Length       uint64 `json:"length"`
	FileOffset   *int64 `json:"file_offset"` // where a read failed; null: the file as a whole
	Kind         string `json:"kind"`
	Reason       string `json:"reason"`
}

// Orphan is a stripe file that no object has.
type Orphan struct {
	Shard     int       `json:"shard"`
	Directory int       `json:"directory"`
	Path      string    `json:"path"`
	File      string    `json:"file"`
	Bytes     int64     `json:"bytes"`
	Modified  time.Time `json:"modified"`
	State     string    `json:"state"` // OrphanYoung, ...
}

// States of an orphan.
const (
	OrphanYoung   = "young"     // may belong to a put under way, and is kept
	OrphanDoubted = "doubted"   // the catalog knows nothing of this shard: kept
	OrphanFound   = "removable" // without Fix
	OrphanRemoved = "removed"
	OrphanStuck   = "stuck" // could not be removed
)

// scrubFindings bounds how many findings of a kind are told one by one.
const scrubFindings = 10000

// ScrubReport is what a scrub of one shard found.
type ScrubReport struct {
	Shard       int               `json:"shard"`
	Directories []DirectoryStatus `json:"directories"`
	Skipped     []string          `json:"skipped"` // what was not looked at, and why
	Files       int               `json:"files"`
	Objects     int               `json:"objects"` // with stripes on this shard
	Stripes     int               `json:"stripes"` // of them, all looked at
	Bytes       uint64            `json:"bytes"`   // of data that were compared with their checksums
	Damaged     int               `json:"damaged"`
	Damage      []Damage          `json:"damage"` // at most 10000 of them
	Orphans     int               `json:"orphans"`
	OrphanBytes uint64            `json:"orphan_bytes"`
	Removed     int               `json:"removed"`      // orphans
	OrphanFiles []Orphan          `json:"orphan_files"` // at most 10000 of them
	Expired     int               `json:"expired"`      // objects whose time was over and that were taken out
	Garbage     CleanReport       `json:"garbage"`      // removed
	Seconds     float64           `json:"seconds"`
}

// scrubFile is a stripe file that a scrub has seen.
type scrubFile struct {
	bytes    int64
	modified time.Time
	owned    bool // by a current object
}

type scrub struct {
	s       *Store
	c       CleanerCatalog
	opt     ScrubOptions
	rep     *ScrubReport
	files   []map[string]*scrubFile // by directory; nil: it could not be listed
	stripes *atomic.Uint64
	began   time.Time // of reading data
	read    uint64    // data, as the catalog says
}

// Scrub looks at every stripe that the catalog says is on this shard, and at every
// file for which it says nothing. Objects that are put, replaced and removed
// meanwhile are no findings. checked, if not nil, counts stripes as it goes.
func (s *Store) Scrub(ctx context.Context, c CleanerCatalog, opt ScrubOptions, checked *atomic.Uint64) (*ScrubReport, error) {
	start := time.Now()
	if opt.Grace == 0 {
		opt.Grace = SweepGrace
	}
	if checked == nil {
		checked = new(atomic.Uint64)
	}
	x := &scrub{s: s, c: c, opt: opt, stripes: checked,
		rep: &ScrubReport{Shard: s.shard, Skipped: []string{}, Damage: []Damage{}, OrphanFiles: []Orphan{}}}
	err := x.run(ctx, start)
	x.rep.Directories = s.Directories()
	x.rep.Seconds = time.Since(start).Seconds()
	slices.SortFunc(x.rep.OrphanFiles, func(a, b Orphan) int {
		return slices.Compare([]string{fmt.Sprintf("%08d", a.Directory), a.File}, []string{fmt.Sprintf("%08d", b.Directory), b.File})
	})
	return x.rep, err
}

func (x *scrub) run(ctx context.Context, start time.Time) (err error) {
	if x.opt.Fix {
		if x.rep.Expired, err = expireAll(ctx, x.c); err != nil {
			return err
		}
		if x.rep.Garbage, err = x.s.Clean(ctx, x.c); err != nil {
			if ctx.Err() != nil {
				return err
			}
			x.rep.Skipped = append(x.rep.Skipped, "garbage: "+err.Error())
		}
	}
	// The files first: what is committed later than they were listed is not missing,
	// because it is looked for again, and what they belong to is in the catalog.
	if err := x.list(ctx); err != nil {
		return err
	}
	if err := x.objects(ctx); err != nil {
		return err
	}
	return x.orphans(ctx, start)
}

func (x *scrub) list(ctx context.Context) error {
	x.files = make([]map[string]*scrubFile, len(x.s.dirs))
	for dir := range x.s.dirs {
		files := map[string]*scrubFile{}
		err := x.s.List(ctx, dir, func(e Entry) error {
			files[e.File] = &scrubFile{bytes: e.Bytes, modified: e.Modified}
			return nil
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && x.opt.Fix {
			err = x.s.dirs[dir].sweepIncoming(time.Now())
		}
		if err != nil {
			x.rep.Skipped = append(x.rep.Skipped, fmt.Sprintf("files of directory %d: %v", dir, err))
			continue
		}
		x.files[dir] = files
		x.rep.Files += len(files)
	}
	return nil
}

// objects looks at the stripes of all objects, some objects at a time.
func (x *scrub) objects(ctx context.Context) error {
	q := ctrl.ListQuery{Over: true}
	for more := true; more; {
		var os []Object
		var err error
		if os, more, err = x.c.List(ctx, q); err != nil {
			return err
		}
		if more && len(os) == 0 {
			return errors.New("the catalog's list does not advance")
		}
		keys := make([]Key, len(os))
		for i := range os {
			keys[i], q.After = os[i].Key, os[i].Key
		}
		for len(keys) > 0 {
			n := min(len(keys), 64) // placements may be long
			placed, err := x.c.LookupMany(ctx, keys[:n])
			if err != nil {
				return err
			}
			for i := range placed {
				if err := x.object(ctx, &placed[i]); err != nil {
					return err
				}
			}
			keys = keys[n:]
		}
	}
	return nil
}

func (x *scrub) object(ctx context.Context, o *Object) error {
	mine := false
	var found []Damage
	for i := range o.Placement.Stripes {
		st := &o.Placement.Stripes[i]
		if st.Shard != x.s.shard {
			continue
		}
		if mine = true; ctx.Err() != nil {
			return ctx.Err()
		}
		if err := x.pace(ctx, st.Length); err != nil {
			return err
		}
		x.rep.Stripes++
		if d := x.stripe(o, st); d != nil {
			found = append(found, *d)
		}
		x.stripes.Add(1)
	}
	if mine {
		x.rep.Objects++
	}
	if len(found) == 0 {
		return nil
	}
	// An object that was replaced or removed meanwhile may have lost its files.
	now, there, err := x.c.Lookup(ctx, o.Key)
	if err != nil {
		return err
	}
	if !there || now.Handle != o.Handle {
		return nil
	}
	x.rep.Damaged += len(found)
	room := max(scrubFindings-len(x.rep.Damage), 0)
	x.rep.Damage = append(x.rep.Damage, found[:min(len(found), room)]...)
	return nil
}

// pace waits until n bytes more may be read.
func (x *scrub) pace(ctx context.Context, n uint64) error {
	if x.opt.Rate == 0 || x.opt.Quick {
		return nil
	}
	if x.began.IsZero() {
		x.began = time.Now()
	}
	due := time.Duration(float64(x.read) / float64(x.opt.Rate) * float64(time.Second))
	x.read += n
	wait := due - time.Since(x.began)
	if wait <= 0 {
		return nil
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stripe is what is wrong with a stripe, or nil.
func (x *scrub) stripe(o *Object, st *Stripe) *Damage {
	ref := refOf(o, st)
	if st.Dir >= 0 && st.Dir < len(x.files) && x.files[st.Dir] != nil {
		if f := x.files[st.Dir][st.File]; f != nil {
			f.owned = true
		}
	}
	meta, at, err := x.verify(&ref)
	if err == nil {
		switch {
		case meta.Identity != ref.Identity:
			err = fmt.Errorf("%w: the file is stripe %d of generation %d of %s", ErrStale, meta.Index, meta.Generation, meta.Handle)
		case meta.Length != ref.Length:
			err = fmt.Errorf("%w: the file has %d bytes, the stripe %d", ErrWrongLength, meta.Length, ref.Length)
		case meta.XXH3 != ref.XXH3:
			err = fmt.Errorf("%w: the file has xxh3 %s, the catalog %s", ErrChecksum, Hex(meta.XXH3), st.XXH3)
		}
	}
	if err == nil {
		return nil
	}
	d := &Damage{Namespace: o.Key.Namespace, Object: o.Key.Name, Generation: o.Generation, Stripe: st.Index, Shard: st.Shard, Directory: st.Dir,
		File: st.File, ObjectOffset: st.Offset, Length: st.Length, Kind: DamageUnreadable, Reason: withErrno(err.Error(), err)}
	if st.Dir >= 0 && st.Dir < len(x.s.dirs) {
		d.Path = x.s.dirs[st.Dir].path
	}
	if at >= 0 {
		d.FileOffset = &at
	}
	switch {
	case errors.Is(err, errAway), errors.Is(err, ErrBadRequest):
		d.Kind = DamageAway
	case errors.Is(err, ErrStripeNotFound):
		d.Kind = DamageMissing
	case errors.Is(err, ErrCorrupt):
		d.Kind = DamageCorrupt
	case errors.Is(err, ErrStale), errors.Is(err, ErrWrongLength), errors.Is(err, ErrChecksum):
		d.Kind = DamageDiffers
	}
	return d
}

func (x *scrub) verify(ref *StripeRef) (StripeMeta, int64, error) {
	if _, err := x.s.dir(ref.Dir, ref.File, ref.Index); err != nil {
		return StripeMeta{}, -1, err
	}
	if x.opt.Quick {
		m, err := x.s.Stat(ref.Dir, ref.File)
		return m, -1, err
	}
	m, at, err := x.s.Verify(ref.Dir, ref.File)
	if err == nil {
		x.rep.Bytes += m.Length
	}
	return m, at, err
}

// orphans judges the files that no object has.
func (x *scrub) orphans(ctx context.Context, start time.Time) error {
	l, err := LiveOf(ctx, x.c) // after the files were listed
	if err != nil {
		return err
	}
	known := false
	for _, files := range x.files {
		for name := range files {
			handle, _, _ := ParseFileName(name)
			known = known || l.handles[handle]
		}
	}
	for dir, files := range x.files {
		for name, f := range files {
			handle, index, _ := ParseFileName(name)
			if f.owned || l.handles[handle] && !x.stray(ctx, l, handle, dir, name) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			o := Orphan{Shard: x.s.shard, Directory: dir, Path: x.s.dirs[dir].path, File: name, Bytes: f.bytes, Modified: f.modified.UTC(), State: OrphanFound}
			superseded := l.superseded(handle)
			switch young := f.modified.After(start.Add(-x.opt.Grace)); {
			case young && !superseded:
				o.State = OrphanYoung
			case !known && !superseded && !x.opt.Doubted:
				o.State = OrphanDoubted
			case x.opt.Fix:
				o.State = OrphanRemoved
				if _, err := x.s.Delete(dir, name, Identity{Handle: handle, Index: index}); err != nil {
					o.State = OrphanStuck
					x.rep.Skipped = append(x.rep.Skipped, fmt.Sprintf("orphan %s in directory %d: %v", name, dir, err))
				} else {
					x.rep.Removed++
				}
			}
			x.rep.Orphans++
			x.rep.OrphanBytes += uint64(f.bytes)
			if len(x.rep.OrphanFiles) < scrubFindings {
				x.rep.OrphanFiles = append(x.rep.OrphanFiles, o)
			}
		}
	}
	return nil
}

// stray reports whether a file of an object that is there has no place in it: its
// stripe is in another directory. A placement never changes.
func (x *scrub) stray(ctx context.Context, l *Live, handle string, dir int, name string) bool {
	key, ok := l.keys[handle]
	if !ok {
		return false // garbage, which has its own way
	}
	o, found, err := x.c.Lookup(ctx, key)
	if err != nil || !found || o.Handle != handle {
		return false
	}
	for i := range o.Placement.Stripes {
		if st := &o.Placement.Stripes[i]; st.Shard == x.s.shard && st.Dir == dir && st.File == name {
			return false // committed after the objects were listed
		}
	}
	return true
}

package object

import (
	"context"
	"errors"
	"time"

	"github.com/railstore/railstore/ctrl"
)

// MaxPutTime bounds a put from its first stripe to its commit. Sweep relies on it:
// files that are older than SweepGrace belong to no put that may still commit.
const (
	MaxPutTime = 12 * time.Hour
	SweepGrace = 2 * MaxPutTime
)

// Live is what the catalog knows of generations.
type Live struct {
	handles map[string]bool   // of current generations and of garbage
	current map[string]uint64 // generation by the digest of the key
	keys    map[string]Key    // of current generations, by handle
}

// LiveOf asks the catalog for all generations. For Store.Sweep it must be asked
// after the files were listed.
func LiveOf(ctx context.Context, c Catalog) (*Live, error) {
	l := &Live{handles: map[string]bool{}, current: map[string]uint64{}, keys: map[string]Key{}}
	q := ctrl.ListQuery{Over: true} // what is over keeps its stripes until it is taken out
	for more := true; more; {
		var os []Object
		var err error
		if os, more, err = c.List(ctx, q); err != nil {
			return nil, err
		}
		for i := range os {
			l.handles[os[i].Handle] = true
			l.keys[os[i].Handle] = os[i].Key
			l.current[keyDigest(os[i].Key)] = os[i].Generation
			q.After = os[i].Key
		}
		if more && len(os) == 0 {
			return nil, errors.New("the catalog's list does not advance")
		}
	}
	var after Key
	var gen uint64
	for {
		o, found, err := c.Garbage(ctx, after, gen)
		if err != nil || !found {
			return l, err
		}
		l.handles[o.Handle] = true
		after, gen = o.Key, o.Generation
	}
}

// superseded reports whether a generation cannot be committed any more, because a
// later one was.
func (l *Live) superseded(handle string) bool {
	p, ok := parseHandle(handle)
	return ok && p.generation < l.current[p.digest]
}

// SweepReport is what Sweep did.
type SweepReport struct {
	Files   int    `json:"files"`   // stripe files seen
	Orphans int    `json:"orphans"` // removed
	Bytes   uint64 `json:"bytes"`   // of the removed
	Doubted int    `json:"doubted"` // old orphans that were kept, see Sweep
}

// Sweep removes the stripe files that a put left which died before its commit.
// What is younger than grace is kept, unless a newer generation was committed.
//
// A catalog that knows nothing of what is here is more likely the wrong one, or an
// empty one in the place of a lost one, than right. Then age alone removes nothing.
func (s *Store) Sweep(ctx context.Context, grace time.Duration, live func(context.Context) (*Live, error)) (SweepReport, error) {
	var rep SweepReport
	type file struct {
		dir   int
		index uint32
		bytes int64
		old   bool
	}
	var failed error
	files := map[string][]file{} // by handle: an object has many stripes
	before := time.Now().Add(-grace)
	for dir := range s.dirs {
		err := s.List(ctx, dir, func(e Entry) error {
			rep.Files++
			handle, index, _ := ParseFileName(e.File)
			files[handle] = append(files[handle], file{dir, index, e.Bytes, e.Modified.Before(before)})
			return nil
		})
		if ctx.Err() != nil {
			return rep, ctx.Err()
		}
		if err == nil {
			err = s.dirs[dir].sweepIncoming(time.Now())
		}
		failed = both(failed, err) // a directory that is out of use keeps no other from being swept
	}
	if len(files) == 0 {
		return rep, failed
	}
	l, err := live(ctx)
	if err != nil {
		return rep, both(failed, err)
	}
	known := false
	for handle := range files {
		known = known || l.handles[handle]
	}
	for handle, fs := range files {
		if l.handles[handle] {
			continue
		}
		superseded := l.superseded(handle)
		for _, f := range fs {
			if !superseded && f.old && !known {
				rep.Doubted++
			}
			if !superseded && !(f.old && known) {
				continue
			}
			if err := ctx.Err(); err != nil {
				return rep, err
			}
			name, err := FileName(handle, f.index)
			if err != nil {
				return rep, err
			}
			if _, err := s.Delete(f.dir, name, Identity{Handle: handle, Index: f.index}); err != nil {
				failed = both(failed, err)
				continue
			}
			rep.Orphans++
			rep.Bytes += uint64(f.bytes)
		}
	}
	return rep, failed
}

package object

import (
	"context"
	"time"
)

// SweepReport is what Sweep did.
type SweepReport struct {
	Files   int    `json:"files"` // stripe files seen
	Orphans int    `json:"orphans"`
	Bytes   uint64 `json:"bytes"` // of the orphans
}

// Sweep removes stripe files that no generation owns: a put that died between its
// first stripe and its commit leaves them. Files younger than olderThan are kept,
// a put may be about to commit them. live is asked after the files are listed, so
// that what was committed meanwhile counts as owned.
func (s *Store) Sweep(ctx context.Context, olderThan time.Time, live func(context.Context) (map[string]bool, error)) (SweepReport, error) {
	var rep SweepReport
	var old []Entry
	for dir := range s.dirs {
		err := s.List(ctx, dir, func(e Entry) error {
			rep.Files++
			if e.Modified.Before(olderThan) {
				old = append(old, e)
			}
			return nil
		})
		if err != nil {
			return rep, err
		}
	}
	if len(old) == 0 {
		return rep, nil
	}
	owned, err := live(ctx)
	if err != nil {
		return rep, err
	}
	for _, e := range old {
		handle, index, _ := ParseFileName(e.File)
		if owned[handle] {
			continue
		}
		if err := ctx.Err(); err != nil {
			return rep, err
		}
		if _, err := s.Delete(e.Dir, e.File, Identity{Handle: handle, Index: index}); err != nil {
			return rep, err
		}
		rep.Orphans++
		rep.Bytes += uint64(e.Bytes)
	}
	return rep, nil
}

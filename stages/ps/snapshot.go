package ps

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
)

// Snapshot is a save or load of all tables of all shards.
type Snapshot struct {
	Name   string
	ID     table.SaveID
	Base   string // of an incremental save
	BaseID table.SaveID
	Shards []ShardSnapshot
}

// ShardSnapshot is a shard's part of it.
type ShardSnapshot struct {
	Shard   int
	Outcome Outcome
	Tables  int
	Whole   int // of a save: tables of which all rows were written
	Rows    uint64
	Deleted uint64 // of a save: keys that it says were deleted
	Bytes   int64
}

// Outcome is what became of a shard: its files by a save, its rows by a load.
type Outcome uint8

// The outcomes.
const (
	Unchanged Outcome = iota
	Changed
	Unknown // it was told, and no answer came
)

func (o Outcome) String() string { return [...]string{"unchanged", "changed", "unknown"}[o] }

// PartlyError is a save or load that some shards have carried out and others have not.
type PartlyError struct {
	Op, Name string
	Shards   []ShardSnapshot
	Err      error
}

func (e *PartlyError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "snapshot %s: ", e.Name)
	for i, o := range []Outcome{Changed, Unchanged, Unknown} {
		var ids []string
		for _, s := range e.Shards {
			if s.Outcome == o {
				ids = append(ids, fmt.Sprint(s.Shard))
			}
		}
		if len(ids) > 0 {
			fmt.Fprintf(&b, "%s: shards %s; ", [...]string{"changed", "not changed", "not known whether changed"}[i], strings.Join(ids, ", "))
		}
	}
	return b.String() + e.Err.Error()
}

func (e *PartlyError) Unwrap() error { return e.Err }

// Between two questions for what is prepared, so that it is not given up while other
// shards take longer.
const askAgain = loadLease / 6

// Save writes a snapshot of every table at every shard, each into a file of the shard,
// while they are used. With the name of a base, an earlier save or what was loaded last,
// only what has changed since is written.
//
// First all shards write, then all give what they wrote its name. When one cannot write,
// the name has what it had before at all of them. Who is stopped while names are given
// leaves a save that Load completes.
func (c *Client) Save(ctx context.Context, name, base string) (Snapshot, error) {
	s := Snapshot{Name: name, ID: table.NewSaveID(), Base: base}
	if err := checkNames(OpSave, name, base); err != nil {
		return s, err
	}
	if base != "" {
		var err error
		if s.BaseID, err = c.settle(ctx, OpSave, base); err != nil {
			return s, err
		}
	}
	st := step{id: s.ID, name: name, base: base, baseID: s.BaseID}
	if err := c.prepare(ctx, OpSave, &s, &st); err != nil {
		return s, err
	}
	err := c.carryOut(ctx, OpSave, &s, st)
	if err == nil {
		return s, nil
	}
	// The files tell what no answer told. What waits stays for who completes it, unless
	// there is nothing to complete.
	changed := false
	if states, lookErr := c.look(ctx, OpSave, name); lookErr == nil {
		for i := range states {
			s.Shards[i].Outcome = Unchanged
			if states[i].Current.ID == s.ID {
				s.Shards[i].Outcome, changed = Changed, true
			}
		}
		if !changed {
			c.giveUp(ctx, OpSave, st)
		}
	}
	return s, partly(OpSave, &s, err, "rs table load completes a save that every shard has written; or save again")
}

// Load reads what Save wrote, with as many shards as then, and what that is based on.
// Tables that are there get the snapshot's rows. First all shards read and check it beside
// what they have, for which they need memory, then all change to it: a snapshot that is
// damaged at one shard changes none.
func (c *Client) Load(ctx context.Context, name string) (Snapshot, error) {
	s := Snapshot{Name: name}
	if err := checkNames(OpLoad, name, ""); err != nil {
		return s, err
	}
	var err error
	if s.ID, err = c.settle(ctx, OpLoad, name); err != nil {
		return s, err
	}
	st := step{id: s.ID, name: name}
	if err := c.prepare(ctx, OpLoad, &s, &st); err != nil {
		return s, err
	}
	return s, partly(OpLoad, &s, c.carryOut(ctx, OpLoad, &s, st), "load it again: shards that have it get it once more")
}

func partly(op uint16, s *Snapshot, err error, hint string) error {
	if err == nil {
		return nil
	}
	layer := pipeline.LayerService
	var at *pipeline.Error
	if errors.As(err, &at) {
		layer = at.Layer
	}
	return pipeline.Wrap(&PartlyError{Op: opName(op), Name: s.Name, Shards: s.Shards, Err: plainText{err}}, layer, opName(op), pipeline.Nowhere).(*pipeline.Error).WithHint("%s", hint)
}

// plainText hides the places in an error from who would take them for those of the whole.
type plainText struct{ err error }

func (e plainText) Error() string { return strings.ReplaceAll(e.err.Error(), "\n", "; ") }

func (e plainText) Is(target error) bool { return errors.Is(e.err, target) }

func checkNames(op uint16, name, base string) error {
	for i, n := range []string{name, base} {
		if n == "" && i > 0 || table.ValidSnapshotName(n) {
			continue
		}
		return pipeline.Errorf(pipeline.LayerUsage, opName(op), pipeline.Nowhere,
			"%w: a snapshot's name is 1 to 128 of A-Z, a-z, 0-9, '.', '_' and -, beginning with a letter or digit, not %q", ErrBadRequest, n)
	}
	if name == base {
		return pipeline.Errorf(pipeline.LayerUsage, opName(op), pipeline.Nowhere, "%w: snapshot %s cannot be its own base", ErrBadRequest, name)
	}
	return nil
}

// settle finds the save of a name that all shards have, and commits it where that is all
// that is missing.
func (c *Client) settle(ctx context.Context, op uint16, name string) (id table.SaveID, err error) {
	states, err := c.look(ctx, op, name)
	if err != nil {
		return id, err
	}
	places := make([]string, len(c.shards))
	for i, shard := range c.shards {
		places[i] = fmt.Sprintf("shard %d", shard)
	}
	id, commit, err := table.Agree(name, states, places)
	if err != nil {
		var at *pipeline.Error
		if errors.As(err, &at) {
			at.Op = opName(op)
		}
		if at != nil && at.Layer == pipeline.LayerStorage {
			return id, pipeline.Errorf(pipeline.LayerService, at.Op, pipeline.Nowhere, "%w: %w", ErrSnapshot, at.Err)
		}
		return id, err
	}
	st := step{step: stepCommit, force: true, id: id, name: name}
	return id, c.everywhere(ctx, func(ctx context.Context, place int) error {
		if !slices.Contains(commit, place) {
			return nil
		}
		_, err := c.step(ctx, OpSave, place, &st)
		return err
	})
}

func (c *Client) look(ctx context.Context, op uint16, name string) ([]table.FolderState, error) {
	states := make([]table.FolderState, len(c.shards))
	st := step{step: stepLook, name: name}
	err := c.everywhere(ctx, func(ctx context.Context, place int) error {
		list, err := c.step(ctx, OpLoad, place, &st)
		if err == nil {
			states[place] = table.FolderState{Current: list[0], Pending: list[1:]}
		}
		return err
	})
	return states, err
}

// step asks a shard for one, and gives the snapshots of its answer.
func (c *Client) step(ctx context.Context, op uint16, place int, st *step) (list []table.Snapshot, err error) {
	rsp, err := c.call(ctx, place, op, new(request), st.bytes(), func(rsp *response, rest []byte) (err error) {
		if st.step == stepLook || st.step == stepPrepare && rsp.flags&respRunning == 0 {
			list, err = parseSnapshots(rsp, rest)
		}
		return err
	})
	if err == nil && rsp.flags&respRunning != 0 {
		return nil, nil
	}
	var at *pipeline.Error
	if errors.As(err, &at) && errors.Is(err, ErrDamaged) {
		at.Layer = pipeline.LayerIntegrity
		at.Hint = "nothing was changed; load another snapshot, or bring this one's file back from a copy"
	} else if op == OpLoad && at != nil && errors.Is(err, ErrMemory) {
		at.Hint = "nothing was changed; a load needs room for the rows that are there and those that come: clear the tables first (rs table clear), or raise shards[].store.memory"
	}
	return list, err
}

// prepare lets all shards do what changes nothing yet. When one fails, all give it up.
func (c *Client) prepare(ctx context.Context, op uint16, s *Snapshot, st *step) error {
	parent := ctx
	st.number, st.step = rand.Uint64(), stepPrepare
	s.Shards = make([]ShardSnapshot, len(c.shards))
	for i, shard := range c.shards {
		s.Shards[i].Shard = shard
	}
	var left atomic.Int32
	left.Store(int32(len(c.shards)))
	all := make(chan struct{}) // they have prepared
	shapes := make([]uint64, len(c.shards))
	each, cancel := context.WithCancel(ctx)
	defer cancel()
	err := c.everywhere(each, func(ctx context.Context, place int) error {
		prepared := false
		for {
			list, err := c.step(ctx, op, place, st)
			switch {
			case err != nil && ctx.Err() != nil && parent.Err() == nil:
				return nil // another shard's error made an end of it
			case err != nil:
				cancel()
				return err
			case list == nil:
				continue
			case !prepared:
				prepared = true
				in := &list[0]
				shapes[place] = in.Shape
				s.Shards[place] = ShardSnapshot{Shard: c.shards[place], Tables: in.Tables, Whole: in.Whole, Rows: in.Rows, Deleted: in.Deleted, Bytes: in.Bytes}
				if left.Add(-1) == 0 {
					close(all)
				}
			}
			if op == OpSave { // a file waits as long as it must
				return nil
			}
			again := time.NewTimer(askAgain)
			select {
			case <-all:
			case <-ctx.Done():
			case <-again.C:
				continue
			}
			again.Stop()
			return nil
		}
	})
	if err == nil && len(shapes) > 0 {
		for i, shape := range shapes {
			if shape != shapes[0] {
				err = pipeline.Errorf(pipeline.LayerService, opName(op), pipeline.Nowhere, "%w: shards %d and %d have other tables; rs table ls shows which", ErrShape, c.shards[0], c.shards[i])
				break
			}
		}
	}
	if err != nil {
		c.giveUp(ctx, op, *st)
	}
	return err
}

// carryOut lets all shards do what they have prepared, and notes what became of each.
func (c *Client) carryOut(ctx context.Context, op uint16, s *Snapshot, st step) error {
	st.step, st.base, st.baseID = stepCommit, "", table.SaveID{}
	return c.everywhere(ctx, func(ctx context.Context, place int) error {
		var err error
		for range 2 { // a step that comes twice does no harm, and an answer may get lost
			if _, err = c.step(ctx, op, place, &st); err == nil {
				s.Shards[place].Outcome = Changed
				return nil
			}
			if errors.As(err, new(*remoteError)) {
				return err
			}
		}
		s.Shards[place].Outcome = Unknown
		return err
	})
}

// giveUp is told to shards also when the caller's time is over.
func (c *Client) giveUp(ctx context.Context, op uint16, st step) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	st.step, st.base, st.baseID = stepAbort, "", table.SaveID{}
	// A shard that does not hear of it gives a load up by itself, and removes a save later.
	_ = c.everywhere(ctx, func(ctx context.Context, place int) error {
		_, err := c.step(ctx, op, place, &st)
		return err
	})
}

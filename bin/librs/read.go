package main

import (
	"context"

	"github.com/railstore/railstore/stages/object"
)

// reading says what to read of one object and how.
type reading struct {
	name           string
	rails          string
	offset, length uint64
	strict         bool // a result that is degraded comes with an error
	limits
}

func (r *reading) parse() (key object.Key, opt object.ReadOptions, err error) {
	if key, err = keyOf("read", r.name); err != nil {
		return key, opt, err
	}
	if r.offset != 0 || r.length != 0 {
		opt.Range = &object.Range{Offset: r.offset, Length: r.length}
	}
	opt.Rails, err = railNames("read", r.rails)
	return key, opt, err
}

func keyOf(op, name string) (object.Key, error) {
	k, err := object.ParseKey(name)
	if err != nil {
		return k, usage(op, object.ErrName, "%v", err)
	}
	return k, nil
}

// done keeps a read's report, and judges it.
func (s *session) done(r *reading, rep *object.ReadReport) error {
	s.last.Store(rep)
	if r.strict && rep.Degraded {
		return degraded(rep)
	}
	return nil
}

// readInto reads into dst, which is untouched unless all of it was verified. With an
// error that is exit.ErrDegraded there is a result all the same.
func (s *session) readInto(r reading, dst []byte) (n int, rep *object.ReadReport, err error) {
	key, opt, err := r.parse()
	if err != nil {
		return 0, nil, err
	}
	err = s.do("read", r.limits, func(ctx context.Context) (err error) {
		n, rep, err = s.ReadInto(ctx, key, dst, opt)
		return err
	})
	if err == nil {
		err = s.done(&r, rep)
	}
	return n, rep, err
}

// read reads into leased memory. With an error that is exit.ErrDegraded there is a lease
// all the same.
func (s *session) read(r reading) (buf *object.LeasedBuffer, rep *object.ReadReport, err error) {
	key, opt, err := r.parse()
	if err != nil {
		return nil, nil, err
	}
	err = s.do("read", r.limits, func(ctx context.Context) (err error) {
		buf, rep, err = s.Read(ctx, key, opt)
		return err
	})
	if err == nil {
		err = s.done(&r, rep)
	}
	return buf, rep, err
}

// readBatch reads several objects, at most together (0: all) at once; each result stands
// for itself. The error is one of the call as a whole.
func (s *session) readBatch(items []reading, together int, how reading) (out []object.BatchResult, err error) {
	rails, err := railNames("read", how.rails)
	if err != nil {
		return nil, err
	}
	out = make([]object.BatchResult, len(items))
	var batch []object.BatchItem
	var at []int // in out, of each of batch
	for i := range items {
		key, opt, err := items[i].parse()
		if err != nil {
			out[i].Err = err
			continue
		}
		batch, at = append(batch, object.BatchItem{Key: key, Range: opt.Range}), append(at, i)
	}
	err = s.do("read", how.limits, func(ctx context.Context) error {
		for k, r := range s.ReadBatch(ctx, batch, together, object.ReadOptions{Rails: rails}) {
			if r.Err != nil {
				r.Err = ended(ctx, "read", r.Err)
			} else {
				r.Err = s.done(&how, r.Report)
			}
			out[at[k]] = r
		}
		return nil
	})
	return out, err
}

// plan is what a read would do.
func (s *session) plan(r reading) (p *object.Plan, err error) {
	key, opt, err := r.parse()
	if err != nil {
		return nil, err
	}
	err = s.do("plan", r.limits, func(ctx context.Context) (err error) {
		p, err = s.ExplainRead(ctx, key, opt)
		return err
	})
	return p, err
}

package ps

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/stages/table"
)

// What a SAVE or LOAD prepares may take longer than any slot should wait, so it is asked
// for again and again: the request names it by a number of the client's choice, and the
// answer after jobPatience is that it still runs. A LOAD that was prepared takes memory: a
// client that does not ask for loadLease is taken for gone, and it is given up.
const (
	jobPatience = time.Second
	loadLease   = 30 * time.Second
	keepJobs    = 64 // that have ended
)

// job is a SAVE or LOAD that is, or was, prepared.
type job struct {
	op     uint16
	step   step
	stop   context.CancelFunc
	done   chan struct{} // it is prepared, or has failed
	info   table.Snapshot
	err    error
	polled atomic.Int64 // when it was last asked for, in ns

	// Of a LOAD that is prepared, else closed with done.
	decide chan bool // install it, or discard it
	ended  chan struct{}
	result error
}

// snapshot serves a step of a SAVE or LOAD.
func (s *Service) snapshot(x exchange, r *request, rest []byte) (int, error) {
	if r.keys != 0 || r.dim != 0 || r.nameLen != 0 {
		return 0, fmt.Errorf("%w: %d keys or a table in %s", ErrBadRequest, r.keys, opName(x.Op()))
	}
	st, err := parseStep(x.Op(), rest)
	if err != nil {
		return 0, err
	}
	if s.cfg.Snapshots == "" {
		return 0, fmt.Errorf("%w: shard %d has no folder for snapshots", ErrSnapshot, s.cfg.Shard)
	}
	switch {
	case st.step == stepPrepare:
		return s.prepare(x, st)
	case st.step == stepLook:
		state, err := s.folder.State(st.name)
		if err != nil {
			return 0, s.snapshotError(err)
		}
		return putSnapshots(x.Response(), append([]table.Snapshot{state.Current}, state.Pending...))
	case x.Op() == OpLoad:
		err = s.decide(x, st, st.step == stepCommit)
	case st.step == stepCommit:
		err = s.folder.Commit(st.name, st.id, st.force)
	default:
		if j := s.find(st.number); j != nil && j.op == OpSave {
			j.stop()
			<-j.done
		}
		err = s.folder.Abort(st.name, st.id)
	}
	if err != nil {
		return 0, s.snapshotError(err)
	}
	return (&response{}).put(x.Response()), nil
}

func (s *Service) snapshotError(err error) error {
	return fmt.Errorf("%w: %w", ErrSnapshot, err)
}

// prepare begins a job, or waits a while for the one of that number.
func (s *Service) prepare(x exchange, st step) (int, error) {
	j, err := s.begin(x.Op(), st)
	if err != nil {
		return 0, err
	}
	j.polled.Store(time.Now().UnixNano())
	patience := time.NewTimer(jobPatience)
	defer patience.Stop()
	select {
	case <-j.done:
	case <-patience.C:
		return (&response{flags: respRunning}).put(x.Response()), nil
	case <-x.Context().Done():
		return (&response{flags: respRunning}).put(x.Response()), nil
	}
	if j.err != nil {
		return 0, s.snapshotError(j.err)
	}
	return putSnapshots(x.Response(), []table.Snapshot{j.info})
}

func (s *Service) find(number uint64) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.jobs[number]
}

func (s *Service) begin(op uint16, st step) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j, ok := s.jobs[st.number]; ok {
		if j.op != op || j.step != st {
			return nil, fmt.Errorf("%w: the number is that of %s %s", ErrBadRequest, opName(j.op), j.step.name)
		}
		return j, nil
	}
	if s.closed {
		return nil, s.stopping()
	}
	for i := 0; i < len(s.order) && len(s.order) >= keepJobs; {
		select {
		case <-s.jobs[s.order[i]].ended:
			delete(s.jobs, s.order[i])
			s.order = append(s.order[:i], s.order[i+1:]...)
		default:
			i++
		}
	}
	if len(s.order) >= keepJobs {
		return nil, fmt.Errorf("%w: %d snapshots are being saved or loaded", ErrBusy, len(s.order))
	}
	ctx, stop := context.WithCancel(s.ctx)
	j := &job{op: op, step: st, stop: stop, done: make(chan struct{}), decide: make(chan bool, 1), ended: make(chan struct{})}
	s.jobs[st.number] = j
	s.order = append(s.order, st.number)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer stop()
		defer close(j.ended)
		if op == OpSave {
			j.info, j.err = s.folder.Prepare(ctx, st.name, table.SaveSpec{ID: st.id, Base: st.baseID, BaseName: st.base})
			close(j.done)
			return
		}
		var staged *table.Staged
		if staged, j.err = s.folder.Stage(ctx, st.name, st.id); j.err == nil {
			j.info = staged.Info
		}
		close(j.done)
		if j.err == nil {
			j.result = s.await(ctx, j, staged)
		}
	}()
	return j, nil
}

// await installs what a LOAD has prepared when it is told to, and discards it when it is
// told so, or nobody has asked for long.
func (s *Service) await(ctx context.Context, j *job, staged *table.Staged) error {
	lease := time.NewTimer(s.lease)
	defer lease.Stop()
	for {
		select {
		case install := <-j.decide:
			if install {
				return staged.Install()
			}
			staged.Discard()
			return errGivenUp
		case <-ctx.Done():
			staged.Discard()
			return errGivenUp
		case <-lease.C:
			left := s.lease - time.Since(time.Unix(0, j.polled.Load()))
			if left <= 0 {
				staged.Discard()
				return errGivenUp
			}
			lease.Reset(left)
		}
	}
}

var errGivenUp = fmt.Errorf("%w: the load was given up before it changed anything: by its client, or because that did not ask for %v", ErrSnapshot, loadLease)

// decide ends a LOAD that was prepared. A step that comes once more is told what became of
// the first.
func (s *Service) decide(x exchange, st step, install bool) error {
	j := s.find(st.number)
	if j == nil || j.op != OpLoad || j.step.id != st.id {
		if !install {
			return nil
		}
		return fmt.Errorf("load %s of %s: nothing of it is known: the shard was started since, or it is long ago", st.id, st.name)
	}
	if !install {
		j.stop()
	}
	select {
	case <-j.done:
	case <-x.Context().Done():
		return x.Context().Err()
	}
	if j.err != nil {
		if install {
			return j.err
		}
		return nil
	}
	select {
	case j.decide <- install:
	default: // it was told before
	}
	select {
	case <-j.ended:
	case <-x.Context().Done():
		return x.Context().Err()
	}
	if !install {
		return nil
	}
	return j.result
}

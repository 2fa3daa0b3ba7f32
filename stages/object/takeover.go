package object

import (
	"context"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// taskRun is a task of a round. Its stripes from first to last, last excluded, are not
// begun; readJob.mu guards both.
type taskRun struct {
	*Task
	run         *pathRun
	first, last int
}

// claim gives the next stripe of a task.
func (j *readJob) claim(t *taskRun) (stripe uint32, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if t.first == t.last {
		return 0, false
	}
	t.first++
	return t.Stripes[t.first-1], true
}

// help lets a rail that has nothing left to begin take stripes over from one that is far
// behind. The connection is that of a task of the rail that is over.
func (j *readJob) help(rail string) {
	for {
		r, stripe, ok := j.takeOver(rail)
		if !ok {
			return
		}
		j.settle(r, stripe, j.fetch(r.ctx, r.at, stripe, false))
	}
}

// behind is how many times as long as a stripe takes the rail that helps another one must
// need for what it has not begun. Less is noise, and the end of any read.
const behind = 2

// takeOver takes a stripe that another rail has not begun and would be late with. Nothing
// but the time that stripes took in this read decides, so a rail of less weight loses
// nothing as long as it is as fast as its weight says.
func (j *readJob) takeOver(rail string) (*pathRun, uint32, bool) {
	if !j.w.cfg.Limits.Adaptive {
		return nil, 0, false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	now := time.Now()
	mine, _ := j.meters[rail].pace(now)
	left := map[string]int{}
	for _, t := range j.tasks {
		left[t.Rail] += t.last - t.first
	}
	if mine == 0 || left[rail] > 0 || j.fatal != nil {
		return nil, 0, false
	}
	var from *taskRun
	var longest time.Duration
	for _, t := range j.tasks {
		if t.first == t.last || t.run.ctx.Err() != nil || !j.carriesLocked(Path{rail, t.Shard}) {
			continue
		}
		each, at := j.meters[t.Rail].pace(now)
		if wait := each * time.Duration(left[t.Rail]) / time.Duration(max(at, 1)); wait > behind*mine && wait > longest {
			from, longest = t, wait
		}
	}
	if from == nil {
		return nil, 0, false
	}
	from.last--
	stripe := from.Stripes[from.last]
	r := j.pathLocked(Path{rail, from.Shard})
	if !j.slow[from.Rail] {
		j.slow[from.Rail] = true
		pipeline.Emit(r.ctx, pipeline.Event{Event: "rail_slow", Rail: from.Rail, Seconds: longest.Seconds(), Fields: map[string]any{"stripes": left[from.Rail], "over": rail}})
	}
	j.moveLocked(stripe, rail, MoveSlow)
	return r, stripe, true
}

// goRound gets a stripe over another rail from the start, when its own path was too late
// with one already: to ask it first and to silence it again takes time that the read does
// not have. It reports false when there is no such way, or no connection free on it.
func (j *readJob) goRound(at Path, stripe uint32) bool {
	j.mu.Lock()
	late := j.late[at]
	j.mu.Unlock()
	if !late {
		return false
	}
	over, ok := j.elsewhere(at)
	if !ok || !j.w.rails[over.Rail].conns.TryAcquire(1) { // waiting for one while we hold another might never end
		return false
	}
	defer j.w.rails[over.Rail].conns.Release(1)
	j.mu.Lock()
	if j.late[over] || !j.carriesLocked(over) {
		j.mu.Unlock()
		return false
	}
	r := j.pathLocked(over)
	j.moveLocked(stripe, over.Rail, MoveHedge)
	j.mu.Unlock()
	j.settle(r, stripe, j.fetch(r.ctx, over, stripe, false))
	return true
}

// carriesLocked reports whether a path is one that any stripe may go over: neither a
// canary nor one that failed.
func (j *readJob) carriesLocked(at Path) bool {
	if r := j.running[at]; j.canary[at] || r != nil && r.ctx.Err() != nil {
		return false
	}
	for i := range j.rails {
		if j.rails[i].Name == at.Rail {
			return j.rails[i].reaches(at.Shard)
		}
	}
	return false
}

// pathLocked is a path of the round.
func (j *readJob) pathLocked(at Path) *pathRun {
	r := j.running[at]
	if r == nil {
		r = &pathRun{at: at}
		r.ctx, r.stop = context.WithCancelCause(j.roundCtx)
		j.running[at] = r
	}
	return r
}

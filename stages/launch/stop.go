package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// How a shard came to its end in Down.
const (
	Drained = "drained" // it ended by itself after it was asked to
	Forced  = "forced"  // it was killed after the deadline
)

// StoppedShard is what Down did to one shard.
type StoppedShard struct {
	Shard   int     `json:"shard"`
	PID     int     `json:"pid"`
	How     string  `json:"how"`
	Seconds float64 `json:"seconds"`
}

// killWait is how long a killed process may take to be gone.
const killWait = 5 * time.Second

// target is a shard that stop works on.
type target struct {
	shard  int
	proc   process
	found  bool
	asked  bool
	killed bool
}

// stop asks the shards to end, waits for at most grace, then kills. When ctx
// ends it kills at once. It returns when no process of the shards is left, or
// with an error for each that could not be got rid of.
func (f Folder) stop(ctx context.Context, shards []int, grace time.Duration) ([]StoppedShard, error) {
	var (
		out   []StoppedShard
		left  []*target
		begin = time.Now()
	)
	for _, n := range shards {
		left = append(left, &target{shard: n})
	}
	t := time.NewTicker(lockPoll)
	defer t.Stop()
	force := time.NewTimer(grace)
	defer force.Stop()
	var giveUp <-chan time.Time
	cancelled := ctx.Done()
	killing := false
	for {
		var errs []error
		kept := left[:0]
		for _, g := range left {
			gone, err := f.advance(g, killing)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if !gone {
				kept = append(kept, g)
				continue
			}
			if !g.found {
				continue // there never was a process
			}
			how := Drained
			if g.killed {
				how = Forced
			}
			out = append(out, StoppedShard{Shard: g.shard, PID: g.proc.pid, How: how, Seconds: time.Since(begin).Seconds()})
		}
		left = kept
		if len(errs) > 0 {
			return out, errors.Join(errs...)
		}
		if len(left) == 0 {
			return out, nil
		}
		select {
		case <-t.C:
			continue
		case <-force.C:
		case <-cancelled:
			cancelled = nil
		case <-giveUp:
			return out, f.stuck(left)
		}
		if !killing {
			killing = true
			giveUp = time.After(killWait)
		}
	}
}

// advance takes one step with a shard and reports whether no process of it is
// left. The lock tells that the process let go of everything it had open, its
// state that it has ended altogether.
func (f Folder) advance(g *target, kill bool) (gone bool, err error) {
	path := f.claimPath(g.shard)
	held, err := isLocked(path)
	if err != nil {
		return false, stateError(path, err)
	}
	if !held {
		return !g.found || !g.proc.running(), nil
	}
	if !g.found || !g.proc.running() {
		p, err := f.look(g.shard)
		if err != nil {
			return false, err
		}
		if p.proc.pid == 0 {
			return false, nil // just starting or just ending; look again
		}
		g.proc, g.found, g.asked, g.killed = p.proc, true, false, false
	}
	send := func(sig os.Signal) error {
		err := g.proc.signal(sig, path)
		if err == nil || errors.Is(err, os.ErrProcessDone) || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return pipeline.Errorf(pipeline.LayerProcess, "stop", pipeline.AtShard(g.shard), "process %d: %w", g.proc.pid, err)
	}
	switch {
	case kill && !g.killed:
		g.killed = true
		return false, send(syscall.SIGKILL)
	case !kill && !g.asked:
		g.asked = true
		return false, send(syscall.SIGTERM)
	}
	return false, nil
}

// stuck says which shards are still there after a kill, and why that can be.
func (f Folder) stuck(left []*target) error {
	var errs []error
	for _, g := range left {
		at := pipeline.AtShard(g.shard)
		if g.found {
			errs = append(errs, pipeline.Errorf(pipeline.LayerProcess, "stop", at,
				"process %d is still there %v after SIGKILL", g.proc.pid, killWait).
				WithHint("it hangs in the kernel, on a disk or a device; see /proc/%d/stack", g.proc.pid))
			continue
		}
		why := "none of this machine's processes holds it"
		if _, hidden, err := holders(f.claimPath(g.shard), 0); err == nil && hidden > 0 {
			why = fmt.Sprintf("its process is not among those that user %d may look at", os.Getuid())
		}
		errs = append(errs, pipeline.Errorf(pipeline.LayerProcess, "stop", at, "%s is locked, and %s", f.claimPath(g.shard), why).
			WithHint("run rs down as the user, in the container and on the machine that ran rs up"))
	}
	return errors.Join(errs...)
}

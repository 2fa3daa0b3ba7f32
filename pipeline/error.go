package pipeline

import (
	"errors"
	"fmt"
	"strings"
)

// Layer names where an error was detected. The first seven are the layers of
// the error table for lanes (local use, verbs post, device completion, tracked
// write, wait, node, service), the others belong to start-up and to objects.
type Layer string

const (
	LayerUsage     Layer = "usage"     // an argument or a capacity
	LayerPost      Layer = "post"      // a verbs call failed
	LayerDevice    Layer = "device"    // a bad work completion
	LayerTracked   Layer = "tracked"   // a signaled write did not complete in time
	LayerWait      Layer = "wait"      // no status word in time
	LayerNode      Layer = "node"      // the control plane says the peer is dead
	LayerService   Layer = "service"   // the peer answered with an error status
	LayerConfig    Layer = "config"    // the deployment
	LayerControl   Layer = "control"   // the control plane
	LayerResource  Layer = "resource"  // devices, memory, queues at start-up
	LayerConnect   Layer = "connect"   // QP set-up
	LayerStorage   Layer = "storage"   // disks
	LayerIntegrity Layer = "integrity" // checksums, lengths, generations
	LayerPlacement Layer = "placement" // an object's stripes do not add up
	LayerProcess   Layer = "process"   // shard processes
	LayerInternal  Layer = "internal"  // a bug
)

// Where an error happened. Shard and Lane count from 0; -1 is "does not apply".
type Where struct {
	Shard int
	Lane  int
	Rail  string
}

// Nowhere has no shard, lane or rail.
var Nowhere = Where{Shard: -1, Lane: -1}

// AtShard, AtLane and AtRail make the usual places.
func AtShard(shard int) Where { return Where{Shard: shard, Lane: -1} }

// AtRail is a rail of this process.
func AtRail(rail string) Where { return Where{Shard: -1, Lane: -1, Rail: rail} }

// On gives the place with the rail set.
func (w Where) On(rail string) Where { w.Rail = rail; return w }

func (w Where) String() string {
	var p []string
	if w.Shard >= 0 {
		p = append(p, fmt.Sprintf("shard %d", w.Shard))
	}
	if w.Lane >= 0 {
		p = append(p, fmt.Sprintf("lane %d", w.Lane))
	}
	if w.Rail != "" {
		p = append(p, "rail "+w.Rail)
	}
	return strings.Join(p, " ")
}

// Error is what failed where in a job. Each layer fills only what it knows.
type Error struct {
	Layer Layer
	Op    string // the stage or the call: resolve, connect, put, read
	Where Where
	Err   error
	Hint  string // what to do about it; may be empty
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if w := e.Where.String(); w != "" {
		b.WriteString(": " + w)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	return b.String()
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf makes an *Error with a formatted detail; %w wraps.
func Errorf(l Layer, op string, w Where, format string, args ...any) *Error {
	return &Error{Layer: l, Op: op, Where: w, Err: fmt.Errorf(format, args...)}
}

// WithHint sets what to do about it.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// Wrap puts err, which may be nil, into layer and place, unless it already is
// an *Error: then it only fills what is missing there, so that the first cause
// is told once.
func Wrap(err error, l Layer, op string, w Where) error {
	if err == nil {
		return nil
	}
	var pe *Error
	if errors.As(err, &pe) {
		out := *pe
		if out.Where.Shard < 0 {
			out.Where.Shard = w.Shard
		}
		if out.Where.Lane < 0 {
			out.Where.Lane = w.Lane
		}
		if out.Where.Rail == "" {
			out.Where.Rail = w.Rail
		}
		if out.Where != pe.Where {
			if direct, ok := err.(*Error); ok && direct == pe {
				return &out
			}
		}
		return err
	}
	return &Error{Layer: l, Op: op, Where: w, Err: err}
}

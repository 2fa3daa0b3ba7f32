package object

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft"
)

// TestTakeOver: with adaptive weights a rail that is done takes over what one that stands
// still has not begun, to the byte; with configured ones it keeps its part.
func TestTakeOver(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, adaptive := range []bool{true, false} {
		x := newWorld(t, func(c *Config) { c.Limits.Adaptive = adaptive })
		data := randomBytes(1, 16*Align)
		x.mustPut(testKey, data)
		open := make(chan struct{})
		all := sync.OnceFunc(func() { close(open) })
		var over atomic.Int64
		x.script(func(o wireOp) *fault {
			switch {
			case !isFetch(o):
				return nil
			case o.at.Rail == "b":
				return &fault{wait: open}
			}
			switch over.Add(1) {
			case 8:
				// By now rail b has stood still for longer than two of a's stripes took on average,
				// however slow the machine is: this one is an eighth of them.
				return &fault{doFirst: func() {
					<-time.After(100 * time.Millisecond)
					if !adaptive {
						all()
					}
				}}
			case 9:
				all()
			}
			return nil
		})
		var slow []pipeline.Event
		var mu sync.Mutex
		ctx := pipeline.WithSink(context.Background(), func(e pipeline.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Event == "rail_slow" {
				slow = append(slow, e)
			}
		})
		buf, rep, err := x.w.Read(ctx, testKey, ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf.Bytes(), data) {
			t.Error("wrong bytes")
		}
		buf.Release()
		accounted(t, rep)
		switch {
		case !adaptive && (!rep.Exact || len(rep.Moves) != 0 || len(slow) != 0):
			t.Errorf("configured: %+v %v", rep, slow)
		case adaptive && (rep.Exact || !rep.Degraded || len(rep.Moves) != 1 || rep.Moves[0].From != "b" || rep.Moves[0].To != "a" || rep.Moves[0].Why != MoveSlow ||
			rep.ReroutedBytes != 0 || len(rep.Faults) != 0):
			t.Errorf("adaptive: %+v", rep)
		case adaptive && (len(slow) != 1 || slow[0].Rail != "b" || slow[0].Fields["over"] != "a"):
			t.Errorf("events: %+v", slow)
		}
		x.idle()
	}
}

// TestTakeOverFails: a stripe that was taken over and is lost on the new way goes back;
// what moved twice is told twice.
func TestTakeOverFails(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newWorld(t, func(c *Config) { c.Limits.Adaptive = true })
	data := randomBytes(1, 16*Align)
	x.mustPut(testKey, data)
	open := make(chan struct{})
	var over atomic.Int64
	x.script(func(o wireOp) *fault {
		switch {
		case !isFetch(o):
			return nil
		case o.at.Rail == "b":
			return &fault{wait: open}
		}
		switch over.Add(1) {
		case 8:
			return &fault{doFirst: func() { <-time.After(100 * time.Millisecond) }}
		case 9:
			return &fault{err: errWire, late: true, doFirst: func() { close(open) }}
		}
		return nil
	})
	buf, rep, err := x.w.Read(context.Background(), testKey, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if x.net.fireLate() != 0 || !bytes.Equal(buf.Bytes(), data) {
		t.Error("a late write, or wrong bytes")
	}
	buf.Release()
	accounted(t, rep)
	why := map[string]bool{}
	for _, m := range rep.Moves {
		why[m.From+m.To+m.Why] = true
	}
	if !why["ba"+MoveSlow] || !why["ab"+MoveFailover] || len(rep.Faults) != 1 {
		t.Errorf("%+v", rep)
	}
	x.idle()
}

// shaped has a driver of its own for devices of one end.
type shaped struct{ rest, slow *soft.Driver }

func (s *shaped) Name() string                         { return "soft" }
func (s *shaped) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }

func (s *shaped) Open(n string) (verbs.DriverContext, error) {
	if strings.HasPrefix(n, "127.88.2.") && !strings.HasSuffix(n, ".3") { // shards on rail b
		return s.slow.Open(n)
	}
	return s.rest.Open(n)
}

// TestTakeOverOverLanes: a rail of soft whose shards send with 8 Mb/s loses, within the
// read, what it has not begun; the next reads plan less of it from the start.
func TestTakeOverOverLanes(t *testing.T) {
	defer goleak.VerifyNone(t)
	const stripe = 64 << 10
	drv := &shaped{soft.New(soft.Options{}), soft.New(soft.Options{})}
	x := newSiteOn(t, drv, func(dep *deploy.Deployment) {
		for h := range dep.Hosts {
			for r := range dep.Hosts[h].Rails {
				dep.Hosts[h].Rails[r].Device = fmt.Sprintf("soft:127.88.%d.%d", r+1, h+1)
			}
		}
		for i := range dep.Shards {
			dep.Shards[i].Slab = 8 << 20
		}
		dep.Objects.StripeBytes, dep.Reader.MaxStaging = stripe, 32<<20
	})
	defer x.close()
	s := x.open(func(l *Limits) { l.Adaptive = true })
	defer x.shut(s)
	data := randomBytes(3, 32*stripe)
	putBytes(t, s.Worker, testKey, data)
	if _, err := drv.slow.AddFault(soft.Fault{Do: "bandwidth", BitsPerSecond: 8e6}); err != nil { // a stripe takes 66 ms
		t.Fatal(err)
	}
	first := readBytes(t, s.Worker, testKey, data)
	accounted(t, first)
	if len(first.Moves) != 1 || first.Moves[0].From != "b" || first.Moves[0].Why != MoveSlow || first.Exact || first.Rails[1].PlannedBytes != 16*stripe {
		t.Errorf("%+v", first)
	}
	waitFor(t, func() bool {
		rep := readBytes(t, s.Worker, testKey, data)
		accounted(t, rep)
		return rep.Rails[1].PlannedBytes < 16*stripe
	})
}

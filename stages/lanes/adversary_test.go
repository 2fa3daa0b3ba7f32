package lanes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
	"github.com/railstore/railstore/verbs/soft"
	"github.com/railstore/railstore/verbs/verbstest"
)

// hostile is a site on software devices whose rails each have their own faults.
type hostile struct {
	*site
	mu      sync.Mutex
	drivers []*soft.Driver
	served  map[uint64]bool
}

// numbered are bytes that follow from a request's number, so that whoever sees a
// piece of another one knows.
func numbered(b []byte, number uint64, answer bool) int {
	h := number*0x9e3779b97f4a7c15 + 1
	h ^= h >> 29
	if answer {
		h = ^h
	}
	n := 16 + int(h%uint64(len(b)-15))
	binary.LittleEndian.PutUint64(b, number)
	binary.LittleEndian.PutUint64(b[8:], h)
	for i := 16; i < n; i++ {
		b[i] = byte(h>>(i%8*8)) + byte(i/8)
	}
	return n
}

func numberOf(b []byte, answer bool) (number uint64, ok bool) {
	if len(b) < 16 {
		return 0, false
	}
	number = binary.LittleEndian.Uint64(b)
	want := make([]byte, 3900)
	return number, string(want[:numbered(want, number, answer)]) == string(b)
}

const opNumbered = 0x0780

func newHostile(t *testing.T) *hostile {
	h := &hostile{served: map[uint64]bool{}}
	subnet := 1 + rand.IntN(250) // of the loopback's many
	w := newWorld(t, func(d *deploy.Deployment) {
		for i := range d.Hosts {
			for r := range d.Hosts[i].Rails {
				rl := &d.Hosts[i].Rails[r]
				rl.Device, rl.Timeout, rl.RetryCount = fmt.Sprintf("soft:127.83.%d.%d", subnet, 10*r+i+1), 9, 4
			}
		}
		d.Lanes.WaitTimeout = deploy.Duration(400 * time.Millisecond)
		d.Health.TouchAfter, d.Health.TouchTimeout = deploy.Duration(5*time.Millisecond), deploy.Duration(150*time.Millisecond)
		d.Lanes.CQHarvestInterval = deploy.Duration(5 * time.Millisecond)
		d.Rebuild.Window, d.Rebuild.WindowAttempts, d.Rebuild.Sweep = deploy.Duration(time.Millisecond), 1000, deploy.Duration(5*time.Millisecond)
		d.Rebuild.Wait = deploy.Duration(200 * time.Millisecond)
	})
	w.open = func(deploy.Rail) verbs.Driver {
		d := soft.New(soft.Options{})
		h.mu.Lock()
		h.drivers = append(h.drivers, d)
		h.mu.Unlock()
		return d
	}
	w.other = lane.HandlerFunc(func(x *lane.Exchange) {
		n, ok := numberOf(x.Payload(), false)
		if !ok {
			t.Errorf("a handler saw a request of %d bytes that nobody made", len(x.Payload()))
			x.Reply(lane.StatusInternal, 0)
			return
		}
		h.mu.Lock()
		again := h.served[n]
		h.served[n] = true
		h.mu.Unlock()
		if again {
			t.Errorf("request %#x was served twice", n)
		}
		switch n % 7 {
		case 0:
			<-time.After(time.Millisecond)
		case 1: // answers when its lane has gone
			select {
			case <-x.Context().Done():
			case <-time.After(10 * time.Millisecond):
			}
		}
		if m, ok := numberOf(x.Payload(), false); (!ok || m != n) && x.Lane().Err() == nil {
			t.Errorf("request %#x changed while it was served", n)
		}
		x.Reply(lane.StatusOK, numbered(x.Response(), n, true))
	})
	h.site = newSite(t, w)
	return h
}

// TestHostileNetwork plays a few hundred rounds of faults on the wire, in memory and
// in the handshake, over real packets, while callers go on that give up at random
// times. What a caller gets is the answer to its request, a shard sees whole
// requests once, and when the faults are over everything works as before.
func TestHostileNetwork(t *testing.T) {
	rnd := verbstest.Seed(t)
	h := newHostile(t)
	rounds := 300
	if testing.Short() {
		rounds = 60
	}
	// Both ends are up now.
	here, there := h.set.QPsInUse(), [2]int{h.sets[0].QPsInUse(), h.sets[1].QPsInUse()}
	ctx, stop := context.WithCancel(h.ctx)
	var wg sync.WaitGroup
	defer func() { stop(); wg.Wait() }()
	var answered, failed, invalid atomic.Uint64
	for c := range uint64(4) {
		crnd := rand.New(rand.NewPCG(rnd.Uint64(), c))
		wg.Go(func() {
			for n := uint64(0); ctx.Err() == nil; n++ {
				h.ask(crnd, c<<32|n, &answered, &failed, &invalid)
			}
		})
	}
	end := time.Now().Add(15 * time.Second)
	played := 0
	for ; played < rounds && time.Now().Before(end) && !t.Failed(); played++ {
		d := h.drivers[rnd.IntN(len(h.drivers))]
		f := hostileFault(rnd)
		id, err := d.AddFault(f)
		if err != nil {
			t.Fatalf("%+v: %v", f, err)
		}
		<-time.After(time.Duration(rnd.IntN(30)) * time.Millisecond)
		if rnd.IntN(3) > 0 {
			d.ClearFaults(id)
		}
		if rnd.IntN(20) == 0 {
			for _, d := range h.drivers {
				d.ClearFaults()
			}
		}
	}
	for _, d := range h.drivers {
		d.ClearFaults()
	}
	stop()
	wg.Wait()
	h.until("all lanes", func() bool {
		return !slices.ContainsFunc(h.client.Status(), func(l LaneStatus) bool { return l.State != "active" })
	})
	for shard := range 2 {
		for _, rn := range []string{"a", "b"} {
			for range 20 {
				// The QPs give up after ten milliseconds, for which a busy machine may not
				// run the peer.
				h.until("an answer", func() bool { return h.call(shard, rn) == nil })
			}
		}
		h.until("the slots", func() bool { return h.client.Pool(shard).InFlight() == 0 })
		if n := h.sets[shard].QPsInUse(); n != there[shard] {
			t.Errorf("shard %d has %d QPs in use, there were %d", shard, n, there[shard])
		}
	}
	if n := h.set.QPsInUse(); n != here {
		t.Errorf("%d QPs in use, there were %d", n, here)
	}
	c := h.client.cfg.Counters
	if n := c.PendingRPC.Load(); n != 0 {
		t.Errorf("%d requests are said to be under way", n)
	}
	t.Logf("%d rounds: %d answered, %d failed, %d found broken by the shard; %d lanes dirty, %d rebuilt, %d time-outs, %d bad answers, %d late answers, %d dropped",
		played, answered.Load(), failed.Load(), invalid.Load(), c.LanesDirty.Load(), c.LanesRecovered.Load(), c.Timeouts.Load(), c.BadResponses.Load(), c.LateCompletions.Load(),
		h.servers[0].Counters().DroppedStale.Load()+h.servers[1].Counters().DroppedStale.Load())
	if answered.Load() == 0 || failed.Load() == 0 || c.LanesRecovered.Load() == 0 {
		t.Error("nothing was put to the test")
	}
}

// hostileFault is one fault of those that lanes must survive.
func hostileFault(rnd *rand.Rand) soft.Fault {
	f := soft.Fault{Seed: rnd.Uint64(), Rate: 0.02 + 0.3*rnd.Float64()}
	switch rnd.IntN(7) {
	case 0:
		f.Do, f.By, f.Match.Opcode = "late_write", time.Duration(1+rnd.IntN(20))*time.Millisecond, []string{"write", "write_imm"}[rnd.IntN(2)]
	case 1:
		f.Do, f.By = "late_visibility", time.Duration(50+rnd.IntN(1000))*time.Microsecond
	case 2:
		f.Do = "blackhole_completions"
		f.Rate /= 4
	case 3:
		f.Do = "drop"
	case 4:
		f.Do = "corrupt"
		f.Rate /= 4
	case 5:
		f.Do = "reorder"
	case 6:
		return soft.Fault{Do: "delay_answer", By: time.Duration(rnd.IntN(500)+1) * time.Millisecond, Times: 1}
	}
	return f
}

func (h *hostile) ask(rnd *rand.Rand, number uint64, answered, failed, invalid *atomic.Uint64) {
	patience := 20 * time.Second
	if rnd.IntN(3) == 0 {
		patience = time.Duration(rnd.IntN(5000)) * time.Microsecond
	}
	ctx, cancel := context.WithTimeout(h.ctx, patience)
	defer cancel()
	payload, buf := make([]byte, 3900), make([]byte, 3900)
	r := lane.Request{Op: opNumbered, Payload: payload[:numbered(payload, number, false)]}
	if rnd.IntN(2) == 0 {
		r.Rail = []string{"a", "b"}[rnd.IntN(2)]
	}
	got, err := h.client.Pool(rnd.IntN(2)).Call(ctx, r, buf)
	switch {
	case err != nil:
		failed.Add(1)
		var le *lane.Error
		if !errors.As(err, &le) || errors.Is(err, lane.ErrTicketUsed) || ctx.Err() != nil && patience == 20*time.Second {
			h.t.Errorf("request %#x: %v", number, err)
		}
	case got.Status == lane.StatusInvalid || got.Status == lane.StatusTooLarge:
		invalid.Add(1) // a bit of it had flipped
	case got.Status != lane.StatusOK:
		h.t.Errorf("request %#x: %v", number, got.Status)
	default:
		answered.Add(1)
		if n, ok := numberOf(buf[:got.N], true); !ok || n != number {
			h.t.Errorf("request %#x got the answer to %#x, whole %v", number, n, ok)
		}
	}
}

// A shard whose memory was registered anew refuses the old keys. New QPs do not
// cure that, and it is told as what it is.
func TestRemoteKeysChange(t *testing.T) {
	h := newHostile(t)
	h.mustCall(0, "a")
	l := h.client.Lanes("a")[0]
	for _, d := range h.drivers {
		if _, err := d.AddFault(soft.Fault{Do: "rkey_bump", At: soft.FaultAt{Packets: 1}}); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	h.until("the refusal", func() bool { err = h.call(0, "a"); return l.State() != lane.Active })
	h.until("an error", func() bool { err = h.call(0, "a"); return err != nil })
	var le *lane.Error
	if !errors.As(err, &le) || le.Layer != lane.LayerDevice || le.Class != lane.ClassPeerRejected || !errors.Is(err, verbs.WCRemAccess) || l.Flags().Rebuildable {
		t.Errorf("%v, %+v", err, l.Flags())
	}
	h.until("the event", func() bool { return len(h.named(EventRebuildSkipped)) > 0 })
}

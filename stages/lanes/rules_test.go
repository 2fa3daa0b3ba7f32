package lanes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// rule is one row of the rules of lanes: a fault, and all that must follow from
// it. The names cite the rules: 3.1 is the life of a lane, 3.2 the layers of
// errors, 3.3 what is tried again, 3.4 times.
type rule struct {
	name   string
	change func(*deploy.Deployment)
	// inject makes a call on lane 0 of shard 0, rail a, meet the fault, and returns
	// its error.
	inject func(*faulty) error

	state       string // of the lane afterwards
	rebuildable bool
	layer       lane.Layer
	class       lane.Class
	status      verbs.WCStatus
	is          error
	within      [2]time.Duration // after which the call fails; 0: at once, or five seconds at most
	all         bool             // it concerns every lane to the shard
}

func quickTouch(d *deploy.Deployment) {
	d.Health.TouchAfter, d.Health.TouchTimeout = deploy.Duration(5*time.Millisecond), deploy.Duration(60*time.Millisecond)
}

// held makes a call that the shard has and does not answer meet what fault does.
func held(fault func(*faulty)) func(*faulty) error {
	return func(f *faulty) error {
		errs := make(chan error, 1)
		go func() {
			_, err := f.client.Pool(0).Call(f.ctx, lane.Request{Op: 0x0702, Rail: "a"}, nil)
			errs <- err
		}()
		f.until("the request", func() bool { return f.handled(0) > 0 })
		fault(f)
		return <-errs
	}
}

// handled is how often shards were given requests with a token.
func (w *world) handled(token uint64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.done[token]
}

func (f *faulty) lane0() *lane.Lane { return f.client.Lanes("a")[0] }

func rules() []rule {
	rows := []rule{
		{name: "3.2 usage: a request larger than a slot leaves the lane alone", state: "active", layer: lane.LayerUsage, is: lane.ErrTooLarge,
			inject: func(f *faulty) error {
				_, err := f.client.Pool(0).Call(f.ctx, lane.Request{Op: 0x0701, Rail: "a", Payload: make([]byte, 1<<20)}, nil)
				return err
			}},
		{name: "3.2 usage: more room than a slot has leaves the lane alone", state: "active", layer: lane.LayerUsage, is: lane.ErrTooLarge,
			inject: func(f *faulty) error {
				_, err := f.client.Pool(0).Call(f.ctx, lane.Request{Op: 0x0701, Rail: "a", MaxResponse: 1 << 20}, nil)
				return err
			}},
		{name: "3.2 verbs post: retired, not rebuildable", state: "dirty", layer: lane.LayerPost, is: syscall.ENOMEM,
			inject: func(f *faulty) error {
				f.fault.Fail("post_send", 1, 1, syscall.ENOMEM)
				return f.call(0, "a")
			}},
		{name: "3.2 tracked: a posted request without completion, rebuildable", state: "dirty", rebuildable: true, layer: lane.LayerTracked, is: lane.ErrTracked,
			change: quickTouch, within: [2]time.Duration{60 * time.Millisecond, 2 * time.Second},
			inject: held(func(f *faulty) {
				f.fault.DropCompletions(func(wc verbs.WC) bool { return wc.QPN == f.lane0().QPN() })
			})},
		{name: "3.2 wait time-out: rebuildable", state: "dirty", rebuildable: true, layer: lane.LayerWait, is: lane.ErrTimeout,
			change: func(d *deploy.Deployment) {
				d.Health.TouchAfter, d.Lanes.WaitTimeout = 0, deploy.Duration(80*time.Millisecond)
			},
			within: [2]time.Duration{60 * time.Millisecond, 2 * time.Second}, inject: held(func(*faulty) {})},
		{name: "3.2 wait: a caller that gives up leaves the lane alone", state: "active", layer: lane.LayerWait, is: context.Canceled,
			inject: func(f *faulty) error {
				// Without a deadline, of which the shard would know.
				ctx, cancel := context.WithCancel(f.ctx)
				defer time.AfterFunc(20*time.Millisecond, cancel).Stop()
				_, err := f.client.Pool(0).Call(ctx, lane.Request{Op: 0x0703, Rail: "a"}, nil)
				close(f.release)
				return err
			}},
		{name: "3.2 node: the control plane says dead, rebuildable", state: "dirty", rebuildable: true, layer: lane.LayerNode, is: lane.ErrPeerDead, all: true,
			inject: held(func(f *faulty) { f.client.keepers[0].condemn("no heartbeat for 9s") })},
		{name: "3.2 device: an event of the QP, not rebuildable", state: "dirty", layer: lane.LayerDevice,
			inject: held(func(f *faulty) {
				f.client.qpEvent(nil, verbs.AsyncEvent{Type: verbs.EventQPFatal, QPN: f.lane0().QPN()})
			})},
		{name: "3.2 device: the peer acknowledges no more, found by the next WRITE", state: "dirty", rebuildable: true, layer: lane.LayerDevice,
			class: lane.ClassPeerUnreachable, status: verbs.WCRetryExceeded, is: verbs.WCRetryExceeded,
			inject: func(f *faulty) error { f.breakLane(0, "a"); return f.call(0, "a") }},
		{name: "3.2 silent: the peer died after it acknowledged, found by a touch", state: "dirty", rebuildable: true, layer: lane.LayerDevice,
			class: lane.ClassPeerUnreachable, status: verbs.WCRetryExceeded, is: verbs.WCRetryExceeded, change: quickTouch,
			inject: held(func(f *faulty) { f.breakLane(0, "a") })},
	}
	for _, c := range []struct {
		class       lane.Class
		rebuildable bool
		statuses    []verbs.WCStatus
	}{
		{lane.ClassPeerUnreachable, true, []verbs.WCStatus{verbs.WCRetryExceeded, verbs.WCRNRExceeded, verbs.WCRespTimeout}},
		{lane.ClassFlushed, true, []verbs.WCStatus{verbs.WCFlush}},
		{lane.ClassPeerRejected, false, []verbs.WCStatus{verbs.WCRemAccess, verbs.WCRemInvReq, verbs.WCRemOp, verbs.WCRemAbort}},
		{lane.ClassLocal, false, []verbs.WCStatus{verbs.WCLocLen, verbs.WCLocQPOp, verbs.WCLocEECOp, verbs.WCLocProt, verbs.WCLocAccess, verbs.WCMWBind, verbs.WCBadResp}},
		{lane.ClassOther, false, []verbs.WCStatus{verbs.WCFatal, verbs.WCGeneral, 77}},
	} {
		for _, st := range c.statuses {
			rows = append(rows, rule{name: fmt.Sprintf("3.2 device: %v is %s, rebuildable %v", st.Name(), c.class, c.rebuildable), change: quickTouch,
				state: "dirty", rebuildable: c.rebuildable, layer: lane.LayerDevice, class: c.class, status: st, is: st,
				inject: held(func(f *faulty) { f.forger.forge(f.lane0().QPN(), st) })})
		}
	}
	return rows
}

func TestRules(t *testing.T) {
	for _, r := range rules() {
		t.Run(r.name, func(t *testing.T) {
			f := newFaulty(t, append([]func(*deploy.Deployment){func(d *deploy.Deployment) { d.Rebuild.Cooldown = deploy.Duration(time.Hour) }}, nonNil(r.change)...)...)
			l := f.lane0()
			mine, theirs := l.QPN(), f.shardQPN(0, "a")
			start := time.Now()
			err := r.inject(f)
			took := time.Since(start)
			if most := max(r.within[1], 5*time.Second); took < r.within[0] || took > most {
				t.Errorf("it took %v, want %v to %v", took, r.within[0], most)
			}
			var le *lane.Error
			if !errors.As(err, &le) {
				t.Fatalf("no typed error: %v", err)
			}
			if le.Layer != r.layer || le.Class != r.class || le.Status != r.status || r.is != nil && !errors.Is(err, r.is) {
				t.Errorf("layer %s class %q status %v: %v; want %s %q %v %v", le.Layer, le.Class, le.Status, err, r.layer, r.class, r.status, r.is)
			}
			if le.Label.Shard != 0 || le.Label.Rail != "a" || le.Label.Index != l.Label().Index || le.Device != "loop:10.0.0.3" ||
				le.Local.Name != "client/x" || le.Remote.Name != "shard/0" || le.Local.QPN != mine || le.Remote.QPN != theirs ||
				le.Local.GID.Addr().String() != "10.0.0.3" || le.Remote.GID.Addr().String() != "10.0.0.1" {
				t.Errorf("the place is not told: %+v (QPs %#x, %#x)", le, mine, theirs)
			}
			flags, want := l.Flags(), lane.Flags{Dirty: r.state == "dirty", Rebuildable: r.rebuildable, Epoch: 1}
			if l.State().String() != r.state || flags != want {
				t.Errorf("%v %+v, want %s %+v", l.State(), flags, r.state, want)
			}
			// 3.2, second rule: with the lane dirty nothing goes over it any more, and the
			// cause stays the first.
			if r.state != "active" { // the caller may know before the log does
				f.until("the event", func() bool { return len(f.dirtyOf("client", 0)) > 0 })
			}
			dirty := slices.DeleteFunc(f.dirtyOf("client", 0), func(e pipeline.Event) bool { return r.all && e.Rail != "a" })
			if r.state == "active" {
				if len(dirty) != 0 || l.Err() != nil {
					t.Errorf("events %+v, cause %v", dirty, l.Err())
				}
				f.mustCall(0, "a")
			} else {
				if len(dirty) != 1 || dirty[0].Reason != string(r.layer) || dirty[0].Rail != "a" || dirty[0].Lane == nil || *dirty[0].Lane != l.Label().Index ||
					dirty[0].Fields["verdict"] == nil || dirty[0].Fields["peer"] != "shard/0" || dirty[0].Fields["error"] == "" {
					t.Errorf("events %+v", dirty)
				}
				l.FailFrom(lane.LayerNode, errors.New("a later cause"), true)
				var first *lane.Error
				if !errors.As(l.Err(), &first) || first.Layer != r.layer || r.is != nil && !errors.Is(first, r.is) || l.Flags() != want {
					t.Errorf("the cause became %v, flags %+v", l.Err(), l.Flags())
				}
			}
			f.mustCall(0, "b")
			f.mustCall(1, "a")
			if st := f.lane(0, "b"); st.State != "active" || !r.all && st.Epoch != 1 {
				t.Errorf("the lane beside: %+v", st)
			}
		})
	}
}

func nonNil(f func(*deploy.Deployment)) []func(*deploy.Deployment) {
	if f == nil {
		return nil
	}
	return []func(*deploy.Deployment){f}
}

// shardQPN is the number of the shard's QP of the client's lane on a rail.
func (s *site) shardQPN(shard int, railName string) uint32 {
	for _, l := range s.servers[shard].acceptor.Lanes() {
		if l.Label().Rail == railName {
			return l.QPN()
		}
	}
	return 0
}

// dirtyOf are the events of lanes that went dirty at the client or at the shard.
func (s *site) dirtyOf(end string, shard int) (out []pipeline.Event) {
	for _, e := range s.named(lane.EventLaneDirty) {
		atClient := !strings.HasPrefix(fmt.Sprint(e.Fields["peer"]), "client/")
		if atClient == (end == "client") && *e.Shard == shard {
			out = append(out, e)
		}
	}
	return out
}

// 3.2, third rule: what a shard answers, whatever it is, does not concern the lane.
func TestRuleServiceStatuses(t *testing.T) {
	f := newFaulty(t)
	for st := lane.StatusOK; st >= lane.StatusInternal; st-- {
		r, err := f.client.Pool(0).Call(f.ctx, lane.Request{Op: uint16(0x0710 - int(st)), Rail: "a"}, nil)
		if err != nil || r.Status != st {
			t.Errorf("status %v: %+v, %v", st, r, err)
		}
	}
	// A handler that panics is a status, too, and the shard goes on.
	r, err := f.client.Pool(0).Call(f.ctx, lane.Request{Op: 0x0720, Rail: "a"}, nil)
	if err != nil || r.Status != lane.StatusInternal {
		t.Errorf("%+v, %v", r, err)
	}
	if e := f.named(lane.EventHandlerException); len(e) != 1 || !strings.Contains(e[0].Reason, "a fault of the handler's") || *e[0].Shard != 0 {
		t.Errorf("events %+v", e)
	}
	f.mustCall(0, "a")
	if st := f.lane(0, "a"); st.State != "active" || st.Epoch != 1 || len(f.named(lane.EventLaneDirty)) != 0 {
		t.Errorf("%+v", st)
	}
}

// 3.2, second rule: one request whose slot the peer may still write retires the
// whole lane, with the others on it, at once.
func TestRuleWholeLane(t *testing.T) {
	f := newFaulty(t, func(d *deploy.Deployment) {
		d.Health.TouchAfter, d.Lanes.WaitTimeout = 0, deploy.Duration(150*time.Millisecond)
		d.Rebuild.Cooldown = deploy.Duration(time.Hour)
	})
	errs := make(chan error, 2)
	call := func(token uint64) {
		_, err := f.client.Pool(0).Call(f.ctx, lane.Request{Op: 0x0702, Token: token, Rail: "a"}, nil)
		errs <- err
	}
	go call(1)
	f.until("the first", func() bool { return f.handled(1) == 1 })
	<-time.After(75 * time.Millisecond)
	start := time.Now()
	go call(2) // has half of its time left when the first has none
	for range 2 {
		var le *lane.Error
		if err := <-errs; !errors.As(err, &le) || le.Layer != lane.LayerWait || !errors.Is(err, lane.ErrTimeout) {
			t.Errorf("%v", err)
		}
	}
	if took := time.Since(start); took > 145*time.Millisecond {
		t.Logf("the second waited %v for itself", took) // a busy machine
	}
	if n := f.client.cfg.Counters.Timeouts.Load(); n != 1 {
		t.Errorf("%d time-outs, the second request had none", n)
	}
}

// The first cause wins, and what it flushes is counted, not told.
func TestRuleFirstCauseWins(t *testing.T) {
	f := newFaulty(t, quickTouch, func(d *deploy.Deployment) { d.Rebuild.Cooldown = deploy.Duration(time.Hour) })
	err := held(func(f *faulty) { f.breakLane(0, "a") })(f)
	if !errors.Is(err, verbs.WCRetryExceeded) {
		t.Fatal(err)
	}
	c := f.client.cfg.Counters
	// Every receive of the QP.
	f.until("the flushes", func() bool { return c.Flushed.Load() >= 4 })
	if n := c.PeerUnreachable.Load(); n != 1 {
		t.Errorf("%d peers unreachable", n)
	}
	if err := f.lane0().Err(); !errors.Is(err, verbs.WCRetryExceeded) || errors.Is(err, verbs.WCFlush) {
		t.Errorf("the cause is %v", err)
	}
	f.until("the event", func() bool { return len(f.dirtyOf("client", 0)) > 0 })
	if n := len(f.dirtyOf("client", 0)); n != 1 {
		t.Errorf("told %d times", n)
	}
}

package lanes

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs/lane"
	"github.com/railstore/railstore/verbs/verbstest"
)

// specPolicy is what a recipe says when it says nothing but enabled and a budget for
// life.
func specPolicy(jitter float64) policy {
	p := policyOf(&deploy.Rebuild{Enabled: true, MaxAttempts: 3, Cooldown: deploy.Duration(time.Second), CooldownMax: deploy.Duration(30 * time.Second),
		Wait: deploy.Duration(2 * time.Second)})
	p.jitter = func() float64 { return jitter }
	return p
}

// play lets calls come all the time and attempts take a while, and gives the
// beginnings of the attempts and the end of the last one.
func play(p *policy, took time.Duration, ok func(n int) bool, until time.Duration) (begun []time.Duration, end time.Duration, exhausted bool) {
	var l ledger
	for now := time.Duration(0); now < until; {
		at, out := l.ask(p, now)
		if out {
			return begun, end, true
		}
		if at > now {
			now = at
			continue
		}
		l.begin(p, now)
		begun = append(begun, now)
		l.end(p, now, ok(len(begun)))
		now += took
		end = now
	}
	return begun, end, false
}

func noLuck(int) bool { return false }
func luck(int) bool   { return true }

// 3.4: the envelope of three failed attempts, from the first lane_dirty, upon which
// a call asks at once, to lane_rebuild_exhausted. The original took 13.3 s.
func TestEnvelope(t *testing.T) {
	for _, c := range []struct {
		what       string
		took       time.Duration // by one attempt
		jitter     float64
		begin2     time.Duration
		begin3     time.Duration
		end        time.Duration
		belowFirst time.Duration
	}{
		// Each half of the handshake waits in vain for 2 s: the pauses are over before
		// the attempts are.
		{"the peer is silent", 4 * time.Second, 0, 4 * time.Second, 8 * time.Second, 12 * time.Second, 13300 * time.Millisecond},
		{"the peer is silent, most jitter", 4 * time.Second, 1, 4 * time.Second, 8 * time.Second, 12 * time.Second, 13300 * time.Millisecond},
		// The peer refuses at once: the pauses are 1 s and 2 s, with up to a fifth more.
		{"the peer refuses", 0, 0, time.Second, 3 * time.Second, 3 * time.Second, 13300 * time.Millisecond},
		{"the peer refuses, most jitter", 0, 1, 1200 * time.Millisecond, 3600 * time.Millisecond, 3600 * time.Millisecond, 13300 * time.Millisecond},
	} {
		p := specPolicy(c.jitter)
		begun, end, exhausted := play(&p, c.took, noLuck, time.Hour)
		if !exhausted || len(begun) != 3 || begun[0] != 0 || begun[1] != c.begin2 || begun[2] != c.begin3 || end != c.end || end > c.belowFirst {
			t.Errorf("%s: attempts at %v, over at %v, exhausted %v; want 0, %v, %v, %v", c.what, begun, end, exhausted, c.begin2, c.begin3, c.end)
		}
	}
	// Whatever the luck, it lies between these.
	rnd := verbstest.Seed(t)
	for range 1000 {
		p := specPolicy(0)
		p.jitter = rnd.Float64
		took := time.Duration(rnd.Int64N(int64(4*time.Second) + 1))
		_, end, _ := play(&p, took, noLuck, time.Hour)
		if end < 3*time.Second || end > 12*time.Second {
			t.Fatalf("attempts of %v: exhausted after %v", took, end)
		}
	}
}

// 3.3: the pause after the nth failure in a row doubles up to its most, and is
// longer by a fifth at most; after a success it is the cooldown exactly.
func TestPauses(t *testing.T) {
	for _, c := range []struct {
		failures int
		want     time.Duration
	}{{0, time.Second}, {1, time.Second}, {2, 2 * time.Second}, {3, 4 * time.Second}, {5, 16 * time.Second}, {6, 30 * time.Second}, {7, 30 * time.Second},
		{100, 30 * time.Second}, {1 << 30, 30 * time.Second}} {
		least, most := specPolicy(0), specPolicy(1)
		longest := c.want + c.want/5
		if c.failures == 0 {
			longest = c.want
		}
		if a, b := least.pause(c.failures), most.pause(c.failures); a != c.want || b != longest {
			t.Errorf("after %d failures %v to %v, want %v to %v", c.failures, a, b, c.want, longest)
		}
	}
	// The most is not less than the pause itself, and no pause is none.
	p := policyOf(&deploy.Rebuild{Cooldown: deploy.Duration(10 * time.Second), CooldownMax: deploy.Duration(time.Second)})
	if got := p.pause(3); got < 10*time.Second || got > 12*time.Second {
		t.Errorf("%v", got)
	}
	p = policyOf(&deploy.Rebuild{})
	if got := p.pause(9); got != 0 {
		t.Errorf("%v", got)
	}
}

// 3.3: in a lane's life, successes count as failures do.
func TestLifeBudget(t *testing.T) {
	p := specPolicy(0)
	begun, _, exhausted := play(&p, 0, luck, time.Hour)
	if !exhausted || len(begun) != 3 || begun[1] != time.Second || begun[2] != 2*time.Second {
		t.Errorf("attempts at %v, exhausted %v", begun, exhausted)
	}
}

// With a window so many attempts fit into any stretch of it, and no lane is given
// up.
func TestWindowBudget(t *testing.T) {
	rnd := verbstest.Seed(t)
	for range 300 {
		p := specPolicy(0)
		p.jitter = rnd.Float64
		p.window, p.windowAttempts = time.Duration(1+rnd.Int64N(int64(2*time.Minute))), 1+rnd.IntN(5)
		p.cooldown = time.Duration(rnd.Int64N(int64(2 * time.Second)))
		p.cooldownMax = p.cooldown * time.Duration(1+rnd.IntN(8))
		took := time.Duration(1 + rnd.Int64N(int64(3*time.Second)))
		begun, _, exhausted := play(&p, took, func(int) bool { return rnd.IntN(3) == 0 }, 10*time.Minute)
		if exhausted || len(begun) < 2 {
			t.Fatalf("%+v: exhausted %v after %v", p, exhausted, begun)
		}
		for i, at := range begun {
			if j := i - p.windowAttempts; j >= 0 && at-begun[j] < p.window {
				t.Fatalf("%+v: attempts %d to %d within %v", p, j, i, at-begun[j])
			}
			if i > 0 && at-begun[i-1] < p.cooldown {
				t.Fatalf("%+v: %v between two attempts", p, at-begun[i-1])
			}
		}
		// The account does not grow.
		var l ledger
		for i := range 100 {
			l.begin(&p, time.Duration(i)*p.window/7)
		}
		if len(l.recent) > 8 {
			t.Fatalf("%d beginnings kept", len(l.recent))
		}
	}
}

// 3.4: questions for a shard, of however many calls: the lanes' waiting calls ask
// when they have waited a second and then each second, and all of them together
// are one question a second.
func TestOneQuestionASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := start
		start = time.Now() // clocks of a bubble have no past outside
		defer func() { start = old }()
		var p prober
		p.init(nil, &deploy.Deployment{Health: deploy.Health{ProbeInterval: deploy.Duration(time.Second), ProbeTimeout: deploy.Duration(time.Second)}})
		begun := time.Now()
		var asked [2][]time.Duration
		take := func() {
			synctest.Wait()
			select {
			case <-p.poke:
			default:
				return
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			for shard := range p.open {
				asked[shard] = append(asked[shard], time.Since(begun))
			}
			clear(p.open)
		}
		// A hundred calls each to two shards, which began within a second.
		for i := range 100 {
			for shard := range 2 {
				go func() {
					time.Sleep(time.Duration(i) * 10 * time.Millisecond) // of the virtual clock
					for range 10 {
						time.Sleep(time.Second)
						p.want(lane.Label{Shard: shard})
					}
				}()
			}
		}
		for range 1300 {
			time.Sleep(10 * time.Millisecond)
			take()
		}
		for shard, at := range asked {
			if len(at) < 10 || len(at) > 13 || at[0] != time.Second {
				t.Errorf("shard %d was asked after at %v", shard, at)
			}
			for i := 1; i < len(at); i++ {
				if d := at[i] - at[i-1]; d < 900*time.Millisecond {
					t.Errorf("shard %d: two questions within %v", shard, d)
				}
			}
		}
	})
}

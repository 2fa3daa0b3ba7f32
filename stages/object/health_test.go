package object

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// clocked is a Health whose time the test moves.
func clocked() (*Health, func(time.Duration)) {
	h, now := NewHealth(), time.Unix(1000, 0)
	h.now = func() time.Time { return now }
	return h, func(d time.Duration) { now = now.Add(d) }
}

func (h *Health) canUse(at Path) (left time.Duration, canary bool) {
	left, _, canary, _ = h.alone(at)
	return left, canary
}

// TestHealthRamp walks a path from its failure back to full use, step by step, and
// through failures on the way.
func TestHealthRamp(t *testing.T) {
	h, pass := clocked()
	at, shards, cooldown := Path{"b", 0}, []int{0}, 8*time.Second
	begin := h.now()
	if left, canary := h.canUse(at); left != 0 || canary || h.share("b", shards, false) != fullShare {
		t.Fatalf("an unknown path: %v, %v", left, canary)
	}
	fail := func(want time.Duration) {
		t.Helper()
		if alone, v := h.failedOn(at, errWire, cooldown); alone != want || v != VerdictPath {
			t.Fatalf("left alone for %v, want %v (%s)", alone, want, v)
		}
	}
	step := func(share int, canary bool) {
		t.Helper()
		left, c := h.canUse(at)
		if s := h.share("b", shards, false); left != 0 || c != canary || s != share {
			t.Fatalf("left %v, canary %v, share %d; want 0, %v, %d", left, c, s, canary, share)
		}
	}
	fail(cooldown)
	if left, _ := h.canUse(at); left != cooldown {
		t.Fatalf("left %v", left)
	}
	// A transfer that had begun before it failed proves nothing.
	h.arrived(at, begin.Add(-time.Second))
	if left, _ := h.canUse(at); left != cooldown {
		t.Fatalf("left %v", left)
	}
	// Others that fail at the same time do not make it longer.
	fail(cooldown)
	pass(cooldown)
	step(fullShare, true)
	h.arrived(at, h.now())
	step(fullShare/4, false)
	h.arrived(at, h.now()) // too early for the next step
	step(fullShare/4, false)
	pass(cooldown / 4)
	h.arrived(at, h.now())
	step(fullShare/2, false)
	// It fails again while it comes back: twice as long, four times, eight times, and no more.
	for _, n := range []int{2, 4, 8, 8} {
		fail(time.Duration(n) * cooldown)
		pass(time.Duration(n) * cooldown)
		step(fullShare, true)
	}
	for range 3 {
		h.arrived(at, h.now())
		pass(cooldown / 4)
	}
	step(fullShare, false)
	if st := h.Status(); len(st) != 0 {
		t.Errorf("%+v", st)
	}
	// One good return forgets one failure, not all.
	fail(4 * cooldown)
}

// TestHealthPortReturns: a rail whose port was down begins with canaries on every path.
func TestHealthPortReturns(t *testing.T) {
	h, _ := clocked()
	h.look("b", false, []int{0, 1})
	if _, canary := h.canUse(Path{"b", 0}); canary {
		t.Error("a rail that was never down is on probation")
	}
	h.look("b", true, []int{0, 1})
	h.look("b", false, []int{0, 1})
	for s := range 2 {
		if left, canary := h.canUse(Path{"b", s}); left != 0 || !canary {
			t.Errorf("shard %d: %v, %v", s, left, canary)
		}
	}
	if s := h.standing("b"); s != "probation (canary)" {
		t.Errorf("%q", s)
	}
	if _, canary := h.canUse(Path{"a", 0}); canary {
		t.Error("the other rail is on probation, too")
	}
}

func TestHealthQuarantine(t *testing.T) {
	h, pass := clocked()
	h.corrupted("b", []int{0, 1}, "stripe 3 came wrong", time.Minute)
	if why := h.quarantined("b"); !strings.Contains(why, "corruption, for 1m0s more: stripe 3 came wrong") {
		t.Errorf("%q", why)
	}
	pass(time.Minute)
	if why := h.quarantined("b"); why != "" {
		t.Errorf("%q", why)
	}
	if _, canary := h.canUse(Path{"b", 1}); !canary {
		t.Error("it comes back without a canary")
	}
}

// TestVerdict judges the matrix of three rails and three shards.
func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		name string
		ok   []Path
		bad  []Path
		want Verdict
	}{
		{"first failure of all", nil, []Path{{"a", 0}}, VerdictPath},
		{"one path, its neighbours work", []Path{{"a", 1}, {"b", 0}}, []Path{{"a", 0}}, VerdictPath},
		{"the rail to all shards", []Path{{"b", 0}, {"b", 1}}, []Path{{"a", 0}, {"a", 1}}, VerdictLocal},
		{"the rail to all shards that were tried, a third one works over it", []Path{{"b", 0}, {"a", 2}}, []Path{{"a", 0}, {"a", 1}}, VerdictPath},
		{"the shard over all rails", []Path{{"a", 1}, {"b", 1}}, []Path{{"b", 0}, {"a", 0}}, VerdictPeer},
		{"everything", nil, []Path{{"a", 0}, {"a", 1}, {"b", 0}, {"b", 1}}, VerdictPath},
		{"one rail alone, one of two shards", []Path{{"a", 1}}, []Path{{"a", 0}}, VerdictPath},
	} {
		h, pass := clocked()
		pass(time.Second)
		for _, p := range c.ok {
			h.arrived(p, h.now())
		}
		pass(time.Second)
		for _, p := range c.bad {
			h.failedOn(p, errWire, time.Second)
		}
		if v := h.Verdict(c.bad[len(c.bad)-1]); v != c.want {
			t.Errorf("%s: %q, want %q", c.name, v, c.want)
		}
	}
	// What works again is not judged.
	h, pass := clocked()
	h.failedOn(Path{"a", 0}, errWire, 0)
	pass(time.Second)
	h.arrived(Path{"a", 0}, h.now())
	if v := h.Verdict(Path{"a", 0}); v != "" {
		t.Errorf("%q", v)
	}
	if v := h.Verdict(Path{"z", 9}); v != "" {
		t.Errorf("%q", v)
	}
}

// TestHealthBrokenRail: when a rail is what is broken, its paths that were not tried
// yet are left alone with it; those that just worked are not.
func TestHealthBrokenRail(t *testing.T) {
	h, pass := clocked()
	for s := range 3 {
		h.arrived(Path{"b", s}, h.now())
	}
	h.look("a", true, []int{0, 1, 2}) // makes the paths of a known
	h.look("a", false, []int{0, 1, 2})
	pass(time.Minute)
	h.failedOn(Path{"a", 0}, errWire, time.Second)
	if left, _ := h.canUse(Path{"a", 2}); left != 0 {
		t.Errorf("one failed path takes another with it: %v", left)
	}
	_, v := h.failedOn(Path{"a", 1}, errWire, time.Second)
	left, _ := h.canUse(Path{"a", 2})
	if v != VerdictLocal || left != 2*time.Second { // it failed on probation
		t.Errorf("verdict %q, the third path is left alone for %v", v, left)
	}
	if _, _, _, cause := h.alone(Path{"a", 2}); !errors.Is(cause, errWire) {
		t.Errorf("%v", cause)
	}
}

// TestPace: shares follow what rails carry, but neither noise nor single reads.
func TestPace(t *testing.T) {
	h, _ := clocked()
	read := func(a, b float64) {
		h.observe([]pacedRail{{"a", 1, uint64(a * 1e6), time.Second}, {"b", 1, uint64(b * 1e6), time.Second}}, 1)
	}
	share := func() int { return h.share("b", nil, true) }
	for range 50 {
		read(100, 90) // within the band
	}
	if share() != fullShare {
		t.Fatalf("noise changed the share to %d", share())
	}
	read(100, 1)
	if share() != fullShare {
		t.Fatalf("one slow read changed the share to %d", share())
	}
	for range 30 {
		read(100, 90)
	}
	if share() != fullShare {
		t.Fatalf("%d after one slow read and good ones", share())
	}
	steps, last := 0, fullShare
	for range 40 {
		read(100, 25)
		if s := share(); s != last {
			if s < last/2 {
				t.Fatalf("from %d to %d at once", last, s)
			}
			steps, last = steps+1, s
		}
	}
	if last < 200 || last > 330 || steps < 2 {
		t.Errorf("a rail of a quarter has share %d after %d steps", last, steps)
	}
	if h.share("b", nil, false) != fullShare || h.share("a", nil, true) != fullShare {
		t.Error("not asked for, or the wrong rail")
	}
	for range 60 {
		read(100, 0.001)
	}
	if share() != leastShare {
		t.Errorf("a rail that lives is starved: %d", share())
	}
	for range 60 {
		read(100, 100)
	}
	if share() != fullShare {
		t.Errorf("it did not come back: %d", share())
	}
	// One that is given nothing, because it was slow, gets more after a while.
	h, _ = clocked()
	h.railLocked("b").pace.share = 100
	for n := range 3 * paceDark {
		if want := 100 << (n / paceDark); share() != want {
			t.Fatalf("after %d reads without it: share %d, want %d", n, share(), want)
		}
		h.observe([]pacedRail{{"a", 1, 100e6, time.Second}, {"b", 1, 1, time.Second}}, 1)
	}
	for range 100 { // reads too small for all rails tell nothing
		h.railLocked("b").pace.share = 100
		h.observe([]pacedRail{{"a", 1, 3, time.Second}, {"b", 1, 0, 0}}, 1)
	}
	if share() != 100 {
		t.Errorf("%d", share())
	}
	// Weights count: a rail of double weight that carries double is right.
	h, _ = clocked()
	for range 20 {
		h.observe([]pacedRail{{"a", 2, 200e6, time.Second}, {"b", 1, 100e6, time.Second}}, 1)
	}
	if share() != fullShare || h.rateOf([]PlanRail{{Name: "a"}, {Name: "b"}}) != 300e6 || h.rateOf([]PlanRail{{Name: "a"}, {Name: "c"}}) != 0 {
		t.Errorf("%d", share())
	}
}

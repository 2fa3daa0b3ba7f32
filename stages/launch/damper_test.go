package launch

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// told adds up what a damper told.
type told struct {
	lines, events int
	last          pipeline.Event
}

type teller struct {
	mu sync.Mutex
	told
}

func (t *teller) take(e pipeline.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines++
	t.events += max(1, e.Suppressed)
	t.last = e
}

func (t *teller) now() told {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.told
}

func TestDamperTellsFewAsTheyCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var by teller
		d := newDamper(by.take)
		for range 100 { // 10 a second are under the limit
			d.emit(pipeline.Event{Event: "lane_dirty", Time: time.Now()})
			if got := by.now(); got.last.Suppressed != 0 {
				t.Fatalf("suppressed %d", got.last.Suppressed)
			}
			time.Sleep(100 * time.Millisecond)
		}
		d.close()
		if got := by.now(); got.lines != 100 {
			t.Errorf("%d lines of 100", got.lines)
		}
	})
}

func TestDamperCountsABurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var by teller
		d := newDamper(by.take)
		defer d.close()
		start := time.Now()
		for i := range 500 {
			d.emit(pipeline.Event{Event: "lane_dirty", Time: time.Now(), Reason: fmt.Sprint(i)})
		}
		if got := by.now(); got.lines != dampBurst {
			t.Errorf("%d lines at once, want %d", got.lines, dampBurst)
		}
		time.Sleep(dampWindow)
		synctest.Wait()
		if got := by.now(); got.lines != dampBurst+1 || got.last.Suppressed != 500-dampBurst || got.last.Reason != "499" {
			t.Errorf("%d lines, the last %+v", got.lines, got.last)
		}
		if at := by.now().last.Time; at.Sub(start) > dampWindow {
			t.Errorf("the count has the time %v after the start", at.Sub(start))
		}
		// Quiet for a while: events are told one by one again.
		time.Sleep(3 * dampWindow)
		d.emit(pipeline.Event{Event: "lane_dirty", Reason: "later"})
		if got := by.now(); got.last.Reason != "later" || got.last.Suppressed != 0 {
			t.Errorf("after the burst %+v", got.last)
		}
	})
}

func TestDamperStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var by teller
		d := newDamper(by.take)
		const seconds, perSecond = 60, 1000
		for range seconds * perSecond {
			d.emit(pipeline.Event{Event: "lane_rebuild_failed", Time: time.Now()})
			time.Sleep(time.Second / perSecond)
		}
		d.close()
		if got := by.now(); got.events != seconds*perSecond {
			t.Errorf("%d events told of %d", got.events, seconds*perSecond)
		}
		if got, most := by.now(), dampBurst+seconds+2; got.lines > most {
			t.Errorf("%d lines for a minute of storm, want at most %d", got.lines, most)
		}
	})
}

func TestDamperKeepsKindsAndPlacesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var by teller
		d := newDamper(by.take)
		lanes := []int{0, 1}
		for i := range 10 * dampBurst {
			d.emit(pipeline.Event{Event: "lane_dirty", Lane: &lanes[i%2]})
			if i%dampBurst == 0 {
				d.emit(pipeline.Event{Event: "lane_dirty", Rail: "b"})
				d.emit(pipeline.Event{Event: "lane_recovered"})
			}
		}
		if got, want := by.now(), 2*dampBurst+20; got.lines != want {
			t.Errorf("%d lines, want %d", got.lines, want)
		}
		d.close()
		if got, want := by.now(), 10*dampBurst+20; got.events != want {
			t.Errorf("%d events told of %d", got.events, want)
		}
		d.emit(pipeline.Event{Event: "after the end"})
		d.close()
		if got := by.now(); got.last.Event == "after the end" {
			t.Error("told after the end")
		}
	})
}

func TestDamperIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var by teller
		d := newDamper(by.take)
		for i := range 3 * dampGroups {
			d.emit(pipeline.Event{Event: "x", Shard: &i})
		}
		groups := func() int {
			d.mu.Lock()
			defer d.mu.Unlock()
			return len(d.groups)
		}
		if n := groups(); n > dampGroups+1 {
			t.Errorf("%d groups", n)
		}
		time.Sleep(2 * dampWindow)
		n := 7
		d.emit(pipeline.Event{Event: "y", Shard: &n})
		if n := groups(); n > 10 {
			t.Errorf("%d groups after a quiet time", n)
		}
		d.close()
		if got := by.now(); got.events != 3*dampGroups+1 {
			t.Errorf("%d events told of %d", got.events, 3*dampGroups+1)
		}
	})
}

package launch

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// A process tells dampBurst events of one kind and place within dampWindow as they
// come. What is more than that is counted, and told as one line a window for as
// long as it goes on.
const (
	dampBurst  = 20
	dampWindow = time.Second
	// dampGroups bounds the memory: beyond it kinds and places that are quiet are
	// forgotten, and new ones share a group of their name.
	dampGroups = 4096
)

// damper keeps a failure that repeats itself from filling the events. It calls
// next one event at a time, in their order, and loses no count.
type damper struct {
	next func(pipeline.Event)

	mu     sync.Mutex
	groups map[groupKey]*group
	swept  time.Time
	timer  *time.Timer // runs while some group holds events back
	wg     sync.WaitGroup
	closed bool
}

type groupKey struct {
	event       string
	shard, lane int
	rail        string
}

type group struct {
	start time.Time // of the window
	told  int       // in this window
	held  int       // counted in this window
	last  pipeline.Event
}

func newDamper(next func(pipeline.Event)) *damper {
	return &damper{next: next, groups: map[groupKey]*group{}}
}

func keyOf(e pipeline.Event) groupKey {
	k := groupKey{event: e.Event, shard: -1, lane: -1, rail: e.Rail}
	if e.Shard != nil {
		k.shard = *e.Shard
	}
	if e.Lane != nil {
		k.lane = *e.Lane
	}
	return k
}

func (d *damper) emit(e pipeline.Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	now := time.Now()
	g := d.group(keyOf(e), now)
	if g.told < dampBurst {
		g.told++
		d.next(e)
		return
	}
	g.held++
	g.last = e
	if d.timer == nil {
		d.wg.Add(1)
		d.timer = time.AfterFunc(g.start.Add(dampWindow).Sub(now), d.tick)
	}
}

// group is the group of a key, in a window that has not ended.
func (d *damper) group(k groupKey, now time.Time) *group {
	g := d.groups[k]
	if g == nil && len(d.groups) >= dampGroups {
		if now.Sub(d.swept) >= dampWindow {
			d.swept = now
			for k, g := range d.groups {
				if g.held == 0 && now.Sub(g.start) >= dampWindow {
					delete(d.groups, k)
				}
			}
		}
		if len(d.groups) >= dampGroups {
			k = groupKey{event: k.event, shard: -1, lane: -1}
			g = d.groups[k]
		}
	}
	if g == nil {
		g = &group{start: now}
		d.groups[k] = g
	}
	if g.held == 0 && now.Sub(g.start) >= dampWindow {
		*g = group{start: now}
	}
	return g
}

// tick tells what the windows that have ended held back.
func (d *damper) tick() {
	defer d.wg.Done()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timer = nil
	if d.closed {
		return
	}
	now := time.Now()
	wait := time.Duration(0)
	d.flush(func(g *group) bool { return now.Sub(g.start) >= dampWindow })
	for k, g := range d.groups {
		left := g.start.Add(dampWindow).Sub(now)
		switch {
		case g.held > 0:
			if wait == 0 || left < wait {
				wait = left
			}
		case left <= 0:
			delete(d.groups, k)
		}
	}
	if wait > 0 {
		d.wg.Add(1)
		d.timer = time.AfterFunc(wait, d.tick)
	}
}

// flush tells the counts of the groups that ended says true to, oldest first.
func (d *damper) flush(ended func(*group) bool) {
	var due []*group
	for _, g := range d.groups {
		if g.held > 0 && ended(g) {
			due = append(due, g)
		}
	}
	slices.SortFunc(due, func(a, b *group) int {
		return cmp.Or(a.last.Time.Compare(b.last.Time), cmp.Compare(a.last.Event, b.last.Event))
	})
	for _, g := range due {
		e := g.last
		e.Suppressed = g.held
		// While more come than a window may tell, a window tells only how many.
		told := 0
		if g.held > dampBurst {
			told = dampBurst
		}
		*g = group{start: time.Now(), told: told}
		d.next(e)
	}
}

// close tells all counts. After it next is not called any more.
func (d *damper) close() {
	d.mu.Lock()
	if !d.closed {
		d.flush(func(*group) bool { return true })
		d.closed = true
		if d.timer != nil && d.timer.Stop() {
			d.wg.Done()
		}
	}
	d.mu.Unlock()
	d.wg.Wait()
}

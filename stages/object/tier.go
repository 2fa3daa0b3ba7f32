package object

import (
	"container/list"
	"sync"
)

// memoryTier keeps stripes that are asked for again in what a slab has free, so that they
// are sent without their file. It takes no memory of its own: whoever waits for memory of
// the slab gets what the tier holds, the stripe that was used longest ago first.
//
// A stripe comes in when it is read a second time. It takes the place of another only if
// it was asked for later than the other was used: objects that are read once pass by, and
// of those that are read in turn and do not fit, some stay instead of none.
//
// What is kept was not verified here, as no stripe is that a shard sends. Who gets wrong
// bytes asks for the file to be verified, and that drops what is kept of it.
//
// Lock order: memoryTier.mu, then Slab.mu.
type memoryTier struct {
	slab *Slab

	mu     sync.Mutex
	kept   map[tierKey]*list.Element // of line
	line   *list.List                // of *keptStripe, the one used last first
	asked  map[tierKey]uint64        // when what is not kept was asked for
	recent []tierKey                 // the keys of asked in their order, a ring
	next   int                       // of recent
	clock  uint64                    // requests so far
	bytes  uint64
	closed bool
}

// tierKey names a stripe file. The name has the generation's handle, so it never means
// other bytes.
type tierKey struct {
	dir  int
	file string
}

type keptStripe struct {
	key  tierKey
	ext  *Extent
	meta StripeMeta
	used uint64 // clock
}

// askedBefore is how many stripes that are not kept a tier remembers.
const askedBefore = 8192

func newMemoryTier(slab *Slab) *memoryTier {
	t := &memoryTier{slab: slab, kept: map[tierKey]*list.Element{}, line: list.New(), asked: map[tierKey]uint64{}}
	slab.lend(t.giveBack)
	return t
}

// get gives the memory of a kept stripe, which the caller releases, or nil.
func (t *memoryTier) get(key tierKey, want *Identity, n uint64) (*Extent, StripeMeta) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clock++
	e := t.kept[key]
	if e == nil {
		return nil, StripeMeta{}
	}
	k := e.Value.(*keptStripe)
	if k.meta.Identity != *want || k.meta.Length != n {
		return nil, StripeMeta{} // the file says what is wrong
	}
	k.used = t.clock
	t.line.MoveToFront(e)
	k.ext.Retain()
	return k.ext, k.meta
}

// room gives memory for a stripe that is worth keeping, or nil. The caller reads it, gives
// it to keep and releases it.
func (t *memoryTier) room(key tierKey, n uint64) *Extent {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, again := t.asked[key]
	t.remember(key)
	if !again || t.closed {
		return nil
	}
	for {
		if ext, ok := t.slab.TryAcquire(int(n)); ok {
			return ext
		}
		e := t.line.Back()
		if e == nil || e.Value.(*keptStripe).used >= before {
			return nil
		}
		t.dropLocked(e)
	}
}

// remember notes that a stripe was asked for now.
func (t *memoryTier) remember(key tierKey) {
	if _, known := t.asked[key]; !known {
		if len(t.recent) < askedBefore {
			t.recent = append(t.recent, key)
		} else {
			delete(t.asked, t.recent[t.next])
			t.recent[t.next] = key
			t.next = (t.next + 1) % askedBefore
		}
	}
	t.asked[key] = t.clock
}

// keep keeps a stripe that was read into memory of room. Nobody writes to it any more.
func (t *memoryTier) keep(key tierKey, ext *Extent, meta *StripeMeta) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// Who waits for memory asked the tier for it before it came here, so the tier must
	// not take any now.
	if t.closed || t.kept[key] != nil || t.slab.wanted() {
		return
	}
	ext.Retain()
	t.bytes += ext.room
	t.kept[key] = t.line.PushFront(&keptStripe{key: key, ext: ext, meta: *meta, used: t.clock})
}

// drop forgets a stripe.
func (t *memoryTier) drop(key tierKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.kept[key]; e != nil {
		t.dropLocked(e)
	}
}

func (t *memoryTier) dropLocked(e *list.Element) {
	k := t.line.Remove(e).(*keptStripe)
	delete(t.kept, k.key)
	t.bytes -= k.ext.room
	k.ext.Release() // free when nobody sends it any more
}

// giveBack gives stripes back to the slab, the one used longest ago first, until there
// are enough; those that are being sent only if the others do not do.
func (t *memoryTier) giveBack(enough func() bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, busy := range []bool{false, true} {
		for e := t.line.Back(); e != nil && !enough(); {
			x := e
			e = e.Prev()
			if busy || x.Value.(*keptStripe).ext.refs.Load() == 1 {
				t.dropLocked(x)
			}
		}
	}
}

// close gives everything back and keeps nothing from now on.
func (t *memoryTier) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for e := t.line.Back(); e != nil; e = t.line.Back() {
		t.dropLocked(e)
	}
}

// stats are how many stripes the tier keeps and what of the slab they take.
func (t *memoryTier) stats() (stripes int, bytes uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.line.Len(), t.bytes
}

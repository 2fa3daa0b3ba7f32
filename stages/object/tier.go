package object

import (
	"container/list"
	"sync"

	"github.com/zeebo/xxh3"
)

// memoryTier keeps stripes that are asked for again in what a slab has free, so that they
// are sent without their file. It takes no memory of its own, and a quarter of the slab is
// never its: whoever waits for memory gets what the tier holds, the stripe that was used
// longest ago first.
//
// A stripe comes in when it is read a second time. It takes the place of others only if
// it was asked for later than they were used: objects that are read once pass by, and of
// those that are read in turn and do not fit, some stay instead of none.
//
// What is kept was not verified here, as no stripe is that a shard sends. Who gets wrong
// bytes asks for the file to be verified, and that drops what is kept of it.
//
// Lock order: memoryTier.mu, then Slab.mu.
type memoryTier struct {
	slab *Slab
	most uint64 // bytes that it may take

	mu     sync.Mutex
	kept   map[tierKey]*list.Element // of line
	line   *list.List                // of *keptStripe, the one used last first
	bytes  uint64                    // of kept
	rooms  map[*tierRoom]struct{}    // stripes that are being read
	coming uint64                    // bytes of rooms
	asked  map[uint64]uint64         // when what is not kept was asked for, by the hash of its key
	recent []uint64                  // the hashes of asked in their order, a ring
	next   int                       // of recent
	clock  uint64                    // requests so far
	closed bool
}

// tierKey names a stripe file. The name has the generation's handle, so it never means
// other bytes.
type tierKey struct {
	dir  int
	file string
}

// hash leaves the directory out: no two have a file of one name.
func (k tierKey) hash() uint64 { return xxh3.HashString(k.file) }

type keptStripe struct {
	key  tierKey
	ext  *Extent
	meta StripeMeta
	used uint64 // clock
}

// tierRoom is memory for a stripe that will be kept, while it is read.
type tierRoom struct {
	tier    *memoryTier
	key     tierKey
	ext     *Extent
	dropped bool // the file was removed, or doubted, meanwhile
}

// askedBefore is how many stripes that are not kept a tier remembers, in 2.3 MiB.
const askedBefore = 1 << 16

func newMemoryTier(slab *Slab) *memoryTier {
	t := &memoryTier{slab: slab, most: slab.limit / 4 * 3, kept: map[tierKey]*list.Element{}, line: list.New(), rooms: map[*tierRoom]struct{}{}, asked: map[uint64]uint64{}}
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

// room gives memory for a stripe that is worth keeping, or nil. The caller reads it, may
// call keep, and calls release.
func (t *memoryTier) room(key tierKey, n uint64) *tierRoom {
	t.mu.Lock()
	defer t.mu.Unlock()
	before, again := t.asked[key.hash()]
	need := roundUp(n)
	if !again || t.closed || !t.canLocked(need, before) {
		return nil
	}
	for {
		if t.bytes+t.coming+need <= t.most {
			if ext, ok := t.slab.TryAcquire(int(n)); ok {
				r := &tierRoom{tier: t, key: key, ext: ext}
				t.rooms[r] = struct{}{}
				t.coming += ext.room
				return r
			}
		}
		// Room may still be wanting, in one piece.
		e := t.line.Back()
		if e == nil || e.Value.(*keptStripe).used >= before {
			return nil
		}
		t.dropLocked(e)
	}
}

// canLocked reports whether need bytes are there when what was used last before a time
// goes. Nothing goes in vain.
func (t *memoryTier) canLocked(need, before uint64) bool {
	if need > t.most {
		return false
	}
	st := t.slab.Stats()
	there := min(st.Capacity-min(st.Capacity, st.Used), t.most-min(t.most, t.bytes+t.coming))
	for e := t.line.Back(); e != nil && there < need; e = e.Prev() {
		k := e.Value.(*keptStripe)
		if k.used >= before {
			return false
		}
		there += k.ext.room
	}
	return there >= need
}

// passed notes that a stripe was sent which is not kept.
func (t *memoryTier) passed(key tierKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rememberLocked(key, t.clock)
}

func (t *memoryTier) rememberLocked(key tierKey, at uint64) {
	h := key.hash()
	if _, known := t.asked[h]; !known {
		if len(t.recent) < askedBefore {
			t.recent = append(t.recent, h)
		} else {
			delete(t.asked, t.recent[t.next])
			t.recent[t.next] = h
			t.next = (t.next + 1) % askedBefore
		}
	}
	t.asked[h] = at
}

// keep keeps the stripe, which was read as a whole. Nobody writes to it any more.
func (r *tierRoom) keep(meta *StripeMeta) {
	t := r.tier
	t.mu.Lock()
	defer t.mu.Unlock()
	// Who waits for memory asked the tier for it before it came here, so the tier must
	// not take any now.
	if t.closed || r.dropped || t.kept[r.key] != nil || t.slab.Stats().Waiting > 0 {
		t.rememberLocked(r.key, t.clock)
		return
	}
	r.ext.Retain()
	t.bytes += r.ext.room
	t.kept[r.key] = t.line.PushFront(&keptStripe{key: r.key, ext: r.ext, meta: *meta, used: t.clock})
}

// release ends the use of the memory for reading.
func (r *tierRoom) release() {
	r.tier.mu.Lock()
	delete(r.tier.rooms, r)
	r.tier.coming -= r.ext.room
	r.tier.mu.Unlock()
	r.ext.Release()
}

// drop forgets a stripe, and does not keep it where it is being read.
func (t *memoryTier) drop(key tierKey) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.kept[key]; e != nil {
		t.dropLocked(e)
	}
	for r := range t.rooms {
		r.dropped = r.dropped || r.key == key
	}
}

func (t *memoryTier) dropLocked(e *list.Element) {
	k := t.line.Remove(e).(*keptStripe)
	delete(t.kept, k.key)
	t.bytes -= k.ext.room
	t.rememberLocked(k.key, k.used)
	k.ext.Release() // free when nobody sends it any more
}

// giveBack gives stripes back to the slab, the one used longest ago first, until there
// are enough. When those that nobody sends do not do, the others go, too: they are free
// as their sends end, and what they make together has no hole.
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

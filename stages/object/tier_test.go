package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/railstore/railstore/cue/deploy"
)

// tierFetch does with a tier what the service does for a fetch, and reports whether the
// stripe was there.
func tierFetch(tier *memoryTier, id, n int) bool {
	key, meta := tierKey{id % 3, fmt.Sprint(id)}, StripeMeta{Identity: Identity{Handle: fmt.Sprint(id)}, Length: uint64(n)}
	if ext, got := tier.get(key, &meta.Identity, meta.Length); ext != nil {
		defer ext.Release()
		for _, b := range ext.Bytes() {
			if b != byte(id) || got != meta {
				panic(fmt.Sprintf("stripe %d holds %d of %+v", id, b, got))
			}
		}
		return true
	}
	if room := tier.room(key, meta.Length); room != nil {
		defer room.release()
		fill(room.ext.Bytes(), byte(id))
		room.keep(&meta)
	} else {
		tier.passed(key)
	}
	return false
}

// tierModel keeps stripes of one size by the rule, in slices.
type tierModel struct {
	clock       int
	asked, used map[int]int // used: of what is kept
}

func (m *tierModel) oldest() (id int) {
	id = -1
	for k, at := range m.used {
		if id < 0 || at < m.used[id] {
			id = k
		}
	}
	return id
}

func (m *tierModel) fetch(id, free int) bool {
	m.clock++
	if _, kept := m.used[id]; kept {
		m.used[id] = m.clock
		return true
	}
	before, again := m.asked[id]
	if !again {
		m.asked[id] = m.clock
		return false
	}
	if len(m.used) >= free {
		if victim := m.oldest(); victim < 0 || m.used[victim] >= before {
			m.asked[id] = m.clock
			return false
		}
		m.drop(m.oldest())
	}
	m.used[id] = m.clock
	return false
}

func (m *tierModel) drop(id int) {
	if at, kept := m.used[id]; kept {
		m.asked[id] = at
		delete(m.used, id)
	}
}

// TestTierModel: which requests are served from memory is what the rule says, whatever
// else takes memory of the slab and gives it back.
func TestTierModel(t *testing.T) {
	const stripes, most, size = 6, 4, 2 * Align // three quarters of 12 pages
	rapid.Check(t, func(t *rapid.T) {
		slab := NewSlab(make([]byte, stripes*size))
		tier := newMemoryTier(slab)
		m := &tierModel{asked: map[int]int{}, used: map[int]int{}}
		var others []*Extent
		t.Repeat(map[string]func(*rapid.T){
			"fetch": func(t *rapid.T) {
				id := rapid.IntRange(0, 9).Draw(t, "stripe")
				if got, want := tierFetch(tier, id, size), m.fetch(id, min(most, stripes-len(others))); got != want {
					t.Fatalf("stripe %d from memory: %v, want %v", id, got, want)
				}
			},
			"take": func(t *rapid.T) {
				if len(others) == stripes {
					return
				}
				// It never waits: what the tier has is free for whoever asks.
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				ext, err := slab.Acquire(ctx, size)
				if err != nil {
					t.Fatal(err)
				}
				others = append(others, ext)
				if len(m.used)+len(others) > stripes {
					m.drop(m.oldest())
				}
			},
			"return": func(t *rapid.T) {
				if len(others) == 0 {
					return
				}
				others[0].Release()
				others = others[1:]
			},
			"drop": func(t *rapid.T) {
				id := rapid.IntRange(0, 9).Draw(t, "stripe")
				tier.drop(tierKey{id % 3, fmt.Sprint(id)})
				m.drop(id)
			},
			"": func(t *rapid.T) {
				n, held := tier.stats()
				if st := slab.Stats(); n != len(m.used) || held != uint64(n*size) || st.Extents != n+len(others) || st.Used != uint64(st.Extents*size) {
					t.Fatalf("%d stripes of %d bytes, want %d; slab %+v, others %d", n, held, len(m.used), st, len(others))
				}
			},
		})
		for _, x := range others {
			x.Release()
		}
		tier.close()
		tier.close()
		for range 3 {
			if tierFetch(tier, 1, size) || slab.Stats().Extents != 0 {
				t.Fatal("a closed tier keeps stripes")
			}
		}
	})
}

// TestTierReadsInTurn: of more stripes than there is room for, read in turn, as many as
// fit stay; and those that are read now take the place of those that are not any more.
func TestTierReadsInTurn(t *testing.T) {
	slab := NewSlab(make([]byte, 6*Align)) // 4 for stripes
	tier := newMemoryTier(slab)
	turn := func(first, last int) (hits int) {
		for id := first; id < last; id++ {
			if tierFetch(tier, id, Align) {
				hits++
			}
		}
		return hits
	}
	for i, want := range []int{0, 0, 4, 4, 4} {
		if hits := turn(0, 16); hits != want {
			t.Errorf("turn %d of 16 stripes: %d from memory, want %d", i, hits, want)
		}
	}
	for i, want := range []int{0, 0, 4, 4} {
		if hits := turn(100, 104); hits != want {
			t.Errorf("turn %d of others: %d from memory, want %d", i, hits, want)
		}
	}
	// Once each, nothing stays but what was there; nor does what must wait for its own turn.
	turn(1000, 1000+askedBefore+5)
	if hits := turn(100, 104); hits != 4 {
		t.Errorf("after many that were read once: %d, want 4", hits)
	}
	// What is read for once takes its own memory, and the tier's only when it must.
	x, err := slab.Acquire(context.Background(), 2*Align)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Release()
	if hits := turn(100, 104); hits != 4 {
		t.Errorf("while others have what is left of the slab: %d, want 4", hits)
	}
	if n := len(tier.asked); n != askedBefore || len(tier.recent) != askedBefore {
		t.Errorf("%d requests are remembered, %d at most", n, askedBefore)
	}
}

// TestTierGivesWay: whoever waits gets memory, also that of stripes which are being sent
// when he comes, and that of a stripe which is about to be kept.
func TestTierGivesWay(t *testing.T) {
	slab := NewSlab(make([]byte, 4*Align))
	tier := newMemoryTier(slab)
	for range 2 {
		tierFetch(tier, 1, Align)
		tierFetch(tier, 2, Align)
	}
	one, _ := tier.get(tierKey{1, "1"}, &Identity{Handle: "1"}, Align)
	if n, _ := tier.stats(); n != 2 || one == nil {
		t.Fatalf("%d stripes are kept", n)
	}
	got := make(chan *Extent)
	go func() {
		ext, err := slab.Acquire(context.Background(), 4*Align)
		if err != nil {
			t.Error(err)
		}
		got <- ext
	}()
	waitFor(t, func() bool { return slab.Stats().Extents == 1 }) // the one that is being sent
	if !bytes.Equal(one.Bytes(), bytes.Repeat([]byte{1}, Align)) {
		t.Error("memory that is being sent was given away")
	}
	one.Release()
	all := <-got
	// Somebody waits while a stripe is read, before it is kept.
	tier.passed(tierKey{0, "3"})
	all.Release()
	room := tier.room(tierKey{0, "3"}, Align)
	go func() {
		x, err := slab.Acquire(context.Background(), 4*Align)
		if err != nil {
			t.Error(err)
		}
		got <- x
	}()
	waitFor(t, func() bool { return slab.Stats().Waiting == 1 })
	room.keep(&StripeMeta{})
	room.release()
	(<-got).Release()
	if n, held := tier.stats(); n != 0 || held != 0 || slab.Stats().Used != 0 {
		t.Errorf("%d stripes are kept, %+v", n, slab.Stats())
	}
}

// TestTierRules: what a tier keeps, gives and refuses, case by case.
func TestTierRules(t *testing.T) {
	id := func(n int) (tierKey, StripeMeta) {
		return tierKey{n % 3, fmt.Sprint(n)}, StripeMeta{Identity: Identity{Handle: fmt.Sprint(n)}, Length: Align}
	}
	full := func(t *testing.T, stripes ...int) *memoryTier { // of 8 pages
		tier := newMemoryTier(NewSlab(make([]byte, 8*Align)))
		for range 2 {
			for _, n := range stripes {
				tierFetch(tier, n, Align)
			}
		}
		if n, _ := tier.stats(); n != len(stripes) {
			t.Fatalf("%d stripes are kept, want %d", n, len(stripes))
		}
		return tier
	}
	kept := func(tier *memoryTier, n int) bool {
		tier.mu.Lock()
		defer tier.mu.Unlock()
		key, _ := id(n)
		return tier.kept[key] != nil
	}
	t.Run("another identity or length", func(t *testing.T) {
		tier := full(t, 1)
		key, meta := id(1)
		if x, _ := tier.get(key, &Identity{Handle: "other"}, Align); x != nil {
			t.Error("a stripe of another generation")
		}
		if x, _ := tier.get(key, &meta.Identity, Align-1); x != nil {
			t.Error("a stripe of another length")
		}
	})
	t.Run("read twice at once", func(t *testing.T) {
		tier := full(t, 1)
		key, meta := id(2)
		tier.passed(key)
		one, two := tier.room(key, Align), tier.room(key, Align)
		one.keep(&meta)
		two.keep(&meta)
		one.release()
		two.release()
		if n, bytes := tier.stats(); n != 2 || bytes != 2*Align || tier.slab.Stats().Extents != 2 || tier.coming != 0 {
			t.Errorf("%d stripes, %d bytes, %+v", n, bytes, tier.slab.Stats())
		}
	})
	t.Run("removed while it is read", func(t *testing.T) {
		tier := full(t, 1)
		key, meta := id(2)
		tier.passed(key)
		room := tier.room(key, Align)
		tier.drop(key)
		room.keep(&meta)
		room.release()
		if kept(tier, 2) || tier.slab.Stats().Extents != 1 {
			t.Errorf("it is kept: %+v", tier.slab.Stats())
		}
	})
	t.Run("idle ones go first", func(t *testing.T) {
		tier := full(t, 1, 2, 3)
		key, meta := id(1)
		one, _ := tier.get(key, &meta.Identity, Align)
		defer one.Release()
		for _, n := range []int{2, 3} { // 1 is the oldest again
			tierFetch(tier, n, Align)
		}
		x, err := tier.slab.Acquire(context.Background(), 6*Align)
		if err != nil {
			t.Fatal(err)
		}
		defer x.Release()
		if !kept(tier, 1) || kept(tier, 2) {
			t.Error("what was being sent went before what was not")
		}
	})
	t.Run("several go for a large one", func(t *testing.T) {
		tier := full(t, 1, 2, 3, 4, 5, 6)
		tier.clock += 10
		big := tierKey{0, "big"}
		tier.passed(big)
		room := tier.room(big, 3*Align)
		if room == nil || kept(tier, 3) || !kept(tier, 6) {
			t.Fatal("the three oldest ones did not go")
		}
		room.release()
	})
	t.Run("none goes in vain", func(t *testing.T) {
		tier := full(t, 1, 2, 3, 4, 5, 6)
		big, late := tierKey{0, "big"}, tierKey{0, "late"}
		tier.clock += 10
		tier.passed(late)
		tier.passed(big)
		for n := 3; n <= 6; n++ { // used later than both were asked for
			tier.clock += 10
			tierFetch(tier, n, Align)
		}
		for _, c := range []struct {
			key tierKey
			n   uint64
		}{{big, 7 * Align}, {big, 100 * Align}, {late, 3 * Align}} {
			if room := tier.room(c.key, c.n); room != nil || !kept(tier, 1) || !kept(tier, 2) {
				t.Errorf("%d bytes: stripes went, or there was room", c.n)
			}
		}
	})
	t.Run("a dropped one was asked for when it was used", func(t *testing.T) {
		tier := full(t, 1, 2, 3, 4, 5, 6)
		for range 3 {
			tierFetch(tier, 1, Align)
		}
		key, _ := id(1)
		tier.drop(key)
		tier.passed(tierKey{0, "other"})
		if room := tier.room(tierKey{0, "other"}, Align); room == nil {
			t.Fatal("no room where one was dropped")
		} else {
			room.keep(&StripeMeta{})
			room.release()
		}
		if room := tier.room(key, Align); room == nil {
			t.Error("it was used later than the others and did not take the place of one")
		} else {
			room.release()
		}
	})
}

// TestTierRace: many at once fetch, drop and take memory; nobody waits for ever and no
// stripe ever holds another's bytes.
func TestTierRace(t *testing.T) {
	defer goleak.VerifyNone(t)
	slab := NewSlab(make([]byte, 8*Align))
	tier := newMemoryTier(slab)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	var hits atomic.Int32
	for g := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(g)))
			for range 2000 {
				id := rng.IntN(12)
				switch rng.IntN(8) {
				case 0:
					tier.drop(tierKey{id % 3, fmt.Sprint(id)})
				case 1, 2:
					x, err := slab.Acquire(ctx, (1+rng.IntN(3))*Align)
					if err != nil {
						t.Error(err)
						return
					}
					fill(x.Bytes(), 0xee)
					x.Release()
				default:
					if tierFetch(tier, id, Align) {
						hits.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	if hits.Load() == 0 {
		t.Error("nothing was served from memory")
	}
	tier.close()
	if st := slab.Stats(); st.Extents != 0 || st.Used != 0 {
		t.Errorf("%+v", st)
	}
}

// TestTierOverLanes: from the third read on no file is read; what is kept and wrong is
// found by the reader, read from the file again and kept no more; what is removed is
// dropped; a later generation is another stripe.
func TestTierOverLanes(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	var reads atomic.Int32
	for _, s := range x.shards {
		s.on(func(step string) error {
			if step == "read" {
				reads.Add(1)
			}
			return nil
		})
	}
	s := x.open(nil)
	defer x.shut(s)
	kept := func() (n int, hits uint64) {
		for _, s := range x.shards {
			st := s.service.Stats()
			n, hits = n+st.MemoryStripes, hits+st.MemoryHits
		}
		return n, hits
	}
	data := randomBytes(3, 8*4*Align)
	putBytes(t, s.Worker, testKey, data)
	stripes := len(data) / int(x.dep.Objects.StripeBytes)
	for i := range 4 {
		before := reads.Load()
		rep := readBytes(t, s.Worker, testKey, data)
		n, hits := kept()
		if want := min(i, 1) * stripes; n != want {
			t.Errorf("read %d: %d stripes are kept, want %d", i, n, want)
		}
		if want := uint64(max(0, i-1) * stripes); hits != want || (reads.Load() != before) != (i < 2) {
			t.Errorf("read %d: %d hits, want %d; %d reads of files", i, hits, want, reads.Load()-before)
		}
		if rep.Degraded || !rep.Exact {
			t.Errorf("read %d: %+v", i, rep)
		}
	}
	// Files that are damaged meanwhile do no harm to what is kept. What is kept and
	// damaged is read from its file.
	spoiled := 0
	for _, s := range x.shards {
		s.service.tier.mu.Lock()
		for e := s.service.tier.line.Front(); e != nil; e = e.Next() {
			if spoiled < 2 {
				e.Value.(*keptStripe).ext.Bytes()[17] ^= 0x40
				spoiled++
			}
		}
		s.service.tier.mu.Unlock()
	}
	rep := readBytes(t, s.Worker, testKey, data)
	if n, _ := kept(); n != stripes-2 || rep.Rereads != 2 || len(rep.Corruptions) == 0 {
		t.Errorf("%d stripes are kept after 2 of %d were spoiled: %+v", n, stripes, rep)
	}
	putBytes(t, s.Worker, testKey, randomBytes(4, len(data)))
	readBytes(t, s.Worker, testKey, randomBytes(4, len(data)))
	if _, err := s.Remove(context.Background(), testKey); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { n, _ := kept(); return n == 0 })
	for _, s := range x.shards {
		if st := s.slab.Stats(); st.Used != 0 {
			t.Errorf("%+v", st)
		}
	}
}

// TestTierRemovedWhileRead: an object that is removed while its stripes are read for
// keeping leaves nothing.
func TestTierRemovedWhileRead(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s, other := x.open(nil), x.open(nil)
	defer x.shut(s)
	defer x.shut(other)
	data := randomBytes(6, 4*Align)
	putBytes(t, s.Worker, testKey, data)
	readBytes(t, s.Worker, testKey, data)
	var inside atomic.Int32
	goOn := make(chan struct{})
	for _, s := range x.shards {
		s.on(func(step string) error {
			if step == "read" {
				inside.Add(1)
				<-goOn
			}
			return nil
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if buf, _, err := s.Read(context.Background(), testKey, ReadOptions{}); err == nil {
			buf.Release()
		}
	}()
	waitFor(t, func() bool { return inside.Load() == 4 })
	if _, err := other.Remove(context.Background(), testKey); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	<-done
	for _, s := range x.shards {
		waitFor(t, func() bool { return s.slab.Stats().Used == 0 })
		if st := s.service.Stats(); st.MemoryStripes != 0 {
			t.Errorf("%+v", st)
		}
	}
}

// TestTierFailedRead: what was not read as a whole is not kept.
func TestTierFailedRead(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, func(d *deploy.Deployment) { d.Objects.StripeBytes = 4 * Align }) // two pieces
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	data := randomBytes(7, 16*Align)
	putBytes(t, s.Worker, testKey, data)
	readBytes(t, s.Worker, testKey, data)
	for _, s := range x.shards {
		var reads atomic.Int32
		s.on(func(step string) error {
			if step == "read" && reads.Add(1) > 1 {
				return errors.New("this piece cannot be read")
			}
			return nil
		})
	}
	if _, _, err := s.Read(context.Background(), testKey, ReadOptions{}); err == nil {
		t.Error("an object was read whose files cannot be read")
	}
	for _, s := range x.shards {
		s.on(nil)
		waitFor(t, func() bool { return s.slab.Stats().Used == 0 })
	}
	if rep := readBytes(t, s.Worker, testKey, data); rep.Rereads != 0 {
		t.Errorf("%+v", rep)
	}
}

// TestTierDamagedFile: a file that is damaged is found when it is not kept, and what was
// read of it before it was damaged is right.
func TestTierDamagedFile(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	data := randomBytes(5, 4*4*Align)
	putBytes(t, s.Worker, testKey, data)
	for range 2 {
		readBytes(t, s.Worker, testKey, data)
	}
	for i := range len(data) / Align {
		f := x.stripeFile(s, uint32(i))
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b[100] ^= 1
		if err := os.WriteFile(f, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	readBytes(t, s.Worker, testKey, data)
	for _, s := range x.shards {
		all, err := s.slab.Acquire(context.Background(), int(s.slab.Stats().Capacity))
		if err != nil {
			t.Fatal(err)
		}
		all.Release()
	}
	if _, _, err := s.Read(context.Background(), testKey, ReadOptions{}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("damaged files: %v", err)
	}
}

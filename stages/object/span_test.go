package object

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft"
)

// byRail is a driver for each rail: devices that differ in what they can.
type byRail []verbs.Driver

func (d byRail) Name() string                         { return "soft" }
func (d byRail) Devices() ([]verbs.DeviceInfo, error) { return nil, nil }
func (d byRail) Open(n string) (verbs.DriverContext, error) {
	return d[n[len("127.84.")]-'1'].Open(n)
}

// smallSite is a site whose devices register at most so many bytes at once, in the
// order of the rails.
func smallSite(t testing.TB, change func(*deploy.Deployment), limits ...uint64) *site {
	var d byRail
	for _, n := range limits {
		d = append(d, soft.New(soft.Options{Caps: verbs.DeviceAttr{MaxMRSize: n}}))
	}
	return newSiteOn(t, d, func(d *deploy.Deployment) {
		for h := range d.Hosts {
			for r := range d.Hosts[h].Rails {
				d.Hosts[h].Rails[r].Device = fmt.Sprintf("soft:127.84.%d.%d", r+1, h+1)
			}
		}
		d.Objects.StripeBytes = 5 * Align
		if change != nil {
			change(d)
		}
	})
}

// TestMemoryInManyMRs stores and reads stripes at every place of memory that the
// devices take in pieces only: their limits are no multiple of a stripe, of a QP's
// slots or of a page, and differ from rail to rail.
func TestMemoryInManyMRs(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := smallSite(t, nil, 10*Align+1, 7*Align+777)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	tr := s.cfg.Transport.(*LaneTransport)

	const stripe = 5 * Align
	ctx := context.Background()
	shard := x.shards[0]
	cuts := map[string]int{}                      // stripes that lay across one, by side and rail
	all, err := s.cfg.Slab.Acquire(ctx, 64*Align) // all of it gets registered
	if err != nil {
		t.Fatal(err)
	}
	all.Release()
	for i, at := range []Path{{"a", 0}, {"b", 0}} {
		mine, theirs := tr.cfg.Memory.On(at.Rail), shard.memory.On(at.Rail)
		if mine.MRs() < 6 || theirs.MRs() < 6 || mine.Len() != 64*Align {
			t.Fatalf("rail %s: %d bytes in %d MRs here, %d at the shard", at.Rail, mine.Len(), mine.MRs(), theirs.MRs())
		}
		if r, ok := s.client.Set.Rail(at.Rail); !ok || r.RegisteredBytes() <= []uint64{10 * Align, 7 * Align}[i] {
			t.Errorf("rail %s: the lanes have %d bytes, which one MR could hold", at.Rail, r.RegisteredBytes())
		}
		ext, err := s.cfg.Slab.Acquire(ctx, 64*Align)
		if err != nil {
			t.Fatal(err)
		}
		data := randomBytes(testSeed(t), stripe)
		for p := range 64 - 5 {
			off := uint64(p * Align)
			// The shard's memory begins somewhere else each time.
			hold, ok := shard.slab.TryAcquire((p * 3 % 59) * Align)
			if !ok {
				t.Fatal("the shard's memory is taken")
			}
			for side, span := range map[string]*verbs.Span{"here": mine, "there": theirs} {
				o := off
				if side == "there" {
					o = uint64(p * 3 % 59 * Align)
				}
				if _, _, one := span.At(o, stripe); !one {
					cuts[side+" "+at.Rail]++
				}
			}
			data[p]++
			src := ext.Piece(off, stripe)
			copy(src.Bytes, data)
			file, m := testStripe("x", uint64(1+p), uint32(i), data)
			ref := StripeRef{Identity: m.Identity, File: file, Length: stripe, XXH3: m.XXH3}
			if err := tr.StoreStripe(ctx, at, ref, src); err != nil {
				t.Fatalf("rail %s, %d: %v", at.Rail, off, err)
			}
			fill(ext.Bytes(), 0x5a)
			if got, err := tr.FetchStripe(ctx, at, ref, src, p%2 == 0); err != nil || got.XXH3 != m.XXH3 || !bytes.Equal(src.Bytes, data) {
				t.Fatalf("rail %s, %d: %+v %v, equal %v", at.Rail, off, got, err, bytes.Equal(src.Bytes, data))
			}
			if n := bytes.Count(ext.Bytes()[:off], []byte{0x5a}) + bytes.Count(ext.Bytes()[off+stripe:], []byte{0x5a}); n != 64*Align-stripe {
				t.Fatalf("rail %s, %d: %d bytes beside the stripe were written", at.Rail, off, 64*Align-stripe-n)
			}
			hold.Release()
		}
		ext.Release()
	}
	for _, k := range []string{"here a", "here b", "there a", "there b"} {
		if cuts[k] < 10 {
			t.Errorf("stripes across a cut: %v", cuts)
		}
	}

	// Objects as people put them, over both rails.
	for _, n := range []int{1, stripe, 11*stripe + 3, 60 * Align} {
		k := Key{Namespace: "kv", Name: fmt.Sprint(n)}
		data := randomBytes(uint64(n), n)
		putBytes(t, s.Worker, k, data)
		for range 3 {
			readBytes(t, s.Worker, k, data)
		}
	}

	// A stripe that lies in more MRs than a shard can be told of.
	data := randomBytes(1, 60*Align)
	_, err = s.Put(ctx, testKey, NewSource(bytes.NewReader(data), uint64(len(data)), "data"), PutOptions{StripeBytes: 30 * Align})
	if err == nil || !strings.Contains(err.Error(), "max_mr_size") || !strings.Contains(err.Error(), "objects.stripeBytes") {
		t.Errorf("stripes of %d bytes: %v", 30*Align, err)
	}
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// TestPieceTooLongForTheDevice: what cannot be cut is refused at once, with what to
// lower.
func TestPieceTooLongForTheDevice(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := smallSite(t, nil, 10*Align, 7*Align)
	defer x.close()
	open := func(change func(*deploy.Deployment)) error {
		// Another host's view of the recipe: the shards serve with what they have.
		dep := *x.dep
		dep.Hosts = append([]deploy.Host(nil), x.dep.Hosts...)
		change(&dep)
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		lim := DefaultLimits()
		lim.MinRails = 2 // else it goes on without the rail
		s, err := OpenSession(ctx, SessionConfig{Deployment: &dep, Host: "c", Drivers: x.drivers, Control: x.server.Addr(), Identity: x.identity(), Limits: lim})
		if err == nil {
			x.shut(s)
		}
		return err
	}
	for name, c := range map[string]struct {
		change func(*deploy.Deployment)
		says   []string
	}{
		"stripe": {func(d *deploy.Deployment) { d.Objects.StripeBytes = 8 * Align }, []string{"rail b", "soft:127.84.2.3", "32768 bytes", "28672", "objects.stripeBytes"}},
		"slots":  {func(d *deploy.Deployment) { d.Lanes.Slots = 8; d.Lanes.RequestBytes = 4096 }, []string{"rail ", "49152 bytes", "max_mr_size", "lanes.slotsPerQP", "lanes.requestBytes"}},
	} {
		err := open(c.change)
		for _, w := range c.says {
			if err == nil || !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v lacks %q", name, err, w)
			}
		}
	}
	// One MR that holds everything has no cuts.
	if err := open(func(d *deploy.Deployment) { d.Objects.StripeBytes, d.Reader.MaxStaging = 8*Align, 7*Align }); err != nil {
		t.Error(err)
	}
}

// What a client says of its memory is checked before anything is done with it.
func TestRequestMemory(t *testing.T) {
	r := func(addr, n uint64) verbs.RemoteRegion { return verbs.RemoteRegion{Addr: addr, Length: n, RKey: 1} }
	for _, c := range []struct {
		parts [maxParts]verbs.RemoteRegion
		n     uint64
		ok    bool
	}{
		{[maxParts]verbs.RemoteRegion{}, 0, true},
		{[maxParts]verbs.RemoteRegion{r(4096, 10)}, 10, true},
		{[maxParts]verbs.RemoteRegion{r(4096, 10), r(9000, 20)}, 30, true},
		{[maxParts]verbs.RemoteRegion{{}, r(9000, 20)}, 20, true},
		{[maxParts]verbs.RemoteRegion{r(math.MaxUint64, 1)}, 0, false},
		{[maxParts]verbs.RemoteRegion{r(0, 10), r(math.MaxUint64-5, 6)}, 0, false},
		{[maxParts]verbs.RemoteRegion{r(0, math.MaxUint64), r(0, 1)}, 0, false},
	} {
		q := stripeRequest{memory: c.parts}
		if n, ok := q.room(); ok != c.ok || ok && n != c.n {
			t.Errorf("%+v: %d %v", c.parts, n, ok)
		}
	}
}

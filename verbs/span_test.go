package verbs_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

func limited(size uint64, mrs int) verbs.Driver {
	return verbstest.NewLoop(verbstest.LoopOptions{Attr: func(a *verbs.DeviceAttr) { a.MaxMRSize, a.MaxMR = size, mrs }})
}

// spanned registers a region on a device of its own.
func spanned(d verbs.Driver, region *verbs.Region, align uint64, access verbs.Access, use func(*verbs.PD, *verbs.Span)) error {
	ctx, err := verbs.Open(d, "10.0.0.1")
	if err != nil {
		return err
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return errors.Join(err, ctx.Close())
	}
	s, err := pd.RegisterSpan(region, align, access)
	if err == nil {
		use(pd, s)
		err = s.Close()
	}
	return errors.Join(err, pd.Close(), ctx.Close())
}

// Whatever the length, the limit and the alignment are: the MRs follow each other
// over the whole region, none is longer than the limit, and no aligned block is cut.
func TestSpanCuts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := rapid.IntRange(0, 3000).Draw(t, "length")
		align := rapid.Uint64Range(0, 300).Draw(t, "align")
		limit := rapid.Uint64Range(0, 4000).Draw(t, "limit")
		region, err := verbs.MapRegion(length)
		if err != nil {
			t.Fatal(err)
		}
		defer region.Close()
		err = spanned(limited(limit, 1<<16), region, align, verbs.LocalWrite, func(_ *verbs.PD, s *verbs.Span) {
			whole := s.Remotes(nil, 0, s.Len())
			at := region.Addr()
			for i, r := range whole {
				if r.Addr != at || limit > 0 && r.Length > limit || r.RKey == 0 || (i > 0 && align > 0 && (r.Addr-region.Addr())%align != 0) {
					t.Fatalf("part %d is %+v, want one at %#x of at most %d", i, r, at, limit)
				}
				at += r.Length
			}
			if n := len(whole); at != region.Addr()+uint64(length) || s.Len() != uint64(length) || s.MRs() != max(n, 1) || n > 0 && whole[0].Length != s.Step() {
				t.Fatalf("%d bytes in %d parts end at %d; step %d, %d MRs", length, n, at-region.Addr(), s.Step(), s.MRs())
			}
			off := rapid.Uint64Range(0, uint64(length)).Draw(t, "off")
			n := rapid.Uint64Range(0, uint64(length)-off).Draw(t, "n")
			sges, parts := s.SGEs(nil, off, n), s.Remotes(nil, off, n)
			end := region.Addr() + off
			for i, g := range sges {
				if g.Addr != end || uint64(g.Length) != parts[i].Length || g.Addr != parts[i].Addr || g.Length == 0 || g.LKey == 0 {
					t.Fatalf("element %d is %+v, region %+v; want it at %#x", i, g, parts[i], end)
				}
				end += uint64(g.Length)
			}
			if end != region.Addr()+off+n || len(sges) != len(parts) {
				t.Fatalf("%d+%d: elements %+v, regions %+v", off, n, sges, parts)
			}
			m, in, ok := s.At(off, n)
			if ok != (len(parts) <= 1) {
				t.Fatalf("%d+%d lies in %d MRs, At says one: %v", off, n, len(parts), ok)
			}
			if ok && len(parts) == 1 && m.SGE(in, n) != sges[0] {
				t.Fatalf("%d+%d: %+v at %d, want %+v", off, n, m.SGE(in, n), in, sges[0])
			}
			if block := max(align, 1); off/block*block+block <= uint64(length) {
				if _, _, ok := s.At(off/block*block, block); !ok {
					t.Fatalf("the block of %d bytes at %d is cut", block, off/block*block)
				}
			}
			if s.Contains(off, uint64(length)-off+1) || s.Contains(uint64(length)+1, 0) || s.Contains(1, ^uint64(0)) {
				t.Fatal("contains what is outside")
			}
			if _, _, ok := s.At(off, uint64(length)-off+1); ok {
				t.Fatal("finds what is outside")
			}
		})
		cut := limit > 0 && uint64(length) > limit
		if want := cut && limit < max(align, 1); (err != nil) != want {
			t.Fatalf("%d bytes, limit %d, align %d: %v", length, limit, align, err)
		}
	})
}

func TestSpanRefusals(t *testing.T) {
	region, err := verbs.MapRegion(1000)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	none := func(*verbs.PD, *verbs.Span) { t.Error("registered") }
	for _, c := range []struct {
		d     verbs.Driver
		align uint64
		a     verbs.Access
		is    error
		says  string
	}{
		{limited(99, 1<<16), 100, verbs.LocalWrite, verbs.ErrNoMemory, "1000 bytes in pieces of 100: the device registers at most 99 at once (max_mr_size)"},
		{limited(199, 9), 100, verbs.LocalWrite, verbs.ErrNoMemory, "1000 bytes are 10 memory regions of 100: the device has room for 9 (max_mr), and registers at most 199 bytes at once"},
		{limited(100, 10), 100, verbs.RemoteWrite, verbs.ErrInvalid, "need local write"},
	} {
		err := spanned(c.d, region, c.align, c.a, none)
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %v with %q", err, c.is, c.says)
		}
	}
	for _, f := range []func(*verbs.Span){
		func(s *verbs.Span) { s.SGEs(nil, 999, 2) },
		func(s *verbs.Span) { s.Remotes(nil, 1001, 0) },
	} {
		err := spanned(limited(300, 10), region, 100, verbs.LocalWrite, func(_ *verbs.PD, s *verbs.Span) {
			defer func() {
				if recover() == nil {
					t.Error("outside of the span: no panic")
				}
			}()
			f(s)
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// A registration that fails half way leaves nothing registered.
func TestSpanIsAllOrNothing(t *testing.T) {
	region, err := verbs.MapRegion(1000)
	if err != nil {
		t.Fatal(err)
	}
	verbstest.FailEach(t, func() verbs.Driver { return limited(300, 16) }, func(d verbs.Driver) error {
		return spanned(d, region, 100, verbs.LocalWrite, func(_ *verbs.PD, s *verbs.Span) {
			if s.MRs() != 4 {
				t.Errorf("%d MRs", s.MRs())
			}
		})
	})
	if err := region.Close(); err != nil {
		t.Errorf("something is registered: %v", err)
	}
}

// Asking for parts of a span is on the way of every stripe.
func TestSpanAllocations(t *testing.T) {
	region, err := verbs.MapRegion(1000)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	err = spanned(limited(300, 16), region, 100, verbs.LocalWrite, func(_ *verbs.PD, s *verbs.Span) {
		sges, parts := make([]verbs.SGE, 0, 4), make([]verbs.RemoteRegion, 0, 4)
		if n := testing.AllocsPerRun(100, func() {
			sges, parts = s.SGEs(sges[:0], 250, 700), s.Remotes(parts[:0], 250, 700)
			s.At(250, 100)
		}); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if want := []uint32{50, 300, 300, 50}; !slices.EqualFunc(sges, want, func(g verbs.SGE, n uint32) bool { return g.Length == n }) || len(parts) != 4 {
			t.Errorf("%+v", sges)
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// A span that grew has the same bytes at the same places as one that was registered at
// once, and those that hold an older one are not disturbed.
func TestSpanGrows(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pieces := rapid.SliceOfN(rapid.Uint64Range(1, 900), 1, 6).Draw(t, "pieces")
		limit := rapid.Uint64Range(64, 1200).Draw(t, "limit")
		var length uint64
		for _, n := range pieces {
			length += n
		}
		region, err := verbs.MapRegion(int(length))
		if err != nil {
			t.Fatal(err)
		}
		defer region.Close()
		ctx, err := verbs.Open(limited(limit, 1<<16), "10.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		pd, err := ctx.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		var s *verbs.Span
		var at uint64
		for _, n := range pieces {
			old := s
			if s, err = pd.GrowSpan(old, region, n, 16, verbs.LocalWrite|verbs.RemoteWrite); err != nil {
				t.Fatal(err)
			}
			if old != nil && (old.Len() != at || len(old.Remotes(nil, 0, at)) != old.MRs()) {
				t.Fatalf("the older span changed: %d bytes in %d MRs", old.Len(), old.MRs())
			}
			at += n
			if s.Len() != at {
				t.Fatalf("%d bytes, want %d", s.Len(), at)
			}
		}
		off := rapid.Uint64Range(0, length).Draw(t, "off")
		n := rapid.Uint64Range(0, length-off).Draw(t, "n")
		next := region.Addr() + off
		for i, r := range s.Remotes(nil, off, n) {
			if r.Addr != next || r.Length == 0 || r.Length > limit || s.SGEs(nil, off, n)[i].Addr != next {
				t.Fatalf("part %d: %+v, want it at %#x", i, r, next)
			}
			if m, o, ok := s.At(r.Addr-region.Addr(), r.Length); !ok || m.RKey() != r.RKey || !m.Contains(o, r.Length) {
				t.Fatalf("part %d: %+v is not where At says", i, r)
			}
			next += r.Length
		}
		if next != region.Addr()+off+n {
			t.Fatalf("%d bytes in parts, want %d", next-region.Addr()-off, n)
		}
		if _, err := pd.GrowSpan(s, region, 1, 16, verbs.LocalWrite); !errors.Is(err, verbs.ErrInvalid) {
			t.Fatalf("past the region: %v", err)
		}
		if err := errors.Join(s.Close(), pd.Close(), ctx.Close()); err != nil {
			t.Fatal(err)
		}
	})
}

// When a piece cannot be registered the span is as it was, and nothing of the piece is
// left.
func TestSpanGrowFails(t *testing.T) {
	region, err := verbs.MapRegion(1000)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	verbstest.FailEach(t, func() verbs.Driver { return limited(100, 1<<16) }, func(d verbs.Driver) error {
		ctx, err := verbs.Open(d, "10.0.0.1")
		if err != nil {
			return err
		}
		pd, err := ctx.AllocPD()
		if err != nil {
			return errors.Join(err, ctx.Close())
		}
		s, err := pd.GrowSpan(nil, region, 250, 1, verbs.LocalWrite)
		if err == nil {
			var more *verbs.Span
			if more, err = pd.GrowSpan(s, region, 750, 1, verbs.LocalWrite); err == nil {
				s = more
			} else if s.Len() != 250 || s.MRs() != 3 {
				t.Errorf("%d bytes in %d MRs", s.Len(), s.MRs())
			}
			err = errors.Join(err, s.Close())
		}
		return errors.Join(err, pd.Close(), ctx.Close())
	})
}

package rail

import (
	"errors"
	"testing"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

func smallDevices(size uint64) verbs.Driver {
	return verbstest.NewLoop(verbstest.LoopOptions{Attr: func(a *verbs.DeviceAttr) { a.MaxMRSize = size }})
}

func twoRails(d verbs.Driver) *world {
	return &world{driver: d, dep: &deploy.Deployment{Hosts: []deploy.Host{{Name: "c", Rails: []deploy.Rail{
		{Name: "a", Device: "loop:10.0.0.1", Port: 1}, {Name: "b", Device: "loop:10.1.0.1", Port: 1}}}}}}
}

// A registration is on every rail and whole, or nowhere: each verb fails once.
func TestRegisterIsAllOrNothing(t *testing.T) {
	verbstest.FailEach(t, func() verbs.Driver { return smallDevices(5000) }, func(d verbs.Driver) error {
		ctx, scope := timeout(t), pipeline.NewScope()
		s, err := twoRails(d).set(ctx, scope, "c", testDemand)
		if err != nil {
			return errors.Join(err, scope.Close(ctx))
		}
		region, err := verbs.MapRegion(16384)
		if err != nil {
			t.Fatal(err)
		}
		reg, err := s.Register(region, verbs.LocalWrite, nil, Pieces{Align: 1024, Longest: 3000, Field: "x"})
		if err == nil {
			for _, r := range s.Rails {
				if n := reg.On(r.Name()).MRs(); n != 4 {
					t.Errorf("rail %s: %d MRs of at most 4096 bytes for 16384", r.Name(), n)
				}
			}
			if reg.On("other") != nil {
				t.Error("a rail that there is not")
			}
			err = reg.Close()
		}
		return errors.Join(err, region.Close(), scope.Close(ctx))
	})
}

// Every block of the lanes' memory lies in one MR, which is that of its link.
func TestBlocksAreNotCut(t *testing.T) {
	ctx, scope := timeout(t), pipeline.NewScope()
	s, err := twoRails(smallDevices(3*4096+100)).set(ctx, scope, "c", testDemand)
	if err != nil {
		t.Fatal(err)
	}
	r := s.Rails[0]
	if r.memory.MRs() != 2 || r.RegisteredBytes() != 6*4096 {
		t.Fatalf("%d bytes in %d MRs", r.RegisteredBytes(), r.memory.MRs())
	}
	keys := map[uint32]int{}
	var links []*Link
	for i := range 6 {
		l, err := s.newLink(r, i)
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, l)
		slots := l.meta(s).Slots
		mr, at := r.Block(l.Off, 4096)
		if slots.Addr != verbs.AddrOf(l.Bytes) || slots.Length != 4096 || slots.RKey != mr.RKey() || mr.SGE(at, 1).Addr != slots.Addr {
			t.Errorf("block at %d: %+v", l.Off, slots)
		}
		keys[slots.RKey]++
	}
	if len(keys) != 2 {
		t.Errorf("blocks by rkey: %v, want two MRs", keys)
	}
	for _, l := range links {
		if err := l.close(s); err != nil {
			t.Error(err)
		}
	}
	if err := scope.Close(ctx); err != nil {
		t.Error(err)
	}
}

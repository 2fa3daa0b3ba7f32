package verbs

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestErrorMatchesSentinelAndErrno(t *testing.T) {
	err := error(&Error{Op: "post_send", Device: "soft:127.0.0.1", Port: 1, QPN: 0x11, Kind: ErrSQFull, Err: syscall.ENOMEM})
	if !errors.Is(err, ErrSQFull) || !errors.Is(err, syscall.ENOMEM) || errors.Is(err, ErrRQFull) {
		t.Errorf("%v: wrong matches", err)
	}
	if want := "post_send soft:127.0.0.1/1 qp 0x000011: send queue full: cannot allocate memory"; err.Error() != want {
		t.Errorf("text %q, want %q", err, want)
	}
}

func TestWCStatus(t *testing.T) {
	if !errors.Is(error(WCRetryExceeded), WCRetryExceeded) || WCRetryExceeded.Name() != "RETRY_EXC(12)" {
		t.Errorf("%v", WCRetryExceeded.Name())
	}
	if got := WCStatus(37).Error(); got != "wc status 37" {
		t.Errorf("unknown status prints %q", got)
	}
}

func TestGIDText(t *testing.T) {
	for _, s := range []string{"10.1.2.3", "fe80::1", "fd00::1:2:3"} {
		g := GIDFromAddr(netip.MustParseAddr(s))
		back, err := ParseGID(g.String())
		if err != nil || back != g || g.Addr().String() != s {
			t.Errorf("%s: %v → %v, %v, addr %v", s, g, back, err, g.Addr())
		}
	}
	if g := GIDFromAddr(netip.MustParseAddr("10.0.0.1")); g.String() != "0000:0000:0000:0000:0000:ffff:0a00:0001" || !g.IsIPv4() {
		t.Errorf("%v", g)
	}
	if _, err := ParseGID("zz"); err == nil {
		t.Error("zz parsed")
	}
}

func TestMTUFor(t *testing.T) {
	for link, want := range map[int]int{1500: 1024, 9000: 4096, 65536: 4096, 4180: 4096, 4179: 2048, 339: 0, 340: 256} {
		if got := MTUFor(link); got != want {
			t.Errorf("link %d: MTU %d, want %d", link, got, want)
		}
	}
}

// A path has the smaller MTU of both ends, and no more than the options allow.
func TestPathMTU(t *testing.T) {
	for _, c := range []struct{ local, remote, most, want int }{
		{4096, 1024, 0, 1024}, {1024, 4096, 0, 1024}, {4096, 4096, 2048, 2048}, {2048, 1024, 4096, 1024},
	} {
		if got := (PathOpts{MTU: c.most}).PathMTU(Endpoint{MTU: c.local}, Endpoint{MTU: c.remote}); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestTransitions(t *testing.T) {
	rtr := MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN | MaskMaxDestRDAtomic | MaskMinRNRTimer
	for _, c := range []struct {
		from, to QPState
		mask     QPMask
		says     string // "" is allowed
	}{
		{QPReset, QPInitState, MaskPort | MaskPKeyIndex | MaskAccess, ""},
		{QPReset, QPInitState, MaskPort | MaskPKeyIndex, "also needs access"},
		{QPReset, QPRTS, MaskState, "no transition from RESET to RTS"},
		{QPInitState, QPRTR, rtr, ""},
		{QPInitState, QPRTR, rtr &^ MaskAV, "also needs av"},
		{QPInitState, QPRTR, rtr | MaskTimeout, "does not take timeout"},
		{QPRTR, QPRTS, MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskSQPSN | MaskMaxRDAtomic, ""},
		{QPRTS, QPErr, MaskState, ""},
		{QPErr, QPReset, MaskState, ""},
		{QPErr, QPRTS, MaskState, "no transition from ERR to RTS"},
		{QPRTS, QPErr, MaskTimeout, "takes no attributes"},
	} {
		err := checkTransition(c.from, c.to, c.mask)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%v to %v with %v: %v", c.from, c.to, c.mask, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%v to %v with %v: %v, want %q", c.from, c.to, c.mask, err, c.says)
		}
	}
}

func TestRemoteRegionSlice(t *testing.T) {
	r := RemoteRegion{Addr: 0x1000, Length: 100, RKey: 7}
	if s, ok := r.Slice(40, 60); !ok || s.Addr != 0x1000+40 || s.Length != 60 || s.RKey != 7 {
		t.Errorf("%v %v", s, ok)
	}
	for _, c := range [][2]uint64{{101, 0}, {0, 101}, {40, 61}, {1, ^uint64(0)}, {^uint64(0), 1}} {
		if _, ok := r.Slice(c[0], c[1]); ok {
			t.Errorf("slice %d+%d of 100 allowed", c[0], c[1])
		}
	}
}

func TestRegion(t *testing.T) {
	for _, n := range []int{0, 1, 4096, 4097, 1 << 20} {
		r, err := MapRegion(n)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Bytes()) != n || r.Addr()%4096 != 0 {
			t.Errorf("size %d: %d bytes at %#x", n, len(r.Bytes()), r.Addr())
		}
		if err := errors.Join(r.Close(), r.Close()); err != nil {
			t.Errorf("close twice: %v", err)
		}
	}
	if _, err := MapRegion(-1); !errors.Is(err, ErrInvalid) {
		t.Errorf("negative size: %v", err)
	}
	if _, err := MapRegion(1 << 62); !errors.Is(err, ErrNoMemory) {
		t.Errorf("huge size: %v", err)
	}
}

func TestWords(t *testing.T) {
	r, err := MapRegion(64)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := r.Bytes()[8:]
	StoreWord(b, 5)
	if old := CompareAndSwapWord(b, 4, 9); old != 5 || LoadWord(b) != 5 {
		t.Errorf("cas with the wrong value changed %d", old)
	}
	if old := CompareAndSwapWord(b, 5, 9); old != 5 || LoadWord(b) != 9 {
		t.Errorf("cas: old %d now %d", old, LoadWord(b))
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 1000 {
				AddWord(b, 1)
			}
		})
	}
	wg.Wait()
	if LoadWord(b) != 9+4000 {
		t.Errorf("adds were lost: %d", LoadWord(b))
	}
	if b[0] != byte(4009&0xff) {
		t.Error("the word is not little-endian")
	}
}

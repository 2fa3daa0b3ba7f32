//go:build cgo && linux

package ibv

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

func TestAttributes(t *testing.T) {
	f := newFake(t)
	c := f.open()
	defer c.Close()
	a := c.Attr()
	if a.MaxSGE != 30 || a.MaxRDAtomic != 12 || a.MaxMRSize != 1<<30 || a.NodeGUID != 0x0002c90300000030 || len(a.Firmware) != 63 || a.Ports != 2 {
		t.Errorf("%+v", a)
	}
	p, err := c.Port(2)
	if err != nil || p.State != verbs.PortActive || p.MaxMTU != 4096 || p.ActiveMTU != 1024 || p.LinkLayer != verbs.LinkEthernet || p.Gbps != 100 || p.LID != 0x12 {
		t.Errorf("%+v %v", p, err)
	}
	k, err := c.PKeys(1)
	if err != nil || !reflect.DeepEqual(k, []uint16{0xffff, 0x8001}) {
		t.Errorf("%v %v", k, err)
	}
	// Numbers from after this code was written.
	t.Setenv("FAKE_STATE", "9")
	t.Setenv("FAKE_MTU", "77")
	t.Setenv("FAKE_LINK", "5")
	p, err = c.Port(1)
	if err != nil || p.State.String() != "port state 9" || p.ActiveMTU != 0 || p.LinkLayer != verbs.LinkInfiniBand {
		t.Errorf("%+v %v", p, err)
	}
	if _, err := c.Port(3); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("port 3 of 2: %v", err)
	}
	t.Setenv("FAKE_FAIL_query_port", strconv.Itoa(int(unix.ENODEV)))
	if _, err := c.Port(1); !errors.Is(err, unix.ENODEV) || !errors.Is(err, verbs.ErrDevice) {
		t.Errorf("%v", err)
	}
}

func TestGIDsBySysfs(t *testing.T) {
	f := newFake(t)
	c := f.open()
	defer c.Close()
	got, err := c.GIDs(1)
	want := []verbs.GIDEntry{
		{Index: 0, GID: mustGID(t, "fe80::1"), Type: verbs.GIDTypeRoCEv1, NetDev: "eth7"},
		{Index: 1, GID: mustGID(t, "10.0.0.1"), Type: verbs.GIDTypeRoCEv2, NetDev: "eth7"},
		{Index: 3, GID: mustGID(t, "fd00::1"), Type: verbs.GIDTypeRoCEv2, NetDev: "eth7"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v %v", got, err)
	}
	t.Setenv("FAKE_LINK", strconv.Itoa(1))
	got, err = c.GIDs(2)
	if err != nil || got[0].Type != verbs.GIDTypeIB {
		t.Errorf("on InfiniBand: %+v %v", got, err)
	}
	f.file(0, "gids", 1, "rubbish")
	if _, err := c.GIDs(1); !errors.Is(err, verbs.ErrDevice) {
		t.Errorf("%v", err)
	}
}

// Whether the GID goes along is a matter of the link layer, the port and the
// subnets.
func TestAddressing(t *testing.T) {
	near, far := mustGID(t, "fe80::2"), mustGID(t, "fd00::2")
	for _, c := range []struct {
		name        string
		link, flags string
		remote      verbs.Endpoint
		want        string
	}{
		{"Ethernet", "2", "0", verbs.Endpoint{GID: near}, "global"},
		{"InfiniBand", "1", "0", verbs.Endpoint{GID: near, LID: 5}, "local"},
		{"InfiniBand, no GID", "1", "0", verbs.Endpoint{LID: 5}, "local"},
		{"InfiniBand, other subnet", "1", "0", verbs.Endpoint{GID: far, LID: 5}, "global"},
		{"InfiniBand, no LID", "1", "0", verbs.Endpoint{GID: near}, "global"},
		{"InfiniBand, port wants it", "1", "1", verbs.Endpoint{GID: near, LID: 5}, "global"},
		{"unspecified is InfiniBand", "0", "0", verbs.Endpoint{GID: near, LID: 5}, "local"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(t)
			t.Setenv("FAKE_LINK", c.link)
			t.Setenv("FAKE_PORT_FLAGS", c.flags)
			if err := f.rig().connect(t, verbs.PathOpts{}, c.remote); err != nil {
				t.Fatal(err)
			}
			if n := f.balance(); n["av "+c.want] != 1 || n["av local"]+n["av global"] != 1 {
				t.Errorf("%v, want %s", n, c.want)
			}
		})
	}
	f := newFake(t)
	err := f.rig().connect(t, verbs.PathOpts{}, verbs.Endpoint{GID: near, UDPPort: 5000})
	wants(t, err, []error{verbs.ErrNotSupported}, "UDP port 5000", "4791 only")
	if err := f.rig().connect(t, verbs.PathOpts{}, verbs.Endpoint{GID: near, UDPPort: 4791}); err != nil {
		t.Error(err)
	}
	wants(t, f.rig().connect(t, verbs.PathOpts{SGIDIndex: 256}, verbs.Endpoint{GID: near}), []error{verbs.ErrInvalid}, "index 256")
}

// batch is n signaled WRITEs of two elements each.
func (r *rig) batch(n int) ([]verbs.SendWR, []verbs.SGE) {
	wrs, sges := make([]verbs.SendWR, n), make([]verbs.SGE, 2*n)
	for i := range wrs {
		wrs[i] = verbs.SendWR{ID: verbs.WRID(i), Op: verbs.OpWrite, NumSGE: 2, Flags: verbs.Signaled}
		sges[2*i], sges[2*i+1] = r.mr.SGE(0, 100), r.mr.SGE(200, 100)
	}
	return wrs, sges
}

func (r *rig) ready(t *testing.T) {
	t.Helper()
	if err := r.connect(t, verbs.PathOpts{}, verbs.Endpoint{GID: mustGID(t, "10.0.0.2"), QPN: 1}); err != nil {
		t.Fatal(err)
	}
}

func TestBatchesOfAnyLength(t *testing.T) {
	f := newFake(t)
	r := f.rig()
	r.ready(t)
	next := verbs.WRID(0)
	for _, n := range []int{0, 1, 63, 64, 65, 130} {
		if n > r.qp.Cap().MaxSendWR-int(next) {
			r = f.rig()
			r.ready(t)
		}
		wrs, sges := r.batch(n)
		if k, err := r.qp.PostSend(wrs, sges); k != n || err != nil {
			t.Fatalf("batch of %d: %d, %v", n, k, err)
		}
		next += verbs.WRID(n)
		got := make([]verbs.WC, 200)
		k, err := r.cq.Poll(got)
		if k != n || err != nil {
			t.Fatalf("%d of %d completions, %v", k, n, err)
		}
		for i, wc := range got[:k] {
			if wc.ID != verbs.WRID(i) || wc.Status != verbs.WCSuccess || wc.Op != verbs.WCWrite || wc.QPN != r.qp.QPN() || wc.Flags != 0 {
				t.Fatalf("completion %d: %+v", i, wc)
			}
		}
	}
}

func TestFullQueue(t *testing.T) {
	f := newFake(t)
	r := f.rig()
	r.ready(t)
	room := r.qp.Cap().MaxSendWR
	if room != 203 {
		t.Fatalf("granted %d", room)
	}
	wrs, sges := r.batch(room + 9)
	k, err := r.qp.PostSend(wrs, sges)
	wants(t, err, []error{verbs.ErrSQFull, unix.ENOMEM}, "qp 0x")
	if k != room {
		t.Errorf("%d taken of %d", k, room)
	}
	t.Setenv("FAKE_FAIL_post", strconv.Itoa(int(unix.EINVAL)))
	k, err = r.qp.PostSend(wrs[:1], sges)
	wants(t, err, []error{verbs.ErrInvalid, unix.EINVAL})
	if k != 0 {
		t.Errorf("%d taken", k)
	}
	k, err = r.qp.PostRecv([]verbs.RecvWR{{}}, nil) // answers -1 and errno
	wants(t, err, []error{verbs.ErrInvalid, unix.EINVAL}, "post_recv")
	if k != 0 {
		t.Errorf("%d taken", k)
	}
}

// Numbers that nobody knows come out as they are and stop nothing.
func TestUnknownCompletions(t *testing.T) {
	f := newFake(t)
	for _, c := range []struct{ status, want int }{{37, 37}, {1000, 255}, {-3, 255}} {
		r := f.rig()
		r.ready(t)
		t.Setenv("FAKE_STATUS", strconv.Itoa(c.status))
		wrs, sges := r.batch(1)
		if _, err := r.qp.PostSend(wrs, sges); err != nil {
			t.Fatal(err)
		}
		var wc [1]verbs.WC
		if n, err := r.cq.Poll(wc[:]); n != 1 || err != nil || int(wc[0].Status) != c.want || wc[0].VendorErr != 0x77 {
			t.Errorf("status %d: %d %v %+v", c.status, n, err, wc[0])
		}
		wants(t, r.qp.Err(), []error{verbs.WCStatus(c.want)}, "wc status "+strconv.Itoa(c.want), "vendor error 0x77")
	}
	t.Setenv("FAKE_STATUS", "")
	t.Setenv("FAKE_OPCODE", "99")
	r := f.rig()
	r.ready(t)
	wrs, sges := r.batch(1)
	if _, err := r.qp.PostSend(wrs, sges); err != nil {
		t.Fatal(err)
	}
	var wc [1]verbs.WC
	if n, err := r.cq.Poll(wc[:]); n != 1 || err != nil || wc[0].Op.String() != "wc opcode 255" {
		t.Errorf("%d %v %+v", n, err, wc[0])
	}
	t.Setenv("FAKE_FAIL_poll", strconv.Itoa(int(unix.EIO)))
	_, err := r.cq.Poll(wc[:])
	wants(t, err, []error{verbs.ErrDevice, unix.EIO}, "poll_cq ibv:fake0")
	t.Setenv("FAKE_FAIL_notify", strconv.Itoa(int(unix.EIO)))
	wants(t, r.cq.Arm(false), []error{verbs.ErrDevice, unix.EIO}, "req_notify_cq")
}

// Flags reach the library; small requests go inline only when asked for. The
// fake sends its flags back as immediate data.
func TestFlags(t *testing.T) {
	f := newFake(t)
	t.Setenv("FAKE_OPCODE", "128")
	for _, c := range []struct {
		inline int
		flags  verbs.SendFlags
		bytes  uint64
		want   uint32
	}{
		{0, verbs.Signaled, 8, 2},
		{0, verbs.Signaled | verbs.Fence, 8, 3},
		{0, verbs.Signaled | verbs.Solicited, 8, 6},
		{0, verbs.Signaled | verbs.Solicited | verbs.Fence, 8, 7},
		{100, verbs.Signaled, 100, 10},
		{100, verbs.Signaled, 101, 2},
	} {
		r := f.rig()
		qp, err := r.pd.CreateQP(verbs.QPInit{SendCQ: r.cq, RecvCQ: r.cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxInline: c.inline}})
		if err != nil {
			t.Fatal(err)
		}
		if qp.Cap().MaxInline != c.inline {
			t.Errorf("inline of %d granted, %d asked for", qp.Cap().MaxInline, c.inline)
		}
		ep := verbs.Endpoint{QPN: 1, MTU: 1024, GID: mustGID(t, "10.0.0.2")}
		if err := qp.Connect(ep, ep, verbs.PathOpts{}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := qp.PostSend([]verbs.SendWR{{Op: verbs.OpWrite, NumSGE: 1, Flags: c.flags}}, []verbs.SGE{r.mr.SGE(0, c.bytes)}); err != nil {
			t.Fatal(err)
		}
		var wc [1]verbs.WC
		if n, err := r.cq.Poll(wc[:]); n != 1 || err != nil || swap(wc[0].Imm) != c.want {
			t.Errorf("%+v: %d %v flags %#x", c, n, err, swap(wc[0].Imm))
		}
		if err := qp.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func swap(v uint32) uint32 { return v<<24 | v>>24 | v<<8&0xff0000 | v>>8&0xff00 }

func TestAfterClose(t *testing.T) {
	f := newFake(t)
	r := f.rig()
	r.ready(t)
	wrs, sges := r.batch(1)
	if err := errors.Join(r.qp.Close(), r.cq.Close()); err != nil {
		t.Fatal(err)
	}
	_, err := r.qp.PostSend(wrs, sges)
	wants(t, err, []error{verbs.ErrClosed})
	_, err = r.qp.PostRecv([]verbs.RecvWR{{}}, nil)
	wants(t, err, []error{verbs.ErrClosed})
	_, err = r.cq.Poll(make([]verbs.WC, 1))
	wants(t, err, []error{verbs.ErrClosed})
	wants(t, r.cq.Arm(false), []error{verbs.ErrClosed})
	wants(t, r.cq.Wait(context.Background()), []error{verbs.ErrClosed})
}

func TestEvents(t *testing.T) {
	f := newFake(t)
	for number, want := range map[int]verbs.AsyncEvent{
		0: {Type: verbs.EventCQError}, 1: {Type: verbs.EventQPFatal}, 2: {Type: verbs.EventQPRequestError}, 3: {Type: verbs.EventQPAccessError},
		4: {Type: verbs.EventCommEstablished}, 8: {Type: verbs.EventDeviceFatal}, 9: {Type: verbs.EventPortActive, Port: 2}, 10: {Type: verbs.EventPortError, Port: 2},
		11: {Type: verbs.EventLIDChange, Port: 2}, 12: {Type: verbs.EventPKeyChange, Port: 2}, 13: {Type: verbs.EventSMChange, Port: 2},
		17: {Type: verbs.EventClientReregister, Port: 2}, 18: {Type: verbs.EventGIDChange, Port: 2},
	} {
		t.Run(want.Type.String(), func(t *testing.T) {
			r := f.rig()
			// One that is not known goes before; it must not be in the way.
			t.Setenv("FAKE_EVENT", "77")
			if err := r.qp.Fail(); err != nil {
				t.Fatal(err)
			}
			t.Setenv("FAKE_EVENT", strconv.Itoa(number))
			if err := errors.Join(r.qp.Modify(verbs.QPAttr{State: verbs.QPReset}, verbs.MaskState), r.qp.Fail()); err != nil {
				t.Fatal(err)
			}
			got := <-r.ctx.Events()
			if number <= 4 && number > 0 {
				want.QPN = r.qp.QPN()
			}
			if got.Type != want.Type || got.Port != want.Port || got.QPN != want.QPN || got.IsOf(r.cq) != (number == 0) {
				t.Errorf("%+v, want %+v", got, want)
			}
			if got.Type.OfPort() != (want.Port != 0) || got.Type.OfQP() != (want.QPN != 0) {
				t.Errorf("%v is said to be of a port: %v, of a QP: %v", got.Type, got.Type.OfPort(), got.Type.OfQP())
			}
			if number == 0 {
				wants(t, got.Err, []error{verbs.ErrCQOverrun})
				_, err := r.cq.Poll(make([]verbs.WC, 1))
				wants(t, err, []error{verbs.ErrCQOverrun}, "ibv:fake0")
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				_ = r.cq.Wait(ctx) // the wake-up that goes with it
				wants(t, r.cq.Wait(ctx), []error{verbs.ErrCQOverrun})
			}
		})
	}
	if n := f.balance(); n["async-event"] != -26 {
		t.Errorf("acknowledged: %v, want 26 asynchronous events", n)
	}
}

func TestCompletionEvents(t *testing.T) {
	f := newFake(t)
	r := f.rig()
	r.ready(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	wrs, sges := r.batch(1)
	for range 50 {
		if err := r.cq.Arm(false); err != nil {
			t.Fatal(err)
		}
		if _, err := r.qp.PostSend(wrs, sges); err != nil {
			t.Fatal(err)
		}
		if err := r.cq.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		if n, err := r.cq.Poll(make([]verbs.WC, 4)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if n := f.balance(); n["cq-event"] != -50 {
		t.Errorf("%v, want 50 acknowledged", n)
	}
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := r.cq.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

// When the event file breaks, whoever waits is told.
func TestBrokenEventFile(t *testing.T) {
	f := newFake(t)
	r := f.rig()
	r.ready(t)
	t.Setenv("FAKE_FAIL_cq_event", strconv.Itoa(int(unix.EIO)))
	wrs, sges := r.batch(1)
	if err := r.cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	if _, err := r.qp.PostSend(wrs, sges); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = r.cq.Wait(ctx) // the wake-up
	wants(t, r.cq.Wait(ctx), []error{verbs.ErrDevice, unix.EIO}, "get_cq_event")
	_, err := r.ctx.CreateCQ(1)
	wants(t, err, []error{verbs.ErrDevice, unix.EIO})
}

// The hot path allocates nothing: not where there is work, nor where there is
// none, nor where the queue is full.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	f := newFake(t)
	b := f.bare()
	defer b.close(t)
	t.Setenv("FAKE_LOG", "")
	wrs, sges := make([]verbs.SendWR, 8), make([]verbs.SGE, 8)
	for i := range wrs {
		wrs[i] = verbs.SendWR{Op: verbs.OpWrite, NumSGE: 1, Flags: verbs.Signaled}
	}
	wcs := make([]verbs.WC, 16)
	q, c := b.qp, b.cq
	if n := testing.AllocsPerRun(20, func() {
		if _, err := q.PostSend(wrs, sges); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Poll(wcs); n != 8 || err != nil {
			t.Fatal(n, err)
		}
		if n, err := c.Poll(wcs); n != 0 || err != nil {
			t.Fatal(n, err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a post and two polls", n)
	}
	for {
		if _, err := q.PostSend(wrs, sges); err != nil {
			break
		}
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := q.PostSend(wrs, sges); err == nil {
			t.Fatal("a full queue took more")
		}
	}); n != 0 {
		t.Errorf("%v allocations a post to a full queue", n)
	}
	recv := make([]verbs.RecvWR, 8)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := q.PostRecv(recv, nil); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations a post of receives", n)
	}
}

func TestQueryUnknownState(t *testing.T) {
	f := newFake(t)
	b := f.bare()
	defer b.close(t)
	a, err := b.qp.Query()
	if err != nil || a.State.String() != "qp state 42" || a.PathMTU != 0 || a.Access != verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead|verbs.RemoteAtomic {
		t.Errorf("%+v %v", a, err)
	}
}

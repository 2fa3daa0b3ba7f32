package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
	"github.com/railstore/railstore/verbs/soft"
)

// ends is a driver for each rail of the client and of the shards, told apart by the
// addresses of their devices: 127.86.RAIL.HOST, host 3 being the client.
type ends map[string]*soft.Driver

func endOf(device string) string {
	side, rail := "shard", "a"
	if strings.HasSuffix(device, ".3") {
		side = "client"
	}
	if strings.HasPrefix(device, "127.86.2.") {
		rail = "b"
	}
	return side + " " + rail
}

func (d ends) Name() string                                 { return "soft" }
func (d ends) Devices() ([]verbs.DeviceInfo, error)         { return nil, nil }
func (d ends) Open(n string) (verbs.DriverContext, error)   { return d[endOf(n)].Open(n) }
func (d ends) fault(t *testing.T, end string, f soft.Fault) { t.Helper(); d.mustAdd(t, end, f) }
func (d ends) mustAdd(t *testing.T, end string, f soft.Fault) int {
	t.Helper()
	id, err := d[end].AddFault(f)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// hit reports whether any fault of an end has hit something.
func (d ends) hit(end string) bool {
	for _, f := range d[end].Faults() {
		if f.Hits > 0 {
			return true
		}
	}
	return false
}

const matrixStripe = 256 << 10

// matrix is a deployment on soft rails whose lanes heal, with an object of 16 stripes.
type matrix struct {
	*site
	ends    ends
	session *Session
	data    []byte
}

func newMatrix(t *testing.T, change func(*Limits)) *matrix {
	t.Helper()
	d := ends{}
	for _, e := range []string{"client a", "client b", "shard a", "shard b"} {
		d[e] = soft.New(soft.Options{})
	}
	ms := func(n int) deploy.Duration { return deploy.Duration(time.Duration(n) * time.Millisecond) }
	x := newSiteOn(t, d, func(dep *deploy.Deployment) {
		for h := range dep.Hosts {
			for r := range dep.Hosts[h].Rails {
				dep.Hosts[h].Rails[r].Device = fmt.Sprintf("soft:127.86.%d.%d", r+1, h+1)
				dep.Hosts[h].Rails[r].Timeout, dep.Hosts[h].Rails[r].RetryCount = 14, 6 // 470 ms
			}
		}
		for i := range dep.Shards {
			dep.Shards[i].Slab = 4 << 20
		}
		dep.Objects.StripeBytes, dep.Reader.MaxStaging = matrixStripe, 32<<20
		dep.Health.TouchAfter, dep.Health.TouchTimeout = ms(100), ms(1000)
		dep.Rebuild = deploy.Rebuild{Enabled: true, MaxAttempts: 100, Wait: ms(2000), Poll: ms(10), PollMax: ms(100), PollTimeout: ms(500), Cooldown: ms(20), CooldownMax: ms(100), Sweep: ms(50), Rejoin: true}
	})
	m := &matrix{site: x, ends: d, data: randomBytes(3, 16*matrixStripe)}
	m.session = x.open(func(l *Limits) {
		l.Cooldown, l.IOTimeout = 100*time.Millisecond, 5*time.Second
		if change != nil {
			change(l)
		}
	})
	putBytes(t, m.session.Worker, testKey, m.data)
	return m
}

func (m *matrix) end() {
	m.t.Helper()
	if st := m.session.staged.slab.Stats(); st.Extents != 0 || st.Condemned != 0 {
		m.t.Errorf("memory is held: %+v", st)
	}
	for _, d := range m.ends {
		d.ClearFaults()
	}
	m.shut(m.session)
	m.close()
}

// heals reads until both rails carry their whole share again.
func (m *matrix) heals() {
	m.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		buf, rep, err := m.session.Read(context.Background(), testKey, ReadOptions{})
		if err == nil {
			if !bytes.Equal(buf.Bytes(), m.data) {
				m.t.Fatal("wrong bytes")
			}
			buf.Release()
			accounted(m.t, rep)
			if !rep.Degraded && len(rep.Rails) == 2 && rep.Rails[1].Bytes == 8*matrixStripe {
				return
			}
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("not whole again: %v, %+v\n%+v\n%+v", err, rep, m.session.Health().Status(), m.session.client.Status())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestMatrixLinkDownAndUp: the second rail's link goes down in the middle of a read and
// comes back: the other takes over, with exact sums; then a canary, and all of it again.
func TestMatrixLinkDownAndUp(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, end := range []string{"client b", "shard b"} {
		t.Run(end, func(t *testing.T) {
			m := newMatrix(t, nil)
			defer m.end()
			m.ends.fault(t, end, soft.Fault{Do: "port_down", At: soft.FaultAt{Bytes: 3 * matrixStripe}, For: 2500 * time.Millisecond})
			rep := readBytes(t, m.session.Worker, testKey, m.data)
			accounted(t, rep)
			if !rep.Degraded || rep.ReroutedBytes == 0 || rep.Rails[1].MovedOut != rep.ReroutedBytes || len(rep.Faults) == 0 || rep.Faults[0].Rail != "b" {
				t.Errorf("%+v", rep)
			}
			m.heals()
		})
	}
	// With fail the read ends, the destination is as it was, and after the link is back
	// the same buffer takes the object.
	m := newMatrix(t, func(l *Limits) { l.OnRailFailure = FailRead })
	defer m.end()
	dst := bytes.Repeat([]byte{0x33}, len(m.data))
	m.ends.fault(t, "client b", soft.Fault{Do: "port_down", At: soft.FaultAt{Bytes: 3 * matrixStripe}, For: 2 * time.Second})
	if _, _, err := m.session.ReadInto(context.Background(), testKey, dst, ReadOptions{}); err == nil || !bytes.Equal(dst, bytes.Repeat([]byte{0x33}, len(dst))) {
		t.Errorf("%v, or the destination was touched", err)
	}
	m.heals()
	if _, _, err := m.session.ReadInto(context.Background(), testKey, dst, ReadOptions{}); err != nil || !bytes.Equal(dst, m.data) {
		t.Errorf("%v", err)
	}
}

// TestMatrixOldGeneration: the object is replaced in the middle of a read: what comes is
// the new one, whole.
func TestMatrixOldGeneration(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, nil)
	defer m.end()
	next := randomBytes(9, 9*matrixStripe)
	var once atomic.Bool
	other := m.open(nil)
	m.shards[1].on(func(step string) error {
		if step == "read" && !once.Swap(true) {
			putBytes(t, other.Worker, testKey, next)
		}
		return nil
	})
	rep := readBytes(t, m.session.Worker, testKey, next)
	if rep.Attempts != 2 || rep.Generation != 2 {
		t.Errorf("%+v", rep)
	}
	accounted(t, rep)
	m.shut(other)
}

// TestMatrixChecksum: bits flip on the way in over one rail, with a good ICRC: the
// stripe comes over the other, the rail is named with the offset and quarantined.
func TestMatrixChecksum(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, func(l *Limits) { l.Quarantine = 300 * time.Millisecond })
	defer m.end()
	// In the middle of the first stripes; a bit in a lane's words is the lane's business.
	m.ends.fault(t, "client b", soft.Fault{Do: "corrupt", At: soft.FaultAt{Bytes: matrixStripe + matrixStripe/2}, Times: 1, Match: soft.FaultMatch{Opcode: "write", Direction: "in"}})
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	accounted(t, rep)
	if !m.ends.hit("client b") {
		t.Fatal("nothing was corrupted")
	}
	if len(rep.Corruptions) != 1 || rep.Corruptions[0].Rail != "b" || rep.Corruptions[0].Wrong != 1 || rep.Corruptions[0].RereadOn != "a" {
		t.Fatalf("%+v", rep)
	}
	if s := m.session.Snapshot()[1].State; !strings.Contains(s, "quarantined for corruption") {
		t.Errorf("%q", s)
	}
	m.heals()
}

// TestMatrixCancel cancels with one and with two rails in flight: nothing lands
// afterwards in memory that is used again, and the rails go on.
func TestMatrixCancel(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, rails := range [][]string{{"b"}, {"a", "b"}} {
		m := newMatrix(t, nil)
		var reading atomic.Int32
		goOn := make(chan struct{})
		ctx, cancel := context.WithCancel(context.Background())
		for _, s := range m.shards {
			s.on(func(step string) error {
				if step == "read" {
					if reading.Add(1) == int32(2*len(rails)) {
						cancel()
					}
					<-goOn
				}
				return nil
			})
		}
		_, _, err := m.session.Read(ctx, testKey, ReadOptions{Rails: rails})
		cancel()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		m.unchanged(func() { close(goOn) })
		for _, s := range m.shards {
			s.on(nil)
		}
		m.heals()
		m.end()
	}
}

// unchanged takes all of the session's memory, as the next reads would, lets what is
// late happen, and sees that none of it lands.
func (m *matrix) unchanged(late func()) {
	m.t.Helper()
	all, err := m.session.staged.slab.Acquire(context.Background(), int(m.session.staged.slab.Stats().Capacity))
	if err != nil {
		m.t.Fatal(err)
	}
	defer all.Release()
	fill(all.Bytes(), 0x5c)
	late()
	for _, s := range m.shards {
		waitFor(m.t, func() bool { return s.slab.Stats().Extents == 0 }) // it has written, or tried to
	}
	if n := bytes.Count(all.Bytes(), []byte{0x5c}); n != all.Len() {
		m.t.Errorf("%d bytes were written into memory that is used again", all.Len()-n)
	}
}

// TestMatrixSecondRailLate: the first rail has long done when the second one's stripes
// come. Nothing is handed over before; with a deadline the late ones come over the
// first.
func TestMatrixSecondRailLate(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, nil)
	defer m.end()
	m.ends.fault(t, "shard b", soft.Fault{Do: "bandwidth", BitsPerSecond: 40e6}) // 2 MiB of rail b take 0.4 s
	begin := time.Now()
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	if d := time.Since(begin); d < 300*time.Millisecond {
		t.Errorf("handed over after %v", d)
	}
	accounted(t, rep)
	if !rep.Exact || rep.Degraded || rep.Rails[1].BytesPerSecond > rep.Rails[0].BytesPerSecond/2 {
		t.Errorf("slow is not broken: %+v", rep)
	}
}

// TestMatrixUncertainCompletion: the shard's WRITEs complete into nothing: it does not
// know whether they arrived. It retires the connection and keeps the source until then;
// the client retires its own QP, and the other rail brings the object.
func TestMatrixUncertainCompletion(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, func(l *Limits) { l.IOTimeout = 700 * time.Millisecond })
	defer m.end()
	m.ends.fault(t, "shard b", soft.Fault{Do: "blackhole_completions", Match: soft.FaultMatch{Opcode: "write"}, For: time.Second})
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	accounted(t, rep)
	if !m.ends.hit("shard b") {
		t.Fatal("no completion was lost")
	}
	if !rep.Degraded || rep.Rails[0].MovedIn == 0 || rep.Rails[1].Errors == 0 {
		t.Errorf("%+v", rep)
	}
	m.unchanged(func() { m.ends["shard b"].ClearFaults() })
	m.heals()
}

// TestMatrixControlTimeout: the answer to a request does not come in time. The QP is
// retired, so that the late answer is not taken for that of the next request.
func TestMatrixControlTimeout(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, func(l *Limits) { l.IOTimeout = 300 * time.Millisecond })
	defer m.end()
	goOn := make(chan struct{})
	var held atomic.Int32
	for _, s := range m.shards {
		s.on(func(step string) error {
			if step == "read" && held.Add(1) == 1 {
				<-goOn
			}
			return nil
		})
	}
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	accounted(t, rep)
	if rep.Rails[0].Timeouts+rep.Rails[1].Timeouts == 0 || rep.ReroutedBytes == 0 {
		t.Errorf("%+v", rep)
	}
	retired := 0
	for _, l := range m.session.client.Status() {
		if l.State != lane.Active.String() || l.Epoch > 1 {
			retired++
		}
	}
	if retired == 0 {
		t.Errorf("no QP was retired: %+v", m.session.client.Status())
	}
	m.unchanged(func() { close(goOn) })
	m.heals()
}

// TestMatrixSlab: there is one source for what a shard sends, its slab. One that is full
// makes requests wait, and what cannot be had in time is said to be busy; nothing falls
// back to memory that nobody counts.
func TestMatrixSlab(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, func(l *Limits) { l.TaskDepth = 4 })
	defer m.end()
	for _, s := range m.shards {
		hold, err := s.slab.Acquire(context.Background(), 4<<20-matrixStripe) // room for one stripe
		if err != nil {
			t.Fatal(err)
		}
		defer hold.Release()
	}
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	accounted(t, rep)
	if rep.Degraded || rep.Rails[0].Bytes == 0 || rep.Rails[1].Bytes == 0 {
		t.Errorf("%+v", rep)
	}
	hold, err := m.shards[1].slab.Acquire(context.Background(), matrixStripe)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.session.Read(context.Background(), testKey, ReadOptions{}); !errors.Is(err, ErrBusy) {
		t.Errorf("%v", err)
	}
	hold.Release()
	readBytes(t, m.session.Worker, testKey, m.data)
}

// TestMatrixLateWrite: WRITEs of the second rail hang in the network for longer than
// the client waits. It goes on over the first, hands the object over, gives the memory
// back; when they come at last they find no QP.
func TestMatrixLateWrite(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, func(l *Limits) { l.IOTimeout = 300 * time.Millisecond })
	defer m.end()
	const by = 1500 * time.Millisecond
	m.ends.fault(t, "shard b", soft.Fault{Do: "late_write", By: by, For: 400 * time.Millisecond, Match: soft.FaultMatch{Opcode: "write", Direction: "out"}})
	begin := time.Now()
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	accounted(t, rep)
	if !m.ends.hit("shard b") || rep.ReroutedBytes == 0 {
		t.Errorf("nothing was late: %+v", rep)
	}
	m.unchanged(func() {
		for time.Since(begin) < by+500*time.Millisecond { // until all of it has come
			<-time.After(50 * time.Millisecond)
		}
	})
	m.heals()
}

// TestMatrixHedge: the second rail stands still without an error; near its deadline a
// read brings what hangs there over the first.
func TestMatrixHedge(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, nil)
	defer m.end()
	m.ends.fault(t, "shard b", soft.Fault{Do: "bandwidth", BitsPerSecond: 1e6}) // its 2 MB would take 16 s
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Second)
	defer cancel()
	buf, rep, err := m.session.Read(ctx, testKey, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buf.Bytes(), m.data) {
		t.Error("wrong bytes")
	}
	buf.Release()
	accounted(t, rep)
	if rep.Hedges == 0 || len(rep.Moves) == 0 {
		t.Errorf("%+v", rep)
	}
}

// TestMatrixAdaptive: a rail that lives and is slow loses share, read by read, and gets
// it back when it is fast again.
func TestMatrixAdaptive(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, func(l *Limits) { l.Adaptive = true })
	defer m.end()
	m.ends.fault(t, "shard b", soft.Fault{Do: "bandwidth", BitsPerSecond: 64e6})
	share := func() (uint64, *ReadReport) {
		rep := readBytes(t, m.session.Worker, testKey, m.data)
		accounted(t, rep)
		return rep.Rails[1].PlannedBytes / matrixStripe, rep
	}
	first, _ := share()
	waitFor(t, func() bool { n, rep := share(); return n <= 3 && n > 0 && rep.Rails[1].Bytes > 0 })
	if first != 8 {
		t.Errorf("the first read gave it %d stripes of 16", first)
	}
	m.ends["shard b"].ClearFaults()
	waitFor(t, func() bool { n, _ := share(); return n >= 7 })
}

// TestMatrixRailMissesStart: whatever keeps one rail from coming up, a session opens
// without it and says so; with minRails 2 it does not, and leaves nothing.
func TestMatrixRailMissesStart(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, nil)
	defer m.end()
	open := func(least int) (*Session, error) {
		lim := DefaultLimits()
		lim.MinRails = least
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		return OpenSession(ctx, SessionConfig{Deployment: m.dep, Host: "c", Drivers: m.drivers, Control: m.server.Addr(), Identity: m.identity(), Limits: lim})
	}
	for _, f := range []soft.Fault{{Do: "fail", Op: "open"}, {Do: "port_down"}, {Do: "fail", Op: "create_cq"}, {Do: "fail", Op: "reg_mr", Errno: "ENOMEM"},
		{Do: "fail", Op: "create_qp", Errno: "ENOMEM"}, {Do: "fail", Op: "modify_rtr", Errno: "ENETUNREACH"}} {
		id := m.ends.mustAdd(t, "client b", f)
		if s, err := open(2); err == nil || railOf(err) != "b" {
			t.Errorf("%s %s: %v", f.Do, f.Op, err)
			if err == nil {
				m.shut(s)
			}
		}
		s, err := open(1)
		if err != nil {
			t.Errorf("%s %s: %v", f.Do, f.Op, err)
		} else {
			rep := readBytes(t, s.Worker, testKey, m.data)
			if !rep.Degraded || len(rep.Rails) != 1 || len(rep.Excluded) != 1 || !strings.Contains(rep.Excluded[0], "rail b is absent (") {
				t.Errorf("%s %s: %+v", f.Do, f.Op, rep)
			}
			m.shut(s)
		}
		m.ends["client b"].ClearFaults(id)
	}
	s, err := open(2)
	if err != nil {
		t.Fatal(err)
	}
	if rep := readBytes(t, s.Worker, testKey, m.data); rep.Degraded {
		t.Errorf("%+v", rep)
	}
	m.shut(s)
}

package object

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs/lane"
)

const matrixStripe = 256 << 10

// matrix is a deployment on two rails of soft, or of real devices where there are any,
// whose lanes heal, with an object of 16 stripes.
type matrix struct {
	*site
	trouble trouble
	session *Session
	data    []byte
}

func newMatrix(t *testing.T, change func(*Limits)) *matrix {
	t.Helper()
	return newMatrixOf(t, nil, change)
}

// newMatrixOf changes the deployment, too.
func newMatrixOf(t *testing.T, deployment func(*deploy.Deployment), change func(*Limits)) *matrix {
	t.Helper()
	d := troubleHere(t)
	began := time.Now()
	ms := func(n int) deploy.Duration { return deploy.Duration(time.Duration(n) * time.Millisecond) }
	x := newSiteOn(t, d.driver(), func(dep *deploy.Deployment) {
		for h := range dep.Hosts {
			for r := range dep.Hosts[h].Rails {
				dep.Hosts[h].Rails[r].Device = d.device(r, h)
				dep.Hosts[h].Rails[r].Timeout, dep.Hosts[h].Rails[r].RetryCount = 14, 6 // 470 ms
			}
		}
		for i := range dep.Shards {
			dep.Shards[i].Slab = 4 << 20
		}
		dep.Objects.StripeBytes, dep.Reader.MaxStaging = matrixStripe, 32<<20
		dep.Health.TouchAfter, dep.Health.TouchTimeout = ms(100), deploy.Duration(matrixPace()*time.Second)
		dep.Rebuild = deploy.Rebuild{Enabled: true, MaxAttempts: 100, Wait: deploy.Duration(matrixPace() * 2 * time.Second), Poll: ms(10), PollMax: ms(100), PollTimeout: ms(500), Cooldown: ms(20), CooldownMax: ms(100), Sweep: ms(50), Rejoin: true}
		if deployment != nil {
			deployment(dep)
		}
	})
	m := &matrix{site: x, trouble: d, data: randomBytes(3, 16*matrixStripe)}
	m.session = x.open(func(l *Limits) {
		l.Cooldown, l.IOTimeout = 100*time.Millisecond, 5*time.Second
		if change != nil {
			change(l)
		}
	})
	putBytes(t, m.session.Worker, testKey, m.data)
	t.Logf("set up in %v", time.Since(began).Round(time.Millisecond))
	return m
}

func (m *matrix) end() {
	m.t.Helper()
	if st := m.session.staged.slab.Stats(); st.Extents != 0 || st.Condemned != 0 {
		m.t.Errorf("memory is held: %+v", st)
	}
	began := time.Now()
	m.trouble.mend()
	m.shut(m.session)
	m.close()
	m.t.Logf("closed in %v", time.Since(began).Round(time.Millisecond))
}

// heals reads until both rails carry their whole share again. It gives the steps in
// which rail b's paths came back, in thousandths of its share.
func (m *matrix) heals() (steps []int) {
	m.t.Helper()
	var mu sync.Mutex
	ctx := pipeline.WithSink(context.Background(), func(e pipeline.Event) {
		if e.Event == "path_probation" && e.Rail == "b" {
			mu.Lock()
			steps = append(steps, e.Fields["share_permille"].(int))
			mu.Unlock()
		}
	})
	began := time.Now()
	deadline := began.Add(matrixPace() * 10 * time.Second)
	for {
		buf, rep, err := m.session.Read(ctx, testKey, ReadOptions{})
		if err == nil {
			if !bytes.Equal(buf.Bytes(), m.data) {
				m.t.Fatal("wrong bytes")
			}
			buf.Release()
			accounted(m.t, rep)
			if !rep.Degraded && len(rep.Rails) == 2 && rep.Rails[1].Bytes == 8*matrixStripe {
				m.t.Logf("whole again after %v", time.Since(began).Round(time.Millisecond))
				return steps
			}
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("not whole again: %v, %+v\n%+v\n%+v", err, rep, m.session.Health().Status(), m.session.client.Status())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// midway runs f while the first stripes of the next read are under way, and holds the
// others at the shards until it is done.
func (m *matrix) midway(f func()) {
	var n atomic.Int32
	done := make(chan struct{})
	for _, s := range m.shards {
		s.on(func(step string) error {
			if step != "read" {
				return nil
			}
			switch i := n.Add(1); {
			case i == 4:
				f()
				close(done)
			case i > 4:
				<-done
			}
			return nil
		})
	}
}

// file is where a shard keeps a stripe.
func (m *matrix) file(stripe uint32) string {
	m.t.Helper()
	return m.stripeFile(m.session, stripe)
}

// refuses reads into a buffer, which must fail and leave it as it is.
func (m *matrix) refuses() error {
	m.t.Helper()
	dst := bytes.Repeat([]byte{0x33}, len(m.data))
	began := time.Now()
	_, _, err := m.session.ReadInto(context.Background(), testKey, dst, ReadOptions{})
	m.t.Logf("refused after %v: %v", time.Since(began).Round(time.Millisecond), err)
	if err == nil || bytes.Count(dst, []byte{0x33}) != len(dst) {
		m.t.Fatalf("%v, or the destination was touched", err)
	}
	return err
}

// TestMatrixHalves: each of two equal rails brings half of the bytes, exactly. On real
// devices the packets are counted, too.
func TestMatrixHalves(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, nil)
	defer m.end()
	half := uint64(len(m.data) / 2)
	var before [2]uint64
	for i, rail := range []string{"a", "b"} {
		before[i] = m.trouble.carried(t, rail)
	}
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	accounted(t, rep)
	if !rep.Exact || rep.Degraded || rep.Attempts != 1 || len(rep.Rails) != 2 {
		t.Errorf("%+v", rep)
	}
	for i, r := range rep.Rails {
		came := m.trouble.carried(t, r.Name) - before[i]
		// Headers are 2 % at an MTU of 4096, 7 % at 1024; what is lost comes twice.
		if r.Bytes != half || r.PlannedBytes != half || r.Stripes != 8 || came != 0 && (came < half || came > 2*half) {
			t.Errorf("rail %s: %d bytes came in; %+v", r.Name, came, r)
		}
	}
	// The same bytes over one rail alone.
	for _, rail := range []string{"a", "b"} {
		buf, rep, err := m.session.Read(context.Background(), testKey, ReadOptions{Rails: []string{rail}})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(buf.Bytes(), m.data) || len(rep.Rails) != 1 || rep.Rails[0].Bytes != 2*half {
			t.Errorf("over rail %s: %+v", rail, rep)
		}
		buf.Release()
	}
}

// TestMatrixLinkDownAndUp: the second rail's link goes down in the middle of a read and
// comes back: the other takes over, with exact sums; then a canary, and all of it again
// in steps. With fail the read ends, and the destination is as it was.
func TestMatrixLinkDownAndUp(t *testing.T) {
	defer goleak.VerifyNone(t)
	for _, end := range []string{"client b", "shard b"} {
		t.Run(end, func(t *testing.T) {
			m := newMatrix(t, nil)
			defer m.end()
			m.trouble.downMidway(m, end)
			rep := readBytes(t, m.session.Worker, testKey, m.data)
			accounted(t, rep)
			if !rep.Degraded || rep.ReroutedBytes == 0 || rep.Rails[1].MovedOut != rep.ReroutedBytes || len(rep.Faults) == 0 || rep.Faults[0].Rail != "b" {
				t.Errorf("%+v", rep)
			}
			m.trouble.mend()
			if steps := m.heals(); len(steps) < 3 || steps[0] != fullShare/4 || !slices.Contains(steps, fullShare/2) || steps[len(steps)-1] != fullShare {
				t.Errorf("rail b came back in steps of %v", steps)
			}
		})
	}
	t.Run("fail", func(t *testing.T) {
		m := newMatrix(t, func(l *Limits) { l.OnRailFailure = FailRead })
		defer m.end()
		m.trouble.downMidway(m, "client b")
		if err := m.refuses(); railOf(err) != "b" {
			t.Errorf("%v", err)
		}
		m.trouble.mend()
		m.heals()
		dst := make([]byte, len(m.data))
		if _, _, err := m.session.ReadInto(context.Background(), testKey, dst, ReadOptions{}); err != nil || !bytes.Equal(dst, m.data) {
			t.Errorf("%v", err)
		}
	})
}

// TestMatrixBothLinksDown: nothing leads to the shards any more: the read ends, the
// destination is as it was; when the links are back the next reads work.
func TestMatrixBothLinksDown(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, nil)
	defer m.end()
	m.trouble.downMidway(m, "client a", "client b")
	if err := m.refuses(); !errors.Is(err, ErrNoRails) {
		t.Errorf("%v", err)
	}
	if err := m.refuses(); !errors.Is(err, ErrNoRails) {
		t.Errorf("%v", err)
	}
	m.trouble.mend()
	m.heals()
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

// TestMatrixChecksum: one stripe comes wrong over one rail, with good checksums of the
// wire: it comes over the other, the rail is named with the offset and quarantined.
func TestMatrixChecksum(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, func(l *Limits) { l.Quarantine = 300 * time.Millisecond })
	defer m.end()
	buf, rep, err := m.session.Read(m.trouble.wrong(m), testKey, ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(buf.Bytes(), m.data) {
		t.Error("wrong bytes")
	}
	buf.Release()
	accounted(t, rep)
	if len(rep.Corruptions) != 1 || rep.Corruptions[0].Rail != "b" || rep.Corruptions[0].Wrong != 1 || rep.Corruptions[0].RereadOn != "a" {
		t.Fatalf("%+v", rep)
	}
	if s := m.session.Snapshot()[1].State; !strings.Contains(s, "quarantined for corruption") {
		t.Errorf("%q", s)
	}
	m.heals()
}

// TestMatrixDamagedFile: a stripe's file is wrong at its shard. The read ends with the
// file's name, and no rail is blamed.
func TestMatrixDamagedFile(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, nil)
	defer m.end()
	path := m.file(5)
	flipByte(t, path, 12345)
	if err := m.refuses(); !errors.Is(err, ErrCorrupt) || !errors.Is(err, ErrChecksum) || !strings.Contains(err.Error(), filepath.Base(path)) {
		t.Errorf("%v", err)
	}
	flipByte(t, path, 12345)
	if rep := readBytes(t, m.session.Worker, testKey, m.data); rep.Degraded || !rep.Exact {
		t.Errorf("%+v", rep)
	}
}

// TestMatrixNoise: bits flip on the wire, which the wire's checksums tell: it is sent
// again, and a read does not notice.
func TestMatrixNoise(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, nil)
	defer m.end()
	m.trouble.noisy("shard b")
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	accounted(t, rep)
	if !m.trouble.hit() {
		t.Fatal("no bit flipped")
	}
	if !rep.Exact || len(rep.Corruptions) != 0 {
		t.Errorf("%+v", rep)
	}
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
		waitFor(m.t, func() bool { return s.quiet() }) // it has written, or tried to
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
	m.trouble.slow("shard b", int(40e6/matrixPace())) // 2 MiB of rail b take 0.4 s
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
// the client retires its own QP, and the other rail brings the object. Where it is the
// network that keeps the acknowledgements, the shard's device sends again and again, also
// when the network is well and the memory in use for something else.
func TestMatrixUncertainCompletion(t *testing.T) {
	bothSources(t, matrixUncertainCompletion)
}

func matrixUncertainCompletion(t *testing.T, from source) {
	defer goleak.VerifyNone(t)
	m := newMatrixOf(t, patientShards, func(l *Limits) { l.IOTimeout = matrixPace() * 700 * time.Millisecond })
	defer m.end()
	from.prepare(m)
	m.trouble.silentMidway(m)
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	accounted(t, rep)
	if !m.trouble.hit() {
		t.Fatal("no completion was lost")
	}
	if !rep.Degraded || rep.Rails[0].MovedIn == 0 || rep.Rails[1].Errors == 0 {
		t.Errorf("%+v", rep)
	}
	m.unchanged(m.trouble.mend)
	m.heals()
}

// patientShards send over rail b again for ever, on rxe.
func patientShards(d *deploy.Deployment) {
	for h := range 2 {
		d.Hosts[h].Rails[1].RetryCount = 7
	}
}

// TestMatrixControlTimeout: the answer to a request does not come in time. The QP is
// retired, so that the late answer is not taken for that of the next request.
func TestMatrixControlTimeout(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, func(l *Limits) { l.IOTimeout = matrixPace() * 300 * time.Millisecond })
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

// TestMatrixSlab: what a shard sends is in its slab, be it kept there or read from a file
// for once. One that is full makes requests wait, and what cannot be had in time is said
// to be busy; nothing falls back to memory that nobody counts.
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
	bothSources(t, matrixLateWrite)
}

func matrixLateWrite(t *testing.T, from source) {
	defer goleak.VerifyNone(t)
	patience := matrixPace() * 300 * time.Millisecond
	m := newMatrixOf(t, patientShards, func(l *Limits) { l.IOTimeout = patience })
	defer m.end()
	from.prepare(m)
	by := patience + 1200*time.Millisecond // the client waits for a late answer for a second
	m.trouble.late(by, 400*time.Millisecond)
	begin := time.Now()
	rep := readBytes(t, m.session.Worker, testKey, m.data)
	accounted(t, rep)
	if !m.trouble.hit() || rep.ReroutedBytes == 0 {
		t.Errorf("nothing was late: %+v", rep)
	}
	m.unchanged(func() {
		for time.Since(begin) < by+500*time.Millisecond { // until all of it has come
			<-time.After(50 * time.Millisecond)
		}
	})
	m.trouble.mend()
	m.heals()
}

// TestMatrixHedge: the second rail stands still without an error; near its deadline a
// read brings what hangs there over the first.
func TestMatrixHedge(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := newMatrix(t, nil)
	defer m.end()
	m.trouble.slow("shard b", 1e6) // its 2 MB would take 16 s
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
	m.trouble.slow("shard b", 32e6)
	share := func() (uint64, *ReadReport) {
		rep := readBytes(t, m.session.Worker, testKey, m.data)
		accounted(t, rep)
		return rep.Rails[1].PlannedBytes / matrixStripe, rep
	}
	first, _ := share()
	until := func(cond func() bool) {
		t.Helper()
		for deadline := time.Now().Add(matrixPace() * time.Minute); !cond(); {
			if time.Now().After(deadline) {
				t.Fatal("did not happen within a minute")
			}
		}
	}
	until(func() bool { n, rep := share(); return n <= 3 && n > 0 && rep.Rails[1].Bytes > 0 })
	if first != 8 {
		t.Errorf("the first read gave it %d stripes of 16", first)
	}
	m.trouble.mend()
	until(func() bool { n, _ := share(); return n >= 7 })
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
	for _, f := range m.trouble.absences() {
		f.begin()
		if s, err := open(2); err == nil || railOf(err) != "b" {
			t.Errorf("%s: %v", f.what, err)
			if err == nil {
				m.shut(s)
			}
		}
		s, err := open(1)
		if err != nil {
			t.Errorf("%s: %v", f.what, err)
		} else {
			rep := readBytes(t, s.Worker, testKey, m.data)
			if !rep.Degraded || len(rep.Rails) != 1 || len(rep.Excluded) != 1 || !strings.Contains(rep.Excluded[0], "rail b is absent (") {
				t.Errorf("%s: %+v", f.what, rep)
			}
			m.shut(s)
		}
		m.trouble.mend()
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

package rxe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
)

// readRig is a deployment in the guest whose objects are read by this process; the
// shards are processes of their own.
type readRig struct {
	t       *testing.T
	d       *deploy.Deployment
	session *object.Session
	host    string
}

// TestMeasureReads plays every setting inside the guest.
func TestMeasureReads(t *testing.T) {
	inside(t)
	if os.Getenv("RS_BENCH") == "" {
		t.Skip("a measurement, for TestGuestReadSpeed")
	}
	t.Setenv("RS_STATE", filepath.Join(t.TempDir(), "state"))
	const recipe = "testdata/read-speed.cue"
	t.Cleanup(func() { shape(t, [2]int{}); rs(t, "down", "--quiet") })
	rs(t, "up", "--quiet", recipe)
	r := &readRig{t: t}
	var err error
	if r.d, _, err = load.Load(recipe, load.Options{}); err != nil {
		t.Fatal(err)
	}
	run := readRun{CPUs: runtime.NumCPU()}
	version, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	run.Kernel = strings.TrimSpace(string(version))
	stored := map[int64]bool{}
	for _, s := range readSettings() {
		if only := os.Getenv("RS_READ_ONLY"); only != "" && !slices.Contains(strings.Split(only, ","), s.Name) {
			continue
		}
		r.measure(s, stored)
		run.Settings = append(run.Settings, s)
	}
	b, err := json.Marshal(struct {
		Kernel   string         `json:"kernel"`
		CPUs     int            `json:"cpus"`
		Settings []*readSetting `json:"settings"`
	}{run.Kernel, run.CPUs, run.Settings})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("JOB"), "read.json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

// open connects from a host of the recipe.
func (r *readRig) open(ctx context.Context, host string, whole bool) {
	r.t.Helper()
	d := r.d
	limits := object.LimitsOf(d.Reader)
	limits.VerifyWhole = whole
	s, err := object.OpenSession(ctx, object.SessionConfig{Deployment: d, Host: host, Staging: 640 << 20,
		Drivers: func(string, deploy.Rail) (verbs.Driver, error) { return ibv.New(ibv.Options{}), nil },
		Control: launch.ControlAddress(d), Identity: launch.Identity(d), Options: ctrl.ClientOptions{Timeout: d.Control.Timeout.D()},
		Limits: limits})
	if err != nil {
		r.t.Fatal(err)
	}
	r.session, r.host = s, host
}

func speedKey(n int64) object.Key {
	return object.Key{Namespace: "speed", Name: strconv.FormatInt(n, 10)}
}

// measure makes the samples of a setting. What costs time only once is done before the
// rails are shaped: objects are stored, and the largest is read, for which memory is
// registered.
func (r *readRig) measure(s *readSetting, stored map[int64]bool) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	began := time.Now()
	r.open(ctx, s.Host, s.Whole)
	defer func() {
		if err := r.session.Close(ctx); err != nil {
			r.t.Error(err)
		}
	}()
	for _, n := range s.Sizes {
		if !stored[n] {
			noise := rand.NewChaCha8([32]byte{byte(n >> 20)})
			src := object.NewSource(io.LimitReader(noise, n), uint64(n), "noise")
			if _, err := r.session.Put(ctx, speedKey(n), src, object.PutOptions{}); err != nil {
				r.t.Fatal(err)
			}
			stored[n] = true
		}
	}
	r.read(ctx, twoRails, slices.Max(s.Sizes))
	r.t.Logf("%s: ready after %v", s.Name, time.Since(began).Round(time.Second))
	shape(r.t, s.Rates)
	defer shape(r.t, [2]int{})
	steer(r.t, s.Steered)
	defer steer(r.t, false)
	for i, n := range s.Sizes {
		kinds := []string{oneRail, twoRails}
		if i == 0 {
			kinds = append(kinds, s.UCX...)
		}
		for round := range s.Rounds[i] {
			for place := range kinds {
				kind := kinds[(place+round)%len(kinds)] // nobody is always the first
				before := look(r.t)
				var x readSample
				if slices.Contains([]string{ucxOneMiB, ucxLarge}, kind) {
					var err error
					if x, err = r.ucx(kind); err != nil {
						r.t.Logf("%s: %s failed: %v", s.Name, kind, err)
						s.Failed = append(s.Failed, kind)
						continue
					}
				} else {
					x = r.read(ctx, kind, n)
				}
				x.Round, x.Place = round+1, place+1
				look(r.t).since(before, &x)
				r.t.Logf("%s: %+v", s.Name, x)
				s.Samples = append(s.Samples, x)
			}
		}
	}
}

// read reads an object over one rail or over all. The time is that of the call: lookup,
// transfer, verification and the look at the catalog afterwards.
func (r *readRig) read(ctx context.Context, kind string, n int64) readSample {
	r.t.Helper()
	var opt object.ReadOptions
	if kind == oneRail {
		opt.Rails = []string{"rail0"}
	}
	start := time.Now()
	buf, rep, err := r.session.Read(ctx, speedKey(n), opt)
	took := time.Since(start).Seconds()
	if err != nil {
		r.t.Fatal(err)
	}
	defer buf.Release()
	if !rep.Exact || rep.Degraded || int64(len(buf.Bytes())) != n {
		r.t.Errorf("a read of %d bytes over %s did not come as planned: %+v", n, kind, rep)
	}
	return readSample{Kind: kind, Bytes: n, Seconds: took, Rate: float64(n) / took}
}

// ucx runs ucx_perftest's tag_bw over both rails: from rxe0 and rxe1 to rxe2 and rxe3.
// It aborts when a QP of it fails, which is its result then.
func (r *readRig) ucx(kind string) (readSample, error) {
	r.t.Helper()
	size, iters, warmup := int64(1<<20), 96, 8
	if kind == ucxLarge {
		size, iters, warmup = 64<<20, 2, 1
	}
	// Without these its wire-up fails on rxe.
	common := []string{"env", "UCX_TLS=rc_verbs,ud_verbs", "UCX_UD_VERBS_ETH_DGID_CHECK=n", "UCX_IB_GID_INDEX=1", "UCX_LOG_LEVEL=error", "UCX_HANDLE_ERRORS=none"}
	with := func(devices string, more ...string) *stock {
		args := append(slices.Clone(common), "UCX_NET_DEVICES="+devices, "ucx_perftest", "-f", "-v", "-t", "tag_bw",
			"-s", strconv.FormatInt(size, 10), "-n", strconv.Itoa(iters), "-w", strconv.Itoa(warmup))
		return startStock(r.t, append(args, more...)...)
	}
	server := with("rxe2:1,rxe3:1")
	waitListening(r.t, server, 13337)
	start := time.Now()
	client := with("rxe0:1,rxe1:1", "127.0.0.1")
	if err := errors.Join(client.end(), server.end()); err != nil {
		return readSample{}, err
	}
	took := time.Since(start).Seconds()
	rate, err := ucxRate(client.out.String())
	return readSample{Kind: kind, Bytes: size, Seconds: took, Rate: rate}, err
}

// end waits until the command has ended, and ends it when that takes too long.
func (s *stock) end() error {
	late := time.AfterFunc(stockPatience, func() { _ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL) })
	defer late.Stop()
	err := <-s.done
	s.done <- err
	if err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	return nil
}

// ucxRate is the overall bandwidth of ucx_perftest's CSV: iterations, three latencies,
// bandwidth of the last interval and overall, two message rates.
func ucxRate(out string) (float64, error) {
	for l := range strings.Lines(out) {
		f := strings.Split(strings.TrimSpace(l), ",")
		if len(f) < 8 {
			continue
		}
		if v, err := strconv.ParseFloat(f[5], 64); err == nil && v > 0 {
			return v * (1 << 20), nil
		}
	}
	return 0, fmt.Errorf("ucx_perftest tells no figure")
}

func TestUCXRate(t *testing.T) {
	v, err := ucxRate("iterations,50.0_percentile_lat,avg_lat,overall_lat,avg_bw,overall_bw,avg_mr,overall_mr\n96,0.1,9.9,9.9,100.0,101.5,100,101\n")
	if err != nil || v != 101.5*(1<<20) {
		t.Error(v, err)
	}
	if _, err := ucxRate("failed\n"); err == nil {
		t.Error("a figure was read from nothing")
	}
}

// steer gives what comes in over a rail one processor, as the queue of a network card has
// one, or takes that back. Without it a packet is taken in where it was sent from: the
// processors share the work of every rail, but packets of one QP, which sends from
// wherever somebody posts or an answer comes, may overtake each other; rxe takes that for
// a loss and sends again.
func steer(t *testing.T, on bool) {
	t.Helper()
	for i := range 2 {
		mask := 0
		if on {
			mask = 1 << (i % runtime.NumCPU())
		}
		for _, dev := range []string{"ra", "rb"} {
			if err := os.WriteFile(fmt.Sprintf("/sys/class/net/%s%d/queues/rx-0/rps_cpus", dev, i), []byte(strconv.FormatInt(int64(mask), 16)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// shape bounds both directions of each rail, in Mb/s; 0 takes the bound away. What rxe
// holds back at a sender, 64 packets a QP, fits the queue. What answers READs, as UCX makes
// them, need not: it is sent at once, however much it is.
func shape(t *testing.T, rates [2]int) {
	t.Helper()
	for i, rate := range rates {
		for _, dev := range []string{"ra", "rb"} {
			dev += strconv.Itoa(i)
			args := []string{"qdisc", "replace", "dev", dev, "root", "tbf", "rate", strconv.Itoa(rate) + "mbit", "burst", "256kb", "latency", "200ms"}
			if rate == 0 {
				if out, err := exec.Command("tc", "qdisc", "show", "dev", dev).Output(); err == nil && !bytes.Contains(out, []byte("tbf")) {
					continue
				}
				args = []string{"qdisc", "del", "dev", dev, "root"}
			}
			if out, err := exec.Command("tc", args...).CombinedOutput(); err != nil {
				t.Fatalf("tc %s: %v\n%s", strings.Join(args, " "), err, out)
			}
		}
	}
}

// glance is what the guest's counters say at one time.
type glance struct {
	wire        [2]uint64 // bytes that both ends of a rail sent
	idle, ticks uint64
	resent      uint64
}

func look(t *testing.T) (g glance) {
	t.Helper()
	number := func(file string) uint64 {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		return n
	}
	for i := range g.wire {
		for _, dev := range []string{"ra", "rb"} {
			g.wire[i] += number(fmt.Sprintf("/sys/class/net/%s%d/statistics/tx_bytes", dev, i))
		}
	}
	for i := range 4 {
		for _, c := range []string{"duplicate_request", "out_of_seq_request", "rcvd_seq_err", "completer_retry_err"} {
			g.resent += number(fmt.Sprintf("/sys/class/infiniband/rxe%d/ports/1/hw_counters/%s", i, c))
		}
	}
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line)[1:] {
		n, _ := strconv.ParseUint(f, 10, 64)
		g.ticks += n
		if i == 3 {
			g.idle = n
		}
	}
	return g
}

// since puts the difference to an earlier look into a sample.
func (g glance) since(was glance, x *readSample) {
	first, second := g.wire[0]-was.wire[0], g.wire[1]-was.wire[1]
	x.Second = float64(second) / float64(max(1, first+second))
	x.Idle = float64(g.idle-was.idle) / float64(max(1, g.ticks-was.ticks))
	x.Resent = g.resent - was.resent
}

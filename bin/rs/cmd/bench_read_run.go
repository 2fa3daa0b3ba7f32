package cmd

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/bin/provider"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/object"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/perf"
)

// readBench is one run of rs bench read.
type readBench struct {
	app     *app
	ask     benchReadAsk
	session *object.Session
	stripe  int64
	one     string // the rail that all are compared with
	rails   int
	shards  []int // pids on this machine
	keys    []object.Key
	spec    deploy.Rail // of the plain WRITE
	result  readResult
	// complete says that all that was asked for is measured.
	complete bool
}

// benchTTL is how long the objects of a run that was killed stay.
const benchTTL = 24 * time.Hour

// cleanTime bounds the removal of the objects.
const cleanTime = 30 * time.Second

// describe finds out on what is measured.
func (b *readBench) describe(ctx context.Context, d *deploy.Deployment) error {
	set := b.session.Lanes().Set
	st := &b.result.readSetting
	*st = readSetting{Deployment: d.Name, Host: set.Host, Shards: len(d.Shards), Version: buildInfo().Version, CPUs: runtime.NumCPU(), Began: time.Now().UTC(),
		StripeBytes: b.stripe, WarmupRounds: b.ask.warmup, LoadBefore: loadAverage()}
	st.Busy = st.LoadBefore > float64(st.CPUs)/2
	if !b.ask.check {
		b.app.warnBusy(st)
	}
	b.one, b.rails = b.ask.one, len(set.Rails)
	if b.one == "" {
		b.one = set.Rails[0].Name()
	}
	var names []string
	for _, r := range set.Rails {
		names = append(names, r.Name())
		st.Rails = append(st.Rails, benchRail{r.Name(), r.Ctx.Name(), r.Provider(), r.Spec.Weight})
		if r.Name() == b.one {
			b.spec = r.Spec
		}
	}
	st.OneRail = b.one
	if b.spec.Name == "" {
		return usagef("--one %s: host %s has %s", b.one, set.Host, strings.Join(names, ", "))
	}
	ids := make([]int, len(d.Shards))
	for i := range d.Shards {
		ids[i] = d.Shards[i].ID
	}
	var err error
	b.shards, err = shardPIDs(ctx, b.session.Control(), ids)
	st.ShardsHere = len(b.shards)
	return err
}

// put stores an object of n bytes that do not compress, in the run's own namespace.
func (b *readBench) put(ctx context.Context, n int64) (object.Key, error) {
	if b.result.Namespace == "" {
		var r [4]byte
		_, _ = rand.Read(r[:]) // never fails
		b.result.Namespace = "rs-bench-" + hex.EncodeToString(r[:])
	}
	key := object.Key{Namespace: b.result.Namespace, Name: strconv.FormatInt(n, 10)}
	b.keys = append(b.keys, key) // before the put: one that was given up may have committed
	noise := mrand.NewChaCha8([32]byte{byte(len(b.keys))})
	src := object.NewSource(io.LimitReader(noise, n), uint64(n), key.String())
	_, err := b.session.Put(ctx, key, src, object.PutOptions{StripeBytes: uint64(b.stripe), TTL: benchTTL})
	return key, err
}

// remove takes the objects away, also when ctx is over.
func (b *readBench) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	var errs []error
	for _, k := range b.keys {
		if _, err := b.session.Remove(ctx, k); err != nil && !errors.Is(err, object.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// measure makes the paired samples of one case.
func (b *readBench) measure(ctx context.Context, key object.Key, n int64, readers int) (err error) {
	kinds := []string{kindOne}
	if b.rails > 1 {
		kinds = append(kinds, kindAll)
	}
	var w *plainWrite
	if b.ask.write {
		if w, err = openPlainWrite(ctx, b.spec, n*int64(readers), b.message(n)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.close(context.WithoutCancel(ctx))) }()
		kinds = append(kinds, kindWrite)
	}
	c := readCase{Bytes: n, Readers: readers}
	// What was measured before a failure or an interrupt counts, too.
	defer func() {
		if len(c.Samples) > 0 {
			c.sum()
			b.result.Cases = append(b.result.Cases, c)
		}
	}()
	if w != nil {
		c.WriteBytes = b.message(n)
	}
	for round := -b.ask.warmup; round < b.ask.samples; round++ {
		for i := range kinds {
			kind := kinds[(i+round+b.ask.warmup)%len(kinds)] // nobody is always the first
			s := readSample{Round: round + 1, Kind: kind, Place: i + 1, Load: loadAverage()}
			own := []int{os.Getpid()}
			cpu, shards := cpuTime(own), cpuTime(b.shards)
			if kind == kindWrite {
				err = w.once(ctx, &s)
			} else {
				err = b.read(ctx, key, readers, &s)
			}
			if err != nil {
				return err
			}
			s.BytesPerSecond = float64(s.Bytes) / s.Seconds
			s.ClientCPU, s.ShardCPU = cpuTime(own)-cpu, cpuTime(b.shards)-shards
			s.ClientRSS, s.ShardRSS = rssOf(own), rssOf(b.shards)
			if round >= 0 {
				c.Samples = append(c.Samples, s)
			}
		}
	}
	return nil
}

// read is one sample: all readers begin at once, and it ends with the last of them.
func (b *readBench) read(ctx context.Context, key object.Key, readers int, s *readSample) error {
	opt := object.ReadOptions{}
	if s.Kind == kindOne {
		opt.Rails = []string{b.one}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	begin := make(chan struct{})
	reps := make([]*object.ReadReport, readers)
	for i := range readers {
		wg.Go(func() {
			<-begin
			buf, rep, err := b.session.Read(ctx, key, opt)
			if err != nil {
				cancel(err)
				return
			}
			reps[i] = rep
			buf.Release()
		})
	}
	start := time.Now()
	close(begin)
	wg.Wait()
	s.Seconds = time.Since(start).Seconds()
	s.Began = start.UTC()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	s.RailBytes = map[string]uint64{}
	for _, r := range reps {
		s.Bytes += r.Bytes
		s.Degraded = s.Degraded || r.Degraded
		for i := range r.Rails {
			s.RailBytes[r.Rails[i].Name] += r.Rails[i].Bytes
		}
	}
	return nil
}

// message is how long a WRITE is beside a read of n bytes. WRITEs of less go over the same
// memory again and again, which a cache holds.
func (b *readBench) message(n int64) int64 {
	if b.ask.message > 0 {
		return min(n, b.ask.message)
	}
	return min(n, 1<<30) // the longest that verbs/perf makes
}

// plainWrite is what rs bench verbs would measure on the rail: between two devices of
// this process, nothing stored and nothing verified.
type plainWrite struct {
	scope  *pipeline.Scope
	x, y   *perf.End
	length int64
}

// writeDepth is how many WRITEs are in flight; more makes soft no faster.
const writeDepth = 4

func openPlainWrite(ctx context.Context, spec deploy.Rail, total, message int64) (_ *plainWrite, err error) {
	w := &plainWrite{scope: pipeline.NewScope()}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close(context.WithoutCancel(ctx)))
		}
	}()
	// The rail's own port is taken by the session.
	dev, err := deploy.ParseDevice(spec.Device)
	if err == nil && dev.Provider == "soft" {
		addr, _, aerr := dev.Addr()
		spec.Device, err = "soft:"+addr.String(), aerr
		if addr.Is6() {
			spec.Device = "soft:[" + addr.String() + "]"
		}
	}
	if err != nil {
		return nil, atOp("bench", err)
	}
	count := max(1, total/message)
	t := perf.Test{Op: verbs.OpWrite, Kind: perf.Bandwidth, Size: int(message), Iters: int(count), Depth: int(min(writeDepth, count)), QPs: 1, MTU: spec.MTU}
	w.length = count * message
	end := func() (*perf.End, error) {
		d := &deploy.Deployment{Hosts: []deploy.Host{{Name: "bench", Rails: []deploy.Rail{spec}}}}
		rails, err := pipeline.Run(ctx, w.scope, rail.Resolve, rail.ResolveInput{Deployment: d, Host: "bench", Drivers: provider.Open})
		if err != nil {
			return nil, err
		}
		at := rails[0].Address()
		e, err := perf.NewEnd(rails[0].Ctx, perf.Path{Port: uint8(max(1, spec.Port)), GID: at.GID.Entry, Opts: verbs.PathOpts{PKeyIndex: at.PKeyIndex}}, t)
		if err != nil {
			return nil, err
		}
		w.scope.DeferClose("bench end", e.Close)
		return e, nil
	}
	if w.x, err = end(); err != nil {
		return nil, err
	}
	if w.y, err = end(); err != nil {
		return nil, err
	}
	return w, errors.Join(w.x.Connect(w.y.Hello()), w.y.Connect(w.x.Hello()))
}

func (w *plainWrite) once(ctx context.Context, s *readSample) error {
	s.Began = time.Now().UTC()
	r, err := perf.Between(ctx, w.x, w.y)
	s.Seconds, s.Bytes = r.Seconds, uint64(w.length)
	return pipeline.Wrap(err, pipeline.LayerDevice, "bench", pipeline.Nowhere)
}

func (w *plainWrite) close(ctx context.Context) error { return w.scope.Close(ctx) }

// commandBytes is what each run of the command reads.
const commandBytes = 1 << 20

// measureCommand times the whole command rs read: a process that starts, connects to all
// shards, reads, leaves and ends.
func (b *readBench) measureCommand(ctx context.Context, c *cli.Command, deployment string) error {
	key, err := b.put(ctx, commandBytes)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return atOp("bench", err)
	}
	st, err := b.app.state(c)
	if err != nil {
		return err
	}
	args := []string{"--state", st.Root, "--format", "json", "read", "--deployment", deployment, "--host", b.result.Host, key.String()}
	res := &commandCase{Bytes: commandBytes}
	defer func() {
		if len(res.Samples) > 0 {
			res.sum()
			b.result.Command = res
		}
	}()
	b.app.progress("run rs read of %s, %d times", size(commandBytes), b.ask.cli)
	for n := range b.ask.cli + 1 {
		var out, msg bytes.Buffer
		cmd := exec.CommandContext(ctx, exe, args...)
		cmd.Stdout, cmd.Stderr = &out, &msg
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) } // it tidies up
		cmd.WaitDelay = cleanTime
		start := time.Now()
		err := cmd.Run()
		took := time.Since(start).Seconds()
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if err != nil {
			return pipeline.Errorf(pipeline.LayerProcess, "bench", pipeline.Nowhere, "rs read: %w: %s", err, strings.TrimSpace(msg.String()))
		}
		var rep object.ReadReport
		if err := json.Unmarshal(out.Bytes(), &rep); err != nil || rep.Bytes != commandBytes {
			return pipeline.Errorf(pipeline.LayerProcess, "bench", pipeline.Nowhere, "rs read reported %.200q: %w", out.String(), err)
		}
		if n > 0 { // the first one is the warm-up
			res.Samples = append(res.Samples, commandSample{Seconds: took, ReadSeconds: rep.Seconds, Load: loadAverage()})
		}
	}
	return nil
}

// cpuTime is the time that processes have used, in seconds, from their CPU clocks, which
// count in nanoseconds where /proc/PID/stat has ticks: a sample may take few of those.
func cpuTime(pids []int) (sum float64) {
	const sched = 2 // CPUCLOCK_SCHED
	for _, p := range pids {
		var t unix.Timespec
		if unix.ClockGettime(int32(^p<<3|sched), &t) == nil {
			sum += float64(t.Nano()) / 1e9
		}
	}
	return sum
}

// loadAverage is that of the last minute, 0 where it is not told.
func loadAverage() float64 {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0
	}
	var one float64
	if _, err := fmt.Sscan(string(b), &one); err != nil {
		return 0
	}
	return one
}

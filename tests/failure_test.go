package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
	"github.com/railstore/railstore/verbs/lane"
	"github.com/railstore/railstore/verbs/soft"
)

// outage is a deployment of two shard processes and, in the test's own process, a
// session that lives through what happens to them.
type outage struct {
	*sandboxed
	place
	ctx     context.Context
	d       *deploy.Deployment
	session *object.Session
	want    []byte

	mu     sync.Mutex
	events []pipeline.Event
}

var outageKey = object.Key{Namespace: "test", Name: "x"}

// place is where outages happen: the devices of rail a and b of the client and of
// the shards, and how much slower than the embedded provider on a machine of its
// own everything is.
type place struct {
	provider string
	devices  [4]string
	pace     time.Duration
}

// here is the place of this run: RS_TEST_IBV_RAILS names four RDMA devices, each
// pair of which is a rail, where there are any.
func here(t *testing.T) place {
	p := place{provider: "soft", devices: [4]string{"127.0.4.2", "127.0.5.2", "127.0.4.1", "127.0.5.1"}, pace: 1}
	if v := os.Getenv("RS_TEST_IBV_RAILS"); v != "" {
		p.provider, p.pace = "ibv", 4
		if n := copy(p.devices[:], strings.Split(v, ",")); n != 4 {
			t.Fatalf("RS_TEST_IBV_RAILS=%s names %d devices, want those of rail a and b of the client and of the shards", v, n)
		}
	}
	return p
}

// recipe of two shards, with more fields of a shard's rail, and those of lanes.
func (p place) recipe(port int, rail, lanes string) string {
	device := func(i int) string { return p.provider + ":" + p.devices[i] }
	return fmt.Sprintf(`package recipes

import "github.com/railstore/railstore/schemas"

schemas.#Deployment

name: "outage"
control: {port: %d, timeout: "%v"}
pipeline: {connect: deadline: "60s", publish: deadline: "60s"}
hosts: [
	{name: "s", rails: [{name: "a", device: %q, retryCount: 6%[5]s}, {name: "b", device: %[4]q, retryCount: 6%[5]s}]},
	{name: "c", rails: [{name: "a", device: %[6]q, retryCount: 6}, {name: "b", device: %[7]q, retryCount: 6}]},
]
shards: [{id: 0, host: "s", slab: "8MiB"}, {id: 1, host: "s", slab: "8MiB"}]
lanes: %[12]s
health: {heartbeatInterval: "%[8]v", stale: "%[9]v", dead: "%[10]v", clientLease: "%[11]v", probeAfter: "200ms", probeInterval: "200ms"}
reader: {cooldown: "100ms", ioTimeout: "%[2]v", maxStagingBytes: "32MiB"}
objects: stripeBytes: "64KiB"
rebuild: {enabled: true, sweep: "100ms", cooldown: "100ms"}
`, port, 5*time.Second*p.pace, device(2), device(3), rail, device(0), device(1),
		p.pace*100*time.Millisecond, p.pace*500*time.Millisecond, p.pace*1500*time.Millisecond, p.pace*3*time.Second, lanes)
}

func newOutage(t *testing.T, rail string) *outage { return newOutageOf(t, rail, "maxClients: 8") }

// newOutageOf is newOutage with more fields of a shard's rail and those of lanes.
func newOutageOf(t *testing.T, rail, lanes string) *outage {
	t.Helper()
	o := &outage{sandboxed: newShell(t), place: here(t)}
	if rail != "" && o.provider != "soft" {
		t.Skip("fault scripts are the soft provider's")
	}
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	recipe := filepath.Join(o.dir, "outage.cue")
	if err := os.WriteFile(recipe, []byte(o.recipe(port, rail, lanes)), 0o600); err != nil {
		t.Fatal(err)
	}
	o.must("rs up --quiet outage.cue")
	if o.d, _, err = load.Load(recipe, load.Options{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	t.Cleanup(cancel)
	o.ctx = pipeline.WithSink(ctx, func(e pipeline.Event) {
		o.mu.Lock()
		o.events = append(o.events, e)
		o.mu.Unlock()
	})
	o.session, err = object.OpenSession(o.ctx, object.SessionConfig{Deployment: o.d, Host: "c", Staging: 16 << 20,
		Drivers: func(string, deploy.Rail) (verbs.Driver, error) {
			if o.provider == "ibv" {
				return ibv.New(ibv.Options{}), nil
			}
			return soft.New(soft.Options{}), nil
		},
		Control: launch.ControlAddress(o.d), Identity: launch.Identity(o.d), Options: ctrl.ClientOptions{Timeout: o.d.Control.Timeout.D()},
		Limits: object.LimitsOf(o.d.Reader)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = o.session.Close(cctx) // the control plane may be gone
	})
	o.want = bytes.Repeat([]byte("0123456789abcdef"), 4<<20/16)
	o.put()
	return o
}

func (o *outage) put() {
	o.t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, "content"), o.want, 0o600); err != nil {
		o.t.Fatal(err)
	}
	o.must("rs put --quiet --deployment outage test/x content")
}

// read reads the object over one rail or all and compares it. What is wrong in it
// ends the test; that it cannot be read is the error.
func (o *outage) read(rails ...string) error {
	ctx, cancel := context.WithTimeout(o.ctx, 15*o.pace*time.Second)
	defer cancel()
	buf, _, err := o.session.Read(ctx, outageKey, object.ReadOptions{Rails: rails})
	if err != nil {
		return err
	}
	defer buf.Release()
	if !bytes.Equal(buf.Bytes(), o.want) {
		o.t.Fatal("other bytes came back than were stored")
	}
	return nil
}

// midway sends a process a signal in the middle of a read into a buffer. A read that
// fails must leave that as it was.
func (o *outage) midway(pid int, sig syscall.Signal) error {
	o.t.Helper()
	dst := bytes.Repeat([]byte{0x33}, len(o.want))
	ctx, cancel := context.WithTimeout(o.ctx, 15*o.pace*time.Second)
	defer cancel()
	sent := make(chan error, 1)
	var once sync.Once
	_, _, err := o.session.ReadInto(ctx, outageKey, dst, object.ReadOptions{Progress: func(uint64) {
		once.Do(func() { sent <- syscall.Kill(pid, sig) })
	}})
	select {
	case e := <-sent:
		if e != nil {
			o.t.Fatal(e)
		}
	default:
		o.t.Fatalf("the read ended before its first stripe: %v", err)
	}
	switch {
	case err == nil && !bytes.Equal(dst, o.want):
		o.t.Fatal("other bytes came back than were stored")
	case err != nil && bytes.Count(dst, []byte{0x33}) != len(dst):
		o.t.Fatalf("a read that failed touched its destination: %v", err)
	}
	return err
}

// heals reads until that works again over each rail, and gives the time that it
// took.
func (o *outage) heals(most time.Duration) time.Duration {
	o.t.Helper()
	most *= o.pace
	began := time.Now()
	for _, rail := range []string{"a", "b"} {
		var err error
		for time.Since(began) < most {
			if err = o.read(rail); err == nil {
				break
			}
			<-time.After(5 * time.Millisecond)
		}
		if err != nil {
			o.t.Fatalf("rail %s is not back after %v: %v\nlanes %+v\nevents %s", rail, most, err, o.session.Lanes().Status(), o.told())
		}
	}
	return time.Since(began)
}

func (o *outage) told() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var b strings.Builder
	for _, e := range o.events {
		if strings.HasPrefix(e.Event, "stage_") || e.Event == "path_cooldown" {
			continue
		}
		text, _ := json.Marshal(e)
		fmt.Fprintf(&b, "%s\n", text)
	}
	logs, _ := o.run("rs events outage | grep -v stage_ | tail -n 60; tail -n 20 .state/outage/logs/*")
	return b.String() + "the deployment:\n" + logs
}

// pid of a shard, as rs status tells it.
func (o *outage) pid(shard int) int {
	o.t.Helper()
	out, err := o.run("rs status --format json outage 2>/dev/null || true")
	if err != nil {
		o.t.Fatal(err)
	}
	var st struct {
		Shards []struct{ ID, PID int }
	}
	if err := json.Unmarshal([]byte(out), &st); err != nil {
		o.t.Fatalf("%v\n%s", err, out)
	}
	for _, s := range st.Shards {
		if s.ID == shard && s.PID > 0 {
			return s.PID
		}
	}
	o.t.Fatalf("no pid of shard %d in %s", shard, out)
	return 0
}

func (o *outage) signal(pid int, sig syscall.Signal) {
	o.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		o.t.Fatal(err)
	}
}

// A shard that is killed fails reads soon and by name; started again on its ports
// within a second, it is met again by the session that was there before.
func TestShardKilledAndRestarted(t *testing.T) {
	o := newOutage(t, "")
	if err := o.read(); err != nil {
		t.Fatal(err)
	}
	rounds := 3
	if o.pace > 1 {
		rounds = 1
	}
	for round := range rounds {
		pid := o.pid(1)
		began := time.Now()
		err := o.midway(pid, syscall.SIGKILL)
		for err == nil && time.Since(began) < 10*o.pace*time.Second {
			err = o.read()
		}
		took := time.Since(began)
		if err == nil || !strings.Contains(err.Error(), "shard 1") {
			t.Fatalf("round %d: %v", round, err)
		}
		var le *lane.Error
		if errors.As(err, &le) && (le.Remote.Name != "shard/1" || !strings.HasPrefix(le.Local.Name, "client/")) {
			t.Fatalf("round %d: both ends are not named: %+v", round, le)
		}
		o.must("rs up --quiet outage.cue")
		t.Logf("round %d: the death was noticed after %v (%v), all is well %v after the restart", round, took.Round(time.Millisecond), err, o.heals(20*time.Second).Round(time.Millisecond))
	}
}

// A shard that is stopped for less than its death takes is no other process: its
// lanes are rebuilt. One that is stopped for longer is met as a new life.
func TestShardStoppedAndContinued(t *testing.T) {
	o := newOutage(t, "")
	for _, c := range []struct {
		pause time.Duration
		event string
	}{{800 * time.Millisecond, "lane_recovered"}, {2500 * time.Millisecond, "shard_rejoined"}} {
		if o.provider != "soft" && c.event == "lane_recovered" {
			continue // a device acknowledges for a process that does not run
		}
		c.pause *= o.pace
		pid := o.pid(1)
		resume := time.AfterFunc(c.pause, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		failed, began := 0, time.Now()
		if o.midway(pid, syscall.SIGSTOP) != nil {
			failed++
		}
		for time.Since(began) < c.pause {
			if o.read() != nil {
				failed++
			}
			<-time.After(time.Millisecond)
		}
		resume.Stop()
		o.signal(pid, syscall.SIGCONT)
		took := o.heals(20 * time.Second)
		if told := o.told(); !strings.Contains(told, `"event":"`+c.event+`"`) {
			t.Fatalf("stopped for %v: no event %s:\n%s", c.pause, c.event, told)
		}
		t.Logf("stopped for %v: %d reads failed, all is well %v after it goes on", c.pause, failed, took.Round(time.Millisecond))
	}
}

// The port of a shard's rail goes down and comes back; the script is the shard's.
func TestPortDownAndUp(t *testing.T) {
	for _, do := range []string{"port_down", "port_up_no_event"} {
		t.Run(do, func(t *testing.T) {
			o := newOutage(t, `, faults: [{do: "`+do+`", at: time: "2s", for: "1500ms"}]`)
			began := time.Now()
			failed := 0
			for time.Since(began) < 4*time.Second {
				if o.read() != nil {
					failed++
				}
				<-time.After(10 * time.Millisecond)
			}
			if failed == 0 {
				t.Fatal("nothing failed while the ports were down")
			}
			t.Logf("%d reads failed, all is well %v later", failed, o.heals(20*time.Second).Round(time.Millisecond))
		})
	}
}

// Packets are lost, doubled and overtaken, in both directions; nothing fails and
// nothing is wrong.
func TestLossyRails(t *testing.T) {
	o := newOutage(t, `, faults: [{do: "drop", rate: 0.02, seed: 1}, {do: "duplicate", rate: 0.02, seed: 2}, {do: "reorder", rate: 0.02, seed: 3}, {do: "corrupt_wire", rate: 0.01, seed: 4}]`)
	for range 10 {
		if err := o.read(); err != nil {
			t.Fatal(err)
		}
	}
}

// The process that holds the control plane is killed. Lanes to the other shard go
// on without it, and all is well once it is back.
func TestControlPlaneKilled(t *testing.T) {
	o := newOutage(t, "")
	o.signal(o.pid(0), syscall.SIGKILL)
	// Any operation is answered, if only with a refusal.
	for began := time.Now(); time.Since(began) < 3*time.Second; {
		ctx, cancel := context.WithTimeout(o.ctx, 5*o.pace*time.Second)
		r, err := o.session.Lanes().Pool(1).Call(ctx, lane.Request{Op: 0xff01}, nil)
		cancel()
		if err != nil || r.Status != lane.StatusInvalid {
			t.Fatalf("a call to the shard that lives: %v, %v", r, err)
		}
		<-time.After(20 * time.Millisecond)
	}
	o.must("rs up --quiet outage.cue")
	t.Logf("all is well %v after the restart", o.heals(30*time.Second).Round(time.Millisecond))
}

// What happens to the wire under real devices: a cable that is cut and mended,
// a port that is taken down and up, and packets that are lost.
func TestWire(t *testing.T) {
	p := here(t)
	if p.provider != "ibv" {
		t.Skip("needs RDMA devices over net devices that may be taken down: RS_TEST_IBV_RAILS and RS_TEST_NETDEV")
	}
	o := newOutage(t, "")
	dev := os.Getenv("RS_TEST_NETDEV") // of the shards' rail a
	mend := os.Getenv("RS_TEST_NETDEV_MEND") + " " + dev
	for _, c := range []struct{ name, cut, mend string }{
		{"loss", "tc qdisc replace dev " + dev + " root netem loss 1%", "tc qdisc del dev " + dev + " root"},
		{"cable", "tc qdisc replace dev " + dev + " root netem loss 100%", "tc qdisc del dev " + dev + " root"},
		{"link", "ip link set " + dev + " down", mend},
	} {
		began := time.Now()
		o.must(c.cut)
		failed, reads := 0, 0
		for ; time.Since(began) < 4*time.Second || reads < 3; reads++ {
			if o.read("a") != nil {
				failed++
			}
		}
		o.must(c.mend)
		if (failed == 0) != (c.name == "loss") {
			t.Errorf("%s: %d of %d reads failed\n%s", c.name, failed, reads, o.told())
		}
		t.Logf("%s: %d of %d reads failed, all is well %v after it was mended", c.name, failed, reads, o.heals(20*time.Second).Round(time.Millisecond))
	}
}

// counts are what must not grow in a shard.
type counts struct{ lanes, goroutines, files, memory float64 }

// counts of a shard, of its metrics.
func (o *outage) counts(shard int) (c counts) {
	o.t.Helper()
	out, err := o.run(fmt.Sprintf("rs metrics outage --shard %d", shard))
	if err != nil {
		o.t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if i := strings.IndexByte(name, '{'); i >= 0 {
			_, value, _ = strings.Cut(line, "} ")
			name = name[:i]
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			continue
		}
		switch name {
		case "railstore_lanes":
			c.lanes += v
		case "go_goroutines":
			c.goroutines = v
		case "process_open_fds":
			c.files = v
		case "process_resident_memory_bytes":
			c.memory = v
		}
	}
	if c.goroutines == 0 || c.files == 0 || c.memory == 0 {
		o.t.Fatalf("metrics lack a count: %+v\n%s", c, out)
	}
	return c
}

// Two hundred clients connect and are killed at any moment. When their leases have
// ended the shards have what they had before.
func TestClientsKilled(t *testing.T) {
	o := newOutageOf(t, "", `{maxClients: 256, qpsPerClientPerShard: 2, slotsPerQP: 1, requestBytes: "8KiB", responseBytes: "8KiB"}`)
	cycle := func(n int) {
		for i := range n {
			c := exec.Command("rs", "read", "--quiet", "--deployment", "outage", "test/x", "-o", filepath.Join(o.dir, "out"))
			c.Env = append(os.Environ(), o.env()...)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			kill := time.AfterFunc(time.Duration(i*7%60)*time.Millisecond, func() { _ = c.Process.Kill() })
			_ = c.Wait()
			kill.Stop()
		}
	}
	settled := func() (out [2]counts) {
		for began := time.Now(); ; {
			for i := range out {
				out[i] = o.counts(i)
			}
			// The session's own two lanes are left.
			if out[0].lanes == 2 && out[1].lanes == 2 {
				return out
			}
			if time.Since(began) > 30*time.Second {
				t.Fatalf("the shards keep lanes of killed clients: %+v", out)
			}
			<-time.After(100 * time.Millisecond)
		}
	}
	cycle(20) // buffers reach their size
	before := settled()
	cycle(200)
	after := settled()
	t.Logf("before %+v, after %+v", before, after)
	for i := range after {
		b, a := before[i], after[i]
		if a.goroutines > b.goroutines+4 || a.files > b.files+4 || a.memory > 1.5*b.memory+16<<20 {
			t.Errorf("shard %d had %+v and has %+v", i, b, a)
		}
	}
	if err := o.read(); err != nil {
		t.Error(err)
	}
}

package launch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
)

func TestUpStatusDown(t *testing.T) {
	f := newFolder(t, "two")
	cfg := upConfig(t, f, 2)
	ctx := context.Background()
	res, err := f.Up(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Started) != 2 {
		t.Errorf("started %v, want two shards", res.Started)
	}
	st, err := f.Status(ctx, cfg.Control)
	if err != nil {
		t.Fatal(err)
	}
	if err := Serving(st); err != nil {
		t.Errorf("status: %v", err)
	}
	if n := shardProcesses(t, f); n != 2 {
		t.Errorf("%d processes, want 2", n)
	}
	for _, s := range st.Shards {
		if s.UptimeS <= 0 || s.UptimeS > 60 {
			t.Errorf("shard %d: uptime %v s", s.ID, s.UptimeS)
		}
		sid, err := syscall.Getpgid(s.PID)
		if err != nil || sid != s.PID {
			t.Errorf("shard %d: process group %d, %v, want its own, %d", s.ID, sid, err, s.PID)
		}
	}

	again, err := f.Up(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if len(again.Started) != 0 {
		t.Errorf("the second up started %v", again.Started)
	}
	if again.Status.Shards[0].PID != st.Shards[0].PID {
		t.Error("the second up replaced shard 0")
	}

	down, err := f.Down(ctx, DownConfig{LockWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if len(down.Shards) != 2 || len(down.Forced()) != 0 {
		t.Errorf("down: %+v, want two drained shards", down)
	}
	if n := shardProcesses(t, f); n != 0 {
		t.Errorf("%d processes after down", n)
	}
	down, err = f.Down(ctx, DownConfig{LockWait: time.Second})
	if err != nil || len(down.Shards) != 0 {
		t.Errorf("the second down: %+v, %v", down, err)
	}
	st, err = f.Status(ctx, cfg.Control)
	if err != nil {
		t.Fatal(err)
	}
	if st.Shards[0].State != ctrl.StateStopped || !errors.Is(Serving(st), ErrNotRunning) {
		t.Errorf("after down: %+v, %v", st.Shards[0], Serving(st))
	}
	var events []string
	err = f.Events(ctx, Position{}, false, func(e pipeline.Event, _ []byte) error {
		events = append(events, e.Event)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"shard_started", "shard_ready", "deployment_serving", "shard_stopped", "deployment_stopped"} {
		if !strings.Contains(strings.Join(events, " "), want) {
			t.Errorf("no event %s in %v", want, events)
		}
	}
}

func TestUpFailures(t *testing.T) {
	for _, tc := range []struct {
		name, shards, want string
		timeout            time.Duration
	}{
		{"own error", "1=fail", "allocate: shard 1 rail b: device soft:127.0.2.1: address already in use (EADDRINUSE(98))", 0},
		{"panic", "1=panic", "its last line: panic: shard is broken", 0},
		{"killed", "1=killed", "killed by signal 9 (SIGKILL)", 0},
		{"never ready", "1=never", "up: shard 1: not serving within 300ms: still starting: has not joined the control plane at 127.0.0.1:7411", 300 * time.Millisecond},
		{"no control plane", "0=never", "does not answer: connection refused", 300 * time.Millisecond},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(shardEnv, tc.shards)
			f := newFolder(t, "d")
			cfg := upConfig(t, f, 3)
			if tc.timeout > 0 {
				cfg.Timeout = tc.timeout
			}
			_, err := f.Up(context.Background(), cfg)
			if err == nil || !errors.Is(err, ErrNotReady) {
				t.Fatalf("up: %v, want ErrNotReady", err)
			}
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("up: %v\nwant in it: %s", err, tc.want)
			}
			if n := shardProcesses(t, f); n != 0 {
				t.Errorf("%d processes left", n)
			}
			st, err := f.Status(context.Background(), cfg.Control)
			if err != nil {
				t.Fatal(err)
			}
			if st.Shards[0].State != ctrl.StateStopped {
				t.Errorf("shard 0 is %s, want stopped: the failed up took everything down", st.Shards[0].State)
			}
		})
	}
}

func TestUpInterrupted(t *testing.T) {
	t.Setenv(shardEnv, "1=never")
	f := newFolder(t, "d")
	cause := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(context.Background())
	ready := filepath.Join(f.runDir(), "ready-0")
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = until(context.Background(), func() (bool, error) {
			_, err := os.Stat(ready)
			return err == nil, nil
		})
		cancel(cause)
	})
	_, err := f.Up(ctx, upConfig(t, f, 2))
	wg.Wait()
	if !errors.Is(err, cause) {
		t.Errorf("up: %v, want the cause of the cancel", err)
	}
	if n := shardProcesses(t, f); n != 0 {
		t.Errorf("%d processes left", n)
	}
}

func TestUpLeavesWhatItDidNotStart(t *testing.T) {
	f := newFolder(t, "d")
	cfg := upConfig(t, f, 2)
	res, err := f.Up(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(res.Status.Shards[1].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFree(t, f, 1)
	st, err := f.Status(context.Background(), cfg.Control)
	if err != nil {
		t.Fatal(err)
	}
	if st.Shards[1].State != ctrl.StateDead || st.Shards[0].State != ctrl.StateServing {
		t.Errorf("states %s and %s, want serving and dead", st.Shards[0].State, st.Shards[1].State)
	}
	t.Setenv(shardEnv, "1=fail")
	if _, err := f.Up(context.Background(), cfg); !errors.Is(err, ErrNotReady) {
		t.Fatalf("up: %v", err)
	}
	if n := shardProcesses(t, f); n != 1 {
		t.Errorf("%d processes, want the one that ran before", n)
	}
	t.Setenv(shardEnv, "")
	res2, err := f.Up(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(res2.Started) != "[1]" || res2.Status.Shards[0].PID != res.Status.Shards[0].PID {
		t.Errorf("started %v, want shard 1 only", res2.Started)
	}
}

func waitFree(t testing.TB, f Folder, shard int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := until(ctx, func() (bool, error) {
		held, err := isLocked(f.claimPath(shard))
		return !held, err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestUpConflict(t *testing.T) {
	f := newFolder(t, "d")
	cfg := upConfig(t, f, 1)
	if _, err := f.Up(context.Background(), cfg); err != nil {
		t.Fatal(err)
	}
	other := cfg
	other.Deployment = deployment("d", 2)
	_, err := f.Up(context.Background(), other)
	if !errors.Is(err, ErrConflict) {
		t.Fatalf("up of another recipe: %v, want ErrConflict", err)
	}
	if n := shardProcesses(t, f); n != 1 {
		t.Errorf("%d processes, want the one of the first recipe", n)
	}
	if _, err := f.Down(context.Background(), DownConfig{LockWait: time.Second}); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Up(context.Background(), other); err != nil {
		t.Errorf("up of the other recipe after down: %v", err)
	}
}

func TestUpRaces(t *testing.T) {
	f := newFolder(t, "d")
	cfg := upConfig(t, f, 2)
	var wg sync.WaitGroup
	var mu sync.Mutex
	started := 0
	for range 4 {
		wg.Go(func() {
			res, err := f.Up(context.Background(), cfg)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
				return
			}
			started += len(res.Started)
		})
	}
	wg.Wait()
	if started != 2 || shardProcesses(t, f) != 2 {
		t.Errorf("%d started, %d processes, want 2 and 2", started, shardProcesses(t, f))
	}
}

func TestLockNamesItsHolder(t *testing.T) {
	f := newFolder(t, "d")
	if err := f.Create(); err != nil {
		t.Fatal(err)
	}
	l, err := f.Lock(context.Background(), "up", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	_, err = f.Lock(context.Background(), "down", 50*time.Millisecond)
	if !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), fmt.Sprintf("rs up, pid %d", os.Getpid())) {
		t.Errorf("%v, want ErrLocked with the holder", err)
	}
}

func TestDownForces(t *testing.T) {
	t.Setenv(shardEnv, "0=stubborn,1=stubborn")
	f := newFolder(t, "d")
	if _, err := f.Up(context.Background(), upConfig(t, f, 3)); err != nil {
		t.Fatal(err)
	}
	res, err := f.Down(context.Background(), DownConfig{Grace: 300 * time.Millisecond, LockWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(res.Forced()) != "[0 1]" || len(res.Shards) != 3 {
		t.Errorf("down: %+v, want 0 and 1 forced and 2 drained", res)
	}
	if n := shardProcesses(t, f); n != 0 {
		t.Errorf("%d processes left", n)
	}
}

func TestDownInterruptedForcesAtOnce(t *testing.T) {
	t.Setenv(shardEnv, "1=stubborn")
	f := newFolder(t, "d")
	if _, err := f.Up(context.Background(), upConfig(t, f, 2)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	res, err := f.Down(ctx, DownConfig{Grace: time.Hour, LockWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	if got := res.Forced(); len(got) == 0 || got[len(got)-1] != 1 {
		t.Errorf("forced %v, want shard 1 among them", got)
	}
}

// A launcher that dies between the fork and anything it could write down leaves
// a shard that nobody knows the id of.
func TestDownFindsOrphan(t *testing.T) {
	t.Setenv(shardEnv, "0=mute")
	f := newFolder(t, "d")
	if err := f.Create(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(testProgram(t)[0], "launch-and-die", f.Path).CombinedOutput()
	var ee *exec.ExitError
	if !errors.As(err, &ee) || ee.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the launcher was not killed: %v\n%s", err, out)
	}
	res, err := f.Down(context.Background(), DownConfig{LockWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Shards) != 1 || res.Shards[0].Shard != 0 || shardProcesses(t, f) != 0 {
		t.Errorf("down: %+v with %d processes left, want the orphan stopped", res, shardProcesses(t, f))
	}
}

func seed(t testing.TB) uint64 {
	s := rand.Uint64()
	if v := os.Getenv("RS_TEST_SEED"); v != "" {
		var err error
		if s, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("RS_TEST_SEED: %v", err)
		}
	}
	t.Logf("RS_TEST_SEED=%d", s)
	return s
}

// Whenever the launcher is killed, down leaves nothing and another up works.
func TestUpKilledAtAnyTime(t *testing.T) {
	rnd := rand.New(rand.NewPCG(seed(t), 1))
	f := newFolder(t, "d")
	if err := f.Create(); err != nil {
		t.Fatal(err)
	}
	stopped := 0
	for i := range 25 {
		cmd := exec.Command(testProgram(t)[0], "up", f.Path)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.NewTimer(time.Duration(rnd.IntN(80)) * time.Millisecond)
		<-timer.C
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		res, err := f.Down(context.Background(), DownConfig{Grace: 5 * time.Second, LockWait: time.Second})
		if err != nil {
			t.Fatalf("round %d: %v", i, err)
		}
		stopped += len(res.Shards)
		if n := shardProcesses(t, f); n != 0 {
			t.Fatalf("round %d: %d processes left after down", i, n)
		}
	}
	if stopped == 0 {
		t.Error("no round had a shard to stop: the kills came too early to test anything")
	}
	if _, err := f.Up(context.Background(), upConfig(t, f, 3)); err != nil {
		t.Errorf("up afterwards: %v", err)
	}
}

// A record that names a process which is not the shard must not get that process
// killed: ids are reused.
func TestDownSparesReusedPID(t *testing.T) {
	innocent := exec.Command("sleep", "60")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = innocent.Process.Kill(); _ = innocent.Wait() }()
	who := process{pid: innocent.Process.Pid}
	st, err := procStat(who.pid)
	if err != nil {
		t.Fatal(err)
	}
	who.start = st.start
	lie := fmt.Sprintf(`{"shard":0,"pid":%d,"start_ticks":%d}`, who.pid, who.start)

	f := newFolder(t, "d")
	if _, err := f.Up(context.Background(), upConfig(t, f, 1)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.claimPath(0), []byte(lie), 0o600); err != nil {
		t.Fatal(err)
	}
	res, err := f.Down(context.Background(), DownConfig{LockWait: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Shards) != 1 || res.Shards[0].PID == who.pid {
		t.Errorf("down: %+v, want the real shard", res)
	}
	// The same with nobody holding the lock, as after a restart of the machine.
	if err := os.WriteFile(f.claimPath(0), []byte(lie), 0o600); err != nil {
		t.Fatal(err)
	}
	if res, err = f.Down(context.Background(), DownConfig{LockWait: time.Second}); err != nil || len(res.Shards) != 0 {
		t.Errorf("down: %+v, %v, want nothing", res, err)
	}
	if !who.running() {
		t.Error("the innocent process was killed")
	}
	// And at the last step: the identity is checked after the handle is taken.
	if err := who.signal(syscall.SIGKILL, f.claimPath(0)); !errors.Is(err, os.ErrProcessDone) || !who.running() {
		t.Errorf("signal to a process without the lock: %v", err)
	}
}

// What a machine that was switched off leaves behind.
func TestStaleState(t *testing.T) {
	f := newFolder(t, "d")
	cfg := upConfig(t, f, 2)
	res, err := f.Up(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range res.Status.Shards {
		if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		waitFree(t, f, s.ID)
	}
	st, err := f.Status(context.Background(), cfg.Control)
	if err != nil {
		t.Fatal(err)
	}
	if !errors.Is(Serving(st), ErrNotRunning) || st.Shards[0].State != ctrl.StateDead || st.Control.State != ControlUnreachable {
		t.Errorf("status %+v, %v", st, Serving(st))
	}
	if res, err = f.Up(context.Background(), cfg); err != nil || len(res.Started) != 2 {
		t.Errorf("up: %+v, %v, want both shards started", res, err)
	}
}

func TestSecondProcessOfAShard(t *testing.T) {
	f := newFolder(t, "d")
	if _, err := f.Up(context.Background(), upConfig(t, f, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Claim(0, -1, "test"); err == nil || !strings.Contains(err.Error(), "running already") {
		t.Errorf("a second process claimed the shard: %v", err)
	}
	if _, err := f.Claim(0, 0, "test"); err == nil || !strings.Contains(err.Error(), "descriptor 0 is not") {
		t.Errorf("a claim on some descriptor: %v", err)
	}
}

func TestStateFolderErrors(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := State{file}.Folder("d")
	if err != nil {
		t.Fatal(err)
	}
	cfg := upConfig(t, f, 1)
	_, err = f.Up(context.Background(), cfg)
	var pe *pipeline.Error
	if !errors.As(err, &pe) || pe.Op != "state folder" || !strings.Contains(pe.Hint, "--state") {
		t.Errorf("up in a file: %v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "../x", strings.Repeat("a", 64), ".hidden", "a\x00b"} {
		if _, err := (State{dir}).Folder(name); err == nil {
			t.Errorf("name %q was accepted", name)
		}
	}
	cfg.Deployment.Hosts[0].Address = "192.0.2.1"
	g, err := State{dir}.Folder("d")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Up(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "192.0.2.1") {
		t.Errorf("up of a shard of another machine: %v", err)
	}
}

func TestSelect(t *testing.T) {
	s := State{t.TempDir()}
	if _, err := s.Select(""); !errors.Is(err, ErrNotRunning) {
		t.Errorf("empty state: %v", err)
	}
	var folders []Folder
	for _, n := range []string{"a", "b"} {
		f, err := s.Folder(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Create(); err != nil {
			t.Fatal(err)
		}
		if err := f.writeResolved(deployment(n, 1), ""); err != nil {
			t.Fatal(err)
		}
		folders = append(folders, f)
		if n == "a" {
			if got, err := s.Select(""); err != nil || got != f {
				t.Errorf("the only one: %v, %v", got, err)
			}
		}
	}
	if _, err := s.Select(""); err == nil || !strings.Contains(err.Error(), "a, b") {
		t.Errorf("two: %v", err)
	}
	c, err := folders[1].Claim(0, -1, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := s.Select(""); err != nil || got.Name != "b" {
		t.Errorf("the only running one: %v, %v", got, err)
	}
	if _, err := s.Select("c"); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown: %v", err)
	}
}

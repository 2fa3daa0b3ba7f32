package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
)

// The test binary plays three parts: the tests, a shard ("serve", as the
// launcher starts it), and a launcher that dies early. What a shard does is told
// by the variable below, "N=what,M=what".
const shardEnv = "RS_TEST_SHARD"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "serve":
			os.Exit(fakeShard(os.Args[2:]))
		case "launch-and-die":
			launchAndDie(os.Args[2])
		case "up":
			os.Exit(upUntilKilled(os.Args[2]))
		}
	}
	if os.Getenv("GORACE") == "" {
		// A program built with -race sleeps for a second before it exits; the
		// shards here have nothing left to race with.
		if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	goleak.VerifyTestMain(m)
}

func fakeShard(args []string) int {
	opt := make(map[string]string)
	for i := 0; i+1 < len(args); i += 2 {
		opt[args[i]] = args[i+1]
	}
	shard, _ := strconv.Atoi(opt["--shard"])
	fd, _ := strconv.Atoi(opt["--lock-fd"])
	what := "serve"
	for _, w := range strings.Split(os.Getenv(shardEnv), ",") {
		if n, v, ok := strings.Cut(w, "="); ok && n == opt["--shard"] {
			what = v
		}
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if what == "mute" { // holds the lock, never says who it is
		<-term
		return 0
	}
	f, err := State{opt["--state"]}.Folder(opt["--deployment"])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	claim, err := f.Claim(shard, fd, "test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer claim.Close()
	switch what {
	case "fail":
		err := pipeline.Errorf(pipeline.LayerResource, "allocate", pipeline.AtShard(shard).On("b"), "device soft:127.0.2.1: %w", syscall.EADDRINUSE).
			WithHint("choose another address")
		if err := claim.WriteExit(1, err); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return 1
	case "panic":
		panic("shard is broken")
	case "killed":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	case "never":
		<-term
		return 0
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		signal.Stop(term)
		term = nil
	}
	ready := filepath.Join(f.runDir(), "ready-"+opt["--shard"])
	if err := os.WriteFile(ready, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	<-term
	_ = os.Remove(ready)
	return 0
}

// fakeControl is a control plane that believes the ready files.
func fakeControl(f Folder) Control {
	return func(_ context.Context, d *deploy.Deployment) (*ctrl.Status, error) {
		if _, err := os.Stat(filepath.Join(f.runDir(), "ready-0")); err != nil {
			return nil, errors.New("connection refused")
		}
		out := &ctrl.Status{Control: ctrl.ControlStatus{State: ControlServing}}
		for i := range d.Shards {
			b, err := os.ReadFile(filepath.Join(f.runDir(), fmt.Sprintf("ready-%d", d.Shards[i].ID)))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			pid, err := strconv.Atoi(string(b))
			if err != nil {
				continue // half written
			}
			out.Shards = append(out.Shards, ctrl.ShardStatus{ID: d.Shards[i].ID, PID: pid, State: ctrl.StateServing})
		}
		return out, nil
	}
}

func deployment(name string, shards int) *deploy.Deployment {
	d := &deploy.Deployment{Name: name, Control: deploy.Control{Host: "127.0.0.1", Port: 7411}, Hosts: []deploy.Host{{Name: "h"}}}
	for i := range shards {
		d.Shards = append(d.Shards, deploy.Shard{ID: i, Host: "h"})
	}
	return d
}

func testProgram(t testing.TB) Program {
	t.Helper()
	p, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Program{p}
}

// newFolder is the folder of a deployment in a new state folder; whatever the
// test leaves running is ended.
func newFolder(t testing.TB, name string) Folder {
	t.Helper()
	f, err := State{t.TempDir()}.Folder(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := f.Down(context.Background(), DownConfig{Grace: time.Second, LockWait: time.Second}); err != nil {
			t.Errorf("cleaning up: %v", err)
		}
	})
	return f
}

func upConfig(t testing.TB, f Folder, shards int) UpConfig {
	return UpConfig{
		Deployment: deployment(f.Name, shards),
		Recipe:     "test.cue",
		Program:    testProgram(t),
		Control:    fakeControl(f),
		Timeout:    20 * time.Second,
		Grace:      10 * time.Second,
		LockWait:   10 * time.Second,
	}
}

// launchAndDie starts a shard that does not say who it is and is killed at once,
// as if rs had died right after the fork.
func launchAndDie(path string) {
	f := Folder{Path: path, Name: filepath.Base(path)}
	program, err := os.Executable()
	if err == nil {
		_, err = f.spawn(0, Program{program})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// upUntilKilled is rs up for somebody who kills it.
func upUntilKilled(path string) int {
	f := Folder{Path: path, Name: filepath.Base(path)}
	program, err := os.Executable()
	if err != nil {
		return 1
	}
	_, err = f.Up(context.Background(), UpConfig{
		Deployment: deployment(f.Name, 3), Program: Program{program}, Control: fakeControl(f),
		Timeout: 20 * time.Second, Grace: time.Second, LockWait: 10 * time.Second,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// shardProcesses counts the processes of this machine that serve a shard of the
// folder, by their command lines: a look that does not depend on locks.
func shardProcesses(t testing.TB, f Folder) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil || !strings.Contains(string(b), "\x00serve\x00--state\x00"+f.root()+"\x00") {
			continue
		}
		if s, err := procStat(pid); err == nil && !s.ended() {
			n++
		}
	}
	return n
}

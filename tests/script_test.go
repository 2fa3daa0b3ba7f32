package tests

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/railstore/railstore/bin/rs/cmd"
)

// TestMain makes this test binary the rs of every script: commands, and the
// shards that they start, run the code under test, under the race detector when
// the tests do.
func TestMain(m *testing.M) {
	if os.Getenv("GORACE") == "" {
		// A program built with -race sleeps for a second before it exits.
		if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
			panic(err)
		}
	}
	testscript.Main(m, map[string]func(){"rs": func() { os.Exit(cmd.Main()) }})
}

func TestScripts(t *testing.T) {
	var mu sync.Mutex
	var inside []error
	t.Cleanup(func() { // after the scripts, which run in parallel
		mu.Lock()
		defer mu.Unlock()
		if err := errors.Join(inside...); err != nil {
			t.Error(err)
		}
	})
	testscript.Run(t, testscript.Params{
		Dir:                 "script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("RS_UPDATE") == "1",
		Setup: func(env *testscript.Env) error {
			box, err := newSandbox(env.WorkDir)
			if err != nil {
				return err
			}
			env.Vars = append(env.Vars, box.env()...)
			env.Vars = append(env.Vars, "UNSHARE="+unshareFlags())
			env.Defer(func() {
				err := box.close()
				mu.Lock()
				defer mu.Unlock()
				inside = append(inside, err)
			})
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "unshare":
				return unshareFlags() != "", nil
			case "race":
				return raceEnabled, nil
			}
			return false, fmt.Errorf("there is no condition %q", cond)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"code":     cmdCode,
			"jsonhas":  cmdJSONHas,
			"killpid":  cmdKillShard,
			"waitfile": cmdWaitFile,
			"waitgrow": cmdWaitGrow,

			"waitclient": cmdWaitClient,
			"listen":     cmdListen,
			"copyport":   cmdCopyPort,
			"sysfs":      cmdSysfs,
			"waitrows":   cmdWaitRows,
			"checkload":  cmdCheckLoad,
		},
	})
}

// unshareFlags are those with which unshare(1) gives a mount namespace of one's own
// here, empty when neither root nor user namespaces are to be had.
var unshareFlags = sync.OnceValue(func() string {
	for _, f := range []string{"-m", "-Urm"} {
		if exec.Command("unshare", f, "true").Run() == nil {
			return f
		}
	}
	return ""
})

// sandbox is a folder in which commands run as a user would run them in a clone:
// recipes are at recipes/, the state folder is the sandbox's own, and control
// planes listen on ports that nobody else has.
type sandbox struct {
	dir, state string
}

// nextPort counts the ports that were given out.
var nextPort atomic.Uint32

var portRE = regexp.MustCompile(`(?m)^(control: port:\s*)\d+`)

func newSandbox(dir string) (*sandbox, error) {
	b := &sandbox{dir: dir, state: filepath.Join(dir, ".state")}
	recipes, err := filepath.Glob("../recipes/*.cue")
	if err != nil {
		return nil, err
	}
	if len(recipes) == 0 {
		return nil, errors.New("no recipes")
	}
	if err := os.MkdirAll(filepath.Join(dir, "recipes"), 0o755); err != nil {
		return nil, err
	}
	for _, r := range recipes {
		text, err := os.ReadFile(r)
		if err != nil {
			return nil, err
		}
		port, err := freePort()
		if err != nil {
			return nil, err
		}
		if !portRE.Match(text) {
			text = append(text, "\ncontrol: port: 0\n"...)
		}
		text = portRE.ReplaceAll(text, []byte("${1}"+strconv.Itoa(port)))
		if err := os.WriteFile(filepath.Join(dir, "recipes", filepath.Base(r)), text, 0o644); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// freePort is a TCP port that was free a moment ago. The range below the
// kernel's own ephemeral ports is not used by anybody's outgoing connections in
// the meantime, and each test process begins at another place in it.
func freePort() (int, error) {
	for range 1000 {
		p := 20000 + int((nextPort.Add(1)+uint32(os.Getpid())*37)%10000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p))
		if err != nil {
			continue
		}
		return p, l.Close()
	}
	return 0, errors.New("no free port")
}

func (b *sandbox) env() []string {
	return []string{
		"HOME=" + b.dir, "RS_STATE=" + b.state, "NO_COLOR=1", "TZ=UTC",
		"GORACE=" + os.Getenv("GORACE"), "GOCOVERDIR=" + os.Getenv("GOCOVERDIR"),
	}
}

// close stops what was left running. The error is about what went wrong inside the
// shards without anybody outside noticing: a data race or a panic.
func (b *sandbox) close() error {
	entries, err := os.ReadDir(b.state)
	if err != nil {
		return nil // nothing was brought up
	}
	for _, e := range entries {
		c := exec.Command("rs", "down", "--quiet", "--grace", "2s", e.Name())
		c.Env = append(os.Environ(), b.env()...)
		_ = c.Run()
	}
	logs, err := filepath.Glob(filepath.Join(b.state, "*", "logs", "*"))
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range logs {
		text, err := os.ReadFile(l)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i := troubleRE.FindIndex(text); i != nil {
			errs = append(errs, fmt.Errorf("%s:\n%s", l, text[i[0]:min(len(text), i[0]+8000)]))
		}
	}
	return errors.Join(errs...)
}

var troubleRE = regexp.MustCompile(`(?m)^(WARNING: DATA RACE|panic: |fatal error: )`)

// code N command...: runs the command and wants exactly that exit code. Its
// output is there for stdout, stderr and cmp as with exec.
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N command...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var ee *exec.ExitError
	switch {
	case errors.As(err, &ee):
		got = ee.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("%s: exit code %d, want %d", args[1], got, want)
	}
}

// jsonhas FILE path[=value]...: every line of FILE (stdout, stderr or a file) is
// JSON, and in the last one every path exists, with the value if one is given;
// value * wants anything but an empty one. A path is keys and list indexes with
// dots between them.
func cmdJSONHas(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: jsonhas file path[=value]...")
	}
	var doc any
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		dec := json.NewDecoder(strings.NewReader(line))
		dec.UseNumber()
		if err := dec.Decode(&doc); err != nil {
			ts.Fatalf("%s: %v in %s", args[0], err, line)
		}
	}
	for _, a := range args[1:] {
		p, want, given := strings.Cut(a, "=")
		got, err := lookup(doc, strings.Split(p, "."))
		if err != nil {
			ts.Fatalf("%s: %v", p, err)
		}
		s := fmt.Sprint(got)
		switch {
		case given && want == "*" && (s == "" || s == "0" || s == "<nil>" || s == "[]"):
			ts.Fatalf("%s is empty: %s", p, s)
		case given && want != "*" && s != want:
			ts.Fatalf("%s is %s, want %s", p, s, want)
		}
	}
}

func lookup(doc any, path []string) (any, error) {
	for i, k := range path {
		switch v := doc.(type) {
		case map[string]any:
			x, ok := v[k]
			if !ok {
				return nil, fmt.Errorf("no key %q", strings.Join(path[:i+1], "."))
			}
			doc = x
		case []any:
			n, err := strconv.Atoi(k)
			if err != nil || n < 0 || n >= len(v) {
				return nil, fmt.Errorf("no element %q of %d", strings.Join(path[:i+1], "."), len(v))
			}
			doc = v[n]
		default:
			return nil, fmt.Errorf("%q is neither an object nor a list", strings.Join(path[:i], "."))
		}
	}
	return doc, nil
}

// killpid DEPLOYMENT SHARD SIGNAL: sends the shard's process a signal and, for
// KILL and TERM, waits until it is gone.
func cmdKillShard(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: killpid deployment shard signal")
	}
	var rec struct{ PID int }
	lock := filepath.Join(ts.Getenv("RS_STATE"), args[0], "run", "shard-"+args[1]+".lock")
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(lock)), &rec))
	sig := map[string]syscall.Signal{"KILL": syscall.SIGKILL, "STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT, "TERM": syscall.SIGTERM}[args[2]]
	if sig == 0 || rec.PID < 2 {
		ts.Fatalf("signal %s to process %d", args[2], rec.PID)
	}
	ts.Check(syscall.Kill(rec.PID, sig))
	if sig != syscall.SIGKILL && sig != syscall.SIGTERM {
		return
	}
	if !poll(10*time.Second, func() bool { return ended(rec.PID) }) {
		ts.Fatalf("process %d is still there", rec.PID)
	}
}

// ended says that a process is gone, or a zombie whose threads are all gone.
func ended(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	return len(f) > 17 && string(f[0]) == "Z" && string(f[17]) <= "1"
}

func poll(most time.Duration, cond func() bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return false
		case <-t.C:
		}
	}
	return true
}

// waitfile FILE REGEXP: waits until the file has a match.
func cmdWaitFile(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitfile file regexp")
	}
	re, err := regexp.Compile(args[1])
	ts.Check(err)
	path := ts.MkAbs(args[0])
	if !poll(20*time.Second, func() bool {
		b, err := os.ReadFile(path)
		return err == nil && re.Match(b)
	}) {
		b, _ := os.ReadFile(path)
		ts.Fatalf("%s has no %s:\n%s", args[0], args[1], b)
	}
}

// waitgrow DIR BYTES: waits until the files below the folder have that many bytes.
func cmdWaitGrow(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitgrow dir bytes")
	}
	want, err := strconv.ParseInt(args[1], 10, 64)
	ts.Check(err)
	var sum int64
	if !poll(20*time.Second, func() bool {
		sum = 0
		// Files come and go meanwhile; only the sum matters.
		_ = filepath.WalkDir(ts.MkAbs(args[0]), func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil
			}
			if fi, err := d.Info(); err == nil {
				sum += fi.Size()
			}
			return nil
		})
		return sum >= want
	}) {
		ts.Fatalf("%s has %d bytes, want %d", args[0], sum, want)
	}
}

// waitclient DEPLOYMENT: waits until a client can be asked for what it does.
func cmdWaitClient(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: waitclient deployment")
	}
	pattern := filepath.Join(ts.Getenv("RS_STATE"), args[0], "run", "client-*.sock")
	if !poll(20*time.Second, func() bool {
		found, err := filepath.Glob(pattern)
		return err == nil && len(found) > 0
	}) {
		ts.Fatalf("no client")
	}
}

// listen RECIPE: takes the control port of a recipe until the script ends, and
// puts it into $PORT.
func cmdListen(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: listen recipe")
	}
	port := recipePort(ts, args[0])
	l, err := net.Listen("tcp", "127.0.0.1:"+port)
	ts.Check(err)
	ts.Defer(func() { _ = l.Close() })
	ts.Setenv("PORT", port)
}

func recipePort(ts *testscript.TestScript, recipe string) string {
	m := portRE.FindString(ts.ReadFile(recipe))
	if m == "" {
		ts.Fatalf("%s: no control port", recipe)
	}
	return m[strings.LastIndexByte(m, ' ')+1:]
}

// copyport FROM TO: gives the recipe TO the control port of the recipe FROM.
func cmdCopyPort(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: copyport from to")
	}
	text := portRE.ReplaceAllString(ts.ReadFile(args[1]), "${1}"+recipePort(ts, args[0]))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o644))
}

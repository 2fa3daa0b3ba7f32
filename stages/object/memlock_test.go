package object

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/verbstest"
)

// pinning devices lock what is registered, as real ones do. They are called ibv.
type pinningDriver struct {
	verbs.Driver
	registered atomic.Int64 // calls
}

func (d *pinningDriver) Name() string { return "ibv" }

func (d *pinningDriver) Open(name string) (verbs.DriverContext, error) {
	c, err := d.Driver.Open(name)
	return &pinningContext{c, d}, err
}

type pinningContext struct {
	verbs.DriverContext
	d *pinningDriver
}

func (c *pinningContext) AllocPD() (verbs.DriverPD, error) {
	p, err := c.DriverContext.AllocPD()
	return &pinningPD{p, c.d}, err
}

type pinningPD struct {
	verbs.DriverPD
	d *pinningDriver
}

func (p *pinningPD) Register(mem []byte, access verbs.Access) (verbs.DriverMR, error) {
	p.d.registered.Add(1)
	if err := unix.Mlock(mem); err != nil {
		return nil, err
	}
	return p.DriverPD.Register(mem, access)
}

// envMemlock says which of its processes a run of the test is.
const envMemlock = "RS_TEST_MEMLOCK"

// TestProcessMemlock: a process with a limit on locked memory is told before a device is
// asked, when it starts and when a read needs more; with the limit that it is told
// it goes on.
func TestProcessMemlock(t *testing.T) {
	switch os.Getenv(envMemlock) {
	case "limited":
		underMemlock(t)
	case "drop":
		// Root has a capability that lifts the limit; a program that is started from here has not.
		runtime.LockOSThread()
		_ = unix.Prctl(unix.PR_CAPBSET_DROP, capIPCLock, 0, 0, 0) // without root there is none to drop
		t.Fatal(os.Setenv(envMemlock, "limited"), syscall.Exec(os.Args[0], os.Args, os.Environ()))
	default:
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(exe, "-test.run=^TestProcessMemlock$", "-test.v")
		cmd.Env = append(os.Environ(), envMemlock+"=drop")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- ") {
			t.Fatalf("%v\n%s", err, out)
		}
		if i := strings.Index(string(out), "prerequisite:"); i >= 0 {
			t.Skip(string(out)[i:])
		}
	}
}

func underMemlock(t *testing.T) {
	defer goleak.VerifyNone(t)
	var had unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &had); err != nil {
		t.Fatal(err)
	}
	const room = 4 << 20
	if had.Max < room {
		t.Skipf("prerequisite: ulimit -H -l of %d KiB, it is %d", room>>10, had.Max>>10)
	}
	limit := func(n uint64) {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: n, Max: had.Max}); err != nil {
			t.Fatal(err)
		}
	}
	limit(room)
	_, used, ok := processMemlock()
	if !ok {
		t.Fatal("nothing limits this process")
	}
	drv := &pinningDriver{Driver: verbstest.NewLoop(verbstest.LoopOptions{Async: true})}
	x := newSiteOn(t, drv, func(d *deploy.Deployment) { d.Reader.MaxStaging = 512 << 10 })
	defer x.close()
	if _, now, _ := processMemlock(); now <= used {
		t.Fatalf("%d bytes are locked, %d were before the shards registered their memory", now, used)
	}
	told := func(err error) uint64 {
		t.Helper()
		m := regexp.MustCompile(`RLIMIT_MEMLOCK is (\d+) bytes, (\d+) are locked, and (\d+) more are wanted: .*ulimit -l to (\d+) or more`).FindStringSubmatch(err.Error())
		if m == nil || !errors.Is(err, ErrNoMemory) {
			t.Fatalf("%v", err)
		}
		kib, _ := strconv.ParseUint(m[4], 10, 64)
		return kib << 10
	}
	open := func() (*Session, error) {
		return OpenSession(context.Background(), SessionConfig{Deployment: x.dep, Host: "c", Drivers: x.drivers, Control: x.server.Addr(), Identity: x.identity(), Limits: DefaultLimits()})
	}
	// At the start: what the lanes need is there, what the first read would need is not.
	s, err := open()
	if err != nil {
		t.Fatal(err)
	}
	_, lanes, _ := processMemlock()
	x.shut(s)
	limit(lanes + 600<<10) // two rails want 512 KiB each
	if s, err = open(); err == nil {
		x.shut(s)
		t.Fatal("a session that could not read was opened")
	}
	limit(told(err))
	if s, err = open(); err != nil {
		t.Fatalf("with what it was told: %v", err)
	}
	defer func() { x.shut(s) }()
	// Later: a read that needs memory which the limit does not allow any more.
	data := randomBytes(1, 16*Align)
	_, now, _ := processMemlock()
	limit(now)
	before := drv.registered.Load()
	_, err = s.Put(context.Background(), testKey, NewSource(strings.NewReader(string(data)), uint64(len(data)), "test"), PutOptions{})
	if err == nil {
		t.Fatal("memory beyond the limit was registered")
	}
	need := told(err)
	if drv.registered.Load() != before {
		t.Error("a device was asked for what it would refuse")
	}
	limit(need)
	putBytes(t, s.Worker, testKey, data)
	readBytes(t, s.Worker, testKey, data)
}

package rxe

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
)

// asNobody runs one test of this binary again as a user without rights, with a
// small limit for pinned memory, and gives what it wrote.
func asNobody(t *testing.T, test string) string {
	t.Helper()
	// The job's folder may be closed to others.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(self)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.CreateTemp("/tmp", "nobody-*.test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(out.Name())
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(out.Chmod(0o755), out.Close()); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(out.Name(), "-test.v", "-test.run=^"+test+"$")
	cmd.Dir = "/tmp"
	cmd.Env = append(os.Environ(), "RS_NOBODY=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	b, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as nobody: %v\n%s", err, b)
	}
	return string(b)
}

// setMode gives the device files a mode for the length of a test.
func setMode(t *testing.T, mode os.FileMode) {
	t.Helper()
	files, err := filepath.Glob("/dev/infiniband/uverbs*")
	if err != nil || len(files) == 0 {
		t.Fatal("no device files", err)
	}
	for _, f := range files {
		st, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(f, mode); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Chmod(f, st.Mode().Perm()); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestInsideRights: a device that is there but may not be opened says which file
// and which user; the library alone would say that there is no such file.
func TestInsideRights(t *testing.T) {
	inside(t)
	if os.Getenv("RS_NOBODY") == "" {
		setMode(t, 0o600)
		t.Logf("%s", asNobody(t, t.Name()))
		return
	}
	_, err := verbs.Open(ibv.New(ibv.Options{}), "rxe0")
	if !errors.Is(err, verbs.ErrPermission) || !errors.Is(err, unix.EACCES) {
		t.Fatalf("%v: want a lack of permission", err)
	}
	for _, s := range []string{"ibv:rxe0", "/dev/infiniband/uverbs", "uid 65534", "crw-------", "group rdma"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v: does not say %q", err, s)
		}
	}
	t.Log(err)
}

// TestInsideMemlock: memory over the limit is refused with the need, the limit
// and the command that lifts it.
func TestInsideMemlock(t *testing.T) {
	inside(t)
	if os.Getenv("RS_NOBODY") == "" {
		setMode(t, 0o666)
		t.Logf("%s", asNobody(t, t.Name()))
		return
	}
	const limit = 256 << 10
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
		t.Fatal(err)
	}
	c, err := verbs.Open(ibv.New(ibv.Options{}), "rxe0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	pd, err := c.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	defer pd.Close()
	small, err := verbs.MapRegion(limit / 2)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	mr, err := pd.Register(small, verbs.LocalWrite)
	if err != nil {
		t.Fatalf("half of the limit: %v", err)
	}
	defer mr.Close()
	big, err := verbs.MapRegion(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer big.Close()
	_, err = pd.Register(big, verbs.LocalWrite)
	if !errors.Is(err, verbs.ErrNoMemory) || !errors.Is(err, unix.ENOMEM) {
		t.Fatalf("%v: want ENOMEM", err)
	}
	for _, s := range []string{"1048576 bytes", fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes", limit), fmt.Sprintf("%d are pinned", limit/2),
		fmt.Sprintf("ulimit -l %d", (limit/2+1<<20)/1024), "LimitMEMLOCK="} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v: does not say %q", err, s)
		}
	}
	t.Log(err)
}

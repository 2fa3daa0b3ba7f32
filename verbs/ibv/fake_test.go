//go:build cgo && linux

package ibv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/railstore/railstore/verbs"
)

// fake is a world with testdata/fake.c for its library.
type fake struct {
	t   *testing.T
	drv *Driver
	dir string
}

var fakeLibrary struct {
	once sync.Once
	file string
	err  error
	out  []byte
}

// buildFake compiles the library once. It stays in the temporary folder, because
// a loaded library cannot be unloaded.
func buildFake(t *testing.T) string {
	t.Helper()
	l := &fakeLibrary
	l.once.Do(func() {
		dir, err := os.MkdirTemp("", "railstore-fake-verbs-")
		if err != nil {
			l.err = err
			return
		}
		l.file = filepath.Join(dir, "libfake.so")
		l.out, l.err = exec.Command("cc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", l.file, "testdata/fake.c").CombinedOutput()
	})
	if l.err != nil {
		t.Skipf("the fake library does not compile here: %v\n%s", l.err, l.out)
	}
	return l.file
}

func newFake(t *testing.T) *fake {
	t.Helper()
	f := &fake{t: t, dir: t.TempDir()}
	file := buildFake(t)
	t.Setenv("FAKE_LOG", filepath.Join(f.dir, "log"))
	t.Setenv("FAKE_SYS", f.dir)
	f.drv = New(Options{Library: file, DevDir: f.dir, SysDir: f.dir})
	for port := range 2 {
		for i, g := range []string{"fe80::1", "::ffff:10.0.0.1", "::", "fd00::1"} {
			gid, err := verbs.ParseGID(g)
			if err != nil {
				t.Fatal(err)
			}
			f.file(port, "gids", i, gid.String())
			f.file(port, "gid_attrs/types", i, []string{"IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"}[i])
			f.file(port, "gid_attrs/ndevs", i, "eth7")
		}
	}
	return f
}

func (f *fake) file(port int, dir string, index int, text string) {
	f.t.Helper()
	p := filepath.Join(f.dir, "fake0", "ports", string(rune('1'+port)), dir)
	if err := os.MkdirAll(p, 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p, string(rune('0'+index))), []byte(text+"\n"), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// balance counts the handles that are open by the log, and the events that were
// acknowledged.
func (f *fake) balance() map[string]int {
	f.t.Helper()
	b, err := os.ReadFile(os.Getenv("FAKE_LOG"))
	if err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	n := make(map[string]int)
	for l := range strings.Lines(string(b)) {
		switch sign, kind, _ := strings.Cut(strings.TrimSpace(l), " "); sign {
		case "+":
			n[kind]++
		case "-":
			n[kind]--
		case "av":
			n["av "+kind]++
		}
	}
	for k, v := range n {
		if v == 0 {
			delete(n, k)
		}
	}
	return n
}

func (f *fake) open() *verbs.Context {
	f.t.Helper()
	c, err := verbs.Open(f.drv, "fake0")
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

// rig is an open device with one of everything.
type rig struct {
	ctx    *verbs.Context
	pd     *verbs.PD
	cq     *verbs.CQ
	qp     *verbs.QP
	mr     *verbs.MR
	region *verbs.Region
}

func (f *fake) rig() *rig {
	f.t.Helper()
	r := &rig{ctx: f.open()}
	must := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	var err error
	r.pd, err = r.ctx.AllocPD()
	must(err)
	r.cq, err = r.ctx.CreateCQ(100)
	must(err)
	r.region, err = verbs.MapRegion(4096)
	must(err)
	r.mr, err = r.pd.Register(r.region, verbs.LocalWrite|verbs.RemoteWrite|verbs.RemoteRead)
	must(err)
	r.qp, err = r.pd.CreateQP(verbs.QPInit{SendCQ: r.cq, RecvCQ: r.cq, Cap: verbs.QPCap{MaxSendWR: 200, MaxRecvWR: 10, MaxSendSGE: 2, MaxRecvSGE: 2}})
	must(err)
	f.t.Cleanup(r.close(f.t))
	return r
}

func (r *rig) connect(t *testing.T, o verbs.PathOpts, remote verbs.Endpoint) error {
	t.Helper()
	local := verbs.Endpoint{QPN: r.qp.QPN(), MTU: 1024}
	if remote.MTU == 0 {
		remote.MTU = 1024
	}
	return r.qp.Connect(local, remote, o, nil)
}

func (r *rig) close(t *testing.T) func() {
	return func() {
		for _, c := range []func() error{r.qp.Close, r.cq.Close, r.mr.Close, r.region.Close, r.pd.Close, r.ctx.Close} {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
	}
}

// bare is the same without package verbs in front.
type bare struct {
	dev verbs.DriverContext
	pd  verbs.DriverPD
	cq  verbs.DriverCQ
	qp  verbs.DriverQP
}

func (f *fake) bare() *bare {
	f.t.Helper()
	must := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	var b bare
	var err error
	b.dev, err = f.drv.Open("fake0")
	must(err)
	b.pd, err = b.dev.AllocPD()
	must(err)
	b.cq, err = b.dev.CreateCQ(100)
	must(err)
	b.qp, err = b.pd.CreateQP(verbs.DriverQPInit{SendCQ: b.cq, RecvCQ: b.cq, Cap: verbs.QPCap{MaxSendWR: 200, MaxRecvWR: 10, MaxSendSGE: 1, MaxRecvSGE: 1}})
	must(err)
	return &b
}

func (b *bare) close(t *testing.T) {
	for range 2 { // each may be closed twice, but for the PD and the device
		for _, c := range []func() error{b.qp.Close, b.cq.Close} {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, c := range []func() error{b.pd.Close, b.dev.Close} {
		if err := c(); err != nil {
			t.Error(err)
		}
	}
}

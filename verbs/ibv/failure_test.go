//go:build cgo && linux

package ibv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// wants checks what an error is and says.
func wants(t *testing.T, err error, is []error, says ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, e := range is {
		if !errors.Is(err, e) {
			t.Errorf("%v: is not %v", err, e)
		}
	}
	for _, s := range says {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%v: does not say %q", err, s)
		}
	}
}

func TestNoLibrary(t *testing.T) {
	_, err := verbs.Open(New(Options{Library: "/nowhere/libibverbs.so"}), "mlx5_0")
	wants(t, err, []error{verbs.ErrNotSupported}, "ibv:mlx5_0", "/nowhere/libibverbs.so", "ibverbs-providers")

	t.Setenv(EnvLibrary, "/elsewhere/lib.so")
	_, err = New(Options{}).Devices()
	wants(t, err, []error{verbs.ErrNotSupported}, "/elsewhere/lib.so", "(from RAILSTORE_IBVERBS_LIB)")

	_, err = New(Options{Library: "libc.so.6"}).Devices()
	wants(t, err, []error{verbs.ErrNotSupported}, "libc.so.6: no function ibv_get_device_list")
}

func TestEnvironmentChoosesLibrary(t *testing.T) {
	f := newFake(t)
	t.Setenv(EnvLibrary, f.drv.opt.Library)
	got, err := New(Options{}).Devices()
	if err != nil || len(got) != 2 || got[0].Name != "fake0" || got[0].NodeGUID != 0x0002c90300000030 || got[0].Ports != 2 {
		t.Errorf("%+v %v", got, err)
	}
}

func TestNoKernelSupport(t *testing.T) {
	f := newFake(t)
	t.Setenv("FAKE_FAIL_list", strconv.Itoa(int(unix.ENOSYS)))
	_, err := f.drv.Devices()
	wants(t, err, []error{verbs.ErrNotSupported, unix.ENOSYS}, "ib_uverbs")
}

func TestUnknownDevice(t *testing.T) {
	f := newFake(t)
	_, err := verbs.Open(f.drv, "mlx5_7")
	wants(t, err, []error{verbs.ErrNotFound}, "there are fake0, fake1")
	if err := os.Mkdir(filepath.Join(f.dir, "mlx5_7"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = verbs.Open(f.drv, "mlx5_7")
	wants(t, err, []error{verbs.ErrNotFound}, "the kernel has the device", "ibverbs-providers")
	t.Setenv("FAKE_DEVICES", "0")
	_, err = verbs.Open(f.drv, "")
	wants(t, err, []error{verbs.ErrNotFound}, "there is none")
}

func TestOpenTellsBothTries(t *testing.T) {
	f := newFake(t)
	file := filepath.Join(f.dir, "uverbs0")
	for _, c := range []struct {
		lib  unix.Errno
		make func() error
		is   []error
		says []string
	}{
		{unix.ENOENT, func() error { return nil }, []error{verbs.ErrNotFound, unix.ENOENT}, []string{"ib_uverbs", "mounted in this container"}},
		{unix.EACCES, func() error { return nil }, []error{verbs.ErrPermission, unix.EACCES, unix.ENOENT}, []string{"libibverbs: permission denied", "no such file"}},
		{unix.EAGAIN, func() error { return os.WriteFile(file, nil, 0o600) }, []error{verbs.ErrBusy, unix.EAGAIN}, []string{"itself as uid", "works", "-rw-------", "try again"}},
		{unix.ENODEV, func() error { return nil }, []error{verbs.ErrDevice, unix.ENODEV}, []string{"gone or is being reset"}},
		// The library says ENOENT for what is EACCES in truth.
		{unix.ENOENT, func() error { return unaccessible(file) }, []error{unix.ENOENT}, nil},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		t.Setenv("FAKE_FAIL_open", strconv.Itoa(int(c.lib)))
		_, err := verbs.Open(f.drv, "fake0")
		says := append([]string{"ibv:fake0", file, fmt.Sprintf("uid %d", os.Geteuid())}, c.says...)
		wants(t, err, c.is, says...)
		if os.Geteuid() != 0 && c.says == nil {
			wants(t, err, []error{verbs.ErrPermission, unix.EACCES})
		}
	}
	if n := f.balance(); len(n) != 0 {
		t.Errorf("left open: %v", n)
	}
}

func unaccessible(file string) error { return os.Chmod(file, 0) }

func TestRegisterNamesNeedAndLimit(t *testing.T) {
	f := newFake(t)
	r := f.rig()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 65536, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
			t.Error(err)
		}
	}()
	region, err := verbs.MapRegion(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer region.Close()
	for _, e := range []unix.Errno{unix.ENOMEM, unix.EAGAIN, unix.EPERM} {
		t.Setenv("FAKE_FAIL_reg_mr", strconv.Itoa(int(e)))
		_, err = r.pd.Register(region, verbs.LocalWrite)
		wants(t, err, []error{verbs.ErrNoMemory, e}, "1048576 bytes", "RLIMIT_MEMLOCK is 65536 bytes", "ulimit -l 10", "LimitMEMLOCK=10")
	}
	t.Setenv("FAKE_FAIL_reg_mr", strconv.Itoa(int(unix.EFAULT)))
	_, err = r.pd.Register(region, verbs.LocalWrite)
	wants(t, err, []error{verbs.ErrInvalid, unix.EFAULT}, "not mapped")
}

func TestHugeRegionIsRefusedWithTheLimit(t *testing.T) {
	f := newFake(t)
	r := f.rig()
	region, err := verbs.MapRegion(1<<30 + 1)
	if err != nil {
		t.Skip(err)
	}
	defer region.Close()
	_, err = r.pd.Register(region, verbs.LocalWrite)
	wants(t, err, []error{verbs.ErrNoMemory}, "at most 1073741824 at once")
}

func TestCreateTellsLimits(t *testing.T) {
	f := newFake(t)
	r := f.rig()
	t.Setenv("FAKE_FAIL_create_qp", strconv.Itoa(int(unix.ENOMEM)))
	_, err := r.pd.CreateQP(verbs.QPInit{SendCQ: r.cq, RecvCQ: r.cq, Cap: verbs.QPCap{MaxSendWR: 77}})
	wants(t, err, []error{verbs.ErrNoMemory, unix.ENOMEM}, "send queue of 77", "100 QPs", "RLIMIT_MEMLOCK")
	t.Setenv("FAKE_FAIL_create_cq", strconv.Itoa(int(unix.EINVAL)))
	_, err = r.ctx.CreateCQ(4096)
	wants(t, err, []error{verbs.ErrInvalid, unix.EINVAL}, "4096 completions", "10 queues")
}

func TestRTRFailureListsEverything(t *testing.T) {
	f := newFake(t)
	t.Setenv("FAKE_FAIL_STATE", "2")
	remote := verbs.Endpoint{GID: mustGID(t, "10.9.8.7"), QPN: 0xabcdef, PSN: 0x123456, MTU: 2048}
	opts := verbs.PathOpts{SGIDIndex: 1, TrafficClass: 96, HopLimit: 3, FlowLabel: 0x54321, SL: 2}
	for _, c := range []struct {
		errno unix.Errno
		kind  error
		says  []string
	}{
		{unix.EINVAL, verbs.ErrInvalid, nil},
		{unix.ETIMEDOUT, verbs.ErrDevice, []string{"ping -I eth7 10.9.8.7", "route from 10.0.0.1 to 10.9.8.7"}},
		{unix.EHOSTUNREACH, verbs.ErrDevice, []string{"ping -I"}},
	} {
		t.Setenv("FAKE_FAIL_modify", strconv.Itoa(int(c.errno)))
		r := f.rig()
		err := r.connect(t, opts, remote)
		wants(t, err, []error{c.kind, c.errno}, append([]string{"ibv:fake0/1", "to RTR", "path_mtu 1024", "dest_qpn 0xabcdef", "rq_psn 0x123456",
			"max_dest_rd_atomic 12", "min_rnr_timer 12", "sgid_index 1 (10.0.0.1 RoCE v2 on eth7)", "dgid 10.9.8.7", "hop_limit 3", "traffic_class 96",
			"flow_label 0x54321", "sl 2", "port 1 is ACTIVE with an active MTU of 1024"}, c.says...)...)
	}
	r := f.rig()
	t.Setenv("FAKE_FAIL_modify", strconv.Itoa(int(unix.EINVAL)))
	opts.SGIDIndex = 2
	wants(t, r.connect(t, opts, remote), nil, "sgid_index 2 (an empty entry)", "choose a source GID index that is not empty")
	r = f.rig()
	opts.SGIDIndex = 3
	wants(t, r.connect(t, opts, remote), nil, "one of the two GIDs is IPv4 and the other IPv6")
}

func mustGID(t *testing.T, s string) verbs.GID {
	t.Helper()
	g, err := verbs.ParseGID(s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Every call of a bring-up fails in turn; nothing stays open.
func TestFailuresLeaveNothingOpen(t *testing.T) {
	f := newFake(t)
	up := func() (err error) {
		ctx, err := verbs.Open(f.drv, "fake0")
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, ctx.Close()) }()
		pd, err := ctx.AllocPD()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, pd.Close()) }()
		region, err := verbs.MapRegion(100)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, region.Close()) }()
		mr, err := pd.Register(region, 0)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, mr.Close()) }()
		cq, err := ctx.CreateCQ(1)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, cq.Close()) }()
		qp, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq})
		if err != nil {
			return err
		}
		return qp.Close()
	}
	if err := up(); err != nil {
		t.Fatal(err)
	}
	for _, call := range []string{"list", "open", "query_device", "channel", "alloc_pd", "reg_mr", "create_cq", "create_qp"} {
		t.Setenv("FAKE_FAIL_"+call, strconv.Itoa(int(syscall.EIO)))
		if err := up(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s failed with EIO, the error was %v", call, err)
		}
		t.Setenv("FAKE_FAIL_"+call, "")
		if n := f.balance(); len(n) != 0 {
			t.Errorf("%s failed; left open: %v", call, n)
		}
	}
}

// What cannot be destroyed is said to be still open, and its C memory is kept.
func TestDestroyThatFails(t *testing.T) {
	f := newFake(t)
	b := f.bare()
	m, err := b.pd.Register(make([]byte, 8), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE_FAIL_dereg_mr", strconv.Itoa(int(unix.EBUSY)))
	wants(t, m.Close(), []error{verbs.ErrBusy, unix.EBUSY}, "dereg_mr ibv:fake0")
	t.Setenv("FAKE_FAIL_destroy_qp", strconv.Itoa(int(unix.EIO)))
	wants(t, b.qp.Close(), []error{verbs.ErrDevice, unix.EIO}, "destroy_qp ibv:fake0 qp 0x")
	t.Setenv("FAKE_FAIL_dereg_mr", "")
	t.Setenv("FAKE_FAIL_destroy_qp", "")
	wants(t, b.dev.Close(), []error{verbs.ErrBusy}, "1 PDs, 1 MRs, 1 CQs and 1 QPs were left open")
	if n := f.balance(); n["qp"] != 1 || n["mr"] != 1 || n["context"] != 0 || n["channel"] != 0 {
		t.Errorf("open: %v", n)
	}
}

package rxe

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// tools are the commands that a run needs, with the Debian package of each. Some
// run here, the others in the guest, whose root is this host's.
var tools = []struct{ command, pkg string }{
	{"qemu-system-x86_64", "qemu-system-x86"},
	{"busybox", "busybox-static"},
	{"modprobe", "kmod"},
	{"depmod", "kmod"},
	{"dpkg", "dpkg"},
	{"apt-get", "apt"},
	{"cc", "gcc"},
	{"bash", "bash"},
	{"ip", "iproute2"},
	{"rdma", "iproute2"},
	{"nsenter", "util-linux"},
	{"taskset", "util-linux"},
	{"ibv_rc_pingpong", "ibverbs-utils"},
	{"ib_write_bw", "perftest"},
	{"tcpdump", "tcpdump"},
	{"tshark", "tshark"},
}

// Files that a package brings without a command.
var libraries = []struct{ glob, pkg string }{
	{"/usr/lib/*/libibverbs.so.1", "libibverbs1"},
	{"/usr/lib/*/libibverbs/librxe-rdmav*.so", "ibverbs-providers"},
	{"/usr/include/infiniband/verbs.h", "libibverbs-dev"},
}

// need makes the test skip, or fail under RS_REQUIRE=rxe, when the guest cannot
// be run here, after installing what can be installed.
func need(t *testing.T) {
	t.Helper()
	if os.Getenv("RS_GUEST") != "" {
		t.Skip("this is the guest")
	}
	if why := missing(); why != "" {
		if slices.Contains(strings.Split(os.Getenv("RS_REQUIRE"), ","), "rxe") {
			t.Fatalf("RS_REQUIRE=rxe, but %s", why)
		}
		t.Skip(why)
	}
}

// missing says what is missing for a guest, or nothing.
var missing = sync.OnceValue(func() string {
	if runtime.GOARCH != "amd64" || runtime.GOOS != "linux" {
		return "the guest is for Linux on amd64, this is " + runtime.GOOS + "/" + runtime.GOARCH
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return "the guest's kernel comes from a Debian package, and this host has no apt-get"
	}
	pkgs := lacking()
	if len(pkgs) > 0 && os.Geteuid() == 0 {
		out, err := install(pkgs)
		if err != nil {
			return "installing " + strings.Join(pkgs, " ") + " failed: " + err.Error() + "\n" + out
		}
		pkgs = lacking()
	}
	if len(pkgs) > 0 {
		return "the guest needs these packages: apt-get install " + strings.Join(pkgs, " ")
	}
	return ""
})

func lacking() []string {
	var pkgs []string
	add := func(p string) {
		if !slices.Contains(pkgs, p) {
			pkgs = append(pkgs, p)
		}
	}
	for _, t := range tools {
		if _, err := lookPath(t.command); err != nil {
			add(t.pkg)
		}
	}
	// The guest's first process runs where there are no shared libraries.
	if p, err := lookPath("busybox"); err == nil && !static(p) {
		add("busybox-static")
	}
	for _, l := range libraries {
		if m, _ := filepath.Glob(l.glob); len(m) == 0 {
			add(l.pkg)
		}
	}
	return pkgs
}

// static tells whether a program needs no loader.
func static(file string) bool {
	f, err := elf.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	return !slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// lookPath also finds what is for root only.
func lookPath(name string) (string, error) {
	p, err := exec.LookPath(name)
	if err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if q, e := exec.LookPath(filepath.Join(dir, name)); e == nil {
			return q, nil
		}
	}
	return "", err
}

func install(pkgs []string) (string, error) {
	run := func(args ...string) (string, error) {
		cmd := exec.Command("apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	args := append([]string{"install", "-y", "-q", "--no-install-recommends"}, pkgs...)
	out, err := run(args...)
	if err == nil {
		return out, nil
	}
	// The lists of a fresh machine are empty or old.
	if out, err := run("update", "-q"); err != nil {
		return out, err
	}
	return run(args...)
}

func TestStatic(t *testing.T) {
	if static("/bin/sh") {
		t.Error("the shell was taken for a static program")
	}
	if static("need_test.go") {
		t.Error("a text was taken for a program")
	}
}

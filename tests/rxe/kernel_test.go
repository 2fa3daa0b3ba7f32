package rxe

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
)

//go:embed guest/init.sh
var initScript []byte

// modules are what the guest loads; what these depend on comes by itself. rxe
// computes ICRCs with the kernel's generic CRC-32: the accelerated module is left
// out because carry-less multiplication is dear under emulation.
var modules = []string{"virtio_pci", "9pnet_virtio", "9p", "veth", "dummy", "sch_netem", "sch_tbf", "sch_prio", "cls_u32",
	"crc32_generic", "rdma_rxe", "ib_uverbs", "rdma_ucm"}

// kernel is what QEMU boots.
type kernel struct {
	image, initramfs string
	version          string
}

// cacheDir is where the kernel is kept between runs.
func cacheDir(t *testing.T) string {
	t.Helper()
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	dir := filepath.Join(base, "railstore", "rxe")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// exclusive holds the lock file of the cache folder until the test ends: one
// guest at a time, one download at a time.
func exclusive(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // unlocks
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Log("waiting for another guest on this host to end")
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
	}
}

var kernelDependency = regexp.MustCompile(`(?m)^\s*Depends: (linux-image-(\S+))$`)

// fetchKernel gives Debian's kernel with an initramfs made for it, from the cache
// or anew. Nothing is installed.
func fetchKernel(t *testing.T, dir string) kernel {
	t.Helper()
	pkg, version, err := kernelPackage()
	if err != nil {
		t.Fatalf("which package holds Debian's kernel: %v", err)
	}
	h := sha256.New()
	fmt.Fprint(h, string(initScript), modules)
	k := kernel{image: filepath.Join(dir, "vmlinuz-"+version), version: version,
		initramfs: filepath.Join(dir, fmt.Sprintf("initramfs-%s-%x.gz", version, h.Sum(nil)[:6]))}
	if exists(k.image) && exists(k.initramfs) {
		return k
	}
	tmp, err := os.MkdirTemp(dir, "unpack")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(tmp)
	if err := k.build(tmp, pkg); err != nil {
		t.Fatalf("kernel %s: %v", pkg, err)
	}
	return k
}

func exists(p string) bool {
	_, err := os.Stat(p)
	return err == nil
}

// kernelPackage asks apt what linux-image-amd64 stands for, after fetching its
// lists when it does not know and may.
func kernelPackage() (pkg, version string, err error) {
	for try := range 2 {
		out, err := command("", "apt-cache", "depends", "linux-image-amd64")
		if m := kernelDependency.FindStringSubmatch(out); m != nil {
			return m[1], m[2], nil
		}
		if try == 1 || os.Geteuid() != 0 {
			return "", "", errors.Join(errors.New("apt does not know linux-image-amd64; apt-get update may help"), err)
		}
		if _, err := command("", "apt-get", "update", "-q"); err != nil {
			return "", "", err
		}
	}
	panic("unreachable")
}

// command runs a command and gives its output, which is part of the error too.
func command(dir, name string, args ...string) (string, error) {
	p, err := lookPath(name)
	if err != nil {
		return "", err
	}
	cmd := exec.Command(p, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// build downloads and unpacks the package into tmp and leaves the two files in
// the cache.
func (k kernel) build(tmp, pkg string) error {
	if _, err := command(tmp, "apt-get", "download", pkg); err != nil {
		return err
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(debs) != 1 {
		return fmt.Errorf("apt-get download left %d files", len(debs))
	}
	root := filepath.Join(tmp, "root")
	if _, err := command("", "dpkg", "-x", debs[0], root); err != nil {
		return err
	}
	if _, err := command("", "depmod", "-b", root, k.version); err != nil {
		return err
	}
	archive, err := k.archive(root)
	if err != nil {
		return err
	}
	// Renamed into place last, so that a cut run leaves nothing half-made.
	image, err := os.ReadFile(filepath.Join(root, "boot", "vmlinuz-"+k.version))
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		data []byte
	}{{k.image, image}, {k.initramfs, archive}} {
		part := filepath.Join(tmp, filepath.Base(f.name))
		if err := os.WriteFile(part, f.data, 0o644); err != nil {
			return err
		}
		if err := os.Rename(part, f.name); err != nil {
			return err
		}
	}
	return nil
}

// archive is the initramfs: busybox, the init script, the modules in the order
// in which they are to be loaded.
func (k kernel) archive(root string) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	c := &cpioWriter{w: z}
	busybox, err := lookPath("busybox")
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(busybox)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"bin", "dev", "modules"} {
		c.add(d, cpioDir, nil)
	}
	c.add("bin/busybox", cpioExec, b)
	c.add("init", cpioExec, initScript)
	var order []string
	for _, m := range modules {
		text, err := command("", "modprobe", "-d", root, "-S", k.version, "--show-depends", m)
		if err != nil {
			return nil, err
		}
		for l := range strings.Lines(text) {
			f := strings.Fields(l)
			if len(f) < 2 || f[0] != "insmod" { // "builtin NAME"
				continue
			}
			name := filepath.Base(f[1])
			if slices.Contains(order, name) {
				continue
			}
			b, err := os.ReadFile(f[1])
			if err != nil {
				return nil, err
			}
			order = append(order, name)
			c.add("modules/"+name, cpioFile, b)
		}
	}
	c.add("modules/order", cpioFile, []byte(strings.Join(order, "\n")+"\n"))
	if err := errors.Join(c.close(), z.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

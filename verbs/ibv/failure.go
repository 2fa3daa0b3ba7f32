//go:build cgo && linux

package ibv

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// kindOf is the sentinel of what a device answered.
func kindOf(e unix.Errno) error {
	switch e {
	case unix.EINVAL, unix.EFAULT, unix.ERANGE:
		return verbs.ErrInvalid
	case unix.ENOMEM, unix.EAGAIN, unix.ENOSPC, unix.EMFILE, unix.ENFILE:
		return verbs.ErrNoMemory
	case unix.EACCES, unix.EPERM:
		return verbs.ErrPermission
	case unix.EBUSY:
		return verbs.ErrBusy
	case unix.ENOSYS, unix.EOPNOTSUPP:
		return verbs.ErrNotSupported
	}
	return verbs.ErrDevice
}

// errnoOf is the errno that cgo took along with a null pointer. A provider that
// leaves none has failed all the same.
func errnoOf(err error) unix.Errno {
	if e, ok := err.(unix.Errno); ok && e != 0 {
		return e
	}
	return unix.EIO
}

// failed is the plain error of a verb.
func (d *device) failed(op string, e unix.Errno) error {
	return &verbs.Error{Op: op, Device: d.name, Kind: kindOf(e), Err: e}
}

// openFailed says why a device could not be opened: what the library answered,
// and what opening its file answers, because the library goes on to other files
// after EACCES and reports the last one's ENOENT.
func (d *Driver) openFailed(name, uverbs string, lib unix.Errno) error {
	file := d.opt.devDir() + "/" + uverbs
	own := tryOpen(file)
	who := fmt.Sprintf("as uid %d", os.Geteuid())
	kind, hint := verbs.ErrDevice, ""
	switch {
	case own == unix.EACCES || own == unix.EPERM || lib == unix.EACCES || lib == unix.EPERM:
		kind, hint = verbs.ErrPermission, "the user needs read and write access (often the group rdma), a container the device and its cgroup rule"
	case own == unix.ENOENT:
		kind, hint = verbs.ErrNotFound, "is the kernel module ib_uverbs loaded, and is "+d.opt.devDir()+" mounted in this container?"
	case lib == unix.ENODEV || lib == unix.ENXIO || own == unix.ENODEV || own == unix.ENXIO:
		hint = "the device has gone or is being reset"
	case lib == unix.EAGAIN || own == unix.EAGAIN || lib == unix.EBUSY:
		kind, hint = verbs.ErrBusy, "the device is not ready now: try again"
	case lib == unix.EMFILE || lib == unix.ENFILE || lib == unix.ENOMEM:
		kind, hint = verbs.ErrNoMemory, "see ulimit -n and ulimit -l"
	}
	text := fmt.Sprintf("libibverbs: %v", lib)
	args := []error{lib}
	if own != 0 {
		text += fmt.Sprintf("; opening %s itself %s: %v", file, who, own)
		args = append(args, own)
	} else {
		text += fmt.Sprintf("; opening %s itself %s works", file, who)
	}
	if s := describeFile(file); s != "" {
		text += " (" + s + ")"
	}
	if hint != "" {
		text += ": " + hint
	}
	return &verbs.Error{Op: "open_device", Device: "ibv:" + name, Kind: kind, Err: &causes{text, args}}
}

// causes is a text with the errnos that it tells of.
type causes struct {
	text string
	errs []error
}

func (c *causes) Error() string   { return c.text }
func (c *causes) Unwrap() []error { return c.errs }

func tryOpen(file string) unix.Errno {
	fd, err := unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return errnoOf(err)
	}
	_ = unix.Close(fd)
	return 0
}

func describeFile(file string) string {
	st, err := os.Stat(file)
	if err != nil {
		return ""
	}
	s := st.Mode().String()
	var u unix.Stat_t
	if unix.Stat(file, &u) == nil {
		s += fmt.Sprintf(", owner %d:%d", u.Uid, u.Gid)
	}
	return s
}

// registerFailed says what a registration needed and what the limit is.
func (d *device) registerFailed(n int, access verbs.Access, e unix.Errno) error {
	text := fmt.Sprintf("%v: %d bytes, %v", e, n, access)
	switch e {
	case unix.ENOMEM, unix.EAGAIN, unix.EPERM:
		text += "; " + memlock(n)
		if e != unix.EPERM {
			text += fmt.Sprintf("; the device has max_mr %d and max_mr_size %d", d.attr.MaxMR, d.attr.MaxMRSize)
		}
	case unix.EINVAL, unix.EFAULT:
		text += "; the memory is not mapped readable and writable, or the device does not take these rights"
	}
	kind := kindOf(e)
	if e == unix.EPERM { // some kernels say so when the limit is 0
		kind = verbs.ErrNoMemory
	}
	return &verbs.Error{Op: "reg_mr", Device: d.name, Kind: kind, Err: &causes{text, []error{e}}}
}

// memlock compares a need with RLIMIT_MEMLOCK, in the units of the commands that
// lift it.
func memlock(n int) string {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return fmt.Sprintf("RLIMIT_MEMLOCK is unknown: %v", err)
	}
	used := pinned()
	if r.Cur == unix.RLIM_INFINITY {
		return fmt.Sprintf("RLIMIT_MEMLOCK is unlimited, %d bytes are pinned: a limit of the device or of the cgroup was met", used)
	}
	need := (used + uint64(n) + 1023) / 1024
	hard := "unlimited"
	if r.Max != unix.RLIM_INFINITY {
		hard = fmt.Sprint(r.Max)
	}
	return fmt.Sprintf("RLIMIT_MEMLOCK is %d bytes (hard limit %s), %d are pinned: run `ulimit -l %d` (or unlimited) before the program, or set LimitMEMLOCK=%dK in its systemd unit",
		r.Cur, hard, used, need, need)
}

// pinned is what this process has pinned and locked so far, in bytes.
func pinned() (n uint64) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for l := range strings.Lines(string(b)) {
		for _, key := range []string{"VmPin:", "VmLck:"} {
			if rest, ok := strings.CutPrefix(l, key); ok {
				var kb uint64
				if _, err := fmt.Sscan(rest, &kb); err == nil {
					n += kb << 10
				}
			}
		}
	}
	return n
}

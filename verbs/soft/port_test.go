package soft

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/railstore/railstore/verbs"
)

const portEnv = "RS_SOFT_TEST_PORT"

// TestPortEvents takes the net device under a rail down and up again. It happens in
// a network namespace of its own, in a process of its own.
func TestPortEvents(t *testing.T) {
	run := func(flags uintptr) ([]byte, error) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), portEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: flags}
		if flags&syscall.CLONE_NEWUSER != 0 {
			ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
			cmd.SysProcAttr.UidMappings = ids
			ids = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
			cmd.SysProcAttr.GidMappings = ids
		}
		return cmd.CombinedOutput()
	}
	out, err := run(syscall.CLONE_NEWNET)
	if errors.Is(err, syscall.EPERM) {
		out, err = run(syscall.CLONE_NEWNET | syscall.CLONE_NEWUSER)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		if strings.Contains(os.Getenv("RS_REQUIRE"), "net") {
			t.Fatalf("no network namespace: %v", err)
		}
		t.Skipf("no network namespace: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// portMain is the process in the namespace. Loopback is its only net device.
func portMain() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	addr, err := netlink.ParseAddr("10.9.8.7/32")
	if err != nil {
		return err
	}
	if err := netlink.AddrAdd(lo, addr); err != nil {
		return err
	}
	ctx, err := verbs.Open(New(Options{}), "10.9.8.7:4791")
	if err != nil {
		return err
	}
	expect := func(what string, do func() error, want []verbs.EventType, state verbs.PortState) error {
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		for _, w := range want {
			select {
			case e := <-ctx.Events():
				if e.Type != w || e.Port != 1 {
					return fmt.Errorf("%s: event %v of port %d, want %v", what, e.Type, e.Port, w)
				}
			case <-time.After(5 * time.Second):
				return fmt.Errorf("%s: no event, want %v", what, w)
			}
		}
		p, err := ctx.Port(1)
		if err != nil || p.State != state || p.UDPPort != 4791 {
			return fmt.Errorf("%s: the port is %+v, %v; want %v", what, p, err, state)
		}
		return nil
	}
	none := func() error { return nil }
	err = errors.Join(
		expect("open", none, nil, verbs.PortActive),
		expect("down", func() error { return netlink.LinkSetDown(lo) }, []verbs.EventType{verbs.EventPortError}, verbs.PortDown),
		expect("up", func() error { return netlink.LinkSetUp(lo) }, []verbs.EventType{verbs.EventPortActive}, verbs.PortActive),
		expect("address gone", func() error { return netlink.AddrDel(lo, addr) }, []verbs.EventType{verbs.EventGIDChange, verbs.EventPortError}, verbs.PortDown),
		expect("address back", func() error { return netlink.AddrAdd(lo, addr) }, []verbs.EventType{verbs.EventGIDChange, verbs.EventPortActive}, verbs.PortActive),
	)
	// Something else that changes is no event.
	other, perr := netlink.ParseAddr("10.9.8.8/32")
	err = errors.Join(err, perr, netlink.AddrAdd(lo, other))
	select {
	case e := <-ctx.Events():
		err = errors.Join(err, fmt.Errorf("event %v for another address", e.Type))
	case <-time.After(50 * time.Millisecond):
	}
	return errors.Join(err, ctx.Close())
}

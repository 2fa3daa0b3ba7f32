//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// device is an open device.
type device struct {
	lib     *C.struct_rs_lib
	ctx     *C.struct_ab_context
	channel *C.struct_ab_comp_channel
	name    string // ibv:NAME
	sys     string // the device's folder in sysfs
	attr    verbs.DeviceAttr

	comp, async *eventFile
	events      chan verbs.AsyncEvent
	lost        atomic.Uint64 // events that nobody took
	running     sync.WaitGroup

	live live

	mu     sync.Mutex // guards what follows
	cqs    map[uintptr]*cq
	nextCQ uintptr
	deaf   error // why no completion event comes any more
}

// live counts the handles that are open.
type live struct{ pds, mrs, cqs, qps atomic.Int64 }

// newDevice takes over an open context, also when it fails.
func newDevice(lib *C.struct_rs_lib, ctx *C.struct_ab_context, name, sys string) (*device, error) {
	d := &device{lib: lib, ctx: ctx, name: "ibv:" + name, sys: sys, cqs: map[uintptr]*cq{}, events: make(chan verbs.AsyncEvent, 1024)}
	if err := d.prepare(name); err != nil {
		return nil, errors.Join(err, d.release())
	}
	d.running.Go(d.runCompletions)
	d.running.Go(d.runEvents)
	return d, nil
}

func (d *device) prepare(name string) error {
	if err := d.readAttr(name); err != nil {
		return err
	}
	channel, err := C.rs_create_comp_channel(d.lib, d.ctx)
	if channel == nil {
		return d.failed("create_comp_channel", errnoOf(err))
	}
	d.channel = channel
	if d.comp, err = newEventFile(int(channel.fd), "completion channel"); err != nil {
		return &verbs.Error{Op: "create_comp_channel", Device: d.name, Kind: verbs.ErrDevice, Err: err}
	}
	if d.async, err = newEventFile(int(d.ctx.async_fd), "asynchronous events"); err != nil {
		return &verbs.Error{Op: "open_device", Device: d.name, Kind: verbs.ErrDevice, Err: err}
	}
	return nil
}

// release gives back what prepare made, and the context.
func (d *device) release() error {
	var errs []error
	for _, f := range []*eventFile{d.comp, d.async} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	d.running.Wait()
	if d.channel != nil {
		if e := C.rs_destroy_comp_channel(d.lib, d.channel); e != 0 {
			errs = append(errs, d.failed("destroy_comp_channel", unix.Errno(e)))
		}
	}
	if e := C.rs_close_device(d.lib, d.ctx); e != 0 {
		errs = append(errs, d.failed("close_device", unix.Errno(e)))
	}
	return errors.Join(errs...)
}

// Close closes the device; the front has seen to it that it has no children.
func (d *device) Close() error {
	err := d.release()
	close(d.events)
	if l := &d.live; l.pds.Load()|l.mrs.Load()|l.cqs.Load()|l.qps.Load() != 0 {
		err = errors.Join(err, verbs.Errorf(verbs.ErrBusy, "close_device", d.name, "%d PDs, %d MRs, %d CQs and %d QPs were left open",
			l.pds.Load(), l.mrs.Load(), l.cqs.Load(), l.qps.Load()))
	}
	return err
}

func (d *device) readAttr(name string) error {
	var a C.struct_ab_device_attr
	if e := C.rs_query_device(d.lib, d.ctx, &a); e != 0 {
		return d.failed("query_device", unix.Errno(e))
	}
	d.attr = verbs.DeviceAttr{Name: name, Firmware: text(a.fw_ver[:]), NodeGUID: uint64(a.node_guid), VendorID: uint32(a.vendor_id),
		Ports: int(a.phys_port_cnt), MaxQP: int(a.max_qp), MaxQPWR: int(a.max_qp_wr), MaxSGE: int(a.max_sge),
		MaxCQ: int(a.max_cq), MaxCQE: int(a.max_cqe), MaxMR: int(a.max_mr), MaxMRSize: uint64(a.max_mr_size), MaxPD: int(a.max_pd),
		MaxRDAtomic: int(min(a.max_qp_rd_atom, a.max_qp_init_rd_atom))}
	if r := int(a.max_sge_rd); r > 0 { // some devices take fewer elements for a READ
		d.attr.MaxSGE = min(d.attr.MaxSGE, r)
	}
	return nil
}

// Query is the limits of the device. The inline size is known of a QP only.
func (d *device) Query() (verbs.DeviceAttr, error) { return d.attr, nil }

// Progress has nothing to do: the device works by itself.
func (d *device) Progress() bool { return false }

// Events are the device's asynchronous events.
func (d *device) Events() <-chan verbs.AsyncEvent { return d.events }

// AllocPD allocates a protection domain.
func (d *device) AllocPD() (verbs.DriverPD, error) {
	p, err := C.rs_alloc_pd(d.lib, d.ctx)
	if p == nil {
		return nil, d.failed("alloc_pd", errnoOf(err))
	}
	d.live.pds.Add(1)
	return &pd{dev: d, pd: p}, nil
}

// eventFile is a file of events that the library reads, in Go's netpoller. It is
// a second descriptor of the same file, so that both sides close their own.
type eventFile struct {
	f    *os.File
	conn syscall.RawConn
}

func newEventFile(fd int, what string) (*eventFile, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	f := os.NewFile(uintptr(own), what)
	conn, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{}) // fails on a file that cannot be polled
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", what, err), f.Close())
	}
	return &eventFile{f, conn}, nil
}

// each calls next whenever there is something to read, until the file is closed
// or next answers with another errno than EAGAIN. EINTR is tried again.
func (e *eventFile) each(next func() unix.Errno) {
	for {
		var last unix.Errno
		err := e.conn.Read(func(uintptr) bool {
			for {
				if last = next(); last != 0 && last != unix.EINTR {
					return last != unix.EAGAIN
				}
			}
		})
		if err != nil || last != unix.EAGAIN {
			return
		}
	}
}

// Close ends each.
func (e *eventFile) Close() error { return e.f.Close() }

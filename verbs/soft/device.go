package soft

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/udp"
	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// device is an open device: one socket and everything that lives on it.
type device struct {
	drv       *Driver
	opt       Options
	name      string
	addr      netip.AddrPort
	attr      verbs.DeviceAttr
	activeMTU int
	gids      []verbs.GIDEntry
	port      portWatch
	start     time.Time

	sock   *udp.Socket
	waiter *udp.Waiter
	mrs    *mrTable
	qps    *qpTable
	peers  *peers
	spare  spares
	events chan verbs.AsyncEvent

	// rx is the right to take packets off the socket. It guards what follows.
	rx           sync.Mutex
	recv         *udp.Receiver
	reply        *transmit
	packet       wire.Packet
	held         []*qp // have an answer held back
	firstScanned int
	closed       bool

	poll pollers
	spin int64 // how long the device's goroutine polls after traffic

	timerMu   sync.Mutex
	nextScan  atomic.Int64 // when the timers of the QPs are to be looked at; written under timerMu
	lentUntil int64        // when the device's goroutine looks after the timers again; guarded by timerMu

	closing atomic.Bool
	done    chan struct{}
	once    sync.Once

	mu  sync.Mutex // guards the counts
	pds int
	cqs int

	counters counters

	// player plays the driver's fault script; faults is it while there is something
	// to play, else nil: all that a device without faults pays for them.
	player *player
	faults atomic.Pointer[player]
}

func openDevice(drv *Driver, name string, addr netip.AddrPort) (*device, error) {
	d := &device{drv: drv, opt: drv.opt, name: name, start: time.Now().Add(-time.Second),
		events: make(chan verbs.AsyncEvent, 1024), done: make(chan struct{})}
	d.nextScan.Store(math.MaxInt64)
	if !d.opt.NoSpin {
		d.spin = spinTime
	}
	sock, err := udp.Open(udp.Config{Addr: addr, NoGSO: d.opt.NoGSO, NoGRO: d.opt.NoGRO, NoEqualTail: d.opt.NoEqualTail,
		RecvBuffer: d.opt.RecvBuffer, SendBuffer: d.opt.SendBuffer})
	if err != nil {
		return nil, err
	}
	d.sock, d.addr = sock, sock.Addr()
	undo := func(err error) (*device, error) {
		if d.waiter != nil {
			err = errors.Join(err, d.waiter.Close())
		}
		if d.recv != nil {
			err = errors.Join(err, d.recv.Close())
		}
		d.port.close()
		return nil, errors.Join(err, sock.Close())
	}
	if err := d.describe(addr.Addr()); err != nil {
		return undo(err)
	}
	d.port.watch(d)
	if d.recv, err = sock.NewReceiver(recvBatch); err != nil {
		return undo(err)
	}
	if d.waiter, err = sock.NewWaiter(d.port.fd()); err != nil {
		return undo(err)
	}
	d.peers = newPeers(d.budget() / d.activeMTU)
	d.mrs, d.qps = newMRTable(d.attr.MaxMR), newQPTable(d.attr.MaxQP)
	d.reply = newTransmit()
	d.player = &player{dev: d, script: drv.script}
	go d.run() // ends in Close, which waits for done
	return d, nil
}

// describe fills in what the device says of itself. The address keeps its zone
// here, which the socket's does not.
func (d *device) describe(a netip.Addr) error {
	l, ok := linkOf(a)
	if !ok {
		return verbs.Errorf(verbs.ErrNotFound, "open_device", d.name, "no net device of this host has %v", a)
	}
	d.port.link, d.port.addr = l, a
	d.attr = d.opt.caps()
	d.attr.Name = d.name
	if d.attr.NodeGUID == 0 {
		d.attr.NodeGUID = nodeGUID(d.addr)
	}
	d.activeMTU = verbs.MTUFor(l.mtu)
	if d.activeMTU == 0 {
		return verbs.Errorf(verbs.ErrNotSupported, "open_device", d.name, "net device %s has an MTU of %d: RoCE needs at least 340", l.name, l.mtu)
	}
	if m := d.opt.ActiveMTU; m != 0 {
		if !verbs.ValidMTU(m) {
			return verbs.Errorf(verbs.ErrInvalid, "open_device", d.name, "active MTU %d: want 256, 512, 1024, 2048 or 4096", m)
		}
		d.activeMTU = m
	}
	gid := verbs.GIDFromAddr(a.WithZone(""))
	d.gids = d.opt.GIDs
	if d.gids == nil {
		// As on adapters, an address has an entry for each version of RoCE, the
		// older one first. This device speaks the newer one only.
		d.gids = []verbs.GIDEntry{
			{Index: 0, GID: gid, Type: verbs.GIDTypeRoCEv1, NetDev: l.name},
			{Index: 1, GID: gid, Type: verbs.GIDTypeRoCEv2, NetDev: l.name},
		}
	}
	return nil
}

// gidTable is the GID table as it is now: the fault gid_move moves every entry to an
// index behind the last one.
func (d *device) gidTable() []verbs.GIDEntry {
	if d.drv.script.moved.Load() == 0 {
		return d.gids
	}
	out, by := slices.Clone(d.gids), 0
	for _, g := range out {
		by = max(by, g.Index+1)
	}
	for i := range out {
		out[i].Index += by
	}
	return out
}

// checkSource says why packets cannot be sent from a GID index.
func (d *device) checkSource(index int) error {
	for _, g := range d.gidTable() {
		if g.Index != index || g.GID.IsZero() {
			continue
		}
		if g.Type != verbs.GIDTypeRoCEv2 {
			return fmt.Errorf("source GID index %d is %v: a soft device sends RoCE v2 only, take an index of that type", index, g.Type)
		}
		return nil
	}
	return fmt.Errorf("source GID index %d: the table has no such entry", index)
}

// budget is how many bytes may be unacknowledged towards one peer. The receive
// buffer that they wait in is the peer's; ours is the best guess at it. The kernel
// counts more than the payload against it: about double for packets of 4096 bytes.
func (d *device) budget() int { return d.sock.Features().RecvBuffer / 4 }

// window is the same for one QP.
func (d *device) window() int {
	if d.opt.Window > 0 {
		return d.opt.Window
	}
	return min(defaultWindow, d.budget())
}

const defaultWindow = 1 << 20

// now is the clock of the timers, in nanoseconds; never 0.
func (d *device) now() int64 { return int64(time.Since(d.start)) }

// Query is the limits of the device.
func (d *device) Query() (verbs.DeviceAttr, error) { return d.attr, nil }

// QueryPort is the port as it is now.
func (d *device) QueryPort(uint8) (verbs.PortAttr, error) {
	l, here := d.port.current()
	a := verbs.PortAttr{State: verbs.PortDown, MaxMTU: 4096, ActiveMTU: d.activeMTU, LinkLayer: verbs.LinkEthernet,
		PKeys: 1, Gbps: l.gbps(), UDPPort: d.addr.Port()}
	if here {
		a.State = l.state()
	}
	if d.drv.script.down.Load() > 0 {
		a.State = verbs.PortDown
	}
	for _, g := range d.gidTable() {
		a.GIDs = max(a.GIDs, g.Index+1)
	}
	return a, nil
}

// GIDs is the table without its empty entries.
func (d *device) GIDs(uint8) ([]verbs.GIDEntry, error) {
	table := d.gidTable()
	out := make([]verbs.GIDEntry, 0, len(table))
	for _, g := range table {
		if !g.GID.IsZero() {
			out = append(out, g)
		}
	}
	return out, nil
}

// PKeys is the default partition alone.
func (d *device) PKeys(uint8) ([]uint16, error) { return []uint16{0xffff}, nil }

// AllocPD allocates a protection domain.
func (d *device) AllocPD() (verbs.DriverPD, error) {
	if err := d.acquire(&d.pds, d.attr.MaxPD, "alloc_pd", "max_pd", "protection domains"); err != nil {
		return nil, err
	}
	return &pd{dev: d, qps: map[*qp]struct{}{}}, nil
}

// CreateCQ creates a completion queue.
func (d *device) CreateCQ(depth int) (verbs.DriverCQ, error) {
	if f := d.faults.Load(); f != nil {
		if err := f.script.fails(opCreateCQ, "create_cq", d.name); err != nil {
			return nil, err
		}
	}
	if err := d.acquire(&d.cqs, d.attr.MaxCQ, "create_cq", "max_cq", "completion queues"); err != nil {
		return nil, err
	}
	return newCQ(d, depth), nil
}

func (d *device) acquire(n *int, limit int, op, name, what string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if *n >= limit {
		return verbs.Errorf(verbs.ErrNoMemory, op, d.name, "%d of %s %d %s in use: %w", *n, name, limit, what, unix.ENOMEM)
	}
	*n++
	return nil
}

func (d *device) release(n *int) {
	d.mu.Lock()
	*n--
	d.mu.Unlock()
}

// Events are the device's asynchronous events.
func (d *device) Events() <-chan verbs.AsyncEvent { return d.events }

// emit puts an event out. When nobody takes them the newest are lost and counted.
func (d *device) emit(e verbs.AsyncEvent) {
	select {
	case d.events <- e:
	default:
		d.counters.eventsLost.Add(1)
	}
}

// Close closes the device; the front has seen to it that it has no children.
func (d *device) Close() error {
	var err error
	d.once.Do(func() {
		// First, so that nobody else touches what is closed now.
		d.drv.script.leave(d.player)
		d.closing.Store(true)
		d.waiter.Kick()
		<-d.done
		// A last poller may still be in Progress.
		d.rx.Lock()
		d.closed = true
		err = d.recv.Close()
		d.rx.Unlock()
		d.port.close()
		d.timerMu.Lock()
		err = errors.Join(err, d.waiter.Close(), d.sock.Close())
		d.timerMu.Unlock()
		close(d.events)
		d.drv.forget(d)
	})
	return err
}

package verbs

import "context"

// A Driver is what a provider gives. The front types check arguments, states,
// masks and children; a driver does the work and checks what the wire brings.
// Unless said otherwise a method may be called from any goroutine.
type Driver interface {
	// Name is the provider's word in device specs: "soft", "ibv".
	Name() string
	// Devices lists what Open would accept on this host, where that can be
	// known beforehand.
	Devices() ([]DeviceInfo, error)
	// Open opens the device that name tells in the provider's own spelling.
	Open(name string) (DriverContext, error)
}

// DeviceInfo is one device as a listing shows it.
type DeviceInfo struct {
	Name     string
	NodeGUID uint64
	Ports    int
}

// DeviceAttr are the limits of a device (IBTA 11.2.1.2).
type DeviceAttr struct {
	Name        string
	Firmware    string
	NodeGUID    uint64
	VendorID    uint32
	Ports       int
	MaxQP       int
	MaxQPWR     int
	MaxSGE      int
	MaxCQ       int
	MaxCQE      int
	MaxMR       int
	MaxMRSize   uint64
	MaxPD       int
	MaxRDAtomic int // outstanding READs and atomics a QP may have, either way
	MaxInline   int
}

// DriverContext is an open device.
type DriverContext interface {
	Query() (DeviceAttr, error)
	QueryPort(port uint8) (PortAttr, error)
	// GIDs is the table of a port without its empty entries.
	GIDs(port uint8) ([]GIDEntry, error)
	PKeys(port uint8) ([]uint16, error)
	AllocPD() (DriverPD, error)
	CreateCQ(depth int) (DriverCQ, error)
	// Events is closed when the context is.
	Events() <-chan AsyncEvent
	// Progress lets a goroutine that waits actively do the device's work (a
	// software device receives packets in it). It never blocks and reports
	// whether anything was done. Devices that work by themselves return false.
	Progress() bool
	Close() error
}

// DriverPD is a protection domain.
type DriverPD interface {
	// Register makes mem known to the device. Addresses are mem's own.
	Register(mem []byte, access Access) (DriverMR, error)
	CreateQP(init DriverQPInit) (DriverQP, error)
	Close() error
}

// DriverMR is a registered piece of memory.
type DriverMR interface {
	LKey() uint32
	RKey() uint32
	Close() error
}

// DriverCQ is a completion queue.
type DriverCQ interface {
	// Poll takes up to len(wcs) completions without blocking. The error is for
	// a broken queue (overrun), not for a bad completion.
	Poll(wcs []WC) (int, error)
	// Arm asks for one event at the next completion (only a solicited one or an
	// error when solicited is set). The caller polls once more afterwards and
	// then waits.
	Arm(solicited bool) error
	// Wait blocks until the event that Arm asked for, or until ctx ends, or
	// until the queue is closed (ErrClosed).
	Wait(ctx context.Context) error
	// Wake ends a Wait that is under way, or the next one, as an event would. It does not
	// block.
	Wake()
	Close() error
}

// DriverQPInit is what a driver needs to create an RC QP.
type DriverQPInit struct {
	SendCQ, RecvCQ DriverCQ
	Cap            QPCap
	SigAll         bool
}

// DriverQP is an RC queue pair.
type DriverQP interface {
	QPN() uint32
	// Cap is what was granted: at least what was asked for.
	Cap() QPCap
	// Modify applies the attributes that mask names. The front has checked that
	// the state table allows it.
	Modify(attr *QPAttr, mask QPMask) error
	Query() (QPAttr, error)
	// PostSend queues the requests and returns how many were taken; the error
	// is about the first that was not. Nothing of wrs or sges is kept. Calls on
	// one QP are serialised by the caller.
	PostSend(wrs []SendWR, sges []SGE) (int, error)
	PostRecv(wrs []RecvWR, sges []SGE) (int, error)
	// Close destroys the QP. After it returns no packet of the peer reaches
	// memory through it and no completion of it enters a CQ.
	Close() error
}

// QPStats are counters of one QP that a driver may offer (see QP.Stats).
type QPStats struct {
	Requests                     uint64 // posted send requests
	PacketsSent, PacketsReceived uint64
	BytesSent, BytesReceived     uint64 // payload
	Retransmits                  uint64 // packets sent again
	Timeouts                     uint64
	NAKsSent, NAKsReceived       uint64
	RNRNAKs                      uint64
	Duplicates                   uint64
}

// StatsReporter is implemented by driver QPs that count.
type StatsReporter interface{ Stats() QPStats }

package soft

import (
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft/internal/rc"
)

// Identification is a policy for the IPv4 identifications that the ICRC of a
// received packet may be right with.
type Identification uint8

const (
	// IDByPeer is IDTrain for peers that are soft devices and IDAny for others.
	IDByPeer Identification = iota
	// IDTrain takes what a train of a UDP socket can have: 0 to 63.
	IDTrain
	// IDAny takes any.
	IDAny
)

// Options of a driver's devices. The zero value is right for ordinary use.
type Options struct {
	// Caps replace the limits of the device where they are not zero.
	Caps verbs.DeviceAttr
	// GIDs replace the GID table. Entries that are not of the device's address
	// can be asked for but lead nowhere, as on a misconfigured host.
	GIDs []verbs.GIDEntry
	// ActiveMTU replaces the path MTU that follows from the net device.
	ActiveMTU int
	// NoGSO, NoGRO and NoEqualTail refuse segmentation on the way out, merging
	// on the way in, and trains of packets that all have one size.
	NoGSO, NoGRO, NoEqualTail bool
	// Window is how many bytes a QP may have unacknowledged; 0: 1 MiB, or less
	// where the socket's receive buffer is small.
	Window int
	// RecvBuffer and SendBuffer are asked for at the socket; 0: 16 MiB.
	RecvBuffer, SendBuffer int
	// Identification is the policy of the ICRC check.
	Identification Identification
	// NoSpin keeps the device's goroutine from polling the socket for a moment
	// after traffic before it sleeps.
	NoSpin bool
	// Faults are the script of what goes wrong. Open fails with ErrInvalid when one
	// is wrong; Driver.AddFault adds more.
	Faults []Fault

	// loseSent drops packets instead of sending them; for tests.
	loseSent func(*rc.Packet) bool
}

// caps are the limits of a device: those of common adapters where that means
// anything in software.
func (o *Options) caps() verbs.DeviceAttr {
	a := verbs.DeviceAttr{
		Firmware: "soft", Ports: 1,
		MaxQP: 16384, MaxQPWR: 16384, MaxSGE: 30, MaxCQ: 16384, MaxCQE: 1 << 20,
		MaxMR: 65536, MaxMRSize: 1 << 40, MaxPD: 4096, MaxRDAtomic: 16,
	}
	set := func(dst *int, v int) {
		if v > 0 {
			*dst = v
		}
	}
	c := &o.Caps
	set(&a.MaxQP, c.MaxQP)
	set(&a.MaxQPWR, c.MaxQPWR)
	set(&a.MaxSGE, c.MaxSGE)
	set(&a.MaxCQ, c.MaxCQ)
	set(&a.MaxCQE, c.MaxCQE)
	set(&a.MaxMR, c.MaxMR)
	set(&a.MaxPD, c.MaxPD)
	set(&a.MaxRDAtomic, c.MaxRDAtomic)
	if c.MaxMRSize > 0 {
		a.MaxMRSize = c.MaxMRSize
	}
	if c.Firmware != "" {
		a.Firmware = c.Firmware
	}
	if c.NodeGUID != 0 {
		a.NodeGUID = c.NodeGUID
	}
	if c.VendorID != 0 {
		a.VendorID = c.VendorID
	}
	return a
}

package verbs

import (
	"fmt"
	"strings"
)

// QPState (IBTA 10.3.1).
type QPState uint8

const (
	QPReset QPState = iota
	QPInitState
	QPRTR
	QPRTS
	QPSQD
	QPSQE
	QPErr
)

var qpStateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

func (s QPState) String() string {
	if int(s) < len(qpStateNames) {
		return qpStateNames[s]
	}
	return fmt.Sprintf("qp state %d", uint8(s))
}

// QPMask says which attributes of a QPAttr a Modify sets.
type QPMask uint32

const (
	MaskState QPMask = 1 << iota
	MaskPort
	MaskPKeyIndex
	MaskAccess
	MaskPathMTU
	MaskAV
	MaskDestQPN
	MaskRQPSN
	MaskMaxDestRDAtomic
	MaskMinRNRTimer
	MaskTimeout
	MaskRetryCount
	MaskRNRRetry
	MaskSQPSN
	MaskMaxRDAtomic
)

var maskNames = [...]string{"state", "port", "pkey_index", "access", "path_mtu", "av", "dest_qpn", "rq_psn", "max_dest_rd_atomic", "min_rnr_timer", "timeout", "retry_cnt", "rnr_retry", "sq_psn", "max_rd_atomic"}

func (m QPMask) String() string {
	var out []string
	for i, n := range maskNames {
		if m&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ",")
}

// AV is the address vector of a connected QP (IBTA 11.2.2.1).
type AV struct {
	DGID         GID
	SGIDIndex    int
	DLID         uint16
	SL           uint8
	TrafficClass uint8
	HopLimit     uint8
	FlowLabel    uint32 // 20 bits
	UDPPort      uint16 // destination port of a soft peer; 0 means 4791
}

// QPAttr are the modifiable attributes of a QP.
type QPAttr struct {
	State           QPState
	Port            uint8
	PKeyIndex       uint16
	Access          Access // remote rights the peer gets on this QP
	PathMTU         int    // bytes
	AV              AV
	DestQPN         uint32
	RQPSN           uint32
	MaxDestRDAtomic int
	MinRNRTimer     uint8 // code of IBTA table 45; 12 is 0.64 ms
	Timeout         uint8 // local ACK timeout, 4.096 µs × 2^n; 0 is never
	RetryCount      uint8 // 0 to 7
	RNRRetry        uint8 // 0 to 6; 7 is for ever
	SQPSN           uint32
	MaxRDAtomic     int
}

// QPCap are the queue sizes of a QP.
type QPCap struct {
	MaxSendWR, MaxRecvWR   int
	MaxSendSGE, MaxRecvSGE int
	MaxInline              int
}

// transition is a row of the RC part of the state table (IBTA 11.2.5.2, as
// rdma-core has it).
type transition struct{ required, optional QPMask }

var rcTable = map[[2]QPState]transition{
	{QPReset, QPInitState}: {MaskPKeyIndex | MaskPort | MaskAccess, 0},
	{QPInitState, QPInitState}: {0,
		MaskPKeyIndex | MaskPort | MaskAccess},
	{QPInitState, QPRTR}: {MaskAV | MaskPathMTU | MaskDestQPN | MaskRQPSN | MaskMaxDestRDAtomic | MaskMinRNRTimer,
		MaskAccess | MaskPKeyIndex},
	{QPRTR, QPRTS}: {MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskSQPSN | MaskMaxRDAtomic,
		MaskAccess | MaskMinRNRTimer},
	{QPRTS, QPRTS}: {0, MaskAccess | MaskMinRNRTimer},
	{QPRTS, QPSQD}: {0, 0},
	{QPSQD, QPSQD}: {0, MaskAccess | MaskMinRNRTimer | MaskTimeout | MaskRetryCount | MaskRNRRetry | MaskMaxRDAtomic | MaskMaxDestRDAtomic | MaskAV | MaskPKeyIndex | MaskPort},
	{QPSQD, QPRTS}: {0, MaskAccess | MaskMinRNRTimer},
}

// checkTransition says in words what is wrong with a Modify, or nil.
func checkTransition(from, to QPState, mask QPMask) error {
	mask &^= MaskState
	if to == QPReset || to == QPErr {
		if mask != 0 {
			return fmt.Errorf("%v to %v takes no attributes, got %v", from, to, mask)
		}
		return nil
	}
	t, ok := rcTable[[2]QPState{from, to}]
	if !ok {
		return fmt.Errorf("no transition from %v to %v", from, to)
	}
	if need := t.required &^ mask; need != 0 {
		return fmt.Errorf("%v to %v also needs %v", from, to, need)
	}
	if bad := mask &^ (t.required | t.optional); bad != 0 {
		return fmt.Errorf("%v to %v does not take %v", from, to, bad)
	}
	return nil
}

// checkAttr checks the values that mask names.
func checkAttr(a *QPAttr, mask QPMask, d DeviceAttr) error {
	type check struct {
		bit  QPMask
		ok   bool
		text string
	}
	for _, c := range []check{
		{MaskPort, a.Port >= 1 && int(a.Port) <= d.Ports, fmt.Sprintf("port %d: the device has 1 to %d", a.Port, d.Ports)},
		{MaskPathMTU, ValidMTU(a.PathMTU), fmt.Sprintf("path MTU %d: want 256, 512, 1024, 2048 or 4096", a.PathMTU)},
		{MaskAV, a.AV.FlowLabel < 1<<20, fmt.Sprintf("flow label %#x has more than 20 bits", a.AV.FlowLabel)},
		{MaskDestQPN, a.DestQPN < 1<<24, fmt.Sprintf("destination QPN %#x has more than 24 bits", a.DestQPN)},
		{MaskRQPSN, a.RQPSN < 1<<24, fmt.Sprintf("receive PSN %#x has more than 24 bits", a.RQPSN)},
		{MaskSQPSN, a.SQPSN < 1<<24, fmt.Sprintf("send PSN %#x has more than 24 bits", a.SQPSN)},
		{MaskMaxDestRDAtomic, a.MaxDestRDAtomic >= 0 && a.MaxDestRDAtomic <= d.MaxRDAtomic, fmt.Sprintf("max_dest_rd_atomic %d: the device allows 0 to %d", a.MaxDestRDAtomic, d.MaxRDAtomic)},
		{MaskMaxRDAtomic, a.MaxRDAtomic >= 0 && a.MaxRDAtomic <= d.MaxRDAtomic, fmt.Sprintf("max_rd_atomic %d: the device allows 0 to %d", a.MaxRDAtomic, d.MaxRDAtomic)},
		{MaskMinRNRTimer, a.MinRNRTimer < 32, fmt.Sprintf("min_rnr_timer %d: want 0 to 31", a.MinRNRTimer)},
		{MaskTimeout, a.Timeout < 32, fmt.Sprintf("timeout %d: want 0 to 31", a.Timeout)},
		{MaskRetryCount, a.RetryCount < 8, fmt.Sprintf("retry_cnt %d: want 0 to 7", a.RetryCount)},
		{MaskRNRRetry, a.RNRRetry < 8, fmt.Sprintf("rnr_retry %d: want 0 to 7", a.RNRRetry)},
	} {
		if mask&c.bit != 0 && !c.ok {
			return fmt.Errorf("%s", c.text)
		}
	}
	return nil
}

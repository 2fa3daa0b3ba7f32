//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// maskBits are the library's bits for ours.
var maskBits = []struct {
	our verbs.QPMask
	lib C.int
}{
	{verbs.MaskState, C.AB_QP_STATE}, {verbs.MaskPort, C.AB_QP_PORT}, {verbs.MaskPKeyIndex, C.AB_QP_PKEY_INDEX},
	{verbs.MaskAccess, C.AB_QP_ACCESS_FLAGS}, {verbs.MaskPathMTU, C.AB_QP_PATH_MTU}, {verbs.MaskAV, C.AB_QP_AV},
	{verbs.MaskDestQPN, C.AB_QP_DEST_QPN}, {verbs.MaskRQPSN, C.AB_QP_RQ_PSN}, {verbs.MaskMaxDestRDAtomic, C.AB_QP_MAX_DEST_RD_ATOMIC},
	{verbs.MaskMinRNRTimer, C.AB_QP_MIN_RNR_TIMER}, {verbs.MaskTimeout, C.AB_QP_TIMEOUT}, {verbs.MaskRetryCount, C.AB_QP_RETRY_CNT},
	{verbs.MaskRNRRetry, C.AB_QP_RNR_RETRY}, {verbs.MaskSQPSN, C.AB_QP_SQ_PSN}, {verbs.MaskMaxRDAtomic, C.AB_QP_MAX_QP_RD_ATOMIC},
}

// Modify applies the attributes that mask names.
func (q *qp) Modify(attr *verbs.QPAttr, mask verbs.QPMask) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.qp == nil {
		return errQPClosed
	}
	if err := q.leaveReset(attr, mask); err != nil {
		return err
	}
	port := q.port
	if mask&verbs.MaskPort != 0 {
		port = attr.Port
	}
	a := C.struct_ab_qp_attr{qp_state: C.int(attr.State), path_mtu: C.int(mtuCode(attr.PathMTU)), rq_psn: C.uint32_t(attr.RQPSN), sq_psn: C.uint32_t(attr.SQPSN),
		dest_qp_num: C.uint32_t(attr.DestQPN), qp_access_flags: C.uint(accessFlags(attr.Access)), pkey_index: C.uint16_t(attr.PKeyIndex),
		max_rd_atomic: C.uint8_t(min(attr.MaxRDAtomic, 255)), max_dest_rd_atomic: C.uint8_t(min(attr.MaxDestRDAtomic, 255)),
		min_rnr_timer: C.uint8_t(attr.MinRNRTimer), port_num: C.uint8_t(attr.Port), timeout: C.uint8_t(attr.Timeout),
		retry_cnt: C.uint8_t(attr.RetryCount), rnr_retry: C.uint8_t(attr.RNRRetry)}
	if mask&verbs.MaskAV != 0 {
		if err := q.address(&a.ah_attr, &attr.AV, port); err != nil {
			return err
		}
	}
	var bits C.int
	for _, m := range maskBits {
		if mask&m.our != 0 {
			bits |= m.lib
		}
	}
	if e := unix.Errno(C.rs_modify_qp(q.dev.lib, q.qp, &a, bits)); e != 0 {
		return &verbs.Error{Op: "modify_qp", Device: q.dev.name, Port: port, QPN: q.qpn, Kind: kindOf(e),
			Err: &causes{q.dev.explainModify(attr, mask, &a, port, e), []error{e}}}
	}
	q.port = port
	if mask&verbs.MaskState != 0 {
		q.state = attr.State
	}
	return nil
}

// leaveReset takes a QP that is to go from RESET to ERR through INIT: Linux has
// no such step in its table, IBTA has (10.3.1).
func (q *qp) leaveReset(attr *verbs.QPAttr, mask verbs.QPMask) error {
	if q.state != verbs.QPReset || mask&verbs.MaskState == 0 || attr.State != verbs.QPErr {
		return nil
	}
	a := C.struct_ab_qp_attr{qp_state: C.int(verbs.QPInitState), port_num: 1}
	e := unix.Errno(C.rs_modify_qp(q.dev.lib, q.qp, &a, C.AB_QP_STATE|C.AB_QP_PORT|C.AB_QP_PKEY_INDEX|C.AB_QP_ACCESS_FLAGS))
	if e != 0 {
		return &verbs.Error{Op: "modify_qp", Device: q.dev.name, Port: 1, QPN: q.qpn, Kind: kindOf(e), Err: e}
	}
	q.state = verbs.QPInitState
	return nil
}

// address fills the address vector. On Ethernet the GID is the address; on
// InfiniBand the LID is, and the GID goes along where a router or the port needs
// it.
func (q *qp) address(ah *C.struct_ab_ah_attr, av *verbs.AV, port uint8) error {
	d := q.dev
	if av.UDPPort != 0 && av.UDPPort != verbs.RoCEPort {
		return &verbs.Error{Op: "modify_qp", Device: d.name, Port: port, QPN: q.qpn, Kind: verbs.ErrNotSupported,
			Err: fmt.Errorf("the peer %v receives on UDP port %d, and this device sends to %d only: give the peer's soft device that port", av.DGID.Addr(), av.UDPPort, verbs.RoCEPort)}
	}
	if av.SGIDIndex < 0 || av.SGIDIndex > 255 {
		return &verbs.Error{Op: "modify_qp", Device: d.name, Port: port, QPN: q.qpn, Kind: verbs.ErrInvalid,
			Err: fmt.Errorf("source GID index %d: an address vector holds 0 to 255", av.SGIDIndex)}
	}
	pa, err := d.queryPort(port)
	if err != nil {
		return err
	}
	ah.port_num, ah.sl, ah.dlid = C.uint8_t(port), C.uint8_t(av.SL), C.uint16_t(av.DLID)
	if pa.link_layer != C.AB_LINK_LAYER_ETHERNET && av.DLID != 0 && pa.flags&C.AB_PORT_GRH_REQUIRED == 0 && !d.routed(av, port) {
		return nil
	}
	ah.is_global = 1
	ah.grh.sgid_index, ah.grh.hop_limit, ah.grh.traffic_class = C.uint8_t(av.SGIDIndex), C.uint8_t(av.HopLimit), C.uint8_t(av.TrafficClass)
	ah.grh.flow_label = C.uint32_t(av.FlowLabel)
	ah.grh.dgid = C.union_ab_gid(av.DGID)
	return nil
}

// routed tells whether an InfiniBand peer is in another subnet than the source.
func (d *device) routed(av *verbs.AV, port uint8) bool {
	own, ok := d.gidAt(port, av.SGIDIndex)
	return ok && !av.DGID.IsZero() && [8]byte(own[:8]) != [8]byte(av.DGID[:8])
}

func (d *device) gidAt(port uint8, index int) (verbs.GID, bool) {
	var g C.union_ab_gid
	if C.rs_query_gid(d.lib, d.ctx, C.uint8_t(port), C.int(index), &g) != 0 {
		return verbs.GID{}, false
	}
	return rawGID(&g), true
}

// explainModify lists everything that the device was given, because an errno
// alone does not tell which of it was wrong.
func (d *device) explainModify(at *verbs.QPAttr, mask verbs.QPMask, a *C.struct_ab_qp_attr, port uint8, e unix.Errno) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v", e)
	if mask&verbs.MaskState != 0 {
		fmt.Fprintf(&b, " at the change to %v", at.State)
	}
	sep := ": "
	say := func(bit verbs.QPMask, format string, args ...any) {
		if mask&bit != 0 {
			b.WriteString(sep)
			fmt.Fprintf(&b, format, args...)
			sep = ", "
		}
	}
	say(verbs.MaskPort, "port %d", at.Port)
	say(verbs.MaskPKeyIndex, "pkey_index %d", at.PKeyIndex)
	say(verbs.MaskAccess, "access %v", at.Access)
	say(verbs.MaskPathMTU, "path_mtu %d", at.PathMTU)
	say(verbs.MaskDestQPN, "dest_qpn 0x%06x", at.DestQPN)
	say(verbs.MaskRQPSN, "rq_psn 0x%06x", at.RQPSN)
	say(verbs.MaskMaxDestRDAtomic, "max_dest_rd_atomic %d", at.MaxDestRDAtomic)
	say(verbs.MaskMinRNRTimer, "min_rnr_timer %d", at.MinRNRTimer)
	say(verbs.MaskTimeout, "timeout %d", at.Timeout)
	say(verbs.MaskRetryCount, "retry_cnt %d", at.RetryCount)
	say(verbs.MaskRNRRetry, "rnr_retry %d", at.RNRRetry)
	say(verbs.MaskSQPSN, "sq_psn 0x%06x", at.SQPSN)
	say(verbs.MaskMaxRDAtomic, "max_rd_atomic %d", at.MaxRDAtomic)
	say(verbs.MaskAV, "sl %d, dlid %#x, is_global %d", at.AV.SL, at.AV.DLID, a.ah_attr.is_global)
	if mask&verbs.MaskAV != 0 {
		d.explainAddress(&b, &at.AV, a, port, e)
	}
	return b.String()
}

func (d *device) explainAddress(b *strings.Builder, av *verbs.AV, a *C.struct_ab_qp_attr, port uint8, e unix.Errno) {
	var own verbs.GIDEntry
	found := false
	if gids, err := d.GIDs(port); err == nil {
		for _, g := range gids {
			if g.Index == av.SGIDIndex {
				own, found = g, true
			}
		}
	}
	if a.ah_attr.is_global != 0 {
		from := "an empty entry"
		if found {
			from = fmt.Sprintf("%v %v", own.GID.Addr(), own.Type)
			if own.NetDev != "" {
				from += " on " + own.NetDev
			}
		}
		fmt.Fprintf(b, ", sgid_index %d (%s), dgid %v, hop_limit %d, traffic_class %d, flow_label %#x", av.SGIDIndex, from, av.DGID.Addr(), av.HopLimit, av.TrafficClass, av.FlowLabel)
	}
	if pa, err := d.queryPort(port); err == nil {
		fmt.Fprintf(b, "; port %d is %v with an active MTU of %d", port, verbs.PortState(pa.state), mtuBytes(int(pa.active_mtu)))
	}
	switch e {
	case unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENODATA:
		dev := own.NetDev
		if dev == "" {
			dev = "DEV"
		}
		fmt.Fprintf(b, "; the address of the peer was not resolved: is there a route from %v to %v, and does ping -I %s %v work?", own.GID.Addr(), av.DGID.Addr(), dev, av.DGID.Addr())
	case unix.EINVAL:
		switch {
		case !found && a.ah_attr.is_global != 0:
			fmt.Fprintf(b, "; choose a source GID index that is not empty")
		case found && own.GID.IsIPv4() != av.DGID.IsIPv4():
			fmt.Fprintf(b, "; one of the two GIDs is IPv4 and the other IPv6")
		}
	}
}

// Query reads the QP's attributes from the device.
func (q *qp) Query() (verbs.QPAttr, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.qp == nil {
		return verbs.QPAttr{}, errQPClosed
	}
	var a C.struct_ab_qp_attr
	var init C.struct_ab_qp_init_attr
	if e := unix.Errno(C.rs_query_qp(q.dev.lib, q.qp, &a, &init)); e != 0 {
		return verbs.QPAttr{}, &verbs.Error{Op: "query_qp", Device: q.dev.name, QPN: q.qpn, Kind: kindOf(e), Err: e}
	}
	out := verbs.QPAttr{State: verbs.QPState(a.qp_state), Port: uint8(a.port_num), PKeyIndex: uint16(a.pkey_index), PathMTU: mtuBytes(int(a.path_mtu)),
		DestQPN: uint32(a.dest_qp_num), RQPSN: uint32(a.rq_psn), SQPSN: uint32(a.sq_psn), MaxDestRDAtomic: int(a.max_dest_rd_atomic),
		MaxRDAtomic: int(a.max_rd_atomic), MinRNRTimer: uint8(a.min_rnr_timer), Timeout: uint8(a.timeout), RetryCount: uint8(a.retry_cnt), RNRRetry: uint8(a.rnr_retry),
		AV: verbs.AV{DGID: rawGID(&a.ah_attr.grh.dgid), SGIDIndex: int(a.ah_attr.grh.sgid_index), DLID: uint16(a.ah_attr.dlid), SL: uint8(a.ah_attr.sl),
			TrafficClass: uint8(a.ah_attr.grh.traffic_class), HopLimit: uint8(a.ah_attr.grh.hop_limit), FlowLabel: uint32(a.ah_attr.grh.flow_label)}}
	for _, x := range []struct {
		bit  verbs.Access
		flag C.uint
	}{
		{verbs.LocalWrite, C.AB_ACCESS_LOCAL_WRITE}, {verbs.RemoteWrite, C.AB_ACCESS_REMOTE_WRITE},
		{verbs.RemoteRead, C.AB_ACCESS_REMOTE_READ}, {verbs.RemoteAtomic, C.AB_ACCESS_REMOTE_ATOMIC},
	} {
		if a.qp_access_flags&x.flag != 0 {
			out.Access |= x.bit
		}
	}
	return out, nil
}

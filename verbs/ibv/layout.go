//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"unsafe"

	"github.com/railstore/railstore/verbs"
)

// The shim reads and writes slices of package verbs' structs where they are.
// These do not compile when the layouts differ.
var (
	same = [1]struct{}{}

	_ = same[unsafe.Sizeof(verbs.SendWR{})-C.sizeof_struct_rs_send_wr]
	_ = same[unsafe.Offsetof(verbs.SendWR{}.ID)-unsafe.Offsetof(C.struct_rs_send_wr{}.id)]
	_ = same[unsafe.Offsetof(verbs.SendWR{}.RemoteAddr)-unsafe.Offsetof(C.struct_rs_send_wr{}.remote_addr)]
	_ = same[unsafe.Offsetof(verbs.SendWR{}.CompareAdd)-unsafe.Offsetof(C.struct_rs_send_wr{}.compare_add)]
	_ = same[unsafe.Offsetof(verbs.SendWR{}.Swap)-unsafe.Offsetof(C.struct_rs_send_wr{}.swap)]
	_ = same[unsafe.Offsetof(verbs.SendWR{}.RKey)-unsafe.Offsetof(C.struct_rs_send_wr{}.rkey)]
	_ = same[unsafe.Offsetof(verbs.SendWR{}.Imm)-unsafe.Offsetof(C.struct_rs_send_wr{}.imm)]
	_ = same[unsafe.Offsetof(verbs.SendWR{}.NumSGE)-unsafe.Offsetof(C.struct_rs_send_wr{}.num_sge)]
	_ = same[unsafe.Offsetof(verbs.SendWR{}.Op)-unsafe.Offsetof(C.struct_rs_send_wr{}.op)]
	_ = same[unsafe.Offsetof(verbs.SendWR{}.Flags)-unsafe.Offsetof(C.struct_rs_send_wr{}.flags)]

	_ = same[unsafe.Sizeof(verbs.RecvWR{})-C.sizeof_struct_rs_recv_wr]
	_ = same[unsafe.Offsetof(verbs.RecvWR{}.ID)-unsafe.Offsetof(C.struct_rs_recv_wr{}.id)]
	_ = same[unsafe.Offsetof(verbs.RecvWR{}.NumSGE)-unsafe.Offsetof(C.struct_rs_recv_wr{}.num_sge)]

	_ = same[unsafe.Sizeof(verbs.SGE{})-C.sizeof_struct_ab_sge]
	_ = same[unsafe.Offsetof(verbs.SGE{}.Addr)-unsafe.Offsetof(C.struct_ab_sge{}.addr)]
	_ = same[unsafe.Offsetof(verbs.SGE{}.Length)-unsafe.Offsetof(C.struct_ab_sge{}.length)]
	_ = same[unsafe.Offsetof(verbs.SGE{}.LKey)-unsafe.Offsetof(C.struct_ab_sge{}.lkey)]

	_ = same[unsafe.Sizeof(verbs.WC{})-C.sizeof_struct_rs_wc]
	_ = same[unsafe.Offsetof(verbs.WC{}.ID)-unsafe.Offsetof(C.struct_rs_wc{}.id)]
	_ = same[unsafe.Offsetof(verbs.WC{}.QPN)-unsafe.Offsetof(C.struct_rs_wc{}.qpn)]
	_ = same[unsafe.Offsetof(verbs.WC{}.VendorErr)-unsafe.Offsetof(C.struct_rs_wc{}.vendor_err)]
	_ = same[unsafe.Offsetof(verbs.WC{}.ByteLen)-unsafe.Offsetof(C.struct_rs_wc{}.byte_len)]
	_ = same[unsafe.Offsetof(verbs.WC{}.Imm)-unsafe.Offsetof(C.struct_rs_wc{}.imm)]
	_ = same[unsafe.Offsetof(verbs.WC{}.Status)-unsafe.Offsetof(C.struct_rs_wc{}.status)]
	_ = same[unsafe.Offsetof(verbs.WC{}.Op)-unsafe.Offsetof(C.struct_rs_wc{}.op)]
	_ = same[unsafe.Offsetof(verbs.WC{}.Flags)-unsafe.Offsetof(C.struct_rs_wc{}.flags)]

	// And the numbers that the shim's tables are indexed by.
	_ = same[verbs.OpSend|verbs.OpSendImm-1|verbs.OpWrite-2|verbs.OpWriteImm-3|verbs.OpRead-4|verbs.OpCAS-5|verbs.OpFAA-6]
	_ = same[verbs.WCSend|verbs.WCWrite-1|verbs.WCRead-2|verbs.WCCAS-3|verbs.WCFAA-4|verbs.WCRecv-5|verbs.WCRecvWImm-6]
	_ = same[verbs.Signaled-1|verbs.Solicited-2|verbs.Fence-4|verbs.SendFlags(verbs.WCWithImm-1)]
)

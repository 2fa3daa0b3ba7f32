package verbs

import "fmt"

// WCStatus is the status of a work completion (rdma-core's numbering). Every
// value but WCSuccess is an error; unknown numbers print as such.
type WCStatus uint8

const (
	WCSuccess       WCStatus = 0
	WCLocLen        WCStatus = 1
	WCLocQPOp       WCStatus = 2
	WCLocEECOp      WCStatus = 3
	WCLocProt       WCStatus = 4
	WCFlush         WCStatus = 5
	WCMWBind        WCStatus = 6
	WCBadResp       WCStatus = 7
	WCLocAccess     WCStatus = 8
	WCRemInvReq     WCStatus = 9
	WCRemAccess     WCStatus = 10
	WCRemOp         WCStatus = 11
	WCRetryExceeded WCStatus = 12
	WCRNRExceeded   WCStatus = 13
	WCRemAbort      WCStatus = 16
	WCFatal         WCStatus = 19
	WCRespTimeout   WCStatus = 20
	WCGeneral       WCStatus = 21
)

var wcText = map[WCStatus][2]string{
	WCSuccess:       {"SUCCESS", "success"},
	WCLocLen:        {"LOC_LEN", "local length error"},
	WCLocQPOp:       {"LOC_QP_OP", "local QP operation error"},
	WCLocEECOp:      {"LOC_EEC_OP", "local EE context operation error"},
	WCLocProt:       {"LOC_PROT", "local protection error"},
	WCFlush:         {"WR_FLUSH", "flushed after an earlier error"},
	WCMWBind:        {"MW_BIND", "memory window bind error"},
	WCBadResp:       {"BAD_RESP", "bad response"},
	WCLocAccess:     {"LOC_ACCESS", "local access error"},
	WCRemInvReq:     {"REM_INV_REQ", "remote invalid request"},
	WCRemAccess:     {"REM_ACCESS", "remote access error"},
	WCRemOp:         {"REM_OP", "remote operation error"},
	WCRetryExceeded: {"RETRY_EXC", "transport retry counter exceeded"},
	WCRNRExceeded:   {"RNR_RETRY_EXC", "receiver-not-ready retry counter exceeded"},
	WCRemAbort:      {"REM_ABORT", "remote aborted"},
	WCFatal:         {"FATAL", "fatal device error"},
	WCRespTimeout:   {"RESP_TIMEOUT", "response timeout"},
	WCGeneral:       {"GENERAL", "general error"},
}

// Name is the short name with the number, as in RETRY_EXC(12).
func (s WCStatus) Name() string {
	if t, ok := wcText[s]; ok {
		return fmt.Sprintf("%s(%d)", t[0], uint8(s))
	}
	return fmt.Sprintf("wc status %d", uint8(s))
}

func (s WCStatus) String() string { return s.Name() }

// Error makes a status usable as an error: errors.Is(err, WCRetryExceeded).
func (s WCStatus) Error() string {
	if t, ok := wcText[s]; ok {
		return t[1] + " " + s.Name()
	}
	return s.Name()
}

// WCOpcode says what completed.
type WCOpcode uint8

const (
	WCSend WCOpcode = iota
	WCWrite
	WCRead
	WCCAS
	WCFAA
	WCRecv     // a SEND was received
	WCRecvWImm // a WRITE with immediate was received
)

var wcOpcodeNames = [...]string{"SEND", "WRITE", "READ", "CAS", "FAA", "RECV", "RECV_WRITE_IMM"}

func (o WCOpcode) String() string {
	if int(o) < len(wcOpcodeNames) {
		return wcOpcodeNames[o]
	}
	return fmt.Sprintf("wc opcode %d", uint8(o))
}

// WCFlags of a work completion.
type WCFlags uint8

const WCWithImm WCFlags = 1 // Imm is valid

// WC is one work completion: flat, no pointers. When Status is not WCSuccess
// only ID, Status, VendorErr and QPN are defined.
type WC struct {
	ID        WRID
	QPN       uint32
	VendorErr uint32
	ByteLen   uint32 // bytes received (RECV, READ)
	Imm       uint32
	Status    WCStatus
	Op        WCOpcode
	Flags     WCFlags
}

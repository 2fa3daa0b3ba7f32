package verbstest

import (
	"slices"
	"testing"

	"github.com/railstore/railstore/verbs"
)

// Quirk is one case of the suite in which a device is known to differ from the
// specification, in a way that its provider cannot mend.
type Quirk struct {
	Case   string // group/name
	Reason string
	Run    func(t *testing.T, open Open) // takes the case's place; nil skips it
}

// SoftRoCE are the quirks of the kernel's rdma_rxe, as of Linux 6.1, for a pair of
// two such devices. Where only one of a pair is, the two lists below tell which
// belong to the first device, the one that asks, and which to the second.
var SoftRoCE = slices.Concat(SoftRoCEAsks, SoftRoCEAnswers)

var SoftRoCEAsks = []Quirk{
	{"completion/solicited_error", "rxe wakes a waiter for solicited completions only by solicited receives, not by errors: use Arm(false) where an error must wake", nil},
	{"state/sqd", "rxe does not go on with what is queued when a QP leaves SQD, before the next post", nil},
	{"protect/local_keys", "rxe reports a local key that does not exist as LOC_QP_OP",
		func(t *testing.T, open Open) { localKeys(t, open, verbs.WCLocProt, verbs.WCLocQPOp) }},
	{"flush/post_in_err", "rxe's receive queue is in user space: a receive that is posted in ERR is seen by nobody",
		func(t *testing.T, open Open) { postInErr(t, open, false) }},
}

var SoftRoCEAnswers = []Quirk{
	{"protect/recv_too_small", "rxe reports a receive that is too small as LOC_QP_OP, and to the sender as REM_OP",
		func(t *testing.T, open Open) {
			recvTooSmall(t, open, []verbs.WCStatus{verbs.WCRemInvReq, verbs.WCRemOp}, []verbs.WCStatus{verbs.WCLocLen, verbs.WCLocQPOp})
		}},
	{"protect/recv_bad_lkey", "rxe reports a local key that does not exist as LOC_QP_OP",
		func(t *testing.T, open Open) { recvBadLKey(t, open, verbs.WCLocProt, verbs.WCLocQPOp) }},
}

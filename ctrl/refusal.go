package ctrl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/railstore/railstore/ctrl/internal/pb"
)

// toStatus gives an error of the registry or the catalog as a gRPC status whose
// detail fromStatus turns into the same error at the other end.
func toStatus(err error) error {
	if err == nil {
		return nil
	}
	code, d := codes.Internal, &pb.Detail{}
	var (
		invalid  *InvalidError
		replaced *ReplacedError
		absent   *AbsentError
		stale    *StaleOfferError
		barrier  *BarrierError
		conflict *ConflictError
		identity *IdentityError
	)
	switch {
	case errors.As(err, &invalid):
		code, d.Of = codes.InvalidArgument, &pb.Detail_Invalid_{Invalid: &pb.Detail_Invalid{Field: invalid.Field, Reason: invalid.Reason}}
	case errors.As(err, &replaced):
		code, d.Of = codes.FailedPrecondition, &pb.Detail_Replaced{Replaced: string(replaced.ID)}
	case errors.As(err, &absent):
		code, d.Of = codes.FailedPrecondition, &pb.Detail_Absent_{Absent: &pb.Detail_Absent{Id: string(absent.ID), State: pb.State(absent.State), Reason: absent.Reason}}
	case errors.As(err, &stale):
		code, d.Of = codes.FailedPrecondition, &pb.Detail_Stale_{Stale: &pb.Detail_Stale{From: string(stale.From), To: string(stale.To), Generation: stale.Generation, Have: stale.Have}}
	case errors.As(err, &barrier):
		code, d.Of = codes.Aborted, &pb.Detail_Barrier_{Barrier: &pb.Detail_Barrier{Name: barrier.Name, Reason: barrier.Reason}}
	case errors.As(err, &conflict):
		code, d.Of = codes.Aborted, &pb.Detail_Conflict_{Conflict: &pb.Detail_Conflict{Key: keyToPB(conflict.Key), Expect: conflict.Expect, Have: conflict.Have, Reason: conflict.Reason}}
	case errors.As(err, &identity):
		// Mine and Theirs are the server's and the client's here.
		code, d.Of = codes.FailedPrecondition, &pb.Detail_Mismatch_{Mismatch: &pb.Detail_Mismatch{Field: identity.Field, Server: identity.Mine, Client: identity.Theirs}}
	case errors.Is(err, ErrLeaseLost):
		code, d.Of = codes.NotFound, &pb.Detail_LeaseLost{LeaseLost: ErrLeaseLost.Error()}
	case errors.Is(err, ErrStopping):
		code, d.Of = codes.FailedPrecondition, &pb.Detail_Stopping{Stopping: err.Error()}
	case errors.Is(err, ErrLimit):
		code, d.Of = codes.ResourceExhausted, &pb.Detail_Limit{Limit: err.Error()}
	case errors.Is(err, ErrClosed):
		code = codes.Unavailable
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	}
	st := status.New(code, clip(err.Error(), 4*MaxReasonBytes))
	if d.Of != nil {
		if with, err := st.WithDetails(d); err == nil {
			st = with
		}
	}
	return st.Err()
}

// fromStatus gives the error that toStatus was given, as the client sees it, or a
// plain text without the trimmings of gRPC.
func fromStatus(err error) error {
	st, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	for _, x := range st.Details() {
		if d, ok := x.(*pb.Detail); ok {
			if typed := fromDetail(d); typed != nil {
				return typed
			}
		}
	}
	switch st.Code() {
	case codes.Canceled:
		return fmt.Errorf("%s: %w", st.Message(), context.Canceled)
	case codes.DeadlineExceeded:
		return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	}
	return &CallError{Code: st.Code(), Message: plain(st.Message())}
}

// plain takes the wrapping of gRPC off the text of a failed connection.
func plain(s string) string {
	for _, p := range []string{"connection error: desc = ", "transport: "} {
		if t, ok := strings.CutPrefix(s, p); ok {
			s = t
			if u, err := strconv.Unquote(t); err == nil {
				s = u
			}
		}
	}
	return strings.TrimPrefix(s, "Error while dialing: ")
}

func fromDetail(d *pb.Detail) error {
	switch v := d.GetOf().(type) {
	case *pb.Detail_Mismatch_:
		return &IdentityError{Field: v.Mismatch.GetField(), Mine: v.Mismatch.GetClient(), Theirs: v.Mismatch.GetServer()}
	case *pb.Detail_Invalid_:
		return &InvalidError{Field: v.Invalid.GetField(), Reason: v.Invalid.GetReason()}
	case *pb.Detail_Absent_:
		s, err := stateFromPB(v.Absent.GetState())
		if err != nil {
			return err
		}
		return &AbsentError{ID: NodeID(v.Absent.GetId()), State: s, Reason: v.Absent.GetReason()}
	case *pb.Detail_Stale_:
		return &StaleOfferError{From: NodeID(v.Stale.GetFrom()), To: NodeID(v.Stale.GetTo()), Generation: v.Stale.GetGeneration(), Have: v.Stale.GetHave()}
	case *pb.Detail_Barrier_:
		return &BarrierError{Name: v.Barrier.GetName(), Reason: v.Barrier.GetReason()}
	case *pb.Detail_Conflict_:
		c := v.Conflict
		return &ConflictError{Key: keyFromPB(c.GetKey()), Expect: c.GetExpect(), Have: c.GetHave(), Reason: c.GetReason()}
	case *pb.Detail_Replaced:
		return &ReplacedError{ID: NodeID(v.Replaced)}
	case *pb.Detail_LeaseLost:
		return ErrLeaseLost
	case *pb.Detail_Stopping:
		return wrapText(ErrStopping, v.Stopping)
	case *pb.Detail_Limit:
		return wrapText(ErrLimit, v.Limit)
	}
	return nil
}

// textError has the text of the other end and matches the sentinel of this one.
type textError struct {
	kind error
	text string
}

func wrapText(kind error, text string) error { return &textError{kind, text} }
func (e *textError) Error() string           { return e.text }
func (e *textError) Unwrap() error           { return e.kind }

// CallError is a call that failed for a reason that is not one of this package's:
// the control plane cannot be reached, TLS failed, a message is too large.
type CallError struct {
	Code    codes.Code
	Message string
}

func (e *CallError) Error() string { return e.Message }

// Unreachable reports that there was no answer at all: trying again may help, and
// nothing is known of the other end.
func (e *CallError) Unreachable() bool { return e.Code == codes.Unavailable && !e.badTLS() }

// badTLS reports that the two ends do not trust each other or that only one of
// them speaks TLS, which waiting does not cure.
func (e *CallError) badTLS() bool {
	return strings.Contains(e.Message, "remote error: tls: ") ||
		strings.Contains(e.Message, "handshake failed") && (strings.Contains(e.Message, "tls: ") || strings.Contains(e.Message, "x509: "))
}

const tlsHint = "compare control.tls at both ends: certificate, key, ca, and the host name in the certificate"

// Hint says what to do about it.
func (e *CallError) Hint() string {
	switch {
	case e.badTLS():
		return tlsHint
	case strings.Contains(e.Message, "server preface"):
		return "the address takes connections and says nothing: is shard 0 stopped or overloaded, or does one end alone use control.tls?"
	case e.Unreachable():
		return "is the deployment up? rs status tells, and rs logs shows what shard 0 says"
	case e.Code == codes.ResourceExhausted:
		return fmt.Sprintf("a message of more than %d bytes: use larger stripes", MaxMessageBytes)
	}
	return ""
}

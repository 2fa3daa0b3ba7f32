// Package verbs is the RDMA verbs interface that the rest of RailStore is
// written against: contexts, protection domains, memory regions, completion
// queues and reliable-connection queue pairs, with the names and semantics of
// the InfiniBand Architecture Specification (IBTA volume 1, chapters 10 and 11)
// and of rdma-core.
//
// # Shape
//
// A user sees concrete types (Context, PD, MR, CQ, QP). Each checks its
// arguments once (state table, masks, bounds, live children) and hands the work
// to the narrow interfaces in driver.go, which a provider implements. A
// provider never repeats those checks; it checks what comes from the wire.
//
// # Ownership
//
// Every handle has one owner and an idempotent Close. A child keeps its parent
// alive: closing a parent with live children returns ErrBusy naming them, and
// nothing cascades. A constructor takes its arguments over only on success.
// The order of teardown is always: stop using, wait for what is in flight,
// destroy the QP, deregister the MR, unmap the Region.
//
// # Memory
//
// Registered memory is a Region: mapped by the kernel, never Go heap, so that
// neither the garbage collector nor the race detector has a part in it. Peers
// and providers write it at any time; read a word that a peer writes with
// LoadWord and write one with StoreWord. A region that a device does not take at
// once is a Span of MRs.
//
// # Errors
//
// Every failed call returns *Error, which matches one of the sentinels of
// error.go with errors.Is and unwraps to the errno where the system gave one. A
// bad work completion is an error value too (WCStatus). The first bad
// completion of a QP is kept: QP.Err wraps it and the flushes that follow are
// only counted.
//
// Owns: the types above, the QP state table, the Driver contract.
// Imports: the standard library and golang.org/x/sys/unix only.
// Goroutines: none. Locks: Context.mu guards the child tables; it is never held
// across a call into a driver.
package verbs

// Package ibv is the provider "ibv": RDMA devices through the system's
// libibverbs, for InfiniBand, RoCE v1 and RoCE v2.
//
// # The library
//
// libibverbs is not linked but loaded when a driver is first used: the file that
// RAILSTORE_IBVERBS_LIB names and no other, or else libibverbs.so.1, or else
// libibverbs.so. The layouts of its stable ABI are written down in abi.h; a test
// compares them with <infiniband/verbs.h> where that is installed. Functions are
// looked up with the symbol version that the layouts belong to. A build without
// cgo, or a host without the library, has the same driver, which answers
// ErrNotSupported and says why.
//
// # Calls into C
//
// A batch of requests, or of completions, is one crossing into C, whatever its
// length. Requests are translated into work requests that each QP keeps in C
// memory, and scatter/gather elements are handed on where they are: their layout
// is the library's. Nothing of Go's heap is kept by C after a call, and
// registered memory is never Go heap. Posting and polling allocate nothing.
//
// Requests of at most QPCap.MaxInline bytes are sent inline. MaxInline is 0
// unless asked for; inline requests are not checked against their local key.
//
// # Events
//
// Every device has one completion channel and one asynchronous event file, both
// non-blocking and in Go's netpoller: a goroutine that waits for an event holds
// no thread. An event is acknowledged as soon as it is read. Asynchronous events
// that have no counterpart in verbs.EventType are acknowledged and dropped.
//
// # Limits
//
// A memory region longer than the device's max_mr_size is refused with that
// limit: one registration has one pair of keys. verbs.PD.RegisterSpan cuts.
// Depths are checked against the device's limits by package verbs; a device may
// grant more than was asked for, and QPCap says so. verbs.AV.UDPPort must be 0 or
// 4791, the one port that devices speak. On RoCE v2 the kernel replaces
// verbs.AV.HopLimit by that of the route to the peer. Relaxed ordering is never asked for:
// commit and status words rely on the order of WRITEs.
//
// Owns: the C shim, the loaded library, every handle made through it.
// Imports: verbs, the standard library and golang.org/x/sys/unix.
// Goroutines: two per open device (completion and asynchronous events); Close of
// the device waits for both. Locks: cq.mu, qp.mu and mr.mu guard the C handle
// against use after Close and are held across calls into C; device.mu guards the
// table of CQs and is a leaf.
package ibv

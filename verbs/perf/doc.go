// Package perf measures verbs between two ends: WRITE, READ and SEND, bandwidth
// and latency, in the terms of perftest (ib_write_bw, ib_read_lat and so on), so
// that its figures can stand beside perftest's.
//
// The two ends may be two contexts of one process or two processes that exchange
// a Hello. The initiator measures; the responder answers what the test needs:
// nothing for WRITE and READ bandwidth, posted receives for SEND, the returning
// half of a ping-pong for latency.
//
// Owns: Test, End, Hello, Result and its columns.
// Imports: verbs and the standard library.
// Goroutines: that of Between, which waits for it. Locks: none.
package perf

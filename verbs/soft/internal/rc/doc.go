// Package rc is the reliable connection of the InfiniBand transport (IBTA volume
// 1, chapter 9) as a value: requester and responder of one queue pair. Packets,
// work requests and the time go in; packets, completions and events come out.
//
// # Calls
//
// The owner serialises all calls on a Conn:
//
//	PostSend, PostRecv   queue work; they put out nothing
//	Step                 takes one received packet: places its payload, completes
//	                     what it acknowledges, notes what has to be answered
//	Tick                 lets timers run that are due (see NextTick)
//	Pump                 puts out packets: answers first, then requests that the
//	                     window allows, until Output is full
//
// Only Pump puts out packets; all three put out completions and events. So an
// owner takes a batch of packets with Step, then calls Pump until it reports
// false; acknowledgements of the batch are then one packet. Pump is also due
// after PostSend, PostRecv in the error state, Tick and Modify.
//
// Payload of packets put out is not copied: it is slices of registered memory,
// valid until Output.Reset and no longer than the owner keeps that memory
// registered. It may change while the owner computes the ICRC and sends; a short
// payload that others may write (a word that is polled) is best copied first.
//
// # Order of memory
//
// Payload is placed in PSN order. When the last eight bytes of a packet's payload
// fall on an aligned word, that word is stored atomically after every earlier
// byte; remote atomics are atomic against each other and against such stores.
//
// Owns: packet sequence numbers, windows, retries, timers, acknowledgements and
// completion order of one queue pair.
// Imports: verbs, internal/wire; neither net, sync nor os; it never reads a clock.
// Goroutines: none. Locks: none.
package rc

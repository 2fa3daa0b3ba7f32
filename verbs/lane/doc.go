// Package lane is the request/response transport over RC WRITEs: slots of
// registered memory at a client and a server, and one QP between them.
//
// # A call
//
// A lane has Slots slots; each carries one call at a time. The client writes
// descriptor and payload into the server's request slot with one WRITE and then
// the commit word with a second one. The server finds the word, checks the
// descriptor, runs the handler, writes header and payload of the answer into the
// client's response slot and then the status word. Correctness rests on the order
// of WRITEs of one QP: whoever sees the word sees what was written before it.
// Where memory does not keep that order, the checksum tells: a word without its
// payload is waited for (Config.Settle) and never accepted.
//
// How a word is noticed is Config.Notify; see Adaptive, Imm and Scan.
//
// # Layout, version 1
//
// All integers are little-endian. Every part starts at a multiple of 64 bytes.
// R and P are RequestBytes and ResponseBytes rounded up to multiples of 64, W is
// 8 × Slots rounded up likewise.
//
//	server memory                          client memory
//	0        W            commit words     0        W            status words
//	W        Slots×(64+R) request slots    W        Slots×(64+P) response slots
//	…        Slots×(64+P) answer staging   …        Slots×(64+R) request staging
//	…        W            word staging     …        W            word staging
//
// The first two parts of each are published to the peer. Words of neighbouring
// slots lie side by side, so that eight of them are one cache line to a scanner.
//
// A word, written as one aligned 8-byte WRITE:
//
//	0  u32  sequence    per slot, from 1, one more for each call
//	4  u16  generation  low half of the generation that the word's receiver published
//	6  u8   state       1 request ready, 2 answer done
//	7  u8   check       xor of bytes 0 to 6, xor 0xa5
//
// A request slot:
//
//	 0  u32  magic            52 53 4c 44 ("RSLD")
//	 4  u16  version          1
//	 6  u16  op               the handler's business
//	 8  u32  sequence         as in the word
//	12  u32  generation       as the server published it
//	16  u16  slot
//	18  u16  flags            the handler's business
//	20  u32  label            the shard that is meant
//	24  u32  payload bytes    at most RequestBytes
//	28  u32  response room    at most ResponseBytes
//	32  u64  token            idempotency token, 0 none
//	40  u64  deadline         µs that the caller still waits, 0 for ever
//	48       reserved         12 bytes, zero
//	60  u32  checksum         CRC-32C of bytes 0 to 59 and the payload
//	64       payload
//
// A response slot:
//
//	 0  u32  magic            52 53 4c 52 ("RSLR")
//	 4  u16  version          1
//	 6  u16  flags            1: the payload was placed by other WRITEs and is not in the checksum
//	 8  u32  sequence         of the request
//	12  u32  generation       as the client published it
//	16  u16  slot
//	18  u16  reserved         zero
//	20  i32  status           see Status
//	24  u32  bytes            of the payload
//	28       reserved         32 bytes, zero
//	60  u32  checksum         CRC-32C of bytes 0 to 59 and the payload
//	64       payload
//
// With Config.HeaderChecksum neither checksum covers the payload. The immediate
// that goes with a word is slot << 16 | low half of the sequence; it only says
// where to look. A change of any of this is a new Version.
//
// # What a server does with what it finds
//
// Nothing of a request is touched before its descriptor was copied and checked.
// A descriptor that can be attributed to a slot is always answered: broken ones
// with StatusInvalid, too large ones with StatusTooLarge, those for another shard
// with StatusWrongShard. Ignored and counted are: words of another generation, of
// a sequence that was served, and notifications without a new word. A word
// written into a slot before its answer is looked at after the answer. A peer
// that breaks the rules can spoil its own slots only.
//
// # Reuse of slots
//
// Memory that a peer may still write is never used for anything else. A call
// whose context ends leaves its slot in quarantine until its own late answer has
// come, and the lane goes on with the slots that are left; the peer is touched and
// asked after as for a caller that waits. When that answer does not come within
// WaitTimeout, and on every other failure (a time-out, a bad
// completion, a failed post, an answer that stays broken), the lane is Dirty:
// every call on it fails with the first cause, its QP goes to ERR, and its slots
// are used again only after the QP was destroyed and the lane rebuilt under a new
// generation. A call that names other memory of its process (Request.Exposed) is
// given up only once its late answer came or its QP is destroyed.
//
// Errors are *Error; they name the layer that noticed, the label of the lane,
// and both ends. A status other than StatusOK is an answer, not an error.
//
// # Send queues
//
// Every post is covered by credits (sendQueue), so no queue overflows; CQDepth
// covers the worst case of flushes. Not every request is signaled.
//
// Owns: layouts, Config arithmetic, Poller, Lane, Pool, Acceptor, ServerLane,
// Exchange, Error.
// Imports: verbs and the standard library only.
// Goroutines: one per Poller and, when it has several, one for each of its scanners
// (Poller.Close waits for them), and the workers of an Acceptor and of its further
// pools (Acceptor.Close waits for them). Callers wait on their own goroutine.
// Timers of quarantined slots fire on goroutines of the runtime; they post empty
// WRITEs and touch no slot memory.
// Locks, in this order: Lane.life; Poller.mu (polling, dispatch); Lane.failing;
// conn.mu (posting); Pool.mu (slots and the queue), workQueue.mu,
// conn.names. Handlers run with none of them held; Config.Events may be called with
// Lane.failing held.
package lane

package lane

import (
	"fmt"
	"strconv"
	"time"

	"github.com/railstore/railstore/verbs"
)

// MaxSlots is the most slots a lane may have.
const MaxSlots = 4096

// Config is what a lane is made of. The fields of the first group must be the
// same at both ends (see Params); zero values get the defaults said beside them.
type Config struct {
	Slots         int    // requests in flight: 1
	RequestBytes  int    // largest payload of a request: 64 KiB
	ResponseBytes int    // largest payload of a response: 64 KiB
	Notify        Notify // Adaptive
	// HeaderChecksum leaves payloads out of the checksums: cheaper for large ones,
	// but then only a descriptor or header that is not there yet is noticed, not
	// the bytes behind it.
	HeaderChecksum bool

	// Client.
	Spin           time.Duration // how long Adaptive polls before it sleeps, unless that was in vain lately: 30 µs; negative: not at all
	WaitTimeout    time.Duration // no answer for that long retires the lane: 60 s
	TrackedTimeout time.Duration // no send completion for that long does, too: 10 s
	Quiesce        time.Duration // how long a cancelled Exposed request is waited for before its QP is destroyed: 1 s
	// While a call waits, three things look for a reason, each first after one time
	// and then every so often; negative times are never.
	//
	// The peer's QP is touched with an empty WRITE, whose failure retires the lane:
	// what the device does not know of, it cannot tell.
	TouchAfter time.Duration // 250 ms
	TouchEvery time.Duration // 250 ms
	// A touch that is neither acknowledged nor refused for that long retires the
	// lane, too: some devices retry for ever.
	TouchTimeout time.Duration // 2 s
	// The CQ is polled, should its event be lost.
	HarvestEvery time.Duration // 50 ms
	// Waiting is told that a call of this lane waits, so that somebody can ask
	// whether the peer is alive and Fail the lane if not. It must not block.
	Waiting    func(l Label)
	ProbeAfter time.Duration // 1 s
	ProbeEvery time.Duration // 1 s

	// Server.
	BulkWRs   int           // requests that handlers' reads and writes may have in the send queue: 16
	BulkBytes int           // bytes of one of them: 1 MiB
	BulkGrace time.Duration // how long what was posted may still take once its context ended: 1 s

	// Both.
	MaxSGE  int           // elements of a work request: 4
	Settle  time.Duration // how long a word may be there before what it announces: 2 ms
	Profile bool          // measure the times in Counters, too
	Events  func(Event)   // must not block
	// Counters take what happens; lanes may share them. nil: the lane's own.
	Counters *Counters
}

func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	dur := func(p *time.Duration, v time.Duration) {
		if *p == 0 {
			*p = v
		}
	}
	def(&c.Slots, 1)
	def(&c.RequestBytes, 64<<10)
	def(&c.ResponseBytes, 64<<10)
	def(&c.BulkWRs, 16)
	def(&c.BulkBytes, 1<<20)
	def(&c.MaxSGE, 4)
	dur(&c.Spin, 30*time.Microsecond)
	dur(&c.WaitTimeout, 60*time.Second)
	dur(&c.TrackedTimeout, 10*time.Second)
	dur(&c.Quiesce, time.Second)
	dur(&c.TouchAfter, 250*time.Millisecond)
	dur(&c.TouchEvery, 250*time.Millisecond)
	dur(&c.TouchTimeout, 2*time.Second)
	dur(&c.HarvestEvery, 50*time.Millisecond)
	dur(&c.ProbeAfter, time.Second)
	dur(&c.ProbeEvery, time.Second)
	dur(&c.BulkGrace, time.Second)
	dur(&c.Settle, 2*time.Millisecond)
	if c.Counters == nil {
		c.Counters = new(Counters)
	}
	if c.Notify == Imm || c.Spin < 0 {
		c.Spin = 0
	}
	return c
}

// Check says what is wrong with the configuration, or nil.
func (c Config) Check() error {
	c = c.withDefaults()
	for _, f := range []struct {
		name        string
		v, min, max int
	}{
		{"slots", c.Slots, 1, MaxSlots},
		{"request bytes", c.RequestBytes, 1, 1 << 30},
		{"response bytes", c.ResponseBytes, 1, 1 << 30},
		{"bulk requests", c.BulkWRs, 1, 4096},
		{"bulk bytes", c.BulkBytes, 256, 1 << 30},
		{"elements a request", c.MaxSGE, 1, 256},
	} {
		if f.v < f.min || f.v > f.max {
			return fmt.Errorf("%s %d: want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	if c.Notify > Scan {
		return fmt.Errorf("%v: want one of %q", c.Notify, notifyNames)
	}
	return nil
}

// Params are the values that must be the same at both ends, in words, for an
// exchange of metadata.
func (c Config) Params() map[string]string {
	c = c.withDefaults()
	return map[string]string{
		"lane_version":   strconv.Itoa(Version),
		"slots":          strconv.Itoa(c.Slots),
		"request_bytes":  strconv.Itoa(c.RequestBytes),
		"response_bytes": strconv.Itoa(c.ResponseBytes),
		"notify":         c.Notify.String(),
		"checksum":       map[bool]string{false: "payload", true: "header"}[c.HeaderChecksum],
	}
}

// Sizes of the parts; see doc.go.
func align64(n int) int               { return (n + 63) &^ 63 }
func (c Config) wordsBytes() int      { return align64(8 * c.Slots) }
func (c Config) requestStride() int   { return descBytes + align64(c.RequestBytes) }
func (c Config) responseStride() int  { return headBytes + align64(c.ResponseBytes) }
func (c Config) requestsBytes() int   { return c.Slots * c.requestStride() }
func (c Config) responsesBytes() int  { return c.Slots * c.responseStride() }
func (c Config) clientPublished() int { return c.wordsBytes() + c.responsesBytes() }
func (c Config) serverPublished() int { return c.wordsBytes() + c.requestsBytes() }

// ClientBytes is the registered memory that one lane takes at the client, a
// multiple of 64.
func (c Config) ClientBytes() int {
	c = c.withDefaults()
	return c.clientPublished() + // status words and response slots, which the server writes
		c.requestsBytes() + // staging of requests
		c.wordsBytes() // staging of commit words
}

// ServerBytes is the same at the server.
func (c Config) ServerBytes() int {
	c = c.withDefaults()
	return c.serverPublished() + // commit words and request slots, which the client writes
		c.responsesBytes() + // staging of responses
		c.wordsBytes() // staging of status words
}

// ClientSlots is what the client publishes for the server to write into.
func (c Config) ClientSlots(m Memory) verbs.RemoteRegion {
	return m.published(c.withDefaults().clientPublished())
}

// ServerSlots is what the server publishes for the client to write into.
func (c Config) ServerSlots(m Memory) verbs.RemoteRegion {
	return m.published(c.withDefaults().serverPublished())
}

// Clear wipes the words of a lane's memory. Its owner does so before it publishes
// the memory; a word of an earlier lane could pass for a new one otherwise, if
// the generation is the same.
func (c Config) Clear(m Memory) { clear(m.Bytes[:c.withDefaults().wordsBytes()]) }

// ClientCap are the queue depths of a client's QP.
func (c Config) ClientCap() verbs.QPCap {
	c = c.withDefaults()
	return verbs.QPCap{
		MaxSendWR: 2*c.Slots + // descriptor and word of every slot in flight
			2*c.Slots + // as many again whose completion was not asked for or not polled yet
			sendSlack,
		MaxSendSGE: 1, // requests are staged in one piece
		MaxRecvWR:  c.recvDepth(),
		MaxRecvSGE: 1, // receives carry no bytes; some devices refuse 0
	}
}

// ServerCap are the queue depths of a server's QP.
func (c Config) ServerCap() verbs.QPCap {
	c = c.withDefaults()
	return verbs.QPCap{
		MaxSendWR: 2*c.Slots + // payload and word of every slot being answered
			2*c.Slots + // as many again whose completion was not asked for or not polled yet
			c.BulkWRs + // reads and writes of handlers
			sendSlack,
		MaxSendSGE: c.MaxSGE,
		MaxRecvWR:  c.recvDepth(),
		MaxRecvSGE: 1,
	}
}

// sendSlack lets a lane of one slot signal less than every request.
const sendSlack = 8

// recvDepth is the number of receives that immediates take.
func (c Config) recvDepth() int {
	if c.Notify == Scan {
		return 0
	}
	return c.Slots + // one word of every slot under way
		c.Slots + // words that were seen in memory before their completion was polled
		recvSlack
}

const recvSlack = 2

// CQDepth is the depth of a CQ that clients lanes as a client and servers lanes
// as a server complete into, all of configuration c. It cannot overrun.
func CQDepth(c Config, clients, servers int) int {
	per := func(q verbs.QPCap) int {
		return q.MaxSendWR + // every send completes when a QP fails, signaled or not
			q.MaxRecvWR // and so does every receive
	}
	worst := max(per(c.ClientCap()), per(c.ServerCap()))
	n := clients*per(c.ClientCap()) + servers*per(c.ServerCap())
	return n +
		worst // completions of a destroyed QP that are still unpolled when its successor works
}

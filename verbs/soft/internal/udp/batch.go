package udp

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A Sealer computes the check value of a packet of a batch once its IP
// identification is known. It may be asked for a packet more than once.
type Sealer interface {
	ICRC(id uint16, header []byte, payload [][]byte, pad int) uint32
}

// packet of a batch. Its header lies at arena[head:], its pad bytes and room for
// the ICRC in arena[tail:end], its payload in frags[frag:fragEnd].
type packet struct {
	dest          *Dest
	head, tail    int32
	end           int32
	frag, fragEnd int32
	header        int32 // bytes
	size          int32 // bytes of the whole packet
}

// copyLimit is the payload up to which a packet is copied into the arena: that
// costs less than more elements do, and small payloads are those that somebody
// may write while they are read (a word that is polled), which must not happen
// between the ICRC and the kernel's copy.
const copyLimit = 512

// Batch is a list of packets to send. Headers are copied into the batch's arena,
// payload is referred to and must not change until Send returns. The bytes of
// one packet's end and of the next one's header lie side by side in the arena,
// so that a train of n packets with one payload piece each takes 2n+1 elements.
type Batch struct {
	packets []packet
	sizes   []int32
	frags   [][]byte
	arena   []byte
	io      sendArrays
}

// bytesPerCall bounds what is given to the kernel in one call: enough that the
// call itself costs little, small enough that the receiver starts early and
// that the payload is still in the cache when the kernel copies what the sealer
// has just read.
const bytesPerCall = 48 << 10

// NewBatch makes a batch for about n packets; it grows where that is too few.
func NewBatch(n int) *Batch {
	return &Batch{
		packets: make([]packet, 0, n), sizes: make([]int32, 0, n),
		frags: make([][]byte, 0, 2*n), arena: make([]byte, 0, 64*n+copyLimit*8), io: newSendArrays(n),
	}
}

// Len is the number of packets in the batch.
func (b *Batch) Len() int { return len(b.packets) }

// Reset empties the batch.
func (b *Batch) Reset() {
	b.packets, b.sizes, b.arena = b.packets[:0], b.sizes[:0], b.arena[:0]
	clear(b.frags)
	b.frags = b.frags[:0]
}

// Add appends a packet: header, payload pieces of size bytes in all, pad bytes
// (0 to 3), and the ICRC that Send will ask for.
func (b *Batch) Add(d *Dest, header []byte, payload [][]byte, size, pad int) {
	p := packet{dest: d, head: int32(len(b.arena)), frag: int32(len(b.frags))}
	b.arena = append(b.arena, header...)
	p.tail = int32(len(b.arena))
	if size > 0 && size <= copyLimit {
		for _, f := range payload {
			b.arena = append(b.arena, f...)
		}
		// Should the arena move later, the copy in the old one serves as well.
		b.frags = append(b.frags, b.arena[p.tail:])
		p.tail = int32(len(b.arena))
	} else {
		for _, f := range payload {
			if len(f) > 0 {
				b.frags = append(b.frags, f)
			}
		}
	}
	var zero [8]byte
	b.arena = append(b.arena, zero[:pad+4]...)
	p.end = int32(len(b.arena))
	p.fragEnd = int32(len(b.frags))
	p.header = int32(len(header))
	p.size = int32(len(header) + size + pad + 4)
	b.packets = append(b.packets, p)
	b.sizes = append(b.sizes, p.size)
}

// Send sends every packet of the batch. A packet that the kernel refuses is
// counted and is lost as if the wire had lost it; the error is for a socket that
// is gone.
func (s *Socket) Send(b *Batch, seal Sealer) error {
	for next := 0; next < len(b.packets); {
		first := next
		b.io.reset(len(b.packets), len(b.frags))
		rules := trainRules{gso: s.gso.Load(), equalTail: s.feat.EqualTail}
		for bytes := 0; next < len(b.packets) && bytes < bytesPerCall; {
			d := b.packets[next].dest
			n := trainLen(b.sizes[next:], func(i int) bool { return b.packets[next+i].dest == d }, rules)
			bytes += b.build(next, n, seal)
			next += n
		}
		done, err := s.push(b)
		if err != nil {
			return err
		}
		next = first + done
	}
	return nil
}

// build makes one message of n packets from the given one on.
func (b *Batch) build(from, n int, seal Sealer) (bytes int) {
	b.io.begin()
	for i := range n {
		p := &b.packets[from+i]
		header, payload := b.arena[p.head:p.head+p.header], b.frags[p.frag:p.fragEnd]
		binary.LittleEndian.PutUint32(b.arena[p.end-4:], seal.ICRC(uint16(i), header, payload, int(p.end-p.tail)-4))
		b.io.add(header)
		for _, f := range payload {
			b.io.add(f)
		}
		b.io.add(b.arena[p.tail:p.end])
		bytes += int(p.size)
	}
	b.io.finish(b.packets[from].dest, n, b.sizes[from])
	return bytes
}

// push gives the built messages to the kernel and returns how many packets are
// done with, sent or dropped. It stops early when segmentation was turned off:
// the rest must be built again.
func (s *Socket) push(b *Batch) (packets int, err error) {
	for at := 0; at < b.io.messages(); {
		n, errno := b.io.send(s.fd, at)
		s.sendCalls.Add(1)
		for range n {
			packets += b.io.segments(at)
			at++
		}
		s.datagramsSent.Add(uint64(n))
		if errno == 0 {
			continue
		}
		switch judge(errno, at < b.io.messages() && b.io.segments(at) > 1) {
		case sendAgain:
		case sendWait:
			s.sendWaits.Add(1)
			if waitWritable(s.fd) {
				continue
			}
			fallthrough
		case sendDropped:
			s.lastErrno.Store(uint32(errno))
			s.sendDrops.Add(1)
			packets += b.io.segments(at)
			at++
		case sendNoGSO:
			s.lastErrno.Store(uint32(errno))
			s.gso.Store(false)
			return packets, nil
		case sendClosed:
			return packets, errno
		}
	}
	return packets, nil
}

// waitWritable waits a moment for room in the send buffer. It is bounded: what
// cannot be sent in that time is dropped and repeated by the protocol.
func waitWritable(fd int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for range 5 {
		n, err := unix.Poll(fds, 2)
		if n > 0 && err == nil {
			return fds[0].Revents&unix.POLLOUT != 0
		}
		if err != nil && err != unix.EINTR {
			return false
		}
	}
	return false
}

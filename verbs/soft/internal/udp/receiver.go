package udp

import (
	"golang.org/x/sys/unix"
)

// Datagram is one received datagram: a packet, or a train of packets that all
// have Seg bytes but for the last. Data is valid until the next Recv.
type Datagram struct {
	Data []byte
	Seg  int // 0: one packet
	From IP
	Port uint16
}

// Receiver holds the buffers that datagrams of one socket are received in.
type Receiver struct {
	s     *Socket
	mem   []byte
	bufs  [][]byte
	io    recvArrays
	grams []Datagram
	drops uint32 // last value of the socket's own counter
}

const recvBufferSize = 64 << 10

// NewReceiver makes a receiver for up to n datagrams a call. Its buffers are
// outside the Go heap: they are large and the kernel writes them.
func (s *Socket) NewReceiver(n int) (*Receiver, error) {
	mem, err := unix.Mmap(-1, 0, n*recvBufferSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	r := &Receiver{s: s, mem: mem, bufs: make([][]byte, n), grams: make([]Datagram, n)}
	for i := range r.bufs {
		r.bufs[i] = mem[i*recvBufferSize : (i+1)*recvBufferSize : (i+1)*recvBufferSize]
	}
	r.io = newRecvArrays(r.bufs)
	return r, nil
}

// Close frees the buffers.
func (r *Receiver) Close() error {
	mem := r.mem
	r.mem, r.bufs, r.grams = nil, nil, nil
	if mem == nil {
		return nil
	}
	return unix.Munmap(mem)
}

// Recv takes what is there, up to most datagrams, without blocking; none is not
// an error. Truncated datagrams and such of a foreign address family are left
// out.
func (r *Receiver) Recv(most int) ([]Datagram, error) {
	n, errno := r.io.recv(r.s.fd, min(most, len(r.bufs)))
	switch errno {
	case 0:
	case unix.EAGAIN, unix.EINTR:
		return nil, nil
	default:
		return nil, errno
	}
	r.s.recvCalls.Add(1)
	r.s.datagramsRecv.Add(uint64(n))
	k := 0
	for i := range n {
		size, truncated, control, name, nameLen := r.io.message(i)
		from, port, ok := parseSockaddr(name, nameLen)
		seg, drops, dropsOK := parseControl(control)
		if dropsOK && drops != r.drops {
			r.s.recvDrops.Add(uint64(drops - r.drops))
			r.drops = drops
		}
		if truncated || !ok {
			continue
		}
		r.grams[k] = Datagram{Data: r.bufs[i][:size], Seg: seg, From: from, Port: port}
		k++
	}
	return r.grams[:k], nil
}

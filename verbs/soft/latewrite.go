package soft

import (
	"bytes"
	"time"

	"github.com/railstore/railstore/verbs/soft/internal/wire"
)

// latePayload is payload of a WRITE that was acknowledged and is not in memory yet.
type latePayload struct {
	mr   *mr
	addr uint64
	data []byte
	by   time.Duration
	due  int64 // in the device's time
}

// stepLate steps a QP with the packet in device.packet and keeps the payload of a
// WRITE back for that time, which may be 0; the QP's lock is held.
//
// Payload of a message longer than a word waits until it is so much behind the word
// that follows it. A receive's completion, a READ, an atomic and a SEND ask for
// order and push out what waits, and so does a word written over it.
func (d *device) stepLate(q *qp, now int64, late time.Duration) {
	p := &d.packet
	if late > 0 || len(q.late) > 0 {
		ordered := !isWrite(p.Opcode) && !p.Opcode.Response() || p.Opcode == wire.WriteLastImm || p.Opcode == wire.WriteOnlyImm
		if ordered {
			d.landAll(q)
		}
		word := p.Opcode == wire.WriteOnly && p.Length <= 8
		q.conn.Placer = func(dst, src []byte, rkey uint32, addr uint64) bool {
			if m := d.mrs.find(rkey); late > 0 && !word && !ordered && m.holds(addr, dst) {
				if len(q.late) == latePieces {
					d.landAll(q)
				}
				d.player.late.Add(1)
				q.late = append(q.late, latePayload{mr: m, addr: addr, data: bytes.Clone(src), by: late, due: later(now, late)})
				q.wakeAt(later(now, late))
				return true
			}
			for i := range q.late {
				l := &q.late[i]
				if l.addr < addr+uint64(len(src)) && addr < l.addr+uint64(len(l.data)) {
					d.landAll(q)
					return false
				}
			}
			if word {
				for i := range q.late {
					l := &q.late[i]
					l.due = later(now, l.by)
				}
			}
			return false
		}
		defer func() { q.conn.Placer = nil }()
	}
	out := d.reply.out
	q.conn.Step(now, p, out)
	if len(out.Done) > 0 || len(out.Events) > 0 {
		d.complete(q, d.reply)
	}
}

// land puts payload that is due into memory, in the order in which it came; the
// QP's lock is held. What was deregistered meanwhile is left alone.
func (d *device) land(q *qp, now int64) {
	n := 0
	for ; n < len(q.late) && q.late[n].due <= now; n++ {
		l := &q.late[n]
		if m := d.mrs.find(l.mr.lkey); m == l.mr {
			if b, ok := m.slice(l.addr, uint64(len(l.data))); ok {
				copy(b, l.data)
			}
		}
	}
	d.player.late.Add(-int32(n))
	q.late = q.late[:copy(q.late, q.late[n:])]
	if len(q.late) == 0 {
		q.late = nil
		return
	}
	q.wakeAt(q.late[0].due)
}

// holds reports whether b is the region's memory at addr.
func (m *mr) holds(addr uint64, b []byte) bool {
	if m == nil {
		return false
	}
	own, ok := m.slice(addr, uint64(len(b)))
	return ok && &own[0] == &b[0]
}

func (d *device) landAll(q *qp) {
	if len(q.late) == 0 {
		return
	}
	for i := range q.late {
		q.late[i].due = 0
	}
	d.land(q, 1)
}

// wakeAt has the scan of the timers look at the QP then; its lock is held.
func (q *qp) wakeAt(t int64) {
	if q.wake == 0 || t < q.wake {
		q.wake = t
	}
}

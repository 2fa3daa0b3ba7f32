package deploy

import "strconv"

// HostBudget is what a deployment takes of one host.
//
// A process has per peer (a shard: maxClients, a client: the number of shards)
// qpsPerClientPerShard QPs, or one a rail if that is more. A QP has slotsPerQP ×
// (requestBytes + responseBytes) of memory at either end. A shard adds its slab and, when
// there are tables, its row store (without, it registers none before one is made), a
// client maxStagingBytes. All of it is registered on every rail. The schema's rules have
// the same sums.
type HostBudget struct {
	Host      string
	Processes []ProcessBudget
	Rails     []RailBudget

	RegisteredBytes int64 // of all processes, each byte once
	MemlockBytes    int64 // what `ulimit -l` must allow its largest process
	QPs, CQEs       int   // of all processes
}

// ProcessBudget is one process of a host.
type ProcessBudget struct {
	Name  string   // shard/0, client
	Rails []string // that it uses
	Peers int

	LaneBytes    int64
	SlabBytes    int64 // a shard's, for stripes
	StoreBytes   int64 // a shard's, for rows
	StagingBytes int64 // a client's, for objects

	RegisteredBytes int64 // each byte once
	// MemlockBytes counts every byte once for each device of libibverbs that it is
	// registered on, as the kernel does; soft pins nothing.
	MemlockBytes int64

	QPs        int // on all rails together
	CQs        int // of a rail: a shard has one for each polling thread
	QueueCQEs  int // of one: a peer may put all its QPs on one rail
	RailCQEs   int // of all those of a rail
	CQEs       int // of all its completion queues
	RailQPs    []int
	ibvDevices int
}

// RailBudget is one rail of a host, over all processes that use it.
type RailBudget struct {
	Name            string
	Device          string
	RegisteredBytes int64
	QPs, CQEs       int
}

// SendWR is the send queue of a shard's or a client's QP, as verbs/lane makes it: of
// every slot two requests in flight and two that are not polled yet, the bulk
// transfers of a shard, and some slack.
func (l *Lanes) SendWR(shard bool) int {
	if shard {
		return 4*l.Slots + 16 + 8
	}
	return 4*l.Slots + 8
}

// RecvWR is the receive queue of a QP: two of every slot and some slack, if words come
// with an immediate.
func (l *Lanes) RecvWR() int {
	if l.Notify == "scan" {
		return 0
	}
	return 2*l.Slots + 2
}

// LaneBytes is the registered memory of one QP's slots, the same at both ends.
func (l *Lanes) LaneBytes() int64 { return int64(l.Slots) * (l.RequestBytes + l.ResponseBytes) }

// Budget is what the deployment takes of each host, in the recipe's order. It
// follows from the deployment alone.
func (d *Deployment) Budget() []HostBudget {
	clients := d.clientHosts()
	out := make([]HostBudget, 0, len(d.Hosts))
	for i := range d.Hosts {
		h := &d.Hosts[i]
		b := HostBudget{Host: h.Name}
		for _, r := range h.Rails {
			b.Rails = append(b.Rails, RailBudget{Name: r.Name, Device: r.Device})
		}
		for k := range d.Shards {
			s := &d.Shards[k]
			if s.Host != h.Name {
				continue
			}
			p := d.process("shard/"+strconv.Itoa(s.ID), d.ShardRails(s), d.Lanes.MaxClients, d.Lanes.SendWR(true), max(d.Server.Threads, 1))
			p.SlabBytes = s.Slab
			if len(d.Tables) > 0 {
				p.StoreBytes = s.Store.Memory
			}
			b.add(p)
		}
		if clients[h.Name] {
			p := d.process("client", h.Rails, len(d.Shards), d.Lanes.SendWR(false), 1)
			p.StagingBytes = d.Reader.MaxStaging
			b.add(p)
		}
		out = append(out, b)
	}
	return out
}

// Totals are the lanes and slots of one client to all shards.
func (d *Deployment) Totals() (lanes, slots int) {
	lanes = d.Lanes.QPs * len(d.Shards)
	return lanes, lanes * d.Lanes.Slots
}

func (d *Deployment) process(name string, rails []Rail, peers, sendWR, cqs int) ProcessBudget {
	perPeer := max(d.Lanes.QPs, len(rails))
	p := ProcessBudget{Name: name, Peers: peers, QPs: peers * perPeer, CQs: cqs}
	p.LaneBytes = int64(p.QPs) * d.Lanes.LaneBytes()
	// The QPs are divided among the CQs. One QP more: completions of a destroyed one may
	// still be there when its successor works.
	p.QueueCQEs = ((p.QPs+cqs-1)/cqs + 1) * (sendWR + d.Lanes.RecvWR())
	p.RailCQEs = p.QueueCQEs * cqs
	p.CQEs = p.RailCQEs * len(rails)
	for i, r := range rails {
		p.Rails = append(p.Rails, r.Name)
		n := perPeer / len(rails)
		if i < perPeer%len(rails) {
			n++
		}
		p.RailQPs = append(p.RailQPs, n*peers)
		if dev, err := ParseDevice(r.Device); err == nil && dev.Provider == "ibv" {
			p.ibvDevices++
		}
	}
	return p
}

func (b *HostBudget) add(p ProcessBudget) {
	p.RegisteredBytes = p.LaneBytes + p.SlabBytes + p.StoreBytes + p.StagingBytes
	p.MemlockBytes = p.RegisteredBytes * int64(p.ibvDevices)
	b.Processes = append(b.Processes, p)
	b.RegisteredBytes += p.RegisteredBytes
	b.MemlockBytes = max(b.MemlockBytes, p.MemlockBytes)
	b.QPs += p.QPs
	b.CQEs += p.CQEs
	for i := range b.Rails {
		for k, name := range p.Rails {
			if b.Rails[i].Name == name {
				b.Rails[i].RegisteredBytes += p.RegisteredBytes
				b.Rails[i].QPs += p.RailQPs[k]
				b.Rails[i].CQEs += p.RailCQEs
			}
		}
	}
}

// clientHosts are the hosts from which clients call: those without a shard, those
// that jobs name, and the one that commands take.
func (d *Deployment) clientHosts() map[string]bool {
	out := map[string]bool{}
	for i := range d.Hosts {
		if d.shardsOn(d.Hosts[i].Name) == 0 {
			out[d.Hosts[i].Name] = true
		}
	}
	for i := range d.Jobs {
		out[d.Jobs[i].Host] = true
	}
	if h := d.ClientHost(); h != nil {
		out[h.Name] = true
	}
	return out
}

package ps

// planner sorts the positions of a batch by place. Its memory is used again.
type planner struct {
	starts  []int32 // of each place in order; one more at the end
	longest int     // keys of the place that has most

	routed bool // order has all positions
	united bool
	next   []int32 // of a position: where its key comes again, or -1

	places []uint16
	order  []int32
	fill   []int32
	heads  []int32 // by number of the unique key: the position that stands for it
	tails  []int32
	slots  []int32 // a hash table of numbers + 1
}

// route sorts by place, the order of each place's positions kept. nil is all positions as
// they are, at one place.
func (p *planner) route(keys []uint64, shards, only int) []int32 {
	p.united, p.routed = false, false
	p.starts = resize(p.starts, shards+1)
	clear(p.starts)
	if only < 0 && shards == 1 {
		only = 0
	}
	if only >= 0 {
		for i := only + 1; i <= shards; i++ {
			p.starts[i] = int32(len(keys))
		}
		p.longest = len(keys)
		return nil
	}
	p.places = resize(p.places, len(keys))
	for i, k := range keys {
		s := ShardOf(k, shards)
		p.places[i] = uint16(s)
		p.starts[s+1]++
	}
	p.longest = 0
	for i := range shards {
		p.longest = max(p.longest, int(p.starts[i+1]))
		p.starts[i+1] += p.starts[i]
	}
	p.order = resize(p.order, len(keys))
	p.fill = append(p.fill[:0], p.starts...)
	for i, s := range p.places {
		p.order[p.fill[s]] = int32(i)
		p.fill[s]++
	}
	p.routed = true
	return p.order
}

// unite leaves one position of each key in the order and chains the others to it: the
// first one with all that follow (sum), or the last one with those before.
func (p *planner) unite(keys []uint64, sum bool) []int32 {
	if !p.routed {
		p.order = resize(p.order, len(keys))
		for i := range p.order {
			p.order[i] = int32(i)
		}
	}
	size := 16
	for size < 2*len(keys) {
		size *= 2
	}
	p.slots = resize(p.slots, size)
	clear(p.slots)
	p.next = resize(p.next, len(keys))
	p.heads, p.tails = p.heads[:0], p.tails[:0]
	out, at := p.order, 0
	p.longest = 0
	for place := range len(p.starts) - 1 {
		from, to := int(p.starts[place]), int(p.starts[place+1])
		firstUnique := len(p.heads)
		for _, pos := range out[from:to] {
			p.add(keys, pos, sum, size)
		}
		p.starts[place] = int32(at)
		at += copy(out[at:], p.heads[firstUnique:])
		p.longest = max(p.longest, len(p.heads)-firstUnique)
	}
	p.starts[len(p.starts)-1] = int32(at)
	p.united = true
	return out[:at]
}

func (p *planner) add(keys []uint64, pos int32, sum bool, size int) {
	key := keys[pos]
	for i := int(Mix(key^0x9e3779b97f4a7c15)) & (size - 1); ; i = (i + 1) & (size - 1) {
		u := p.slots[i] - 1
		switch {
		case u < 0:
			p.slots[i] = int32(len(p.heads)) + 1
			p.heads = append(p.heads, pos)
			p.tails = append(p.tails, pos)
			p.next[pos] = -1
		case keys[p.heads[u]] != key:
			continue
		case sum:
			p.next[p.tails[u]] = pos
			p.next[pos] = -1
			p.tails[u] = pos
		default:
			p.next[pos] = p.heads[u]
			p.heads[u] = pos
		}
		return
	}
}

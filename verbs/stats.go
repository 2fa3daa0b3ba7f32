package verbs

// add sums up counters.
func (s *QPStats) add(o QPStats) {
	s.Requests += o.Requests
	s.PacketsSent += o.PacketsSent
	s.PacketsReceived += o.PacketsReceived
	s.BytesSent += o.BytesSent
	s.BytesReceived += o.BytesReceived
	s.Retransmits += o.Retransmits
	s.Timeouts += o.Timeouts
	s.NAKsSent += o.NAKsSent
	s.NAKsReceived += o.NAKsReceived
	s.RNRNAKs += o.RNRNAKs
	s.Duplicates += o.Duplicates
}

// QPStats are the counters of all QPs that the device had since it was opened,
// those that are destroyed included: they only grow. ok is false when no QP has
// counted: the device has had none, or its driver does not count.
func (c *Context) QPStats() (sum QPStats, ok bool) {
	// The lock is held all the time, so that a QP which is destroyed meanwhile is
	// neither missed nor added twice.
	c.mu.Lock()
	defer c.mu.Unlock()
	sum, ok = c.past, c.counts
	for _, q := range c.qps {
		if s, is := q.drv.(StatsReporter); is {
			sum.add(s.Stats())
			ok = true
		}
	}
	return sum, ok
}

// keepStats takes over the counters of a QP that loses them. c.mu is held.
func (c *Context) keepStats(q *QP) {
	if s, ok := q.drv.(StatsReporter); ok {
		c.past.add(s.Stats())
		c.counts = true
	}
}

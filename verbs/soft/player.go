package soft

// player plays a driver's fault script on one device.
type player struct {
	dev    *device
	script *script
	// Packets that are held back, by the time when they are due. Guarded by
	// script.mu.
	in, out []*heldPacket
}
type heldPacket struct {
	due   int64
	fault int
}

func (p *player) letGo(id int) {}

package table

// Stats is how much memory a store has, and for what.
type Stats struct {
	Limit          int64     `json:"limit_bytes"`
	Used           int64     `json:"used_bytes"`
	ChunkBytes     int64     `json:"chunk_bytes"` // from Memory
	Chunks         int       `json:"chunks"`
	IndexBytes     int64     `json:"index_bytes"`
	FreePages      int       `json:"free_pages"`
	PageBytes      int       `json:"page_bytes"`
	FreeSegments   int       `json:"free_segments"`
	WaitSegments   int       `json:"waiting_segments"` // for pins
	WaitTables     int       `json:"waiting_tables"`   // cleared or dropped, for pins
	Clients        int       `json:"clients"`
	Tables         int       `json:"tables"`
	Epoch          uint64    `json:"epoch"`
	OldestPinEpoch uint64    `json:"oldest_pin_epoch"`
	Pins           []PinInfo `json:"pins"`
}

// TableStats is how much memory a table has.
type TableStats struct {
	Rows      int   `json:"rows"`
	RowBytes  int   `json:"row_bytes"`
	SlotBytes int   `json:"slot_bytes"` // a row, its state, and what aligns the next
	Pages     int   `json:"pages"`
	Slots     int64 `json:"slots"` // of these pages
	FreeSlots int64 `json:"free_slots"`
	WaitSlots int64 `json:"waiting_slots"` // replaced or deleted, for pins or the next look
	Segments  int   `json:"segments"`
	Depth     int   `json:"depth"` // of the directory
}

// Stats looks at the store; it is not for the hot path.
func (s *Store) Stats() Stats {
	s.tables.mu.Lock()
	tables := len(s.tables.byName)
	s.tables.mu.Unlock()
	s.clients.mu.Lock()
	clients := len(s.clients.byID)
	s.clients.mu.Unlock()
	pins := s.epochs.held()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{Limit: s.limit, Used: s.used, Chunks: len(s.chunks), IndexBytes: s.indexBytes, FreePages: len(s.freePages),
		PageBytes: s.pageBytes, FreeSegments: len(s.freeSegments), WaitSegments: len(s.oldSegments), WaitTables: len(s.graves),
		Clients: clients, Tables: tables, Epoch: s.epochs.now.Load(), OldestPinEpoch: s.epochs.oldest(), Pins: pins}
	for _, c := range s.chunks {
		st.ChunkBytes += int64(len(c.Bytes))
	}
	return st
}

// Stats looks at the table; all zero when it was dropped.
func (t *Table) Stats() TableStats {
	p, b, err := t.enter()
	if err != nil {
		return TableStats{}
	}
	defer p.release()
	st := TableStats{Rows: int(b.rows.Load()), RowBytes: t.layout.row, SlotBytes: t.layout.slot}
	d := b.dir.Load()
	st.Depth = int(d.depth)
	for i := 0; i < len(d.segments); st.Segments++ {
		// The depth of a segment never changes, so the way over this directory is right also
		// while segments are replaced.
		i += 1 << (d.depth - min(d.depth, d.segments[i].Load().depth))
	}
	b.slab.mu.Lock()
	defer b.slab.mu.Unlock()
	l := &b.slab
	st.Pages = len(l.pages)
	st.Slots = int64(len(l.pages)) * int64(l.per)
	st.FreeSlots = int64(l.nfree) + int64(l.left) + int64(l.unused)*int64(l.per)
	st.WaitSlots = int64(l.retired.n)
	return st
}

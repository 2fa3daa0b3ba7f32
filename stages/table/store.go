package table

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
)

// Config is what a Store is opened with. Zero fields have defaults.
type Config struct {
	// Memory gives the chunks of rows. Default: NewRegions().
	Memory Memory
	// Limit bounds the bytes of rows, index and directories; 0: none.
	Limit int64
	// ChunkBytes is what Memory is asked for at a time; less where Limit leaves less.
	// Default 64 MiB, rounded up to pages.
	ChunkBytes int
	// PageBytes is how much a table takes at a time, at least one slot (a row and its
	// state) long; a multiple of 64. Default 2 MiB.
	PageBytes int
	// Clients bounds how many clients' tokens are remembered. Default 4096.
	Clients int
	// TokenWindow is how many sequences of a client are remembered, rounded up to a power
	// of two. Default 1024; four bytes each, on Go's heap and not part of Limit.
	TokenWindow int
	// Seed makes the places of keys the same in every run; 0: a secret one.
	Seed uint64
}

// Store is tables and their memory.
type Store struct {
	table  atomic.Pointer[chunkTable]
	epochs epochs
	mix    mixer
	state  atomic.Int32 // open, closing, closed

	memory      Memory
	indexMemory Memory
	limit       int64
	chunkBytes  int
	pageBytes   int
	clients     clients
	history     history
	batches     sync.Pool // of *batch

	tables struct {
		mu     sync.Mutex
		byName map[string]*Table
	}
	files files

	mu           sync.Mutex
	used         int64
	chunks       []*Chunk
	freePages    []uint64
	indexChunks  []*Chunk
	indexBytes   int64
	freeSegments []*lines
	oldSegments  []retiredSegment
	graves       []grave
}

const (
	open int32 = iota
	closing
	closed
)

const (
	defaultChunkBytes  = 64 << 20
	defaultPageBytes   = 2 << 20
	defaultClients     = 4096
	defaultTokenWindow = 1024
	maxTokenWindow     = 1 << 20
)

// Open makes an empty store. It takes no memory before there is a table.
func Open(c Config) (*Store, error) {
	bad := func(field string, got any, want string) (*Store, error) {
		return nil, fail("table_open", &ShapeError{Field: "config." + field, Got: got, Want: want})
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, fail("table_open", errors.New("rows go over the wire and into snapshots as they lie in memory, which must be little-endian"))
	}
	if c.Memory == nil {
		c.Memory = NewRegions()
	}
	if c.PageBytes == 0 {
		c.PageBytes = defaultPageBytes
	}
	if c.ChunkBytes == 0 {
		c.ChunkBytes = defaultChunkBytes
	}
	if c.Clients == 0 {
		c.Clients = defaultClients
	}
	if c.TokenWindow == 0 {
		c.TokenWindow = defaultTokenWindow
	}
	switch {
	case c.Limit < 0:
		return bad("limit", c.Limit, "0 (none) or more")
	case c.PageBytes < rowAlign || c.PageBytes > 1<<30 || c.PageBytes%rowAlign != 0:
		return bad("page_bytes", c.PageBytes, "a multiple of 64 up to 1 GiB")
	case c.ChunkBytes < 0 || c.ChunkBytes > 1<<38:
		return bad("chunk_bytes", c.ChunkBytes, "up to 256 GiB")
	case c.Clients < 0:
		return bad("clients", c.Clients, "0 (the default) or more")
	case c.TokenWindow < 0 || c.TokenWindow > maxTokenWindow:
		return bad("token_window", c.TokenWindow, fmt.Sprintf("up to %d", maxTokenWindow))
	}
	s := &Store{
		mix:         newMixer(c.Seed),
		memory:      c.Memory,
		indexMemory: NewRegions(),
		limit:       c.Limit,
		chunkBytes:  (c.ChunkBytes + c.PageBytes - 1) / c.PageBytes * c.PageBytes,
		pageBytes:   c.PageBytes,
		files:       diskFiles{},
	}
	s.clients.open(c.Clients, c.TokenWindow)
	s.history.open()
	s.batches.New = func() any { return new(batch) }
	s.tables.byName = make(map[string]*Table)
	s.table.Store(new(chunkTable))
	s.epochs.open(s)
	return s, nil
}

// enter begins a call: it holds a pin while it runs, so that Close sees it.
func (s *Store) enter() (*Pin, error) {
	for {
		p := s.epochs.acquire()
		switch s.state.Load() {
		case open:
			return p, nil
		case closed:
			p.release()
			return nil, ErrClosed
		}
		// Close is looking at the pins: a few loads later it has decided. Until then this
		// call must not count as one that runs.
		p.release()
		runtime.Gosched()
	}
}

// Init gives the table of a Spec, a new one if there is none of that name. A table that
// exists with another shape is a *ShapeError.
func (s *Store) Init(spec Spec) (*Table, error) {
	spec, err := spec.complete()
	if err != nil {
		return nil, fail("table_init", err)
	}
	l, err := s.layout(spec)
	if err != nil {
		return nil, fail("table_init", err)
	}
	p, err := s.enter()
	if err != nil {
		return nil, fail("table_init", err)
	}
	defer p.release()
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	if t, ok := s.tables.byName[spec.Name]; ok {
		if err := conflict(t.spec, spec); err != nil {
			return nil, fail("table_init", err)
		}
		return t, nil
	}
	b, err := s.newBody(l)
	if err != nil {
		return nil, fail("table_init", err)
	}
	t := &Table{store: s, spec: spec, layout: l}
	t.body.Store(b)
	s.tables.byName[spec.Name] = t
	return t, nil
}

// Drop removes a table with its rows; whether there was one. Its memory is free for
// others when calls and pins from before have ended.
func (s *Store) Drop(name string) (bool, error) {
	p, err := s.enter()
	if err != nil {
		return false, fail("table_drop", err)
	}
	defer p.release()
	s.tables.mu.Lock()
	t, ok := s.tables.byName[name]
	delete(s.tables.byName, name)
	s.tables.mu.Unlock()
	if !ok {
		return false, nil
	}
	if b := t.body.Swap(nil); b != nil {
		s.bury(b)
	}
	return true, nil
}

// Table is the table of a name, nil if there is none.
func (s *Store) Table(name string) *Table {
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	return s.tables.byName[name]
}

// Tables lists the tables by name.
func (s *Store) Tables() []*Table {
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	names := slices.Sorted(maps.Keys(s.tables.byName))
	out := make([]*Table, len(names))
	for i, n := range names {
		out[i] = s.tables.byName[n]
	}
	return out
}

// Close gives all memory back. While pins are held, or calls run, it is a *PinsError and
// changes nothing. What Memory does not take back is kept, and Close may be called again.
func (s *Store) Close() error {
	s.tables.mu.Lock()
	defer s.tables.mu.Unlock()
	if s.state.Load() != closed {
		s.state.Store(closing)
		if held := s.epochs.held(); len(held) > 0 {
			s.state.Store(open)
			return fail("table_close", &PinsError{Pins: held})
		}
		s.state.Store(closed)
		for _, t := range s.tables.byName {
			t.body.Store(nil)
		}
		clear(s.tables.byName)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.freePages, s.freeSegments, s.oldSegments, s.graves = nil, nil, nil, nil
	s.table.Store(new(chunkTable))
	var errs []error
	s.chunks, errs = s.releaseLocked(s.memory, s.chunks, errs)
	s.indexChunks, errs = s.releaseLocked(s.indexMemory, s.indexChunks, errs)
	if err := errors.Join(errs...); err != nil {
		return fail("table_close", &memoryError{err})
	}
	s.used, s.indexBytes = 0, 0
	return nil
}

func (s *Store) releaseLocked(m Memory, chunks []*Chunk, errs []error) ([]*Chunk, []error) {
	kept := chunks[:0]
	for _, c := range chunks {
		if err := m.Release(c); err != nil {
			errs = append(errs, fmt.Errorf("release chunk %d: %w", c.ID, err))
			kept = append(kept, c)
		}
	}
	return kept, errs
}

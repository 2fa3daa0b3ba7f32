package ctrl

import (
	"bytes"
	"errors"
	"slices"
	"sync"
)

// ErrChanged is what Apply returns when a condition does not hold.
var ErrChanged = errors.New("the stored value has changed")

// Store keeps small values under string keys. The catalog is written on it, so
// it decides what survives a crash. Keys sort by their bytes. Implementations are
// safe for concurrent use.
type Store interface {
	// Get gives the value of a key, which the caller may keep but not change.
	Get(key string) (value []byte, found bool, err error)
	// List gives keys that begin with prefix and sort after the key after, in
	// order, at most limit of them.
	List(prefix, after string, limit int) ([]Entry, error)
	// Apply makes all changes or, when a condition does not hold, none and
	// returns ErrChanged. When it returns nil they survive a crash as far as
	// the store does.
	Apply(conds []Cond, changes []Change) error
	Close() error
}

// Entry is a key with its value.
type Entry struct {
	Key   string
	Value []byte
}

// Cond holds while the key's value is Value; a nil Value is no value.
type Cond struct {
	Key   string
	Value []byte
}

// Change sets a key, or removes it when Value is nil.
type Change struct {
	Key   string
	Value []byte
}

func (c Cond) holds(have []byte, found bool) bool {
	return found == (c.Value != nil) && bytes.Equal(have, c.Value)
}

// memoryStore forgets with the process.
type memoryStore struct {
	mu     sync.RWMutex
	values map[string][]byte
	closed bool
}

// NewMemoryStore makes a store that lasts as long as the process.
func NewMemoryStore() Store { return &memoryStore{values: map[string][]byte{}} }

func (s *memoryStore) Get(key string) ([]byte, bool, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, false, ErrClosed
	}
	v, ok := s.values[key]
	return v, ok, nil
}

func (s *memoryStore) List(prefix, after string, limit int) ([]Entry, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return nil, ErrClosed
	}
	var keys []string
	for k := range s.values {
		if k > after && len(k) >= len(prefix) && k[:len(prefix)] == prefix {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	keys = keys[:min(len(keys), limit)]
	out := make([]Entry, len(keys))
	for i, k := range keys {
		out[i] = Entry{k, s.values[k]}
	}
	return out, nil
}

func (s *memoryStore) Apply(conds []Cond, changes []Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	for _, c := range conds {
		if v, ok := s.values[c.Key]; !c.holds(v, ok) {
			return ErrChanged
		}
	}
	for _, c := range changes {
		if c.Value == nil {
			delete(s.values, c.Key)
		} else {
			s.values[c.Key] = bytes.Clone(c.Value)
		}
	}
	return nil
}

func (s *memoryStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed, s.values = true, nil
	return nil
}

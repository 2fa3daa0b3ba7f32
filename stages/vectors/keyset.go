package vectors

import "math/bits"

// keySet remembers keys exactly: open addressing over a power of two of u64, at most
// three quarters full. The key 0 has a flag of its own, 0 being what is free.
type keySet struct {
	slots []uint64
	n     int
	zero  bool
}

// add says whether the key is new.
func (s *keySet) add(key uint64) bool {
	if key == 0 {
		was := s.zero
		s.zero = true
		return !was
	}
	if 4*(s.n+1) > 3*len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, max(1024, 2*len(old)))
		for _, k := range old {
			if k != 0 {
				s.slots[s.place(k)] = k
			}
		}
	}
	i := s.place(key)
	if s.slots[i] == key {
		return false
	}
	s.slots[i] = key
	s.n++
	return true
}

// place is where the key is or would go.
func (s *keySet) place(key uint64) int {
	mask := uint64(len(s.slots) - 1)
	hi, lo := bits.Mul64(key, 0x9e3779b97f4a7c15)
	for i := (hi ^ lo) & mask; ; i = (i + 1) & mask {
		if s.slots[i] == 0 || s.slots[i] == key {
			return int(i)
		}
	}
}

func (s *keySet) len() int {
	if s.zero {
		return s.n + 1
	}
	return s.n
}

package udp

import (
	"bytes"
	"testing"
)

func TestTrainLen(t *testing.T) {
	full := func(n int, size int32) []int32 {
		s := make([]int32, n)
		for i := range s {
			s[i] = size
		}
		return s
	}
	all := trainRules{gso: true, equalTail: true}
	for _, c := range []struct {
		name  string
		sizes []int32
		other int // first index that goes elsewhere; 0: none
		rules trainRules
		want  int
	}{
		{"none", nil, 0, all, 0},
		{"one", []int32{100}, 0, all, 1},
		{"no segmentation", full(5, 100), 0, trainRules{equalTail: true}, 1},
		{"equal", full(5, 100), 0, all, 5},
		{"smaller tail ends it", []int32{100, 100, 60, 60}, 0, all, 3},
		{"larger starts the next", []int32{60, 100, 100}, 0, all, 1},
		{"first smaller than tail", []int32{28, 28, 29}, 0, all, 2},
		{"other destination", full(5, 100), 3, all, 3},
		{"other destination at once", full(5, 100), 1, all, 1},
		{"64 segments", full(100, 100), 0, all, 64},
		{"64 segments, then a smaller", append(full(64, 100), 60), 0, all, 64},
		{"bytes", full(20, 4128), 0, all, 15},
		{"bytes with a small tail", append(full(15, 4128), 3000), 0, all, 16},
		{"bytes with a tail that is too large", append(full(15, 4128), 3588), 0, all, 15},
		{"equal tail refused", full(5, 100), 0, trainRules{gso: true}, 1},
		{"equal tail refused, smaller tail", []int32{100, 100, 60}, 0, trainRules{gso: true}, 3},
		{"equal tail refused, one", []int32{100}, 0, trainRules{gso: true}, 1},
	} {
		same := func(i int) bool { return c.other == 0 || i < c.other }
		if got := trainLen(c.sizes, same, c.rules); got != c.want {
			t.Errorf("%s: %d packets in the train, want %d", c.name, got, c.want)
		}
	}
}

func TestSegment(t *testing.T) {
	data := []byte("aaaabbbbcc")
	for _, c := range []struct {
		seg  int
		want []string
	}{
		{0, []string{"aaaabbbbcc"}},
		{-1, []string{"aaaabbbbcc"}},
		{4, []string{"aaaa", "bbbb", "cc"}},
		{5, []string{"aaaab", "bbbcc"}},
		{10, []string{"aaaabbbbcc"}},
		{11, []string{"aaaabbbbcc"}},
		{1, []string{"a", "a", "a", "a", "b", "b", "b", "b", "c", "c"}},
	} {
		n := Segments(len(data), c.seg)
		if n != len(c.want) {
			t.Errorf("segment size %d: %d segments, want %d", c.seg, n, len(c.want))
			continue
		}
		for i, w := range c.want {
			if got := Segment(data, c.seg, i); !bytes.Equal(got, []byte(w)) {
				t.Errorf("segment size %d, segment %d: %q, want %q", c.seg, i, got, w)
			}
		}
	}
	if n := Segments(0, 0); n != 1 {
		t.Errorf("empty datagram: %d segments, want 1", n)
	}
}

// FuzzSegment: the segments of any datagram are its bytes in order.
func FuzzSegment(f *testing.F) {
	f.Add([]byte("aaaabbbbcc"), 4)
	f.Fuzz(func(t *testing.T, data []byte, seg int) {
		var all []byte
		for i := range Segments(len(data), seg) {
			s := Segment(data, seg, i)
			if seg > 0 && len(s) > seg {
				t.Fatalf("segment of %d bytes, size %d", len(s), seg)
			}
			all = append(all, s...)
		}
		if !bytes.Equal(all, data) {
			t.Fatalf("segments are %q, want %q", all, data)
		}
	})
}

func FuzzParseControl(f *testing.F) {
	b := make([]byte, recvControl)
	f.Add(b[:putSegment(b, 0, 4096)])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		seg, _, _ := parseControl(data)
		if seg != 0 && len(data) < 20 {
			t.Fatalf("segment size %d out of %d bytes", seg, len(data))
		}
	})
}

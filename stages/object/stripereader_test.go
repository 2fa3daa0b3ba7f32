package object

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// A stripe comes back the same in whatever pieces it is read.
func TestStripeReader(t *testing.T) {
	s := openTestStore(t, t.TempDir())
	for i, n := range []int{1, Align, Align + 1, 5*Align - 1, 6 * Align, 6*Align + 77} {
		data := randomBytes(uint64(n), n)
		file, m := testStripe("x", 1, uint32(i), data)
		if err := s.Write(0, file, &m, data); err != nil {
			t.Fatal(err)
		}
		for _, piece := range []int{Align, 2 * Align, 7 * Align} {
			r, err := s.reader(0, file, m.Identity, uint64(n))
			if err != nil {
				t.Fatal(err)
			}
			var got []byte
			for left := n; left > 0; left -= min(left, piece) {
				b := make([]byte, min(left, piece))
				if err := r.next(b); err != nil {
					t.Fatal(err)
				}
				got = append(got, b...)
			}
			r.close()
			if !bytes.Equal(got, data) || r.meta != m {
				t.Errorf("%d bytes in pieces of %d: others came back, or %+v", n, piece, r.meta)
			}
		}
		for want, n := range map[error]int{ErrTooSmall: n - 1, ErrWrongLength: n + 1} {
			if _, err := s.reader(0, file, m.Identity, uint64(n)); !errors.Is(err, want) {
				t.Errorf("%d bytes wanted: %v, want %v", n, err, want)
			}
		}
	}
}

// A disk that fails in the middle of a stripe: the client hears of it, and nothing is
// written behind its back afterwards.
func TestFetchFailsInTheMiddle(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s := x.open(nil)
	defer x.shut(s)
	const n = 12 * Align
	ext, err := s.cfg.Slab.Acquire(context.Background(), n)
	if err != nil {
		t.Fatal(err)
	}
	defer ext.Release()
	p := ext.Piece(0, n)
	data := randomBytes(1, n)
	copy(p.Bytes, data)
	file, m := testStripe("x", 1, 0, data)
	ref := StripeRef{Identity: m.Identity, File: file, Length: n, XXH3: m.XXH3}
	at := Path{"a", 0}
	tr := s.cfg.Transport
	if err := tr.StoreStripe(context.Background(), at, ref, p); err != nil {
		t.Fatal(err)
	}
	reads := 0
	x.shards[0].step = func(step string) error {
		if step == "read" {
			if reads++; reads == 4 {
				return unix.EIO
			}
		}
		return nil
	}
	clear(p.Bytes)
	if _, err := tr.FetchStripe(context.Background(), at, ref, p, false); !errors.Is(err, ErrIO) || reads != 4 {
		t.Errorf("%v after %d reads of the file", err, reads)
	}
	was := bytes.Clone(p.Bytes)
	// Another request over the same path comes after whatever was on its way.
	if _, err := tr.DeleteStripe(context.Background(), at, ref); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(p.Bytes, was) || bytes.Equal(was, data) {
		t.Error("the memory changed after the answer, or all of it came")
	}
}

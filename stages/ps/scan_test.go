package ps

import (
	"encoding/binary"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/railstore/railstore/stages/table"
)

// TestScanOverShards: every key once, at the shard that it belongs to.
func TestScanOverShards(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		ss := s.session(nil)
		ctx := within(t, 30*time.Second)
		tb := s.table(ss, table.Spec{Name: "scan", Dim: 2})
		if _, _, err := tb.Scan().Next(ctx); err != io.EOF {
			t.Errorf("of an empty table: %v", err)
		}
		const n = 9000
		keys := seq(100, 100+n)
		if err := tb.Put(ctx, keys, make([]float32, 2*n)); err != nil {
			t.Fatal(err)
		}
		shards := ss.Shards()
		all := map[uint64]int{}
		collect := func(sc *Scan) {
			t.Helper()
			for {
				got, shard, err := sc.Next(ctx)
				if err == io.EOF {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				for _, k := range got {
					all[k]++
					if want := shards[ShardOf(k, len(shards))]; shard != want {
						t.Fatalf("key %d came from shard %d, want %d", k, shard, want)
					}
				}
			}
		}
		collect(tb.Scan())
		for _, k := range keys {
			if all[k] != 1 {
				t.Fatalf("key %d came %d times", k, all[k])
			}
		}
		if len(all) != n {
			t.Errorf("%d keys, want %d", len(all), n)
		}
		clear(all)
		one, err := tb.On(shards[1])
		if err != nil {
			t.Fatal(err)
		}
		collect(one.Scan())
		if len(all) < n/3 || len(all) > 2*n/3 {
			t.Errorf("one shard of %d has %d of %d keys", len(shards), len(all), n)
		}
		if _, err := ss.Drop(ctx, "scan"); err != nil {
			t.Fatal(err)
		}
		if _, _, err := tb.Scan().Next(ctx); !errors.Is(err, ErrNoTable) {
			t.Errorf("of a table that is gone: %v", err)
		}
	})
}

// TestHostileScans: what is no place to go on at ends all the same, and what has no room
// is refused.
func TestHostileScans(t *testing.T) {
	store, err := table.Open(table.Config{Memory: table.NewRegions()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	tab, err := store.Init(table.Spec{Name: "x", Dim: 1})
	if err != nil {
		t.Fatal(err)
	}
	keys := seq(0, 5000)
	if err := tab.Put(keys, make([]float32, len(keys))); err != nil {
		t.Fatal(err)
	}
	s := NewService(ServiceConfig{Store: store})
	defer func() { _ = s.Close() }()
	var r request
	r.setName("x")
	w, out := new(work), make([]byte, 64<<10)
	for _, from := range []uint64{0, 1, 1 << 63, 1<<63 + 12345, 1<<64 - 1} {
		n, err := s.scan(&r, binary.LittleEndian.AppendUint64(nil, from), out, w)
		if err != nil {
			t.Fatal(err)
		}
		if next := binary.LittleEndian.Uint64(out[responseHeader:]); next != 0 && next <= from || n < responseHeader+scanHeader {
			t.Errorf("after %#x comes %#x, %d bytes", from, next, n)
		}
	}
	if _, err := s.scan(&r, make([]byte, 8), out[:responseHeader+scanHeader+7], w); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	for _, b := range [][]byte{nil, make([]byte, 7), make([]byte, 16)} {
		if _, err := s.scan(&r, b, out, w); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
}

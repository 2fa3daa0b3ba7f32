package table

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sourcegraph/conc"
)

// memories are what concurrent tests run on: Go's heap, where the race detector sees
// every access, and mapped memory, where rows really lie.
var memories = map[string]func() Memory{
	"heap":   func() Memory { return newHeap() },
	"mapped": func() Memory { return NewRegions() },
}

// stamp fills a row with its key and version, checkStamp reads them back. Keys and
// versions stay below 1<<24, where float32 is exact.
func stamp(row []float32, key uint64, version int) {
	for i := range row {
		row[i] = float32(key)
		if i%2 == 1 {
			row[i] = float32(version)
		}
	}
}

func checkStamp(row []float32, key uint64) (version int, err error) {
	for i, f := range row {
		want := float32(key)
		if i%2 == 1 {
			want = row[1]
		}
		if f != want {
			return 0, fmt.Errorf("key %d: element %d is %v, want %v: the row is torn or another's: %v", key, i, f, want, row)
		}
	}
	return int(row[1]), nil
}

// TestReadersAndWriters lets readers look at rows that are written, deleted and moved by
// growth all the time. Each key has one writer, which counts its versions up, so a reader
// must never see an older one than before.
func TestReadersAndWriters(t *testing.T) {
	for name, memory := range memories {
		t.Run(name, func(t *testing.T) {
			const writers, readers, pinners = 3, 3, 2
			const dim, perWriter, extra, batch = 24, 700, 7000, 200
			seed := testSeed(t)
			s := openTest(t, Config{Memory: memory(), PageBytes: 4096, ChunkBytes: 1 << 20})
			tb := mustInit(t, s, Spec{Name: "t", Dim: dim})
			rounds := 150
			if testing.Short() {
				rounds = 40
			}
			var writing atomic.Int32
			writing.Store(writers)
			progress := make(chan struct{}) // one for each batch, to whoever waits for it
			stop := make(chan struct{})
			var work conc.WaitGroup
			var stopOnce sync.Once
			defer stopOnce.Do(func() { close(stop) })
			for w := range writers {
				work.Go(func() {
					defer func() {
						if writing.Add(-1) == 0 {
							stopOnce.Do(func() { close(stop) })
						}
					}()
					r := rand.New(rand.NewPCG(seed, uint64(w)))
					keys := make([]uint64, batch)
					rows := make([]float32, len(keys)*dim)
					for round := range rounds {
						span := perWriter
						if round > rounds/2 {
							span += extra // growth
						}
						for i := range keys {
							keys[i] = uint64(r.IntN(span)*writers + w)
							stamp(rows[i*dim:][:dim], keys[i], round*len(keys)+i+1)
						}
						if err := tb.Put(keys, rows); err != nil {
							t.Error(err)
							return
						}
						for i := range 10 {
							keys[i] = uint64(r.IntN(span)*writers + w)
						}
						if _, err := tb.Delete(keys[:10]); err != nil {
							t.Error(err)
							return
						}
						select {
						case progress <- struct{}{}:
						default:
						}
					}
				})
			}
			for i := range readers {
				work.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(100+i)))
					seen := make(map[uint64]int)
					keys := make([]uint64, 70)
					rows := make([]float32, len(keys)*dim)
					found := make([]uint64, 2)
					for {
						select {
						case <-stop:
							return
						default:
						}
						for i := range keys {
							keys[i] = uint64(r.IntN((perWriter + extra) * writers))
						}
						if _, err := tb.Get(keys, rows, found); err != nil {
							t.Error(err)
							return
						}
						for i, k := range keys {
							row := rows[i*dim:][:dim]
							if !bit(found, i) {
								for _, f := range row {
									if f != 0 {
										t.Errorf("missing key %d: %v", k, row)
										return
									}
								}
								continue
							}
							v, err := checkStamp(row, k)
							if err == nil && v < seen[k] {
								err = fmt.Errorf("key %d: version %d after %d", k, v, seen[k])
							}
							if err != nil {
								t.Error(err)
								return
							}
							seen[k] = v
						}
					}
				})
			}
			for i := range pinners {
				work.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(200+i)))
					keys := make([]uint64, 100)
					refs := make([]RowRef, len(keys))
					for {
						for i := range keys {
							keys[i] = uint64(r.IntN(perWriter * writers))
						}
						if !holdRows(t, s, tb, keys, refs, progress, stop) {
							return
						}
					}
				})
			}
			work.Wait()
			checkIndex(t, tb)
			if st := tb.Stats(); st.Segments <= 1<<firstDepth {
				t.Errorf("the index did not grow: %+v", st)
			}
			// Now that no pin is held, all that was replaced is used again: writing on takes no
			// more slots.
			before := tb.Stats().Slots
			keys := sequence(0, batch)
			for range before / batch * 3 {
				mustPut(t, tb, keys, make([]float32, batch*dim))
			}
			if after := tb.Stats().Slots; after > before+batch*2 {
				t.Errorf("%d slots, then %d after replacing the same rows over and over", before, after)
			}
		})
	}
}

// holdRows locates rows, waits under the pin until writers have written, and checks that
// the rows are as they were; false when the test is over.
func holdRows(t *testing.T, s *Store, tb *Table, keys []uint64, refs []RowRef, progress, stop chan struct{}) bool {
	pin := s.Pin("holder")
	defer pin.Unpin()
	if _, err := tb.Locate(pin, keys, refs); err != nil {
		t.Error(err)
		return false
	}
	chunks := *s.table.Load()
	was := make([]string, len(refs))
	for i, ref := range refs {
		if ref.Chunk >= 0 {
			was[i] = string(chunks[ref.Chunk][ref.Off:][:tb.layout.row])
		}
	}
	on := true
	for range 3 {
		select {
		case <-progress:
		case <-stop:
			on = false
		}
	}
	for i, ref := range refs {
		if ref.Chunk < 0 {
			continue
		}
		row := chunks[ref.Chunk][ref.Off:][:tb.layout.row]
		if _, err := checkStamp(asFloats(row), keys[i]); err != nil || string(row) != was[i] {
			t.Errorf("a row changed under a pin: %v", err)
			return false
		}
	}
	return on
}

// TestNoUpdateIsLost adds to the same few rows from everywhere.
func TestNoUpdateIsLost(t *testing.T) {
	for name, memory := range memories {
		t.Run(name, func(t *testing.T) {
			const workers, rounds, hot, dim = 6, 60, 50, 8
			seed := testSeed(t)
			s := openTest(t, Config{Memory: memory()})
			tb := mustInit(t, s, Spec{Name: "t", Dim: dim, Optimizer: Optimizer{Kind: SGD, LearningRate: 1}})
			counts := make([]atomic.Int64, hot)
			var work conc.WaitGroup
			for w := range workers {
				work.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(w)))
					for round := range rounds {
						keys := make([]uint64, 80)
						for i := range keys {
							k := r.IntN(hot)
							keys[i] = uint64(k)
							counts[k].Add(1)
						}
						// Others make the index grow under the updates.
						grow := sequence(1000+(w*rounds+round)*40, 40)
						if err := tb.Put(grow, make([]float32, len(grow)*dim)); err != nil {
							t.Error(err)
						}
						grads := rowsOf(keys, dim, func(uint64) float32 { return -1 })
						// Every batch is sent twice; the second must not count.
						token := Token{Client: uint64(w), Sequence: uint64(round + 1)}
						for try, want := range []bool{true, false} {
							if ok, err := tb.Update(keys, grads, token); err != nil || ok != want {
								t.Errorf("try %d: %v, %v", try, ok, err)
							}
						}
					}
				})
			}
			work.Wait()
			keys := sequence(0, hot)
			rows := make([]float32, hot*dim)
			if _, err := tb.Get(keys, rows, nil); err != nil {
				t.Fatal(err)
			}
			for i, f := range rows {
				if want := float32(counts[i/dim].Load()); f != want {
					t.Fatalf("key %d, element %d: %v after %v updates", i/dim, i%dim, f, want)
				}
			}
			checkIndex(t, tb)
			if want := hot + workers*rounds*40; tb.Len() != want {
				t.Errorf("%d rows, want %d", tb.Len(), want)
			}
		})
	}
}

// TestWritersGrowTheIndex puts different keys from everywhere into a table that begins
// empty, so that writers wait for segments that are being replaced. None may be lost.
func TestWritersGrowTheIndex(t *testing.T) {
	const workers, each = 6, 3000
	rounds := 30
	if testing.Short() || raceEnabled {
		rounds = 6
	}
	s := openTest(t, Config{PageBytes: 1 << 20, ChunkBytes: 1 << 20})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1})
	for range rounds {
		var work conc.WaitGroup
		for w := range workers {
			work.Go(func() {
				keys := sequence(w*each, each)
				rows := rowsOf(keys, 1, func(k uint64) float32 { return float32(k) })
				for i := 0; i < each; i += 50 {
					if err := tb.Put(keys[i:i+50], rows[i:i+50]); err != nil {
						t.Error(err)
					}
				}
			})
		}
		work.Wait()
		keys := sequence(0, workers*each)
		rows := make([]float32, len(keys))
		if n, err := tb.Get(keys, rows, nil); n != len(keys) || err != nil || tb.Len() != n {
			t.Fatalf("%d of %d keys are there, Len says %d: %v", n, len(keys), tb.Len(), err)
		}
		for i, f := range rows {
			if f != float32(i) {
				t.Fatalf("key %d has %v", i, f)
			}
		}
		if err := tb.Clear(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeysStayFound: keys that are not deleted are found at every moment, while others
// come and go, so that the segments with them are written anew all the time.
func TestKeysStayFound(t *testing.T) {
	for name, memory := range memories {
		t.Run(name, func(t *testing.T) {
			const stable, dim = 1500, 2
			s := openTest(t, Config{Memory: memory()})
			s.indexMemory = memory()
			tb := mustInit(t, s, Spec{Name: "t", Dim: dim})
			keys := sequence(0, stable)
			mustPut(t, tb, keys, rowsOf(keys, dim, func(k uint64) float32 { return float32(k + 1) }))
			stop := make(chan struct{})
			var work conc.WaitGroup
			for range 3 {
				work.Go(func() {
					rows := make([]float32, stable*dim)
					for {
						select {
						case <-stop:
							return
						default:
						}
						if n, err := tb.Get(keys, rows, nil); n != stable || err != nil {
							t.Errorf("%d of %d keys are found: %v", n, stable, err)
							return
						}
						for i, f := range rows {
							if f != float32(i/dim+1) {
								t.Errorf("key %d has %v", i/dim, f)
								return
							}
						}
						if n, err := tb.Exists(keys, nil); n != stable || err != nil {
							t.Errorf("%d of %d keys exist: %v", n, stable, err)
							return
						}
					}
				})
			}
			rounds := 400
			if testing.Short() || raceEnabled {
				rounds = 40
			}
			for i := range rounds {
				others := sequence(stable+i*4000, 4000)
				mustPut(t, tb, others, make([]float32, len(others)*dim))
				if _, err := tb.Delete(others); err != nil {
					t.Fatal(err)
				}
			}
			close(stop)
			work.Wait()
		})
	}
}

// TestSameTokenAtOnce sends one batch from many goroutines: one applies it, all others
// wait for that one and then say that it was applied.
func TestSameTokenAtOnce(t *testing.T) {
	s := openTest(t, Config{})
	const n, dim = 4000, 16 // long enough for the calls to meet
	tb := mustInit(t, s, Spec{Name: "t", Dim: dim, Optimizer: Optimizer{Kind: SGD, LearningRate: 1}})
	keys := sequence(0, n)
	grads := rowsOf(keys, dim, func(uint64) float32 { return -1 })
	for q := range 20 {
		var applied atomic.Int32
		var work conc.WaitGroup
		for range 8 {
			work.Go(func() {
				ok, err := tb.Update(keys, grads, Token{Client: 1, Sequence: uint64(q + 1)})
				if err != nil {
					t.Error(err)
				}
				if ok {
					applied.Add(1)
				}
				rows := make([]float32, n*dim)
				if _, err := tb.Get(keys, rows, nil); err != nil {
					t.Error(err)
				}
				for i, f := range rows {
					if f != float32(q+1) {
						t.Errorf("after batch %d key %d has %v", q+1, i/dim, f)
						return
					}
				}
			})
		}
		work.Wait()
		if applied.Load() != 1 {
			t.Fatalf("%d calls applied the batch", applied.Load())
		}
	}
}

// TestWholeTablesGo clears, drops, saves and loads tables that are read and written.
func TestWholeTablesGo(t *testing.T) {
	for name, memory := range memories {
		t.Run(name, func(t *testing.T) {
			const dim, keyCount = 12, 600
			seed := testSeed(t)
			s := openTest(t, Config{Memory: memory()})
			spec := Spec{Name: "t", Dim: dim, Optimizer: Optimizer{Kind: AdaGrad, LearningRate: 1, Eps: 1e-8}}
			mustInit(t, s, spec)
			other := mustInit(t, s, Spec{Name: "other", Dim: 2})
			mustPut(t, other, []uint64{9}, []float32{1, 2})
			stop := make(chan struct{})
			var work conc.WaitGroup
			for w := range 4 {
				work.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(w)))
					keys := make([]uint64, 60)
					rows := make([]float32, len(keys)*dim)
					found := make([]uint64, 1)
					for n := 1; ; n++ {
						select {
						case <-stop:
							return
						default:
						}
						tb := s.Table("t")
						if tb == nil {
							continue
						}
						for i := range keys {
							keys[i] = uint64(r.IntN(keyCount))
							stamp(rows[i*dim:][:dim], keys[i], n)
						}
						// Calls on a table that is dropped meanwhile say so; no other error may come.
						if w%2 == 0 {
							if err := tb.Put(keys, rows); err != nil && s.Table("t") == tb {
								t.Error(err)
							}
							continue
						}
						if _, err := tb.Get(keys, rows, found); err != nil {
							if s.Table("t") == tb {
								t.Error(err)
							}
							continue
						}
						for i, k := range keys {
							if bit(found, i) {
								if _, err := checkStamp(rows[i*dim:][:dim], k); err != nil {
									t.Error(err)
									return
								}
							}
						}
					}
				})
			}
			var snap []byte
			rounds := 60
			for i := range rounds {
				tb := s.Table("t")
				var err error
				switch i % 4 {
				case 0:
					err = tb.Clear()
				case 1:
					var buf bytes.Buffer
					_, err = s.SaveTo(ctx(t), &buf, SaveSpec{})
					snap = buf.Bytes()
				case 2:
					err = s.LoadFrom(ctx(t), bytes.NewReader(snap))
				case 3:
					if _, err = s.Drop("t"); err == nil {
						_, err = s.Init(spec)
					}
				}
				if err != nil {
					t.Error(err)
				}
			}
			close(stop)
			work.Wait()
			row := make([]float32, 2)
			if n, err := other.Get([]uint64{9}, row, nil); n != 1 || err != nil || row[1] != 2 {
				t.Error(n, err, row)
			}
			// With nobody left, the memory of old content serves the new.
			before := s.Stats()
			tb := s.Table("t")
			for range 50 {
				mustPut(t, tb, sequence(0, keyCount), make([]float32, keyCount*dim))
				if err := tb.Clear(); err != nil {
					t.Fatal(err)
				}
				if err := s.LoadFrom(ctx(t), bytes.NewReader(snap)); err != nil {
					t.Fatal(err)
				}
			}
			if st := s.Stats(); st.IndexBytes > before.IndexBytes+leastIndexBytes || st.Chunks > before.Chunks+8 || st.WaitTables > 2 {
				t.Errorf("%+v, then %+v", before, st)
			}
		})
	}
}

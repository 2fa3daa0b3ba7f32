package table

import "testing"

// TestWarmCallsDoNotAllocate: not a byte of Go's heap for calls that have been warm once.
func TestWarmCallsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("needs a build without -race: the detector allocates")
	}
	for _, kind := range []string{SGD, AdaGrad, RowwiseAdaGrad, Adam, AdamW} {
		s := openTest(t, Config{Memory: NewRegions(), PageBytes: 1 << 20, ChunkBytes: 1 << 20})
		tb := mustInit(t, s, Spec{Name: "t", Dim: 32, Optimizer: Defaults(kind)})
		keys := sequence(0, 300)
		keys[299] = 5 // twice
		rows := rowsOf(keys, 32, func(k uint64) float32 { return float32(k) })
		refs := make([]RowRef, len(keys))
		found := make([]uint64, 5)
		token := Token{Client: 1}
		check := func(what string, err error) {
			if err != nil {
				t.Fatal(what, err)
			}
		}
		for what, call := range map[string]func(){
			"put": func() { check("put", tb.Put(keys, rows)) },
			"get": func() { _, err := tb.Get(keys, rows, found); check("get", err) },
			"one": func() { _, err := tb.Get(keys[:1], rows[:32], nil); check("one", err) },
			"locate": func() {
				p := s.Pin("test")
				_, err := tb.Locate(p, keys, refs)
				p.Unpin()
				check("locate", err)
			},
			"exists": func() { _, err := tb.Exists(keys, found); check("exists", err) },
			"update": func() {
				token.Sequence++
				_, err := tb.Update(keys, rows, token)
				check("update", err)
			},
			"update again": func() { _, err := tb.Update(keys, rows, token); check("update again", err) },
			"delete and put": func() {
				_, err := tb.Delete(keys[:50])
				check("delete", err)
				check("put", tb.Put(keys[:50], rows[:50*32]))
			},
		} {
			for range 20 {
				call()
			}
			if n := testing.AllocsPerRun(200, call); n != 0 {
				t.Errorf("%s, %s: %v allocations", kind, what, n)
			}
		}
	}
}

package table

import (
	"errors"
	"math"
	"testing"
)

func TestTokens(t *testing.T) {
	s := openTest(t, Config{TokenWindow: 5, Clients: 2}) // rounded up to 8
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1, Optimizer: Optimizer{LearningRate: 1}})
	value := float32(0)
	send := func(client, seq uint64) (bool, error) {
		ok, err := tb.Update([]uint64{1}, []float32{-1}, Token{Client: client, Sequence: seq})
		if ok {
			value++
		}
		row := make([]float32, 1)
		if _, err := tb.Get([]uint64{1}, row, nil); err != nil || row[0] != value {
			t.Fatalf("%v, %v; want %v", row, err, value)
		}
		return ok, err
	}
	for _, c := range []struct {
		client, seq uint64
		applied     bool
	}{
		{1, 1, true}, {1, 1, false}, {1, 3, true}, {1, 2, true}, {1, 2, false}, {1, 3, false},
		{2, 1, true}, {2, 1, false}, // another client
		{2, 8, true}, {2, 10, true}, {2, 9, true}, {2, 9, false}, {2, 10, false}, // 9 has the place of 1
		{1, 10, true}, {1, 3, false}, {1, 4, true}, {1, 4, false}, {1, 9, true}, {1, 9, false}, {1, 10, false},
		{1, 1000, true}, {1, 994, true}, {1, 1000, false}, {1, 993, true}, {1, 993, false},
		{2, math.MaxUint64, true}, {2, math.MaxUint64, false}, {2, math.MaxUint64 - 7, true}, {2, math.MaxUint64 - 7, false},
	} {
		if ok, err := send(c.client, c.seq); ok != c.applied || err != nil {
			t.Fatalf("client %d, sequence %d: %v, %v", c.client, c.seq, ok, err)
		}
	}
	var te *TokenError
	for _, c := range []Token{{1, 992}, {1, 0}, {2, 5}, {2, math.MaxUint64 - 8}} {
		if ok, err := send(c.Client, c.Sequence); ok || !errors.As(err, &te) || te.Token != c {
			t.Fatal(ok, err)
		}
	}
	var le *LimitError
	if ok, err := send(3, 1); ok || !errors.As(err, &le) || le.Field != "clients" || layerOf(err) != "resource" {
		t.Fatal(ok, err)
	}
	if !s.Forget(1) || s.Forget(1) || s.Stats().Clients != 1 {
		t.Error("forget")
	}
	for _, want := range []bool{true, false} {
		if ok, err := send(3, 1); ok != want || err != nil {
			t.Fatal(ok, err)
		}
	}
	// No token, no memory of it.
	for range 3 {
		if ok, err := send(0, 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	// Tokens are of the store: the same one for another table is the same batch.
	other := mustInit(t, s, Spec{Name: "other", Dim: 1})
	if ok, err := other.Update([]uint64{1}, []float32{1}, Token{3, 1}); ok || err != nil || other.Len() != 0 {
		t.Error(ok, err)
	}
}

// TestTokensEndLate: an end that comes after the window has gone on, or after Forget,
// changes nothing of others.
func TestTokensEndLate(t *testing.T) {
	var c clients
	c.open(10, 4)
	begin := func(seq uint64, from int, done bool) {
		t.Helper()
		if f, d, err := c.begin(Token{1, seq}); f != from || d != done || err != nil {
			t.Fatalf("sequence %d: %d, %v, %v", seq, f, d, err)
		}
	}
	begin(1, 0, false)
	begin(5, 0, false) // in the place of 1
	c.end(Token{1, 1}, true, 3)
	c.end(Token{1, 5}, false, 7)
	begin(5, 7, false)
	c.end(Token{1, 5}, false, 0)
	begin(5, 0, false)
	delete(c.byID, 1)
	c.end(Token{1, 5}, true, 0)
	begin(5, 0, false)
}

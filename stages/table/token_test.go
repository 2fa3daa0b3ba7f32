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

// What is remembered of a client that seems to have ended: that its numbers are not known.
func TestExpiredClients(t *testing.T) {
	s := openTest(t, Config{TokenWindow: 8, Clients: 1})
	tb := mustInit(t, s, Spec{Name: "t", Dim: 1, Optimizer: Optimizer{LearningRate: 1}})
	send := func(client, seq uint64) (bool, error) {
		return tb.Update([]uint64{1}, []float32{-1}, Token{Client: client, Sequence: seq})
	}
	s.Expire(9) // nobody
	for client := uint64(1); client <= 3; client++ {
		for _, seq := range []uint64{1, 2, 5} {
			if ok, err := send(client, seq); !ok || err != nil {
				t.Fatalf("client %d, sequence %d: %v, %v", client, seq, ok, err)
			}
		}
		s.Expire(client)
		s.Expire(client)
	}
	if n := s.Stats().Clients; n != 0 {
		t.Errorf("%d clients are remembered", n)
	}
	// One that lives after all: what it sent before is not applied again, also 4, which was not.
	for _, seq := range []uint64{5, 4, 1, 6, 5, 7, 6} {
		ok, err := send(2, seq)
		var te *TokenError
		switch {
		case seq <= 5 && (ok || !errors.As(err, &te) || te.Oldest < 6):
			t.Errorf("sequence %d of an expired client: %v, %v", seq, ok, err)
		case seq > 5 && err != nil:
			t.Errorf("sequence %d of an expired client: %v, %v", seq, ok, err)
		}
	}
	s.Expire(2)
	if ok, err := send(2, 7); ok || err == nil {
		t.Errorf("expired twice: %v, %v", ok, err)
	}
	if ok, err := send(2, math.MaxUint64); !ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	s.Expire(2)
	for _, seq := range []uint64{1, 8, math.MaxUint64} {
		if ok, err := send(2, seq); ok || err == nil {
			t.Errorf("expired at the end of all numbers, sequence %d: %v, %v", seq, ok, err)
		}
	}
	row := make([]float32, 1)
	if _, err := tb.Get([]uint64{1}, row, nil); err != nil || row[0] != 12 {
		t.Errorf("%v, %v; want 12", row, err)
	}
	// What is kept has a bound.
	for client := uint64(100); client < 100+2*keepExpired; client++ {
		s.clients.byID[client] = &client1
		s.Expire(client)
	}
	if a, b := len(s.clients.expired), len(s.clients.order); a != keepExpired || b != a {
		t.Errorf("%d and %d are kept", a, b)
	}
}

var client1 = client{highest: 1}

package object

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/railstore/railstore/verbs"
)

func drawRequest(t *rapid.T) stripeRequest {
	return stripeRequest{
		StripeRef: StripeRef{
			Identity: Identity{
				Handle: rapid.StringN(0, MaxHandleBytes, MaxHandleBytes).Draw(t, "handle"), Generation: rapid.Uint64().Draw(t, "generation"),
				LayoutVersion: rapid.Uint64().Draw(t, "layout"), Index: rapid.Uint32().Draw(t, "index"),
			},
			Dir: int(rapid.Uint16().Draw(t, "dir")), File: rapid.StringN(0, maxFileBytes, maxFileBytes).Draw(t, "file"),
			Length: rapid.Uint64().Draw(t, "length"), XXH3: rapid.Uint64().Draw(t, "xxh3"),
		},
		shard: rapid.Uint32().Draw(t, "shard"), verify: rapid.Bool().Draw(t, "verify"),
		memory: [maxParts]verbs.RemoteRegion{drawRegion(t), drawRegion(t)},
	}
}

func drawRegion(t *rapid.T) verbs.RemoteRegion {
	return verbs.RemoteRegion{Addr: rapid.Uint64().Draw(t, "addr"), Length: rapid.Uint64().Draw(t, "len"), RKey: rapid.Uint32().Draw(t, "rkey")}
}

func TestRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRequest(t)
		buf := bytes.Repeat([]byte{0xAA}, MaxRequestBytes)
		n, err := r.encode(buf)
		if err != nil || n != r.size() || n > MaxRequestBytes {
			t.Fatal(n, err)
		}
		got, err := decodeRequest(buf[:n])
		if err != nil || got != r {
			t.Fatalf("%+v, %v", got, err)
		}
		// Every shorter and every longer message is refused.
		cut := rapid.IntRange(0, n-1).Draw(t, "cut")
		for _, b := range [][]byte{buf[:cut], append(bytes.Clone(buf[:n]), 0)} {
			if _, err := decodeRequest(b); !errors.Is(err, ErrBadRequest) {
				t.Fatalf("%d bytes of %d: %v", len(b), n, err)
			}
		}
		if _, err := r.encode(buf[:n-1]); !errors.Is(err, ErrBadRequest) {
			t.Fatalf("no room: %v", err)
		}
	})
	for name, r := range map[string]stripeRequest{
		"handle": {StripeRef: StripeRef{Identity: Identity{Handle: strings.Repeat("h", MaxHandleBytes+1)}}},
		"file":   {StripeRef: StripeRef{File: strings.Repeat("f", maxFileBytes+1)}},
		"dir":    {StripeRef: StripeRef{Dir: 1 << 16}},
		"dir -1": {StripeRef: StripeRef{Dir: -1}},
	} {
		if _, err := r.encode(make([]byte, 4096)); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestResponseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := stripeResponse{rapid.Bool().Draw(t, "existed"), rapid.Uint64().Draw(t, "length"), rapid.Uint64().Draw(t, "xxh3")}
		buf := bytes.Repeat([]byte{0xAA}, responseBytes)
		if got, err := decodeResponse(buf[:r.encode(buf)]); err != nil || got != r {
			t.Fatalf("%+v, %v", got, err)
		}
	})
	for _, b := range [][]byte{nil, make([]byte, responseBytes), bytes.Repeat([]byte{1}, responseBytes+1), {1, 2}} {
		if _, err := decodeResponse(b); !errors.Is(err, ErrInternal) {
			t.Errorf("%v: %v", b, err)
		}
	}
}

func TestStatusesAreDistinct(t *testing.T) {
	seen := map[int32]bool{}
	for _, e := range statusTable {
		if seen[e.status] || e.status >= 0 {
			t.Errorf("status %d", e.status)
		}
		seen[e.status] = true
		if statusOf(e.kind) != e.status {
			t.Errorf("%v has status %d, is sent as %d", e.kind, e.status, statusOf(e.kind))
		}
		back := errorOf(e.status, []byte("shard says so"))
		if !errors.Is(back, e.kind) || back.Error() != "shard says so" {
			t.Errorf("status %d came back as %v", e.status, back)
		}
		for _, o := range statusTable {
			if o.kind != e.kind && errors.Is(back, o.kind) {
				t.Errorf("%v is also %v", back, o.kind)
			}
		}
		if !errors.Is(errorOf(e.status, nil), e.kind) {
			t.Errorf("status %d without text", e.status)
		}
	}
	if statusOf(nil) != 0 || errorOf(0, nil) != nil || statusOf(errInjected) != statusInternal {
		t.Error("0 or the unknown")
	}
	if err := errorOf(-99, []byte("new")); !errors.Is(err, ErrInternal) || !strings.Contains(err.Error(), "-99") {
		t.Errorf("%v", err)
	}
}

func TestReasonIsCutAtACharacter(t *testing.T) {
	err := errors.New(strings.Repeat("ü", 600))
	for _, room := range []int{0, 1, 2, 7, 1023, 1024, 4096} {
		b := make([]byte, room)
		n := reason(b, err)
		if !utf8.Valid(b[:n]) || n > maxReasonBytes || n < min(room, maxReasonBytes)-1 {
			t.Errorf("room %d: %d bytes", room, n)
		}
	}
	if s := readable([]byte("a\nb\x00c\xff")); s != "a b c?" {
		t.Errorf("%q", s)
	}
}

func FuzzRequest(f *testing.F) {
	r := stripeRequest{StripeRef: StripeRef{Identity: Identity{Handle: "rso1"}, File: "ab/cd", Length: 7}, verify: true}
	buf := make([]byte, MaxRequestBytes)
	n, _ := r.encode(buf)
	f.Add(buf[:n])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRequest(b)
		if err != nil {
			if !errors.Is(err, ErrBadRequest) {
				t.Fatal(err)
			}
			return
		}
		out := make([]byte, len(b))
		if n, err := r.encode(out); err != nil || !bytes.Equal(out[:n], b) {
			t.Fatalf("%d bytes, %v: a request has two spellings", n, err)
		}
	})
}

func FuzzResponse(f *testing.F) {
	f.Add(int32(-33), []byte("no such file"))
	f.Add(int32(0), make([]byte, responseBytes))
	f.Fuzz(func(t *testing.T, status int32, b []byte) {
		if err := errorOf(status, b); (err == nil) != (status == 0) || err != nil && (!utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\n\x00")) {
			t.Fatalf("%v", err)
		}
		if r, err := decodeResponse(b); err == nil {
			out := make([]byte, responseBytes)
			if got, err := decodeResponse(out[:r.encode(out)]); err != nil || got != r {
				t.Fatalf("%+v, %v", got, err)
			}
		}
	})
}

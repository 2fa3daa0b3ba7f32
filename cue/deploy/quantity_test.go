package deploy_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "1": 1, "4096": 4096, "1B": 1, "0KiB": 0,
		"4K": 4000, "4KB": 4000, "4Ki": 4096, "4KiB": 4096,
		"1M": 1e6, "1MiB": 1 << 20, "2G": 2e9, "2GiB": 2 << 30, "3T": 3e12, "3TiB": 3 << 40,
		"999999TiB": 999999 << 40, "999999999999999999": 999999999999999999,
	} {
		if got, err := deploy.ParseSize(in); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", " 1", "1 K", "-1", "+1", "01", "1.5K", "1k", "1kb", "1mib", "1Kib", "KiB", "B", "1iB", "0x10", "1e3", "1_000",
		"9999999TiB", "9999999999GiB", "9999999999999999999", "18446744073709551616", "1KiBB"} {
		if got, err := deploy.ParseSize(in); err == nil {
			t.Errorf("%q: got %d, want an error", in, got)
		}
	}
}

func TestFormatSize(t *testing.T) {
	for want, n := range map[string]int64{"0": 0, "1": 1, "1000": 1000, "1KiB": 1024, "1025": 1025, "64KiB": 64 << 10, "128MiB": 128 << 20, "3GiB": 3 << 30, "1TiB": 1 << 40, "-4KiB": -4096} {
		if got := deploy.FormatSize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

// FuzzParseSize: no text panics or overflows; what is written is read back.
func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"0", "4MiB", "64KB", "1M", "999999TiB", "1000000TiB", "-1", "18446744073709551615"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := deploy.ParseSize(s)
		if err != nil {
			return
		}
		if n < 0 {
			t.Errorf("%q is %d", s, n)
		}
		if n <= math.MaxInt64>>10 {
			if back, err := deploy.ParseSize(deploy.FormatSize(n)); err != nil || back != n {
				t.Errorf("%q is %d, written %s, read as %d, %v", s, n, deploy.FormatSize(n), back, err)
			}
		}
	})
}

func TestDuration(t *testing.T) {
	var d deploy.Duration
	if err := json.Unmarshal([]byte(`"1m30s"`), &d); err != nil || d.D() != 90*time.Second {
		t.Errorf("got %v, %v", d, err)
	}
	if b, err := json.Marshal(d); err != nil || string(b) != `"1m30s"` {
		t.Errorf("got %s, %v", b, err)
	}
	for _, bad := range []string{`5`, `"5"`, `"x"`, `null1`, `{}`} {
		if err := json.Unmarshal([]byte(bad), &d); err == nil {
			t.Errorf("%s: got %v, want an error", bad, d)
		}
	}
}

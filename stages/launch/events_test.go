package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
)

func TestLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	long := strings.Repeat("x", 10000)
	if err := os.WriteFile(path, []byte("one\n\n"+long+"\nlast"), 0o600); err != nil {
		t.Fatal(err)
	}
	var got []string
	add := func(b []byte) error { got = append(got, string(b)); return nil }
	if err := Lines(context.Background(), path, Position{}, false, add); err != nil {
		t.Fatal(err)
	}
	if len(got) != 4 || got[0] != "one" || got[1] != "" || got[2] != long || got[3] != "last" {
		t.Errorf("got %d lines: %.60q", len(got), got)
	}
	want := errors.New("enough")
	if err := Lines(context.Background(), path, Position{}, false, func([]byte) error { return want }); !errors.Is(err, want) {
		t.Errorf("an error of fn: %v", err)
	}
	if err := Lines(context.Background(), path+".none", Position{}, false, add); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func TestLinesFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	lines := make(chan string)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(lines)
		if err := Lines(ctx, path, Position{}, true, func(b []byte) error { lines <- string(b); return nil }); err != nil {
			t.Error(err)
		}
	})
	write := func(flag int, s string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flag, 0o600)
		if err == nil {
			_, err = f.WriteString(s)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		if got := <-lines; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	write(os.O_APPEND, "first line\nhal") // the file did not exist before
	expect("first line")
	write(os.O_APPEND, "f\n")
	expect("half")
	write(os.O_TRUNC, "new\n")
	expect("new")
	write(os.O_APPEND, "at the end\n")
	cancel()
	expect("at the end")
	if s, ok := <-lines; ok {
		t.Errorf("one more line: %q", s)
	}
	wg.Wait()
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	var b strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{
		{"a\nb\nc\n", 2, "b\nc\n"},
		{"a\nb\nc", 2, "b\nc"},
		{"a\nb\n", 2, "a\nb\n"},
		{"a\nb\n", 9, "a\nb\n"},
		{"a\nb\n", 0, ""},
		{"a\nb\n", -1, "a\nb\n"},
		{"", 3, ""},
		{"\n\n\n", 2, "\n\n"},
		{b.String(), 2, "line 19998\nline 19999\n"},
		{b.String(), 19999, b.String()[len("line 0\n"):]},
	} {
		if err := os.WriteFile(path, []byte(tc.text), 0o600); err != nil {
			t.Fatal(err)
		}
		at, err := Tail(context.Background(), path, tc.n, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := tc.text[at.offset:]; got != tc.want {
			t.Errorf("last %d lines of %.20q: %.40q, want %.40q", tc.n, tc.text, got, tc.want)
		}
	}
}

func TestFailure(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want string
	}{
		{errors.New("plain"), "plain"},
		{errors.New("two\nlines\n"), "two; lines"},
		{pipeline.Errorf(pipeline.LayerConnect, "connect", pipeline.Where{Shard: 1, Lane: 2, Rail: "b"}, "no answer"), "connect: shard 1 lane 2 rail b: no answer"},
		{pipeline.Errorf(pipeline.LayerDevice, "read", pipeline.AtShard(1).On("b"), "%w", verbs.WCRetryExceeded), "read: shard 1 rail b: transport retry counter exceeded (RETRY_EXC(12))"},
		{pipeline.Errorf(pipeline.LayerControl, "listen", pipeline.Nowhere, "127.0.0.1:1: %w", syscall.EADDRINUSE), "listen: 127.0.0.1:1: address already in use (EADDRINUSE(98))"},
		{fmt.Errorf("around: %w", pipeline.Errorf(pipeline.LayerControl, "listen", pipeline.AtShard(0), "no")), "listen: shard 0: around: no"},
		{pipeline.Errorf(pipeline.LayerDevice, "put", pipeline.AtShard(1), "%w", pipeline.Errorf(pipeline.LayerDevice, "call", pipeline.AtShard(1).On("a"), "stripe 3: %w",
			pipeline.Errorf(pipeline.LayerDevice, "call", pipeline.AtShard(1).On("a"), "qp gone"))), "put: shard 1: call: shard 1 rail a: stripe 3: qp gone"},
		{notReady{pipeline.Errorf(pipeline.LayerControl, "listen", pipeline.AtShard(0), "no")}, "listen: shard 0: no"},
		{&verbs.Error{Op: "create_qp", Device: "soft:127.0.0.1", Kind: verbs.ErrNoMemory, Err: syscall.ENOMEM}, "create_qp soft:127.0.0.1: out of memory or over a limit: cannot allocate memory (ENOMEM(12))"},
	} {
		f := FailureOf(tc.err)
		if got := f.String(); got != tc.want {
			t.Errorf("%#v:\n got %s\nwant %s", tc.err, got, tc.want)
		}
		back := FailureOf(f.Err())
		if got := back.String(); got != tc.want {
			t.Errorf("%#v, told by another process:\n got %s\nwant %s", tc.err, got, tc.want)
		}
		if back.Errno != f.Errno || back.WCStatus != f.WCStatus || back.Device != f.Device || back.Layer != f.Layer {
			t.Errorf("told by another process: %+v, want %+v", back, f)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("1 (a b) c) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 1 0 77 0 0"))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parseStat(b)
		if err == nil && s.state == 0 {
			t.Error("no state and no error")
		}
	})
}

func TestParseStat(t *testing.T) {
	s, err := parseStat([]byte("1 (a b) c) S 0 1 1 0 -1 4194560 1 1 1 1 1 1 1 1 20 0 9 0 77 0 0"))
	if err != nil || s != (stat{start: 77, state: 'S', threads: 9}) {
		t.Errorf("%+v %v", s, err)
	}
	for _, tc := range []struct {
		s    stat
		want bool
	}{{stat{state: 'S', threads: 1}, false}, {stat{state: 'Z', threads: 3}, false}, {stat{state: 'Z', threads: 1}, true}, {stat{state: 'X'}, true}} {
		if tc.s.ended() != tc.want {
			t.Errorf("%+v ended: %v", tc.s, !tc.want)
		}
	}
}

func FuzzDecodeResolved(f *testing.F) {
	f.Add([]byte(`{"digest":"x","deployment":{}}`))
	f.Add([]byte(`{}`))
	f.Add([]byte("\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeResolved(b)
		if err == nil && r.Deployment.Digest() != r.Digest {
			t.Error("accepted with a wrong digest")
		}
	})
}

package launch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/railstore/railstore/pipeline"
)

func eventFolder(t *testing.T) Folder {
	t.Helper()
	s, err := NewState(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Folder("d")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Create(); err != nil {
		t.Fatal(err)
	}
	return f
}

func openEvents(t *testing.T, f Folder, most int64) *EventLog {
	t.Helper()
	l, err := f.OpenEvents(-1)
	if err != nil {
		t.Fatal(err)
	}
	l.most = most
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// numbered is an event that no damper takes for another one.
func numbered(i int) pipeline.Event {
	return pipeline.Event{Event: fmt.Sprintf("e%d", i), Reason: strings.Repeat("x", 80)}
}

func TestFollowMissesNothingWhileFilesArePutAside(t *testing.T) {
	f := eventFolder(t)
	const writers, rounds, each = 3, 20, 20
	logs := make([]*EventLog, writers)
	for i := range logs {
		logs[i] = openEvents(t, f, 4096)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	seen := make(chan string)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(seen)
		err := f.Events(ctx, Position{}, true, func(e pipeline.Event, _ []byte) error { seen <- e.Event; return nil })
		if err != nil {
			t.Error(err)
		}
	})
	files := map[inode]bool{}
	next := 0
	for range rounds {
		var round sync.WaitGroup
		for w, l := range logs {
			first := next + w*each
			round.Go(func() {
				for i := range each {
					l.Emit(numbered(first + i))
				}
			})
		}
		round.Wait()
		id, err := fileID(f.EventsPath())
		if err == nil {
			files[id] = true
		}
		got := map[string]int{}
		for range writers * each {
			got[<-seen]++
		}
		for i := range writers * each {
			if n := got[fmt.Sprintf("e%d", next+i)]; n != 1 {
				t.Fatalf("event %d came %d times", next+i, n)
			}
		}
		next += writers * each
	}
	if len(files) < 5 {
		t.Errorf("only %d files: nothing was put aside", len(files))
	}
	cancel()
	for s := range seen {
		t.Errorf("%s came twice", s)
	}
	wg.Wait()
	if _, err := os.Stat(generation(f.EventsPath(), generations+1)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("more files are kept than %d: %v", generations, err)
	}
}

func TestALineOfAWriterThatHasNotNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	old, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	write := func(f *os.File, s string) {
		t.Helper()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	write(old, "one\n")
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
	expect := func(want string) {
		t.Helper()
		if got := <-lines; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	expect("one")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	now, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer now.Close()
	write(now, "new file\n")
	expect("new file")
	write(old, "old ")
	write(now, "new again\n")
	expect("new again")
	write(old, "file, late\n")
	expect("old file, late")
	cancel()
	for s := range lines {
		t.Errorf("one more line: %q", s)
	}
	wg.Wait()
}

func TestPositionsOutliveTheFile(t *testing.T) {
	ctx := context.Background()
	f := eventFolder(t)
	l := openEvents(t, f, 1<<20)
	for i := range 10 {
		l.Emit(numbered(i))
	}
	here := Here(f.EventsPath())
	read := func(from Position) (out []string) {
		t.Helper()
		if err := f.Events(ctx, from, false, func(e pipeline.Event, _ []byte) error { out = append(out, e.Event); return nil }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	l.Emit(numbered(10))
	l.mu.Lock()
	l.putAside()
	l.mu.Unlock()
	l.Emit(numbered(11))
	if got := read(here); fmt.Sprint(got) != "[e10 e11]" {
		t.Errorf("from a position in a file that was put aside: %v", got)
	}
	if got := read(Position{}); len(got) != 12 || got[0] != "e0" || got[11] != "e11" {
		t.Errorf("all that is kept: %v", got)
	}
	for n, want := range map[int]string{0: "[]", 1: "[e11]", 2: "[e10 e11]", 3: "[e9 e10 e11]"} {
		at, err := Tail(ctx, f.EventsPath(), n, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(at); fmt.Sprint(got) != want {
			t.Errorf("the last %d: %v", n, got)
		}
	}
	odd := func(line []byte) bool {
		e, ok := ParseEvent(line)
		return ok && strings.HasSuffix(e.Event, "1")
	}
	for n, want := range map[int]string{1: "[e11]", 2: "[e1 e2 e3 e4 e5 e6 e7 e8 e9 e10 e11]", 3: "[e0 e1 e2 e3 e4 e5 e6 e7 e8 e9 e10 e11]"} {
		at, err := Tail(ctx, f.EventsPath(), n, odd)
		if err != nil {
			t.Fatal(err)
		}
		if got := read(at); fmt.Sprint(got) != want {
			t.Errorf("the last %d that pass: %v, want %s", n, got, want)
		}
	}
	// A restart: the file of the position is long gone.
	for i := range generations + 1 {
		l.mu.Lock()
		l.putAside()
		l.mu.Unlock()
		l.Emit(numbered(20 + i))
	}
	if got := read(here); fmt.Sprint(got) != "[e20 e21 e22 e23 e24]" {
		t.Errorf("from a position in a file that is gone: %v", got)
	}
}

// A process that died in the middle of a line takes no other line with it.
func TestTornLine(t *testing.T) {
	f := eventFolder(t)
	if err := os.WriteFile(f.EventsPath(), []byte(`{"event":"a"}`+"\n"+`{"event":"tor`), 0o600); err != nil {
		t.Fatal(err)
	}
	l := openEvents(t, f, 1<<20)
	l.Emit(pipeline.Event{Event: "b"})
	l.Emit(pipeline.Event{Event: "c"})
	var got []string
	err := f.Events(context.Background(), Position{}, false, func(e pipeline.Event, _ []byte) error { got = append(got, e.Event); return nil })
	if err != nil || fmt.Sprint(got) != "[a b c]" {
		t.Errorf("%v %v", got, err)
	}
}

func TestEventLogTellsCountsAtTheEnd(t *testing.T) {
	f := eventFolder(t)
	var also int
	l, err := f.OpenEvents(3, func(pipeline.Event) { also++ })
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		l.Emit(pipeline.Event{Event: "lane_dirty"})
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	lines, events := 0, 0
	err = f.Events(context.Background(), Position{}, false, func(e pipeline.Event, _ []byte) error {
		lines++
		events += max(1, e.Suppressed)
		if e.Shard == nil || *e.Shard != 3 {
			t.Errorf("an event of no shard: %+v", e)
		}
		return nil
	})
	if err != nil || events != 100 || lines > 2*dampBurst || also != lines {
		t.Errorf("%d lines and %d elsewhere for %d events: %v", lines, also, events, err)
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add([]byte(`{"event":"x","ts":"2026-01-31T12:00:00Z","shard":1,"fields":{"a":1}}`))
	f.Add([]byte(`{"event":"x"} {`))
	f.Add([]byte("\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if e, ok := ParseEvent(b); ok && e.Event == "" {
			t.Error("an event without a name")
		}
	})
}

package object

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestOutputFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out.bin")
	want := randomBytes(1, 100000)
	o, err := OpenOutput(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("the file is there before it is complete")
	}
	if err := o.Commit(want); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Fatal(err)
	}
	if err := o.Abort(); err != nil {
		t.Fatal(err)
	}
	if err := o.Commit(want); err == nil {
		t.Fatal("committed twice")
	}
	if l := files(t, dir); len(l) != 1 {
		t.Fatalf("left behind: %v", l)
	}
}

// TestOutputHasNoNameBeforeCommit: whatever ends the process before leaves nothing
// beside the file.
func TestOutputHasNoNameBeforeCommit(t *testing.T) {
	dir := t.TempDir()
	f, err := os.OpenFile(dir, os.O_WRONLY|unix.O_TMPFILE, 0o600)
	if err != nil {
		t.Skipf("no nameless files in %s: %v", dir, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "out")
	for _, old := range []string{"", "old"} {
		if old != "" {
			if err := os.WriteFile(path, []byte(old), 0o640); err != nil {
				t.Fatal(err)
			}
		}
		before := len(files(t, dir))
		o, err := OpenOutput(t.Context(), path, nil)
		if err != nil {
			t.Fatal(err)
		}
		o.step = func(step string) error {
			if l := files(t, dir); len(l) != before {
				t.Errorf("before %s there are %v", step, l)
			}
			return nil
		}
		if err := o.Commit([]byte("new")); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "new" || len(files(t, dir)) != 1 {
			t.Fatalf("%q, %v, %v", b, err, files(t, dir))
		}
	}
	// A name that another one took meanwhile is left alone.
	o, err := OpenOutput(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(dir, fmt.Sprintf(".out.%d-0%s", os.Getpid(), tmpSuffix))
	if err := os.WriteFile(taken, []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := o.Commit([]byte("newer")); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(taken); err != nil || string(b) != "theirs" {
		t.Fatalf("%q, %v", b, err)
	}
}

// TestFIFOsAreNotWaitedFor: neither a source nor an output blocks where a signal
// could not end it.
func TestFIFOsAreNotWaitedFor(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenSource(fifo); !errors.Is(err, ErrSource) || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("source: %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInjected)
	if _, err := OpenOutput(ctx, fifo, nil); !errors.Is(err, errInjected) {
		t.Errorf("output: %v", err)
	}
}

// TestOutputErrorsNameOnlyThePath: the user's path, once, and no temporary name.
func TestOutputErrorsNameOnlyThePath(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{
		filepath.Join(dir, "no", "out"):              "no such file or directory",
		filepath.Join(dir, strings.Repeat("n", 300)): "file name too long",
		"/proc/railstore":                            "no such file or directory",
		"/dev/null/x":                                "not a directory",
	} {
		if _, err := OpenOutput(t.Context(), path, nil); err == nil || err.Error() != "output "+path+": "+want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	o, err := OpenOutput(t.Context(), "/dev/full", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Commit([]byte("x")); err == nil || err.Error() != "output /dev/full: no space left on device" {
		t.Errorf("%v", err)
	}
}

func TestOutputKeepsModeAndLink(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	if err := os.WriteFile(real, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(real, 0o640); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "sub", "link")
	if err := os.Mkdir(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../real", link); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"old file", "dangling link"} {
		o, err := OpenOutput(t.Context(), link, nil)
		if err != nil {
			t.Fatal(target, err)
		}
		if err := o.Commit([]byte("new")); err != nil {
			t.Fatal(target, err)
		}
		if fi, err := os.Lstat(link); err != nil || fi.Mode()&os.ModeSymlink == 0 {
			t.Fatalf("%s: the link was replaced", target)
		}
		if b, err := os.ReadFile(real); err != nil || string(b) != "new" {
			t.Fatalf("%s: %q, %v", target, b, err)
		}
		if fi, _ := os.Stat(real); target == "old file" && fi.Mode().Perm() != 0o640 {
			t.Fatalf("mode %v", fi.Mode())
		}
		if err := os.Remove(real); err != nil {
			t.Fatal(err)
		}
	}
	if l := files(t, dir); len(l) != 1 {
		t.Fatalf("left behind: %v", l)
	}
}

func TestOutputRefusesBeforeReading(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, path := range map[string]string{
		"empty": "", "a directory": dir, "no such folder": filepath.Join(dir, "no", "out"),
		"a file as folder": filepath.Join(file, "out"), "a slash": filepath.Join(dir, "new") + "/", "too long": filepath.Join(dir, strings.Repeat("x", 300)),
	} {
		if o, err := OpenOutput(t.Context(), path, nil); err == nil {
			// The name itself may only fail at the rename; the folder must be clean.
			if err := o.Commit(nil); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	}
	if os.Geteuid() != 0 {
		if err := os.Chmod(file, 0o444); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenOutput(t.Context(), file, nil); err == nil {
			t.Error("a read-only file was accepted")
		}
	}
	if l := files(t, dir); len(l) != 1 {
		t.Fatalf("left behind: %v", l)
	}
}

func TestOutputFailsAtEachStep(t *testing.T) {
	for _, step := range []string{"write", "sync", "rename"} {
		dir := t.TempDir()
		path := filepath.Join(dir, "out")
		if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
		o, err := OpenOutput(t.Context(), path, nil)
		if err != nil {
			t.Fatal(err)
		}
		o.step = func(s string) error {
			if s == step {
				return fmt.Errorf("%w: %w", errInjected, unix.ENOSPC)
			}
			return nil
		}
		if err := o.Commit([]byte("new")); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", step, err)
		}
		if b, err := os.ReadFile(path); err != nil || string(b) != "old" {
			t.Errorf("%s: %q, %v", step, b, err)
		}
		if l := files(t, dir); len(l) != 1 {
			t.Errorf("%s: left behind %v", step, l)
		}
	}
}

func TestOutputStreams(t *testing.T) {
	var b bytes.Buffer
	o, err := OpenOutput(t.Context(), "-", &b)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Commit([]byte("content")); err != nil || b.String() != "content" {
		t.Fatalf("%q, %v", b.String(), err)
	}
	// What is no regular file is written through, not replaced.
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	go func() {
		b, _ := os.ReadFile(fifo)
		got <- b
	}()
	if o, err = OpenOutput(t.Context(), fifo, nil); err != nil {
		t.Fatal(err)
	}
	if err := o.Commit([]byte("content")); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(fifo); err != nil || fi.Mode()&os.ModeNamedPipe == 0 {
		t.Fatal("the FIFO was replaced")
	}
	if b := <-got; string(b) != "content" {
		t.Fatalf("%q", b)
	}
	r, w := io.Pipe()
	_ = r.CloseWithError(errInjected)
	if o, err = OpenOutput(t.Context(), "-", w); err != nil {
		t.Fatal(err)
	}
	if err := o.Commit([]byte("x")); !errors.Is(err, errInjected) {
		t.Fatalf("%v", err)
	}
}

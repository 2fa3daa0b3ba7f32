package object

import (
	"bytes"
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
	o, err := OpenOutput(path, nil)
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
		o, err := OpenOutput(link, nil)
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
		if o, err := OpenOutput(path, nil); err == nil {
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
		if _, err := OpenOutput(file, nil); err == nil {
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
		o, err := OpenOutput(path, nil)
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
	o, err := OpenOutput("-", &b)
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
	if o, err = OpenOutput(fifo, nil); err != nil {
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
	if o, err = OpenOutput("-", w); err != nil {
		t.Fatal(err)
	}
	if err := o.Commit([]byte("x")); !errors.Is(err, errInjected) {
		t.Fatalf("%v", err)
	}
}

package ctrl

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// crashEnv makes the test binary a writer that commits until it is killed.
const crashEnv = "RS_CTRL_CRASH_STORE"

// crashWriter replaces one object for ever, with a delete now and then, and says
// after each step what it has done.
func crashWriter(path string) {
	s, err := OpenBoltStore(path)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	c := NewCatalog(s, []int{0, 1})
	for {
		g, err := c.Begin(key)
		if err == nil {
			fmt.Println("begin", g)
			_, _, err = c.Commit(object(key, g, 4*(g%97+1), 4), AnyOlder)
		}
		if err == nil {
			fmt.Println("commit", g)
			if g%5 == 0 {
				_, _, err = c.Delete(key, g)
				fmt.Println("delete", g)
			}
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
}

// A writer killed at any moment leaves, for the next one, the state before or
// after the step that it was at: whole objects, generations that only grow,
// and nothing lost that it had reported.
func TestKilledWriter(t *testing.T) {
	if path := os.Getenv(crashEnv); path != "" {
		crashWriter(path)
	}
	path := filepath.Join(t.TempDir(), "control.db")
	seed := uint64(time.Now().UnixNano())
	if v := os.Getenv("RS_TEST_SEED"); v != "" {
		if _, err := fmt.Sscan(v, &seed); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	var reserved uint64
	for round := range 30 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), crashEnv+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Killed after a number of lines and then a bit of time, so that it
		// hits every part of a step.
		lines := rng.IntN(12) + 1
		var did string
		var at uint64
		for sc := bufio.NewScanner(out); sc.Scan(); {
			if strings.HasPrefix(sc.Text(), "error") {
				t.Fatal(sc.Text())
			}
			if _, err := fmt.Sscan(sc.Text(), &did, &at); err != nil {
				t.Fatal(sc.Text(), err)
			}
			if lines--; lines == 0 {
				time.AfterFunc(time.Duration(rng.IntN(8000))*time.Microsecond, func() { _ = cmd.Process.Kill() })
			}
		}
		_ = cmd.Wait()
		s, err := OpenBoltStore(path)
		if err != nil {
			t.Fatalf("round %d after %s %d: %v", round, did, at, err)
		}
		c := NewCatalog(s, []int{0, 1})
		o, found, err := c.Lookup(key)
		if err != nil {
			t.Fatal(err)
		}
		// One step may have been done and not reported.
		switch {
		case found && !reflect.DeepEqual(o, object(key, o.Generation, 4*(o.Generation%97+1), 4)):
			t.Fatalf("half an object after %s %d: %+v", did, at, o)
		case did == "commit" && at%5 != 0 && (!found || o.Generation < at):
			t.Fatalf("commit %d was reported, there is %d (%v)", at, o.Generation, found)
		case found && o.Generation > at+1:
			t.Fatalf("after %s %d there is %d", did, at, o.Generation)
		}
		g, err := c.Begin(key)
		if err != nil || g <= at || g <= reserved || g > at+2 {
			t.Fatalf("after %s %d the next generation is %d (%v)", did, at, g, err)
		}
		reserved = g
		// Every generation that was committed is the current one or garbage.
		if _, _, err := c.Commit(object(key, g, 4*(g%97+1), 4), AnyOlder); err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBoltStoreRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "control.db")
	s, err := OpenBoltStore(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBoltStore(path); err == nil || !strings.Contains(err.Error(), "another process has it open") || !strings.Contains(err.Error(), path) {
		t.Errorf("opened twice: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte(strings.Repeat("junk", 5000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBoltStore(junk); err == nil || !strings.Contains(err.Error(), junk) {
		t.Errorf("a file of something else: %v", err)
	}
	if _, err := OpenBoltStore(filepath.Join(junk, "x")); err == nil {
		t.Error("a folder that cannot be made")
	}
	if _, err := OpenBoltStore(dir); err == nil {
		t.Error("a folder as the file")
	}
	// The catalog tells which value it cannot read.
	m := NewMemoryStore()
	for path, value := range map[string][]byte{key.path("o/"): {0xff}, key.path("g/"): {1, 2}} {
		if err := m.Apply(nil, []Change{{path, value}}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := NewCatalog(m, []int{0}).Lookup(key); err == nil || !strings.Contains(err.Error(), "kv/layer0: stored") {
			t.Errorf("%q: %v", path, err)
		}
		if err := m.Apply(nil, []Change{{path, nil}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := NewCatalog(m, []int{0}).Lookup(key); err != nil || errors.Is(err, ErrChanged) {
		t.Error(err)
	}
}

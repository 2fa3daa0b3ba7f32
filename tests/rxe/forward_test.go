package rxe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// outcome is one test of a binary that ran in the guest.
type outcome struct {
	name   string
	action string // pass, fail, skip; empty: it did not end
	took   time.Duration
	output strings.Builder
	kids   []*outcome
}

// outcomes reads the output of a test binary that ran with -test.v=test2json,
// and gives its tests as a tree, in the order in which they began. What belongs
// to no test is the root's output.
func outcomes(raw []byte) (*outcome, error) {
	cmd := exec.Command("go", "tool", "test2json", "-t")
	cmd.Stdin = bytes.NewReader(raw)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go tool test2json: %w", err)
	}
	root := &outcome{}
	byName := map[string]*outcome{"": root}
	var of func(name string) *outcome
	of = func(name string) *outcome {
		if o := byName[name]; o != nil {
			return o
		}
		parent := root
		if i := strings.LastIndexByte(name, '/'); i >= 0 {
			parent = of(name[:i])
		}
		o := &outcome{name: name[strings.LastIndexByte(name, '/')+1:]}
		byName[name] = o
		parent.kids = append(parent.kids, o)
		return o
	}
	in := bufio.NewScanner(bytes.NewReader(out))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if err := json.Unmarshal(in.Bytes(), &e); err != nil {
			return nil, err
		}
		switch o := of(e.Test); e.Action {
		case "output":
			// The verbose marks are noise here.
			if l := strings.TrimSpace(e.Output); e.Test == "" || !strings.HasPrefix(l, "===") && !strings.HasPrefix(l, "---") {
				o.output.WriteString(e.Output)
			}
		case "pass", "fail", "skip":
			o.action, o.took = e.Action, time.Duration(e.Elapsed*float64(time.Second))
		}
	}
	return root, in.Err()
}

// forward makes the tests of a tree subtests of t.
func (o *outcome) forward(t *testing.T) {
	for _, k := range o.kids {
		t.Run(k.name, func(t *testing.T) {
			k.forward(t)
			text := strings.TrimRight(k.output.String(), "\n")
			if text != "" {
				t.Logf("%s", text)
			}
			if k.took > 0 {
				t.Logf("took %v in the guest", k.took)
			}
			switch k.action {
			case "pass":
			case "skip":
				t.Skip(strings.TrimSpace(text))
			case "fail":
				t.Fail()
			default:
				if len(k.kids) == 0 { // else a name with a slash, and no test itself
					t.Error("it did not end")
				}
			}
		})
	}
}

// count is how many leaves of the tree ended how.
func (o *outcome) count(n map[string]int) {
	if len(o.kids) == 0 && o.name != "" {
		n[o.action]++
	}
	for _, k := range o.kids {
		k.count(n)
	}
}

func TestOutcomes(t *testing.T) {
	raw := "=== RUN   TestA\n=== RUN   TestA/one\n    a_test.go:1: hello\n=== RUN   TestA/two\n--- FAIL: TestA (0.25s)\n    --- PASS: TestA/one (0.10s)\n    --- SKIP: TestA/two (0.00s)\n" +
		"=== RUN   TestB\npanic: oh\n"
	o, err := outcomes([]byte(raw))
	if err != nil {
		t.Fatal(err)
	}
	n := make(map[string]int)
	o.count(n)
	if len(o.kids) != 2 || o.kids[0].action != "fail" || o.kids[0].took != 250*time.Millisecond || len(o.kids[0].kids) != 2 ||
		o.kids[0].kids[0].output.String() != "    a_test.go:1: hello\n" || n["pass"] != 1 || n["skip"] != 1 || n[""] != 1 {
		t.Errorf("%+v %v", o.kids, n)
	}
}

package cmd

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/bin/provider"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs/soft"
	"github.com/railstore/railstore/verbs/verbstest"
)

func TestParseFault(t *testing.T) {
	for _, tc := range []struct {
		words string
		want  string // as words again
	}{
		{"do=drop rate=0.1 for=5s match.opcode=write", "drop for=5s match.opcode=write rate=0.1"},
		{"do=drop rate=1e-3 seed=9223372036854775807", "drop rate=0.001 seed=9223372036854775807"},
		{"do=delay by=2ms at.bytes=17MiB match.direction=in match.peer=10.0.0.1", "delay at.bytes=17825792 by=2ms match.direction=in match.peer=10.0.0.1"},
		{"do=delay by=2ms at.packets=7", "delay at.packets=7 by=2ms"},
		{"do=bandwidth bitsPerSecond=1000000000", "bandwidth bitsPerSecond=1000000000"},
		{"do=bandwidth bitsPerSecond=200e6", "bandwidth bitsPerSecond=200000000"},
		{"do=fail op=create_qp errno=ENOMEM times=2", "fail errno=ENOMEM op=create_qp times=2"},
	} {
		f, err := parseFault("add", strings.Fields(tc.words))
		if err != nil {
			t.Errorf("%s: %v", tc.words, err)
			continue
		}
		if got := faultWords(faultFields(provider.SoftFault(f))); got != tc.want {
			t.Errorf("%s: got %s", tc.words, got)
		}
		// What was sent comes out on the other side.
		b, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		var back deploy.Fault
		if err := json.Unmarshal(b, &back); err != nil || back != f {
			t.Errorf("%s: %+v came back as %+v: %v", tc.words, f, back, err)
		}
	}
}

func TestParseFaultSaysWhatIsWrong(t *testing.T) {
	for words, want := range map[string]string{
		"do=drop rate":                     `"rate": want FIELD=VALUE`,
		"do=drop rate=":                    "rate: is empty",
		"do=drop rate=2":                   "rate: is 2, want a number above 0 and up to 1",
		"do=drop rate=0.1 rate=0.2":        "rate: is given twice",
		"do=drop for=5":                    "for: is 5",
		"do=bandwidth bitsPerSecond=0.5":   "bitsPerSecond: is 0.5, want a whole number of bits per second, such as 200000000",
		"do=bandwidth bitsPerSecond=200MB": "bitsPerSecond: is \"200MB\", want a whole number of bits per second, such as 200000000",
		"do=dropp":                         `do: is "dropp"`,
		"rate=0.1":                         "do: ",
		"do=delay":                         "do: is delay, which needs by",
		"do=drop op=open":                  "op: ",
		"do=drop at.bytes=1 at.x=2":        `unknown field "x"`,
		"do=drop at=1":                     "at: ",
		"do=drop at=1 at.bytes=1":          "at: has a value already",
		"do=drop at.bytes=1 at=1":          "at: is given twice",
		"do=drop a.b.c=1":                  `"a.b.c=1": want FIELD=VALUE`,
		"do=drop ]}]}]\"x=1":               "want FIELD=VALUE",
		"do=drop match.direction=up":       "match.direction: ",
	} {
		_, err := parseFault("add", strings.Fields(words))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", words, err, want)
			continue
		}
		if got := exitCode(err); got != exitUsage {
			t.Errorf("%s: exit code %d", words, got)
		}
	}
}

// What the words become is JSON, which is CUE, and nothing of it gets out of the
// fault.
func FuzzFaultObject(f *testing.F) {
	f.Add("do=drop rate=0.1")
	f.Add("do=delay by=1ms at.bytes=1MiB")
	f.Add("do=\"}]\\ x.y=\x00 z=1e999 q=0x1p-2 n=NaN i=Inf")
	f.Fuzz(func(t *testing.T, words string) {
		fields, err := faultObject("add", strings.Fields(words))
		if err != nil {
			return
		}
		b, err := json.Marshal(fields)
		if err != nil {
			t.Fatalf("%q: %v", words, err)
		}
		var back map[string]any
		if err := json.Unmarshal(b, &back); err != nil || len(back) != len(fields) {
			t.Errorf("%q became %s: %v", words, b, err)
		}
	})
}

// twoRails are a soft rail and one of another provider.
func twoRails() *devices {
	return &devices{rails: []device{
		{deploy.Rail{Name: "a", Device: "soft:127.0.0.1"}, soft.New(soft.Options{})},
		{deploy.Rail{Name: "b", Device: "loop:10.0.0.1"}, verbstest.NewLoop(verbstest.LoopOptions{})},
	}}
}

func rows[T any](t *testing.T, v any, err error) T {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return v.(T)
}

func TestFaultsAreForSoftRails(t *testing.T) {
	d := twoRails()
	body, err := json.Marshal(deploy.Fault{Do: "delay", By: deploy.Duration(time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	v, err := d.addFault("", body)
	if got := rows[[]faultRow](t, v, err); len(got) != 1 || got[0].Rail != "a" || got[0].ID == 0 {
		t.Errorf("added to every rail: %+v", got)
	}
	v, err = d.faults("")
	if got := rows[[]faultRow](t, v, err); len(got) != 1 || got[0].Fault["do"] != "delay" || got[0].Fault["by"] != "1ms" {
		t.Errorf("%+v", got)
	}
	for name, do := range map[string]func(rail string) (any, error){
		"add":   func(rail string) (any, error) { return d.addFault(rail, body) },
		"list":  d.faults,
		"clear": func(rail string) (any, error) { return d.clearFaults(rail, nil) },
	} {
		_, err := do("b")
		var pe *pipeline.Error
		if !errors.As(err, &pe) || pe.Where.Rail != "b" || !strings.Contains(err.Error(), "loop:10.0.0.1 is the provider loop, and faults are played by soft alone") || pe.Hint == "" {
			t.Errorf("%s: %v", name, err)
		}
		if exitCode(err) != exitUsage {
			t.Errorf("%s: exit code %d", name, exitCode(err))
		}
		if _, err := do("c"); err == nil || !strings.Contains(err.Error(), "rail c: there is no such rail; there is a, b") {
			t.Errorf("%s: %v", name, err)
		}
	}
	v, err = d.clearFaults("", []int{99})
	if got := rows[[]clearedRow](t, v, err); len(got) != 1 || got[0].Cleared != 0 {
		t.Errorf("%+v", got)
	}
	v, err = d.clearFaults("", nil)
	if got := rows[[]clearedRow](t, v, err); len(got) != 1 || got[0].Cleared != 1 {
		t.Errorf("%+v", got)
	}
	only := &devices{rails: d.rails[1:]}
	if _, err := only.addFault("", body); err == nil || !strings.Contains(err.Error(), "faults are played by soft alone") {
		t.Errorf("no soft rail at all: %v", err)
	}
	v, err = only.faults("")
	if got := rows[[]faultRow](t, v, err); len(got) != 0 {
		t.Errorf("%+v", got)
	}
}

// A fault goes to all rails that are meant, or to none.
func TestAddFaultIsWhole(t *testing.T) {
	d := &devices{}
	for _, n := range []string{"a", "b"} {
		d.rails = append(d.rails, device{deploy.Rail{Name: n}, soft.New(soft.Options{})})
	}
	for _, body := range []string{`{"do":"drop","rate":7}`, `{"do":"drop","nothing":1}`, `{"do":`, `[]`} {
		_, err := d.addFault("", []byte(body))
		if err == nil || exitCode(err) != exitUsage {
			t.Errorf("%s: %v", body, err)
		}
	}
	v, err := d.faults("")
	if got := rows[[]faultRow](t, v, err); len(got) != 0 {
		t.Errorf("left behind: %+v", got)
	}
}

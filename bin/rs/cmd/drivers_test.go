package cmd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/bin/provider"
	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft"
)

// TestFaultsInRecipes: the schema and the provider take and refuse the same faults, field
// by field, so that what vet says is what a shard says.
func TestFaultsInRecipes(t *testing.T) {
	own := map[string]string{"delay": `by: "2ms"`, "late_write": `by: "2ms"`, "delay_answer": `by: "2ms"`,
		"bandwidth": "bitsPerSecond: 1000", "fail": `op: "reg_mr"`, "rkey_bump": "at: packets: 7"}
	var faults []string
	for _, do := range soft.FaultKinds() {
		for _, field := range []string{"", `for: "1s"`, "rate: 0.5", "seed: 3", `match: opcode: "write"`, `match: opcode: "recv"`, `match: opcode: "ack"`,
			`match: peer: "127.0.0.1:4791"`, `match: direction: "in"`, `by: "2ms"`, "bitsPerSecond: 1000", `op: "reg_mr"`, `errno: "ENOMEM"`, "times: 2", `at: bytes: "1MiB"`, `at: time: "1s"`} {
			needs := own[do]
			if strings.HasPrefix(needs, "at") && strings.HasPrefix(field, "at") {
				needs = ""
			}
			text := fmt.Sprintf("do: %q", do)
			for _, part := range []string{needs, field} {
				if part != "" {
					text += ", " + part
				}
			}
			faults = append(faults, "{"+text+"}")
		}
	}
	recipe := func(faults ...string) []byte {
		return []byte(`package x
import "github.com/railstore/railstore/schemas"
schemas.#Deployment
name: "x"
hosts: [{name: "s0", rails: ["soft:127.0.1.1"]}, {name: "c0", rails: [{device: "soft:127.0.1.2", faults: [
` + strings.Join(faults, ",\n") + `
]}]}]
shards: [{id: 0, host: "s0"}]
`)
	}
	_, rep, _ := load.Load("x.cue", load.Options{Source: recipe(faults...)})
	bad := map[int]string{}
	for _, e := range rep.Errors {
		var n int
		if _, err := fmt.Sscanf(e.Path, "hosts[1].rails[0].faults[%d]", &n); err != nil {
			t.Fatalf("%s: %s", e.Path, e.Message)
		}
		bad[n] = e.Path + ": " + e.Message
	}
	var good []string
	var at []int
	for i, f := range faults {
		if bad[i] == "" {
			good, at = append(good, f), append(at, i)
		}
	}
	if len(good) < 60 || len(bad) < 60 {
		t.Fatalf("%d good and %d bad faults", len(good), len(bad))
	}
	d, rep, err := load.Load("x.cue", load.Options{Source: recipe(good...)})
	if err != nil {
		t.Fatal(err, rep.Errors)
	}
	for i, f := range d.Hosts[1].Rails[0].Faults {
		sf := provider.SoftFault(f)
		if err := sf.Validate(); err != nil {
			t.Errorf("%s: the schema takes it, and the provider says %v", faults[at[i]], err)
		}
	}
	// What the schema refuses, decoded by hand: the words are the same.
	for i, why := range bad {
		f := byHand(t, faults[i])
		if err := f.Validate(); err == nil {
			t.Errorf("%s: the provider takes it, and the schema says %s", faults[i], why)
		}
	}
	dr, err := provider.Open("soft", d.Hosts[1].Rails[0])
	if err != nil {
		t.Fatal(err)
	}
	if n := len(dr.(*soft.Driver).Faults()); n != len(good) {
		t.Errorf("the driver has %d of %d faults", n, len(good))
	}
	var _ verbs.Driver = dr
}

func byHand(t *testing.T, text string) (f soft.Fault) {
	t.Helper()
	for _, part := range strings.Split(strings.Trim(text, "{}"), ", ") {
		name, value, _ := strings.Cut(part, ": ")
		value = strings.Trim(value, `"`)
		switch name {
		case "":
		case "do":
			f.Do = value
		case "for":
			f.For = time.Second
		case "rate":
			f.Rate = 0.5
		case "seed":
			f.Seed = 3
		case "match":
			name, value, _ := strings.Cut(value, ": ")
			*map[string]*string{"opcode": &f.Match.Opcode, "peer": &f.Match.Peer, "direction": &f.Match.Direction}[name] = strings.Trim(value, `"`)
		case "by":
			f.By = 2 * time.Millisecond
		case "bitsPerSecond":
			f.BitsPerSecond = 1000
		case "op":
			f.Op = value
		case "errno":
			f.Errno = value
		case "times":
			f.Times = 2
		case "at":
			f.At.Packets = 7
		default:
			t.Fatalf("%q in %s", name, text)
		}
	}
	return f
}

package soft

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

// TestFaultValidate: what is wrong is told by the name of its field.
func TestFaultValidate(t *testing.T) {
	for _, x := range []struct {
		f     Fault
		field string
	}{
		{Fault{}, "do"},
		{Fault{Do: "dropp"}, "do"},
		{Fault{Do: "drop", Rate: 1.5}, "rate"},
		{Fault{Do: "drop", Rate: -0.5}, "rate"},
		{Fault{Do: "drop", By: time.Second}, "by"},
		{Fault{Do: "drop", BitsPerSecond: 8}, "bitsPerSecond"},
		{Fault{Do: "drop", Op: "open"}, "op"},
		{Fault{Do: "drop", Errno: "EIO"}, "errno"},
		{Fault{Do: "drop", For: -1}, "for"},
		{Fault{Do: "drop", Times: -1}, "times"},
		{Fault{Do: "drop", At: FaultAt{Bytes: 1, Packets: 1}}, "at"},
		{Fault{Do: "drop", At: FaultAt{Time: -1}}, "at.time"},
		{Fault{Do: "drop", Match: FaultMatch{Direction: "up"}}, "match.direction"},
		{Fault{Do: "drop", Match: FaultMatch{Opcode: "wirte"}}, "match.opcode"},
		{Fault{Do: "drop", Match: FaultMatch{Opcode: "recv"}}, "match.opcode"},
		{Fault{Do: "drop", Match: FaultMatch{Peer: "nobody"}}, "match.peer"},
		{Fault{Do: "blackhole_completions", Match: FaultMatch{Opcode: "ack"}}, "match.opcode"},
		{Fault{Do: "late_write", By: 1, Match: FaultMatch{Opcode: "send"}}, "match.opcode"},
		{Fault{Do: "late_write"}, "by"},
		{Fault{Do: "delay"}, "by"},
		{Fault{Do: "delay", By: -1}, "by"},
		{Fault{Do: "delay_answer"}, "by"},
		{Fault{Do: "delay_answer", By: 1, Rate: 0.5}, "rate"},
		{Fault{Do: "bandwidth"}, "bitsPerSecond"},
		{Fault{Do: "bandwidth", BitsPerSecond: 1, Match: FaultMatch{Opcode: "send"}}, "match.opcode"},
		{Fault{Do: "late_visibility", Match: FaultMatch{Direction: "in"}}, "match.direction"},
		{Fault{Do: "port_down", Rate: 0.5}, "rate"},
		{Fault{Do: "port_down", Times: 2}, "times"},
		{Fault{Do: "rkey_bump", For: 1}, "for"},
		{Fault{Do: "rkey_bump", Seed: 1}, "seed"},
		{Fault{Do: "fail"}, "op"},
		{Fault{Do: "fail", Op: "destroy_qp"}, "op"},
		{Fault{Do: "fail", Op: "open", Errno: "ENOPE"}, "errno"},
	} {
		err := x.f.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), x.field+": ") {
			t.Errorf("%+v: %v: want an error about %s", x.f, err, x.field)
		}
		d := New(Options{Faults: []Fault{{Do: "drop"}, x.f}})
		if id, err := d.AddFault(x.f); id != 0 || !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), x.field+": ") {
			t.Errorf("AddFault(%+v): %d, %v", x.f, id, err)
		}
		if _, err := verbs.Open(d, "127.0.0.1"); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "faults[1]."+x.field+": ") {
			t.Errorf("open with %+v: %v", x.f, err)
		}
	}
}

// TestFaultList adds, lists and clears.
func TestFaultList(t *testing.T) {
	d := New(Options{Faults: []Fault{{Do: "drop", Rate: 0.1, At: FaultAt{Time: time.Hour}}}})
	ids := []int{1}
	for _, f := range []Fault{{Do: "delay", By: time.Millisecond}, {Do: "fail", Op: "reg_mr", Times: 1}, {Do: "port_down", For: time.Hour}} {
		id, err := d.AddFault(f)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if !slices.Equal(ids, []int{1, 2, 3, 4}) {
		t.Fatalf("ids %v", ids)
	}
	states := func() (out []string) {
		for _, s := range d.Faults() {
			out = append(out, s.Fault.Do+" "+s.State)
		}
		return out
	}
	// Without a device nothing begins but what needs none.
	if got := states(); !slices.Equal(got, []string{"drop waiting", "delay waiting", "fail active", "port_down waiting"}) {
		t.Errorf("before open: %q", got)
	}
	ctx, err := verbs.Open(d, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ctx.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got := states(); !slices.Equal(got, []string{"drop waiting", "delay active", "fail active", "port_down active"}) {
		t.Errorf("after open: %q", got)
	}
	if n := d.ClearFaults(99); n != 0 {
		t.Errorf("cleared %d of none", n)
	}
	if n := d.ClearFaults(2, 4); n != 2 {
		t.Errorf("cleared %d of 2", n)
	}
	if got := states(); !slices.Equal(got, []string{"drop waiting", "fail active"}) {
		t.Errorf("after a clear: %q", got)
	}
	if n := d.ClearFaults(); n != 2 || len(d.Faults()) != 0 {
		t.Errorf("cleared %d of the last two", n)
	}
}

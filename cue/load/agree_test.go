package load

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cuelang.org/go/cue"

	"github.com/railstore/railstore/cue/deploy"
)

func seed(t *testing.T) *rand.Rand {
	t.Helper()
	n := uint64(time.Now().UnixNano())
	if s := os.Getenv("RS_TEST_SEED"); s != "" {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		n = v
	}
	t.Logf("RS_TEST_SEED=%d", n)
	return rand.New(rand.NewPCG(n, 1))
}

// TestRailStringAgrees compares the Go parser of rail strings with the schema's.
func TestRailStringAgrees(t *testing.T) {
	rnd := seed(t)
	pick := func(words ...string) string { return words[rnd.IntN(len(words))] }
	random := func() string {
		s := pick("ibv:mlx5_0", "ibv:a", "ibv:0000:3b:00.0", "ibv:3B:00.8", "ibv:0c42:a103:0012:3456", "ibv:0001:2:3:4", "ibv:0x0c42a10300123456", "soft:127.0.0.1", "soft:[fd00::1]", "soft:[fe80::1%eth0]", "ibv:", "soft:300.0.0.1", "soft:[fd00::1::2]", "soft:01.2.3.4", "soft:[1.2.3.4]", "soft:[::ffff:1.2.3.4]", "mlx5_0")
		for _, part := range [][]string{
			{"", "1", "1", "2", "255", "256", "0", "00001", "000001", "x"},
			{"", "auto", "3", "65535", "65536", "rocev1", "rocev2", "ib", "[10.0.0.1]", "[10.0.0.0/8]", "[10.0.0.0/33]", "[fd00::/64]", "[fd00::1]", "[x]", "[]", "v2", "[fe80::1%eth0]"},
			{"", "1", "2", "1000", "1001", "0", "-1"},
			{"", "0", "1024", "4096", "1500", "8192"},
			{"1"},
		} {
			if rnd.IntN(4) == 0 {
				break
			}
			s += ":" + part[rnd.IntN(len(part))]
		}
		for n := rnd.IntN(3); n > 0; n-- {
			s += pick("@", "@", ";") + pick("rail0", "b-2", "10.0.0.1", "10.0.0.1:4791", "[fd00::2]", "[fd00::2]:1", "10.0.0.1:0", "10.0.0.1:65536", "[fd00::2::1]", "Rail", "", "x:1", "10.0.0.300")
		}
		if rnd.IntN(8) == 0 {
			i := rnd.IntN(len(s) + 1)
			s = s[:i] + pick(":", "@", "[", "]", ";", " ", "1", "é", "\\") + s[i:]
		}
		return s
	}
	e := newEvaluator()
	schema, err := e.schema()
	if err != nil {
		t.Fatal(err)
	}
	dep := schema.LookupPath(cue.ParsePath("#Deployment"))
	n, accepted := 100, 0
	if UnderRace {
		n = 20
	}
	fixed := []string{"ibv:mlx5_0:1:3:2:4096@rail0;10.1.0.2:4791", "soft:[fd00::1]:1:[10.0.0.0/8]:3", "ibv:a:::", "ibv:a:0", "ibv:0000:3b:00.1:2", "ibv:0c42:a103:0012:3456:1:7", "ibv:0001:0002:0003:0004", "soft:127.0.0.1@[::1]:0"}
	for i := range n {
		s := random()
		if i < len(fixed) {
			s = fixed[i]
		}
		want, goErr := deploy.ParseRail(s)
		// The other host has the rails that a listener may name.
		v := dep.Unify(e.ctx.CompileString(fmt.Sprintf(`{name: "x", hosts: [{name: "a", rails: [%[1]q]}, {name: "b", rails: [
			{name: "rail0", device: %[2]q}, {name: "b-2", fabric: "rail0", device: %[2]q}]}], shards: [{id: 0, host: "a"}]}`, s, "ibv:peer")))
		cueErr := v.Validate(cue.Concrete(true), cue.Definitions(true), cue.Hidden(true))
		if (goErr == nil) != (cueErr == nil) {
			// A soft port other than 1 is a rule of the deployment, not of the grammar.
			if goErr == nil && want.Port != 1 && strings.HasPrefix(s, "soft:") {
				continue
			}
			// So is what another fabric's rails and the provider speak, and which rails
			// there are: 456 is a name, too.
			if cueErr != nil && slices.ContainsFunc([]string{"on the same fabric", "which is no rail of another host", "a soft rail speaks"},
				func(rule string) bool { return strings.Contains(cueErr.Error(), rule) }) {
				continue
			}
			t.Errorf("%q: Go says %v, CUE says %v", s, goErr, cueErr)
			continue
		}
		if goErr != nil {
			continue
		}
		accepted++
		got := deploy.Rail{}
		if b, err := v.LookupPath(cue.ParsePath("hosts[0].#rails[0]")).MarshalJSON(); err != nil {
			t.Errorf("%q: %v", s, err)
		} else if err := json.Unmarshal(b, &got); err != nil {
			t.Errorf("%q: %v", s, err)
		}
		want.Name, want.Fabric = "rail0", "rail0"
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q: CUE gives %+v, Go %+v", s, got, want)
		}
	}
	if accepted == 0 || accepted == n {
		t.Errorf("%d of %d were accepted; the test compares nothing", accepted, n)
	}
}

// TestBudgetAgrees compares the sums of the schema's rules with deploy's.
func TestBudgetAgrees(t *testing.T) {
	rnd := seed(t)
	var sources [][]byte
	for _, glob := range []string{"testdata/corpus/good-*.cue", "../../recipes/*.cue"} {
		files, err := filepath.Glob(glob)
		if err != nil || len(files) == 0 {
			t.Fatal(glob, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, b)
		}
	}
	for range 6 {
		var b strings.Builder
		fmt.Fprintf(&b, "import %q\nschemas.#Deployment\nname: \"x\"\n", SchemaImport)
		fmt.Fprintf(&b, "lanes: {qpsPerClientPerShard: %d, slotsPerQP: %d, requestBytes: %d, responseBytes: %d, maxClients: %d, registeredBytes: 1Ti, cqDepth: 0x40_0000}\n",
			1+rnd.IntN(20), 1+rnd.IntN(9), 1024+64*rnd.IntN(1000), 1024+64*rnd.IntN(1000), 6+rnd.IntN(40))
		fmt.Fprintf(&b, "server: threads: %d\n", 1+rnd.IntN(6)) // fewer of lanes are refused
		shards, hosts := 1+rnd.IntN(4), 1+rnd.IntN(4)
		b.WriteString("hosts: [\n")
		rails := 1 + rnd.IntN(4)
		for h := range hosts {
			fmt.Fprintf(&b, "\t{name: \"h%d\", rails: [", h)
			for r := range rails {
				fmt.Fprintf(&b, "\"%s\", ", []string{fmt.Sprintf("ibv:mlx5_%d", r), fmt.Sprintf("soft:10.0.%d.%d", r, h+1)}[rnd.IntN(2)])
			}
			b.WriteString("]},\n")
		}
		b.WriteString("]\nshards: [\n")
		for s := range shards {
			some := ""
			if s > 0 && rnd.IntN(3) == 0 {
				some = fmt.Sprintf("rails: [\"rail%d\"], ", rnd.IntN(rails))
			}
			fmt.Fprintf(&b, "\t{id: %d, %shost: \"h%d\", slab: %d, store: memory: \"%dKiB\"},\n", s, some, rnd.IntN(hosts), 4194304+rnd.IntN(1<<20), 4+rnd.IntN(1000))
		}
		b.WriteString("]\n")
		sources = append(sources, []byte(b.String()))
	}
	for i, src := range sources {
		if UnderRace && i%8 != 0 {
			continue
		}
		d, _, err := Load("r.cue", Options{Source: src})
		if err != nil {
			t.Fatalf("%v\n%s", err, src)
		}
		e := newEvaluator()
		v, _, err := e.recipe("r.cue", src, schemaFiles())
		if err != nil {
			t.Fatal(err)
		}
		b, err := v.LookupPath(cue.ParsePath("#budget")).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		var want [][]struct {
			What                                 string
			QPs, Lane, Total, CQs, CQEs, Memlock int64
		}
		if err := json.Unmarshal(b, &want); err != nil {
			t.Fatal(err)
		}
		got := d.Budget()
		if len(got) != len(want) {
			t.Fatalf("%d hosts, the schema has %d", len(got), len(want))
		}
		for i, ps := range want {
			most := int64(0)
			if len(got[i].Processes) != len(ps) {
				t.Errorf("host %s: %d processes, the schema has %d\n%s", got[i].Host, len(got[i].Processes), len(ps), src)
				continue
			}
			for k, w := range ps {
				g := got[i].Processes[k]
				most = max(most, w.Memlock)
				if int64(g.QPs) != w.QPs || g.LaneBytes != w.Lane || g.RegisteredBytes != w.Total || int64(g.QueueCQEs) != w.CQEs || int64(g.RailCQEs) != w.CQs*w.CQEs || g.MemlockBytes != w.Memlock {
					t.Errorf("host %s, %s: %+v, the schema has %+v\n%s", got[i].Host, w.What, g, w, src)
				}
			}
			if got[i].MemlockBytes != most {
				t.Errorf("host %s: memlock %d, the schema has %d", got[i].Host, got[i].MemlockBytes, most)
			}
		}
	}
}

// TestSizeAgrees compares ParseSize with the schema's #Size and #ToBytes.
func TestSizeAgrees(t *testing.T) {
	e := newEvaluator()
	schema, err := e.schema()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"0", "1", "64KiB", "64KB", "64K", "64Ki", "1M", "999999T", "999999TiB", "1000000T", "123456789G", "1234567890G", "999999999999999999", "1999999999999999999",
		"01", "-1", "1.5M", "1k", "", "B", "KiB", "1iB", "12 K", "1KBB"} {
		want, goErr := deploy.ParseSize(s)
		v := schema.LookupPath(cue.ParsePath("#Size")).Unify(e.ctx.Encode(s))
		if (goErr == nil) != (v.Err() == nil) {
			t.Errorf("%q: Go says %v, CUE says %v", s, goErr, v.Err())
		}
		if goErr == nil {
			out := schema.LookupPath(cue.ParsePath("#ToBytes")).FillPath(cue.ParsePath("in"), s).LookupPath(cue.ParsePath("out"))
			if got, err := out.Int64(); err != nil || got != want {
				t.Errorf("%q: CUE gives %d (%v), Go %d", s, got, err, want)
			}
		}
	}
}

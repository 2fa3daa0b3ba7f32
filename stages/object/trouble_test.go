package object

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/ibv"
	"github.com/railstore/railstore/verbs/soft"
)

// trouble is what can befall the rails of a matrix: fault scripts on the devices of
// soft, or commands on the net devices under real RDMA devices. An end is "client" or
// "shard" and the rail, as in "shard b".
type trouble interface {
	driver() verbs.Driver
	device(rail, host int) string             // hosts 0 and 1 are shards, 2 is the client
	downMidway(m *matrix, ends ...string)     // links go down in the middle of the next read
	silentMidway(m *matrix)                   // what a shard writes over rail b arrives, and it does not learn of that
	slow(end string, bitsPerSecond int)       // what an end sends
	late(by, most time.Duration)              // what shards write over rail b, for most; by itself it ends
	noisy(end string)                         // bits flip in what an end sends
	wrong(m *matrix) context.Context          // one stripe of rail b comes with wrong bytes, once, in a read under this context
	mend()                                    // all of it is over
	hit() bool                                // anything happened since the last mend
	absences() []absence                      // each keeps rail b of the client from coming up
	carried(t *testing.T, rail string) uint64 // bytes that came in at the client; 0: not known
}

type absence struct {
	what  string
	begin func()
}

// envRails names four RDMA devices: rail a and b of the client and of the shards.
const envRails = "RS_TEST_IBV_RAILS"

// matrixPace is how much slower than soft on a machine of its own everything is.
func matrixPace() time.Duration {
	if os.Getenv(envRails) != "" {
		return 4
	}
	return 1
}

// troubleHere is the provider's of this run.
func troubleHere(t *testing.T) trouble {
	t.Helper()
	v := os.Getenv(envRails)
	if v == "" {
		d := ends{}
		for _, e := range endNames {
			d[e] = soft.New(soft.Options{})
		}
		return &scripts{t: t, ends: d}
	}
	names := strings.Split(v, ",")
	if len(names) != len(endNames) {
		t.Fatalf("%s=%s: want %d devices, those of %v", envRails, v, len(endNames), endNames)
	}
	c := &cables{t: t, rdma: names, net: map[string]string{}, spoiled: map[string]bool{}, down: map[string]bool{}}
	for i, e := range endNames {
		b, err := os.ReadFile(filepath.Join("/sys/class/infiniband", names[i], "parent"))
		if err != nil {
			t.Fatalf("%s: the net device of %s: %v", envRails, names[i], err)
		}
		c.net[e] = strings.TrimSpace(string(b))
	}
	return c
}

var endNames = []string{"client a", "client b", "shard a", "shard b"}

// ends is a driver for each rail of the client and of the shards, told apart by the
// addresses of their devices: 127.86.RAIL.HOST, host 3 being the client.
type ends map[string]*soft.Driver

func endOf(device string) string {
	side, rail := "shard", "a"
	if strings.HasSuffix(device, ".3") {
		side = "client"
	}
	if strings.HasPrefix(device, "127.86.2.") {
		rail = "b"
	}
	return side + " " + rail
}

func (d ends) Name() string                               { return "soft" }
func (d ends) Devices() ([]verbs.DeviceInfo, error)       { return nil, nil }
func (d ends) Open(n string) (verbs.DriverContext, error) { return d[endOf(n)].Open(n) }

// scripts is trouble on soft.
type scripts struct {
	t    *testing.T
	ends ends
}

func (s *scripts) driver() verbs.Driver { return s.ends }
func (s *scripts) device(rail, host int) string {
	return fmt.Sprintf("soft:127.86.%d.%d", rail+1, host+1)
}

func (s *scripts) add(end string, f soft.Fault) int {
	s.t.Helper()
	id, err := s.ends[end].AddFault(f)
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

func (s *scripts) downMidway(_ *matrix, ends ...string) {
	for _, end := range ends {
		s.add(end, soft.Fault{Do: "port_down", At: soft.FaultAt{Bytes: 3 * matrixStripe}})
	}
}

func (s *scripts) silentMidway(*matrix) {
	s.add("shard b", soft.Fault{Do: "blackhole_completions", Match: soft.FaultMatch{Opcode: "write"}})
}

func (s *scripts) slow(end string, bits int) {
	s.add(end, soft.Fault{Do: "bandwidth", BitsPerSecond: int64(bits)})
}

func (s *scripts) late(by, most time.Duration) {
	s.add("shard b", soft.Fault{Do: "late_write", By: by, For: most, Match: soft.FaultMatch{Opcode: "write", Direction: "out"}})
}

func (s *scripts) noisy(end string) {
	s.add(end, soft.Fault{Do: "corrupt_wire", Rate: 0.02, Seed: testSeed(s.t)})
}

// In the middle of the first stripes; a bit in a lane's words is the lane's business.
func (s *scripts) wrong(*matrix) context.Context {
	s.add("client b", soft.Fault{Do: "corrupt", At: soft.FaultAt{Bytes: matrixStripe + matrixStripe/2}, Times: 1, Match: soft.FaultMatch{Opcode: "write", Direction: "in"}})
	return context.Background()
}

func (s *scripts) mend() {
	for _, d := range s.ends {
		d.ClearFaults()
	}
}

func (s *scripts) hit() bool {
	for _, d := range s.ends {
		for _, f := range d.Faults() {
			if f.Hits > 0 {
				return true
			}
		}
	}
	return false
}

func (s *scripts) absences() (out []absence) {
	for _, f := range []soft.Fault{{Do: "fail", Op: "open"}, {Do: "port_down"}, {Do: "fail", Op: "create_cq"}, {Do: "fail", Op: "reg_mr", Errno: "ENOMEM"},
		{Do: "fail", Op: "create_qp", Errno: "ENOMEM"}, {Do: "fail", Op: "modify_rtr", Errno: "ENETUNREACH"}} {
		out = append(out, absence{f.Do + " " + f.Op, func() { s.add("client b", f) }})
	}
	return out
}

func (s *scripts) carried(*testing.T, string) uint64 { return 0 }

// cables is trouble on real devices: the links of the net devices under them are taken
// down, and what they send is held back, dropped or spoiled. RS_TEST_NETDEV_MEND is the
// command that takes the net device up again that is put behind it.
type cables struct {
	t       *testing.T
	rdma    []string
	net     map[string]string // of each end
	spoiled map[string]bool   // net devices with a queueing discipline
	down    map[string]bool
	mu      sync.Mutex // held while trouble begins and ends
}

func (c *cables) driver() verbs.Driver { return ibv.New(ibv.Options{}) }

func (c *cables) device(rail, host int) string {
	if host < 2 {
		rail += 2
	}
	return "ibv:" + c.rdma[rail]
}

// run runs a command; it may be called on any goroutine.
func (c *cables) run(command string) {
	c.t.Helper()
	if out, err := exec.Command("bash", "-c", "set -e\n"+command).CombinedOutput(); err != nil {
		c.t.Errorf("%s: %v\n%s", command, err, out)
	}
}

func (c *cables) spoil(end, how string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	dev := c.net[end]
	c.run("tc qdisc replace dev " + dev + " root " + how)
	c.spoiled[dev] = true
}

func (c *cables) cut(ends ...string) {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for _, e := range ends {
		fmt.Fprintf(&b, "ip link set %s down\n", c.net[e])
		c.down[c.net[e]] = true
	}
	c.run(b.String())
}

// downMidway takes links down while WRITEs are under way: slowly, for that.
func (c *cables) downMidway(m *matrix, ends ...string) {
	for _, e := range ends {
		c.slow("shard "+strings.Fields(e)[1], 20e6) // a stripe takes 100 ms
	}
	m.midway(func() { c.cut(ends...) })
}

// silentMidway drops what the client sends over rail b, acknowledgements among it.
func (c *cables) silentMidway(m *matrix) {
	m.midway(func() { c.spoil("client b", "netem loss 100%") })
}

func (c *cables) slow(end string, bits int) {
	c.spoil(end, fmt.Sprintf("tbf rate %dbit burst 64kb limit 4mb", bits))
}

// late holds the data packets of WRITEs back, and lets requests, answers and
// acknowledgements pass, so that both QPs are well all the time. Data packets are those
// of 4096 to 8191 bytes: one MTU and headers.
func (c *cables) late(by, _ time.Duration) {
	dev := c.net["shard b"]
	c.spoil("shard b", fmt.Sprintf(`handle 1: prio bands 4
		tc qdisc add dev %s parent 1:4 netem delay %dms limit 20000
		tc filter add dev %[1]s parent 1: protocol ip prio 1 u32 match u16 0x1000 0xf000 at 2 flowid 1:4`, dev, by.Milliseconds()))
}

func (c *cables) noisy(end string) { c.spoil(end, "netem corrupt 2%") }

// wrong spoils a stripe's file: what the shard sends is not what was put, while the
// wire's own checksums are good. Before it is read again the file is right.
func (c *cables) wrong(m *matrix) context.Context {
	plan, err := m.session.Explain(context.Background(), testKey, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	path := m.file(plan.Rails[1].Stripes[1])
	flipByte(c.t, path, matrixStripe/2)
	var once atomic.Bool
	return pipeline.WithSink(context.Background(), func(e pipeline.Event) {
		if e.Event == "stripe_reread" && !once.Swap(true) {
			flipByte(c.t, path, matrixStripe/2)
		}
	})
}

func (c *cables) mend() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for dev := range c.spoiled {
		fmt.Fprintf(&b, "tc qdisc del dev %s root\n", dev)
	}
	for dev := range c.down {
		fmt.Fprintf(&b, "%s %s\n", os.Getenv("RS_TEST_NETDEV_MEND"), dev)
	}
	clear(c.spoiled)
	clear(c.down)
	if b.Len() > 0 {
		c.run(b.String())
	}
}

func (c *cables) hit() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.spoiled)+len(c.down) > 0
}

func (c *cables) absences() []absence {
	return []absence{{"link down", func() { c.cut("client b") }}}
}

func (c *cables) carried(t *testing.T, rail string) uint64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/sys/class/net", c.net["client "+rail], "statistics/rx_bytes"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/bin/provider"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/perf"
)

func (a *app) benchVerbsCommand() *cli.Command {
	return &cli.Command{
		Name:      "verbs",
		Usage:     "bandwidth and latency of WRITE, READ and SEND, in perftest's columns",
		ArgsUsage: "[HOST]",
		Description: `Without HOST both ends are in this process, each with a device of its own. With
--listen it is the answering end, and with HOST the measuring end, of two
processes that meet on --port; the measuring end says what is measured.

Bandwidth is in MiB/s (2^20 bytes), or Gb/s (10^9 bits) with --report-gbits;
latency of write and send is half a round trip, as ib_write_lat has it.

Examples:
   rs bench verbs
   rs bench verbs --test write_lat --size 64
   rs bench verbs --test read_bw --all --report-gbits
   rs bench verbs --test send_bw --size 4KiB,64KiB --qps 4 --go`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "test", Aliases: []string{"t"}, Value: "write_bw", Usage: "`TEST`: write, read or send with _bw or _lat"},
			&cli.StringFlag{Name: "device", Value: "soft:127.0.0.1", Usage: "`DEVICE` of this end, as in a recipe"},
			&cli.StringFlag{Name: "peer-device", Usage: "`DEVICE` of the other end when both are in this process (default: the same)"},
			&cli.IntFlag{Name: "ib-port", Aliases: []string{"i"}, Value: 1, Usage: "port `N` of the device"},
			&cli.IntFlag{Name: "gid-index", Aliases: []string{"x"}, Value: -1, Usage: "GID `INDEX` (default: chosen as in a recipe)"},
			&cli.StringFlag{Name: "size", Aliases: []string{"s"}, Value: "64KiB", Usage: "message `SIZES`, separated by commas"},
			&cli.BoolFlag{Name: "all", Aliases: []string{"a"}, Usage: "every power of two from 64 B to 8 MiB"},
			&cli.IntFlag{Name: "iters", Aliases: []string{"n"}, Usage: "messages a size (default: by size)"},
			&cli.IntFlag{Name: "depth", Value: 16, Usage: "messages in flight on a QP"},
			&cli.IntFlag{Name: "qps", Value: 1, Usage: "queue pairs"},
			&cli.IntFlag{Name: "mtu", Aliases: []string{"m"}, Usage: "cap on the path MTU, bytes"},
			&cli.BoolFlag{Name: "report-gbits", Usage: "Gb/s instead of MiB/s"},
			&cli.BoolFlag{Name: "go", Usage: "print lines that benchstat reads"},
			&cli.BoolFlag{Name: "listen", Usage: "answer one measuring end, then exit"},
			&cli.IntFlag{Name: "port", Aliases: []string{"p"}, Value: 18515, Usage: "TCP `PORT` where two processes meet"},
			&cli.DurationFlag{Name: flagTimeout, Value: time.Minute, Usage: "give up a measurement after this `TIME`"},
		},
		Action: a.benchVerbs,
	}
}

func (a *app) benchVerbs(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "[HOST]")
	if err != nil {
		return err
	}
	listen := c.Bool("listen")
	if listen && len(args) > 0 {
		return usagef("rs bench verbs: --listen waits for the other end and takes no HOST")
	}
	tests, err := benchTests(c)
	if err != nil {
		return err
	}
	b := &verbsBench{app: a, c: c, printed: map[perf.Kind]bool{}}
	switch addr := strconv.Itoa(c.Int("port")); {
	case listen:
		return b.answer(ctx, net.JoinHostPort("", addr))
	case len(args) == 1:
		return b.measure(ctx, net.JoinHostPort(args[0], addr), tests)
	}
	for _, t := range tests {
		if err := b.local(ctx, t); err != nil {
			return err
		}
	}
	return nil
}

// benchTests reads what the flags ask for.
func benchTests(c *cli.Command) ([]perf.Test, error) {
	name, kind, _ := strings.Cut(c.String("test"), "_")
	op, ok := map[string]verbs.Opcode{"write": verbs.OpWrite, "read": verbs.OpRead, "send": verbs.OpSend}[name]
	if !ok || (kind != string(perf.Bandwidth) && kind != string(perf.Latency)) {
		return nil, usagef("--test %s: want write_bw, write_lat, read_bw, read_lat, send_bw or send_lat", c.String("test"))
	}
	var sizes []int
	if c.Bool("all") {
		for n := 64; n <= 8<<20; n *= 2 {
			sizes = append(sizes, n)
		}
	} else {
		for s := range strings.SplitSeq(c.String("size"), ",") {
			n, err := deploy.ParseSize(s)
			if err != nil {
				return nil, usagef("--size %s: %v", c.String("size"), err)
			}
			sizes = append(sizes, int(min(n, 1<<31)))
		}
	}
	if m := c.Int("mtu"); m != 0 && !verbs.ValidMTU(m) {
		return nil, usagef("--mtu %d: want 256, 512, 1024, 2048 or 4096", m)
	}
	var out []perf.Test
	for _, s := range sizes {
		t := perf.Test{Op: op, Kind: perf.Kind(kind), Size: s, Iters: c.Int("iters"), Depth: c.Int("depth"), QPs: c.Int("qps"), MTU: c.Int("mtu")}
		if t.Iters == 0 && t.Kind == perf.Latency {
			t.Iters = max(100, min(5000, 64<<20/max(1, s)))
		} else if t.Iters == 0 {
			// Enough bytes for a steady rate, not so many that small messages or
			// slow devices take minutes.
			t.Iters = max(16, min(20000, 512<<20/max(1, s)))
		}
		t.Warmup = max(1, t.Iters/20)
		if err := t.Check(); err != nil {
			return nil, usagef("rs bench verbs: %v", err)
		}
		out = append(out, t)
	}
	return out, nil
}

type verbsBench struct {
	app     *app
	c       *cli.Command
	printed map[perf.Kind]bool
}

// open resolves a device as a rail would be and makes an end on it.
func (b *verbsBench) open(ctx context.Context, scope *pipeline.Scope, device string, t perf.Test) (*perf.End, *rail.Rail, error) {
	spec := deploy.Rail{Name: "bench", Device: device, Port: b.c.Int("ib-port"), HopLimit: 64}
	if x := b.c.Int("gid-index"); x >= 0 {
		spec.GID = deploy.GIDSelector{Select: "index", Index: x}
	}
	d := &deploy.Deployment{Hosts: []deploy.Host{{Name: "bench", Rails: []deploy.Rail{spec}}}}
	rails, err := pipeline.Run(ctx, scope, rail.Resolve, rail.ResolveInput{Deployment: d, Host: "bench", Drivers: provider.Open})
	if err != nil {
		return nil, nil, err
	}
	at := rails[0].Address()
	e, err := perf.NewEnd(rails[0].Ctx, perf.Path{Port: uint8(spec.Port), GID: at.GID.Entry,
		Opts: verbs.PathOpts{PKeyIndex: at.PKeyIndex}}, t)
	if err != nil {
		return nil, nil, err
	}
	scope.DeferClose("bench end", e.Close)
	return e, rails[0], nil
}

// local measures with both ends in this process.
func (b *verbsBench) local(ctx context.Context, t perf.Test) (err error) {
	scope := pipeline.NewScope()
	defer func() { err = errors.Join(err, scope.Close(context.WithoutCancel(ctx))) }()
	ctx, cancel := context.WithTimeout(ctx, b.c.Duration(flagTimeout))
	defer cancel()
	device := b.c.String("device")
	peer := b.c.String("peer-device")
	if peer == "" {
		peer = device
	}
	x, r, err := b.open(ctx, scope, device, t)
	if err != nil {
		return err
	}
	y, _, err := b.open(ctx, scope, peer, t)
	if err != nil {
		return err
	}
	if err := errors.Join(x.Connect(y.Hello()), y.Connect(x.Hello())); err != nil {
		return err
	}
	res, err := perf.Between(ctx, x, y)
	if err != nil {
		return b.failed(err, t)
	}
	return b.print(t, res, x, r, "this process, "+peer)
}

// measure is the measuring end of two processes.
func (b *verbsBench) measure(ctx context.Context, addr string, tests []perf.Test) error {
	for _, t := range tests {
		if err := b.measureOne(ctx, addr, t); err != nil {
			return err
		}
	}
	return nil
}

func (b *verbsBench) measureOne(ctx context.Context, addr string, t perf.Test) (err error) {
	scope := pipeline.NewScope()
	defer func() { err = errors.Join(err, scope.Close(context.WithoutCancel(ctx))) }()
	ctx, cancel := context.WithTimeout(ctx, b.c.Duration(flagTimeout))
	defer cancel()
	x, r, err := b.open(ctx, scope, b.c.String("device"), t)
	if err != nil {
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return pipeline.Wrap(err, pipeline.LayerConnect, "bench", pipeline.Nowhere)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var peer perf.Hello
	enc, dec := json.NewEncoder(conn), json.NewDecoder(conn)
	if err := errors.Join(enc.Encode(x.Hello()), dec.Decode(&peer)); err != nil {
		return pipeline.Errorf(pipeline.LayerConnect, "bench", pipeline.Nowhere, "%s: the answering end said nothing useful: %w", addr, err)
	}
	if err := x.Connect(peer); err != nil {
		return err
	}
	var ready bool
	if err := dec.Decode(&ready); err != nil {
		return pipeline.Errorf(pipeline.LayerConnect, "bench", pipeline.Nowhere, "%s: the answering end could not connect: %w", addr, err)
	}
	res, err := x.Initiate(ctx)
	if err != nil {
		return b.failed(err, t)
	}
	return b.print(t, res, x, r, addr)
}

// answer is the answering end: it takes measurements until the measuring end
// has been quiet for the timeout.
func (b *verbsBench) answer(ctx context.Context, addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return pipeline.Wrap(err, pipeline.LayerConnect, "bench", pipeline.Nowhere)
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	b.app.progress("waiting on %s; on the other host: rs bench verbs --port %d HOST", l.Addr(), b.c.Int("port"))
	for served := 0; ; served++ {
		if tl, ok := l.(*net.TCPListener); ok && served > 0 {
			// Between the sizes of one run the other end comes back at once.
			_ = tl.SetDeadline(time.Now().Add(2 * time.Second))
		}
		conn, err := l.Accept()
		if err != nil {
			if served > 0 && ctx.Err() == nil {
				return nil
			}
			return errors.Join(ctx.Err(), err)
		}
		if err := b.answerOne(ctx, conn); err != nil {
			return err
		}
	}
}

func (b *verbsBench) answerOne(ctx context.Context, conn net.Conn) (err error) {
	defer conn.Close()
	scope := pipeline.NewScope()
	defer func() { err = errors.Join(err, scope.Close(context.WithoutCancel(ctx))) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var peer perf.Hello
	_ = conn.SetDeadline(time.Now().Add(b.c.Duration(flagTimeout)))
	enc, dec := json.NewEncoder(conn), json.NewDecoder(conn)
	if err := dec.Decode(&peer); err != nil {
		return pipeline.Errorf(pipeline.LayerConnect, "bench", pipeline.Nowhere, "%s: not a measuring end: %w", conn.RemoteAddr(), err)
	}
	y, _, err := b.open(ctx, scope, b.c.String("device"), peer.Test)
	if err != nil {
		return err
	}
	if err := enc.Encode(y.Hello()); err != nil {
		return err
	}
	if err := y.Connect(peer); err != nil {
		return err
	}
	if err := enc.Encode(true); err != nil {
		return err
	}
	// The measuring end closes the connection when it is done or has died. How long
	// that may take is for its --timeout to say.
	_ = conn.SetDeadline(time.Time{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		var one [1]byte
		_, _ = conn.Read(one[:])
		cancel()
	}()
	err = y.Respond(ctx)
	if err == nil {
		<-watched
	}
	_ = conn.Close()
	<-watched
	return err
}

// packetCounts are those of the measuring end; a provider that does not count has none.
type packetCounts struct {
	PacketsSent     *uint64 `json:"packets_sent,omitempty"`
	PacketsReceived *uint64 `json:"packets_received,omitempty"`
	Retransmits     *uint64 `json:"retransmits,omitempty"`
	Timeouts        *uint64 `json:"timeouts,omitempty"`
}

func packetCountsOf(s verbs.QPStats) packetCounts {
	if s.PacketsSent == 0 {
		return packetCounts{} // nothing was measured without a packet
	}
	return packetCounts{&s.PacketsSent, &s.PacketsReceived, &s.Retransmits, &s.Timeouts}
}

// failed says of a measurement that did not come to its end which option is in its way.
func (b *verbsBench) failed(err error, t perf.Test) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return pipeline.Errorf(pipeline.LayerDevice, t.Name(), pipeline.Nowhere, "not through within %v: %w", b.c.Duration(flagTimeout), err).
			WithHint("allow more with --timeout, or ask for fewer --iters")
	}
	return pipeline.Wrap(err, pipeline.LayerDevice, t.Name(), pipeline.Nowhere)
}

func (b *verbsBench) print(t perf.Test, r perf.Result, e *perf.End, on *rail.Rail, peer string) error {
	a := b.app
	if a.json {
		return a.printJSON(struct {
			perf.Result
			Device   string `json:"device"`
			Provider string `json:"provider"`
			Peer     string `json:"peer"`
			MTU      int    `json:"mtu"`
			QPs      int    `json:"qps"`
			Depth    int    `json:"depth"`
			packetCounts
		}{r, on.Ctx.Name(), on.Provider(), peer, e.MTU(), t.QPs, t.Depth, packetCountsOf(e.Stats())})
	}
	if b.c.Bool("go") {
		a.printf("%s\n", r.GoBench(on.Ctx.Name()))
		return nil
	}
	gbits := b.c.Bool("report-gbits")
	if !b.printed[t.Kind] {
		b.printed[t.Kind] = true
		dash, at := strings.Repeat("-", 90), on.Address()
		a.printf("%s\n %s\n", dash, t.Name())
		for _, kv := range [][2]string{{"Device", on.Ctx.Name()}, {"Peer", peer}, {"Number of qps", strconv.Itoa(t.QPs)}, {"Connection type", "RC"},
			{"TX depth", strconv.Itoa(t.Depth)}, {"Mtu", fmt.Sprintf("%d[B]", e.MTU())}, {"Link type", at.Port.LinkLayer.String()},
			{"GID index", fmt.Sprintf("%d (%v %v)", at.GID.Entry.Index, at.GID.Entry.Type, at.GID.Entry.GID.Addr())}} {
			a.printf(" %-16s: %s\n", kv[0], kv[1])
		}
		a.printf("%s\n%s\n", dash, perf.Header(t.Kind, gbits))
	}
	a.printf("%s\n", r.Row(t.Kind, gbits))
	return nil
}

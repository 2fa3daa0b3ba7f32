package cmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v3"
	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

func (a *app) benchReadCommand() *cli.Command {
	return &cli.Command{
		Name:  "read",
		Usage: "measure reads of large objects: all rails against one, and a plain WRITE",
		Description: `Puts objects of its own into a namespace of its own, reads them over one rail and
over all of them, and removes them, also after an interrupt. Samples are paired: each
round has one of every kind, in an order that moves on, so that what else the machine
does meets all kinds alike. Beside the rates are the CPU time and memory of rs and
of the shards on this machine, and the rate of plain WRITEs (as in rs bench verbs,
both ends in this process) of the same bytes on the first rail. --readers are reads
at once in one process.

Results go to a folder: raw.json, with every sample, and summary.md; after an
interrupt what was measured until then, marked as partial. A build with the
race detector or without optimization measures nothing; it can --check only.

Examples:
   rs bench read --size 8MiB --readers 1,2 --samples 3 --warmup 1
   rs bench read --size 8MiB --readers 1 --samples 2 --warmup 1 --one rail1 --cli 2
   rs bench read --size 1MiB --check`,
		Flags: []cli.Flag{
			deploymentFlag(), hostFlag(), connectFlag(),
			&cli.StringFlag{Name: "size", Aliases: []string{"s"}, Value: "64MiB,128MiB,256MiB", Usage: "`SIZES` of objects, a list"},
			&cli.StringFlag{Name: "readers", Value: "1,4", Usage: "`READS` at once, a list"},
			&cli.StringFlag{Name: flagStripe, Usage: "`SIZE` of a stripe (default: the deployment's objects.stripeBytes)"},
			&cli.StringFlag{Name: "one", Usage: "`RAIL` that all rails are compared with (default: the host's first)"},
			&cli.IntFlag{Name: "samples", Aliases: []string{"n"}, Value: 11, Usage: "`ROUNDS` for each size and number of readers"},
			&cli.IntFlag{Name: "warmup", Value: 3, Usage: "`ROUNDS` before them that do not count"},
			&cli.IntFlag{Name: "cli", Usage: "also so many `RUNS` of the command rs read for 1 MiB, each a process that connects anew"},
			&cli.StringFlag{Name: "out", TakesFile: true, Usage: "`FOLDER` of results (default: results/read-TIME)"},
			&cli.StringFlag{Name: "write-size", Usage: "`SIZE` of a message of the plain WRITE, which goes from and to a buffer of that size (default: the whole object, as the read fills)"},
			&cli.BoolFlag{Name: "no-write", Usage: "leave the plain WRITE out"},
			&cli.BoolFlag{Name: "check", Usage: "read and verify everything once, report no times and write no results"},
		},
		Action: a.benchRead,
	}
}

// benchReadAsk is what the flags ask for.
type benchReadAsk struct {
	sizes   []int64
	readers []int
	stripe  int64 // 0: the deployment's
	one     string
	samples int
	warmup  int
	cli     int
	write   bool
	message int64 // of the plain WRITE; 0: the object
	check   bool
}

// Kinds of samples.
const (
	kindOne   = "one rail"
	kindAll   = "all rails"
	kindWrite = "plain WRITE"
)

// benchReadSizes bound an object that is measured; an object is read as a whole.
const (
	benchReadLeast = object.Align
	benchReadMost  = 4 << 30
)

func benchReadAsked(c *cli.Command) (q benchReadAsk, err error) {
	for s := range strings.SplitSeq(c.String("size"), ",") {
		n, err := deploy.ParseSize(strings.TrimSpace(s))
		if err != nil || n < benchReadLeast || n > benchReadMost || slices.Contains(q.sizes, n) {
			return q, usagef("--size %s: want sizes from %s to %s, each once", c.String("size"), size(benchReadLeast), size(benchReadMost))
		}
		q.sizes = append(q.sizes, n)
	}
	for s := range strings.SplitSeq(c.String("readers"), ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 || n > 64 || slices.Contains(q.readers, n) {
			return q, usagef("--readers %s: want whole numbers from 1 to 64, each once", c.String("readers"))
		}
		q.readers = append(q.readers, n)
	}
	if s := c.String(flagStripe); s != "" {
		if q.stripe, err = deploy.ParseSize(s); err == nil {
			_, err = object.StripeCount(0, uint64(q.stripe))
		}
		if err != nil || q.stripe == 0 {
			return q, usagef("--stripe %s: want a multiple of %s up to %s", s, size(object.Align), size(object.MaxStripeBytes))
		}
	}
	q.one, q.samples, q.warmup, q.cli = c.String("one"), c.Int("samples"), c.Int("warmup"), c.Int("cli")
	if s := c.String("write-size"); s != "" {
		if q.message, err = deploy.ParseSize(s); err != nil || q.message < 1 || q.message > 1<<30 {
			return q, usagef("--write-size %s: want a size from 1 to 1 GiB", s)
		}
	}
	q.check = c.Bool("check")
	q.write = !c.Bool("no-write") && !q.check
	if q.samples < 1 || q.samples > 10000 || q.warmup < 0 || q.warmup > 10000 || q.cli < 0 || q.cli > 10000 {
		return q, usagef("--samples, --warmup and --cli: want numbers up to 10000, and at least one sample")
	}
	if q.check {
		q.samples, q.warmup, q.cli = 1, 0, min(q.cli, 1)
	}
	return q, nil
}

func (a *app) benchRead(ctx context.Context, c *cli.Command) error {
	if _, err := arguments(c); err != nil {
		return err
	}
	q, err := benchReadAsked(c)
	if err != nil {
		return err
	}
	if why := slowBuild(); why != "" && !q.check {
		return usagef("this rs is %s: its times mean nothing", why).withHint("measure with a plain build (make build), or use --check")
	}
	out := c.String("out")
	if out == "" {
		out = filepath.Join("results", "read-"+time.Now().UTC().Format("20060102-150405"))
	}
	if !q.check {
		// Not after an hour of measuring.
		if err := writableFolder(out); err != nil {
			return atOp("bench", fmt.Errorf("--out %s: %w", out, err))
		}
	}
	b := &readBench{app: a, ask: q}
	err = b.run(ctx, c)
	switch {
	case q.check:
		if err != nil {
			return err
		}
		return b.printCheck()
	case err != nil && !b.result.measured():
		return err
	case err != nil && !b.complete:
		b.result.Partial = launch.FailureOf(err).String()
		if cause := context.Cause(ctx); cause != nil {
			b.result.Partial = cause.Error()
		}
	}
	if perr := b.print(); perr != nil {
		return errors.Join(err, perr)
	}
	if werr := b.result.write(out); werr != nil {
		return errors.Join(err, atOp("bench", werr))
	}
	a.progress("results are in %s", out)
	return err
}

// writableFolder reports why a folder, or what is to be made above it, cannot be written.
// It changes nothing.
func writableFolder(dir string) error {
	at := filepath.Clean(dir)
	st, err := os.Stat(at)
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at {
		at = filepath.Dir(at)
		st, err = os.Stat(at)
	}
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return &fs.PathError{Op: "mkdir", Path: at, Err: syscall.ENOTDIR}
	}
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return &fs.PathError{Op: "write", Path: at, Err: err}
	}
	return nil
}

// run puts the objects, measures and removes them.
func (b *readBench) run(ctx context.Context, c *cli.Command) (err error) {
	if _, err := connectTime(c); err != nil {
		return err
	}
	f, err := b.app.folder(c)
	if err != nil {
		return err
	}
	r, err := f.Resolved()
	if err != nil {
		return err
	}
	// Every reader of a sample needs room for a whole object. Addresses cost nothing;
	// memory is registered as reads need it.
	limits := r.Deployment.Reader
	stripe := b.ask.stripe
	if stripe == 0 {
		stripe = r.Deployment.Objects.StripeBytes
	}
	limits.MaxStaging = max(limits.MaxStaging, int64(slices.Max(b.ask.readers))*(slices.Max(b.ask.sizes)+stripe))
	ctx, s, done, err := b.app.openSessionFor(ctx, c, sessionFor{folder: f, host: c.String(flagHost), reader: &limits})
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	b.session, b.stripe = s, stripe
	defer func() { b.result.LoadAfter = loadAverage() }()
	if err := b.describe(ctx, r.Deployment); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.remove(ctx)) }()
	for _, n := range b.ask.sizes {
		b.app.progress("put an object of %s", size(uint64(n)))
		key, err := b.put(ctx, n)
		if err != nil {
			return err
		}
		for _, readers := range b.ask.readers {
			b.app.progress("read %s, %d at once", size(uint64(n)), readers)
			if err := b.measure(ctx, key, n, readers); err != nil {
				return err
			}
		}
	}
	if b.ask.cli > 0 {
		if err := b.measureCommand(ctx, c, f.Name); err != nil {
			return err
		}
	}
	b.complete = true
	return nil
}

func (b *readBench) printCheck() error {
	reads, bytes := 0, uint64(0)
	for i := range b.result.Cases {
		for _, s := range b.result.Cases[i].Samples {
			reads += b.result.Cases[i].Readers
			bytes += s.Bytes
		}
	}
	if b.app.json {
		return b.app.printJSON(struct {
			Reads int    `json:"reads"`
			Bytes uint64 `json:"bytes"`
		}{reads, bytes})
	}
	b.app.printf("%d reads, %s, all verified\n", reads, size(bytes))
	return nil
}

// print shows what was measured: a line for each case in JSON.
func (b *readBench) print() error {
	if !b.app.json {
		b.app.printf("%s", b.result.text())
		return nil
	}
	for i := range b.result.Cases {
		if err := b.app.printJSON(struct {
			readSetting
			*readCase
		}{b.result.readSetting, &b.result.Cases[i]}); err != nil {
			return err
		}
	}
	if b.result.Command == nil {
		return nil
	}
	return b.app.printJSON(struct {
		readSetting
		Command *commandCase `json:"command"`
	}{b.result.readSetting, b.result.Command})
}

// warnBusy tells of a machine whose figures are worth little. In JSON the result does.
func (a *app) warnBusy(s *readSetting) {
	if s.Busy && !a.json {
		fmt.Fprintf(a.err, "warning: %s\n", s.busyText())
	}
}

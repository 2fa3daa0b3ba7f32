package cmd

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/ps"
	"github.com/railstore/railstore/stages/vectors"
)

func (a *app) tableSaveCommand() *cli.Command {
	return &cli.Command{
		Name:      "save",
		Usage:     "write rows to a .npy file, or all tables to a snapshot",
		ArgsUsage: "TABLE FILE --keys-out FILE | TABLE FILE --keys FILE | --snapshot NAME [--base NAME]",
		Description: `FILE gets rows as .npy of f4, and the file of --keys-out their keys. Without anything
else they are all rows of the table, in no order, those that come or go meanwhile or
not. With --keys, --range or --like they are the rows of these keys, in their order;
keys without a row get zeros and are counted, and with --must-exist they are an error,
and nothing is written.

A snapshot has every row of every table with its optimizer state. Each shard writes
its own file below the state folder, while reads and writes go on. NAME belongs to
the new snapshot when all shards have written it; if one cannot, it keeps the old one.
With --base, an earlier snapshot or the one that was loaded last, only what has changed
since is written, and loading needs the base, too. Shards remember the last 16 that
were saved or loaded since they were started.

Examples:
   rs table save user rows.npy --keys-out keys.npy
   rs table save user rows.npy --range 0:100
   rs table save words rows.npy --like vectors.txt --keys-out keys.npy
   rs table save --snapshot nightly
   rs table save --snapshot hourly --base nightly`,
		Flags: tableFlags(
			&cli.StringFlag{Name: flagSnapshot, Usage: "`NAME` of a snapshot"},
			&cli.StringFlag{Name: "base", Usage: "save only what has changed since the snapshot of this `NAME`"},
			&cli.StringFlag{Name: "keys", TakesFile: true, Usage: "`FILE` (.npy of u8 or i8) with the keys"},
			&cli.StringFlag{Name: "range", Usage: "the keys `FROM:TO`, without TO itself"},
			&cli.StringFlag{Name: "like", TakesFile: true, Usage: "the keys of another `FILE` of rows, as rs table load would give them"},
			&cli.StringFlag{Name: "keys-out", TakesFile: true, Usage: "write the keys to `FILE`, as .npy of u8"},
			&cli.BoolFlag{Name: "must-exist", Usage: "fail if a key has no row"},
		),
		Action: a.tableSave,
	}
}

// saveReport is the result of a save to a file for JSON.
type saveReport struct {
	Table         string  `json:"table"`
	File          string  `json:"file"`
	Rows          int64   `json:"rows"`
	Missing       int64   `json:"missing"`
	Dim           int     `json:"dim"`
	Seconds       float64 `json:"seconds"`
	RowsPerSecond float64 `json:"rows_per_second"`
}

func (a *app) tableSave(ctx context.Context, c *cli.Command) error {
	if c.IsSet(flagSnapshot) {
		return a.tableSnapshot(ctx, c, "save", func(ctx context.Context, s *ps.Session, name string) (ps.Snapshot, error) {
			return s.Save(ctx, name, c.String("base"))
		})
	}
	if c.IsSet("base") {
		return usagef("%s: --base without --snapshot", c.FullName())
	}
	args, err := arguments(c, "TABLE", "FILE")
	if err != nil {
		return err
	}
	if sameFile(args[1], c.String("keys-out")) {
		return usagef("%s: %s would be the rows and the keys: want another file for --keys-out", c.FullName(), args[1])
	}
	keys, err := keysOf(c)
	if err != nil {
		return err
	}
	if keys.close != nil {
		defer keys.close()
	}
	return a.onTable(ctx, c, args[0], func(ctx context.Context, _ *ps.Session, t *ps.Table) error {
		if keys.all {
			keys.next = allKeys(ctx, t)
		}
		rep, err := a.saveRows(ctx, c, t, keys, args[1])
		if err != nil {
			return err
		}
		rep.Table = args[0]
		if a.json {
			return a.printJSON(rep)
		}
		a.printf("%s: %d rows of %d floats written to %s, %d of them missing, %s, %.0f rows/s\n", rep.Table, rep.Rows, rep.Dim, rep.File, rep.Missing, seconds(rep.Seconds), rep.RowsPerSecond)
		return nil
	})
}

func (a *app) saveRows(ctx context.Context, c *cli.Command, t *ps.Table, from keySource, path string) (rep saveReport, err error) {
	rep = saveReport{File: path, Dim: t.Dim()}
	out, err := vectors.CreateMatrix(path, t.Dim())
	if err != nil {
		return rep, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	var keysOut *vectors.Writer
	if p := c.String("keys-out"); p != "" {
		if keysOut, err = vectors.CreateKeys(p); err != nil {
			return rep, err
		}
		defer func() { err = errors.Join(err, keysOut.Close()) }()
	}
	n := min(max((1<<20)/(4*t.Dim()), 1), 8192)
	keys, rows, found := make([]uint64, n), make([]float32, n*t.Dim()), make([]bool, n)
	bar := a.newBar("save "+t.Spec().Name, 0)
	defer bar.stop()
	begin := time.Now()
	for {
		n, err := from.next(keys)
		if err == io.EOF {
			break
		}
		if err != nil {
			return rep, err
		}
		if err := t.Get(ctx, keys[:n], rows[:n*t.Dim()], found[:n]); err != nil {
			return rep, err
		}
		if from.all { // a row that went since its key was told is none of the table
			n = compact(keys, rows, found[:n], t.Dim())
		}
		for i, f := range found[:n] {
			if !f {
				if rep.Missing++; c.Bool("must-exist") {
					return rep, pipeline.Errorf(pipeline.LayerService, "save", pipeline.Nowhere, "table %q: %w for key %d, row %d of the file", t.Spec().Name, errMissing, keys[i], rep.Rows+int64(i)+1)
				}
			}
		}
		rep.Rows += int64(n)
		if err := out.Rows(rows[:n*t.Dim()]); err != nil {
			return rep, err
		}
		if keysOut != nil {
			if err := keysOut.Keys(keys[:n]); err != nil {
				return rep, err
			}
		}
		bar.add(uint64(4 * n * t.Dim()))
	}
	// The keys first: a file of rows without its keys is worth nothing.
	if keysOut != nil {
		if err := keysOut.Commit(); err != nil {
			return rep, err
		}
	}
	if err := out.Commit(); err != nil {
		return rep, err
	}
	rep.Seconds = time.Since(begin).Seconds()
	if rep.Seconds > 0 {
		rep.RowsPerSecond = float64(rep.Rows) / rep.Seconds
	}
	return rep, nil
}

// compact keeps the keys that have a row, and their rows, and says how many they are.
func compact(keys []uint64, rows []float32, found []bool, dim int) int {
	n := 0
	for i, f := range found {
		if !f {
			continue
		}
		keys[n], found[n] = keys[i], true
		copy(rows[n*dim:(n+1)*dim], rows[i*dim:(i+1)*dim])
		n++
	}
	return n
}

// keySource gives the keys whose rows are saved; next of all keys is known with the table.
type keySource struct {
	all   bool
	next  func(keys []uint64) (int, error)
	close func()
}

func keysOf(c *cli.Command) (keySource, error) {
	var given []string
	for _, f := range []string{"keys", "range", "like"} {
		if c.IsSet(f) {
			given = append(given, "--"+f)
		}
	}
	switch {
	case len(given) > 1:
		return keySource{}, usagef("%s: want one of --keys, --range and --like, not %d", c.FullName(), len(given))
	case len(given) == 0 && !c.IsSet("keys-out"):
		return keySource{}, usagef("%s: want --keys-out for the keys of all rows, or --keys, --range or --like", c.FullName()).
			withHint("rows without their keys are worth nothing; a snapshot has both: rs table save --snapshot NAME")
	case len(given) == 0:
		return keySource{all: true}, nil
	}
	switch given[0] {
	case "--range":
		return keyRange(c.String("range"))
	case "--keys":
		k, err := vectors.OpenKeys(c.String("keys"))
		if err != nil {
			return keySource{}, err
		}
		return keySource{next: k.Next, close: func() { _ = k.Close() }}, nil // it was only read
	}
	r, err := vectors.Open(c.String("like"), vectors.Options{NaN: vectors.NaNKeep, Duplicates: vectors.DuplicatesLast})
	if err != nil {
		return keySource{}, err
	}
	rows := make([]float32, 4096*r.Dim())
	return keySource{next: func(keys []uint64) (int, error) { return r.Next(keys, rows) }, close: func() { _ = r.Close() }}, nil
}

// allKeys are those of a scan.
func allKeys(ctx context.Context, t *ps.Table) func(keys []uint64) (int, error) {
	scan := t.Scan()
	var left []uint64
	return func(keys []uint64) (int, error) {
		if len(left) == 0 {
			var err error
			if left, _, err = scan.Next(ctx); err != nil {
				return 0, err
			}
		}
		n := copy(keys, left)
		left = left[n:]
		return n, nil
	}
}

func keyRange(s string) (keySource, error) {
	a, b, ok := strings.Cut(s, ":")
	from, err1 := strconv.ParseUint(a, 0, 64)
	to, err2 := strconv.ParseUint(b, 0, 64)
	if !ok || err1 != nil || err2 != nil || to < from {
		return keySource{}, usagef("--range %s: want FROM:TO, two whole numbers, the first not above the second", s)
	}
	return keySource{close: func() {}, next: func(keys []uint64) (int, error) {
		n := min(uint64(len(keys)), to-from)
		if n == 0 {
			return 0, io.EOF
		}
		for i := range n {
			keys[i] = from + i
		}
		from += n
		return int(n), nil
	}}, nil
}

// ignoreEOF is nil for the end of a file.
func ignoreEOF(err error) error {
	if err == io.EOF {
		return nil
	}
	return err
}

// sameFile reports whether two paths lead to one file, which may be yet to come.
func sameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	if x, err := os.Stat(a); err == nil {
		if y, err := os.Stat(b); err == nil {
			return os.SameFile(x, y)
		}
	}
	x, errX := filepath.Abs(a)
	y, errY := filepath.Abs(b)
	return errX == nil && errY == nil && x == y
}

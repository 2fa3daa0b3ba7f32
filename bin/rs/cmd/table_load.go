package cmd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/ps"
	"github.com/railstore/railstore/stages/vectors"
)

const flagSnapshot = "snapshot"

// fileFlags say how a file of rows is read.
func fileFlags(first ...cli.Flag) []cli.Flag {
	return append(first,
		&cli.StringFlag{Name: "type", Value: "auto", Usage: "`TYPE` of the file: auto, npy, safetensors or text"},
		&cli.StringFlag{Name: "keys", TakesFile: true, Usage: "`FILE` (.npy of u8 or i8) with the key of each row (default: the row's number, from 0)"},
		&cli.StringFlag{Name: "tensor", Usage: "`NAME` of the matrix in a .safetensors file (default: the only one)"},
		&cli.StringFlag{Name: "header", Value: "auto", Usage: "the line \"count dim\" in front of text: auto, yes or no"},
		&cli.StringFlag{Name: "nan", Value: "reject", Usage: "`POLICY` for values that are not finite: reject, zero or keep"},
		&cli.StringFlag{Name: "duplicates", Value: "reject", Usage: "`POLICY` for a key that comes again: reject, or last, the row that counts"},
		&cli.StringFlag{Name: "words", Usage: "write a line KEY, tab, WORD for each word of a text to `FILE`"},
		&cli.Int64Flag{Name: "skip", HideDefault: true, Usage: "leave out the first `ROWS`"},
		&cli.Int64Flag{Name: "rows", HideDefault: true, Usage: "at most so many `ROWS`"},
		&cli.IntFlag{Name: "batch", HideDefault: true, Usage: "`ROWS` of a batch (default: about 1 MiB of them)"},
		&cli.IntFlag{Name: "retries", Value: 3, Usage: "how often a batch whose shard does not answer is sent again"},
		&cli.BoolFlag{Name: "no-check", Usage: "do not read the whole file beforehand"},
	)
}

func (a *app) tableLoadCommand() *cli.Command {
	return &cli.Command{
		Name:      "load",
		Usage:     "fill a table from a file, or all tables from a snapshot",
		ArgsUsage: "TABLE FILE | --snapshot NAME",
		Description: `FILE is .npy (f2, f4 or f8), .safetensors, or text as GloVe and word2vec write it.
Rows of words get the key word:WORD, others their number or what --keys says. The
file is read to its end first, so that one that is broken changes nothing; see
--no-check. When a shard fails on the way, the report says which rows were applied.

A snapshot is what rs table save --snapshot wrote. The tables of the snapshot have
its rows then. All shards read it to its end beside what they have, for which they
need memory, before any changes: one that is damaged changes nothing, with exit code 4.

Examples:
   rs table load words vectors.txt --words words.tsv
   rs table load words vectors.txt --rows 2 --nan zero
   rs table load user rows.npy --keys keys.npy
   rs table load --snapshot nightly`,
		Flags:  tableFlags(fileFlags(&cli.StringFlag{Name: flagSnapshot, Usage: "`NAME` of a snapshot"})...),
		Action: a.tableLoad,
	}
}

func (a *app) tableLoad(ctx context.Context, c *cli.Command) error {
	if c.IsSet(flagSnapshot) {
		return a.tableSnapshot(ctx, c, "load", func(ctx context.Context, s *ps.Session, name string) (ps.Snapshot, error) { return s.Load(ctx, name) })
	}
	args, err := arguments(c, "TABLE", "FILE")
	if err != nil {
		return err
	}
	return a.tableTransfer(ctx, c, "load", args[0], args[1])
}

// snapshotRow is the result of a save or load of a snapshot for JSON.
type snapshotRow struct {
	Snapshot string  `json:"snapshot"`
	Op       string  `json:"op"`
	ID       string  `json:"id"`
	Base     string  `json:"base,omitempty"`
	Shards   []int   `json:"shards"`
	Rows     uint64  `json:"rows"`
	Deleted  uint64  `json:"deleted"` // keys that an incremental save says were deleted
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
	// What became of the shards: their files by a save, their rows by a load.
	Changed   []int `json:"changed"`
	Unchanged []int `json:"unchanged"`
	Unknown   []int `json:"unknown"`
}

func snapshotRowOf(s *ps.Snapshot, op string, shards []int, took time.Duration) snapshotRow {
	row := snapshotRow{Snapshot: s.Name, Op: op, ID: s.ID.String(), Base: s.Base, Shards: shards, Seconds: took.Seconds(),
		Changed: []int{}, Unchanged: []int{}, Unknown: []int{}}
	for _, sh := range s.Shards {
		row.Rows, row.Deleted, row.Bytes = row.Rows+sh.Rows, row.Deleted+sh.Deleted, row.Bytes+sh.Bytes
		to := map[ps.Outcome]*[]int{ps.Changed: &row.Changed, ps.Unchanged: &row.Unchanged, ps.Unknown: &row.Unknown}[sh.Outcome]
		*to = append(*to, sh.Shard)
	}
	return row
}

func (a *app) tableSnapshot(ctx context.Context, c *cli.Command, op string, do func(ctx context.Context, s *ps.Session, name string) (ps.Snapshot, error)) (err error) {
	if _, err := arguments(c); err != nil {
		return err
	}
	name := c.String(flagSnapshot)
	if name == "" {
		return usagef("--snapshot: want a name")
	}
	ctx, s, done, err := a.openTables(ctx, c, nil)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	begin := time.Now()
	stop := a.whenSlow(func() { a.progress("%s of snapshot %s is under way", op, name) })
	snap, err := do(ctx, s, name)
	stop()
	row := snapshotRowOf(&snap, op, s.Shards(), time.Since(begin))
	if a.json && (err == nil || len(snap.Shards) > 0) { // what became of the shards also where it failed
		if perr := a.printJSON(row); perr != nil {
			return perr
		}
	}
	if err != nil || a.json {
		return err
	}
	a.printf("%s of snapshot %s: %d shards, %d rows", op, name, len(row.Shards), row.Rows)
	if row.Base != "" {
		a.printf(" and %d deleted keys since %s", row.Deleted, row.Base)
	}
	a.printf(", %s, %s\n", size(uint64(row.Bytes)), seconds(row.Seconds))
	return nil
}

// loadReport is what a load or update from a file did.
type loadReport struct {
	Table         string  `json:"table"`
	Op            string  `json:"op"`
	File          string  `json:"file"`
	Type          string  `json:"type"`
	Dim           int     `json:"dim"`
	Bytes         int64   `json:"bytes"` // of the file
	Seconds       float64 `json:"seconds"`
	RowsPerSecond float64 `json:"rows_per_second"`
	transferReport
}

func fileOptions(c *cli.Command, dim int) vectors.Options {
	return vectors.Options{Format: vectors.Format(c.String("type")), Tensor: c.String("tensor"), Keys: c.String("keys"), Dim: dim,
		NaN: vectors.NaN(c.String("nan")), Duplicates: vectors.Duplicates(c.String("duplicates")), Header: vectors.Header(c.String("header"))}
}

// tableTransfer puts the rows of a file into a table, or updates it with them.
func (a *app) tableTransfer(ctx context.Context, c *cli.Command, op, name, path string) error {
	for flag, words := range map[string]string{"type": "auto npy safetensors text", "nan": "reject zero keep", "duplicates": "reject last", "header": "auto yes no"} {
		if !strings.Contains(" "+words+" ", " "+c.String(flag)+" ") {
			return usagef("--%s %s: want %s", flag, c.String(flag), strings.Join(strings.Fields(words), ", "))
		}
	}
	for _, f := range []string{"skip", "rows"} {
		if n := c.Int64(f); c.IsSet(f) && n < 0 {
			return usagef("--%s %d: want a number from 0 on", f, n)
		}
	}
	if n := c.Int("batch"); c.IsSet("batch") && n < 1 {
		return usagef("--batch %d: want a number above 0", n)
	}
	if sameFile(path, c.String("words")) {
		return usagef("%s: %s would be written over: want another file for --words", c.FullName(), path)
	}
	// Faults of the file that need no table are told before anything is connected.
	r, err := vectors.Open(path, fileOptions(c, 0))
	if err != nil {
		return err
	}
	if err := r.Close(); err != nil {
		return atOp(op, err)
	}
	return a.onTable(ctx, c, name, func(ctx context.Context, s *ps.Session, t *ps.Table) error {
		opt := fileOptions(c, t.Dim())
		if !c.Bool("no-check") {
			if err := a.checkFile(ctx, path, opt); err != nil {
				return err
			}
		}
		var words *wordFile
		if to := c.String("words"); to != "" {
			if words, err = createWords(to); err != nil {
				return atOp(op, err)
			}
			defer words.abort()
			opt.Words = words.add
		}
		r, err := vectors.Open(path, opt)
		if err != nil {
			return err
		}
		defer func() { _ = r.Close() }() // it was only read
		rep, err := a.transferFile(ctx, c, s, t, op, r)
		rep.Table, rep.Op, rep.File = name, op, path
		if err == nil && words != nil {
			err = words.commit()
		}
		if perr := a.printLoad(&rep, err); perr != nil {
			return perr
		}
		return err
	})
}

// checkFile reads the whole file as it will be read.
func (a *app) checkFile(ctx context.Context, path string, opt vectors.Options) error {
	r, err := vectors.Open(path, opt)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // it was only read
	bar := a.newBar("check "+filepath.Base(path), uint64(r.Size()))
	defer bar.stop()
	n := max(1, (1<<20)/4/r.Dim())
	keys, rows := make([]uint64, n), make([]float32, n*r.Dim())
	was := int64(0)
	for ctx.Err() == nil {
		_, err := r.Next(keys, rows)
		bar.add(uint64(r.Consumed() - was))
		was = r.Consumed()
		if err != nil {
			return ignoreEOF(err)
		}
	}
	return context.Cause(ctx)
}

func (a *app) transferFile(ctx context.Context, c *cli.Command, s *ps.Session, t *ps.Table, op string, r *vectors.Reader) (rep loadReport, err error) {
	rep = loadReport{Type: string(r.Format()), Dim: t.Dim(), Bytes: r.Size()}
	lives, err := shardLives(ctx, s)
	if err != nil {
		return rep, err
	}
	bar := a.newBar(op+" "+t.Spec().Name, uint64(r.Size()))
	was := int64(0)
	x := transfer{from: r, do: t.Put, resume: t.Resume, dim: t.Dim(), depth: 2, limit: c.Int64("rows"), skip: c.Int64("skip"),
		batch: c.Int("batch"), retries: c.Int("retries"),
		moved: func() { bar.add(uint64(r.Consumed() - was)); was = r.Consumed() },
		again: func(ctx context.Context, attempt int) error {
			// A shard that was started again has lost its rows; going on would hide that.
			if err := pause(ctx, time.Duration(attempt)*time.Second); err != nil {
				return err
			}
			return sameLives(ctx, s, lives)
		}}
	if op == "update" {
		x.do = t.Update
	}
	if c.String("duplicates") == string(vectors.DuplicatesLast) {
		x.depth = 1 // the last of a key must be the last
	}
	if x.batch == 0 {
		x.batch = min(max((1<<20)/(4*t.Dim()), 1), 8192)
	}
	begin := time.Now()
	if c.IsSet("rows") && x.limit == 0 {
		err = nil
	} else {
		err = x.run(ctx)
	}
	bar.stop()
	rep.Seconds = time.Since(begin).Seconds()
	rep.transferReport = x.rep
	if rep.Seconds > 0 {
		rep.RowsPerSecond = float64(rep.Applied) / rep.Seconds
	}
	if err == nil {
		err = sameLives(ctx, s, lives)
	}
	return rep, err
}

// shardLives tells one life of each shard from the next: the rows of a shard end with
// its process.
func shardLives(ctx context.Context, s *ps.Session) (map[int]string, error) {
	out := map[int]string{}
	for _, id := range s.Shards() {
		n, err := s.Control().Node(ctx, ctrl.ShardID(id))
		if err != nil {
			return nil, err
		}
		out[id] = fmt.Sprintf("%d since %v", n.Info.PID, n.Info.Started.UnixNano())
	}
	return out, nil
}

func sameLives(ctx context.Context, s *ps.Session, before map[int]string) error {
	now, err := shardLives(ctx, s)
	if err != nil {
		return err
	}
	for id, life := range before {
		if now[id] != life {
			return pipeline.Errorf(pipeline.LayerNode, "load", pipeline.AtShard(id), "the shard was started again meanwhile: the rows that it had are gone").
				WithHint("load a snapshot, or the file again from its beginning")
		}
	}
	return nil
}

// printLoad reports also what came of a load that failed.
func (a *app) printLoad(rep *loadReport, err error) error {
	if err != nil && rep.Read == 0 {
		return nil // the error says it all
	}
	if a.json {
		return a.printJSON(rep)
	}
	a.printf("%s: %s from %s (%s): %d rows of %d floats applied", rep.Table, rep.Op, rep.File, rep.Type, rep.Applied, rep.Dim)
	if rep.NotApplied+rep.Unknown > 0 {
		a.printf(", %d not applied, %d not known", rep.NotApplied, rep.Unknown)
	}
	a.printf(", %s, %.0f rows/s", seconds(rep.Seconds), rep.RowsPerSecond)
	if rep.Retried > 0 {
		a.printf(", %d batches sent again", rep.Retried)
	}
	a.printf("\n")
	for _, f := range rep.Failed {
		where := fmt.Sprintf("shard %d", f.Shard)
		if f.Shard < 0 {
			where = "no shard"
		}
		what := "not applied"
		if f.Applied == "unknown" {
			what = "not known whether applied"
		}
		a.printf("  %s: %d rows %s: %s\n", where, f.Count, a.paint(yellow, what), rangesText(f.Rows))
	}
	return nil
}

func rangesText(rs [][2]int64) string {
	var p []string
	for i, r := range rs {
		if i == 8 {
			p = append(p, fmt.Sprintf("and %d ranges more (--format json has all)", len(rs)-i))
			break
		}
		if r[1] == r[0]+1 {
			p = append(p, fmt.Sprint(r[0]))
			continue
		}
		p = append(p, fmt.Sprintf("%d-%d", r[0], r[1]-1))
	}
	return strings.Join(p, ", ")
}

// wordFile is the list of words of a text.
type wordFile struct {
	path string
	f    *os.File // nil when it is over
	w    *bufio.Writer
}

func createWords(path string) (*wordFile, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return nil, err
	}
	return &wordFile{path: path, f: f, w: bufio.NewWriter(f)}, nil
}

func (w *wordFile) add(word []byte, key uint64) error {
	_, err := fmt.Fprintf(w.w, "%d\t%s\n", key, word)
	return err
}

func (w *wordFile) commit() error {
	err := errors.Join(w.w.Flush(), w.f.Chmod(0o644))
	if err == nil {
		err = os.Rename(w.f.Name(), w.path)
	}
	if err != nil {
		return atOp("words", err)
	}
	f := w.f
	w.f = nil
	return atOp("words", f.Close())
}

func (w *wordFile) abort() {
	if w.f != nil {
		_ = w.f.Close()
		_ = os.Remove(w.f.Name()) // what failed before is told
		w.f = nil
	}
}

package cmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/ps"
	"github.com/railstore/railstore/stages/table"
)

// Commands about tables as a whole.

func (a *app) tableCommand() *cli.Command {
	return group(&cli.Command{
		Name:  "table",
		Usage: "embedding tables: rows of floats by key",
		Description: `A table has u64 keys and rows of float32, all equally wide, and an optimizer that
says what an update does with a gradient. Its rows lie in the memory of the
shards, each at the shard that a hash of its key names. A key is a number, or
word:WORD, which is the XXH3-64 hash of the word.

Examples:
   rs table init item --dim 4 --optimizer adagrad
   rs table put item 7=0.1,0.2,0.3,0.4
   rs table update item 7=1,1,1,1
   rs table get item 7 8
   rs table load words vectors.txt
   rs table save --snapshot nightly`,
		Commands: []*cli.Command{
			a.tableInitCommand(), a.tableDropCommand(), a.tableClearCommand(), a.tableLsCommand(), a.tableStatCommand(),
			a.tableExistsCommand(), a.tableDeleteCommand(),
			a.tablePutCommand(), a.tableGetCommand(), a.tableUpdateCommand(), a.tableLoadCommand(), a.tableSaveCommand(),
		},
	})
}

func (a *app) tableInitCommand() *cli.Command {
	number := func(name, what string) cli.Flag {
		return &cli.FloatFlag{Name: name, HideDefault: true, Usage: what}
	}
	return &cli.Command{
		Name:      "init",
		Usage:     "make a table on every shard",
		ArgsUsage: "[TABLE]",
		Description: `A table that is there with the same shape stays as it is; with another shape it is
an error. Without TABLE the tables of the recipe are made, which shards do by
themselves when they start. What the numbers mean is in docs/tables.md.

Examples:
   rs table init page --dim 64
   rs table init city --dim 64 --optimizer sgd --learning-rate 0.01
   rs table init item --dim 16 --optimizer adam --learning-rate 0.001 --beta1 0.9`,
		Flags: tableFlags(
			&cli.IntFlag{Name: "dim", HideDefault: true, Usage: "`FLOATS` of a row"},
			&cli.StringFlag{Name: "optimizer", Value: table.SGD, Usage: "`RULE` of updates: sgd, adagrad, rowwise-adagrad, adam or adamw"},
			number("learning-rate", "how far a step goes, a `NUMBER` (default: 0.01)"),
			number("epsilon", "a `NUMBER` that keeps divisors from 0 (default: 1e-08)"),
			number("beta1", "of adam and adamw, a `NUMBER` (default: 0.9)"),
			number("beta2", "of adam and adamw, a `NUMBER` (default: 0.999)"),
			number("weight-decay", "how much of a weight goes at each step, a `NUMBER` (default: 0)"),
			number("initial-accumulator", "of adagrad and rowwise-adagrad, a `NUMBER` (default: 0)"),
			&cli.StringFlag{Name: "non-finite", Value: table.RejectNonFinite, Usage: "gradients that are not finite: `POLICY` reject, zero or allow"},
		),
		Action: a.tableInit,
	}
}

func (a *app) tableInit(ctx context.Context, c *cli.Command) (err error) {
	args, err := arguments(c, "[TABLE]")
	if err != nil {
		return err
	}
	name := firstOf(args)
	if name == "" {
		for _, f := range []string{"dim", "optimizer", "learning-rate", "epsilon", "beta1", "beta2", "weight-decay", "initial-accumulator", "non-finite"} {
			if c.IsSet(f) {
				return usagef("%s: --%s without TABLE", c.FullName(), f)
			}
		}
	} else if !c.IsSet("dim") {
		return usagef("%s: missing --dim, the floats of a row", c.FullName())
	} else if c.IsSet("learning-rate") && c.Float("learning-rate") == 0 { // with all other numbers 0 it would mean the defaults
		return usagef("%s: --learning-rate 0: want a number above 0 and up to 1000", c.FullName())
	}
	ctx, s, done, err := a.openTables(ctx, c, nil)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	var specs []table.Spec
	if name == "" {
		d := s.Lanes().Set.Deployment
		if len(d.Tables) == 0 {
			return usagef("%s: the recipe of %s has no tables", c.FullName(), d.Name).withHint("name one, with --dim")
		}
		for i := range d.Tables {
			specs = append(specs, ps.SpecOf(&d.Tables[i]))
		}
	} else {
		specs = []table.Spec{specFlags(c, name)}
	}
	for _, spec := range specs {
		if err := s.Init(ctx, spec); err != nil {
			return err
		}
		t, err := s.Table(ctx, spec.Name)
		if err != nil {
			return err
		}
		if err := a.printTable(ps.TableInfo{Spec: t.Spec(), Shards: s.Shards()}, "ready"); err != nil {
			return err
		}
	}
	return nil
}

func specFlags(c *cli.Command, name string) table.Spec {
	o := table.Defaults(c.String("optimizer"))
	for flag, v := range map[string]*float64{"learning-rate": &o.LearningRate, "epsilon": &o.Eps, "beta1": &o.Beta1, "beta2": &o.Beta2,
		"weight-decay": &o.WeightDecay, "initial-accumulator": &o.InitialAccumulator} {
		if c.IsSet(flag) {
			*v = c.Float(flag)
		}
	}
	return table.Spec{Name: name, Dim: c.Int("dim"), Optimizer: o, NonFinite: c.String("non-finite")}
}

// tableRow is a table for JSON.
type tableRow struct {
	Table     string       `json:"table"`
	Dim       int          `json:"dim"`
	Optimizer optimizerRow `json:"optimizer"`
	NonFinite string       `json:"non_finite"`
	Rows      *int64       `json:"rows,omitempty"`
	Bytes     *int64       `json:"bytes,omitempty"`
	Shards    []int        `json:"shards"`
	Did       string       `json:"did,omitempty"`
}

// optimizerRow has the names of a recipe's fields.
type optimizerRow struct {
	Type               string  `json:"type"`
	LearningRate       float64 `json:"learningRate"`
	Epsilon            float64 `json:"epsilon,omitempty"`
	Beta1              float64 `json:"beta1,omitempty"`
	Beta2              float64 `json:"beta2,omitempty"`
	WeightDecay        float64 `json:"weightDecay,omitempty"`
	InitialAccumulator float64 `json:"initialAccumulator,omitempty"`
}

func rowOfTable(in ps.TableInfo) tableRow {
	o := in.Spec.Optimizer
	return tableRow{Table: in.Spec.Name, Dim: in.Spec.Dim, NonFinite: in.Spec.NonFinite, Shards: orEmpty(in.Shards),
		Optimizer: optimizerRow{o.Kind, o.LearningRate, o.Eps, o.Beta1, o.Beta2, o.WeightDecay, o.InitialAccumulator}}
}

func (a *app) printTable(in ps.TableInfo, did string) error {
	row := rowOfTable(in)
	row.Did = did
	if a.json {
		return a.printJSON(row)
	}
	a.printf("%s: %s: %d floats a row, %s, on %d shards\n", row.Table, did, row.Dim, optimizerText(in.Spec.Optimizer), len(row.Shards))
	return nil
}

func optimizerText(o table.Optimizer) string {
	s := fmt.Sprintf("%s lr %g", o.Kind, o.LearningRate)
	for _, f := range []struct {
		name string
		v    float64
	}{{"eps", o.Eps}, {"beta1", o.Beta1}, {"beta2", o.Beta2}, {"decay", o.WeightDecay}, {"acc", o.InitialAccumulator}} {
		if f.v != 0 {
			s += fmt.Sprintf(" %s %g", f.name, f.v)
		}
	}
	return s
}

func (a *app) tableDropCommand() *cli.Command {
	return &cli.Command{
		Name:      "drop",
		Usage:     "remove tables and their rows from every shard",
		ArgsUsage: "TABLE...",
		Description: `A table that is not there is an error, unless --force says otherwise. Tables of the
recipe come again, empty, when the shards start the next time.

Examples:
   rs table drop user
   rs table drop --force user no-such-table`,
		Flags:  tableFlags(&cli.BoolFlag{Name: "force", Usage: "a table that is not there is no error"}),
		Action: a.tableDrop,
	}
}

func (a *app) tableDrop(ctx context.Context, c *cli.Command) error {
	return a.eachTable(ctx, c, "dropped", func(ctx context.Context, s *ps.Session, name string) (bool, error) {
		had, err := s.Drop(ctx, name)
		if err == nil && !had && !c.Bool("force") {
			err = pipeline.Errorf(pipeline.LayerService, "drop", pipeline.Nowhere, "%w: %q", ps.ErrNoTable, name)
		}
		return had, err
	})
}

// eachTable does something to every table that is named and says by a word that it is
// done. The error of one does not keep it from the others.
func (a *app) eachTable(ctx context.Context, c *cli.Command, word string, do func(ctx context.Context, s *ps.Session, name string) (did bool, err error)) (err error) {
	names, err := arguments(c, "TABLE...")
	if err != nil {
		return err
	}
	ctx, s, done, err := a.openTables(ctx, c, nil)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	var errs []error
	for _, n := range names {
		did, err := do(ctx, s, n)
		switch {
		case err != nil:
			errs = append(errs, tableFailure(tableHint(err, s.Lanes().Set.Deployment)))
		case a.json:
			if err := a.printJSON(map[string]any{"table": n, word: did}); err != nil {
				return err
			}
		case did:
			a.printf("%s: %s\n", n, word)
		}
	}
	return errors.Join(errs...)
}

func (a *app) tableLsCommand() *cli.Command {
	return &cli.Command{
		Name:      "ls",
		Usage:     "list tables",
		ArgsUsage: "[PREFIX]",
		Description: `With --format json a line per table.

Examples:
   rs table ls
   rs table ls u --format json`,
		Flags:  tableFlags(),
		Action: a.tableLs,
	}
}

func (a *app) tableLs(ctx context.Context, c *cli.Command) (err error) {
	args, err := arguments(c, "[PREFIX]")
	if err != nil {
		return err
	}
	ctx, s, done, err := a.openTables(ctx, c, nil)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	infos, err := s.Tables(ctx)
	t := newTable("TABLE", "DIM", "OPTIMIZER", "ROWS", "BYTES", "SHARDS")
	t.rightAlign(2, 4, 5)
	n := 0
	for _, in := range infos {
		if !strings.HasPrefix(in.Spec.Name, firstOf(args)) {
			continue
		}
		n++
		row := rowOfTable(in)
		row.Rows, row.Bytes = &in.Rows, &in.Bytes
		if a.json {
			if perr := a.printJSON(row); perr != nil {
				return perr
			}
			continue
		}
		t.row(row.Table, row.Dim, optimizerText(in.Spec.Optimizer), in.Rows, size(uint64(in.Bytes)), fmt.Sprint(in.Shards))
	}
	if n > 0 && !a.json {
		a.printf("%s", t)
	}
	return err
}

func (a *app) tableStatCommand() *cli.Command {
	return &cli.Command{
		Name:      "stat",
		Usage:     "memory and requests of tables, shard by shard",
		ArgsUsage: "[TABLE]",
		Description: `With --format json a line per shard, with all that it counts.

Examples:
   rs table stat
   rs table stat user --format json`,
		Flags:  tableFlags(),
		Action: a.tableStat,
	}
}

func (a *app) tableStat(ctx context.Context, c *cli.Command) (err error) {
	args, err := arguments(c, "[TABLE]")
	if err != nil {
		return err
	}
	ctx, s, done, err := a.openTables(ctx, c, nil)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	name := firstOf(args)
	if name != "" {
		if _, err := s.Table(ctx, name); err != nil {
			return tableHint(err, s.Lanes().Set.Deployment)
		}
	}
	shards := s.Shards()
	type answer struct {
		st  ps.Stats
		err error
	}
	all, err := pipeline.Each(ctx, shards, func(ctx context.Context, shard int) (answer, error) {
		st, err := s.Stats(ctx, shard)
		return answer{st, err}, nil // one shard's error must not hide the others
	})
	if err != nil {
		return err
	}
	t := newTable("SHARD", "TABLE", "ROWS", "ROW BYTES", "SLOT BYTES", "SLOTS", "FREE", "PAGES", "SEGMENTS")
	t.rightAlign(1, 3, 4, 5, 6, 7, 8, 9)
	m := newTable("SHARD", "MEMORY", "LIMIT", "INDEX", "GETS", "PUTS", "UPDATES", "KEYS", "MISSING", "FAILED")
	m.rightAlign(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
	var errs []error
	for i := range all {
		st := &all[i].st
		if all[i].err != nil {
			errs = append(errs, all[i].err)
			continue
		}
		if name != "" {
			one := st.Tables[name]
			st.Tables = map[string]table.TableStats{name: one}
		}
		if a.json {
			if err := a.printJSON(st); err != nil {
				return err
			}
			continue
		}
		for _, n := range slices.Sorted(maps.Keys(st.Tables)) {
			x := st.Tables[n]
			t.row(st.Shard, n, x.Rows, x.RowBytes, x.SlotBytes, x.Slots, x.FreeSlots, x.Pages, x.Segments)
		}
		x, v := &st.Store, &st.Service
		m.row(st.Shard, size(uint64(x.Used)), size(uint64(x.Limit)), size(uint64(x.IndexBytes)), v.Gets, v.Puts, v.Updates, v.Keys, v.MissingRows, v.Failed)
	}
	if !a.json && len(errs) < len(all) {
		a.printf("%s\n%s", t, m)
	}
	return errors.Join(errs...)
}

package cmd

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/stages/ps"
)

// Commands about rows that are written on the command line.

// errMissing is a key without a row where one was wanted.
var errMissing = errors.New("no row")

func (a *app) tablePutCommand() *cli.Command {
	return &cli.Command{
		Name:      "put",
		Usage:     "give keys their rows",
		ArgsUsage: "TABLE KEY=NUMBER,NUMBER,...",
		Description: `Of a key that comes twice the last row counts. Many rows come from a file with
rs table load.

Examples:
   rs table put user 7=0.1,0.2,0.3,0.4
   rs table put user 8=1,2,3,4 word:king=0.5,0.5,0.5,0.5`,
		Flags:  tableFlags(),
		Action: func(ctx context.Context, c *cli.Command) error { return a.tableWrite(ctx, c, "put") },
	}
}

func (a *app) tableUpdateCommand() *cli.Command {
	return &cli.Command{
		Name:      "update",
		Usage:     "move rows by gradients, as the table's optimizer says",
		ArgsUsage: "TABLE KEY=NUMBER,NUMBER,... | TABLE --file FILE",
		Description: `Gradients of a key that comes several times are added up first. A key without a row
begins at zero. Each gradient is applied once, also when a shard had to be asked
again. With --file the gradients come from a file as with rs table load; each
batch of it is one update.

Examples:
   rs table update user 7=0.1,0.2,0.3,0.4
   rs table update user word:king=1,1,1,1 7=-1,-1,-1,-1
   rs table update words --file vectors.txt`,
		Flags: tableFlags(fileFlags(&cli.StringFlag{Name: "file", TakesFile: true, Usage: "`FILE` with a gradient for each key"})...),
		Action: func(ctx context.Context, c *cli.Command) error {
			if c.IsSet("file") {
				args, err := arguments(c, "TABLE")
				if err != nil {
					return err
				}
				return a.tableTransfer(ctx, c, "update", args[0], c.String("file"))
			}
			return a.tableWrite(ctx, c, "update")
		},
	}
}

// writeRow is the result of put and update for JSON.
type writeRow struct {
	Table string `json:"table"`
	Op    string `json:"op"`
	Keys  int    `json:"keys"`
}

func (a *app) tableWrite(ctx context.Context, c *cli.Command, op string) error {
	args, err := arguments(c, "TABLE", "KEY=NUMBER,NUMBER,...")
	if err != nil {
		return err
	}
	// What is written wrongly is told before anything is connected, as far as it can be
	// without knowing the table.
	for _, s := range args[1:] {
		if _, _, err := parseRow(s, countNumbers(s)); err != nil {
			return err
		}
	}
	return a.onTable(ctx, c, args[0], func(ctx context.Context, _ *ps.Session, t *ps.Table) error {
		var keys []uint64
		var rows []float32
		for _, s := range args[1:] {
			k, row, err := parseRow(s, t.Dim())
			if err != nil {
				return err
			}
			keys, rows = append(keys, k.key), append(rows, row...)
		}
		do := t.Put
		if op == "update" {
			do = t.Update
		}
		if err := do(ctx, keys, rows); err != nil {
			return err
		}
		if a.json {
			return a.printJSON(writeRow{args[0], op, len(keys)})
		}
		a.printf("%s: %s of %d keys\n", args[0], op, len(keys))
		return nil
	})
}

func countNumbers(s string) int {
	n := 1
	for i := len(s) - 1; i >= 0 && s[i] != '='; i-- {
		if s[i] == ',' {
			n++
		}
	}
	return n
}

func (a *app) tableGetCommand() *cli.Command {
	return &cli.Command{
		Name:      "get",
		Usage:     "show the rows of keys",
		ArgsUsage: "TABLE KEY...",
		Description: `Prints a line per key, in the order given: the key, its row, or "missing" and zeros.
With --must-exist a missing key makes the exit code 1. Many rows go to a file with
rs table save.

Examples:
   rs table get user 7 8
   rs table get user word:king --format json`,
		Flags:  tableFlags(mustExistFlag()),
		Action: a.tableGet,
	}
}

// getRow is a key's row for JSON.
type getRow struct {
	Table string `json:"table"`
	Key   uint64 `json:"key"`
	Word  string `json:"word,omitempty"`
	Shard int    `json:"shard"`
	Found bool   `json:"found"`
	Row   floats `json:"row"`
}

func (a *app) tableGet(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "TABLE", "KEY...")
	if err != nil {
		return err
	}
	names, keys, err := parseKeys(args[1:])
	if err != nil {
		return err
	}
	return a.onTable(ctx, c, args[0], func(ctx context.Context, s *ps.Session, t *ps.Table) error {
		rows, found := make([]float32, len(keys)*t.Dim()), make([]bool, len(keys))
		if err := t.Get(ctx, keys, rows, found); err != nil {
			return err
		}
		shards := s.Shards()
		out := newTable("KEY", "", "ROW")
		for i, k := range names {
			row := floats(rows[i*t.Dim() : (i+1)*t.Dim()])
			if a.json {
				if err := a.printJSON(getRow{args[0], k.key, k.word, shards[ps.ShardOf(k.key, len(shards))], found[i], row}); err != nil {
					return err
				}
				continue
			}
			state := ""
			if !found[i] {
				state = a.paint(yellow, "missing")
			}
			out.row(k, state, row)
		}
		if !a.json {
			a.printf("%s", out)
		}
		if c.Bool("must-exist") {
			return mustExist("get", args[0], names, found)
		}
		return nil
	})
}

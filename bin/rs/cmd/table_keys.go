package cmd

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/ps"
)

// Commands about keys, whatever their rows are.

// parseKeys reads keys from the command line.
func parseKeys(args []string) (names []namedKey, keys []uint64, err error) {
	for _, s := range args {
		k, err := parseKey(s)
		if err != nil {
			return nil, nil, err
		}
		names, keys = append(names, k), append(keys, k.key)
	}
	return names, keys, nil
}

// mustExist is the error of an operation that found no row for some of its keys.
func mustExist(op, name string, names []namedKey, found []bool) error {
	first, n := -1, 0
	for i, f := range found {
		if !f {
			if n++; first < 0 {
				first = i
			}
		}
	}
	if n == 0 {
		return nil
	}
	return pipeline.Errorf(pipeline.LayerService, op, pipeline.Nowhere, "table %q: %w for %d of %d keys, the first of them %s", name, errMissing, n, len(found), names[first])
}

func mustExistFlag() cli.Flag {
	return &cli.BoolFlag{Name: "must-exist", Usage: "fail if a key has no row"}
}

func (a *app) tableExistsCommand() *cli.Command {
	return &cli.Command{
		Name:      "exists",
		Usage:     "tell which keys have rows",
		ArgsUsage: "TABLE KEY...",
		Description: `Prints a line per key, in the order given: the key, the shard that it belongs to, and
"there" or "missing". No row is moved. With --must-exist a missing key makes the exit
code 1.

Examples:
   rs table exists user 7 8
   rs table exists user word:king --must-exist`,
		Flags:  tableFlags(mustExistFlag()),
		Action: a.tableExists,
	}
}

// existsRow is a key for JSON.
type existsRow struct {
	Table string `json:"table"`
	Key   uint64 `json:"key"`
	Word  string `json:"word,omitempty"`
	Shard int    `json:"shard"`
	Found bool   `json:"found"`
}

func (a *app) tableExists(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "TABLE", "KEY...")
	if err != nil {
		return err
	}
	names, keys, err := parseKeys(args[1:])
	if err != nil {
		return err
	}
	return a.onTable(ctx, c, args[0], func(ctx context.Context, s *ps.Session, t *ps.Table) error {
		found := make([]bool, len(keys))
		if err := t.Exists(ctx, keys, found); err != nil {
			return err
		}
		shards := s.Shards()
		out := newTable("KEY", "SHARD", "")
		out.rightAlign(2)
		for i, k := range names {
			shard := shards[ps.ShardOf(k.key, len(shards))]
			if a.json {
				if err := a.printJSON(existsRow{args[0], k.key, k.word, shard, found[i]}); err != nil {
					return err
				}
				continue
			}
			state := "there"
			if !found[i] {
				state = a.paint(yellow, "missing")
			}
			out.row(k, shard, state)
		}
		if !a.json {
			a.printf("%s", out)
		}
		if c.Bool("must-exist") {
			return mustExist("exists", args[0], names, found)
		}
		return nil
	})
}

func (a *app) tableDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "remove the rows of keys, with their optimizer state",
		ArgsUsage: "TABLE KEY...",
		Description: `A key without a row is no error, and does not count. The memory of the rows stays
the table's, for other rows of it; rs table clear and drop give it back.

Examples:
   rs table delete user 7 8
   rs table delete user word:king --format json`,
		Flags:  tableFlags(),
		Action: a.tableDelete,
	}
}

// deleteRow is the result of delete for JSON.
type deleteRow struct {
	Table   string `json:"table"`
	Op      string `json:"op"`
	Keys    int    `json:"keys"`
	Deleted int    `json:"deleted"`
}

func (a *app) tableDelete(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "TABLE", "KEY...")
	if err != nil {
		return err
	}
	_, keys, err := parseKeys(args[1:])
	if err != nil {
		return err
	}
	return a.onTable(ctx, c, args[0], func(ctx context.Context, _ *ps.Session, t *ps.Table) error {
		n, err := t.Delete(ctx, keys)
		if err != nil {
			return err
		}
		if a.json {
			return a.printJSON(deleteRow{args[0], "delete", len(keys), n})
		}
		a.printf("%s: %d rows of %d keys deleted\n", args[0], n, len(keys))
		return nil
	})
}

func (a *app) tableClearCommand() *cli.Command {
	return &cli.Command{
		Name:      "clear",
		Usage:     "remove all rows of tables, which stay",
		ArgsUsage: "TABLE...",
		Description: `Every shard empties a table at once: a get sees all of the old rows or none. What is
written meanwhile may go with them. Shape and optimizer stay. A table that is not
there is an error.

Examples:
   rs table clear user
   rs table clear user item`,
		Flags:  tableFlags(),
		Action: a.tableClear,
	}
}

func (a *app) tableClear(ctx context.Context, c *cli.Command) error {
	return a.eachTable(ctx, c, "cleared", func(ctx context.Context, s *ps.Session, name string) (bool, error) {
		t, err := s.Table(ctx, name)
		if err != nil {
			return false, err
		}
		return true, t.Clear(ctx)
	})
}

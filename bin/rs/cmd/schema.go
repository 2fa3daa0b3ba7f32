package cmd

import (
	"context"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/cue/load"
)

func (a *app) schemaCommand() *cli.Command {
	return group(&cli.Command{
		Name:  "schema",
		Usage: "the CUE schema of deployments",
		Description: `The schema is a CUE module. Exported, it lets the stock cue tool check the same
recipes in the same way.

Examples:
   rs schema export schema-copy`,
		Commands: []*cli.Command{{
			Name:      "export",
			Usage:     "write the schema's CUE module into a folder",
			ArgsUsage: "DIR",
			Description: `Makes DIR if need be. A file that is there already and differs is not
overwritten.

Examples:
   rs schema export schema-copy`,
			Action: func(_ context.Context, c *cli.Command) error {
				args, err := arguments(c, "DIR")
				if err != nil {
					return err
				}
				if err := load.Export(args[0]); err != nil {
					return err
				}
				if a.json {
					return a.printJSON(map[string]string{"dir": args[0]})
				}
				a.progress("schema written to %s", args[0])
				return nil
			},
		}},
	})
}

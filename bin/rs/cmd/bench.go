package cmd

import "github.com/urfave/cli/v3"

func (a *app) benchCommand() *cli.Command {
	return group(&cli.Command{
		Name:  "bench",
		Usage: "measure verbs",
		Description: `Examples:
   rs bench verbs --test write_bw --size 64KiB,1MiB`,
		Commands: []*cli.Command{a.benchVerbsCommand()},
	})
}

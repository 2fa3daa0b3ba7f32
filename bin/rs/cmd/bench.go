package cmd

import "github.com/urfave/cli/v3"

func (a *app) benchCommand() *cli.Command {
	return group(&cli.Command{
		Name:  "bench",
		Usage: "measure verbs, reads and tables",
		Description: `Examples:
   rs bench verbs --test write_bw --size 64KiB,1MiB
   rs bench read --size 1MiB --check
   rs bench table --layer storage-only --records 5000 --duration 100ms --warmup 50ms --check`,
		Commands: []*cli.Command{a.benchVerbsCommand(), a.benchReadCommand(), a.benchTableCommand()},
	})
}

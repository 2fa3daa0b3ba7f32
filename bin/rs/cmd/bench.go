package cmd

import "github.com/urfave/cli/v3"

func (a *app) benchCommand() *cli.Command {
	return group(&cli.Command{
		Name:     "bench",
		Usage:    "measure verbs",
		Commands: []*cli.Command{a.benchVerbsCommand()},
	})
}

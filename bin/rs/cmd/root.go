package cmd

import (
	"context"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/stages/launch"
)

// Names of flags that several commands have.
const (
	flagState      = "state"
	flagFormat     = "format"
	flagQuiet      = "quiet"
	flagDeployment = "deployment"
	flagFollow     = "follow"
	flagTimeout    = "timeout"
	flagVerbose    = "verbose"
	flagShard      = "shard"
	flagRail       = "rail"
)

func (a *app) rootCommand() *cli.Command {
	root := &cli.Command{
		Name:  "rs",
		Usage: "RDMA parameter-server shards and striped objects over several rails, from one CUE file",
		Description: `A recipe is a CUE file that says which shards there are, on which hosts, and
over which rails (RDMA ports, or addresses of the embedded provider "soft") they
are reached. Bring it up, put objects, read them over all rails at once.

Examples:
   rs vet recipes/two-rail.cue
   rs plan recipes/two-rail.cue
   rs up recipes/two-rail.cue
   rs put kv/layer0 big.bin
   rs read kv/layer0 -o out.bin
   rs status
   rs down

` + exitCodesHelp,
		Writer:    a.out,
		ErrWriter: a.err,
		Reader:    a.in,
		Suggest:   true,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: flagState, Usage: "state folder `DIR` (default: $XDG_STATE_HOME/railstore, else ~/.local/state/railstore)", Sources: cli.EnvVars("RS_STATE"), TakesFile: true},
			&cli.StringFlag{Name: flagFormat, Value: "text", Usage: "`FORMAT` of results and errors: text or json"},
			&cli.BoolFlag{Name: flagQuiet, Aliases: []string{"q"}, Usage: "no progress"},
		},
		Before: func(ctx context.Context, c *cli.Command) (context.Context, error) {
			switch f := c.String(flagFormat); f {
			case "text", "json":
				a.json = f == "json"
			default:
				return ctx, usagef("--format %s: want text or json", f)
			}
			a.quiet = c.Bool(flagQuiet)
			return ctx, nil
		},
		Action: func(_ context.Context, c *cli.Command) error {
			if c.Args().Present() {
				return unknownCommand(c, c.Args().First())
			}
			return cli.ShowRootCommandHelp(c)
		},
		// Every error goes to the renderer, none to the library's own.
		ExitErrHandler: func(context.Context, *cli.Command, error) {},
		Commands: []*cli.Command{
			a.vetCommand(),
			a.planCommand(),
			a.fabricCommand(),
			a.schemaCommand(),
			a.upCommand(),
			a.statusCommand(),
			a.eventsCommand(),
			a.logsCommand(),
			a.metricsCommand(),
			a.profileCommand(),
			a.faultCommand(),
			a.downCommand(),
			a.putCommand(),
			a.readCommand(),
			a.runCommand(),
			a.lsCommand(),
			a.statCommand(),
			a.rmCommand(),
			a.scrubCommand(),
			a.tableCommand(),
			a.benchCommand(),
			a.versionCommand(),
			a.serveCommand(),
		},
	}
	everyCommand(root, func(c *cli.Command) {
		if c != root {
			c.Before = func(ctx context.Context, c *cli.Command) (context.Context, error) {
				a.command = strings.TrimPrefix(c.FullName(), root.Name+" ")
				return ctx, nil
			}
		}
		c.OnUsageError = func(_ context.Context, c *cli.Command, err error, _ bool) error {
			a.command = strings.TrimPrefix(c.FullName(), root.Name+" ")
			return usagef("%s: %s", c.FullName(), lowerFirst(err.Error())).withHint("%s --help", c.FullName())
		}
	})
	return root
}

func everyCommand(c *cli.Command, fn func(*cli.Command)) {
	fn(c)
	for _, s := range c.Commands {
		everyCommand(s, fn)
	}
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

func unknownCommand(c *cli.Command, name string) error {
	e := usagef("%s: there is no command %q", c.FullName(), name)
	if near := cli.SuggestCommand(c.VisibleCommands(), name); near != "" && near != "help" {
		return e.withHint("did you mean %s %s? All commands: %s --help", c.FullName(), near, c.FullName())
	}
	return e.withHint("all commands: %s --help", c.FullName())
}

// group is a command that only has subcommands.
func group(c *cli.Command) *cli.Command {
	c.Action = func(_ context.Context, c *cli.Command) error {
		if c.Args().Present() {
			return unknownCommand(c, c.Args().First())
		}
		return cli.ShowSubcommandHelp(c)
	}
	return c
}

// arguments checks the number of positional arguments against their names, of
// which those in brackets are optional, as in "RECIPE" or "[NAME]"; with dots at
// the end of the last there may be more of it.
func arguments(c *cli.Command, names ...string) ([]string, error) {
	args := c.Args().Slice()
	need, most := 0, len(names)
	for _, n := range names {
		if !strings.HasPrefix(n, "[") {
			need++
		}
	}
	if len(names) > 0 && strings.Contains(names[len(names)-1], "...") {
		most = len(args)
	}
	usage := strings.TrimSpace(c.FullName() + " " + strings.Join(names, " "))
	if len(args) < need {
		return nil, usagef("%s: missing %s", c.FullName(), strings.TrimSuffix(names[len(args)], "...")).withHint("usage: %s", usage)
	}
	if len(args) > most {
		return nil, usagef("%s: unexpected argument %q", c.FullName(), args[most]).withHint("usage: %s", usage)
	}
	if i := slices.Index(args, ""); i >= 0 {
		return nil, usagef("%s: argument %d is empty", c.FullName(), i+1).withHint("usage: %s", usage)
	}
	return args, nil
}

// state is the state folder that the command line or the environment names.
func (a *app) state(c *cli.Command) (launch.State, error) {
	if dir := c.String(flagState); dir != "" {
		return launch.NewState(dir)
	}
	dir, err := launch.DefaultState(a.getenv)
	if err != nil {
		return launch.State{}, err
	}
	return launch.NewState(dir)
}

func deploymentFlag() cli.Flag {
	return &cli.StringFlag{Name: flagDeployment, Aliases: []string{"d"}, Sources: cli.EnvVars("RS_DEPLOYMENT"),
		Usage: "`NAME` of the deployment (default: the only one, or the only one that runs)"}
}

// folder is the deployment that a command works on.
func (a *app) folder(c *cli.Command) (launch.Folder, error) {
	s, err := a.state(c)
	if err != nil {
		return launch.Folder{}, err
	}
	return s.Select(c.String(flagDeployment))
}

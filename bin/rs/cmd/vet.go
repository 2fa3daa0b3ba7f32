package cmd

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/pipeline"
)

func (a *app) vetCommand() *cli.Command {
	return &cli.Command{
		Name:      "vet",
		Usage:     "check recipes: schema and rules across fields, every fault once",
		ArgsUsage: "RECIPE...",
		Description: `Says nothing when a recipe is good. A fault is a line with file, line, column
and path, and a hint that says what to change; all faults are told in one run.
With -v it also prints warnings and what the deployment needs of each host.

Examples:
   rs vet recipes/two-rail.cue
   rs vet -v recipes/*.cue
   rs vet --format json recipes/two-rail.cue`,
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: flagVerbose, Aliases: []string{"v"}, Usage: "print warnings and budgets"},
		},
		Action: a.vet,
	}
}

// vetResult is the JSON form of one recipe's verdict.
type vetResult struct {
	Recipe   string       `json:"recipe"`
	OK       bool         `json:"ok"`
	Errors   []load.Issue `json:"errors"`
	Warnings []load.Issue `json:"warnings"`
}

func (a *app) vet(_ context.Context, c *cli.Command) error {
	recipes, err := arguments(c, "RECIPE...")
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range recipes {
		d, rep, err := load.Load(path, load.Options{})
		if rep == nil {
			errs = append(errs, notARecipe(err))
			continue
		}
		var invalid *load.InvalidError
		if err != nil && !errors.As(err, &invalid) {
			errs = append(errs, err)
			continue
		}
		switch {
		case a.json:
			if err := a.printJSON(vetResult{path, err == nil, notNil(rep.Errors), notNil(rep.Warnings)}); err != nil {
				return err
			}
			if err != nil {
				errs = append(errs, err)
			}
		case err != nil:
			a.printIssues(rep.Errors)
			errs = append(errs, reported{err})
		}
		if c.Bool(flagVerbose) && !a.json {
			a.printIssues(rep.Warnings)
			if d != nil {
				p := planOf(d)
				a.printf("%s: %s, %d shards on %d hosts, digest %.12s\n\n", path, p.Deployment, len(p.Shards), len(p.Hosts), p.Digest)
				a.printBudget(p)
			}
		}
	}
	return errors.Join(errs...)
}

// notARecipe is for a file that could not be read as a recipe at all.
func notARecipe(err error) error {
	return &pipeline.Error{Layer: pipeline.LayerConfig, Op: "recipe", Where: pipeline.Nowhere, Err: err}
}

// reported is an error that people have already been told in full.
type reported struct{ error }

func (e reported) Unwrap() []error { return []error{errReported, e.error} }

// notNil keeps JSON lists lists.
func notNil[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// printIssues tells faults and warnings where people see them: on standard
// error, so that a good recipe leaves standard output empty.
func (a *app) printIssues(issues []load.Issue) {
	for _, i := range issues {
		fmt.Fprintln(a.err, i.Text())
		if i.Hint != "" {
			fmt.Fprintf(a.err, "    hint: %s\n", i.Hint)
		}
	}
}

// loadRecipe is how every other command gets a deployment: valid, or an error
// after which all its faults have been told.
func (a *app) loadRecipe(path string) (*deploy.Deployment, error) {
	d, rep, err := load.Load(path, load.Options{})
	if err == nil {
		return d, nil
	}
	if rep == nil {
		return nil, notARecipe(err)
	}
	if !a.json {
		a.printIssues(rep.Errors)
		return nil, reported{err}
	}
	return nil, err
}

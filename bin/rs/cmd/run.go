package cmd

import (
	"context"
	"slices"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

func (a *app) runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run a read job of a recipe, or list them",
		ArgsUsage: "FILE|NAME [JOB]",
		Description: `A job (jobs: in the recipe) names an object, the host and rails that read it, the
file it goes to and limits of its own. It runs on the same four stages as shards
and clients do, in this process, against the deployment that is up, and its result
is that of rs read. Its output is a path from the folder where rs runs.

FILE is a recipe: its jobs may have changed since the deployment was brought up,
but nothing else. NAME is a deployment, with the jobs of its recipe as it was
brought up. Without JOB the jobs are listed.

Examples:
   rs run recipes/two-rail.cue
   rs run recipes/two-rail.cue layer0
   rs run two-rail layer0-rail0
   rs run two-rail layer0 --explain`,
		Flags: []cli.Flag{
			connectFlag(),
			&cli.BoolFlag{Name: "explain", Usage: "print the plan and read nothing"},
			failOnDegradedFlag(),
		},
		Action: a.runJob,
	}
}

func (a *app) runJob(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "FILE|NAME", "[JOB]")
	if err != nil {
		return err
	}
	if _, err := connectTime(c); err != nil {
		return err
	}
	s, err := a.state(c)
	if err != nil {
		return err
	}
	d, f, recipe, err := a.jobsOf(s, args[0])
	if err != nil {
		return err
	}
	if len(args) == 1 {
		return a.listJobs(d)
	}
	job, err := jobNamed(d, args[1])
	if err != nil {
		return err
	}
	if recipe {
		if f, err = s.Select(d.Name); err != nil {
			return err
		}
		up, err := f.Resolved()
		if err != nil {
			return err
		}
		if !sameButJobs(d, up.Deployment) {
			return usagef("rs run: %s is not the recipe that %s was brought up with, in more than its jobs", args[0], d.Name).
				withHint("rs down %s and rs up %s, or rs run %s JOB for a job as it was brought up", d.Name, args[0], d.Name)
		}
	}
	key := object.Key{Namespace: job.Namespace, Name: job.Object}
	of := sessionFor{folder: f, host: job.Host, reader: &job.Limits}
	if len(job.Rails) > 0 {
		of.rails = job.Rails
	}
	opt := object.ReadOptions{Rails: of.rails}
	if c.Bool("explain") {
		return a.explain(ctx, c, of, key, opt)
	}
	return a.readTo(ctx, c, of, key, opt, job.Output)
}

// jobsOf is the deployment whose jobs are meant: of a recipe, or of a deployment that
// was brought up, with its folder.
func (a *app) jobsOf(s launch.State, arg string) (d *deploy.Deployment, f launch.Folder, recipe bool, err error) {
	if strings.HasSuffix(arg, ".cue") || strings.Contains(arg, "/") {
		d, err = a.loadRecipe(arg)
		return d, f, true, err
	}
	if f, err = s.Select(arg); err != nil {
		return nil, f, false, err
	}
	r, err := f.Resolved()
	if err != nil {
		return nil, f, false, err
	}
	return r.Deployment, f, false, nil
}

// jobNamed finds a job, or says which one was probably meant.
func jobNamed(d *deploy.Deployment, name string) (*deploy.ReadJob, error) {
	if i := slices.IndexFunc(d.Jobs, func(j deploy.ReadJob) bool { return j.Name == name }); i >= 0 {
		return &d.Jobs[i], nil
	}
	names := make([]string, len(d.Jobs))
	for i := range d.Jobs {
		names[i] = d.Jobs[i].Name
	}
	e := usagef("rs run: %s has no job %q", d.Name, name)
	if len(names) == 0 {
		return nil, e.withHint("it has no jobs; jobs: in the recipe describes them")
	}
	if near := deploy.Nearest(name, names); near != "" {
		return nil, e.withHint("did you mean %s? It has %s", near, strings.Join(names, ", "))
	}
	return nil, e.withHint("it has %s", strings.Join(names, ", "))
}

// sameButJobs reports whether two deployments would get the same processes.
func sameButJobs(x, y *deploy.Deployment) bool {
	p, q := *x, *y
	p.Jobs, q.Jobs = nil, nil
	return p.Digest() == q.Digest()
}

func (a *app) listJobs(d *deploy.Deployment) error {
	if a.json {
		for i := range d.Jobs {
			if err := a.printJSON(struct {
				Deployment string `json:"deployment"`
				deploy.ReadJob
			}{d.Name, d.Jobs[i]}); err != nil {
				return err
			}
		}
		return nil
	}
	if len(d.Jobs) == 0 {
		a.progress("%s has no jobs", d.Name)
		return nil
	}
	t := newTable("JOB", "HOST", "OBJECT", "RAILS", "OUTPUT")
	for i := range d.Jobs {
		j := &d.Jobs[i]
		rails := "all"
		if len(j.Rails) > 0 {
			rails = strings.Join(j.Rails, ",")
		}
		t.row(j.Name, j.Host, j.Namespace+"/"+j.Object, rails, orDash(j.Output))
	}
	a.printf("%s", t)
	return nil
}

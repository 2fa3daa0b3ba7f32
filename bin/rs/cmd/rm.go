package cmd

import (
	"context"
	"errors"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/stages/object"
)

func (a *app) rmCommand() *cli.Command {
	return &cli.Command{
		Name:      "rm",
		Usage:     "remove objects",
		ArgsUsage: "NAMESPACE/OBJECT...",
		Description: `An object is gone as soon as the catalog has forgotten it. Stripes of it that
cannot be removed now are kept as garbage and removed later.

Examples:
   rs rm kv/layer0
   rs rm --if-generation 2 kv/layer0`,
		Flags:  []cli.Flag{deploymentFlag(), hostFlag(), connectFlag(), ifGenerationFlag()},
		Action: a.rm,
	}
}

func (a *app) rm(ctx context.Context, c *cli.Command) (err error) {
	args, err := arguments(c, "NAMESPACE/OBJECT...")
	if err != nil {
		return err
	}
	keys := make([]object.Key, len(args))
	for i, s := range args {
		if keys[i], err = objectArgument(c, s); err != nil {
			return err
		}
	}
	generation, err := ifGeneration(c)
	if err != nil {
		return err
	}
	if generation == 0 {
		generation = object.AnyOlder
	} else if len(keys) > 1 {
		return usagef("%s: --%s is about one object", c.FullName(), flagIfGeneration)
	}
	ctx, w, done, err := a.openSession(ctx, c, nil)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	var errs []error
	for _, key := range keys {
		rep, err := w.RemoveIf(ctx, key, generation)
		if err != nil {
			errs = append(errs, err) // the others can go all the same
			if ctx.Err() != nil {
				break
			}
			continue
		}
		if a.json {
			if err := a.printJSON(rep); err != nil {
				return err
			}
			continue
		}
		a.printf("%s generation %d removed: %s, %d stripes\n", key, rep.Generation, size(rep.Bytes), rep.RemovedStripes)
		if rep.LeftStripes > 0 {
			a.progress("%d stripes could not be removed yet; they are kept as garbage", rep.LeftStripes)
		}
	}
	return errors.Join(errs...)
}

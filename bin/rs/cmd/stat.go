package cmd

import (
	"context"
	"fmt"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/object"
)

func (a *app) statCommand() *cli.Command {
	return &cli.Command{
		Name:      "stat",
		Usage:     "an object's descriptor, and with -v where its stripes are",
		ArgsUsage: "NAMESPACE/OBJECT",
		Description: `Examples:
   rs stat kv/layer0
   rs stat -v kv/layer0
   rs stat --format json kv/layer0`,
		Flags: []cli.Flag{
			deploymentFlag(),
			&cli.BoolFlag{Name: flagVerbose, Aliases: []string{"v"}, Usage: "also every stripe"},
		},
		Action: a.stat,
	}
}

func (a *app) stat(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "NAMESPACE/OBJECT")
	if err != nil {
		return err
	}
	key, err := objectArgument(c, args[0])
	if err != nil {
		return err
	}
	cat, err := a.catalog(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = cat.Close() }()
	o, found, err := cat.Lookup(ctx, key)
	if err != nil {
		return err
	}
	if !found {
		return pipeline.Errorf(pipeline.LayerService, "stat", pipeline.Nowhere, "%w: %s", object.ErrNotFound, key).
			WithHint("rs ls lists what is there")
	}
	if a.json {
		return a.printJSON(o)
	}
	a.printf("object      %s\nsize        %s\n", key, bytesText(o.Size))
	a.printf("generation  %d\nxxh3        %s\ncreated     %s\n", o.Generation, o.XXH3, o.Created.Local().Format(time.DateTime))
	if !o.Expires.IsZero() {
		a.printf("expires     %s\n", expiry(o.Expires))
	}
	a.printf("stripes     %d of %s\nplacement   %s, epoch %d, layout %s\n", o.Stripes(), size(o.StripeBytes), o.Placement.Policy, o.Placement.Epoch, o.Placement.LayoutHash)
	if !c.Bool(flagVerbose) || len(o.Placement.Stripes) == 0 {
		return nil
	}
	t := newTable("STRIPE", "SHARD", "DIR", "OFFSET", "LENGTH", "XXH3", "FILE")
	for _, s := range o.Placement.Stripes {
		t.row(s.Index, s.Shard, s.Dir, s.Offset, s.Length, orDash(s.XXH3), s.File)
	}
	a.printf("\n%s", t)
	return nil
}

// bytesText is a number of bytes both ways.
func bytesText(n uint64) string {
	if n < 1024 {
		return size(n)
	}
	return fmt.Sprintf("%s (%d bytes)", size(n), n)
}

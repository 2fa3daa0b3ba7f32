package cmd

import (
	"context"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/ctrl"
)

func (a *app) lsCommand() *cli.Command {
	return &cli.Command{
		Name:      "ls",
		Usage:     "list objects",
		ArgsUsage: "[NAMESPACE[/PREFIX]]",
		Description: `Lists the objects of a namespace, or of all, in the order of their names. With
--format json every object is one JSON object on a line. --limit gives a page; the
next one begins --after the last name of it.

Examples:
   rs ls
   rs ls kv
   rs ls kv/layer
   rs ls kv --limit 100 --after kv/layer99`,
		Flags: []cli.Flag{
			deploymentFlag(),
			&cli.IntFlag{Name: "limit", HideDefault: true, Usage: "at most so many `OBJECTS` (default: all)"},
			&cli.StringFlag{Name: "after", Usage: "only what sorts after `NAMESPACE/OBJECT`"},
		},
		Action: a.ls,
	}
}

// lsPage is how many objects one question to the catalog asks for.
const lsPage = 500

// lsObject is one object in JSON.
type lsObject struct {
	Namespace  string    `json:"namespace"`
	Object     string    `json:"object"`
	Generation uint64    `json:"generation"`
	Bytes      uint64    `json:"bytes"`
	Stripes    int       `json:"stripes"`
	XXH3       string    `json:"xxh3"`
	Created    time.Time `json:"created"`
	Expires    time.Time `json:"expires,omitzero"`
}

func listed(o *ctrl.Object) lsObject {
	return lsObject{o.Key.Namespace, o.Key.Name, o.Generation, o.Size, o.Stripes(), o.XXH3, o.Created, o.Expires}
}

func (a *app) ls(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "[NAMESPACE[/PREFIX]]")
	if err != nil {
		return err
	}
	q := ctrl.ListQuery{Limit: lsPage}
	if len(args) == 1 {
		q.Namespace, q.Prefix, _ = strings.Cut(args[0], "/")
	}
	limit := c.Int("limit")
	if c.IsSet("limit") && limit < 1 {
		return usagef("--limit %d: want a number above zero", limit)
	}
	if s := c.String("after"); s != "" {
		if q.After, err = objectArgument(c, s); err != nil {
			return err
		}
	}
	cat, err := a.catalog(ctx, c)
	if err != nil {
		return err
	}
	defer func() { _ = cat.Close() }()
	t := newTable("OBJECT", "SIZE", "STRIPES", "GENERATION", "XXH3", "CREATED", "EXPIRES")
	t.rightAlign(2, 3, 4)
	n := 0
	for {
		if limit > 0 {
			q.Limit = min(lsPage, limit-n)
		}
		objects, more, err := cat.List(ctx, q)
		if err != nil {
			return err
		}
		for i := range objects {
			o := &objects[i]
			n++
			if a.json {
				if err := a.printJSON(listed(o)); err != nil {
					return err
				}
				continue
			}
			t.row(o.Key.String(), size(o.Size), o.Stripes(), o.Generation, o.XXH3, o.Created.Local().Format(time.DateTime), expiry(o.Expires))
		}
		if limit > 0 && n >= limit && more {
			a.progress("there are more: --after %s", objects[len(objects)-1].Key)
		}
		if !more || len(objects) == 0 || limit > 0 && n >= limit {
			break
		}
		q.After = objects[len(objects)-1].Key
	}
	if n > 0 && !a.json {
		a.printf("%s", t)
	}
	return nil
}

// expiry is when an object is over, "-" for never.
func expiry(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

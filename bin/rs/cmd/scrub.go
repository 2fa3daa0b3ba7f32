package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

const flagRate = "rate"

func (a *app) scrubCommand() *cli.Command {
	return &cli.Command{
		Name:      "scrub",
		Usage:     "compare all stripes with their checksums, and find files that no object has",
		ArgsUsage: "[NAME]",
		Description: `Every shard looks at its own directories: each stripe that the catalog names is
read and compared with its checksums, and each file that it does not name is an
orphan. Objects that are put, replaced or removed meanwhile are no findings.

--fix removes orphans, and what is left of objects that were replaced, removed or
whose time is over. Damage cannot be mended: there is one copy of a stripe. A file
that no object has is kept for a day, because it may belong to a put under way.

It reads beside whatever else the shards do; --rate leaves their disks to others.
It reaches the shards whose processes are on this machine, which are those that
rs up starts; one that is not there is told.

The exit code is 4 when a stripe is damaged, and 3 when a shard did not answer.

Examples:
   rs scrub
   rs scrub --fix
   rs scrub --shard 1 --quick
   rs scrub --rate 100MB
   rs scrub --format json`,
		Flags: []cli.Flag{
			deploymentFlag(),
			&cli.IntFlag{Name: flagShard, Value: -1, HideDefault: true, Usage: "only this shard, by its `ID`"},
			&cli.BoolFlag{Name: "fix", Usage: "remove orphans and garbage"},
			&cli.BoolFlag{Name: "quick", Usage: "look at the files and what they say of themselves, not at the data"},
			&cli.StringFlag{Name: flagRate, Usage: "each shard reads at most so many `BYTES` a second, as in 100MB, a stripe at a time (default: as fast as its disks)"},
			&cli.BoolFlag{Name: "doubted", Usage: "with --fix: also orphans of a shard of which the catalog knows nothing at all"},
			&cli.DurationFlag{Name: "grace", HideDefault: true, Usage: "`AGE` from which an orphan is removed; no put may have been running for longer (default: 24h)"},
		},
		Action: a.scrub,
	}
}

// scrubRequest begins a scrub of one shard.
type scrubRequest struct {
	Fix     bool          `json:"fix"`
	Quick   bool          `json:"quick"`
	Doubted bool          `json:"doubted"`
	Grace   time.Duration `json:"grace_ns"`
	Rate    uint64        `json:"bytes_per_second"` // 0: no limit
}

// scrubResult is the result in JSON.
type scrubResult struct {
	Damaged int                   `json:"damaged"`
	Orphans int                   `json:"orphans"`
	Removed int                   `json:"removed"`
	Shards  []*object.ScrubReport `json:"shards"`
	Away    []scrubAway           `json:"away"` // shards of which nothing is known
}

type scrubAway struct {
	Shard  int    `json:"shard"`
	Reason string `json:"reason"`
}

func (a *app) scrub(ctx context.Context, c *cli.Command) error {
	f, err := a.named(c)
	if err != nil {
		return err
	}
	req := scrubRequest{Fix: c.Bool("fix"), Quick: c.Bool("quick"), Doubted: c.Bool("doubted"), Grace: c.Duration("grace")}
	if req.Doubted && !req.Fix {
		return usagef("%s: --doubted without --fix", c.FullName())
	}
	if req.Grace < 0 || c.IsSet("grace") && req.Grace == 0 {
		return usagef("--grace %v: want a time above zero", req.Grace)
	}
	if c.IsSet(flagRate) {
		n, err := deploy.ParseSize(c.String(flagRate))
		if err != nil || n == 0 {
			return usagef("--%s %s: want bytes a second, such as 100MB", flagRate, c.String(flagRate))
		}
		if req.Quick {
			return usagef("%s: both --%s and --quick, which reads no data", c.FullName(), flagRate)
		}
		req.Rate = uint64(n)
	}
	r, err := f.Resolved()
	if err != nil {
		return err
	}
	shards := []int{}
	for i := range r.Deployment.Shards {
		if id := r.Deployment.Shards[i].ID; !c.IsSet(flagShard) || id == c.Int(flagShard) {
			shards = append(shards, id)
		}
	}
	if len(shards) == 0 {
		return usagef("--shard %d: %s has no such shard", c.Int(flagShard), f.Name)
	}
	res, err := a.scrubAll(ctx, f, shards, req)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(res)
	} else {
		a.printScrub(res, req.Fix)
	}
	return errors.Join(err, res.verdict())
}

// scrubAll scrubs the shards side by side.
func (a *app) scrubAll(ctx context.Context, f launch.Folder, shards []int, req scrubRequest) (*scrubResult, error) {
	peers, err := f.Admins(ctx)
	if err != nil {
		return nil, err
	}
	stop := a.whenSlow(func() { a.progress("shards read all their stripes; this takes as long as their disks need") })
	defer stop()
	type answer struct {
		report *object.ScrubReport
		away   string
	}
	answers, err := pipeline.Each(ctx, shards, func(ctx context.Context, id int) (answer, error) {
		for i := range peers {
			if peers[i].Shard != id {
				continue
			}
			if peers[i].Err != nil {
				return answer{away: launch.FailureOf(peers[i].Err).String()}, nil
			}
			rep, err := scrubShard(ctx, &peers[i], req)
			if err != nil && ctx.Err() == nil {
				return answer{report: rep, away: launch.FailureOf(err).String()}, nil
			}
			return answer{report: rep}, err
		}
		return answer{away: "no process of this shard runs here"}, nil
	})
	if err != nil {
		return nil, err
	}
	res := &scrubResult{Shards: []*object.ScrubReport{}, Away: []scrubAway{}}
	for i, x := range answers {
		if x.report != nil {
			res.Shards = append(res.Shards, x.report)
			res.Damaged += x.report.Damaged
			res.Orphans += x.report.Orphans
			res.Removed += x.report.Removed
		}
		if x.away != "" {
			res.Away = append(res.Away, scrubAway{shards[i], x.away})
		}
	}
	return res, nil
}

// scrubWait is how long a shard lets a question wait for the end of its scrub.
const scrubWait = time.Second

// scrubShard begins a scrub and waits for its end. What a scrub that ended early
// found comes with the error.
func scrubShard(ctx context.Context, p *launch.AdminPeer, req scrubRequest) (*object.ScrubReport, error) {
	var begun object.ScrubStatus
	if err := p.Ask(ctx, http.MethodPost, "/v1/scrub", req, &begun); err != nil {
		return nil, err
	}
	for {
		var st object.ScrubStatus
		err := p.Ask(ctx, http.MethodGet, "/v1/scrub", nil, &st)
		switch {
		case ctx.Err() != nil:
			sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTime)
			defer cancel()
			var over object.ScrubStatus
			_ = p.Ask(sctx, http.MethodDelete, fmt.Sprintf("/v1/scrub?id=%d", begun.ID), nil, &over) // it ends by itself else
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, err
		case st.ID != begun.ID:
			return nil, pipeline.Errorf(pipeline.LayerProcess, "scrub", p.Where(), "another scrub took the place of this one")
		case st.Running:
			continue
		case st.Error != "":
			return st.Report, pipeline.Errorf(pipeline.LayerProcess, "scrub", p.Where(), "%s", st.Error)
		}
		return st.Report, nil
	}
}

// verdict is the error that gives the exit code, with nothing more to say.
func (r *scrubResult) verdict() error {
	switch {
	case r.Damaged > 0:
		return reported{pipeline.Errorf(pipeline.LayerIntegrity, "scrub", pipeline.Nowhere, "%d stripes are damaged", r.Damaged)}
	case len(r.Away) > 0:
		return reported{pipeline.Errorf(pipeline.LayerNode, "scrub", pipeline.Nowhere, "%d shards were not scrubbed", len(r.Away))}
	}
	return nil
}

func (a *app) printScrub(r *scrubResult, fix bool) {
	t := newTable("SHARD", "OBJECTS", "STRIPES", "COMPARED", "DAMAGED", "ORPHANS", "REMOVED", "GARBAGE", "TIME")
	t.rightAlign(1, 2, 3, 4, 5, 6, 7, 8, 9)
	for _, s := range r.Shards {
		t.row(s.Shard, s.Objects, s.Stripes, size(s.Bytes), s.Damaged, s.Orphans, s.Removed, s.Garbage.Stripes, seconds(s.Seconds))
	}
	a.printf("%s", t)
	a.printDamage(r)
	t = newTable("SHARD", "DIR", "ORPHAN", "SIZE", "MODIFIED", "STATE")
	orphans, removable := 0, 0
	for _, s := range r.Shards {
		for _, o := range s.OrphanFiles {
			if o.State == object.OrphanFound {
				removable++
			}
			orphans++
			t.row(o.Shard, o.Directory, o.File, size(uint64(o.Bytes)), o.Modified.Local().Format(time.DateTime), o.State)
		}
	}
	if orphans > 0 {
		a.printf("\n%s", t)
	}
	for _, s := range r.Shards {
		for _, why := range s.Skipped {
			a.printf("\nshard %d: not looked at: %s\n", s.Shard, why)
		}
	}
	for _, w := range r.Away {
		a.printf("\nshard %d was not scrubbed: %s\n", w.Shard, w.Reason)
	}
	if removable > 0 && !fix {
		a.progress("rs scrub --fix removes %d orphans", removable)
	}
	if r.Damaged > 0 {
		a.progress("put the damaged objects again: there is no other copy of their stripes")
	}
}

func (a *app) printDamage(r *scrubResult) {
	if r.Damaged == 0 {
		return
	}
	t := newTable("OBJECT", "GEN", "STRIPE", "OFFSET", "LENGTH", "SHARD", "DIR", "FILE", "AT", "DAMAGE", "REASON")
	t.rightAlign(2, 3, 4, 5, 6, 7, 9)
	told := 0
	for _, s := range r.Shards {
		for i := range s.Damage {
			d := &s.Damage[i]
			at := "-"
			if d.FileOffset != nil {
				at = strconv.FormatInt(*d.FileOffset, 10)
			}
			told++
			t.row(d.Namespace+"/"+d.Object, d.Generation, d.Stripe, d.ObjectOffset, d.Length, d.Shard, d.Directory, d.File, at, d.Kind, launch.OneLine(d.Reason))
		}
	}
	a.printf("\n%s", t)
	if told < r.Damaged {
		a.printf("and %d more\n", r.Damaged-told)
	}
}

// objectCalls are what a shard answers about its objects.
func objectCalls(store *object.Store, scrubber *object.Scrubber) map[string]func(url.Values, []byte) (any, error) {
	return map[string]func(url.Values, []byte) (any, error){
		"GET /v1/directories": func(url.Values, []byte) (any, error) { return store.Directories(), nil },
		"GET /v1/scrub":       func(url.Values, []byte) (any, error) { return scrubber.Status(scrubWait), nil },
		"POST /v1/scrub": func(_ url.Values, body []byte) (any, error) {
			var q scrubRequest
			if err := json.Unmarshal(body, &q); err != nil {
				return nil, pipeline.Errorf(pipeline.LayerUsage, "scrub", pipeline.AtShard(store.Shard()), "request: %w", err)
			}
			id, err := scrubber.Start(object.ScrubOptions{Fix: q.Fix, Quick: q.Quick, Doubted: q.Doubted, Grace: q.Grace, Rate: q.Rate})
			if err != nil {
				return nil, pipeline.Wrap(err, pipeline.LayerService, "scrub", pipeline.AtShard(store.Shard()))
			}
			return object.ScrubStatus{ID: id, Running: true}, nil
		},
		"DELETE /v1/scrub": func(q url.Values, _ []byte) (any, error) {
			id, err := strconv.ParseUint(q.Get("id"), 10, 64)
			if err != nil {
				return nil, pipeline.Errorf(pipeline.LayerUsage, "scrub", pipeline.AtShard(store.Shard()), "id %q: want the id of a scrub", q.Get("id"))
			}
			scrubber.Cancel(id)
			return scrubber.Status(0), nil
		},
	}
}

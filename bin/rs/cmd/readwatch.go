package cmd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/stages/object"
)

// Flags of rs read --watch.
const (
	flagEvery = "every"
	flagCount = "count"
)

// watchedRead is one read of --watch: what a person who waits for a rail to break or to
// heal wants on one line.
type watchedRead struct {
	TS             time.Time       `json:"ts"` // when it began
	Read           int             `json:"read"`
	Namespace      string          `json:"namespace"`
	Object         string          `json:"object"`
	Generation     uint64          `json:"generation"`
	Bytes          uint64          `json:"bytes"`
	Seconds        float64         `json:"seconds"`
	BytesPerSecond float64         `json:"bytes_per_second"`
	Rails          []watchedRail   `json:"rails"`
	FailedOver     []string        `json:"failed_over"` // rails that failed or whose bytes others took over
	Quarantine     []string        `json:"quarantine"`  // rails that the next read does without, in full or to a shard
	Attempts       int             `json:"attempts"`    // 1 unless the object changed meanwhile
	Retries        uint64          `json:"retries"`     // stripes that were asked for once more
	Degraded       bool            `json:"degraded"`
	Error          *launch.Failure `json:"error,omitempty"`
}

// watchedRail is the part of one rail in a read. All rails of the session are there, also
// those that had no part, so that columns do not jump.
type watchedRail struct {
	Name           string  `json:"name"`
	PlannedBytes   uint64  `json:"planned_bytes"`
	Bytes          uint64  `json:"bytes"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	State          string  `json:"state"`
}

// watchRead reads an object again and again over one session.
func (a *app) watchRead(ctx context.Context, c *cli.Command, of sessionFor, key object.Key, opt object.ReadOptions) (err error) {
	every, count := c.Duration(flagEvery), c.Int(flagCount)
	switch {
	case c.IsSet("output"), c.Bool("explain"), c.Bool("fail-on-degraded"):
		return usagef("rs read: --watch goes with none of -o, --explain and --fail-on-degraded").withHint("its lines tell when a read is degraded")
	case every <= 0:
		return usagef("--%s %v: want a time above zero, such as 1s", flagEvery, every)
	case c.IsSet(flagCount) && count < 1:
		return usagef("--%s %d: want 1 or more", flagCount, count)
	}
	ctx, s, done, err := a.openSessionFor(ctx, c, of)
	if err != nil {
		return err
	}
	defer func() { err = joinClose(err, done) }()
	t := time.NewTicker(every)
	defer t.Stop()
	var last error
	for n := 1; ; n++ {
		began := time.Now()
		buf, rep, err := s.Read(ctx, key, opt)
		if err == nil {
			buf.Release()
		}
		if ctx.Err() != nil {
			return reported{context.Cause(ctx)} // watching ends so
		}
		if err != nil {
			last = err
		}
		w := watched(began, n, key, rep, s.Snapshot(), err)
		if err := a.printWatched(&w); err != nil {
			return err
		}
		if n == count {
			return last // each was told, and the exit code tells that one failed
		}
		select {
		case <-ctx.Done():
			return reported{context.Cause(ctx)}
		case <-t.C:
		}
	}
}

// watched is a read's line: of its report, or of the error that it ended with.
func watched(began time.Time, n int, key object.Key, rep *object.ReadReport, now []object.RailSnapshot, err error) watchedRead {
	w := watchedRead{TS: began.UTC(), Read: n, Namespace: key.Namespace, Object: key.Name, Rails: []watchedRail{}, FailedOver: []string{}, Quarantine: []string{}}
	parts := map[string]*object.RailSnapshot{}
	if err != nil {
		f := failureOf(err)
		w.Error, w.Seconds = &f, time.Since(began).Seconds()
	} else {
		w.Generation, w.Bytes, w.Seconds, w.BytesPerSecond = rep.Generation, rep.Bytes, rep.Seconds, rep.BytesPerSecond
		w.Attempts, w.Retries, w.Degraded = rep.Attempts, rep.Rereads, rep.Degraded
		for i := range rep.Rails {
			parts[rep.Rails[i].Name] = &rep.Rails[i]
		}
		failed := func(rail string) {
			if !slices.Contains(w.FailedOver, rail) {
				w.FailedOver = append(w.FailedOver, rail)
			}
		}
		for _, f := range rep.Faults {
			failed(f.Rail)
		}
		for _, m := range rep.Moves {
			if m.Why == object.MoveFailover {
				failed(m.From)
				w.Retries += uint64(m.Stripes)
			}
		}
	}
	for i := range now {
		r := watchedRail{Name: now[i].Name, State: now[i].State}
		if p := parts[r.Name]; p != nil {
			r.PlannedBytes, r.Bytes, r.BytesPerSecond = p.PlannedBytes, p.Bytes, p.BytesPerSecond
		}
		w.Rails = append(w.Rails, r)
		// On probation a rail carries less, but the next read counts on it.
		if r.State != "active" && !strings.HasPrefix(r.State, "probation") {
			w.Quarantine = append(w.Quarantine, r.Name)
		}
	}
	return w
}

func (a *app) printWatched(w *watchedRead) error {
	if a.json {
		return a.printJSON(w)
	}
	head := fmt.Sprintf("%s #%d %s/%s", w.TS.Local().Format("15:04:05.000"), w.Read, w.Namespace, w.Object)
	var tail []string
	for _, r := range w.Rails {
		s := r.Name + " " + size(r.Bytes)
		if r.State != "" && r.State != "active" {
			s += " (" + r.State + ")"
		}
		tail = append(tail, s)
	}
	if len(w.FailedOver) > 0 {
		tail = append(tail, a.paint(yellow, "failed over: "+strings.Join(w.FailedOver, ", ")))
	}
	if len(w.Quarantine) > 0 {
		tail = append(tail, a.paint(yellow, "left alone: "+strings.Join(w.Quarantine, ", ")))
	}
	if w.Retries > 0 || w.Attempts > 1 {
		tail = append(tail, a.paint(yellow, fmt.Sprintf("%d stripes asked for again, %d attempts", w.Retries, w.Attempts)))
	}
	if w.Error != nil {
		a.printf("%s: %s; %s\n", head, a.paint(red, w.Error.String()), strings.Join(tail, "; "))
		return nil
	}
	a.printf("%s generation %d: %s in %s, %s; %s\n", head, w.Generation, size(w.Bytes), seconds(w.Seconds), rate(w.BytesPerSecond), strings.Join(tail, "; "))
	return nil
}

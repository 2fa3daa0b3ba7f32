package cmd

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/urfave/cli/v3"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
)

func (a *app) metricsCommand() *cli.Command {
	return &cli.Command{
		Name:      "metrics",
		Usage:     "metrics of the running processes, as Prometheus text",
		ArgsUsage: "[NAME | RECIPE]",
		Description: `Asks every process that runs, shards and clients, and prints what they have
counted, with a label "process" in front. Without a process that answers the exit
code is 3. With --format json every sample is one JSON object on a line. To have
Prometheus scrape a shard give it an address: shards[].metrics in the recipe.

Examples:
   rs metrics
   rs metrics --shard 0 two-rail
   rs metrics --name railstore_lanes --format json`,
		Flags:  askedFlags(&cli.StringSliceFlag{Name: "name", Usage: "only metrics whose names begin with one of these `NAMES`"}),
		Action: a.metrics,
	}
}

func (a *app) metrics(ctx context.Context, c *cli.Command) error {
	args, err := arguments(c, "[NAME | RECIPE]")
	if err != nil {
		return err
	}
	f, err := a.target(c, firstOf(args))
	if err != nil {
		return err
	}
	peers, err := a.asked(ctx, c, f)
	if err != nil {
		return err
	}
	texts, err := pipeline.Each(ctx, peers, func(ctx context.Context, p launch.AdminPeer) (scrape, error) { return scrapeOf(ctx, p), nil })
	if err != nil {
		return err
	}
	all := map[string]*dto.MetricFamily{}
	var errs []error
	for i, s := range texts {
		if s.err != nil {
			errs = append(errs, s.err)
			continue
		}
		merge(all, s.families, peers[i].ID)
	}
	if len(errs) == len(peers) {
		return errors.Join(errs...)
	}
	names := slices.Sorted(maps.Keys(all))
	if want := c.StringSlice("name"); len(want) > 0 {
		names = slices.DeleteFunc(names, func(n string) bool {
			return !slices.ContainsFunc(want, func(w string) bool { return strings.HasPrefix(n, w) })
		})
	}
	for _, n := range names {
		if a.json {
			if err := a.printSamples(all[n]); err != nil {
				return err
			}
		} else if _, err := expfmt.MetricFamilyToText(a.out, all[n]); err != nil {
			return err
		}
	}
	return errors.Join(errs...)
}

// scrape is what one process gave.
type scrape struct {
	families map[string]*dto.MetricFamily
	err      error
}

func scrapeOf(ctx context.Context, p launch.AdminPeer) scrape {
	if p.Err != nil {
		return scrape{err: p.Err}
	}
	var text []byte
	if err := p.Ask(ctx, http.MethodGet, "/metrics", nil, &text); err != nil {
		return scrape{err: err}
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	fams, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return scrape{err: pipeline.Errorf(pipeline.LayerProcess, "metrics", p.Where(), "%s: %w", p.ID, err)}
	}
	return scrape{families: fams}
}

// merge adds the families of a process to all, each sample with the process as its
// first label.
func merge(all, fams map[string]*dto.MetricFamily, process string) {
	label := "process"
	for name, f := range fams {
		for _, m := range f.Metric {
			m.Label = slices.DeleteFunc(m.Label, func(l *dto.LabelPair) bool { return l.GetName() == label })
			m.Label = append([]*dto.LabelPair{{Name: &label, Value: &process}}, m.Label...)
		}
		if all[name] == nil {
			all[name] = f
			continue
		}
		all[name].Metric = append(all[name].Metric, f.Metric...)
	}
}

// sample is one value for JSON.
type sample struct {
	Name   string            `json:"name"`
	Type   string            `json:"type"`
	Labels map[string]string `json:"labels"`
	Value  float64           `json:"value"`
}

// printSamples prints counters and gauges; what the runtime gives as a summary is
// its count and sum.
func (a *app) printSamples(f *dto.MetricFamily) error {
	for _, m := range f.Metric {
		s := sample{Name: f.GetName(), Type: strings.ToLower(f.GetType().String()), Labels: map[string]string{}}
		for _, l := range m.Label {
			s.Labels[l.GetName()] = l.GetValue()
		}
		values := map[string]float64{}
		switch {
		case m.Counter != nil:
			values[""] = m.Counter.GetValue()
		case m.Gauge != nil:
			values[""] = m.Gauge.GetValue()
		case m.Untyped != nil:
			values[""] = m.Untyped.GetValue()
		case m.Summary != nil:
			values["_count"], values["_sum"] = float64(m.Summary.GetSampleCount()), m.Summary.GetSampleSum()
		case m.Histogram != nil:
			values["_count"], values["_sum"] = float64(m.Histogram.GetSampleCount()), m.Histogram.GetSampleSum()
		}
		for _, suffix := range slices.Sorted(maps.Keys(values)) {
			one := s
			one.Name += suffix
			one.Value = values[suffix]
			if err := a.printJSON(one); err != nil {
				return err
			}
		}
	}
	return nil
}

package cmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// What a benchmark leaves: text, raw.json, summary.md and a plot.

func benchText(r *benchResult) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.benchCase)
	fmt.Fprintf(&b, "  %.0f rows/s, %.0f requests/s, %s; %d rows compared\n", r.RowsPerS, r.RequestsPerS, rate(r.BytesPerS), r.Compared)
	t := newTable("  ", "REQUESTS", "mean", "p50", "p90", "p99", "p99.9", "max")
	t.rightAlign(2, 3, 4, 5, 6, 7, 8)
	us := func(v float64) string { return seconds(v / 1e6) }
	for _, o := range []struct {
		name string
		op   *benchOp
	}{{"  GET", &r.Get}, {"  UPDATE", &r.Update}} {
		if o.op.Requests > 0 {
			t.row(o.name, o.op.Requests, us(o.op.MeanUS), us(o.op.P50US), us(o.op.P90US), us(o.op.P99US), us(o.op.P999US), us(o.op.MaxUS))
		}
	}
	b.WriteString(t.String())
	fmt.Fprintf(&b, "  CPU: client %.2f s, shards %.2f s in %.2f s, %.0f rows a CPU second; RSS: client %s, shards %s", r.ClientCPU, r.ShardCPU, r.Seconds, r.RowsPerCPU, size(uint64(r.ClientRSS)), size(uint64(r.ShardRSS)))
	if r.Rate > 0 {
		fmt.Fprintf(&b, "; %d requests found all callers busy", r.Late)
	}
	b.WriteString("\n")
	return b.String()
}

// writeBench writes the folder. What is in it from before is replaced file by file. Where
// not all was measured, partial says what and why.
func writeBench(dir string, results []benchResult, partial string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(results, "", " ")
	if err != nil {
		return err
	}
	pic, err := benchPlot(results)
	if err != nil {
		return err
	}
	for name, b := range map[string][]byte{"raw.json": append(raw, '\n'), "summary.md": []byte(benchSummary(results, partial)), "latency.svg": pic} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func benchSummary(results []benchResult, partial string) string {
	var b strings.Builder
	b.WriteString("# rs bench table\n\n")
	if partial != "" {
		fmt.Fprintf(&b, "**Partial**, %s.\n\n", partial)
	}
	r0 := &results[0]
	fmt.Fprintf(&b, "%s, rs %s, %d CPUs. Numbers of different layers are not compared with each other: `%s` is the table in one process, `%s` is a client and shards over rails.\n\n",
		r0.Began.Format("2006-01-02 15:04:05 MST"), r0.Version, r0.CPUs, layerStorage, layerNetwork)
	for i := range results {
		if r := &results[i]; len(r.Rails) > 0 {
			fmt.Fprintf(&b, "Shards: %d. Rails of the client: %s.\n\n", r.Shards, strings.Join(r.Rails, ", "))
			break
		}
	}
	b.WriteString("| layer | loop | rows | dim | batch | depth | GET % | keys | rows/s | op | requests | mean µs | p50 µs | p90 µs | p99 µs | p99.9 µs | max µs | client CPU s | shard CPU s | seconds | rows per CPU s | client RSS | shard RSS | rows compared |\n")
	b.WriteString("| --- | --- | --: | --: | --: | --: | --: | --- | --: | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n")
	for i := range results {
		r := &results[i]
		for _, o := range []struct {
			name string
			op   *benchOp
		}{{"GET", &r.Get}, {"UPDATE", &r.Update}} {
			if o.op.Requests == 0 {
				continue
			}
			mode := r.Keys
			if r.GetMode != "" {
				mode += ", " + r.GetMode
			}
			fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %s | %.0f | %s | %d | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.2f | %.2f | %.2f | %.0f | %s | %s | %d |\n",
				r.Layer, r.loop(), r.Records, r.Dim, r.Batch, r.Depth, r.Read, mode, o.op.RowsPerS, o.name, o.op.Requests, o.op.MeanUS, o.op.P50US, o.op.P90US, o.op.P99US,
				o.op.P999US, o.op.MaxUS, r.ClientCPU, r.ShardCPU, r.Seconds, r.RowsPerCPU, size(uint64(r.ClientRSS)), size(uint64(r.ShardRSS)), r.Compared)
		}
	}
	b.WriteString("\nTimes are of single requests; in an open loop they count from the moment that the schedule says. Percentiles are off by at most 1.6 %.\n\n![request times](latency.svg)\n")
	return b.String()
}

// benchPlot draws for each measurement which share of the requests was answered within
// which time.
func benchPlot(results []benchResult) ([]byte, error) {
	p := plot.New()
	p.Title.Text = "rs bench table: request times"
	p.X.Label.Text, p.Y.Label.Text = "µs", "share of requests"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = 0, 1
	// Fonts of viewers differ from those that the widths are reckoned with.
	p.Legend.XOffs, p.Legend.YOffs, p.Legend.Padding = -vg.Centimeter, vg.Points(4), vg.Points(2)
	p.Legend.ThumbnailWidth = vg.Centimeter
	p.Add(plotter.NewGrid())
	n := 0
	for i := range results {
		r := &results[i]
		for _, o := range []struct {
			name string
			op   *benchOp
		}{{"GET", &r.Get}, {"UPDATE", &r.Update}} {
			if o.op.Requests == 0 {
				continue
			}
			var xy plotter.XYs
			sum := int64(0)
			for _, h := range o.op.Histogram {
				sum += h[1]
				xy = append(xy, plotter.XY{X: math.Max(float64(h[0]), 1) / 1e3, Y: float64(sum) / float64(o.op.Requests)})
			}
			if len(xy) == 1 { // a line has two ends
				xy = append(plotter.XYs{{X: xy[0].X * 0.99, Y: 0}}, xy...)
			}
			l, err := plotter.NewLine(xy)
			if err != nil {
				return nil, err
			}
			l.Color, l.Width = benchColor(n), vg.Points(1.5)
			n++
			p.Add(l)
			p.Legend.Add(fmt.Sprintf("%s %s %dx%d, %d at once", r.Layer, o.name, r.Batch, r.Dim, r.Depth), l)
		}
	}
	if n == 0 {
		p.X.Scale, p.X.Tick.Marker = plot.LinearScale{}, plot.DefaultTicks{}
	}
	w, err := p.WriterTo(22*vg.Centimeter, 14*vg.Centimeter, "svg")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err = w.WriteTo(&b)
	return b.Bytes(), err
}

// benchColor are colours that are told apart also by those who see few.
func benchColor(i int) color.Color {
	all := []color.RGBA{{0, 114, 178, 255}, {213, 94, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {230, 159, 0, 255}, {86, 180, 233, 255}, {0, 0, 0, 255}}
	return all[i%len(all)]
}

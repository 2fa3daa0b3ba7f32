package cmd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
)

// benchCase is one measurement.
type benchCase struct {
	Layer    string        `json:"layer"`
	Records  int           `json:"records"`
	Dim      int           `json:"dim"`
	Batch    int           `json:"batch"`
	Depth    int           `json:"depth"`
	Keys     string        `json:"keys"`
	Theta    float64       `json:"theta,omitempty"`
	Read     int           `json:"read_percent"`
	Rate     float64       `json:"rate,omitempty"`
	Arrivals string        `json:"arrivals,omitempty"`
	Duration time.Duration `json:"duration_ns"`
	Warmup   time.Duration `json:"warmup_ns"`
	Seed     uint64        `json:"seed"`
	Verify   bool          `json:"verify"`
	GetMode  string        `json:"get_mode,omitempty"`
}

func (k benchCase) loop() string {
	if k.Rate > 0 {
		return fmt.Sprintf("open loop %g/s %s", k.Rate, k.Arrivals)
	}
	return "closed loop"
}

func (k benchCase) String() string {
	s := fmt.Sprintf("%s, %d rows of %d floats, batch %d, depth %d, %d%% GET, %s keys, %s", k.Layer, k.Records, k.Dim, k.Batch, k.Depth, k.Read, k.Keys, k.loop())
	if k.GetMode != "" {
		s += ", " + k.GetMode
	}
	return s
}

// benchOp is what one kind of request did.
type benchOp struct {
	Requests int64   `json:"requests"`
	Rows     int64   `json:"rows"`
	RowsPerS float64 `json:"rows_per_second"`
	MeanUS   float64 `json:"mean_us"`
	P50US    float64 `json:"p50_us"`
	P90US    float64 `json:"p90_us"`
	P99US    float64 `json:"p99_us"`
	P999US   float64 `json:"p999_us"`
	MaxUS    float64 `json:"max_us"`
	// Histogram of request times: the upper end of a bucket in ns, how many.
	Histogram [][2]int64 `json:"histogram_ns"`
}

// benchResult is what came out.
type benchResult struct {
	benchCase
	Began         time.Time `json:"began"`
	Seconds       float64   `json:"seconds"`
	RequestsPerS  float64   `json:"requests_per_second"`
	RowsPerS      float64   `json:"rows_per_second"`
	BytesPerS     float64   `json:"bytes_per_second"` // of rows
	Get           benchOp   `json:"get"`
	Update        benchOp   `json:"update"`
	Compared      int64     `json:"rows_compared"`
	LoadSeconds   float64   `json:"load_seconds"`
	LoadRowsPerS  float64   `json:"load_rows_per_second"`
	Late          int64     `json:"late"` // open loop: requests that found all callers busy
	ClientCPU     float64   `json:"client_cpu_seconds"`
	ShardCPU      float64   `json:"shard_cpu_seconds"`   // of shards on this machine
	RowsPerCPU    float64   `json:"rows_per_cpu_second"` // of both
	ClientRSS     int64     `json:"client_rss_bytes"`
	ShardRSS      int64     `json:"shard_rss_bytes"`
	Shards        int       `json:"shards,omitempty"`
	Rails         []string  `json:"rails,omitempty"`
	Version       string    `json:"version"`
	CPUs          int       `json:"cpus"`
	UpdatesBooked int64     `json:"updates_found_afterwards"`
}

// benchTarget is a table of the layer that is measured.
type benchTarget interface {
	Get(ctx context.Context, keys []uint64, rows []float32, found []bool) error
	Put(ctx context.Context, keys []uint64, rows []float32) error
	Update(ctx context.Context, keys []uint64, grads []float32) error
}

// localTable is a table of this process.
type localTable struct{ t *table.Table }

func (l localTable) Get(_ context.Context, keys []uint64, rows []float32, _ []bool) error {
	n, err := l.t.Get(keys, rows, nil)
	if err == nil && n != len(keys) {
		err = fmt.Errorf("%d of %d keys have a row", n, len(keys))
	}
	return err
}

func (l localTable) Put(_ context.Context, keys []uint64, rows []float32) error {
	return l.t.Put(keys, rows)
}

func (l localTable) Update(_ context.Context, keys []uint64, grads []float32) error {
	_, err := l.t.Update(keys, grads, table.Token{})
	return err
}

// benchCaller is one of those that ask.
type benchCaller struct {
	rnd         *rand.Rand
	keys        []uint64
	rows, grads []float32
	get, update hist
	compared    int64
	late        int64
	applied     int64 // rows of updates, those of the warm-up included
}

// runBench fills the table, warms up, measures and compares.
func runBench(ctx context.Context, k benchCase, t benchTarget, own, shards []int) (r benchResult, err error) {
	r = benchResult{benchCase: k, Version: buildInfo().Version, CPUs: runtime.NumCPU()}
	begin := time.Now()
	if err := fillBench(ctx, k, t); err != nil {
		return r, err
	}
	r.LoadSeconds = time.Since(begin).Seconds()
	r.LoadRowsPerS = float64(k.Records) / r.LoadSeconds
	draw := newKeyDraw(&k)
	var times []time.Duration
	if k.Rate > 0 {
		times = schedule(&k)
	}
	callers := make([]*benchCaller, k.Depth)
	for i := range callers {
		c := &benchCaller{rnd: rand.New(rand.NewPCG(k.Seed, uint64(i)+1)), keys: make([]uint64, k.Batch), rows: make([]float32, k.Batch*k.Dim), grads: make([]float32, k.Batch*k.Dim)}
		for j := range c.grads {
			c.grads[j] = 1
		}
		callers[i] = c
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg       sync.WaitGroup
		next     atomic.Int64
		begun    = time.Now()
		from     = begun.Add(k.Warmup)
		to       = from.Add(k.Duration)
		cpu, scp float64
		sampled  sync.Once
		sample   = func() { sampled.Do(func() { cpu, scp = cpuOf(own), cpuOf(shards) }) }
	)
	r.Began = from.UTC()
	for _, c := range callers {
		wg.Go(func() {
			timer := time.NewTimer(0)
			<-timer.C
			defer timer.Stop()
			for ctx.Err() == nil {
				start := time.Now()
				if times == nil {
					if start.After(to) {
						return
					}
				} else {
					i := next.Add(1) - 1
					if i >= int64(len(times)) {
						return
					}
					due := begun.Add(times[i])
					if wait := due.Sub(start); wait > 0 {
						timer.Reset(wait)
						select {
						case <-timer.C:
						case <-ctx.Done():
							return
						}
					} else if due.After(from) {
						c.late++
					}
					start = due
				}
				if start.After(from) {
					sample()
				}
				if err := c.once(ctx, k, t, draw, start, from, to); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	ended := time.Now()
	if err := context.Cause(ctx); err != nil {
		return r, err
	}
	r.ClientCPU, r.ShardCPU = cpuOf(own)-cpu, cpuOf(shards)-scp
	r.ClientRSS, r.ShardRSS = rssOf(own), rssOf(shards)
	// What was asked before the end and answered after it counts, and so does its time.
	r.Seconds = ended.Sub(from).Seconds()
	var get, update hist
	var applied int64
	for _, c := range callers {
		get.merge(&c.get)
		update.merge(&c.update)
		r.Compared += c.compared
		r.Late += c.late
		applied += c.applied
	}
	r.Get, r.Update = opOf(&get, k.Batch, r.Seconds), opOf(&update, k.Batch, r.Seconds)
	r.RequestsPerS = float64(get.n+update.n) / r.Seconds
	r.RowsPerS = r.RequestsPerS * float64(k.Batch)
	r.BytesPerS = r.RowsPerS * float64(4*k.Dim)
	if cpu := r.ClientCPU + r.ShardCPU; cpu > 0 {
		r.RowsPerCPU = r.RowsPerS * r.Seconds / cpu
	}
	// Every update is in the rows, once.
	if r.UpdatesBooked, err = countUpdates(ctx, k, t); err == nil && r.UpdatesBooked != applied {
		err = pipeline.Errorf(pipeline.LayerIntegrity, "bench", pipeline.Nowhere, "%d rows were updated, and the table has %d of these updates", applied, r.UpdatesBooked)
	}
	return r, err
}

// once is one request.
func (c *benchCaller) once(ctx context.Context, k benchCase, t benchTarget, draw keyDraw, start, from, to time.Time) error {
	draw.fill(c.keys, c.rnd)
	read := k.Read == 100 || c.rnd.IntN(100) < k.Read
	if k.Rate == 0 {
		start = time.Now() // drawing keys is not the request's time
	}
	var err error
	if read {
		err = t.Get(ctx, c.keys, c.rows, nil)
	} else {
		err = t.Update(ctx, c.keys, c.grads)
		c.applied += int64(k.Batch)
	}
	took := time.Since(start)
	if err != nil {
		return err
	}
	if start.After(from) && !start.After(to) {
		if read {
			c.get.add(took)
		} else {
			c.update.add(took)
		}
	}
	if !read || !k.Verify {
		return nil
	}
	for i, key := range c.keys {
		if checkRow(c.rows[i*k.Dim:(i+1)*k.Dim], key) < 0 {
			return pipeline.Errorf(pipeline.LayerIntegrity, "bench", pipeline.Nowhere, "key %d: the row that came is none that was ever stored: %.200s", key, floats(c.rows[i*k.Dim:(i+1)*k.Dim]).String())
		}
	}
	c.compared += int64(k.Batch)
	return nil
}

func opOf(h *hist, batch int, seconds float64) benchOp {
	if h.n == 0 {
		return benchOp{Histogram: [][2]int64{}}
	}
	us := func(q float64) float64 { return float64(h.quantile(q)) / 1e3 }
	return benchOp{Requests: h.n, Rows: h.n * int64(batch), RowsPerS: float64(h.n*int64(batch)) / seconds, MeanUS: float64(h.sum) / float64(h.n) / 1e3,
		P50US: us(0.5), P90US: us(0.9), P99US: us(0.99), P999US: us(0.999), MaxUS: float64(h.max) / 1e3, Histogram: h.points()}
}

// fillBench puts every record, some batches at once.
func fillBench(ctx context.Context, k benchCase, t benchTarget) error {
	n := min(max(64<<10/k.Dim, 1), 4096)
	return inBatches(ctx, k.Records, n, 2, func(ctx context.Context, keys []uint64) error {
		rows := make([]float32, len(keys)*k.Dim)
		for i, key := range keys {
			benchRow(rows[i*k.Dim:(i+1)*k.Dim], key)
		}
		return t.Put(ctx, keys, rows)
	})
}

// countUpdates adds up the updates of all rows.
func countUpdates(ctx context.Context, k benchCase, t benchTarget) (int64, error) {
	var sum atomic.Int64
	n := min(max(64<<10/k.Dim, 1), 4096)
	err := inBatches(ctx, k.Records, n, 2, func(ctx context.Context, keys []uint64) error {
		rows := make([]float32, len(keys)*k.Dim)
		if err := t.Get(ctx, keys, rows, nil); err != nil {
			return err
		}
		for i, key := range keys {
			u := checkRow(rows[i*k.Dim:(i+1)*k.Dim], key)
			if u < 0 {
				return pipeline.Errorf(pipeline.LayerIntegrity, "bench", pipeline.Nowhere, "key %d: its row at the end is none that was ever stored", key)
			}
			sum.Add(u)
		}
		return nil
	})
	return sum.Load(), err
}

// inBatches calls fn for the keys from 0 to records, some batches at once.
func inBatches(ctx context.Context, records, batch, callers int, fn func(ctx context.Context, keys []uint64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var next atomic.Int64
	for range callers {
		wg.Go(func() {
			keys := make([]uint64, batch)
			for ctx.Err() == nil {
				from := int(next.Add(int64(batch))) - batch
				if from >= records {
					return
				}
				part := keys[:min(batch, records-from)]
				for i := range part {
					part[i] = uint64(from + i)
				}
				if err := fn(ctx, part); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// shardPIDs are the processes of the shards that run on this machine.
func shardPIDs(ctx context.Context, control *ctrl.Client, shards []int) ([]int, error) {
	var out []int
	for _, id := range shards {
		n, err := control.Node(ctx, ctrl.ShardID(id))
		if err != nil {
			return nil, err
		}
		if b, err := os.ReadFile("/proc/" + strconv.Itoa(n.Info.PID) + "/cmdline"); err == nil && strings.Contains(string(b), "\x00serve\x00") {
			out = append(out, n.Info.PID)
		}
	}
	return out, nil
}

// cpuOf is the time that processes have used, in seconds. The kernel counts in ticks of
// 10 ms.
func cpuOf(pids []int) (sum float64) {
	for _, p := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/stat")
		if err != nil {
			continue
		}
		// The name, in parentheses, may have blanks in it.
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) < 13 {
			continue
		}
		for _, s := range f[11:13] { // utime, stime
			n, err := strconv.ParseUint(s, 10, 64)
			if err == nil {
				sum += float64(n) / 100
			}
		}
	}
	return sum
}

// rssOf is the memory of processes that is resident.
func rssOf(pids []int) (sum int64) {
	for _, p := range pids {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(p) + "/statm")
		if err != nil {
			continue
		}
		if f := strings.Fields(string(b)); len(f) > 1 {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				sum += n * int64(os.Getpagesize())
			}
		}
	}
	return sum
}

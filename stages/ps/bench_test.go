package ps

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/soft"
	"github.com/railstore/railstore/verbs/verbstest"
)

func oneShard(d *deploy.Deployment) {
	d.Hosts = []deploy.Host{d.Hosts[0], d.Hosts[2]}
	d.Shards = d.Shards[:1]
	for i := range d.Hosts {
		d.Hosts[i].Rails = d.Hosts[i].Rails[:1]
	}
	d.Shards[0].Store.Memory = 1 << 30
}

// cpuTime is what this process, both ends, has taken of the processors.
func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// percentile sorts.
func percentile(d []time.Duration, p float64) time.Duration {
	slices.Sort(d)
	return d[int(p*float64(len(d)-1))]
}

// BenchmarkGetOne is the time of a GET of one row, and of a WRITE between the same two
// ends, in one run.
func BenchmarkGetOne(b *testing.B) {
	for _, w := range wheres(b) {
		for _, workers := range []int{0, 1} {
			b.Run(fmt.Sprintf("provider=%s/getWorkers=%d", w.name, workers), func(b *testing.B) {
				w.beat = time.Minute // heartbeats allocate
				s := newSite(b, w, func(d *deploy.Deployment) {
					oneShard(d)
					d.Server.GetWorkers = workers
				})
				ss := s.session(nil)
				tb := s.table(ss, table.Spec{Name: "t", Dim: 16})
				ctx := context.Background()
				keys := []uint64{7}
				rows := make([]float32, 16)
				if err := tb.Put(ctx, keys, rows); err != nil {
					b.Fatal(err)
				}
				for range 2000 {
					if err := tb.Get(ctx, keys, rows, nil); err != nil {
						b.Fatal(err)
					}
				}
				var times []time.Duration
				b.ReportAllocs()
				for b.Loop() {
					start := time.Now()
					if err := tb.Get(ctx, keys, rows, nil); err != nil {
						b.Fatal(err)
					}
					times = append(times, time.Since(start))
				}
				b.StopTimer()
				p50 := percentile(times, 0.5)
				b.ReportMetric(float64(p50.Nanoseconds()), "p50-ns")
				b.ReportMetric(float64(percentile(times, 0.99).Nanoseconds()), "p99-ns")
				if w.name == "soft" {
					wr := writeTime(b)
					b.ReportMetric(float64(wr.Nanoseconds()), "write-p50-ns")
					b.ReportMetric(float64(p50)/float64(wr), "×write")
				}
			})
		}
	}
}

// writeTime is the median time of a signaled 64-byte WRITE on soft, posted and polled for
// by one goroutine.
func writeTime(b *testing.B) time.Duration {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	d := soft.New(soft.Options{})
	type end struct {
		ctx *verbs.Context
		pd  *verbs.PD
		cq  *verbs.CQ
		reg *verbs.Region
		mr  *verbs.MR
		qp  *verbs.QP
		gid verbs.GIDEntry
		at  verbs.Endpoint
	}
	var ends [2]end
	for i := range ends {
		e := &ends[i]
		var err error
		e.ctx, err = verbs.Open(d, fmt.Sprintf("127.0.60.%d", i+1))
		must(err)
		e.pd, err = e.ctx.AllocPD()
		must(err)
		e.cq, err = e.ctx.CreateCQ(64)
		must(err)
		e.reg, err = verbs.MapRegion(4096)
		must(err)
		e.mr, err = e.pd.Register(e.reg, verbstest.All)
		must(err)
		e.qp, err = e.pd.CreateQP(verbs.QPInit{SendCQ: e.cq, RecvCQ: e.cq, Cap: verbs.QPCap{MaxSendWR: 16, MaxSendSGE: 1, MaxRecvWR: 1, MaxRecvSGE: 1}})
		must(err)
		port, err := e.ctx.Port(1)
		must(err)
		gids, err := e.ctx.GIDs(1)
		must(err)
		e.gid = gids[slices.IndexFunc(gids, func(g verbs.GIDEntry) bool { return g.Type == verbs.GIDTypeRoCEv2 && g.GID.IsIPv4() })]
		e.at = verbs.Endpoint{GID: e.gid.GID, GIDType: e.gid.Type, QPN: e.qp.QPN(), PSN: 5, MTU: port.ActiveMTU, UDPPort: port.UDPPort}
	}
	for i := range ends {
		e, o := &ends[i], &ends[1-i]
		must(e.qp.Connect(e.at, o.at, verbs.PathOpts{Access: verbs.RemoteWrite, SGIDIndex: e.gid.Index, RetryCount: 6, RNRRetry: 7}, nil))
	}
	c, remote := &ends[0], ends[1].mr.Remote()
	wrs := []verbs.SendWR{{Op: verbs.OpWrite, RemoteAddr: remote.Addr, RKey: remote.RKey, NumSGE: 1, Flags: verbs.Signaled}}
	sges := []verbs.SGE{c.mr.SGE(0, 64)}
	wcs := make([]verbs.WC, 4)
	times := make([]time.Duration, 0, 20000)
	for i := range 22000 {
		start := time.Now()
		_, err := c.qp.PostSend(wrs, sges)
		must(err)
		for {
			n, err := c.cq.Poll(wcs)
			must(err)
			if n > 0 {
				if wcs[0].Status != verbs.WCSuccess {
					b.Fatal(wcs[0].Status)
				}
				break
			}
		}
		if i >= 2000 {
			times = append(times, time.Since(start))
		}
	}
	for i := range ends {
		e := &ends[i]
		for _, x := range []interface{ Close() error }{e.qp, e.cq, e.mr, e.reg, e.pd, e.ctx} {
			must(x.Close())
		}
	}
	return percentile(times, 0.5)
}

// BenchmarkGetRows is GETs of 500 rows of 512 bytes, several under way, from a table
// larger than the caches.
func BenchmarkGetRows(b *testing.B) {
	for _, w := range wheres(b) {
		for _, mode := range []string{StagingCopy, DirectSG} {
			for _, dim := range []int{128, 1024} {
				for _, depth := range []int{1, 4} {
					b.Run(fmt.Sprintf("provider=%s/mode=%s/row=%d/depth=%d", w.name, mode, 4*dim, depth), func(b *testing.B) {
						benchRows(b, w, mode, dim, depth, 500, 512<<10)
					})
				}
			}
		}
	}
}

// BenchmarkGetWideRows is GETs of rows of which few fit an answer's slot: where auto goes
// from staging_copy to direct_sg.
func BenchmarkGetWideRows(b *testing.B) {
	for _, w := range wheres(b) {
		for _, slot := range []int{4 << 10, 64 << 10, 512 << 10} {
			for _, dim := range []int{64, 128, 512, 1024, 2048, 4096, 15 << 10} {
				for _, mode := range []string{StagingCopy, DirectSG, Auto} {
					if 4*dim > slot*3/4 {
						continue
					}
					b.Run(fmt.Sprintf("provider=%s/slot=%d/row=%d/mode=%s", w.name, slot, 4*dim, mode), func(b *testing.B) {
						benchRows(b, w, mode, dim, 1, 1<<20/(4*dim), slot)
					})
				}
			}
		}
	}
}

func benchRows(b *testing.B, w where, mode string, dim, depth, batch, slot int) {
	w.beat = time.Minute // heartbeats allocate
	s := newSite(b, w, func(d *deploy.Deployment) {
		oneShard(d)
		d.Lanes.RequestBytes, d.Lanes.ResponseBytes, d.Lanes.QPs, d.Lanes.Slots = 64<<10, int64(slot), 4, 16
		d.Reader.MaxStaging = 128 * MaxPiece
	})
	ss := s.session(func(c *SessionConfig) { c.Modes = Modes{Get: mode, Put: Push} })
	tb := s.table(ss, table.Spec{Name: "t", Dim: dim})
	ctx := context.Background()
	total := 128 << 20 / (4 * dim)
	keys := make([]uint64, batch)
	rows := make([]float32, batch*dim)
	for at := 0; at+batch <= total; at += batch {
		for i := range keys {
			keys[i] = uint64(at + i)
		}
		if err := tb.Put(ctx, keys, rows); err != nil {
			b.Fatal(err)
		}
	}
	type call struct {
		keys []uint64
		rows []float32
		h    Handle
		on   bool
	}
	calls := make([]call, depth)
	for i := range calls {
		calls[i].keys, calls[i].rows = make([]uint64, batch), make([]float32, batch*dim)
	}
	x := uint64(1)
	cpu := cpuTime()
	b.SetBytes(int64(batch * dim * 4))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		c := &calls[n%depth]
		if c.on {
			if err := c.h.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
		for i := range c.keys {
			x = x*6364136223846793005 + 1442695040888963407
			c.keys[i] = (x >> 33) % uint64(total)
		}
		var err error
		if c.h, err = tb.StartGet(ctx, c.keys, c.rows, nil); err != nil {
			b.Fatal(err)
		}
		c.on = true
		n++
	}
	b.StopTimer()
	b.ReportMetric(float64(n*batch)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(cpuTime()-cpu)/float64(n), "cpu-ns/op")
	again := uint64(0)
	for _, l := range ss.Lanes().Lanes("a") {
		again += l.Stats().Retransmits
	}
	b.ReportMetric(float64(again)/float64(n), "retransmits/op")
	for i := range calls {
		if calls[i].on {
			if err := calls[i].h.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
}

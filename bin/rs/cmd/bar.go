package cmd

import (
	"io"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// bar shows how far a transfer is, on a terminal only. The zero bar shows
// nothing.
type bar struct {
	mu    sync.Mutex
	p     *mpb.Progress
	b     *mpb.Bar
	total int64
	grows bool // the total is not known beforehand
}

// newBar begins a bar; total 0 means that it is not known.
func (a *app) newBar(what string, total uint64) *bar {
	if !a.errTTY || a.silent() {
		return &bar{}
	}
	p := mpb.New(mpb.WithOutput(io.Writer(a.err)), mpb.WithWidth(40))
	b := p.AddBar(int64(total),
		mpb.PrependDecorators(decor.Name(what, decor.WCSyncSpaceR), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), " % .1f")),
	)
	return &bar{p: p, b: b, total: int64(total), grows: total == 0}
}

// add is called from several goroutines.
func (b *bar) add(n uint64) {
	if b.b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.grows {
		b.total += int64(n)
		b.b.SetTotal(b.total, false)
	}
	b.b.IncrInt64(int64(n))
}

// stop takes the bar away and waits for its goroutines.
func (b *bar) stop() {
	if b.b == nil {
		return
	}
	b.b.Abort(true)
	b.p.Wait()
}

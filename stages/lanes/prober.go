package lanes

import (
	"context"
	"sync"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs/lane"
)

// prober asks the control plane after shards that calls wait for: one question
// for all of them, and for each not more often than the recipe says. Nothing of a
// call waits for it.
type prober struct {
	c       *Client
	every   time.Duration
	timeout time.Duration

	mu    sync.Mutex
	asked map[int]time.Duration // when, by shard
	open  map[int]bool          // to be asked after
	poke  chan struct{}         // cap 1
}

func (p *prober) init(c *Client, d *deploy.Deployment) {
	p.c, p.every, p.timeout = c, d.Health.ProbeInterval.D(), d.Health.ProbeTimeout.D()
	p.asked, p.open, p.poke = map[int]time.Duration{}, map[int]bool{}, make(chan struct{}, 1)
}

// want is lane.Config.Waiting.
func (p *prober) want(l lane.Label) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A little less than the interval, since the callers' timers keep time, too.
	if at, ok := p.asked[l.Shard]; ok && clock()-at < p.every*9/10 {
		return
	}
	p.asked[l.Shard] = clock()
	p.open[l.Shard] = true
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

func (p *prober) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.poke:
		}
		p.mu.Lock()
		var ids []ctrl.NodeID
		for shard := range p.open {
			ids = append(ids, ctrl.ShardID(shard))
		}
		clear(p.open)
		p.mu.Unlock()
		if len(ids) == 0 {
			continue
		}
		qctx, cancel := context.WithTimeout(ctx, p.timeout)
		verdicts := p.c.Control.Verdicts(qctx, ids...)
		cancel()
		for _, h := range verdicts {
			k := p.c.keeperOf(h.ID)
			switch {
			case !h.Known:
				k.setVerdict("unknown") // which is not unhealthy
			case h.Dead():
				k.setVerdict(h.State.String())
				k.condemn(h.Reason)
			default:
				k.setVerdict(h.State.String())
			}
		}
	}
}

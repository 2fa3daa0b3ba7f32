package rail

import (
	"context"
	"errors"
	"fmt"

	"github.com/railstore/railstore/ctrl"
)

// ErrNotGrown means that a peer answered a new generation of a link with an old
// one of its own: it has not made a new QP.
var ErrNotGrown = errors.New("the peer's generation of the link has not grown")

// Incarnation is the life of the shard that a client's peer stands for.
func (p *Peer) Incarnation() uint64 { return p.incarnation }

// Renew gives some links of a client's peer new QPs while the others stay: it
// publishes the links anew, under their next generation, and connects them to
// what the shard answers, while ctx lasts. Their users must have stopped and their
// QPs must have been destroyed.
//
// The result has an error for each link, nil where it is connected and the peer's
// generation has grown. The QP of a link that failed is destroyed again; it can be
// renewed later. Nothing of this is repeated here.
func (p *Peer) Renew(ctx context.Context, control *ctrl.Client, links []*Link) []error {
	errs := make([]error, len(links))
	fresh := make([]bool, len(links))
	old := make([]uint32, len(links)) // the peer's generations
	for i, l := range links {
		old[i] = l.PeerGeneration
		errs[i] = l.renew(p.set)
		fresh[i] = errs[i] == nil
	}
	defer func() {
		for i, l := range links {
			if errs[i] != nil && fresh[i] {
				errs[i] = errors.Join(errs[i], l.QP.Close())
			}
		}
	}()
	fail := func(err error) []error {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = err
			}
		}
		return errs
	}
	p.generation++
	o := ctrl.Offer{To: p.Node, Generation: p.generation, Params: p.params, ToIncarnation: p.incarnation}
	for _, l := range p.Links {
		o.Lanes = append(o.Lanes, l.meta(p.set))
	}
	if err := control.Publish(ctx, o); err != nil {
		return fail(err)
	}
	ans, err := control.Fetch(ctx, p.Node, o.Generation)
	if err != nil {
		return fail(err)
	}
	if err := compareParams(p.params, ans.Params, p.Node); err != nil {
		return fail(err)
	}
	for i, l := range links {
		if errs[i] == nil {
			errs[i] = l.reconnect(p, ans, old[i])
		}
	}
	return errs
}

// reconnect connects a renewed link to the peer's answer.
func (l *Link) reconnect(p *Peer, ans ctrl.Offer, old uint32) error {
	for _, m := range ans.Lanes {
		switch {
		case m.Index != l.Index:
		case m.Error != "":
			return fmt.Errorf("%s refused: %s", p.Node, m.Error)
		case m.Rail != l.PeerRail || m.Fabric != l.Rail.Spec.Fabric:
			return fmt.Errorf("%s answered on rail %s (fabric %s), not on %s (fabric %s)", p.Node, m.Rail, m.Fabric, l.PeerRail, l.Rail.Spec.Fabric)
		case m.Generation <= old:
			return fmt.Errorf("%w: %d, and it was %d", ErrNotGrown, m.Generation, old)
		default:
			return l.connect(p.set, m)
		}
	}
	return fmt.Errorf("the answer of %s lacks link %d", p.Node, l.Index)
}

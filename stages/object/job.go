package object

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// landing is memory that stripes arrive in.
type landing interface {
	Bytes() []byte
	Piece(off, n uint64) Piece
	Condemn() // it may be written for ever
}

// readJob moves stripes of one object into one landing.
type readJob struct {
	w      *Worker
	o      *Object
	span   span
	land   landing
	opt    ReadOptions
	refs   []StripeRef // by stripe index
	meters map[string]*meter
	order  *inOrder
	start  time.Time
	// deadline of the caller; zero: none
	deadline time.Time

	excluded []string      // rails and paths that were down from the start
	canary   map[Path]bool // paths that carry one stripe to show that they work

	mu          sync.Mutex
	rails       []PlanRail         // without the paths that failed in this job
	owner       []string           // by stripe index: the rail that is to carry it
	missing     []uint32           // stripes for the next round
	bad         []badStripe        // stripes that came wrong
	dirty       map[Path]bool      // paths whose writes may still come
	lost        map[Path]error     // paths that failed
	roundCtx    context.Context    // of the round
	running     map[Path]*pathRun  // of the round
	tasks       []*taskRun         // of the round
	late        map[Path]bool      // paths that others overtook near the deadline
	slow        map[string]bool    // rails that others took stripes over from
	fatal       error              // first error that ends the read
	stop        context.CancelFunc // of the round
	rereads     uint64
	hedges      uint64
	moves       []Move
	corruptions []Corruption
}

// span is the stripes from first to last, last excluded, and where they begin and
// end in the object.
type span struct {
	first, last uint32
	off, end    uint64
}

func (s span) stripes() []uint32 {
	out := make([]uint32, 0, s.last-s.first)
	for i := s.first; i < s.last; i++ {
		out = append(out, i)
	}
	return out
}

// Move is stripes that another rail carried than the plan said.
type Move struct {
	From    string `json:"from"`
	To      string `json:"to"`
	Why     string `json:"why"` // MoveFailover, ...
	Stripes int    `json:"stripes"`
	Bytes   uint64 `json:"bytes"`
}

// Why stripes move.
const (
	MoveFailover = "failover" // the path failed
	MoveChecksum = "checksum" // they arrived with wrong bytes
	MoveHedge    = "hedge"    // they were late
	MoveSlow     = "slow"     // the rail was far behind and had not begun them
)

// Corruption is a stripe that arrived with other bytes than were stored.
type Corruption struct {
	Rail      string `json:"rail"`
	Shard     int    `json:"shard"`
	Stripe    uint32 `json:"stripe"`
	Offset    uint64 `json:"offset"` // of its first wrong byte, in the object
	Wrong     uint64 `json:"wrong_bytes"`
	RereadOn  string `json:"reread_on"`
	Corrected bool   `json:"corrected"`
}

func newReadJob(w *Worker, o *Object, sp span, land landing, rails []PlanRail, excluded []string, opt ReadOptions) *readJob {
	n := len(o.Placement.Stripes)
	j := &readJob{
		w: w, o: o, span: sp, land: land, opt: opt, rails: rails, excluded: excluded, start: time.Now(),
		refs: make([]StripeRef, n), owner: make([]string, n), meters: make(map[string]*meter, len(rails)), canary: map[Path]bool{}, dirty: map[Path]bool{}, lost: map[Path]error{}, slow: map[string]bool{}, late: map[Path]bool{},
	}
	for i := range o.Placement.Stripes {
		s := &o.Placement.Stripes[i]
		j.refs[s.Index] = refOf(o, s)
	}
	for i := range rails {
		j.meters[rails[i].Name] = &meter{}
		for _, s := range rails[i].Canary {
			j.canary[Path{rails[i].Name, s}] = true
		}
	}
	j.order = newInOrder(land.Bytes(), o.StripeBytes, int(sp.last-sp.first))
	if !w.cfg.Limits.VerifyWhole || sp.off != 0 || sp.end != o.Size {
		j.order.hash = nil // of a part there is nothing to compare it with
	}
	return j
}

// piece is where a stripe belongs.
func (j *readJob) piece(stripe uint32) Piece {
	return j.land.Piece(uint64(stripe)*j.o.StripeBytes-j.span.off, j.refs[stripe].Length)
}

// run carries out the plan, and, with Failover, new plans for what failed paths
// left over, until everything is there, a shard is out of reach, or what is missing
// does not fit the deadline.
func (j *readJob) run(ctx context.Context, plan *Plan) error {
	j.deadline, _ = ctx.Deadline()
	for i := range plan.Rails {
		r := &plan.Rails[i]
		j.meters[r.Name].plan(r.PlannedBytes)
		j.w.rails[r.Name].meter.plan(r.PlannedBytes)
		for _, s := range r.Stripes {
			j.owner[s] = r.Name
		}
	}
	for {
		j.round(ctx, plan)
		err := j.fence(ctx)
		if err == nil && j.fatal == nil {
			j.rereadBad(ctx)
			err = j.fence(ctx)
		}
		switch {
		case err != nil:
			j.land.Condemn()
			return both(j.fatal, err)
		case j.fatal != nil:
			return j.fatal
		case len(j.missing) == 0:
			return nil
		}
		if err := j.fits(ctx); err != nil {
			return err
		}
		if plan, err = BuildPlan(j.o, j.rails, j.w.cfg.Limits, j.missing); err != nil {
			return fmt.Errorf("%w: %w", err, j.causes())
		}
		for i := range plan.Rails {
			for _, s := range plan.Rails[i].Stripes {
				j.moveLocked(s, plan.Rails[i].Name, MoveFailover)
			}
		}
		j.missing = nil
	}
}

// fits refuses to go on when the rails that are left cannot bring in time what is
// missing, by what they carried lately.
func (j *readJob) fits(ctx context.Context) error {
	deadline, ok := ctx.Deadline()
	rate := j.w.health.rateOf(j.rails)
	if !ok || rate == 0 {
		return nil
	}
	var n uint64
	for _, s := range j.missing {
		n += j.refs[s].Length
	}
	need, left := time.Duration(float64(n)/rate*float64(time.Second)), time.Until(deadline)
	if need <= left {
		return nil
	}
	return fmt.Errorf("%w: %d bytes would take the other rails %v, and %v are left: %w", ErrTooLate, n, need.Round(time.Millisecond), left.Round(time.Millisecond), j.causes())
}

// moveLocked gives a stripe to another rail and keeps account of it.
func (j *readJob) moveLocked(stripe uint32, to, why string) {
	from, n := j.owner[stripe], j.refs[stripe].Length
	if from == to {
		return
	}
	j.owner[stripe] = to
	for _, m := range []struct {
		rail string
		f    func(*meter, uint64)
	}{{from, (*meter).moveOut}, {to, (*meter).moveIn}} {
		m.f(j.meters[m.rail], n)
		m.f(&j.w.rails[m.rail].meter, n)
	}
	i := slices.IndexFunc(j.moves, func(m Move) bool { return m.From == from && m.To == to && m.Why == why })
	if i < 0 {
		i, j.moves = len(j.moves), append(j.moves, Move{From: from, To: to, Why: why})
	}
	j.moves[i].Stripes++
	j.moves[i].Bytes += n
}

// causes are the failures of all paths, in one line.
func (j *readJob) causes() error {
	var out pathErrors
	for _, n := range j.w.cfg.Nodes {
		for i := range j.w.cfg.Rails {
			if err := j.lost[Path{j.w.cfg.Rails[i].Name, n.Shard}]; err != nil {
				out = append(out, err)
			}
		}
	}
	return out.err()
}

// fence makes sure that nothing of the round before can still reach the landing.
func (j *readJob) fence(ctx context.Context) error {
	err := j.w.quiesce(ctx, j.dirty)
	if err == nil {
		j.dirty = map[Path]bool{}
	}
	return err
}

// complete is the last check: all stripes, all bytes, the bytes of each rail, and, where
// it is asked for, the hash of the whole.
func (j *readJob) complete() error {
	n, bytes, sum := j.order.result()
	if n != int(j.span.last-j.span.first) || bytes != j.span.end-j.span.off {
		return fmt.Errorf("%w: %d of %d stripes, %d of %d bytes", ErrIncomplete, n, j.span.last-j.span.first, bytes, j.span.end-j.span.off)
	}
	for name, m := range j.meters {
		if planned, out, in, got := m.account(); got != planned-out+in {
			return fmt.Errorf("%w: rail %s: %d bytes planned, %d moved away and %d moved here, but %d arrived", ErrIncomplete, name, planned, out, in, got)
		}
	}
	if j.order.hash == nil {
		return nil
	}
	if h := Hex(sum); h != j.o.XXH3 {
		return fmt.Errorf("%w: every stripe is right but the whole has xxh3 %s, the catalog says %s", ErrChecksum, h, j.o.XXH3)
	}
	return nil
}

// report also tells the health of the rails what they carried.
func (j *readJob) report(plan *Plan) *ReadReport {
	rep := &ReadReport{
		Namespace: j.o.Key.Namespace, Object: j.o.Key.Name, Generation: j.o.Generation, ObjectBytes: j.o.Size, Bytes: j.o.Size, XXH3: j.o.XXH3, Verified: VerifiedWhole,
		Rereads: j.rereads, Hedges: j.hedges, Excluded: append([]string{}, j.excluded...), Moves: append([]Move{}, j.moves...), Exact: true,
		Corruptions: append([]Corruption{}, j.corruptions...), Faults: []PathFault{}, Rails: []RailSnapshot{},
	}
	if j.order.hash == nil {
		rep.Verified = VerifiedStripes
	}
	for _, m := range j.moves {
		if m.Why == MoveFailover {
			rep.ReroutedBytes += m.Bytes
		}
	}
	for at, err := range j.lost {
		f := PathFault{Rail: at.Rail, Shard: at.Shard, Verdict: j.w.health.Verdict(at), Cause: err.Error()}
		if f.Verdict == "" {
			f.Verdict = VerdictPath // it works again
		}
		rep.Faults = append(rep.Faults, f)
	}
	slices.SortFunc(rep.Faults, func(a, b PathFault) int { return comparePaths(Path{a.Rail, a.Shard}, Path{b.Rail, b.Shard}) })
	var paced []pacedRail
	for i := range plan.Rails {
		r := &plan.Rails[i]
		m := j.meters[r.Name]
		s := j.w.snapshot(r.Name, m)
		s.Share = r.Share
		rep.Exact = rep.Exact && s.Bytes == s.PlannedBytes
		rep.Rails = append(rep.Rails, s)
		paced = append(paced, pacedRail{r.Name, r.Weight, s.Bytes, m.busy()})
	}
	j.w.health.observe(paced, j.o.StripeBytes)
	rep.Degraded = rep.Rereads > 0 || len(rep.Moves) > 0 || len(rep.Faults) > 0 || len(rep.Excluded) > 0 || len(rep.Corruptions) > 0
	return rep
}

// typical is how long a stripe took in this read so far, 0 before the first.
func (j *readJob) typical() time.Duration {
	var sum time.Duration
	var n uint64
	for _, m := range j.meters {
		d, k := m.latencies()
		sum, n = sum+d, n+k
	}
	if n == 0 {
		return 0
	}
	return sum / time.Duration(n)
}

// badStripe is a stripe that arrived with wrong bytes.
type badStripe struct {
	stripe uint32
	from   Path
	err    error
}

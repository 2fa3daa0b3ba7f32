package ps

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/lanes"
	"github.com/railstore/railstore/stages/table"
	"github.com/railstore/railstore/verbs"
	"github.com/railstore/railstore/verbs/lane"
)

// How rows reach a GET's caller, and how those of a PUT reach the shard.
const (
	Auto        = "auto"
	DirectSG    = "direct_sg"
	StagingCopy = "staging_copy"
	Read        = "read"
	Push        = "push"
)

// ClientConfig says how a client calls the shards.
type ClientConfig struct {
	Lanes *lanes.Client
	// Staging is registered on every rail and gets rows by direct_sg and read. Without it
	// rows go through slots only.
	Staging *Staging
	Mode    Modes
	// Depth bounds the requests that handles have in flight; at most Lanes.QPs × Lanes.Slots
	// of the deployment, which 0 means.
	Depth    int
	Attempts int           // of a GET, an EXISTS or an UPDATE at a shard that failed; 0 is 1
	Backoff  time.Duration // before each but the first
}

// Modes are the ways of rows.
type Modes struct {
	Get         string // auto (also empty), direct_sg or staging_copy
	Put         string // read or push (also empty)
	PutProtocol int    // 1 or 2 (also 0); 1 pushes
}

// ModesOf are those of a deployment.
func ModesOf(d *deploy.Deployment) Modes {
	return Modes{Get: d.Lanes.GetResponseMode, Put: d.Lanes.PutTransferMode, PutProtocol: d.Lanes.PutProtocol}
}

func (m *Modes) complete() error {
	if m.Get == "" {
		m.Get = Auto
	}
	if m.Put == "" {
		m.Put = Push
	}
	if m.PutProtocol == 0 {
		m.PutProtocol = 2
	}
	switch {
	case m.Get != Auto && m.Get != DirectSG && m.Get != StagingCopy:
		return fmt.Errorf("GET response mode %q: want auto, direct_sg or staging_copy", m.Get)
	case m.Put != Read && m.Put != Push:
		return fmt.Errorf("PUT transfer mode %q: want read or push", m.Put)
	case m.PutProtocol != 1 && m.PutProtocol != 2:
		return fmt.Errorf("PUT protocol %d: want 1 or 2", m.PutProtocol)
	}
	return nil
}

// Client calls the parameter services of all shards. It is safe for concurrent use.
type Client struct {
	cfg    ClientConfig
	shards []int // ascending; a place is an index into it
	pools  []*lane.Pool
	rails  []string
	id     uint64 // of tokens
	seqs   []atomic.Uint64
	slot   lane.Config
	flying atomic.Int64 // requests of handles
	// patience bounds waits for what handles hold: lanes.waitTimeout.
	patience time.Duration
	turn     atomic.Uint32
	closed   atomic.Bool

	mu     sync.Mutex
	free   []*batch
	tables map[string]*Table
}

// NewClient makes a client of lanes that are there.
func NewClient(ctx context.Context, cfg ClientConfig) (*Client, error) {
	bad := func(format string, args ...any) (*Client, error) {
		return nil, pipeline.Errorf(pipeline.LayerConfig, "tables", pipeline.Nowhere, format, args...)
	}
	d := cfg.Lanes.Set.Deployment
	if err := cfg.Mode.complete(); err != nil {
		return bad("%w", err)
	}
	if !littleEndian() {
		return bad("rows go over the wire as they lie in memory, which must be little-endian")
	}
	if most := d.Lanes.QPs * d.Lanes.Slots; cfg.Depth == 0 {
		cfg.Depth = most
	} else if cfg.Depth < 1 || cfg.Depth > most {
		return bad("lanes.asyncDepth %d: %d QPs of %d slots to a shard can have 1 to %d requests in flight; raise lanes.slotsPerQP, or lower lanes.asyncDepth",
			cfg.Depth, d.Lanes.QPs, d.Lanes.Slots, most)
	}
	cfg.Attempts = max(cfg.Attempts, 1)
	lc, err := lanes.ConfigOf(ctx, d)
	if err != nil {
		return nil, err
	}
	if lc.RequestBytes < MinSlot || lc.ResponseBytes < MinSlot {
		return bad("slots of %d and %d bytes: requests and answers about tables have up to %d; raise lanes.requestBytes or lanes.responseBytes",
			d.Lanes.RequestBytes, d.Lanes.ResponseBytes, MinSlot)
	}
	if cfg.Staging == nil && cfg.Mode.Get == DirectSG {
		return bad("direct_sg needs registered memory for rows")
	}
	c := &Client{cfg: cfg, slot: lc, patience: lc.WaitTimeout, id: rand.Uint64() | 1, tables: map[string]*Table{}}
	if c.patience <= 0 {
		c.patience = time.Minute
	}
	for i := range d.Shards {
		c.shards = append(c.shards, d.Shards[i].ID)
	}
	slices.Sort(c.shards)
	c.seqs = make([]atomic.Uint64, len(c.shards))
	for _, id := range c.shards {
		c.pools = append(c.pools, cfg.Lanes.Pool(id))
	}
	for _, r := range cfg.Lanes.Set.Rails {
		c.rails = append(c.rails, r.Name())
	}
	return c, nil
}

// MinSlot is what a lane's slots must carry for this protocol.
const MinSlot = headerBytes + stepHead + 2*maxSnapshot

// Shards are the deployment's, ascending: ShardOf gives an index into them.
func (c *Client) Shards() []int { return slices.Clone(c.shards) }

// InFlight is how many requests of handles are under way.
func (c *Client) InFlight() int { return int(c.flying.Load()) }

// Close tells the shards that no token of this client comes any more. Handles must have
// been waited for. Lanes and staging stay their owners'.
func (c *Client) Close(ctx context.Context) error {
	if c.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	// Where it does not get through, the shard remembers some bytes in vain.
	_, _ = pipeline.Each(ctx, c.places(), func(ctx context.Context, place int) (struct{}, error) {
		if c.seqs[place].Load() > 0 {
			r := request{client: c.id}
			_, _ = c.call(ctx, place, OpForget, &r, nil, nil)
		}
		return struct{}{}, nil
	})
	return nil
}

func (c *Client) places() []int {
	out := make([]int, len(c.shards))
	for i := range out {
		out[i] = i
	}
	return out
}

// call is one request that is no batch: a request with a body, and what becomes of the
// answer. It is not for the hot path.
func (c *Client) call(ctx context.Context, place int, op uint16, r *request, body []byte, use func(*response, []byte) error) (rsp response, err error) {
	var failed error
	_, err = c.roundTrip(ctx, place, lane.Request{Op: op, Fill: func(dst []byte) int {
		r.put(dst)
		return headerBytes + copy(dst[headerBytes:], body)
	}}, func(st lane.Response, b []byte) error {
		if st.Status != lane.StatusOK {
			_, failed = answered(st.Status, b)
			return nil
		}
		var rest []byte
		if rest, failed = rsp.parse(b); failed == nil && use != nil {
			failed = use(&rsp, rest)
		}
		return nil
	})
	if err != nil {
		return rsp, lanes.WrapError(err, pipeline.LayerDevice, opName(op), pipeline.AtShard(c.shards[place]))
	}
	if failed != nil {
		return rsp, pipeline.Wrap(failed, pipeline.LayerService, opName(op), pipeline.AtShard(c.shards[place]))
	}
	return rsp, nil
}

func (c *Client) roundTrip(ctx context.Context, place int, r lane.Request, use func(lane.Response, []byte) error) (lane.Response, error) {
	t, err := c.pools[place].Start(ctx, r)
	if err != nil {
		return lane.Response{}, err
	}
	return t.View(ctx, use)
}

// place is the index of a shard.
func (c *Client) place(shard int) (int, error) {
	i, ok := slices.BinarySearch(c.shards, shard)
	if !ok {
		return 0, pipeline.Errorf(pipeline.LayerUsage, "tables", pipeline.Nowhere, "the deployment has no shard %d", shard)
	}
	return i, nil
}

// everywhere calls f for all shards at once and gives their errors, joined.
func (c *Client) everywhere(ctx context.Context, f func(ctx context.Context, place int) error) error {
	if c.closed.Load() {
		return ErrClosed
	}
	// One shard's error must not stop the others half-way.
	errs, err := pipeline.Each(ctx, c.places(), func(ctx context.Context, place int) (error, error) { return f(ctx, place), nil })
	return errors.Join(err, errors.Join(errs...))
}

// Init makes a table on every shard that has none of that name. One that is there with
// another shape is an error (ErrShape), and then other shards may have got it.
func (c *Client) Init(ctx context.Context, spec table.Spec) error {
	var body [specBytes]byte
	if err := putSpec(body[:], &spec); err != nil {
		return pipeline.Wrap(err, pipeline.LayerUsage, "init", pipeline.Nowhere)
	}
	// Shards check it, too; here it is told once, and as the caller's mistake.
	if err := spec.Check(); err != nil {
		return pipeline.Errorf(pipeline.LayerUsage, "init", pipeline.Nowhere, "%w: %w", ErrBadRequest, err)
	}
	return c.everywhere(ctx, func(ctx context.Context, place int) error {
		var r request
		r.setName(spec.Name)
		_, err := c.call(ctx, place, OpInit, &r, body[:], nil)
		return err
	})
}

// Drop removes a table from every shard, and reports whether one had it.
func (c *Client) Drop(ctx context.Context, name string) (had bool, err error) {
	c.forget(name)
	if len(name) > maxName {
		return false, nil
	}
	var some atomic.Bool
	err = c.everywhere(ctx, func(ctx context.Context, place int) error {
		var r request
		r.setName(name)
		rsp, err := c.call(ctx, place, OpDrop, &r, nil, nil)
		if rsp.count > 0 {
			some.Store(true)
		}
		return err
	})
	return some.Load(), err
}

// Tables lists the tables of all shards by name.
func (c *Client) Tables(ctx context.Context) ([]TableInfo, error) {
	var mu sync.Mutex
	found := map[string]*TableInfo{}
	err := c.everywhere(ctx, func(ctx context.Context, place int) error {
		for after, more := "", true; more; {
			var infos []TableInfo
			var err error
			if infos, more, err = c.page(ctx, place, after, 0); err != nil {
				return err
			}
			mu.Lock()
			for _, in := range infos {
				t, ok := found[in.Spec.Name]
				if !ok {
					t = &TableInfo{Spec: in.Spec}
					found[in.Spec.Name] = t
				}
				t.Rows += in.Rows
				t.Bytes += in.Bytes
				t.Shards = append(t.Shards, c.shards[place])
				after = in.Spec.Name
			}
			mu.Unlock()
			more = more && len(infos) > 0
		}
		return nil
	})
	out := make([]TableInfo, 0, len(found))
	for _, t := range found {
		slices.Sort(t.Shards)
		out = append(out, *t)
	}
	slices.SortFunc(out, func(a, b TableInfo) int {
		if a.Spec.Name < b.Spec.Name {
			return -1
		}
		return 1
	})
	return out, err
}

// forget makes the next Table ask again.
func (c *Client) forget(name string) {
	c.mu.Lock()
	delete(c.tables, name)
	c.mu.Unlock()
}

func (c *Client) page(ctx context.Context, place int, name string, flags uint16) (infos []TableInfo, more bool, err error) {
	r := request{flags: flags}
	r.setName(name)
	rsp, err := c.call(ctx, place, OpTables, &r, nil, func(rsp *response, rest []byte) error {
		if len(rest) != rsp.keys*entryBytes {
			return fmt.Errorf("%w: %d bytes for %d tables", ErrBadResponse, len(rest), rsp.keys)
		}
		for ; len(rest) > 0; rest = rest[entryBytes:] {
			in, err := parseEntry(rest)
			if err != nil {
				return err
			}
			infos = append(infos, in)
		}
		return nil
	})
	return infos, rsp.flags&respMore != 0, err
}

// Table asks the shards for a table's shape, which must be the same everywhere, and gives
// the handle for its rows. Shards that do not answer are left out, unless none does.
func (c *Client) Table(ctx context.Context, name string) (*Table, error) {
	c.mu.Lock()
	t := c.tables[name]
	c.mu.Unlock()
	if t != nil {
		return t, nil
	}
	if len(name) > maxName || name == "" {
		return nil, pipeline.Errorf(pipeline.LayerUsage, "table", pipeline.Nowhere, "%w: %q", ErrNoTable, name)
	}
	specs := make([]*table.Spec, len(c.shards))
	err := c.everywhere(ctx, func(ctx context.Context, place int) error {
		infos, _, err := c.page(ctx, place, name, flagExact)
		if err != nil {
			return err
		}
		if len(infos) != 1 || infos[0].Spec.Name != name {
			return fmt.Errorf("%w: asked for table %q", ErrBadResponse, name)
		}
		specs[place] = &infos[0].Spec
		return nil
	})
	var spec *table.Spec
	for i, s := range specs {
		switch {
		case s == nil:
		case spec == nil:
			spec = s
		case *spec != *s:
			return nil, pipeline.Errorf(pipeline.LayerService, "table", pipeline.AtShard(c.shards[i]), "%w: table %q is %+v here and %+v at another shard", ErrShape, name, *s, *spec)
		}
	}
	if spec == nil || errors.Is(err, ErrNoTable) {
		return nil, err
	}
	t = &Table{c: c, spec: *spec, only: -1}
	c.mu.Lock()
	c.tables[name] = t
	c.mu.Unlock()
	return t, nil
}

// Stats asks a shard.
func (c *Client) Stats(ctx context.Context, shard int) (Stats, error) {
	var st Stats
	place, err := c.place(shard)
	if err != nil {
		return st, err
	}
	_, err = c.call(ctx, place, OpStats, new(request), nil, func(_ *response, rest []byte) error {
		return st.decode(rest)
	})
	return st, err
}

// Flush returns when every shard has ended what it began to serve before.
func (c *Client) Flush(ctx context.Context) error {
	return c.everywhere(ctx, func(ctx context.Context, place int) error {
		_, err := c.call(ctx, place, OpBarrier, new(request), nil, nil)
		return err
	})
}

// Barrier flushes and then waits until n members of the deployment have come to the
// barrier of that name. Handles that were not waited for may be on either side of it.
func (c *Client) Barrier(ctx context.Context, name string, n int) error {
	if err := c.Flush(ctx); err != nil {
		return err
	}
	return c.cfg.Lanes.Control.Barrier(ctx, name, n)
}

// memoryAccess is what shards may do with staging.
const memoryAccess = verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead

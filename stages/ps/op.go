package ps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/table"
)

// Op is the op layer: a client that is configured by environment variables only and
// whose asynchronous calls give numbers. It connects at the first call that has keys. It
// is safe for concurrent use; who waits for a number is one goroutine.
type Op struct {
	env Env
	cfg EnvConfig

	connecting sync.Mutex // held while connecting, and by Close

	mu       sync.Mutex
	session  *Session
	closed   bool
	last     uint64
	gets     map[uint64]Handle
	updates  map[uint64]Handle
	fetches  map[uint64]*fetch
	barriers int
}

// fetch is a prefetch, and its rows once somebody has waited for them.
type fetch struct {
	p     Prefetch
	rows  []float32
	found []bool
	taken bool
	err   error
}

// FromEnv reads the environment. Nothing is connected yet.
func FromEnv(cfg EnvConfig) (*Op, error) {
	environ := cfg.Environ
	if environ == nil {
		environ = os.Environ()
	}
	env, err := ParseEnv(environ)
	if err != nil {
		return nil, err
	}
	return &Op{env: env, cfg: cfg, gets: map[uint64]Handle{}, updates: map[uint64]Handle{}, fetches: map[uint64]*fetch{}}, nil
}

// Env is what the environment said.
func (o *Op) Env() Env { return o.env }

// Session connects, if nothing has yet.
func (o *Op) Session(ctx context.Context) (*Session, error) {
	if s, err := o.connected(); s != nil || err != nil {
		return s, err
	}
	o.connecting.Lock()
	defer o.connecting.Unlock()
	if s, err := o.connected(); s != nil || err != nil {
		return s, err
	}
	sc, err := o.env.session(&o.cfg)
	if err != nil {
		return nil, err
	}
	if limit := o.env.ControlTimeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: %sCONTROL_PLANE_TIMEOUT_MS=%d", context.DeadlineExceeded, family, limit.Milliseconds()))
		defer cancel()
	}
	s, err := OpenSession(ctx, sc)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	o.session = s
	o.mu.Unlock()
	return s, nil
}

func (o *Op) connected() (*Session, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, ErrClosed
	}
	return o.session, nil
}

func (o *Op) table(ctx context.Context, name string) (*Table, error) {
	s, err := o.Session(ctx)
	if err != nil {
		return nil, err
	}
	return s.Table(ctx, name)
}

// InitTable makes a table on every shard that has none of that name.
func (o *Op) InitTable(ctx context.Context, spec table.Spec) error {
	s, err := o.Session(ctx)
	if err != nil {
		return err
	}
	return s.Init(ctx, spec)
}

func (o *Op) do(ctx context.Context, name string, keys []uint64, f func(*Table) error) error {
	if len(keys) == 0 {
		return nil
	}
	t, err := o.table(ctx, name)
	if err != nil {
		return err
	}
	return f(t)
}

// Read is Table.Get. Without keys it does nothing, and does not connect; so do Write,
// Update and Delete.
func (o *Op) Read(ctx context.Context, name string, keys []uint64, out []float32) error {
	return o.do(ctx, name, keys, func(t *Table) error { return t.Get(ctx, keys, out, nil) })
}

// Write is Table.Put.
func (o *Op) Write(ctx context.Context, name string, keys []uint64, rows []float32) error {
	return o.do(ctx, name, keys, func(t *Table) error { return t.Put(ctx, keys, rows) })
}

// Update is Table.Update.
func (o *Op) Update(ctx context.Context, name string, keys []uint64, grads []float32) error {
	return o.do(ctx, name, keys, func(t *Table) error { return t.Update(ctx, keys, grads) })
}

// Exists is Table.Exists.
func (o *Op) Exists(ctx context.Context, name string, keys []uint64, found []bool) error {
	return o.do(ctx, name, keys, func(t *Table) error { return t.Exists(ctx, keys, found) })
}

// Delete is Table.Delete.
func (o *Op) Delete(ctx context.Context, name string, keys []uint64) (n int, err error) {
	err = o.do(ctx, name, keys, func(t *Table) (err error) {
		n, err = t.Delete(ctx, keys)
		return err
	})
	return n, err
}

// launch begins an asynchronous call and gives its number.
func launch[H any](ctx context.Context, o *Op, op, name string, keys []uint64, to map[uint64]H, f func(*Table) (H, error)) (uint64, error) {
	if len(keys) == 0 {
		return 0, pipeline.Errorf(pipeline.LayerUsage, op, pipeline.Nowhere, "%w: no keys", ErrBadRequest)
	}
	t, err := o.table(ctx, name)
	if err != nil {
		return 0, err
	}
	h, err := f(t)
	if err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last++
	to[o.last] = h
	return o.last, nil
}

// claim takes a number, once.
func claim[H any](o *Op, op string, id uint64, from map[uint64]H) (H, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	h, ok := from[id]
	if !ok {
		return h, pipeline.Errorf(pipeline.LayerUsage, op, pipeline.Nowhere, "%w: %d is unknown, or was consumed", ErrHandleUsed, id)
	}
	delete(from, id)
	return h, nil
}

// AsyncGet begins a Read; out is filled when WaitGet has returned.
func (o *Op) AsyncGet(ctx context.Context, name string, keys []uint64, out []float32) (uint64, error) {
	return launch(ctx, o, "async get", name, keys, o.gets, func(t *Table) (Handle, error) { return t.StartGet(ctx, keys, out, nil) })
}

// WaitGet ends an AsyncGet, once.
func (o *Op) WaitGet(ctx context.Context, id uint64) error {
	h, err := claim(o, "wait get", id, o.gets)
	if err != nil {
		return err
	}
	return h.Wait(ctx)
}

// SubmitUpdate begins an Update.
func (o *Op) SubmitUpdate(ctx context.Context, name string, keys []uint64, grads []float32) (uint64, error) {
	return launch(ctx, o, "submit update", name, keys, o.updates, func(t *Table) (Handle, error) { return t.StartUpdate(ctx, keys, grads) })
}

// WaitUpdate ends a SubmitUpdate, once.
func (o *Op) WaitUpdate(ctx context.Context, id uint64) error {
	h, err := claim(o, "wait update", id, o.updates)
	if err != nil {
		return err
	}
	return h.Wait(ctx)
}

// Prefetch asks for rows that are taken later.
func (o *Op) Prefetch(ctx context.Context, name string, keys []uint64) (uint64, error) {
	return launch(ctx, o, "prefetch", name, keys, o.fetches, func(t *Table) (*fetch, error) {
		p, err := t.Prefetch(ctx, keys)
		return &fetch{p: p}, err
	})
}

// IsPrefetchDone reports whether GetPrefetchResult would not wait. Of a number that is
// unknown or was consumed it is false.
func (o *Op) IsPrefetchDone(id uint64) bool {
	o.mu.Lock()
	f := o.fetches[id]
	o.mu.Unlock()
	return f != nil && (f.taken || f.p.Ready())
}

// WaitForPrefetch waits until the rows are there. GetPrefetchResult, which waits, too,
// spares the copy that this makes.
func (o *Op) WaitForPrefetch(ctx context.Context, id uint64) error {
	f, err := claim(o, "wait for prefetch", id, o.fetches)
	if err != nil {
		return err
	}
	if !f.taken {
		f.rows, f.found = make([]float32, f.p.keys*f.p.dim), make([]bool, f.p.keys)
		f.err, f.taken = f.p.Take(ctx, f.rows, f.found), true
	}
	o.mu.Lock()
	o.fetches[id] = f
	o.mu.Unlock()
	return f.err
}

// GetPrefetchResult gives the rows, once. found may be nil. Slices of the wrong length
// are refused, and then the prefetch is as it was.
func (o *Op) GetPrefetchResult(ctx context.Context, id uint64, out []float32, found []bool) error {
	f, err := claim(o, "get prefetch result", id, o.fetches)
	if err != nil {
		return err
	}
	if len(out) != f.p.keys*f.p.dim || found != nil && len(found) != f.p.keys {
		o.mu.Lock()
		o.fetches[id] = f
		o.mu.Unlock()
		return pipeline.Errorf(pipeline.LayerUsage, "get prefetch result", pipeline.Nowhere, "%w: %d floats for %d keys of %d", ErrShape, len(out), f.p.keys, f.p.dim)
	}
	if !f.taken {
		return f.p.Take(ctx, out, found)
	}
	copy(out, f.rows)
	copy(found, f.found)
	return f.err
}

// Command is something that concerns all shards.
type Command uint8

// CommandBarrier waits until every client process has given it as often as this one.
const CommandBarrier Command = 1

// Command carries a command out.
func (o *Op) Command(ctx context.Context, c Command) error {
	if c != CommandBarrier {
		return pipeline.Errorf(pipeline.LayerUsage, "command", pipeline.Nowhere, "%w: command %d", ErrBadRequest, c)
	}
	s, err := o.Session(ctx)
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.barriers++
	name := fmt.Sprintf("op/%d", o.barriers)
	o.mu.Unlock()
	return s.Barrier(ctx, name, o.env.Clients)
}

// Close ends the connection. What was begun and not waited for is given up.
func (o *Op) Close(ctx context.Context) error {
	o.connecting.Lock()
	defer o.connecting.Unlock()
	o.mu.Lock()
	s := o.session
	o.session, o.closed = nil, true
	var left []Handle
	for _, m := range []map[uint64]Handle{o.gets, o.updates} {
		for id, h := range m {
			left = append(left, h)
			delete(m, id)
		}
	}
	for id, f := range o.fetches {
		if !f.taken {
			left = append(left, f.p.h)
		}
		delete(o.fetches, id)
	}
	o.mu.Unlock()
	for _, h := range left {
		Prefetch{h: h}.Drop()
	}
	if s == nil {
		return nil
	}
	return s.Close(ctx)
}

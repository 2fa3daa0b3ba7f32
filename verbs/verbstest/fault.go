package verbstest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/railstore/railstore/verbs"
)

// Fault is a provider around another one that fails, delays or loses what a test
// says. Ops are named as in verbs.Error.Op, except that modify_qp is told apart
// by its target: modify_init, modify_rtr, modify_rts, modify_err.
type Fault struct {
	verbs.Driver

	mu    sync.Mutex
	calls map[string]int
	order []string // every op so far, when recording
	rules []*faultRule
	drop  func(verbs.WC) bool
	live  map[any]string
	keep  bool
	only  int // FailEach: the global call number to fail, from 1
	count int
	hit   string
}

type faultRule struct {
	op    string
	from  int // the first call that it is about, counted from 1
	times int // how many calls; 0: all from there on
	err   error
	delay time.Duration
}

// NewFault wraps d.
func NewFault(d verbs.Driver) *Fault {
	f := &Fault{calls: map[string]int{}, live: map[any]string{}}
	f.Driver = &wrapped{d: d, w: f}
	return f
}

// Fail makes the nth call of op from now on (1 is the next) and the times-1
// after it return err; times 0 is for ever. An errno becomes a *verbs.Error of
// kind ErrDevice that unwraps to it.
func (f *Fault) Fail(op string, nth, times int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &faultRule{op: op, from: f.calls[op] + nth, times: times, err: err})
}

// Delay makes every call of op take d longer.
func (f *Fault) Delay(op string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &faultRule{op: op, delay: d})
}

// DropCompletions loses the completions for which drop holds; nil ends it.
func (f *Fault) DropCompletions(drop func(verbs.WC) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop = drop
}

// Clear forgets every fault.
func (f *Fault) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules, f.drop = nil, nil
}

// Calls is how often op was called.
func (f *Fault) Calls(op string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Live lists the open handles by kind, as in "2 QP".
func (f *Fault) Live() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := map[string]int{}
	for _, kind := range f.live {
		n[kind]++
	}
	var out []string
	for _, kind := range slices.Sorted(maps.Keys(n)) {
		out = append(out, fmt.Sprintf("%d %s", n[kind], kind))
	}
	return out
}

// acquiring are the ops that FailEach fails; closing must always work.
var acquiring = map[string]bool{"open_device": true, "query_device": true, "query_port": true, "query_gid": true, "query_pkey": true,
	"alloc_pd": true, "create_cq": true, "reg_mr": true, "create_qp": true, "modify_init": true, "modify_rtr": true, "modify_rts": true,
	"post_send": true, "post_recv": true, "req_notify_cq": true}

func (f *Fault) before(op string) error {
	f.mu.Lock()
	f.calls[op]++
	n := f.calls[op]
	if f.keep && acquiring[op] {
		f.order = append(f.order, op)
	}
	var delay time.Duration
	var err error
	if acquiring[op] {
		if f.count++; f.count == f.only {
			f.hit, err = op, syscall.EIO
		}
	}
	for _, r := range f.rules {
		if r.op != op {
			continue
		}
		delay += r.delay
		if r.err != nil && n >= r.from && (r.times == 0 || n < r.from+r.times) {
			err = r.err
		}
	}
	f.mu.Unlock()
	if delay > 0 {
		<-time.After(delay)
	}
	if err == nil {
		return nil
	}
	var ve *verbs.Error
	if errors.As(err, &ve) {
		return err
	}
	return &verbs.Error{Kind: verbs.ErrDevice, Err: err}
}

func (f *Fault) opened(kind string, h any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live[h] = kind
}

func (f *Fault) closed(h any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.live, h)
}

func (f *Fault) polled(wcs []verbs.WC) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.drop == nil {
		return len(wcs)
	}
	n := 0
	for _, wc := range wcs {
		if !f.drop(wc) {
			wcs[n] = wc
			n++
		}
	}
	return n
}

// FailEach runs a piece of code that opens things on a driver, uses them and
// closes them: once as it is, then once for each verb call it made, with that
// call failing by EIO. Every failed run must return an error that is EIO, and no
// run may leave a handle open. make gives a fresh driver for each run.
func FailEach(t *testing.T, fresh func() verbs.Driver, run func(d verbs.Driver) error) {
	t.Helper()
	f := NewFault(fresh())
	f.keep = true
	if err := run(f); err != nil {
		t.Fatalf("without any fault: %v", err)
	}
	if live := f.Live(); len(live) > 0 {
		t.Fatalf("without any fault: left open: %v", live)
	}
	if len(f.order) == 0 {
		t.Fatal("no verb was called")
	}
	for i, op := range f.order {
		f := NewFault(fresh())
		f.only = i + 1
		err := run(f)
		if live := f.Live(); len(live) > 0 {
			t.Errorf("call %d (%s) failed: left open: %v", i+1, op, live)
		}
		// Calls of several goroutines may come in another order, or fewer.
		if f.hit != "" && !errors.Is(err, syscall.EIO) {
			t.Errorf("call %d (%s) failed with EIO, the error was: %v", i+1, f.hit, err)
		}
	}
}

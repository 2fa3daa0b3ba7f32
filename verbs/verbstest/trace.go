package verbstest

import (
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/railstore/railstore/verbs"
)

// trace remembers where each open handle was created.
type trace struct {
	mu   sync.Mutex
	live map[any]traced
}

type traced struct {
	kind  string
	stack []uintptr
}

// Trace wraps a driver. At the end of the test each handle that is still open is
// an error, with the stack that created it. Cleanups registered after the call
// run before that check.
func Trace(tb testing.TB, d verbs.Driver) verbs.Driver {
	tb.Helper()
	t := &trace{live: map[any]traced{}}
	tb.Cleanup(func() {
		for _, msg := range t.report() {
			tb.Error(msg)
		}
	})
	return &wrapped{d: d, w: t}
}

func (t *trace) before(string) error       { return nil }
func (t *trace) polled(wcs []verbs.WC) int { return len(wcs) }

func (t *trace) opened(kind string, h any) {
	pcs := make([]uintptr, 24)
	pcs = pcs[:runtime.Callers(3, pcs)]
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live[h] = traced{kind, pcs}
}

func (t *trace) closed(h any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.live, h)
}

func (t *trace) report() (out []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, v := range t.live {
		var b strings.Builder
		b.WriteString(v.kind + " left open, created by:")
		frames := runtime.CallersFrames(v.stack)
		for {
			f, more := frames.Next()
			b.WriteString("\n\t" + f.Function + "\n\t\t" + f.File + ":" + strconv.Itoa(f.Line))
			if !more {
				break
			}
		}
		out = append(out, b.String())
	}
	return out
}

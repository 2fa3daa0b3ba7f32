package cmd

import (
	"io"
	"sync"

	"github.com/railstore/railstore/pipeline"
)

// resultWriter is standard output. It remembers that something could not be
// written, so that no command need ask after every line: a full disk behind a
// redirection must not look like a success.
type resultWriter struct {
	w   io.Writer
	mu  sync.Mutex
	err error
}

func (r *resultWriter) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return 0, r.err
	}
	n, err := r.w.Write(b)
	r.err = pipeline.Wrap(err, pipeline.LayerStorage, "output", pipeline.Nowhere)
	return n, r.err
}

// failed is the first error, or nil.
func (r *resultWriter) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

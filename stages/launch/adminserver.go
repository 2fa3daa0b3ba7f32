package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// Bounds of what a caller can make a process do.
const (
	adminConns  = 16       // connections at once; more are closed
	adminBody   = 64 << 10 // bytes of a request
	adminHeader = 8 << 10  // bytes of its header
	adminRead   = 5 * time.Second
	adminWrite  = 30 * time.Second
	adminIdle   = 5 * time.Second
)

// Process is who answers on an admin socket.
type Process struct {
	ID      string    `json:"id"`    // as the control plane knows it: shard/0, client/c0-123-4f6a
	Shard   int       `json:"shard"` // -1: a client
	Host    string    `json:"host"`
	PID     int       `json:"pid"`
	Command string    `json:"command"` // serve, read, put
	Started time.Time `json:"started"`
	Version string    `json:"version"`
}

// Admin is what a process shows and lets be steered over its admin socket. What a
// function returns becomes JSON. A nil one is not there. They are called from the
// server's goroutines, several at once.
type Admin struct {
	Process     Process
	Lanes       func() any
	Profile     func() any
	Faults      func(rail string) (any, error)
	AddFault    func(rail string, fault []byte) (any, error) // no rail: all that can
	ClearFaults func(rail string, ids []int) (any, error)    // no rail: all; no ids: all
	Metrics     http.Handler
	// More are answers by pattern, as in "GET /v1/directories".
	More map[string]func(q url.Values, body []byte) (any, error)
}

// AdminServer answers on the socket until Close.
type AdminServer struct {
	path  string // to remove, or empty
	srv   *http.Server
	l     *adminListener
	conns sync.WaitGroup
	done  chan struct{}
	once  sync.Once
	err   error
}

// OpenAdmin listens in the folder. A shard must hold its claim.
func (f Folder) OpenAdmin(ctx context.Context, a Admin) (*AdminServer, error) {
	where := pipeline.Nowhere
	path := f.shardSocket(a.Process.Shard)
	if a.Process.Shard < 0 {
		var err error
		if path, err = f.clientSocket(); err != nil {
			return nil, pipeline.Errorf(pipeline.LayerProcess, "admin", where, "%w", err)
		}
	} else {
		where = pipeline.AtShard(a.Process.Shard)
	}
	l, err := listenSocket(ctx, path)
	if err != nil {
		return nil, pipeline.Errorf(pipeline.LayerProcess, "admin", where, "socket %s: %w", path, err)
	}
	return serveAdmin(l, path, a.routes()), nil
}

// ListenMetrics serves the metrics, and nothing else, at a TCP address.
func ListenMetrics(ctx context.Context, address string, metrics http.Handler) (*AdminServer, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, pipeline.Errorf(pipeline.LayerProcess, "metrics", pipeline.Nowhere, "%s: %w", address, err).
			WithHint("another process listens there, or it is not an address of this host: choose another shards[].metrics")
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", metrics)
	return serveAdmin(l, "", mux), nil
}

// Addr is where the server listens.
func (s *AdminServer) Addr() string { return s.l.Addr().String() }

func serveAdmin(l net.Listener, path string, h http.Handler) *AdminServer {
	s := &AdminServer{path: path, done: make(chan struct{})}
	s.l = &adminListener{Listener: l, free: make(chan struct{}, adminConns), closed: make(chan struct{})}
	s.srv = &http.Server{Handler: guarded(h), ReadHeaderTimeout: adminRead, ReadTimeout: adminRead, WriteTimeout: adminWrite,
		IdleTimeout: adminIdle, MaxHeaderBytes: adminHeader,
		// Connections are counted: Close waits for the goroutine of each.
		ConnState: func(_ net.Conn, st http.ConnState) {
			switch st {
			case http.StateNew:
				s.conns.Add(1)
			case http.StateClosed, http.StateHijacked:
				s.conns.Done()
			}
		}}
	go s.run()
	return s
}

func (s *AdminServer) run() {
	defer close(s.done)
	_ = s.srv.Serve(s.l) // ends with Close only
}

// Close removes the socket, ends what is being answered and waits for it. It is
// idempotent.
func (s *AdminServer) Close() error {
	s.once.Do(func() {
		if s.path != "" {
			s.err = removeIfThere(s.path)
		}
		close(s.l.closed)
		s.err = errors.Join(s.err, s.srv.Close())
	})
	<-s.done
	s.conns.Wait()
	return s.err
}

// adminListener closes connections that are too many, and is never at the end of
// its wits: the server would say so on standard error, which is not its own.
type adminListener struct {
	net.Listener
	free   chan struct{} // full when no connection is
	closed chan struct{}
}

func (l *adminListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err == nil {
			select {
			case l.free <- struct{}{}:
				return &adminConn{Conn: c, l: l}, nil
			default:
				_ = c.Close()
				continue
			}
		}
		if errors.Is(err, net.ErrClosed) {
			return nil, err
		}
		t := time.NewTimer(100 * time.Millisecond) // out of descriptors, as a rule
		select {
		case <-l.closed:
			t.Stop()
			return nil, net.ErrClosed
		case <-t.C:
		}
	}
}

type adminConn struct {
	net.Conn
	l    *adminListener
	once sync.Once
}

func (c *adminConn) Close() error {
	c.once.Do(func() { <-c.l.free })
	return c.Conn.Close()
}

// guarded bounds the body and makes an answer of a panic.
func guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if p := recover(); p != nil {
				replyError(w, pipeline.Errorf(pipeline.LayerInternal, "admin", pipeline.Nowhere, "panic: %v", p))
			}
		}()
		r.Body = http.MaxBytesReader(w, r.Body, adminBody)
		h.ServeHTTP(w, r)
	})
}

func (a Admin) routes() http.Handler {
	mux := http.NewServeMux()
	if a.Process.PID == 0 {
		a.Process.PID = os.Getpid()
	}
	mux.HandleFunc("GET /v1/process", func(w http.ResponseWriter, _ *http.Request) { reply(w, a.Process, nil) })
	if a.Lanes != nil {
		mux.HandleFunc("GET /v1/lanes", func(w http.ResponseWriter, _ *http.Request) { reply(w, a.Lanes(), nil) })
	}
	if a.Profile != nil {
		mux.HandleFunc("GET /v1/profile", func(w http.ResponseWriter, _ *http.Request) { reply(w, a.Profile(), nil) })
	}
	if a.Faults != nil {
		mux.HandleFunc("GET /v1/faults", func(w http.ResponseWriter, r *http.Request) {
			v, err := a.Faults(r.URL.Query().Get("rail"))
			reply(w, v, err)
		})
	}
	if a.AddFault != nil {
		mux.HandleFunc("POST /v1/faults", func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				replyError(w, pipeline.Errorf(pipeline.LayerUsage, "admin", pipeline.Nowhere, "request: %w", err))
				return
			}
			v, err := a.AddFault(r.URL.Query().Get("rail"), b)
			reply(w, v, err)
		})
	}
	if a.ClearFaults != nil {
		mux.HandleFunc("DELETE /v1/faults", func(w http.ResponseWriter, r *http.Request) {
			var ids []int
			for _, s := range r.URL.Query()["id"] {
				n, err := strconv.Atoi(s)
				if err != nil || n < 0 {
					replyError(w, pipeline.Errorf(pipeline.LayerUsage, "admin", pipeline.Nowhere, "id %q: want the id of a fault", shorten(s)))
					return
				}
				ids = append(ids, n)
			}
			v, err := a.ClearFaults(r.URL.Query().Get("rail"), ids)
			reply(w, v, err)
		})
	}
	for pattern, call := range a.More {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				replyError(w, pipeline.Errorf(pipeline.LayerUsage, "admin", pipeline.Nowhere, "request: %w", err))
				return
			}
			v, err := call(r.URL.Query(), b)
			reply(w, v, err)
		})
	}
	if a.Metrics != nil {
		mux.Handle("GET /metrics", a.Metrics)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		replyError(w, pipeline.Errorf(pipeline.LayerUsage, "admin", pipeline.Nowhere, "there is no %s %s", shorten(r.Method), shorten(r.URL.Path)))
	})
	return mux
}

// adminFailure is the form of an error.
type adminFailure struct {
	Error Failure `json:"error"`
}

func reply(w http.ResponseWriter, v any, err error) {
	if err != nil {
		replyError(w, err)
		return
	}
	b, err := json.Marshal(v)
	if err != nil {
		replyError(w, pipeline.Errorf(pipeline.LayerInternal, "admin", pipeline.Nowhere, "%w", err))
		return
	}
	write(w, http.StatusOK, b)
}

func replyError(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	var pe *pipeline.Error
	if errors.As(err, &pe) && (pe.Layer == pipeline.LayerUsage || pe.Layer == pipeline.LayerConfig) {
		code = http.StatusBadRequest
	}
	b, merr := json.Marshal(adminFailure{FailureOf(err)})
	if merr != nil {
		b = fmt.Appendf(nil, `{"error":{"layer":%q,"op":"admin","message":"the error could not be encoded"}}`, pipeline.LayerInternal)
	}
	write(w, code, b)
}

func write(w http.ResponseWriter, code int, b []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(b, '\n')) // a caller that has gone is not our trouble
}

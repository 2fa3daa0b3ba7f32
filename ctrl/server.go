package ctrl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/railstore/railstore/ctrl/internal/pb"
)

// ServerConfig is what a Server is made from.
type ServerConfig struct {
	Address  string // host:port; port 0 takes a free one
	Identity Identity
	Shards   []int // ids of the deployment
	Timing   Timing
	Store    Store // of the catalog, stays the caller's; nil: one in memory
	TLS      *TLSFiles
	// Insecure allows an address that others can reach without TLS.
	Insecure bool
	// Local is the node whose state the health service reports for this
	// process; empty is shard/0.
	Local NodeID
}

// AddressInUseError says that something else listens on the control plane's
// address.
type AddressInUseError struct {
	Address string
	Err     error
}

func (e *AddressInUseError) Error() string {
	return fmt.Sprintf("control plane %s: the address is in use", e.Address)
}
func (e *AddressInUseError) Unwrap() error { return e.Err }

// Hint says what to do about it.
func (e *AddressInUseError) Hint() string {
	return "another deployment or program listens there: stop it, or choose another control.port"
}

// InsecureError says that the control plane would be open to the network.
type InsecureError struct{ Address string }

func (e *InsecureError) Error() string {
	return fmt.Sprintf("control plane %s: not a loopback address, and TLS is not configured", e.Address)
}

// Hint says what to do about it.
func (e *InsecureError) Hint() string {
	return "set control.tls, or control.insecure: true if everybody on that network may read and change this deployment"
}

// Server is a control plane that runs.
type Server struct {
	cfg     ServerConfig
	catalog *Catalog
	lis     net.Listener
	grpc    *grpc.Server
	health  *health.Server
	done    chan struct{} // closed by Close: ends streams, waits and the ticker
	served  chan struct{} // closed when the accept loop has ended
	wg      sync.WaitGroup
	once    sync.Once

	mu       sync.Mutex
	reg      *Registry
	changed  chan struct{} // closed and replaced at every change of the registry
	watchers map[NodeID]*watcher
	healthy  map[string]healthpb.HealthCheckResponse_ServingStatus
}

// NewServer listens and serves until Close.
func NewServer(cfg ServerConfig) (*Server, error) {
	cfg.Local = cmp.Or(cfg.Local, ShardID(0))
	if cfg.Store == nil {
		cfg.Store = NewMemoryStore()
	}
	host, _, err := net.SplitHostPort(cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("control plane %q: %w", cfg.Address, err)
	}
	if cfg.TLS == nil && !cfg.Insecure && !loopback(host) {
		return nil, &InsecureError{Address: cfg.Address}
	}
	creds, err := cfg.TLS.server()
	if err != nil {
		return nil, fmt.Errorf("control plane %s: %w", cfg.Address, err)
	}
	// The wall clock alone could repeat after it was set back.
	instance := rand.Uint64() | 1
	reg, err := NewRegistry(time.Now(), instance, cfg.Shards, cfg.Timing)
	if err != nil {
		return nil, fmt.Errorf("control plane %s: %w", cfg.Address, err)
	}
	lis, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return nil, &AddressInUseError{Address: cfg.Address, Err: err}
		}
		return nil, fmt.Errorf("control plane %s: %w", cfg.Address, err)
	}
	s := &Server{cfg: cfg, catalog: NewCatalog(cfg.Store, cfg.Shards), lis: lis, health: health.NewServer(),
		done: make(chan struct{}), served: make(chan struct{}), reg: reg, changed: make(chan struct{}),
		watchers: map[NodeID]*watcher{}, healthy: map[string]healthpb.HealthCheckResponse_ServingStatus{}}
	s.grpc = grpc.NewServer(
		grpc.Creds(creds),
		grpc.MaxRecvMsgSize(MaxMessageBytes), grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.MaxConcurrentStreams(1024),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(s.checkUnary),
		grpc.StreamInterceptor(s.checkStream),
	)
	pb.RegisterControlServer(s.grpc, &controlService{s: s})
	pb.RegisterCatalogServer(s.grpc, &catalogService{s: s})
	healthpb.RegisterHealthServer(s.grpc, s.health)
	reflection.Register(s.grpc)
	s.reportHealth()
	s.wg.Add(2)
	go s.run()
	go s.runTicker()
	return s, nil
}

// Addr is the address that it listens on, with the real port.
func (s *Server) Addr() string { return s.lis.Addr().String() }

// Done is closed when the server accepts no more calls, whether Close was called
// or the listener failed.
func (s *Server) Done() <-chan struct{} { return s.served }

// Catalog is the catalog that it serves.
func (s *Server) Catalog() *Catalog { return s.catalog }

// Status is what a client's Status gives.
func (s *Server) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.reg.Status(time.Now())
	st.Deployment, st.Digest, st.Control.Address = s.cfg.Identity.Deployment, s.cfg.Identity.Digest, s.Addr()
	return st
}

// Close ends every stream and call, stops listening and waits for all goroutines.
// The store is not closed.
func (s *Server) Close() error {
	s.once.Do(func() {
		close(s.done)
		s.health.Shutdown()
		// Answers that are on their way get a moment; what is blocked on a
		// peer that does not read does not.
		graceful := make(chan struct{})
		go func() { s.grpc.GracefulStop(); close(graceful) }()
		select {
		case <-graceful:
		case <-time.After(500 * time.Millisecond):
			s.grpc.Stop()
			<-graceful
		}
	})
	s.wg.Wait()
	return nil
}

func (s *Server) run() {
	defer s.wg.Done()
	defer close(s.served)
	_ = s.grpc.Serve(s.lis) // its error is that the listener is gone; Done tells
}

// runTicker lets time pass in the registry.
func (s *Server) runTicker() {
	defer s.wg.Done()
	t := time.NewTicker(min(max(s.reg.Timing().Stale/8, 5*time.Millisecond), 500*time.Millisecond))
	defer t.Stop()
	for {
		select {
		case <-s.done:
			return
		case <-t.C:
			_ = s.change(func(now time.Time) ([]Notice, error) { return s.reg.Expire(now), nil })
		}
	}
}

// change runs one change of the registry, delivers its notices and wakes whoever
// waits.
func (s *Server) change(f func(now time.Time) ([]Notice, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.reg.Rev()
	notices, err := f(time.Now())
	for _, n := range notices {
		if w := s.watchers[n.To]; w != nil && w.inc == n.Inc {
			w.add(n)
		}
	}
	if s.reg.Rev() == before {
		return err
	}
	for id, w := range s.watchers {
		if _, gone := s.reg.get(id, w.inc); gone != nil {
			w.end(gone)
			delete(s.watchers, id)
		}
	}
	close(s.changed)
	s.changed = make(chan struct{})
	s.reportHealth()
	return err
}

// wait calls f under the lock until it reports true, after every change, and for
// d at most. It fails when the call or the server ends.
func (s *Server) wait(ctx context.Context, d time.Duration, f func() (bool, error)) error {
	t := time.NewTimer(min(max(d, 0), maxPoll))
	defer t.Stop()
	for {
		s.mu.Lock()
		ok, err := f()
		changed := s.changed
		s.mu.Unlock()
		if ok || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-s.done:
			return ErrClosed
		}
	}
}

// maxPoll bounds how long a call waits at the server.
const maxPoll = 10 * time.Second

// reportHealth sets the standard health service from the registry: a shard is
// SERVING only when it says so itself and its heartbeats come.
func (s *Server) reportHealth() {
	set := func(service string, ok bool) {
		st := healthpb.HealthCheckResponse_NOT_SERVING
		if ok {
			st = healthpb.HealthCheckResponse_SERVING
		}
		if s.healthy[service] != st {
			s.healthy[service] = st
			s.health.SetServingStatus(service, st)
		}
	}
	for _, id := range s.reg.shards {
		set(string(ShardID(id)), s.reg.stateOf(ShardID(id)) == StateServing)
	}
	set("", s.reg.stateOf(s.cfg.Local) == StateServing)
	set(pb.Control_ServiceDesc.ServiceName, true)
	set(pb.Catalog_ServiceDesc.ServiceName, true)
}

// checkIdentity refuses callers of another deployment, version or epoch.
func (s *Server) checkIdentity(req any) error {
	r, ok := req.(interface{ GetIdentity() *pb.Identity })
	if !ok {
		return nil // health and reflection
	}
	p := r.GetIdentity()
	theirs := Identity{Namespace: p.GetNamespace(), Deployment: p.GetDeployment(), Epoch: p.GetEpoch(), Digest: p.GetDigest()}
	if e := s.cfg.Identity.diff(ProtocolVersion, theirs, p.GetProtocolVersion()); e != nil {
		e.Theirs = clip(e.Theirs, MaxIDBytes) // it goes back in an error
		return e
	}
	return nil
}

func (s *Server) checkUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (reply any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = toStatus(fmt.Errorf("panic in the control plane: %v", r))
		}
	}()
	if err := s.checkIdentity(req); err != nil {
		return nil, toStatus(err)
	}
	reply, err = h(ctx, req)
	return reply, toStatus(err)
}

func (s *Server) checkStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, h grpc.StreamHandler) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = toStatus(fmt.Errorf("panic in the control plane: %v", r))
		}
	}()
	return h(srv, ss)
}

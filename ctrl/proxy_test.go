package ctrl

import (
	"io"
	"net"
	"sync"
	"testing"

	"github.com/railstore/railstore/ctrl/internal/pb"
)

// proxy is a TCP relay that can be cut: connections break and new ones are
// refused at once, until it is mended.
type proxy struct {
	l      net.Listener
	target string
	wg     sync.WaitGroup
	mu     sync.Mutex
	broken bool
	conns  map[net.Conn]bool
}

func newProxy(t *testing.T, target string) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, target: target, conns: map[net.Conn]bool{}}
	p.wg.Go(p.run)
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) run() {
	for {
		a, err := p.l.Accept()
		if err != nil {
			return
		}
		b, err := net.Dial("tcp", p.target)
		p.mu.Lock()
		if err != nil || p.broken {
			_ = a.Close()
			if b != nil {
				_ = b.Close()
			}
			p.mu.Unlock()
			continue
		}
		p.conns[a], p.conns[b] = true, true
		p.mu.Unlock()
		for _, x := range [][2]net.Conn{{a, b}, {b, a}} {
			p.wg.Go(func() {
				_, _ = io.Copy(x[0], x[1])
				_ = a.Close()
				_ = b.Close()
			})
		}
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = true
	for c := range p.conns {
		_ = c.Close()
	}
	clear(p.conns)
}

func (p *proxy) mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken = false
}

func watchRequest(m *pb.Member) *pb.WatchRequest {
	return &pb.WatchRequest{Identity: identityToPB(testIdentity), Member: m}
}

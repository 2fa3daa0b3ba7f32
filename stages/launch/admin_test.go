package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// longFolder is a folder whose sockets do not fit into a socket address.
func longFolder(t *testing.T) Folder {
	t.Helper()
	s, err := NewState(filepath.Join(t.TempDir(), strings.Repeat("deep/", 30)))
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Folder("d")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Create(); err != nil {
		t.Fatal(err)
	}
	return f
}

func openAdmin(t *testing.T, f Folder, a Admin) *AdminServer {
	t.Helper()
	if a.Process.Shard >= 0 {
		c, err := f.Claim(a.Process.Shard, -1, "test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
	s, err := f.OpenAdmin(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// shardAdmin answers in every way there is.
func shardAdmin() Admin {
	return Admin{
		Process: Process{ID: "shard/0", Shard: 0, Command: "serve"},
		Lanes:   func() any { return []int{1, 2, 3} },
		Faults: func(rail string) (any, error) {
			if rail != "" {
				return nil, pipeline.Errorf(pipeline.LayerUsage, "fault", pipeline.AtRail(rail), "no such rail").WithHint("name another")
			}
			return []string{"a"}, nil
		},
		AddFault:    func(rail string, fault []byte) (any, error) { return rail + " " + string(fault), nil },
		ClearFaults: func(rail string, ids []int) (any, error) { return fmt.Sprint(rail, ids), nil },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("panic") {
				panic("of a collector")
			}
			_, _ = io.WriteString(w, "# metrics\n")
		}),
	}
}

func TestAdmin(t *testing.T) {
	for name, f := range map[string]Folder{"short": eventFolder(t), "long": longFolder(t)} {
		t.Run(name, func(t *testing.T) {
			ctx := context.Background()
			s := openAdmin(t, f, shardAdmin())
			openAdmin(t, f, Admin{Process: Process{ID: "client/c", Shard: -1, Command: "read"}})
			openAdmin(t, f, Admin{Process: Process{ID: "client/b", Shard: -1}})
			peers, err := f.Admins(ctx)
			if err != nil || len(peers) != 3 || peers[0].ID != "shard/0" || peers[1].ID != "client/b" || peers[2].Command != "read" {
				t.Fatalf("%+v %v", peers, err)
			}
			p := peers[0]
			if p.PID != os.Getpid() || p.Err != nil || p.Shard != 0 {
				t.Errorf("%+v", p)
			}
			st, err := os.Stat(f.shardSocket(0))
			if err != nil || st.Mode().Perm() != 0o600 || st.Mode().Type() != fs.ModeSocket {
				t.Errorf("%v %v", st.Mode(), err)
			}
			var lanes []int
			if err := p.Ask(ctx, http.MethodGet, "/v1/lanes", nil, &lanes); err != nil || fmt.Sprint(lanes) != "[1 2 3]" {
				t.Errorf("%v %v", lanes, err)
			}
			var said string
			if err := p.Ask(ctx, http.MethodPost, "/v1/faults?rail=r", map[string]int{"x": 1}, &said); err != nil || said != `r {"x":1}` {
				t.Errorf("%q %v", said, err)
			}
			if err := p.Ask(ctx, http.MethodDelete, "/v1/faults?id=1&id=7", nil, &said); err != nil || said != "[1 7]" {
				t.Errorf("%q %v", said, err)
			}
			var raw []byte
			if err := p.Ask(ctx, http.MethodGet, "/metrics", nil, &raw); err != nil || string(raw) != "# metrics\n" {
				t.Errorf("%q %v", raw, err)
			}
			// Errors come back as they were in the process.
			err = p.Ask(ctx, http.MethodGet, "/v1/faults?rail=x", nil, &said)
			var pe *pipeline.Error
			if !errors.As(err, &pe) || pe.Layer != pipeline.LayerUsage || pe.Error() != "fault: shard 0 rail x: no such rail" || pe.Hint != "name another" {
				t.Errorf("%v", err)
			}
			for path, want := range map[string]string{"/v1/nothing": "there is no GET", "/metrics?panic": "panic: of a collector"} {
				if err := p.Ask(ctx, http.MethodGet, path, nil, &said); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %v", path, err)
				}
			}
			if err := p.Ask(ctx, http.MethodDelete, "/v1/faults?id=-1", nil, &said); err == nil || !strings.Contains(err.Error(), `id "-1"`) {
				t.Error(err)
			}
			// What is not wired is not there.
			if err := peers[1].Ask(ctx, http.MethodGet, "/v1/lanes", nil, &lanes); err == nil {
				t.Error("lanes of a process without")
			}
			for range 2 {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
			if _, err := os.Lstat(f.shardSocket(0)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("after Close: %v", err)
			}
			if peers, err = f.Admins(ctx); err != nil || len(peers) != 2 {
				t.Errorf("after Close: %+v %v", peers, err)
			}
		})
	}
}

func TestStaleSocketsAreRemoved(t *testing.T) {
	f := eventFolder(t)
	left := func(path string) {
		t.Helper()
		l, err := listenSocket(context.Background(), path)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil { // the file stays
			t.Fatal(err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Fatal(err)
		}
	}
	dead := []string{f.shardSocket(0), filepath.Join(f.runDir(), "client-1-1-1.sock"), filepath.Join(f.runDir(), "client-4194305-99-3.sock")}
	for _, p := range dead {
		left(p)
	}
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	// Of a process that is there, though it does not answer: about to listen.
	mine := filepath.Join(f.runDir(), fmt.Sprintf("client-%d-%d-999.sock", me.pid, me.start))
	left(mine)
	other := filepath.Join(f.runDir(), "client-x.sock")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	peers, err := f.Admins(context.Background())
	if err != nil || len(peers) != 1 || peers[0].Err == nil || peers[0].PID != me.pid {
		t.Errorf("%+v %v", peers, err)
	}
	for _, p := range dead {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", p, err)
		}
	}
	for _, p := range []string{mine, other} {
		if _, err := os.Lstat(p); err != nil {
			t.Error(err)
		}
	}
	// A shard that comes back takes the name over, also before anybody looked.
	left(f.shardSocket(0))
	openAdmin(t, f, shardAdmin())
	if peers, err = f.Admins(context.Background()); err != nil || peers[0].ID != "shard/0" || peers[0].Err != nil {
		t.Errorf("%+v %v", peers, err)
	}
	if _, err := f.OpenAdmin(context.Background(), shardAdmin()); err == nil {
		t.Error("two processes on one socket")
	}
}

func TestAdminTakesHostileInput(t *testing.T) {
	f := eventFolder(t)
	s := openAdmin(t, f, shardAdmin())
	path := f.shardSocket(0)
	ctx := context.Background()
	dial := func() net.Conn {
		t.Helper()
		c, err := dialSocket(ctx, path)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	for name, text := range map[string]string{
		"garbage":     "\x00\x01\x02\r\n\r\n",
		"header":      "GET /v1/lanes HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 4*adminHeader) + "\r\n\r\n",
		"body":        fmt.Sprintf("POST /v1/faults HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", 2*adminBody, strings.Repeat("x", 2*adminBody)),
		"length":      "POST /v1/faults HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
		"method":      "PUT /v1/faults HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"path":        "GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"http2":       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"bad id":      "DELETE /v1/faults?id=99999999999999999999 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"bad escapes": "GET /v1/faults?rail=%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
	} {
		c := dial()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.WriteString(c, text) }) // it may be closed before all is written
		b, err := io.ReadAll(c)
		_ = c.Close()
		wg.Wait()
		if name == "bad escapes" {
			continue // a query that cannot be read is an empty one
		}
		if strings.HasPrefix(string(b), "HTTP/1.1 200") {
			t.Errorf("%s: %.200q %v", name, b, err)
		}
	}
	// Whoever takes all connections and says nothing keeps others out, but does
	// not make the process grow, and does not keep it from closing.
	var idle []net.Conn
	for range 4 * adminConns {
		idle = append(idle, dial())
	}
	closed := 0
	for _, c := range idle[adminConns:] {
		if _, err := io.ReadAll(c); err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	if closed != 3*adminConns {
		t.Errorf("%d connections closed of %d too many", closed, 3*adminConns)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for _, c := range idle {
		_ = c.Close()
	}
}

func TestAProcessThatDoesNotAnswer(t *testing.T) {
	f := eventFolder(t)
	c, err := f.Claim(0, -1, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	l, err := listenSocket(context.Background(), f.shardSocket(0))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	peers, err := f.Admins(ctx)
	if err != nil || len(peers) != 1 || !errors.Is(peers[0].Err, context.DeadlineExceeded) {
		t.Fatalf("%+v %v", peers, err)
	}
	if s := peers[0].Err.Error(); !strings.HasPrefix(s, "admin: shard 0: shard/0") {
		t.Error(s)
	}
}

func TestListenMetrics(t *testing.T) {
	ctx := context.Background()
	s, err := ListenMetrics(ctx, "127.0.0.1:0", shardAdmin().Metrics)
	if err != nil {
		t.Fatal(err)
	}
	get := func(path string) (int, string) {
		t.Helper()
		tr := &http.Transport{DisableKeepAlives: true}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Addr()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		rsp, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		defer rsp.Body.Close()
		b, err := io.ReadAll(rsp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return rsp.StatusCode, string(b)
	}
	if code, text := get("/metrics"); code != 200 || text != "# metrics\n" {
		t.Errorf("%d %q", code, text)
	}
	if code, _ := get("/v1/faults"); code != 404 {
		t.Errorf("faults over TCP: %d", code)
	}
	if _, err := ListenMetrics(ctx, s.Addr(), nil); err == nil || !strings.Contains(err.Error(), "metrics: "+s.Addr()) {
		t.Errorf("a port that is taken: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

package ps

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/stages/table"
)

func TestParseEnv(t *testing.T) {
	e, err := ParseEnv([]string{"HOME=/", "RS_STATE=x", "RS_TEST_SEED=1", "RS_CONFIG=/d.json", "RS_RDMA_TRANSPORT_MODE=rc_write", "RS_RDMA_NAMESPACE=n",
		"RS_RDMA_CONTROL_PLANE_HOST=h", "RS_RDMA_CONTROL_PLANE_PORT=9", "RS_RDMA_CONTROL_PLANE_TIMEOUT_MS=7", "RS_RDMA_WAIT_TIMEOUT_MS=60000",
		"RS_RDMA_QPS_PER_CLIENT_PER_SHARD=3", "RS_RDMA_SLOTS_PER_QP=4", "RS_RDMA_ASYNC_DEPTH=12", "RS_RDMA_GET_RESPONSE_MODE=direct_sg",
		"RS_RDMA_PUT_PROTOCOL_VERSION=1", "RS_RDMA_PUT_V2_TRANSFER_MODE=push", "RS_RDMA_SERVER_GET_WORKERS=0", "RS_RDMA_SERVER_COROUTINES_PER_THREAD=1",
		"RS_RDMA_HOST=c", "RS_RDMA_RAILS=a, b", "RANK=1", "LOCAL_RANK=9", "WORLD_SIZE=3"})
	if err != nil {
		t.Fatal(err)
	}
	if e.Config != "/d.json" || e.Namespace != "n" || e.ControlHost != "h" || e.ControlPort != 9 || e.ControlTimeout != 7*time.Millisecond ||
		e.WaitTimeout != time.Minute || e.QPs != 3 || e.Slots != 4 || e.Depth != 12 || e.Modes != (Modes{DirectSG, Push, 1}) || e.GetWorkers != 0 ||
		e.Coroutines != 1 || e.Host != "c" || !slices.Equal(e.Rails, []string{"a", "b"}) || e.Index != 1 || e.Clients != 3 {
		t.Errorf("%+v", e)
	}
	if e, err := ParseEnv([]string{"RS_CONFIG=x", "RS_RDMA_CLIENT_INDEX=2", "RANK=7", "RS_RDMA_NUM_CLIENT_PROCESSES=3", "WORLD_SIZE=1"}); err != nil || e.Index != 2 || e.Clients != 3 {
		t.Errorf("ours come first: %+v %v", e, err)
	}
	if e, err := ParseEnv([]string{"RS_CONFIG=x"}); err != nil || e.Index != 0 || e.Clients != 1 || e.GetWorkers != -1 {
		t.Errorf("%+v %v", e, err)
	}
	for env, want := range map[string]string{
		"":                                      "RS_CONFIG is not set",
		"RS_CONFIG=":                            "is empty",
		"RS_RDMA_TRANSPORT_MODE=raw_message":    "want rc_write",
		"RS_RDMA_GET_RESPONSE_MODE=fast":        "want auto or direct_sg or staging_copy",
		"RS_RDMA_SLOTS_PER_QP=many":             "want a whole number from 1 to 1024",
		"RS_RDMA_SLOTS_PER_QP=0":                "want a whole number from 1 to 1024",
		"RS_RDMA_WAIT_TIMEOUT_MS=1s":            "want milliseconds",
		"RS_RDMA_CONTROL_PLANE_PORT=70000":      "want a whole number from 1 to 65535",
		"RS_RDMA_RC_SLOTS_PER_QP=4":             "no such variable; did you mean RS_RDMA_SLOTS_PER_QP?",
		"RS_RDMA_GET_TRACE=1":                   "no such variable",
		"RS_CONFG=/x":                           "did you mean RS_CONFIG?",
		"RS_MR_HEGDE=true":                      "did you mean RS_MR_HEDGE?",
		"RS_OTHER=1":                            "RS_OTHER: there is no such variable",
		"RS_RDMA_CLIENT_INDEX=1":                "client 1 of 1",
		"RANK=x":                                `RANK="x": want a whole number`,
		"RS_RDMA_NUM_CLIENT_PROCESSES=-1":       "want a whole number from 1",
		"RS_RDMA_RAILS=a,,b":                    "want names of rails",
		"RS_RDMA_PUT_PROTOCOL_VERSION=3":        "from 1 to 2",
		"RS_RDMA_QPS_PER_CLIENT_PER_SHARD=1e3":  "want a whole number",
		"RS_RDMA_SERVER_GET_WORKERS=0x10":       "want a whole number",
		"RS_RDMA_PUT_V2_TRANSFER_MODE=READ":     "want read or push",
		"RS_RDMA_SERVER_COROUTINES_PER_THREAD=": "want a whole number",
	} {
		list := []string{"RS_CONFIG=/x", env}
		if env == "" {
			list = nil
		}
		if _, err := ParseEnv(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", env, err, want)
		}
	}
	// Every variable that is listed for it is read.
	for _, name := range deploy.EnvNames("RS_RDMA_") {
		if _, err := ParseEnv([]string{"RS_CONFIG=/x", name + "=,"}); err == nil && !slices.Contains([]string{"RS_RDMA_NAMESPACE", "RS_RDMA_CONTROL_PLANE_HOST", "RS_RDMA_HOST"}, name) {
			t.Errorf("%s=, was taken", name)
		}
	}
	// All of them at once.
	_, err = ParseEnv([]string{"RS_RDMA_A=1", "RS_RDMA_SLOTS_PER_QP=x"})
	for _, want := range []string{"RS_CONFIG is not set", "RS_RDMA_A: there is no", "RS_RDMA_SLOTS_PER_QP="} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q in it", err, want)
		}
	}
}

// The time for the control plane bounds connecting, however long the caller would wait.
func TestControlPlaneTimeoutBoundsConnecting(t *testing.T) {
	s := newSite(t, wheres(t)[0], nil)
	file := filepath.Join(t.TempDir(), "deployment.json")
	if err := os.WriteFile(file, s.dep.Canonical(), 0o600); err != nil {
		t.Fatal(err)
	}
	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	o, err := FromEnv(EnvConfig{Environ: []string{"RS_CONFIG=" + file, "RS_RDMA_CONTROL_PLANE_HOST=127.0.0.1", "RS_RDMA_CONTROL_PLANE_PORT=" + port,
		"RS_RDMA_HOST=c", "RS_RDMA_CONTROL_PLANE_TIMEOUT_MS=40"}, Drivers: s.drivers})
	if err != nil {
		t.Fatal(err)
	}
	ctx := within(t, time.Hour)
	_, err = o.Session(ctx)
	if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "RS_RDMA_CONTROL_PLANE_TIMEOUT_MS=40") {
		t.Errorf("%v", err)
	}
	if err := o.Close(ctx); err != nil {
		t.Error(err)
	}
}

// The op layer from the environment alone: asynchronous calls, prefetches that are
// consumed once, updates that are waited for once, a barrier of two processes.
func TestOpLayer(t *testing.T) {
	each(t, func(t *testing.T, w where) {
		s := newSite(t, w, nil)
		file := filepath.Join(t.TempDir(), "deployment.json")
		if err := os.WriteFile(file, s.dep.Canonical(), 0o600); err != nil {
			t.Fatal(err)
		}
		host, port, err := net.SplitHostPort(s.server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		env := func(more ...string) []string {
			return append([]string{"RS_CONFIG=" + file, "RS_RDMA_NAMESPACE=" + s.identity().Namespace, "RS_RDMA_CONTROL_PLANE_HOST=" + host,
				"RS_RDMA_CONTROL_PLANE_PORT=" + port, "RS_RDMA_HOST=c", "RS_RDMA_QPS_PER_CLIENT_PER_SHARD=2", "RS_RDMA_GET_RESPONSE_MODE=direct_sg",
				"WORLD_SIZE=2"}, more...)
		}
		ctx := within(t, 30*time.Second)
		open := func(rank string) *Op {
			o, err := FromEnv(EnvConfig{Environ: env("RANK=" + rank), Drivers: s.drivers})
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		o, other := open("0"), open("1")
		// Without keys nothing is connected.
		if err := errors.Join(o.Read(ctx, "t", nil, nil), o.Write(ctx, "t", nil, nil), o.Update(ctx, "t", nil, nil)); err != nil || o.session != nil {
			t.Fatalf("%v, connected %v", err, o.session != nil)
		}
		if _, err := o.SubmitUpdate(ctx, "t", nil, nil); !errors.Is(err, ErrBadRequest) {
			t.Errorf("an asynchronous update of nothing: %v", err)
		}
		spec := table.Spec{Name: "t", Dim: 4}
		if err := errors.Join(o.InitTable(ctx, spec), other.InitTable(ctx, spec)); err != nil {
			t.Fatal(err)
		}
		keys := []uint64{1, 2, 3, 1000}
		want := rowsOf(keys, 4, 1)
		if err := o.Write(ctx, "t", keys, want); err != nil {
			t.Fatal(err)
		}
		got := make([]float32, 16)
		id, err := o.AsyncGet(ctx, "t", keys, got)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.WaitGet(ctx, id); err != nil || !same(got, want) {
			t.Fatalf("%v %v", got, err)
		}
		if err := o.WaitGet(ctx, id); !errors.Is(err, ErrHandleUsed) {
			t.Error(err)
		}
		for _, wait := range []bool{false, true} {
			clear(got)
			p, err := o.Prefetch(ctx, "t", keys)
			if err != nil {
				t.Fatal(err)
			}
			if wait {
				if err := o.WaitForPrefetch(ctx, p); err != nil || !o.IsPrefetchDone(p) {
					t.Fatal(err)
				}
			}
			if err := o.GetPrefetchResult(ctx, p, got[:4], nil); !errors.Is(err, ErrShape) {
				t.Error(err)
			}
			found := make([]bool, 4)
			if err := o.GetPrefetchResult(ctx, p, got, found); err != nil || !same(got, want) || slices.Contains(found, false) {
				t.Fatalf("%v %v %v", got, found, err)
			}
			if err := o.GetPrefetchResult(ctx, p, got, nil); !errors.Is(err, ErrHandleUsed) || o.IsPrefetchDone(p) {
				t.Error(err)
			}
		}
		grads := make([]float32, 16)
		for i := range grads {
			grads[i] = 100
		}
		u, err := o.SubmitUpdate(ctx, "t", keys, grads)
		if err != nil {
			t.Fatal(err)
		}
		if err := o.WaitUpdate(ctx, u); err != nil {
			t.Fatal(err)
		}
		if err := o.WaitUpdate(ctx, u); !errors.Is(err, ErrHandleUsed) {
			t.Error(err)
		}
		var wg sync.WaitGroup
		for _, x := range []*Op{o, other} {
			wg.Go(func() {
				for range 2 {
					if err := x.Command(ctx, CommandBarrier); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if err := o.Command(ctx, 7); !errors.Is(err, ErrBadRequest) {
			t.Error(err)
		}
		if err := other.Read(ctx, "t", keys, got); err != nil || got[0] != want[0]-1 {
			t.Fatalf("%v %v", got, err)
		}
		// Left behind: Close gives them up.
		if _, err := o.AsyncGet(ctx, "t", keys, got); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Prefetch(ctx, "t", keys); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(o.Close(ctx), other.Close(ctx), o.Close(ctx)); err != nil {
			t.Error(err)
		}
		if err := o.Read(ctx, "t", keys, got); !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		for _, bad := range []string{"RS_RDMA_SLOTS_PER_QP=5", "RS_RDMA_QPS_PER_CLIENT_PER_SHARD=3", "RS_RDMA_SERVER_GET_WORKERS=2", "WORLD_SIZE=5", "RS_CONFIG=/nowhere"} {
			x, err := FromEnv(EnvConfig{Environ: env(bad), Drivers: s.drivers})
			if err != nil {
				t.Fatal(err)
			}
			if err := x.Read(ctx, "t", keys, got); err == nil || strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("%s: %v", bad, err)
			}
		}
	})
}

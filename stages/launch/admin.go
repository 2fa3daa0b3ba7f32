package launch

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// adminAsk bounds the question who is there. A process that is stopped does not
// answer, and must not hold up those that ask all.
const adminAsk = 2 * time.Second

// adminAnswer is the longest answer that is taken: some hundred bytes for each of
// the most lanes that a shard may have.
const adminAnswer = 64 << 20

// AdminPeer is a process of the deployment that listens on an admin socket. With
// Err it did not say who it is; then Process has only what its socket tells.
type AdminPeer struct {
	Process
	Err error

	path string
}

// Admins are the processes of the folder that can be asked: shards first, by their
// numbers, then clients.
func (f Folder) Admins(ctx context.Context) ([]AdminPeer, error) {
	socks, err := f.sockets()
	if err != nil {
		return nil, err
	}
	actx, cancel := context.WithTimeout(ctx, adminAsk)
	defer cancel()
	found, err := pipeline.Each(actx, socks, func(ctx context.Context, s socket) (*AdminPeer, error) {
		p := &AdminPeer{path: s.path, Process: Process{Shard: s.shard, PID: s.pid, ID: fmt.Sprintf("shard/%d", s.shard)}}
		if s.shard < 0 {
			p.ID = fmt.Sprintf("client of pid %d", s.pid)
		} else if rec, ok := f.readRecord(s.shard); ok {
			p.PID = rec.PID // should it not answer
		}
		said := Process{Shard: s.shard}
		if p.Err = p.Ask(ctx, http.MethodGet, "/v1/process", nil, &said); p.Err != nil {
			if again, err := f.sockets(); err == nil && !slices.ContainsFunc(again, func(o socket) bool { return o.path == s.path }) {
				return nil, nil // it has ended meanwhile
			}
			return p, nil
		}
		p.Process = said
		return p, nil
	})
	if err != nil {
		return nil, err
	}
	var out []AdminPeer
	for _, p := range found {
		if p != nil {
			out = append(out, *p)
		}
	}
	slices.SortStableFunc(out, func(a, b AdminPeer) int {
		// A client's -1 goes last.
		return cmp.Or(cmp.Compare(uint(a.Shard), uint(b.Shard)), cmp.Compare(a.ID, b.ID))
	})
	return out, nil
}

// Where is the place of the process in errors.
func (p *AdminPeer) Where() pipeline.Where {
	if p.Shard < 0 {
		return pipeline.Nowhere
	}
	return pipeline.AtShard(p.Shard)
}

// Ask sends a request. body is sent as JSON when it is not nil, and the answer is
// put into out, which is filled from JSON, or gets the bytes when it is a *[]byte.
// An error that the process answers with comes back as it was there.
func (p *AdminPeer) Ask(ctx context.Context, method, path string, body, out any) error {
	fail := func(err error) error {
		return pipeline.Errorf(pipeline.LayerProcess, "admin", p.Where(), "%s (pid %d) does not answer: %w", p.ID, p.PID, err)
	}
	var rd io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fail(err)
		}
		rd = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://rs"+path, rd)
	if err != nil {
		return fail(err)
	}
	tr := &http.Transport{DisableKeepAlives: true, DisableCompression: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialSocket(ctx, p.path) }}
	defer tr.CloseIdleConnections()
	rsp, err := tr.RoundTrip(req)
	if err != nil {
		return fail(err)
	}
	defer func() { _ = rsp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(rsp.Body, adminAnswer+1))
	if err == nil && len(b) > adminAnswer {
		err = fmt.Errorf("the answer is longer than %d bytes", adminAnswer)
	}
	if err != nil {
		return fail(err)
	}
	if rsp.StatusCode != http.StatusOK {
		var f adminFailure
		if json.Unmarshal(b, &f) != nil || f.Error.Message == "" {
			return fail(fmt.Errorf("%s: %s", rsp.Status, shorten(OneLine(string(b)))))
		}
		if f.Error.Shard == nil && p.Shard >= 0 {
			f.Error.Shard = &p.Shard
		}
		return f.Error.Err()
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = b
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fail(err)
	}
	return nil
}

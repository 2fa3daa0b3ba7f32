package ps

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/railstore/railstore/stages/table"
)

// snapshotName is what a snapshot may be called: nothing that leaves the folder.
var snapshotName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// A SAVE or LOAD may take longer than any slot should wait, so it is asked for again and
// again: the request names it by a number of the client's choice, and the answer after
// jobPatience is that it still runs.
//
//	120  u64  number
//	128       name of the snapshot
const (
	jobPatience = time.Second
	keepJobs    = 64 // that have ended
	respRunning = 8
)

// job is a SAVE or LOAD.
type job struct {
	op     uint16
	name   string
	done   chan struct{}
	tables int
	err    error
}

func (s *Service) admin(x exchange, w *work, rest []byte) (int, error) {
	r := &w.req
	op, out := x.Op(), x.Response()
	var rsp response
	if op != OpInit && op != OpSave && op != OpLoad && op != OpScan {
		if err := empty(r, rest); err != nil {
			return 0, err
		}
	}
	switch op {
	case OpInit:
		if r.keys != 0 || r.dim != 0 {
			return 0, fmt.Errorf("%w: keys or rows in init", ErrBadRequest)
		}
		spec, err := parseSpec(string(r.name[:r.nameLen]), rest)
		if err != nil {
			return 0, err
		}
		if s.cfg.Store.Table(spec.Name) == nil {
			rsp.count = 1
		}
		t, err := s.cfg.Store.Init(spec)
		if err != nil {
			return 0, err
		}
		rsp.dim = t.Spec().Dim
		return rsp.put(out), nil
	case OpDrop:
		had, err := s.cfg.Store.Drop(string(r.name[:r.nameLen]))
		if err != nil {
			return 0, err
		}
		if had {
			rsp.count = 1
		}
		return rsp.put(out), nil
	case OpClear:
		err := s.on(r, (*table.Table).Clear)
		if err != nil {
			return 0, err
		}
		return rsp.put(out), nil
	case OpForget:
		s.owners.forget(r.client)
		if s.cfg.Store.Forget(r.client) {
			rsp.count = 1
		}
		return rsp.put(out), nil
	case OpTables:
		return s.list(r, out)
	case OpScan:
		return s.scan(r, rest, out, w)
	case OpStats:
		return s.report(out)
	case OpSave, OpLoad:
		return s.job(x, r, rest)
	}
	return 0, fmt.Errorf("%w: %s is not one of the table protocol", ErrBadRequest, opName(op))
}

// list answers TABLES: those whose names follow the named one, or that one alone.
func (s *Service) list(r *request, out []byte) (int, error) {
	name := string(r.name[:r.nameLen])
	var rsp response
	at := responseHeader
	put := func(t *table.Table) error {
		spec, st := t.Spec(), t.Stats()
		err := putEntry(out[at:], &spec, int64(st.Rows), st.Slots*int64(st.SlotBytes))
		at += entryBytes
		rsp.keys++
		return err
	}
	if r.flags&flagExact != 0 {
		t := s.cfg.Store.Table(name)
		if t == nil {
			return 0, s.noTable(r)
		}
		if len(out) < at+entryBytes {
			return 0, fmt.Errorf("%w: room for %d bytes", ErrTooLarge, len(out))
		}
		if err := put(t); err != nil {
			return 0, err
		}
		rsp.put(out)
		return at, nil
	}
	for _, t := range s.cfg.Store.Tables() {
		if t.Spec().Name <= name && name != "" {
			continue
		}
		if len(out) < at+entryBytes {
			if rsp.keys == 0 {
				return 0, fmt.Errorf("%w: room for %d bytes", ErrTooLarge, len(out))
			}
			rsp.flags |= respMore
			break
		}
		if err := put(t); err != nil {
			return 0, err
		}
	}
	rsp.put(out)
	return at, nil
}

// Stats is what a shard tells of itself.
type Stats struct {
	Shard   int                         `json:"shard"`
	Service ServiceStats                `json:"service"`
	Store   table.Stats                 `json:"store"`
	Tables  map[string]table.TableStats `json:"tables"`
	// Cut says that there were too many tables for one answer.
	Cut bool `json:"cut,omitempty"`
}

// decode reads what a shard sent.
func (st *Stats) decode(b []byte) error {
	if err := json.Unmarshal(b, st); err != nil {
		return fmt.Errorf("%w: %w", ErrBadResponse, err)
	}
	return nil
}

func (s *Service) report(out []byte) (int, error) {
	st := Stats{Shard: s.cfg.Shard, Service: s.Stats(), Store: s.cfg.Store.Stats(), Tables: map[string]table.TableStats{}}
	for _, t := range s.cfg.Store.Tables() {
		st.Tables[t.Spec().Name] = t.Stats()
	}
	b, err := json.Marshal(st)
	if err == nil && len(b) > len(out)-responseHeader {
		st.Tables, st.Store.Pins, st.Cut = nil, nil, true
		b, err = json.Marshal(st)
	}
	switch {
	case err != nil:
		return 0, fmt.Errorf("%w: %w", ErrInternal, err)
	case len(b) > len(out)-responseHeader:
		return 0, fmt.Errorf("%w: %d bytes, there is room for %d", ErrTooLarge, len(b), len(out)-responseHeader)
	}
	(&response{}).put(out)
	return responseHeader + copy(out[responseHeader:], b), nil
}

// job starts a save or load, or waits a while for the one of that number.
func (s *Service) job(x exchange, r *request, rest []byte) (int, error) {
	if len(rest) < 8 || r.keys != 0 || r.dim != 0 || r.nameLen != 0 {
		return 0, fmt.Errorf("%w: %d bytes, %d keys or a table in %s", ErrBadRequest, len(rest), r.keys, opName(x.Op()))
	}
	id, name := binary.LittleEndian.Uint64(rest), string(rest[8:])
	switch {
	case !snapshotName.MatchString(name):
		return 0, fmt.Errorf("%w: a snapshot's name is 1 to 128 of A-Z, a-z, 0-9, '.', '_' and -, beginning with a letter or digit", ErrBadRequest)
	case s.cfg.Snapshots == "":
		return 0, fmt.Errorf("%w: shard %d has no folder for snapshots", ErrSnapshot, s.cfg.Shard)
	}
	j, err := s.begin(id, x.Op(), name)
	if err != nil {
		return 0, err
	}
	patience := time.NewTimer(jobPatience)
	defer patience.Stop()
	select {
	case <-j.done:
	case <-patience.C:
		return (&response{flags: respRunning}).put(x.Response()), nil
	case <-x.Context().Done():
		return (&response{flags: respRunning}).put(x.Response()), nil
	}
	if j.err != nil {
		return 0, j.err
	}
	return (&response{count: j.tables}).put(x.Response()), nil
}

func (s *Service) begin(id uint64, op uint16, name string) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if j, ok := s.jobs[id]; ok {
		if j.op != op || j.name != name {
			return nil, fmt.Errorf("%w: the number is that of %s %s", ErrBadRequest, opName(j.op), j.name)
		}
		return j, nil
	}
	if s.closed {
		return nil, s.stopping()
	}
	for i := 0; i < len(s.order) && len(s.order) >= keepJobs; {
		select {
		case <-s.jobs[s.order[i]].done:
			delete(s.jobs, s.order[i])
			s.order = append(s.order[:i], s.order[i+1:]...)
		default:
			i++
		}
	}
	if len(s.order) >= keepJobs {
		return nil, fmt.Errorf("%w: %d snapshots are being saved or loaded", ErrBusy, len(s.order))
	}
	j := &job{op: op, name: name, done: make(chan struct{})}
	s.jobs[id] = j
	s.order = append(s.order, id)
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		defer close(j.done)
		path := s.snapshotFile(name)
		if op == OpSave {
			if j.err = os.MkdirAll(s.cfg.Snapshots, 0o700); j.err == nil {
				_, j.err = s.cfg.Store.Save(s.ctx, path, table.SaveSpec{})
			}
		} else {
			j.err = s.cfg.Store.Load(s.ctx, path)
			if errors.Is(j.err, fs.ErrNotExist) {
				j.err = s.otherPlace(name, j.err)
			}
		}
		if j.err != nil {
			j.err = fmt.Errorf("%w: %w", ErrSnapshot, j.err)
		}
		j.tables = len(s.cfg.Store.Tables())
	}()
	return j, nil
}

// snapshotFile is where this shard keeps a snapshot. The name says whose keys are in it:
// with another number of shards they would lie where nobody asks for them.
func (s *Service) snapshotFile(name string) string {
	return filepath.Join(s.cfg.Snapshots, fmt.Sprintf("%s.%d-of-%d.rstab", name, s.cfg.Place, s.cfg.Shards))
}

// otherPlace says so if the snapshot is there, but of another place or number of shards.
func (s *Service) otherPlace(name string, missing error) error {
	entries, err := os.ReadDir(s.cfg.Snapshots)
	if err != nil {
		return missing
	}
	for _, e := range entries {
		var place, shards int
		rest, ok := strings.CutPrefix(e.Name(), name)
		if !ok {
			continue
		}
		if n, _ := fmt.Sscanf(rest, ".%d-of-%d.rstab", &place, &shards); n == 2 && rest == fmt.Sprintf(".%d-of-%d.rstab", place, shards) {
			return fmt.Errorf("snapshot %s: shard %d has place %d of %d shards, the snapshot in its folder is of place %d of %d: %s; it is loaded with as many shards as it was saved with",
				name, s.cfg.Shard, s.cfg.Place, s.cfg.Shards, place, shards, e.Name())
		}
	}
	return missing
}

package ps

import (
	"encoding/json"
	"fmt"

	"github.com/railstore/railstore/stages/table"
)

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
		return s.snapshot(x, r, rest)
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

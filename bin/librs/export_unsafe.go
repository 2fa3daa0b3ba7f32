package main

/*
#cgo CFLAGS: -std=c11 -D_GNU_SOURCE -fvisibility=hidden -Wall -Wextra
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"runtime/debug"
	"sync"
	"time"
	"unsafe"

	"github.com/railstore/railstore/bin/exit"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/object"
)

// What shim.c calls. C's memory is used during the call alone; what goes back is numbers,
// copies made with malloc, and addresses of mapped memory.

// answer fills in an rs_error, if there is one to fill and something to say, and gives
// the status.
func answer(e *C.rs_error, err error) C.int {
	if err == nil {
		return C.RS_OK
	}
	st := C.int(statusOf(err))
	if e != nil {
		f := failureOf(err)
		C.rsi_adopt(e, st, C.int(place(f.Shard)), C.int(place(f.Lane)), (*C.char)(C.CBytes(f.texts())))
	}
	return st
}

// call runs a call of no particular session.
func call(e *C.rs_error, op string, f func() error) C.int { return answer(e, safely(op, f)) }

// on runs a call on a session.
func on(h C.rs_session, e *C.rs_error, op string, f func(s *session) error) C.int {
	return call(e, op, func() error {
		s, err := get[*session](&handles, op, uint64(h))
		if err != nil {
			return err
		}
		return f(s)
	})
}

// text gives a value as JSON to the caller, who frees it.
func text(to **C.char, v any) error {
	if to == nil {
		return nil
	}
	b, err := json.Marshal(v)
	if err != nil {
		return pipeline.Wrap(err, pipeline.LayerInternal, "json", pipeline.Nowhere)
	}
	*to = C.CString(string(b))
	return nil
}

// str is a C string, which may be NULL.
func str(s *C.char) string {
	if s == nil {
		return ""
	}
	return C.GoString(s)
}

// memory is n bytes of the caller's.
func memory(p unsafe.Pointer, n C.size_t) []byte { return unsafe.Slice((*byte)(p), int(n)) }

func words(p **C.char) (out []string) {
	for ; p != nil && *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(p))) {
		out = append(out, C.GoString(*p))
	}
	return out
}

func readingOf(name *C.char, o *C.rs_read_options) (r reading, err error) {
	r = reading{name: str(name), rails: str(o.rails), offset: uint64(o.offset), length: uint64(o.length), strict: o.flags&C.RS_READ_FAIL_ON_DEGRADED != 0}
	r.limits, err = limitsOf("read", int64(o.deadline_ms), uint64(o.cancel))
	return r, err
}

var version = sync.OnceValue(func() *C.char {
	v := "unreleased"
	if bi, ok := debug.ReadBuildInfo(); ok && bi.Main.Version != "" && bi.Main.Version != "(devel)" {
		v = bi.Main.Version
	}
	return C.CString(v)
})

//export rsgoVersion
func rsgoVersion() *C.char { return version() }

//export rsgoCancelNew
func rsgoCancelNew(out *C.rs_cancel, e *C.rs_error) C.int {
	return call(e, "cancel", func() error {
		*out = C.rs_cancel(handles.add(&token{}))
		return nil
	})
}

//export rsgoCancelFire
func rsgoCancelFire(h C.rs_cancel, e *C.rs_error) C.int {
	return call(e, "cancel", func() error {
		t, err := get[*token](&handles, "cancel", uint64(h))
		if err == nil {
			t.fire()
		}
		return err
	})
}

//export rsgoCancelFree
func rsgoCancelFree(h C.rs_cancel, e *C.rs_error) C.int {
	return call(e, "cancel", func() error {
		_, _, err := take[*token](&handles, "cancel", uint64(h))
		return err
	})
}

//export rsgoSessionOpen
func rsgoSessionOpen(o *C.rs_session_options, out *C.rs_session, e *C.rs_error) C.int {
	return call(e, "open", func() error {
		l, err := limitsOf("open", int64(o.timeout_ms), uint64(o.cancel))
		if err != nil {
			return err
		}
		environ := (**C.char)(unsafe.Pointer(o.environment))
		if environ == nil {
			environ = C.rsi_environment()
		}
		s, err := openSession(opening{recipe: str(o.recipe), host: str(o.host), rails: str(o.rails), environ: words(environ)}, l)
		if err == nil {
			*out = C.rs_session(handles.add(s))
		}
		return err
	})
}

//export rsgoSessionClose
func rsgoSessionClose(h C.rs_session, e *C.rs_error) C.int {
	return call(e, "close", func() error {
		s, ok, err := take[*session](&handles, "close", uint64(h))
		if err != nil || !ok {
			return err
		}
		return s.close()
	})
}

//export rsgoSessionDescribe
func rsgoSessionDescribe(h C.rs_session, out **C.char, e *C.rs_error) C.int {
	return on(h, e, "describe", func(s *session) error { return text(out, s.describe()) })
}

//export rsgoRails
func rsgoRails(h C.rs_session, out **C.char, e *C.rs_error) C.int {
	return on(h, e, "rails", func(s *session) error { return text(out, s.Snapshot()) })
}

//export rsgoLastReport
func rsgoLastReport(h C.rs_session, out **C.char, e *C.rs_error) C.int {
	return on(h, e, "report", func(s *session) error { return text(out, s.last.Load()) })
}

//export rsgoPlan
func rsgoPlan(h C.rs_session, name *C.char, o *C.rs_read_options, out **C.char, e *C.rs_error) C.int {
	return on(h, e, "plan", func(s *session) error {
		r, err := readingOf(name, o)
		if err != nil {
			return err
		}
		p, err := s.plan(r)
		if err != nil {
			return err
		}
		return text(out, p)
	})
}

//export rsgoReadInto
func rsgoReadInto(h C.rs_session, name *C.char, buf unsafe.Pointer, n C.size_t, got *C.size_t, o *C.rs_read_options, e *C.rs_error) C.int {
	return on(h, e, "read", func(s *session) error {
		r, err := readingOf(name, o)
		if err != nil {
			return err
		}
		k, rep, err := s.readInto(r, memory(buf, n))
		if err != nil && !errors.Is(err, exit.ErrDegraded) {
			return err
		}
		*got = C.size_t(k)
		return errors.Join(err, text(o.report, rep))
	})
}

// lend gives a lease to the caller.
func lend(l *C.rs_leased, buf *object.LeasedBuffer) {
	b := buf.Bytes()
	l.lease = C.rs_lease(handles.add(buf))
	l.data = unsafe.Pointer(unsafe.SliceData(b)) // mapped by verbs.MapRegion, never Go's heap
	l.length = C.uint64_t(len(b))
	l.generation = C.uint64_t(buf.Object().Generation)
	if len(b) == 0 {
		l.data = nil
	}
}

//export rsgoRead
func rsgoRead(h C.rs_session, name *C.char, o *C.rs_read_options, l *C.rs_leased, e *C.rs_error) C.int {
	return on(h, e, "read", func(s *session) error {
		r, err := readingOf(name, o)
		if err != nil {
			return err
		}
		buf, rep, err := s.read(r)
		if err != nil && !errors.Is(err, exit.ErrDegraded) {
			return err
		}
		lend(l, buf)
		return errors.Join(err, text(o.report, rep))
	})
}

//export rsgoLeaseRelease
func rsgoLeaseRelease(h C.rs_lease, e *C.rs_error) C.int {
	return call(e, "release", func() error {
		buf, ok, err := take[*object.LeasedBuffer](&handles, "release", uint64(h))
		if ok && err == nil {
			buf.Release()
		}
		return err
	})
}

//export rsgoReadBatch
func rsgoReadBatch(h C.rs_session, items *C.rs_read_item, count, together C.size_t, o *C.rs_read_options, out *C.rs_leased, errs, e *C.rs_error) C.int {
	return on(h, e, "read", func(s *session) error {
		how, err := readingOf(nil, o)
		if err != nil {
			return err
		}
		rs := make([]reading, int(count))
		for i := range rs {
			var own C.rs_read_item
			it := C.rsi_item(items, C.size_t(i), &own)
			rs[i] = reading{name: str(it.name), offset: uint64(it.offset), length: uint64(it.length)}
		}
		results, err := s.readBatch(rs, int(min(together, count)), how)
		if err != nil {
			return err
		}
		var first error
		reports := make([]*object.ReadReport, len(results))
		for i, r := range results {
			if r.Buffer != nil {
				var l C.rs_leased
				lend(&l, r.Buffer)
				C.rsi_lease_out(out, C.size_t(i), &l)
			}
			reports[i] = r.Report
			if r.Err != nil {
				answer(C.rsi_error_at(errs, C.size_t(i)), r.Err)
				if first == nil || errors.Is(first, exit.ErrDegraded) {
					first = r.Err
				}
			}
		}
		return errors.Join(first, text(o.report, reports))
	})
}

//export rsgoPut
func rsgoPut(h C.rs_session, name *C.char, data unsafe.Pointer, n C.size_t, o *C.rs_put_options, e *C.rs_error) C.int {
	return on(h, e, "put", func(s *session) error {
		p := putting{name: str(name), rails: str(o.rails), opt: object.PutOptions{IfAbsent: o.flags&C.RS_PUT_IF_ABSENT != 0,
			IfGeneration: uint64(o.if_generation), StripeBytes: uint64(o.stripe_bytes)}}
		ttl, err := limitsOf("put", int64(o.ttl_ms), 0)
		if err != nil {
			return err
		}
		p.opt.TTL = time.Duration(ttl.deadline)
		if p.limits, err = limitsOf("put", int64(o.deadline_ms), uint64(o.cancel)); err != nil {
			return err
		}
		rep, err := s.put(p, memory(data, n))
		if err != nil {
			return err
		}
		return text(o.report, rep)
	})
}

// plainly runs a call with rs_call_options.
func plainly(h C.rs_session, op string, o *C.rs_call_options, e *C.rs_error, f func(s *session, l limits) error) C.int {
	return on(h, e, op, func(s *session) error {
		l, err := limitsOf(op, int64(o.deadline_ms), uint64(o.cancel))
		if err != nil {
			return err
		}
		return f(s, l)
	})
}

//export rsgoRemove
func rsgoRemove(h C.rs_session, name *C.char, generation C.uint64_t, o *C.rs_call_options, report **C.char, e *C.rs_error) C.int {
	return plainly(h, "remove", o, e, func(s *session, l limits) error {
		rep, err := s.remove(str(name), uint64(generation), l)
		if err != nil {
			return err
		}
		return text(report, rep)
	})
}

//export rsgoStat
func rsgoStat(h C.rs_session, name *C.char, o *C.rs_call_options, out **C.char, e *C.rs_error) C.int {
	return plainly(h, "stat", o, e, func(s *session, l limits) error {
		obj, err := s.stat(str(name), l)
		if err != nil {
			return err
		}
		return text(out, obj)
	})
}

//export rsgoList
func rsgoList(h C.rs_session, prefix, after *C.char, limit C.uint32_t, o *C.rs_call_options, out **C.char, e *C.rs_error) C.int {
	return plainly(h, "list", o, e, func(s *session, l limits) error {
		page, err := s.list(str(prefix), str(after), uint32(limit), l)
		if err != nil {
			return err
		}
		return text(out, page)
	})
}

//export rsgoTableDescribe
func rsgoTableDescribe(h C.rs_session, name *C.char, o *C.rs_call_options, out **C.char, e *C.rs_error) C.int {
	return plainly(h, "table", o, e, func(s *session, l limits) error {
		t, err := s.describeTable(str(name), l)
		if err != nil {
			return err
		}
		return text(out, t)
	})
}

func floats(p *C.float, n C.size_t) []float32 {
	return unsafe.Slice((*float32)(unsafe.Pointer(p)), int(n))
}

func keysOf(p *C.uint64_t, n C.size_t) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Pointer(p)), int(n))
}

//export rsgoTableGet
func rsgoTableGet(h C.rs_session, name *C.char, keys *C.uint64_t, n C.size_t, rows *C.float, m C.size_t, found *C.uint8_t, o *C.rs_call_options, e *C.rs_error) C.int {
	return plainly(h, "get", o, e, func(s *session, l limits) error {
		var bits []bool // a byte each, 0 or 1, as C's
		if found != nil {
			bits = unsafe.Slice((*bool)(unsafe.Pointer(found)), int(n))
			clear(bits) // what the caller had there need not be 0 or 1
		}
		return s.get(str(name), keysOf(keys, n), floats(rows, m), bits, l)
	})
}

//export rsgoTablePut
func rsgoTablePut(h C.rs_session, name *C.char, keys *C.uint64_t, n C.size_t, rows *C.float, m C.size_t, o *C.rs_call_options, e *C.rs_error) C.int {
	return plainly(h, "put", o, e, func(s *session, l limits) error {
		return s.putRows(str(name), keysOf(keys, n), floats(rows, m), l)
	})
}

//export rsgoTableUpdate
func rsgoTableUpdate(h C.rs_session, name *C.char, keys *C.uint64_t, n C.size_t, rows *C.float, m C.size_t, o *C.rs_call_options, e *C.rs_error) C.int {
	return plainly(h, "update", o, e, func(s *session, l limits) error {
		return s.update(str(name), keysOf(keys, n), floats(rows, m), l)
	})
}

//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

// pd is a protection domain.
type pd struct {
	dev *device
	pd  *C.struct_ab_pd
}

// Register makes memory known to the device.
func (p *pd) Register(mem []byte, access verbs.Access) (verbs.DriverMR, error) {
	d := p.dev
	m, err := C.rs_reg_mr(d.lib, p.pd, C.uintptr_t(verbs.AddrOf(mem)), C.size_t(len(mem)), accessFlags(access))
	if m == nil {
		return nil, d.registerFailed(len(mem), access, errnoOf(err))
	}
	d.live.mrs.Add(1)
	return &mr{dev: d, mr: m, lkey: uint32(m.lkey), rkey: uint32(m.rkey)}, nil
}

func accessFlags(a verbs.Access) C.int {
	var f C.int
	for _, x := range []struct {
		bit  verbs.Access
		flag C.int
	}{
		{verbs.LocalWrite, C.AB_ACCESS_LOCAL_WRITE}, {verbs.RemoteWrite, C.AB_ACCESS_REMOTE_WRITE},
		{verbs.RemoteRead, C.AB_ACCESS_REMOTE_READ}, {verbs.RemoteAtomic, C.AB_ACCESS_REMOTE_ATOMIC},
	} {
		if a&x.bit != 0 {
			f |= x.flag
		}
	}
	return f
}

// Close frees the protection domain; the front has seen to it that it is empty.
func (p *pd) Close() error {
	if e := C.rs_dealloc_pd(p.dev.lib, p.pd); e != 0 {
		return p.dev.failed("dealloc_pd", unix.Errno(e))
	}
	p.dev.live.pds.Add(-1)
	return nil
}

// mr is a registered piece of memory.
type mr struct {
	dev        *device
	lkey, rkey uint32

	mu sync.Mutex // guards mr, which is nil once closed
	mr *C.struct_ab_mr
}

func (m *mr) LKey() uint32 { return m.lkey }
func (m *mr) RKey() uint32 { return m.rkey }

// Close deregisters: the device takes no further access when it returns.
func (m *mr) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mr == nil {
		return nil
	}
	if e := C.rs_dereg_mr(m.dev.lib, m.mr); e != 0 {
		return m.dev.failed("dereg_mr", unix.Errno(e))
	}
	m.mr = nil
	m.dev.live.mrs.Add(-1)
	return nil
}

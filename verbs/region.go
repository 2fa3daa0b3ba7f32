package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Region is a piece of page-aligned anonymous memory outside the Go heap that
// may be registered. It is zero at first. Its owner closes it after every MR on
// it is closed; using Bytes after Close faults.
type Region struct {
	mu   sync.Mutex
	mem  []byte
	size int
	mrs  atomic.Int32
}

// hugePage is the size from which the kernel's huge pages can serve a mapping.
const hugePage = 2 << 20

// MapRegion maps size bytes (rounded up to pages; at least one). A size that
// the system refuses is ErrNoMemory.
func MapRegion(size int) (*Region, error) {
	if size < 0 {
		return nil, Errorf(ErrInvalid, "map_region", "", "size %d is negative", size)
	}
	page := unix.Getpagesize()
	full := (max(size, 1) + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, full, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, Errorf(ErrNoMemory, "map_region", "", "%d bytes: %w", full, err)
	}
	// Large regions are touched all over and by one process: huge pages spare
	// most of the faults. Where the system has none to give it goes without.
	if full >= hugePage {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
	// A child of fork must not share pages that a device writes.
	_ = unix.Madvise(mem, unix.MADV_DONTFORK)
	return &Region{mem: mem, size: size}, nil
}

// Bytes is the memory, size bytes long. It is valid until Close.
func (r *Region) Bytes() []byte { return r.mem[:r.size:r.size] }

// Len is the size that was asked for.
func (r *Region) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}

// Addr is the virtual address of the first byte.
func (r *Region) Addr() uint64 { return addrOf(r.mem) }

// Close unmaps. It fails with ErrBusy while an MR is on the region.
func (r *Region) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	if n := r.mrs.Load(); n > 0 {
		return &Error{Op: "unmap_region", Kind: ErrBusy, Err: fmt.Errorf("%d memory regions registered on it", n)}
	}
	err := unix.Munmap(r.mem)
	r.mem, r.size = nil, 0
	if err != nil {
		return Errorf(ErrInvalid, "unmap_region", "", "%w", err)
	}
	return nil
}

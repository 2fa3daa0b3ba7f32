package object

import (
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"
	"time"
)

// powerFS is a file system in memory that forgets, when the power is cut, what was
// not synced: the content of a file since its last sync, block by block as it
// pleases, and the names in a folder since that folder's last sync, each by itself.
// It also fails when it is told to.
type powerFS struct {
	mu    sync.Mutex
	names map[string]*powerFile // as they are
	safe  map[string]*powerFile // as they survive
	free  int64
	fault func(op, name string) error
	gone  bool                       // the path leads elsewhere now
	at    func(path string) *powerFS // what is at a path
	// locked is shared by all opens: one owner at a time.
	locked *powerFile
}

type powerFile struct {
	data, safe []byte
	folder     bool
	mtime      time.Time
}

func newPowerFS(free int64) *powerFS {
	return &powerFS{names: map[string]*powerFile{}, safe: map[string]*powerFile{}, free: free}
}

// cut is what is left when the power went off now.
func (p *powerFS) cut(r *rand.Rand) *powerFS {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := newPowerFS(p.free)
	all := map[string]bool{}
	for n := range maps.Keys(p.names) {
		all[n] = true
	}
	for n := range maps.Keys(p.safe) {
		all[n] = true
	}
	torn := map[*powerFile]*powerFile{}
	tear := func(f *powerFile) *powerFile {
		if torn[f] != nil {
			return torn[f]
		}
		t := &powerFile{folder: f.folder, mtime: f.mtime}
		n := len(f.safe)
		if r.IntN(2) == 0 {
			n = len(f.data)
		}
		t.data = make([]byte, n)
		copy(t.data, f.safe)
		for at := 0; at < min(n, len(f.data)); at += 512 {
			if r.IntN(2) == 0 {
				copy(t.data[at:min(at+512, n)], f.data[at:])
			}
		}
		t.safe = slices.Clone(t.data)
		torn[f] = t
		return t
	}
	for _, n := range slices.Sorted(maps.Keys(all)) {
		f := p.safe[n]
		if now := p.names[n]; now != f && r.IntN(2) == 0 {
			f = now
		}
		if f == nil {
			continue
		}
		if dir := path.Dir(n); dir != "." && out.names[dir] == nil {
			continue // its folder is gone
		}
		t := tear(f)
		out.names[n], out.safe[n] = t, t
		out.free -= int64(len(t.data))
	}
	return out
}

func (p *powerFS) do(op, name string) error {
	if p.fault != nil {
		if err := p.fault(op, name); err != nil {
			return &fs.PathError{Op: op, Path: name, Err: err}
		}
	}
	return nil
}

func (p *powerFS) open(name string, flags int) (storedFile, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.do("open", name); err != nil {
		return nil, err
	}
	f := p.names[name]
	switch {
	case f == nil && flags&os.O_CREATE == 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
	case f != nil && flags&os.O_EXCL != 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EEXIST}
	case f == nil:
		if dir := path.Dir(name); dir != "." && p.names[dir] == nil {
			return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOENT}
		}
		f = &powerFile{mtime: time.Now()}
		p.names[name] = f
	}
	if flags&os.O_TRUNC != 0 {
		f.data = nil
	}
	return &powerHandle{p: p, f: f, name: name, direct: flags&oDirect != 0}, nil
}

func (p *powerFS) mkdir(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.do("mkdir", name); err != nil {
		return err
	}
	if p.names[name] != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: syscall.EEXIST}
	}
	p.names[name] = &powerFile{folder: true, mtime: time.Now()}
	return nil
}

func (p *powerFS) rename(from, to string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.do("rename", to); err != nil {
		return err
	}
	f := p.names[from]
	if dir := path.Dir(to); f == nil || dir != "." && p.names[dir] == nil {
		return &fs.PathError{Op: "rename", Path: to, Err: syscall.ENOENT}
	}
	delete(p.names, from)
	p.names[to] = f
	return nil
}

func (p *powerFS) remove(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.do("remove", name); err != nil {
		return err
	}
	f := p.names[name]
	if f == nil {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOENT}
	}
	p.free += int64(len(f.data))
	delete(p.names, name)
	return nil
}

type powerEntry struct {
	name string
	f    *powerFile
}

func (e powerEntry) Name() string               { return e.name }
func (e powerEntry) IsDir() bool                { return e.f.folder }
func (e powerEntry) Type() fs.FileMode          { return e.Mode().Type() }
func (e powerEntry) Info() (fs.FileInfo, error) { return e, nil }
func (e powerEntry) Size() int64                { return int64(len(e.f.data)) }
func (e powerEntry) ModTime() time.Time         { return e.f.mtime }
func (e powerEntry) Sys() any                   { return nil }
func (e powerEntry) Mode() fs.FileMode {
	if e.f.folder {
		return fs.ModeDir | 0o755
	}
	return 0o644
}

func (p *powerFS) list(name string) ([]fs.DirEntry, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.do("list", name); err != nil {
		return nil, err
	}
	if name != "." && p.names[name] == nil {
		return nil, &fs.PathError{Op: "list", Path: name, Err: syscall.ENOENT}
	}
	var out []fs.DirEntry
	for _, n := range slices.Sorted(maps.Keys(p.names)) {
		if path.Dir(n) == name {
			out = append(out, powerEntry{path.Base(n), p.names[n]})
		}
	}
	return out, nil
}

func (p *powerFS) syncFolder(name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.do("syncfolder", name); err != nil {
		return err
	}
	for _, m := range []map[string]*powerFile{p.names, p.safe} {
		for n := range m {
			if path.Dir(n) != name {
				continue
			}
			if f := p.names[n]; f != nil {
				p.safe[n] = f
			} else {
				delete(p.safe, n)
			}
		}
	}
	return nil
}

func (p *powerFS) space() (free, total uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.do("space", "."); err != nil {
		return 0, 0, err
	}
	return uint64(max(p.free, 0)), 1 << 30, nil
}

func (p *powerFS) in(path string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone || p.at != nil && p.at(path) != p {
		return errors.New("another folder is there now")
	}
	return nil
}

func (p *powerFS) close() error { return nil }

type powerHandle struct {
	p      *powerFS
	f      *powerFile
	name   string
	direct bool
	owns   bool // the lock
}

// misaligned is what a kernel says to direct I/O that is not in whole blocks.
func (h *powerHandle) misaligned(b []byte, off int64) bool {
	return h.direct && (!aligned(b) || len(b)%Align != 0 || off%Align != 0)
}

func (h *powerHandle) ReadAt(b []byte, off int64) (int, error) {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if err := h.p.do("read", h.name); err != nil {
		return 0, err
	}
	if h.misaligned(b, off) {
		return 0, &fs.PathError{Op: "read", Path: h.name, Err: syscall.EINVAL}
	}
	if off >= int64(len(h.f.data)) {
		return 0, io.EOF
	}
	n := copy(b, h.f.data[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (h *powerHandle) WriteAt(b []byte, off int64) (int, error) {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if err := h.p.do("write", h.name); err != nil {
		return 0, err
	}
	if h.misaligned(b, off) {
		return 0, &fs.PathError{Op: "write", Path: h.name, Err: syscall.EINVAL}
	}
	if more := off + int64(len(b)) - int64(len(h.f.data)); more > 0 {
		if more > h.p.free {
			return 0, &fs.PathError{Op: "write", Path: h.name, Err: syscall.ENOSPC}
		}
		h.p.free -= more
		h.f.data = append(h.f.data, make([]byte, more)...)
	}
	// What was synced keeps its own bytes.
	h.f.data = slices.Clone(h.f.data)
	return copy(h.f.data[off:], b), nil
}

func (h *powerHandle) allocate(n int64) error {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if err := h.p.do("allocate", h.name); err != nil {
		return err
	}
	if n > h.p.free {
		return &fs.PathError{Op: "allocate", Path: h.name, Err: syscall.ENOSPC}
	}
	return nil
}

func (h *powerHandle) truncate(n int64) error {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	h.p.free += int64(len(h.f.data)) - n
	h.f.data = slices.Clone(h.f.data[:n])
	return nil
}

func (h *powerHandle) sync() error {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if err := h.p.do("sync", h.name); err != nil {
		return err
	}
	h.f.safe = slices.Clone(h.f.data)
	return nil
}

func (h *powerHandle) stat() (int64, fs.FileMode, error) {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	e := powerEntry{h.name, h.f}
	return e.Size(), e.Mode(), nil
}

func (h *powerHandle) directAlign() int { return 512 }

func (h *powerHandle) lock() error {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if h.p.locked != nil {
		return errLocked
	}
	h.p.locked, h.owns = h.f, true
	return nil
}

func (h *powerHandle) close() error {
	h.p.mu.Lock()
	defer h.p.mu.Unlock()
	if h.owns {
		h.p.locked, h.owns = nil, false
	}
	return nil
}

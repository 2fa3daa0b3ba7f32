package object

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// StoreConfig says where a shard keeps its stripes.
type StoreConfig struct {
	Deployment string
	Shard      int
	Dirs       []string // created if missing; the order is part of the layout
	// NoSync leaves out every fsync: a power cut may then lose what was acknowledged.
	NoSync bool
	// DirectIO is DirectOff, DirectAuto or DirectOn; empty is DirectOff.
	DirectIO string
	// Known is the file in which the shard remembers its directories, outside of
	// them; empty: it does not, and an empty directory is always a new one.
	Known string
	// Report is called when a directory goes out of use or comes back.
	Report func(DirectoryStatus)

	step func(string) error // tests fail single steps with it, or end the process
	open func(path string, create bool) (fileSystem, error)
}

// Store keeps the stripe files of one shard. It is safe for concurrent use.
type Store struct {
	shard   int
	dirs    []*directory
	deleted func(dir int, file string) // set by the store's service; nil: nobody asks
}

// OpenStore opens the directories, refuses those that belong to another shard,
// deployment or place in the list, and removes unfinished files. A directory that
// fails, or is not there although it was when the shard ran last, is out of use; if
// all are, it is an error.
func OpenStore(cfg StoreConfig) (*Store, error) {
	if cfg.open == nil {
		cfg.open = openRoot
	}
	if !slices.Contains([]string{"", DirectOff, DirectAuto, DirectOn}, cfg.DirectIO) {
		return nil, fmt.Errorf("%w: direct I/O %q: want %s, %s or %s", ErrBadRequest, cfg.DirectIO, DirectOff, DirectAuto, DirectOn)
	}
	known, err := readKnown(cfg.Known, cfg.Deployment, cfg.Shard)
	if err != nil {
		return nil, fmt.Errorf("shard %d: %w", cfg.Shard, err)
	}
	s := &Store{shard: cfg.Shard}
	working := 0
	var out error
	for i, path := range cfg.Dirs {
		d := &directory{index: i, sync: !cfg.NoSync, direct: cfg.DirectIO, open: cfg.open, step: cfg.step, report: cfg.Report, known: known.id(i),
			want: marker{Format: markerFormat, Deployment: cfg.Deployment, Shard: cfg.Shard, Directory: i}}
		if d.path, err = absolute(path, i); err == nil {
			d.m, err = d.mountIt(d.known)
		}
		if err == nil {
			d.known = d.m.id
			working++
			err = s.another(d)
		}
		s.dirs = append(s.dirs, d)
		switch {
		case errors.Is(err, ErrIO) || errors.Is(err, ErrNoSpace):
			d.health.takeOut(d, err, time.Now())
			out = both(out, err)
		case err != nil:
			return nil, both(fmt.Errorf("shard %d: %w", cfg.Shard, err), s.Close())
		}
	}
	if working == 0 && out != nil {
		return nil, both(fmt.Errorf("shard %d: %w", cfg.Shard, out), s.Close())
	}
	if err := s.remember(cfg, known); err != nil {
		return nil, both(fmt.Errorf("shard %d: %w", cfg.Shard, err), s.Close())
	}
	return s, nil
}

// another refuses a directory that is an earlier one under another name.
func (s *Store) another(d *directory) error {
	for _, e := range s.dirs {
		if e.m != nil && e.m.in(d.path) == nil {
			return fmt.Errorf("%w: directories %d and %d of shard %d are the same: %s", ErrWrongDir, e.index, d.index, s.shard, d.path)
		}
	}
	return nil
}

func (s *Store) remember(cfg StoreConfig, known knownDirectories) error {
	if cfg.Known == "" {
		return nil
	}
	now := known
	now.Directories = nil
	for _, d := range s.dirs {
		now.Directories = append(now.Directories, knownDirectory{d.path, d.known})
	}
	if slices.Equal(now.Directories, known.Directories) {
		return nil
	}
	if cfg.step != nil {
		if err := cfg.step("known"); err != nil {
			return err
		}
	}
	if err := now.write(cfg.Known); err != nil {
		return fmt.Errorf("%w: remember the directories in %s: %w", ErrIO, cfg.Known, err)
	}
	return nil
}

// Shard is the number of the shard that the store belongs to.
func (s *Store) Shard() int { return s.shard }

// Dirs is the number of directories.
func (s *Store) Dirs() int { return len(s.dirs) }

// Directories are the states of the directories, in their order.
func (s *Store) Directories() []DirectoryStatus {
	out := make([]DirectoryStatus, len(s.dirs))
	for i, d := range s.dirs {
		out[i] = d.status()
	}
	return out
}

// Check looks whether directories are still where they were, and probes those that
// are out of use and were not looked at lately. It returns when the next look is
// worth it. Calls must not run side by side.
func (s *Store) Check(now time.Time) time.Duration {
	for _, d := range s.dirs {
		switch out, due := d.health.due(now); {
		case !out:
			d.look()
		case due:
			// Why it stays out is what is told of it; the first cause stays.
			_ = d.probe()
		}
	}
	return probeEvery
}

// Close gives the directories up. It must not run beside other calls.
func (s *Store) Close() error {
	var err error
	for _, d := range s.dirs {
		err = both(err, d.close())
	}
	s.dirs = nil
	return err
}

// dir finds a directory and checks that file is a name FileName made for index.
func (s *Store) dir(dir int, file string, index uint32) (*directory, error) {
	if dir < 0 || dir >= len(s.dirs) {
		return nil, fmt.Errorf("%w: directory %d: shard %d has %d", ErrBadRequest, dir, s.shard, len(s.dirs))
	}
	_, i, ok := ParseFileName(file)
	if !ok {
		return nil, fmt.Errorf("%w: %s is not the name of a stripe file", ErrBadRequest, quote(file))
	}
	if i != index {
		return nil, fmt.Errorf("%w: %s is not the file of stripe %d", ErrBadRequest, quote(file), index)
	}
	return s.dirs[dir], nil
}

// Ready reports whether a stripe of so many bytes can be stored now, as far as it
// can be told beforehand: the directory is in use and has room.
func (s *Store) Ready(dir int, file string, index uint32, length uint64) error {
	d, err := s.dir(dir, file, index)
	if err != nil {
		return err
	}
	if length > MaxStripeBytes {
		return fmt.Errorf("%w: a stripe of %d bytes, at most %d are allowed", ErrBadRequest, length, MaxStripeBytes)
	}
	if err := d.health.err(d); err != nil {
		return err
	}
	m, done, err := d.use()
	if err != nil {
		return err
	}
	defer done()
	need := length + trailerBytes
	if free, total, err := m.space(); err == nil && total > 0 && free < need {
		return d.noRoom(free, need)
	}
	return nil
}

// Write stores a stripe and returns when it is durable: temporary name, data,
// fsync, rename, fsync of the folder. On an error nothing is left behind. m.XXH3
// and m.Length are the caller's claim about data; the length is checked here, the
// checksum by whoever received the bytes.
func (s *Store) Write(dir int, file string, meta *StripeMeta, data []byte) error {
	d, err := s.dir(dir, file, meta.Index)
	if err != nil {
		return err
	}
	if meta.Length != uint64(len(data)) {
		return fmt.Errorf("%w: %d bytes for a stripe of %d", ErrBadRequest, len(data), meta.Length)
	}
	if err := d.health.err(d); err != nil {
		return err
	}
	var trailer [trailerBytes]byte
	if err := encodeTrailer(&trailer, meta); err != nil {
		return err
	}
	m, done, err := d.use()
	if err != nil {
		return err
	}
	defer done()
	err = d.write(m, file, data, trailer[:])
	if errors.Is(err, fs.ErrNotExist) {
		if err := d.away(m); err != nil {
			return err
		}
		// Somebody removed a folder of ours that was empty; it can be made again.
		m.mu.Lock()
		clear(m.folders)
		m.mu.Unlock()
		if err = m.mkdir(incomingName); err == nil || errors.Is(err, fs.ErrExist) {
			err = d.write(m, file, data, trailer[:])
		}
	}
	if errors.Is(err, unix.EINVAL) && m.direct.Load() && d.direct == DirectAuto {
		// A file system that takes the flag and then not the write.
		m.direct.Store(false)
		err = d.write(m, file, data, trailer[:])
	}
	if err != nil {
		return d.fail(m, "write a stripe to", err, uint64(len(data)+trailerBytes))
	}
	return nil
}

func (d *directory) write(m *mount, file string, data, trailer []byte) (err error) {
	tmp := d.tmpName()
	if err := d.at("create"); err != nil {
		return err
	}
	flags := createFlags
	direct := m.direct.Load()
	if direct {
		flags |= oDirect
	}
	f, err := m.open(tmp, flags)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = both(err, d.discard(m, tmp))
		}
	}()
	if err := both(d.fill(f, direct, data, trailer), f.close()); err != nil {
		return err
	}
	fan := file[:2]
	if err := d.folder(m, fan); err != nil {
		return err
	}
	if err := d.at("rename"); err != nil {
		return err
	}
	if err := m.rename(tmp, file); err != nil {
		return err
	}
	if err := d.syncFolder(m, fan); err != nil {
		// The name is there but perhaps not durable. The caller is told that the
		// stripe was not stored, so it must not be there.
		return both(err, ignoreMissing(m.remove(file)))
	}
	_ = d.at("stored")
	return nil
}

// fill reserves the space first, so that a full disk is found before the time is
// spent and the file is laid out in one piece.
func (d *directory) fill(f storedFile, direct bool, data, trailer []byte) error {
	if err := d.at("reserve"); err != nil {
		return err
	}
	if err := f.allocate(int64(len(data) + len(trailer))); err != nil {
		return err
	}
	if err := d.at("write"); err != nil {
		return err
	}
	body := len(data)
	if direct {
		body = bodyLen(len(data))
		if err := writeBlocks(f, data[:body], 0); err != nil {
			return err
		}
	} else if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	if err := d.at("trailer"); err != nil {
		return err
	}
	if direct {
		if err := writeTail(f, int64(body), data[body:], trailer); err != nil {
			return err
		}
	} else if _, err := f.WriteAt(trailer, int64(len(data))); err != nil {
		return err
	}
	if !d.sync {
		return nil
	}
	if err := d.at("sync"); err != nil {
		return err
	}
	return f.sync()
}

func (d *directory) discard(m *mount, tmp string) error {
	if err := d.at("discard"); err != nil {
		return err
	}
	return ignoreMissing(m.remove(tmp))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// openStripe opens a stripe file and checks its length and trailer. On an error it
// is closed.
func (d *directory) openStripe(m *mount, o *openStripe, file string, direct bool) (err error) {
	flags := readFlags
	if direct {
		flags |= oDirect
	}
	f, err := m.open(file, flags)
	if errors.Is(err, unix.EINVAL) && direct {
		f, err = m.open(file, readFlags)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := d.away(m); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s in %s", ErrStripeNotFound, file, d.path)
	}
	if err != nil {
		return d.fail(m, "open "+file+" in", err, 0)
	}
	o.storedFile = f
	if err := d.checkTrailer(m, o, file); err != nil {
		_ = f.close()
		return err
	}
	return nil
}

func (d *directory) checkTrailer(m *mount, o *openStripe, file string) error {
	size, mode, err := o.stat()
	if err != nil {
		return d.fail(m, "stat "+file+" in", err, 0)
	}
	if !mode.IsRegular() || size < trailerBytes || size > MaxStripeBytes+trailerBytes {
		return fmt.Errorf("%w: %s in %s: %d bytes, %v: not a whole stripe file", ErrCorrupt, file, d.path, size, mode.Type())
	}
	length := int(size - trailerBytes)
	o.body = bodyLen(length)
	rest := length - o.body
	err = readTail(o.storedFile, int64(o.body), size, func(b []byte) error { copy(o.tail[:], b); return nil })
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s in %s: it was cut while it was read", ErrCorrupt, file, d.path)
	}
	if err != nil {
		return d.fail(m, "read the trailer of "+file+" in", err, 0)
	}
	o.meta, err = decodeTrailer(o.tail[rest : rest+trailerBytes])
	if err != nil {
		return fmt.Errorf("%s in %s: %w", file, d.path, err)
	}
	if o.meta.Length != uint64(length) {
		return fmt.Errorf("%w: %s in %s: the file holds %d bytes, its trailer says %d", ErrCorrupt, file, d.path, length, o.meta.Length)
	}
	return nil
}

// Stat reads what a stripe file says of itself, without its data.
func (s *Store) Stat(dir int, file string) (StripeMeta, error) {
	_, index, _ := ParseFileName(file)
	d, err := s.dir(dir, file, index)
	if err != nil {
		return StripeMeta{}, err
	}
	m, done, err := d.use()
	if err != nil {
		return StripeMeta{}, err
	}
	defer done()
	var f openStripe
	if err := d.openStripe(m, &f, file, false); err != nil {
		return f.meta, err
	}
	return f.meta, f.close()
}

// Verify reads a stripe and compares it with its checksum. Damage is ErrCorrupt;
// offset is where in the file a read failed, or -1.
func (s *Store) Verify(dir int, file string) (meta StripeMeta, offset int64, err error) {
	_, index, _ := ParseFileName(file)
	d, err := s.dir(dir, file, index)
	if err != nil {
		return meta, -1, err
	}
	m, done, err := d.use()
	if err != nil {
		return meta, -1, err
	}
	defer done()
	var f openStripe
	if err := d.openStripe(m, &f, file, m.direct.Load()); err != nil {
		return f.meta, -1, err
	}
	defer func() { _ = f.close() }()
	buf := bounces.Get().(*[]byte)
	defer bounces.Put(buf)
	h := xxh3.New()
	for off := 0; off < f.body; {
		part := (*buf)[:min(bounceBytes, f.body-off)]
		err := d.at("read")
		if err == nil {
			_, err = f.ReadAt(part, int64(off))
		}
		if err != nil {
			return f.meta, int64(off), d.fail(m, fmt.Sprintf("read %s at byte %d from", file, off), err, 0)
		}
		_, _ = h.Write(part)
		off += len(part)
	}
	_, _ = h.Write(f.tail[:f.meta.Length-uint64(f.body)])
	if sum := h.Sum64(); sum != f.meta.XXH3 {
		return f.meta, -1, fmt.Errorf("%w: %s in %s: xxh3 %s, %s was stored", ErrCorrupt, file, d.path, Hex(sum), Hex(f.meta.XXH3))
	}
	return f.meta, -1, nil
}

// Delete removes a stripe and reports whether it was there. The name carries the
// identity, so nothing has to be read.
func (s *Store) Delete(dir int, file string, id Identity) (bool, error) {
	d, err := s.dir(dir, file, id.Index)
	if err != nil {
		return false, err
	}
	if h, _, _ := ParseFileName(file); h != id.Handle {
		return false, fmt.Errorf("%w: %s is not a file of %s", ErrStale, file, id.Handle)
	}
	m, done, err := d.use()
	if err != nil {
		return false, err
	}
	defer done()
	err = d.at("remove")
	if err == nil {
		err = m.remove(file)
	}
	// Not before: who has the file open is told here, and later nobody can open it.
	if s.deleted != nil && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		s.deleted(dir, file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		// What is on a file system that is away comes back with it.
		return false, d.away(m)
	}
	if err != nil {
		return false, d.fail(m, "remove "+file+" from", err, 0)
	}
	_ = d.at("removed")
	return true, nil
}

// Entry is one file of a directory.
type Entry struct {
	Dir      int
	File     string
	Bytes    int64 // of the file, trailer included
	Modified time.Time
}

// List calls yield for every stripe file of a directory, in the order of their
// names, until yield fails. Files that come or go meanwhile may be missed.
func (s *Store) List(ctx context.Context, dir int, yield func(Entry) error) error {
	if dir < 0 || dir >= len(s.dirs) {
		return fmt.Errorf("%w: directory %d: shard %d has %d", ErrBadRequest, dir, s.shard, len(s.dirs))
	}
	d := s.dirs[dir]
	fans, err := d.list(".")
	if err != nil {
		return err
	}
	for _, fan := range fans {
		if !fan.IsDir() || !isHex(fan.Name(), 2) {
			continue
		}
		files, err := d.list(fan.Name())
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := ctx.Err(); err != nil {
				return err
			}
			name := fan.Name() + "/" + f.Name()
			if _, _, ok := ParseFileName(name); !ok {
				continue
			}
			fi, err := f.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("%w: stat %s in %s: %w", ErrIO, name, d.path, err)
			}
			if err := yield(Entry{Dir: dir, File: name, Bytes: fi.Size(), Modified: fi.ModTime()}); err != nil {
				return err
			}
		}
	}
	return nil
}

// list holds the mount for one folder only: what is done with its files may need it.
func (d *directory) list(name string) ([]fs.DirEntry, error) {
	m, done, err := d.use()
	if err != nil {
		return nil, err
	}
	defer done()
	ents, err := m.list(name)
	if errors.Is(err, fs.ErrNotExist) && name != "." {
		return nil, d.away(m) // removed since
	}
	if err == nil && name == "." {
		err = d.away(m)
		return ents, err
	}
	if err != nil {
		return nil, d.fail(m, "list "+name+" in", err, 0)
	}
	return ents, nil
}

// Space is the free bytes of a directory's file system and its size.
func (s *Store) Space(dir int) (free, total uint64, err error) {
	if dir < 0 || dir >= len(s.dirs) {
		return 0, 0, fmt.Errorf("%w: directory %d: shard %d has %d", ErrBadRequest, dir, s.shard, len(s.dirs))
	}
	return s.dirs[dir].space()
}

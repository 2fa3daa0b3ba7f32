package object

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// StoreConfig says where a shard keeps its stripes.
type StoreConfig struct {
	Deployment string
	Shard      int
	Dirs       []string // created if missing; the order is part of the layout
	// NoSync leaves out every fsync: a power cut may then lose what was acknowledged.
	NoSync bool

	step func(string) error // tests fail single steps with it
}

// Store keeps the stripe files of one shard. It is safe for concurrent use.
type Store struct {
	shard int
	dirs  []*directory
}

// OpenStore opens the directories, refuses those that belong to another shard,
// deployment or place in the list, and removes unfinished files.
func OpenStore(cfg StoreConfig) (*Store, error) {
	s := &Store{shard: cfg.Shard}
	var seen []os.FileInfo
	for i, path := range cfg.Dirs {
		d, err := openDirectory(path, marker{Format: 1, Deployment: cfg.Deployment, Shard: cfg.Shard, Directory: i}, !cfg.NoSync, cfg.step)
		if err == nil {
			s.dirs = append(s.dirs, d)
			var fi os.FileInfo
			if fi, err = d.root.Stat("."); err == nil {
				for j, f := range seen {
					if os.SameFile(f, fi) {
						err = fmt.Errorf("%w: directories %d and %d of shard %d are the same: %s", ErrWrongDir, j, i, cfg.Shard, d.path)
					}
				}
				seen = append(seen, fi)
			}
		}
		if err != nil {
			return nil, both(fmt.Errorf("shard %d: %w", cfg.Shard, err), s.Close())
		}
	}
	return s, nil
}

// Shard is the number of the shard that the store belongs to.
func (s *Store) Shard() int { return s.shard }

// Dirs is the number of directories.
func (s *Store) Dirs() int { return len(s.dirs) }

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

// Write stores a stripe and returns when it is durable: temporary name, data,
// fsync, rename, fsync of the folder. On an error nothing is left behind. m.XXH3
// and m.Length are the caller's claim about data; the length is checked here, the
// checksum by whoever received the bytes.
func (s *Store) Write(dir int, file string, m *StripeMeta, data []byte) error {
	d, err := s.dir(dir, file, m.Index)
	if err != nil {
		return err
	}
	if m.Length != uint64(len(data)) {
		return fmt.Errorf("%w: %d bytes for a stripe of %d", ErrBadRequest, len(data), m.Length)
	}
	var trailer [trailerBytes]byte
	if err := encodeTrailer(&trailer, m); err != nil {
		return err
	}
	if err := d.write(file, data, trailer[:]); err != nil {
		return d.fail("write a stripe to", err, uint64(len(data)+trailerBytes))
	}
	return nil
}

func (d *directory) write(file string, data, trailer []byte) (err error) {
	tmp := fmt.Sprintf("%s/%d%s", incomingName, d.seq.Add(1), tmpSuffix)
	if err := d.at("create"); err != nil {
		return err
	}
	f, err := d.root.OpenFile(tmp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = both(err, d.discard(tmp))
		}
	}()
	if err := both(d.fill(f, data, trailer), f.Close()); err != nil {
		return err
	}
	fan := file[:2]
	if err := d.folder(fan); err != nil {
		return err
	}
	if err := d.at("rename"); err != nil {
		return err
	}
	if err := d.root.Rename(tmp, file); err != nil {
		return err
	}
	if err := d.syncFolder(fan); err != nil {
		// The name is there but perhaps not durable. The caller is told that the
		// stripe was not stored, so it must not be there.
		return both(err, ignoreMissing(d.root.Remove(file)))
	}
	return nil
}

// fill reserves the space first, so that a full disk is found before the time is
// spent and the file is laid out in one piece.
func (d *directory) fill(f *os.File, data, trailer []byte) error {
	if err := d.at("reserve"); err != nil {
		return err
	}
	err := unix.Fallocate(int(f.Fd()), 0, 0, int64(len(data)+len(trailer)))
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if err := d.at("write"); err != nil {
		return err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	if _, err := f.WriteAt(trailer, int64(len(data))); err != nil {
		return err
	}
	if !d.sync {
		return nil
	}
	if err := d.at("sync"); err != nil {
		return err
	}
	return f.Sync()
}

func (d *directory) discard(tmp string) error {
	if err := d.at("discard"); err != nil {
		return err
	}
	return ignoreMissing(d.root.Remove(tmp))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Read reads a whole stripe into dst and returns what the file says of itself.
// The file must carry the wanted identity (ErrStale otherwise) and exactly
// len(dst) bytes: ErrTooSmall if it has more, ErrWrongLength if it has less. A
// file that is cut or whose trailer is damaged is ErrCorrupt. The data's checksum
// is not computed: the receiver does it, or Verify.
func (s *Store) Read(dir int, file string, want Identity, dst []byte) (StripeMeta, error) {
	d, err := s.dir(dir, file, want.Index)
	if err != nil {
		return StripeMeta{}, err
	}
	f, m, err := d.open(file)
	if err != nil {
		return m, err
	}
	defer func() { _ = f.Close() }()
	switch n := uint64(len(dst)); {
	case m.Identity != want:
		return m, fmt.Errorf("%w: %s is generation %d of %s, asked for generation %d of %s", ErrStale, file, m.Generation, m.Handle, want.Generation, want.Handle)
	case m.Length > n:
		return m, fmt.Errorf("%w: stripe %d has %d bytes, the buffer %d", ErrTooSmall, want.Index, m.Length, n)
	case m.Length < n:
		return m, fmt.Errorf("%w: stripe %d has %d bytes, asked for %d", ErrWrongLength, want.Index, m.Length, n)
	}
	if err := d.at("read"); err != nil {
		return m, d.fail("read a stripe from", err, 0)
	}
	if _, err := f.ReadAt(dst, 0); err != nil {
		return m, d.fail("read "+file+" from", err, 0)
	}
	return m, nil
}

// open opens a stripe file and checks its length and trailer.
func (d *directory) open(file string) (*os.File, StripeMeta, error) {
	f, err := d.root.OpenFile(file, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, StripeMeta{}, fmt.Errorf("%w: %s in %s", ErrStripeNotFound, file, d.path)
	}
	if err != nil {
		return nil, StripeMeta{}, d.fail("open "+file+" in", err, 0)
	}
	m, err := d.checkTrailer(f, file)
	if err != nil {
		_ = f.Close()
		return nil, m, err
	}
	return f, m, nil
}

func (d *directory) checkTrailer(f *os.File, file string) (StripeMeta, error) {
	fi, err := f.Stat()
	if err != nil {
		return StripeMeta{}, d.fail("stat "+file+" in", err, 0)
	}
	if !fi.Mode().IsRegular() || fi.Size() < trailerBytes {
		return StripeMeta{}, fmt.Errorf("%w: %s in %s: %d bytes, %v: not a whole stripe file", ErrCorrupt, file, d.path, fi.Size(), fi.Mode().Type())
	}
	var t [trailerBytes]byte
	if _, err := f.ReadAt(t[:], fi.Size()-trailerBytes); err != nil {
		return StripeMeta{}, d.fail("read the trailer of "+file+" in", err, 0)
	}
	m, err := decodeTrailer(t[:])
	if err != nil {
		return m, fmt.Errorf("%s in %s: %w", file, d.path, err)
	}
	if m.Length != uint64(fi.Size()-trailerBytes) {
		return m, fmt.Errorf("%w: %s in %s: the file holds %d bytes, its trailer says %d", ErrCorrupt, file, d.path, fi.Size()-trailerBytes, m.Length)
	}
	return m, nil
}

// Stat reads what a stripe file says of itself, without its data.
func (s *Store) Stat(dir int, file string) (StripeMeta, error) {
	_, index, _ := ParseFileName(file)
	d, err := s.dir(dir, file, index)
	if err != nil {
		return StripeMeta{}, err
	}
	f, m, err := d.open(file)
	if err != nil {
		return m, err
	}
	return m, f.Close()
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
	err = d.at("remove")
	if err == nil {
		err = d.root.Remove(file)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, d.fail("remove "+file+" from", err, 0)
	}
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
	fans, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return d.fail("list", err, 0)
	}
	for _, fan := range fans {
		if !fan.IsDir() || !isHex(fan.Name(), 2) {
			continue
		}
		files, err := fs.ReadDir(d.root.FS(), fan.Name())
		if err != nil {
			return d.fail("list "+fan.Name()+" in", err, 0)
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
				return d.fail("stat "+name+" in", err, 0)
			}
			if err := yield(Entry{Dir: dir, File: name, Bytes: fi.Size(), Modified: fi.ModTime()}); err != nil {
				return err
			}
		}
	}
	return nil
}

// Space is the free bytes of a directory's file system and its size.
func (s *Store) Space(dir int) (free, total uint64, err error) {
	if dir < 0 || dir >= len(s.dirs) {
		return 0, 0, fmt.Errorf("%w: directory %d: shard %d has %d", ErrBadRequest, dir, s.shard, len(s.dirs))
	}
	return s.dirs[dir].space()
}

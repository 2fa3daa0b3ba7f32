package launch

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Files that grow are put aside as NAME.1 when they are long, NAME.1 as NAME.2,
// and so on. A trail reads all of them as one text. It tells files apart by inode
// and keeps those that it has read open: a writer may have looked at the name
// just before the file was put aside, and its line still counts.

// generations is how many files that were put aside are kept.
const generations = 4

func generation(path string, n int) string {
	if n == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, n)
}

// Position is a place in a file that may be put aside meanwhile. The zero Position
// is the beginning of all that is kept.
type Position struct {
	file   inode
	born   int64 // of the file, as the number of one that is gone may be another's by now
	offset int64
}

// Here is the end of the file: where to begin reading what will come.
func Here(path string) Position {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return Position{}
	}
	return Position{inode{dev: st.Dev, ino: st.Ino}, born(unix.AT_FDCWD, path), st.Size}
}

// born is when a file was made, in nanoseconds; 0 where the file system does not
// tell. An empty path is the descriptor itself.
func born(fd int, path string) int64 {
	var st unix.Statx_t
	if err := unix.Statx(fd, path, unix.AT_EMPTY_PATH, unix.STATX_BTIME, &st); err != nil || st.Mask&unix.STATX_BTIME == 0 {
		return 0
	}
	return st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
}

// strand is one of the files.
type strand struct {
	file   *os.File
	id     inode
	born   int64
	offset int64
	rd     *bufio.Reader
	part   []byte // of a line without an end so far
	start  int64  // of that line
}

type trail struct {
	path    string
	from    Position
	strands []*strand // oldest first
}

func (t *trail) close() {
	for _, s := range t.strands {
		_ = s.file.Close()
	}
	t.strands = nil
}

// refresh opens the files that are new. Files only ever move from a generation to
// the next, so looking from the newest to the older ones misses none.
func (t *trail) refresh() error {
	newest := inode{}
	if n := len(t.strands); n > 0 {
		newest = t.strands[n-1].id
		if id, err := fileID(t.path); err == nil && id == newest {
			return nil
		}
	}
	var found []*strand // newest first
	known := func(id inode) bool {
		is := func(s *strand) bool { return s.id == id }
		return slices.ContainsFunc(t.strands, is) || slices.ContainsFunc(found, is)
	}
	for n := 0; n <= generations; n++ {
		f, err := os.Open(generation(t.path, n))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var st unix.Stat_t
		if err == nil {
			if err = unix.Fstat(int(f.Fd()), &st); err != nil {
				_ = f.Close()
			}
		}
		if err != nil {
			for _, s := range found {
				_ = s.file.Close()
			}
			return stateError(t.path, err)
		}
		id := inode{dev: st.Dev, ino: st.Ino}
		if known(id) {
			_ = f.Close()
			if id == newest {
				break
			}
			continue
		}
		found = append(found, &strand{file: f, id: id, born: born(int(f.Fd()), ""), rd: bufio.NewReader(f)})
	}
	slices.Reverse(found)
	if len(t.strands) == 0 {
		// A position in a file that is gone is before all that is there.
		if i := slices.IndexFunc(found, func(s *strand) bool { return s.id == t.from.file && s.born == t.from.born }); i >= 0 {
			for _, s := range found[:i] {
				_ = s.file.Close()
			}
			found = found[i:]
			if _, err := found[0].file.Seek(t.from.offset, io.SeekStart); err != nil {
				t.strands = found
				return err
			}
			found[0].offset, found[0].start = t.from.offset, t.from.offset
		}
	}
	t.strands = append(t.strands, found...)
	return nil
}

// forget closes files that can have no writer any more, as far as anybody can
// tell: as many newer ones are there as are kept.
func (t *trail) forget() {
	for len(t.strands) > generations+1 {
		_ = t.strands[0].file.Close()
		t.strands = t.strands[1:]
	}
}

// drain hands every whole line that is there to fn.
func (s *strand) drain(fn func(at Position, line []byte) error) error {
	if st, err := s.file.Stat(); err == nil && st.Size() < s.offset {
		s.offset, s.start, s.part = 0, 0, nil
		if _, err := s.file.Seek(0, io.SeekStart); err != nil {
			return err
		}
		s.rd.Reset(s.file)
	}
	for {
		b, err := s.rd.ReadSlice('\n')
		s.offset += int64(len(b))
		s.part = append(s.part, b...)
		switch {
		case err == nil:
			if err := s.hand(fn); err != nil {
				return err
			}
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			return nil
		default:
			return err
		}
	}
}

func (s *strand) hand(fn func(at Position, line []byte) error) error {
	at := Position{s.id, s.born, s.start}
	line := bytes.TrimSuffix(s.part, []byte("\n"))
	s.start, s.part = s.offset, s.part[:0]
	return fn(at, line)
}

// followPoll is how often a follower looks for more.
const followPoll = 100 * time.Millisecond

// Lines reads the lines of a file, and of those that were put aside from it, from
// a position on and hands each, without its end, to fn; the slice is valid during
// the call. With follow it waits for more, also for the file itself, until ctx
// ends, and then reads once more what is there: nothing that was written before
// the end of ctx is missed, and no line comes twice, also when the file is put
// aside meanwhile. A file that became shorter is read from its beginning. A last
// line without an end is handed out only when not following.
func Lines(ctx context.Context, path string, from Position, follow bool, fn func(line []byte) error) error {
	return walk(ctx, path, from, follow, func(_ Position, line []byte) error { return fn(line) })
}

func walk(ctx context.Context, path string, from Position, follow bool, fn func(at Position, line []byte) error) error {
	t := trail{path: path, from: from}
	defer t.close()
	tick := time.NewTicker(followPoll)
	defer tick.Stop()
	for {
		ended := ctx.Err() != nil
		if err := t.refresh(); err != nil {
			return err
		}
		if len(t.strands) == 0 && !follow {
			return stateError(path, fs.ErrNotExist)
		}
		for _, s := range t.strands {
			if err := s.drain(fn); err != nil {
				return err
			}
			if !follow && len(s.part) > 0 {
				if err := s.hand(fn); err != nil {
					return err
				}
			}
		}
		t.forget()
		if ended || !follow {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// Tail gives the position at which the last n lines begin, of those that keep
// says true to (nil: all); all that is kept when n is negative or more than there
// are.
func Tail(ctx context.Context, path string, n int, keep func(line []byte) bool) (Position, error) {
	switch {
	case n < 0:
		return Position{}, nil
	case n == 0:
		return Here(path), nil
	case keep == nil:
		return lastLines(path, n)
	}
	last := make([]Position, 0, min(n, 1024))
	next := 0
	err := walk(ctx, path, Position{}, false, func(at Position, line []byte) error {
		switch {
		case !keep(line):
		case len(last) < n:
			last = append(last, at)
		default:
			last[next] = at
			next = (next + 1) % n
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return Position{}, nil
	}
	if err != nil || len(last) < n {
		return Position{}, err
	}
	return last[next], nil
}

func lastLines(path string, n int) (Position, error) {
	t := trail{path: path}
	defer t.close()
	if err := t.refresh(); err != nil {
		return Position{}, err
	}
	for _, s := range slices.Backward(t.strands) {
		off, lines, err := lastIn(s.file, n)
		if err != nil {
			return Position{}, stateError(path, err)
		}
		if lines == n {
			return Position{s.id, s.born, off}, nil
		}
		n -= lines
	}
	return Position{}, nil
}

// lastIn gives where the last n lines of the file begin, or how many there are
// when there are fewer.
func lastIn(file *os.File, n int) (off int64, lines int, err error) {
	st, err := file.Stat()
	if err != nil || st.Size() == 0 {
		return 0, 0, err
	}
	const step = 32 << 10
	end := st.Size()
	buf := make([]byte, step)
	for pos := end; pos > 0; {
		size := min(pos, step)
		pos -= size
		if _, err := file.ReadAt(buf[:size], pos); err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		for i := size - 1; i >= 0; i-- {
			// The end of the last line does not begin another.
			if buf[i] != '\n' || pos+i == end-1 {
				continue
			}
			if lines++; lines == n {
				return pos + i + 1, n, nil
			}
		}
	}
	return 0, lines + 1, nil
}

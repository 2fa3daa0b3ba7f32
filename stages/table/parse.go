package table

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"
)

// snapshotReader reads the parts and believes nothing.
type snapshotReader struct {
	r    *bufio.Reader
	all  *xxh3.Hasher
	path string
	at   int64 // bytes that were read
	old  bool  // version 1
	// Of the tables that were read.
	rows, deleted uint64
}

func (in *snapshotReader) broken(format string, args ...any) error {
	return &SnapshotError{Path: in.path, Offset: in.at, What: fmt.Sprintf(format, args...)}
}

// read fills b, which is part of what.
func (in *snapshotReader) read(b []byte, what string) error {
	n, err := io.ReadFull(in.r, b)
	_, _ = in.all.Write(b[:n])
	in.at += int64(n)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return in.broken("it ends in %s", what)
	}
	return &SnapshotError{Path: in.path, Offset: in.at, What: "reading " + what, Err: &ioError{err}}
}

func (in *snapshotReader) head() (info Snapshot, err error) {
	b := make([]byte, headBytes)
	if err := in.read(b[:firstHeadBytes], "its head"); err != nil {
		return info, err
	}
	if string(b[:8]) != headMagic {
		return info, &SnapshotError{Path: in.path, What: "not a snapshot of tables: it begins with other bytes"}
	}
	le := binary.LittleEndian
	// The version before the checksum: another version may have another.
	switch info.Version = le.Uint32(b[8:]); info.Version {
	case 1:
		b, in.old, info.ID = b[:firstHeadBytes], true, firstID
	case snapshotVersion:
		if err := in.read(b[firstHeadBytes:], "its head"); err != nil {
			return info, err
		}
	default:
		return info, &VersionError{Path: in.path, Got: info.Version, Want: snapshotVersion}
	}
	b, sum := b[:len(b)-8], b[len(b)-8:]
	if xxh3.Hash(b) != le.Uint64(sum) {
		return info, in.broken("the checksum of its head is wrong")
	}
	n := le.Uint32(b[12:])
	if n > maxTables {
		return info, in.broken("%d tables, more than %d", n, maxTables)
	}
	info.Tables = int(n)
	if in.old {
		return info, nil
	}
	b = b[16:]
	for _, id := range []*SaveID{&info.ID, &info.Base, &info.Replaces} {
		b = b[copy(id[:], b):]
	}
	info.Created = time.Unix(0, int64(le.Uint64(b))).UTC()
	info.Place, info.Shards = int(le.Uint32(b[8:])), int(le.Uint32(b[12:]))
	info.Shape = le.Uint64(b[16:])
	name, zeros, _ := bytes.Cut(b[24:], []byte{0})
	info.BaseName = string(name)
	if len(bytes.Trim(zeros, "\x00")) > 0 {
		return info, in.broken("the name of its base goes on after its end")
	}
	if info.ID == (SaveID{}) || info.ID == info.Base {
		return info, in.broken("its ID is %s, that of its base %s", info.ID, info.Base)
	}
	return info, nil
}

// openSnapshot opens a file to read it. A pipe that somebody put there is refused: opening
// one waits for its other end, and nothing could end that.
func openSnapshot(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &ioError{err}
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	if err != nil {
		_ = f.Close() // it was only read
		return nil, &ioError{err}
	}
	return f, nil
}

// readHead reads the head of a file alone.
func readHead(path string) (Snapshot, error) {
	f, err := openSnapshot(path)
	if err != nil {
		return Snapshot{}, err
	}
	defer f.Close() // it was only read
	in := &snapshotReader{r: bufio.NewReaderSize(f, headBytes), all: xxh3.New(), path: path}
	return in.head()
}

func (in *snapshotReader) spec() (s Spec, has uint32, err error) {
	b := make([]byte, 4, 4+maxSpecBytes+8)
	if err := in.read(b, "the head of a table"); err != nil {
		return s, 0, err
	}
	n := binary.LittleEndian.Uint32(b)
	if n > maxSpecBytes {
		return s, 0, in.broken("the head of a table has %d bytes, more than %d", n, maxSpecBytes)
	}
	b = b[:4+n+8]
	if err := in.read(b[4:], "the head of a table"); err != nil {
		return s, 0, err
	}
	b, sum := b[:4+n], b[4+n:]
	if xxh3.Hash(b) != binary.LittleEndian.Uint64(sum) {
		return s, 0, in.broken("the checksum of the head of a table is wrong")
	}
	b = b[4:]
	if !in.old {
		if len(b) < 4 {
			return s, 0, in.broken("the head of a table is too short")
		}
		b, has = b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
		if has != tableWhole && has != tableChanges {
			return s, 0, in.broken("the head of a table with a part of the unknown kind %d", has)
		}
	}
	for _, str := range []*string{&s.Name, &s.Optimizer.Kind, &s.NonFinite} {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			return s, 0, in.broken("the head of a table is too short")
		}
		k := 2 + int(binary.LittleEndian.Uint16(b))
		*str, b = string(b[2:k]), b[k:]
	}
	numbers := s.Optimizer.numbers()
	if len(b) != 4+8*len(numbers) {
		return s, 0, in.broken("the head of table %q has %d bytes of numbers, want %d", s.Name, len(b), 4+8*len(numbers))
	}
	if dim := binary.LittleEndian.Uint32(b); dim <= MaxDim {
		s.Dim = int(dim)
	}
	for i, f := range numbers {
		*f = math.Float64frombits(binary.LittleEndian.Uint64(b[4+8*i:]))
	}
	whole, err := s.complete()
	if err != nil {
		return s, 0, &SnapshotError{Path: in.path, Offset: in.at, What: "the head of a table", Err: err}
	}
	if whole != s {
		return s, 0, in.broken("the head of table %q leaves out what Save writes", s.Name)
	}
	return s, has, nil
}

// block reads a block into buf or longer memory and checks it.
func (in *snapshotReader) block(l layout, buf []byte) (kind, rows int, b []byte, err error) {
	var head [blockHeadBytes]byte
	if err := in.read(head[:], "the head of a block"); err != nil {
		return 0, 0, nil, err
	}
	word := binary.LittleEndian.Uint64(head[:])
	n := 0
	switch count := uint32(word); word >> 32 {
	case blockRows:
		if count == 0 || count > uint32(l.perBlock()) {
			return 0, 0, nil, in.broken("a block of %d rows, want 1 to %d", count, l.perBlock())
		}
		rows = int(count)
		n = rows * l.record()
	case blockDeleted:
		if count == 0 || count > deletedPerBlock || in.old {
			return 0, 0, nil, in.broken("a block of %d deleted keys, want 1 to %d", count, deletedPerBlock)
		}
		rows = int(count)
		n = rows * 8
	case blockEnd:
		if count != 0 {
			return 0, 0, nil, in.broken("the end of a table with %d rows", count)
		}
		n = 16
		if in.old {
			n = 8
		}
	default:
		return 0, 0, nil, in.broken("a block of the unknown kind %d", word>>32)
	}
	b = resize(buf, n)
	if err := in.read(b, "a block"); err != nil {
		return 0, 0, nil, err
	}
	if xxh3.HashSeed(b, word) != binary.LittleEndian.Uint64(head[8:]) {
		return 0, 0, nil, in.broken("the checksum of the block that ends here is wrong")
	}
	return int(word >> 32), rows, b, nil
}

func (in *snapshotReader) foot() error {
	var b [footBytes]byte
	if err := in.read(b[:16], "its end"); err != nil {
		return err
	}
	want := in.all.Sum64()
	if err := in.read(b[16:], "its end"); err != nil {
		return err
	}
	switch {
	case string(b[:8]) != footMagic:
		return in.broken("more tables than its head says, or other bytes at its end")
	case binary.LittleEndian.Uint64(b[16:]) != want:
		return in.broken("the checksum of the whole is wrong")
	case binary.LittleEndian.Uint64(b[8:]) != in.rows:
		return in.broken("%d rows, its end says %d", in.rows, binary.LittleEndian.Uint64(b[8:]))
	}
	switch _, err := in.r.ReadByte(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return &SnapshotError{Path: in.path, Offset: in.at, What: "reading on after its end", Err: &ioError{err}}
	}
	return in.broken("there are bytes after its end")
}

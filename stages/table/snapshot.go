package table

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"io"
	"math"
	"time"

	"github.com/zeebo/xxh3"
)

// The parts of a snapshot; docs/tables.md has the format.
const (
	snapshotVersion = 2
	headMagic       = "RSTABLE\n"
	footMagic       = "RSTABEND"
	firstHeadBytes  = 8 + 4 + 4 + 8 // of version 1, which is read, too
	maxBaseName     = 128
	headBytes       = 8 + 4 + 4 + 3*16 + 8 + 4 + 4 + 8 + maxBaseName + 8
	blockHeadBytes  = 4 + 4 + 8
	footBytes       = 8 + 8 + 8

	blockRows    = 1 // a block of rows
	blockEnd     = 2 // the end of a table
	blockDeleted = 3 // keys whose rows were deleted

	// A block has as many records as fit in this, at least one.
	blockBytes = 256 << 10
	// deletedPerBlock is how many deleted keys one has at most.
	deletedPerBlock = blockBytes / 8

	maxTables    = 1 << 16
	maxSpecBytes = 1 << 10

	// What a snapshot has of a table.
	tableWhole   = 0 // all of it
	tableChanges = 1 // what has changed since the base
)

// SaveID tells one save from all others. The parts of a save, one at each shard, have the
// same.
type SaveID [16]byte

// NewSaveID draws one.
func NewSaveID() (id SaveID) {
	_, _ = rand.Read(id[:]) // it never fails
	return id
}

// firstID is what snapshots of version 1 have, which knew no IDs.
var firstID = SaveID{15: 1}

func (id SaveID) String() string { return hex.EncodeToString(id[:]) }

// SaveSpec says what is saved.
type SaveSpec struct {
	ID     SaveID   // a new one if it is zero
	Tables []string // all if there are none
	// Base is the ID of a save or load of this store: of tables that it has, only what has
	// changed since is written. BaseName is where LOAD finds it.
	Base     SaveID
	BaseName string
	// Of the shard that saves, for who loads.
	Place, Shards int
	// Replaces is the save that had the name when this one began.
	Replaces SaveID
}

// Snapshot is what the head of a snapshot says, and of one that was written or read, too,
// what is in it.
type Snapshot struct {
	Version  uint32
	ID       SaveID
	Base     SaveID // zero: it stands alone
	BaseName string
	Replaces SaveID
	Created  time.Time
	Place    int
	Shards   int
	Shape    uint64 // a hash of all that the specs of its tables say
	Tables   int
	Whole    int    // of these tables, those of which it has all rows
	Rows     uint64 // that it has
	Deleted  uint64 // keys that it says were deleted
	Bytes    int64
}

// record is the bytes of a row in a snapshot: the key, the row, the state.
func (l layout) record() int { return 8 + l.row + l.state }

// perBlock is how many records a block has at most.
func (l layout) perBlock() int { return max(1, blockBytes/l.record()) }

// snapshotWriter writes the parts and hashes what it writes.
type snapshotWriter struct {
	w    io.Writer
	all  *xxh3.Hasher
	info Snapshot
}

func (s *snapshotWriter) write(b []byte) error {
	_, _ = s.all.Write(b) // a hasher never fails
	s.info.Bytes += int64(len(b))
	if _, err := s.w.Write(b); err != nil {
		return &ioError{err}
	}
	return nil
}

func (s *snapshotWriter) head() error {
	in := &s.info
	le := binary.LittleEndian
	b := append(make([]byte, 0, headBytes), headMagic...)
	b = le.AppendUint32(b, snapshotVersion)
	b = le.AppendUint32(b, uint32(in.Tables))
	for _, id := range []SaveID{in.ID, in.Base, in.Replaces} {
		b = append(b, id[:]...)
	}
	b = le.AppendUint64(b, uint64(in.Created.UnixNano()))
	b = le.AppendUint32(b, uint32(in.Place))
	b = le.AppendUint32(b, uint32(in.Shards))
	b = le.AppendUint64(b, in.Shape)
	b = append(b, in.BaseName...)
	b = b[:headBytes-8]
	return s.write(le.AppendUint64(b, xxh3.Hash(b)))
}

// encode is the shape of a table as the format has it.
func (spec *Spec) encode(b []byte) []byte {
	for _, str := range []string{spec.Name, spec.Optimizer.Kind, spec.NonFinite} {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(str)))
		b = append(b, str...)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(spec.Dim))
	for _, f := range spec.Optimizer.numbers() {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(*f))
	}
	return b
}

// shapeOf is the hash of the shapes of tables.
func shapeOf(tables []*Table) uint64 {
	var b []byte
	for _, t := range tables {
		b = t.spec.encode(b)
	}
	return xxh3.Hash(b)
}

func (s *snapshotWriter) spec(spec Spec, has uint32) error {
	b := spec.encode(make([]byte, 4, 256))
	b = binary.LittleEndian.AppendUint32(b, has)
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return s.write(binary.LittleEndian.AppendUint64(b, xxh3.Hash(b)))
}

// numbers are the fields of an optimizer in the order of the format.
func (o *Optimizer) numbers() []*float64 {
	return []*float64{&o.LearningRate, &o.Eps, &o.Beta1, &o.Beta2, &o.WeightDecay, &o.InitialAccumulator}
}

// block writes b, whose first blockHeadBytes are free for the head.
func (s *snapshotWriter) block(kind, rows int, b []byte) error {
	head := uint64(uint32(rows)) | uint64(kind)<<32
	binary.LittleEndian.PutUint64(b, head)
	binary.LittleEndian.PutUint64(b[8:], xxh3.HashSeed(b[blockHeadBytes:], head))
	return s.write(b)
}

// end ends a table with so many rows and deleted keys.
func (s *snapshotWriter) end(rows, deleted uint64) error {
	s.info.Rows += rows
	s.info.Deleted += deleted
	b := make([]byte, blockHeadBytes, blockHeadBytes+16)
	b = binary.LittleEndian.AppendUint64(b, rows)
	return s.block(blockEnd, 0, binary.LittleEndian.AppendUint64(b, deleted))
}

func (s *snapshotWriter) foot() error {
	b := append(make([]byte, 0, footBytes), footMagic...)
	b = binary.LittleEndian.AppendUint64(b, s.info.Rows)
	_, _ = s.all.Write(b)
	b = binary.LittleEndian.AppendUint64(b, s.all.Sum64())
	s.info.Bytes += int64(len(b))
	if _, err := s.w.Write(b); err != nil {
		return &ioError{err}
	}
	return nil
}

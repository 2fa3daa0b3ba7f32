package ps

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/railstore/railstore/stages/table"
)

// A SAVE or LOAD over all shards goes step by step; see snapshot.go. A step has, instead
// of keys:
//
//	120  u64  number of the job, which the client draws for PREPARE
//	128  u8   step
//	129  u8   flags: 1 COMMIT of a SAVE although another save has the name
//	130  u8   bytes of the snapshot's name
//	131  u8   bytes of the base's name
//	132  u32  zero
//	136       ID of the save (16)
//	152       ID of the base (16); zeros: none
//	168       name, name of the base
//
// The answer to LOOK is what the shard has of the name: first the save that has it, zeros
// if none does, then those that wait for their commit, as many as there is room for. To a
// PREPARE that has ended it is what was written or read. One is:
//
//	 0       ID (16)
//	16  i64  when it was made, in ns since 1970
//	24  u64  hash of the tables' shapes
//	32  u64  rows
//	40  u64  keys that it says were deleted
//	48  u64  bytes
//	56  u32  tables
//	60  u32  of these, with all rows
const (
	stepHead      = 48
	snapshotBytes = 64
	maxSnapshot   = 128 // bytes of a name

	stepPrepare = 1
	stepCommit  = 2
	stepAbort   = 3
	stepLook    = 4 // LOAD only

	stepForce = 1

	respRunning = 8
)

// step is the request.
type step struct {
	number     uint64
	step       uint8
	force      bool
	id, baseID table.SaveID
	name, base string
}

func (s *step) bytes() []byte {
	b := make([]byte, stepHead, stepHead+len(s.name)+len(s.base))
	binary.LittleEndian.PutUint64(b, s.number)
	b[8], b[10], b[11] = s.step, uint8(len(s.name)), uint8(len(s.base))
	if s.force {
		b[9] = stepForce
	}
	copy(b[16:], s.id[:])
	copy(b[32:], s.baseID[:])
	return append(append(b, s.name...), s.base...)
}

func parseStep(op uint16, b []byte) (s step, err error) {
	bad := func(format string, args ...any) (step, error) {
		return step{}, fmt.Errorf("%w: "+format+" in %s", append(append([]any{ErrBadRequest}, args...), opName(op))...)
	}
	if len(b) < stepHead || len(b) != stepHead+int(b[10])+int(b[11]) {
		return bad("%d bytes of a step", len(b))
	}
	s = step{number: binary.LittleEndian.Uint64(b), step: b[8], force: b[9] == stepForce,
		name: string(b[stepHead:][:b[10]]), base: string(b[stepHead+int(b[10]):])}
	copy(s.id[:], b[16:])
	copy(s.baseID[:], b[32:])
	none := table.SaveID{}
	switch {
	case s.step < stepPrepare || s.step > stepLook || s.step == stepLook && op != OpLoad:
		return bad("step %d", s.step)
	case b[9]&^stepForce != 0 || s.force && (op != OpSave || s.step != stepCommit) || binary.LittleEndian.Uint32(b[12:]) != 0:
		return bad("flags %#x of step %d", b[9], s.step)
	case !table.ValidSnapshotName(s.name) || s.base != "" && !table.ValidSnapshotName(s.base):
		return bad("a snapshot's name is 1 to 128 of A-Z, a-z, 0-9, '.', '_' and -, beginning with a letter or digit, not %q or %q", s.name, s.base)
	case (s.id == none) != (s.step == stepLook):
		return bad("ID %s", s.id)
	case (s.base == "") != (s.baseID == none) || s.base != "" && (op != OpSave || s.step != stepPrepare):
		return bad("base %q with ID %s", s.base, s.baseID)
	}
	return s, nil
}

func putSnapshot(b []byte, s *table.Snapshot) {
	le := binary.LittleEndian
	copy(b, s.ID[:])
	created := int64(0)
	if !s.Created.IsZero() {
		created = s.Created.UnixNano()
	}
	le.PutUint64(b[16:], uint64(created))
	le.PutUint64(b[24:], s.Shape)
	le.PutUint64(b[32:], s.Rows)
	le.PutUint64(b[40:], s.Deleted)
	le.PutUint64(b[48:], uint64(s.Bytes))
	le.PutUint32(b[56:], uint32(s.Tables))
	le.PutUint32(b[60:], uint32(s.Whole))
}

// parseSnapshots reads what an answer has of snapshots, at least one.
func parseSnapshots(rsp *response, b []byte) ([]table.Snapshot, error) {
	if rsp.keys < 1 || len(b)%snapshotBytes != 0 || len(b)/snapshotBytes != rsp.keys {
		return nil, fmt.Errorf("%w: %d bytes about %d snapshots", ErrBadResponse, len(b), rsp.keys)
	}
	le := binary.LittleEndian
	out := make([]table.Snapshot, rsp.keys)
	for i := range out {
		s := &out[i]
		e := b[i*snapshotBytes:]
		copy(s.ID[:], e)
		s.Created = time.Unix(0, int64(le.Uint64(e[16:]))).UTC()
		s.Shape, s.Rows, s.Deleted, s.Bytes = le.Uint64(e[24:]), le.Uint64(e[32:]), le.Uint64(e[40:]), int64(le.Uint64(e[48:]))
		s.Tables, s.Whole = int(le.Uint32(e[56:])), int(le.Uint32(e[60:]))
	}
	return out, nil
}

// answer writes snapshots into an answer, as many as fit, and says its length.
func putSnapshots(out []byte, list []table.Snapshot) (int, error) {
	room := (len(out) - responseHeader) / snapshotBytes
	if room < 1 {
		return 0, fmt.Errorf("%w: room for %d bytes", ErrTooLarge, len(out))
	}
	list = list[:min(len(list), room)]
	for i := range list {
		putSnapshot(out[responseHeader+i*snapshotBytes:][:snapshotBytes], &list[i])
	}
	return (&response{keys: len(list), count: list[0].Tables}).put(out) + len(list)*snapshotBytes, nil
}

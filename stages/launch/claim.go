package launch

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/pipeline"
)

// Claim is a shard's proof of life: the lock on its lock file, held until Close
// or the end of the process.
type Claim struct {
	f      *os.File
	folder Folder
	shard  int
}

// record is what a shard writes into its lock file for those who look for it.
type record struct {
	Shard   int       `json:"shard"`
	PID     int       `json:"pid"`
	Start   uint64    `json:"start_ticks"`
	Started time.Time `json:"started"`
	Version string    `json:"version,omitempty"`
}

// openClaim makes and locks the lock file of a shard. ok is false when a process
// of that shard has it.
func (f Folder) openClaim(shard int) (file *os.File, ok bool, err error) {
	path := f.claimPath(shard)
	file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, stateError(path, err)
	}
	ok, err = tryLock(file)
	if err != nil {
		_ = file.Close()
		return nil, false, stateError(path, err)
	}
	if !ok {
		_ = file.Close()
		return nil, false, nil
	}
	return file, true, nil
}

// Claim is called by a shard's process first of all. fd is the descriptor that
// its launcher handed over, or -1 when there is no such launcher; then the lock
// is taken here. version is put into the record.
func (f Folder) Claim(shard, fd int, version string) (*Claim, error) {
	var file *os.File
	if fd >= 0 {
		id, err := fileID(f.claimPath(shard))
		if err != nil {
			return nil, stateError(f.claimPath(shard), err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || (inode{dev: st.Dev, ino: st.Ino}) != id {
			return nil, pipeline.Errorf(pipeline.LayerUsage, "claim", pipeline.AtShard(shard),
				"descriptor %d is not %s", fd, f.claimPath(shard)).
				WithHint("this command is started by rs up")
		}
		// Nothing that the shard starts may keep the lock alive.
		unix.CloseOnExec(fd)
		file = os.NewFile(uintptr(fd), f.claimPath(shard))
		ok, err := tryLock(file)
		if err != nil || !ok {
			_ = file.Close()
			return nil, pipeline.Errorf(pipeline.LayerProcess, "claim", pipeline.AtShard(shard), "descriptor %d does not hold the lock", fd)
		}
	} else {
		if err := f.Create(); err != nil {
			return nil, err
		}
		var ok bool
		var err error
		if file, ok, err = f.openClaim(shard); err != nil {
			return nil, err
		}
		if !ok {
			return nil, pipeline.Errorf(pipeline.LayerProcess, "claim", pipeline.AtShard(shard), "a process of this shard is running already").
				WithHint("stop it with rs down --deployment %s", f.Name)
		}
	}
	c := &Claim{f: file, folder: f, shard: shard}
	if err := errors.Join(removeIfThere(f.exitPath(shard)), c.write(version)); err != nil {
		_ = file.Close()
		return nil, stateError(f.runDir(), err)
	}
	return c, nil
}

func (c *Claim) write(version string) error {
	me, err := self()
	if err != nil {
		return err
	}
	b, err := json.Marshal(record{Shard: c.shard, PID: me.pid, Start: me.start, Started: time.Now().UTC(), Version: version})
	if err != nil {
		return err
	}
	return rewrite(c.f, append(b, '\n'))
}

// Close lets go of the lock. The lock file stays: removing it would let two
// processes hold locks on two files of one name.
func (c *Claim) Close() error { return c.f.Close() }

// readRecord gives the record in the shard's lock file, which may be older than
// the process that holds the lock: it is a place to look, not a proof.
func (f Folder) readRecord(shard int) (record, bool) {
	file, err := os.Open(f.claimPath(shard))
	if err != nil {
		return record{}, false
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, 4096))
	var r record
	if err != nil || json.Unmarshal(b, &r) != nil {
		return record{}, false
	}
	return r, true
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

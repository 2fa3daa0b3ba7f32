package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// process is a process of this machine: its id and, because ids are reused, the
// time it started in clock ticks since boot.
type process struct {
	pid   int
	start uint64
}

// self is the calling process.
func self() (process, error) {
	s, err := procStat(os.Getpid())
	return process{pid: os.Getpid(), start: s.start}, err
}

// stat is what /proc/PID/stat says of a process that matters here.
type stat struct {
	start   uint64 // clock ticks since boot
	state   byte   // R, S, ..., Z
	threads int    // that have not ended, the first one included
}

func procStat(pid int) (stat, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat takes the text of /proc/PID/stat. The second field is the command's
// name in parentheses and may itself have spaces and parentheses, so fields are
// counted from the last one.
func parseStat(b []byte) (s stat, err error) {
	i := bytes.LastIndexByte(b, ')')
	if i < 0 {
		return stat{}, errors.New("process stat: no command name")
	}
	f := strings.Fields(string(b[i+1:]))
	const stateField, threadsField, startField = 0, 17, 19 // fields 3, 20 and 22 of proc_pid_stat(5)
	if len(f) <= startField || len(f[stateField]) != 1 {
		return stat{}, errors.New("process stat: too few fields")
	}
	s.state = f[stateField][0]
	if s.threads, err = strconv.Atoi(f[threadsField]); err != nil {
		return stat{}, fmt.Errorf("process stat: threads: %w", err)
	}
	if s.start, err = strconv.ParseUint(f[startField], 10, 64); err != nil {
		return stat{}, fmt.Errorf("process stat: start time: %w", err)
	}
	return s, nil
}

// ended says whether nothing of the process runs any more. Its first thread can
// be a zombie while others still hold its descriptors; only when they have gone
// too are its ports free.
func (s stat) ended() bool {
	return (s.state == 'Z' || s.state == 'X') && s.threads <= 1
}

// running says whether the process exists and has not ended.
func (p process) running() bool {
	s, err := procStat(p.pid)
	return err == nil && s.start == p.start && !s.ended()
}

// startedAt is the wall clock time of the start, from the boot time.
func (p process) startedAt() (time.Time, bool) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return time.Time{}, false
	}
	for line := range strings.Lines(string(b)) {
		if s, ok := strings.CutPrefix(line, "btime "); ok {
			boot, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
			if err != nil {
				return time.Time{}, false
			}
			const ticksPerSecond = 100 // USER_HZ, fixed by the Linux ABI
			return time.Unix(boot, 0).Add(time.Duration(p.start) * (time.Second / ticksPerSecond)), true
		}
	}
	return time.Time{}, false
}

// signal sends sig to the process if it still holds the lock of the file at
// path. The handle is taken first and the identity checked after it, so what is
// signaled is what was checked, also when the id was reused in between.
func (p process) signal(sig os.Signal, path string) error {
	h, err := os.FindProcess(p.pid)
	if err != nil {
		return err
	}
	defer func() { _ = h.Release() }()
	id, err := fileID(path)
	if err != nil {
		return err
	}
	s, err := procStat(p.pid)
	if err != nil || s.start != p.start || !holdsLock(p.pid, id) {
		return os.ErrProcessDone
	}
	return h.Signal(sig)
}

// inode names a file on this machine.
type inode struct{ dev, ino uint64 }

func fileID(path string) (inode, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return inode{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return inode{dev: st.Dev, ino: st.Ino}, nil
}

// holders are the processes that hold the lock of the file at path, this one
// left out. first is looked at first (0: none): if it is a holder the others are
// not searched. hidden counts the processes whose descriptors this user may not
// see.
func holders(path string, first int) (found []process, hidden int, err error) {
	id, err := fileID(path)
	if err != nil {
		return nil, 0, err
	}
	if first > 0 && holdsLock(first, id) {
		if s, err := procStat(first); err == nil {
			return []process{{pid: first, start: s.start}}, 0, nil
		}
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, 0, err
	}
	me := os.Getpid()
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == me {
			continue
		}
		s, err := procStat(pid)
		if err != nil {
			continue
		}
		if _, err := os.ReadDir(fdDir(pid)); errors.Is(err, fs.ErrPermission) {
			hidden++
			continue
		}
		if holdsLock(pid, id) {
			found = append(found, process{pid: pid, start: s.start})
		}
	}
	return found, hidden, nil
}

func fdDir(pid int) string { return fmt.Sprintf("/proc/%d/fd", pid) }

// holdsLock says whether a descriptor of the process is the file and carries a
// lock on it. Having the file open is not enough: a look at the lock opens it
// too.
func holdsLock(pid int, id inode) bool {
	dir := fdDir(pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, e.Name()), &st) != nil || st.Dev != id.dev || st.Ino != id.ino {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, e.Name()))
		if err == nil && bytes.Contains(info, []byte("lock:")) {
			return true
		}
	}
	return false
}

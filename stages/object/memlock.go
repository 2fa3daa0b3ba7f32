package object

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// memlock tells how much memory this process may still lock. ok is false when
// nothing limits it, or nobody knows.
type memlock func() (limit, used uint64, ok bool)

// fits refuses n bytes, each locked once for each of pins devices, that the process may
// not lock: the device would refuse them, too, but only after some were registered, and
// in fewer words. A device of the embedded provider locks nothing.
func (m memlock) fits(n uint64, pins int) error {
	if pins == 0 || m == nil {
		return nil
	}
	limit, used, ok := m()
	if need := n * uint64(pins); ok && (used > limit || need > limit-used) {
		return fmt.Errorf("RLIMIT_MEMLOCK is %d bytes, %d are locked, and %d more are wanted: lower reader.maxStagingBytes or set ulimit -l to %d or more",
			limit, used, need, (used+need+1023)/1024)
	}
	return nil
}

// capIPCLock is the capability that lifts the limit.
const capIPCLock = 14

// processMemlock reads the limit of this process and what it has locked.
func processMemlock() (limit, used uint64, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil || r.Cur == unix.RLIM_INFINITY {
		return 0, 0, false
	}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, 0, false
	}
	defer func() { _ = f.Close() }()
	return memlockOf(bufio.NewScanner(f), r.Cur)
}

// memlockOf reads a /proc/PID/status.
func memlockOf(lines *bufio.Scanner, cur uint64) (limit, used uint64, ok bool) {
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		switch value = strings.TrimSpace(value); name {
		case "VmLck", "VmPin":
			// Devices pin, and the kernel holds pinned and locked pages against one limit each;
			// the larger sum is the safe reading.
			n, err := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 54)
			if err != nil {
				return 0, 0, false
			}
			used += n << 10
		case "CapEff":
			if caps, err := strconv.ParseUint(value, 16, 64); err == nil && caps>>capIPCLock&1 == 1 {
				return 0, 0, false
			}
		}
	}
	return cur, used, lines.Err() == nil
}

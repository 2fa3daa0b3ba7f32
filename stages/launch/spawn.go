package launch

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
)

// lockFD is the descriptor number under which a child finds its lock: the first
// one after standard input, output and error.
const lockFD = 3

// child is a shard's process that this process started and has not yet seen end.
type child struct {
	shard int
	proc  process
	log   int64 // where its output begins in the log
	ended bool
	how   string // once ended
}

// Program is the command line of a shard's process before the launcher's own
// arguments.
type Program []string

// thisProgram is the running rs. The name on disk is preferred over
// /proc/self/exe, after which the process would be called "exe"; it is only gone
// when rs was replaced meanwhile.
func thisProgram() Program {
	p, err := os.Executable()
	if err == nil {
		_, err = os.Stat(p)
	}
	if err != nil {
		p = "/proc/self/exe"
	}
	return Program{p}
}

// spawn starts the process of a shard: its own session, no terminal, output to
// its log, the lock of the shard in its hands from the first moment.
func (f Folder) spawn(shard int, program Program) (*child, error) {
	fail := func(err error) error {
		return pipeline.Errorf(pipeline.LayerProcess, "start", pipeline.AtShard(shard), "%w", err)
	}
	lock, ok, err := f.openClaim(shard)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, fail(fmt.Errorf("a process of this shard is running already"))
	}
	defer lock.Close() // the child has its own descriptor of the same lock
	if err := removeIfThere(f.exitPath(shard)); err != nil {
		return nil, stateError(f.exitPath(shard), err)
	}
	log, err := f.openLog(shard)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	st, err := log.Stat()
	if err != nil {
		return nil, stateError(f.LogPath(shard), err)
	}
	if len(program) == 0 {
		program = thisProgram()
	}
	cmd := exec.Command(program[0], program[1:]...)
	// A multi-call binary finds its command in argv[0].
	cmd.Args[0] = "rs"
	cmd.Args = append(cmd.Args, "serve", "--state", f.root(), "--deployment", f.Name,
		"--shard", strconv.Itoa(shard), "--lock-fd", strconv.Itoa(lockFD))
	cmd.Dir = f.Path
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, fail(err)
	}
	c := &child{shard: shard, proc: process{pid: cmd.Process.Pid}, log: st.Size()}
	// The child stays ours to reap, so its id cannot be reused before that.
	ps, err := procStat(c.proc.pid)
	_ = cmd.Process.Release()
	if err != nil {
		return c, fail(fmt.Errorf("process %d: %w", c.proc.pid, err))
	}
	c.proc.start = ps.start
	return c, nil
}

// logMost is the size from which a log is put aside when its shard starts anew.
const logMost = 8 << 20

func (f Folder) openLog(shard int) (*os.File, error) {
	path := f.LogPath(shard)
	if Size(path) > logMost {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, stateError(path, err)
		}
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, stateError(path, err)
	}
	return file, nil
}

// reap sees whether the child has ended, without waiting for it.
func (c *child) reap() bool {
	if c.ended {
		return true
	}
	var ws unix.WaitStatus
	pid, err := unix.Wait4(c.proc.pid, &ws, unix.WNOHANG, nil)
	switch {
	case err == unix.EINTR:
		return false
	case err != nil:
		// Somebody else reaped it: gone all the same.
		c.ended, c.how = true, "ended"
	case pid == 0:
		return false
	case ws.Signaled():
		c.ended = true
		c.how = fmt.Sprintf("killed by signal %d (%s)", int(ws.Signal()), unix.SignalName(ws.Signal()))
		if ws.Signal() == unix.SIGKILL {
			c.how += ": by hand, or because the machine or its control group ran out of memory"
		}
	default:
		c.ended = true
		c.how = fmt.Sprintf("ended with exit code %d", ws.ExitStatus())
	}
	return c.ended
}

// cause is why the child ended: its own last error, else the last line it wrote,
// else how the system says it ended.
func (c *child) cause(f Folder) error {
	if r, ok := f.readExit(c.shard); ok {
		if r.Error.Shard == nil {
			r.Error.Shard = &c.shard
		}
		return r.Error.Err()
	}
	e := pipeline.Errorf(pipeline.LayerProcess, "start", pipeline.AtShard(c.shard), "process %d %s", c.proc.pid, c.how)
	if w := lastWords(f.LogPath(c.shard), c.log); w != "" {
		e = pipeline.Errorf(pipeline.LayerProcess, "start", pipeline.AtShard(c.shard), "process %d %s; its last line: %s", c.proc.pid, c.how, w)
	}
	return e.WithHint("its output is in %s", f.LogPath(c.shard))
}

// checkLocal refuses a deployment with shards on other machines, which this
// launcher cannot start.
func checkLocal(d *deploy.Deployment) error {
	for i := range d.Shards {
		s := &d.Shards[i]
		h, ok := d.Host(s.Host)
		if !ok {
			return pipeline.Errorf(pipeline.LayerConfig, "up", pipeline.AtShard(s.ID), "its host %q is not among the hosts", s.Host)
		}
		if !isLocal(h.Address) {
			return pipeline.Errorf(pipeline.LayerProcess, "up", pipeline.AtShard(s.ID),
				"host %s has address %s, which is not of this machine, and shards are started on this machine only", h.Name, h.Address).
				WithHint("leave the host's address out, or run rs up on that host")
		}
	}
	return nil
}

func isLocal(address string) bool {
	if address == "" || address == "localhost" {
		return true
	}
	if n, err := os.Hostname(); err == nil && strings.EqualFold(n, address) {
		return true
	}
	ip := net.ParseIP(address)
	if ip == nil {
		return false
	}
	if ip.IsLoopback() {
		return true
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip) {
			return true
		}
	}
	return false
}

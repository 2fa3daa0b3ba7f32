package rxe

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

//go:embed guest/topology.sh
var topologyScript []byte

//go:embed guest/mend.sh
var mendScript []byte

// guestLimit ends a guest that hangs. A whole run stays well below it.
const guestLimit = 8 * time.Minute

// program is one thing that the guest runs.
type program struct {
	name  string
	shell string // a bash command; the job folder is $JOB
}

// section is what one program wrote, and how it ended.
type section struct {
	name   string
	output []byte
	code   int // -1: it did not end
	took   time.Duration
}

// job is a folder that the guest sees as $JOB, and what it is to run.
type job struct {
	dir      string
	programs []program
	env      []string
	limit    time.Duration
	memory   int // MiB
	cpu      string
	kernel   string // more parameters of the kernel
}

// guestCPU is a processor without what is dear in software, as carry-less multiplication,
// with which the kernel would compute its checksums.
const guestCPU = "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt"

// newJob makes the folder, with the topology in it. It is outside the test's own
// temporary folder because that one is called after the test, spaces and all.
func newJob(t *testing.T) *job {
	t.Helper()
	// A run that was killed left its folder; the lock says that none is at work.
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), "railstore-rxe-*"))
	for _, d := range old {
		_ = os.RemoveAll(d)
	}
	dir, err := os.MkdirTemp("", "railstore-rxe-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for name, text := range map[string][]byte{"topology.sh": topologyScript, "mend.sh": mendScript} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &job{dir: dir, limit: guestLimit, memory: 2048, cpu: guestCPU}
}

// repository is the folder of go.mod; tests run two levels below it.
func repository() string {
	root, err := filepath.Abs("../..")
	if err != nil {
		panic(err) // the working directory is gone
	}
	return root
}

// script is what the guest runs: the topology, then each program between two
// marks. A mark begins a line even when the program did not end its last one.
func (j *job) script() []byte {
	var b bytes.Buffer
	b.WriteString("export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp JOB=/tmp/job RS_GUEST=1 LC_ALL=C\n")
	for _, e := range j.env {
		fmt.Fprintf(&b, "export %s\n", e)
	}
	// The guest has temporary folders of its own. A repository inside the host's is
	// not seen under its path then, unless it is mounted there once more.
	root := quote(repository())
	fmt.Fprintf(&b, "[ -e %s/go.mod ] || { mkdir -p %s && mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose src %s; } || exit 1\n", root, root, root)
	for _, p := range append([]program{{"topology", "bash $JOB/topology.sh"}}, j.programs...) {
		fmt.Fprintf(&b, "echo '@@rxe begin %s'\nt=$EPOCHREALTIME\n(%s)\nr=$?\n", p.name, p.shell)
		b.WriteString("echo\necho \"@@rxe end $r $t $EPOCHREALTIME\"\n")
		if p.name == "topology" {
			b.WriteString("[ $r = 0 ] || exit 1\n")
		}
	}
	return b.Bytes()
}

var markRE = regexp.MustCompile(`^@@rxe (begin|end|exit) (\S+)(?: (\S+) (\S+))?\s*$`)

// run boots the guest and returns what each program wrote. live gets every line
// as it comes. The error is about the guest, not about the programs.
func (j *job) run(t *testing.T, k kernel, live io.Writer) ([]section, error) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(j.dir, "job.sh"), j.script(), 0o644); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), j.limit)
	defer cancel()
	qemu, err := lookPath("qemu-system-x86_64")
	if err != nil {
		return nil, err
	}
	console := filepath.Join(j.dir, "console")
	cmd := exec.CommandContext(ctx, qemu,
		// Software emulation always: a run is then the same everywhere, and KVM
		// inside virtual machines is known to hang.
		"-accel", "tcg,thread=multi", "-cpu", j.cpu, "-smp", "2", "-m", strconv.Itoa(j.memory),
		"-kernel", k.image, "-initrd", k.initramfs, "-append", "console=ttyS0 quiet panic=-1 mitigations=off clocksource=tsc tsc=reliable "+j.kernel,
		"-no-reboot", "-display", "none", "-monitor", "none", "-nic", "none",
		"-serial", "file:"+console, "-serial", "stdio",
		"-virtfs", "local,path=/,mount_tag=host,security_model=none,multidevs=remap,readonly=on",
		"-virtfs", "local,path="+repository()+",mount_tag=src,security_model=none,multidevs=remap,readonly=on",
		"-virtfs", "local,path="+j.dir+",mount_tag=job,security_model=none,multidevs=remap")
	// The guest dies with this process, whatever ends it. The kernel ties that to
	// the thread that started it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	sections, exited := readSections(out, live)
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("the guest did not end within %v and was killed", j.limit)
	case err == nil && !exited:
		err = errors.New("the guest ended early")
	}
	if err != nil {
		err = fmt.Errorf("%w\n%sthe guest's console said last:\n%s", err, stderr.String(), tail(console))
	}
	return sections, err
}

// tail is the end of a file.
func tail(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4000):])
}

// readSections cuts the job's output at its marks. exited tells that the job came
// to its end.
func readSections(r io.Reader, live io.Writer) (out []section, exited bool) {
	in := bufio.NewReader(r)
	var now *section
	for {
		line, err := in.ReadBytes('\n')
		if m := markRE.FindSubmatch(line); m != nil {
			switch string(m[1]) {
			case "begin":
				out = append(out, section{name: string(m[2]), code: -1})
				now = &out[len(out)-1]
			case "end":
				if now != nil {
					now.code, _ = strconv.Atoi(string(m[2]))
					from, _ := strconv.ParseFloat(string(m[3]), 64)
					to, _ := strconv.ParseFloat(string(m[4]), 64)
					now.took = time.Duration((to - from) * float64(time.Second))
					now.output = bytes.TrimSuffix(now.output, []byte("\n"))
					now = nil
				}
			case "exit":
				exited = true
			}
		} else if now != nil {
			now.output = append(now.output, line...)
		}
		if live != nil {
			_, _ = live.Write(line)
		}
		if err != nil {
			return out, exited
		}
	}
}

func TestReadSections(t *testing.T) {
	in := "noise\n@@rxe begin a\none\ntwo\n@@rxe end 3 10.25 12.5\n@@rxe begin b\nhalf"
	got, exited := readSections(strings.NewReader(in), nil)
	if exited || len(got) != 2 || string(got[0].output) != "one\ntwo" || got[0].code != 3 || got[0].took != 2250*time.Millisecond ||
		got[1].name != "b" || got[1].code != -1 || string(got[1].output) != "half" {
		t.Errorf("%+v", got)
	}
	if _, exited := readSections(strings.NewReader("@@rxe begin a\n@@rxe end 0 1 1\n@@rxe exit 0\n"), nil); !exited {
		t.Error("the end was not seen")
	}
}

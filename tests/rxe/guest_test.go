package rxe

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// testBinary is a package whose tests, or some of them, run in the guest.
type testBinary struct {
	name string
	pkg  string // from the repository's root
	with string // what goes before the command: NAME=VALUE, or another command
	run  string // pattern of tests
}

// inNamespaceFar changes the network alone: the folder of devices in /sys stays
// visible.
const inNamespaceFar = "nsenter --net=/run/netns/far"

// binaries of TestGuest, in the order in which they run.
var binaries = []testBinary{
	{"fabric", "verbs/fabric", "RS_TEST_IBV=rxe0,rxe2", "^TestGuest"},
	{"ibv", "verbs/ibv", "RS_TEST_IBV=rxe0,rxe2", "."},
	// Memory that C sees must not move, nor be Go's: collecting all the time would
	// show it.
	{"gc", "verbs/ibv", "GOGC=1 GODEBUG=cgocheck=1 RS_TEST_IBV=rxe0,rxe2", "^TestConformance$/^RoCEv2-IPv4$/^(data|completion|traffic)$"},
	{"lane", "verbs/lane", "RS_TEST_IBV=rxe0,rxe2", "^(TestBulk|TestCallEchoes|TestTickets|TestRequestsNeverMix|TestHandlerPanics|TestCloseWhileBusy|TestDetectionTimes)$"},
	{"ps", "stages/ps", "RS_TEST_IBV=rxe0,rxe2", "^(TestRowsComeBackExact|TestDuplicatesOverChunks|TestExistsDeleteClear|TestGatheredRowsAreWhole|TestSaveLoadRestart)$"},
	{"read", "stages/object", "RS_TEST_IBV_RAILS=rxe0,rxe1,rxe2,rxe3 RS_TEST_NETDEV_MEND='bash /tmp/job/mend.sh'",
		"^TestMatrix(Halves|LinkDownAndUp|BothLinksDown|OldGeneration|Checksum|DamagedFile|Noise|Cancel|SecondRailLate|UncertainCompletion|ControlTimeout|Slab|LateWrite)$"},
	{"inside", "tests/rxe", "", "^TestInside"},
	{"far", "tests/rxe", inNamespaceFar, "^TestFar"},
	{"outage", "tests", "RS_TEST_IBV_RAILS=rxe0,rxe1,rxe2,rxe3 RS_TEST_NETDEV=rb0 RS_TEST_NETDEV_MEND='bash /tmp/job/mend.sh'",
		"^(TestShardKilledAndRestarted|TestShardStoppedAndContinued|TestControlPlaneKilled|TestWire)$"},
}

// TestGuest runs every test that needs RDMA devices in one boot of the guest and
// forwards the results.
func TestGuest(t *testing.T) {
	need(t)
	sections, dir := runGuest(t, binaries)
	for _, s := range sections[1:] {
		t.Run(s.name, func(t *testing.T) {
			o, err := outcomes(s.output)
			if err != nil {
				t.Fatal(err)
			}
			n := make(map[string]int)
			o.count(n)
			t.Logf("%d passed, %d failed, %d skipped in %.0f s of the guest", n["pass"], n["fail"], n["skip"], s.took.Seconds())
			o.forward(t)
			if n["pass"] == 0 || s.code != 0 && n["fail"] == 0 {
				t.Errorf("exit code %d\n%s", s.code, s.output)
			}
		})
	}
	if only := os.Getenv("RS_RXE_ONLY"); only == "" || only == "far" {
		t.Run("captures", func(t *testing.T) { checkCaptures(t, dir) })
	}
}

// runGuest builds the binaries, boots, and returns what they wrote, and the job's
// folder; first comes what the topology wrote. size makes the guest another one than
// usual.
func runGuest(t *testing.T, bins []testBinary, size ...func(*job)) ([]section, string) {
	t.Helper()
	dir := cacheDir(t)
	exclusive(t, dir)
	k := fetchKernel(t, dir)
	j := newJob(t)
	for _, f := range size {
		f(j)
	}
	if s := os.Getenv("RS_TEST_SEED"); s != "" {
		j.env = append(j.env, "RS_TEST_SEED="+s)
	}
	for _, b := range bins {
		if only := os.Getenv("RS_RXE_ONLY"); only != "" && only != b.name {
			continue
		}
		j.programs = append(j.programs, b.build(t, j))
	}
	if len(j.programs) == 0 {
		t.Fatalf("RS_RXE_ONLY=%s names no program of the guest", os.Getenv("RS_RXE_ONLY"))
	}
	buildCommand(t, j.dir)
	start := time.Now()
	sections, err := j.run(t, k, liveOutput())
	t.Logf("guest with kernel %s: %.0f s", k.version, time.Since(start).Seconds())
	for _, s := range sections {
		t.Logf("%-12s exit code %d, %.1f s of the guest", s.name, s.code, s.took.Seconds())
	}
	if len(sections) == 0 || sections[0].code != 0 {
		t.Fatalf("the guest has no rails: %v\n%s", err, append([]section{{}}, sections...)[len(sections)].output)
	}
	if err != nil {
		t.Error(err)
	}
	if len(sections) != 1+len(j.programs) {
		t.Errorf("%d of %d programs ran", len(sections)-1, len(j.programs))
	}
	return sections, j.dir
}

// liveOutput is where the job's lines go as they come, under RS_RXE_LIVE=1.
func liveOutput() io.Writer {
	if os.Getenv("RS_RXE_LIVE") == "1" {
		return os.Stderr
	}
	return nil
}

// build compiles the package's tests into the job's folder, with cgo.
func (b testBinary) build(t *testing.T, j *job) program {
	t.Helper()
	dir := j.dir
	root := repository()
	file := path.Base(b.pkg) + ".test"
	if !exists(filepath.Join(dir, file)) {
		// RS_RXE_FLAGS=-race runs everything under the race detector, which takes long.
		args := append([]string{"test", "-c"}, strings.Fields(os.Getenv("RS_RXE_FLAGS"))...)
		cmd := exec.Command("go", append(args, "-o", filepath.Join(dir, file), "./"+b.pkg)...)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", b.pkg, err, bytes.TrimSpace(out))
		}
	}
	run := b.run
	if only := os.Getenv("RS_RXE_RUN"); only != "" {
		run = only
	}
	// A test finds its files where go test would run it.
	return program{b.name, fmt.Sprintf("cd %s && %s $JOB/%s -test.v=test2json -test.timeout=%v -test.run=%s",
		quote(filepath.Join(root, b.pkg)), b.with, file, j.limit-time.Minute, quote(run))}
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// inside skips a test that is not in the guest.
func inside(t *testing.T) {
	t.Helper()
	if os.Getenv("RS_GUEST") == "" {
		t.Skip("runs in the guest, through TestGuest")
	}
}

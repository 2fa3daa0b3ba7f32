package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/urfave/cli/v3"
	"go.uber.org/goleak"

	"github.com/railstore/railstore/cue/load"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/launch"
	"github.com/railstore/railstore/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rs runs one command line in this process.
func rs(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errw bytes.Buffer
	env := map[string]string{"HOME": t.TempDir()}
	a := &app{in: strings.NewReader(""), out: &out, err: &errw, getenv: func(k string) string { return env[k] }}
	code = a.run(context.Background(), append([]string{"rs"}, args...))
	return code, out.String(), errw.String()
}

func TestUsage(t *testing.T) {
	for _, tc := range []struct {
		args      string
		code      int
		out, errs string
	}{
		{"", 0, "Exit codes:", ""},
		{"--help", 0, "130  interrupted", ""},
		{"help vet", 0, "Examples:", ""},
		{"vet --help", 0, "rs vet recipes/two-rail.cue", ""},
		{"statsu x", 2, "", "rs: there is no command \"statsu\"\nhint: did you mean rs status?"},
		{"schema exprot", 2, "", "rs schema: there is no command \"exprot\""},
		{"vet", 2, "", "rs vet: missing RECIPE\nhint: usage: rs vet RECIPE...\n"},
		{"up a b", 2, "", "rs up: unexpected argument \"b\"\nhint: usage: rs up RECIPE\n"},
		{"up --timeout -1s x.cue", 2, "", "--timeout -1s: want a time above zero"},
		{"read --timeout 0s kv/a", 2, "", "--timeout 0s: want a time above zero"},
		{"read --watch --timeout 0s kv/a", 2, "", "--timeout 0s: want a time above zero"},
		{"run --timeout 0s x.cue j", 2, "", "--timeout 0s: want a time above zero"},
		{"bench read --check --timeout 0s", 2, "", "--timeout 0s: want a time above zero"},
		{"put --stripe 4097 kv/a x", 2, "", "--stripe 4097: want a multiple of 4 KiB up to 1 GiB"},
		{"put --stripe 2GiB kv/a x", 2, "", "--stripe 2GiB: want a multiple of 4 KiB up to 1 GiB"},
		{"events --tail -5", 3, "", "not running"},
		{"up --timeout soon x.cue", 2, "", "rs up: "},
		{"vet --no-such-flag x", 2, "", "rs vet: flag provided but not defined: -no-such-flag\nhint: rs vet --help\n"},
		{"--format yaml version", 2, "", "--format yaml: want text or json"},
		{"status a --deployment b", 2, "", "both \"a\" and --deployment \"b\""},
		{"down ../x", 2, "", "deployment: name \"../x\": want letters"},
		{"logs zero", 3, "", "not running"},
		{"version extra", 2, "", "unexpected argument"},
		{"up no-such-file.cue", 2, "", "no-such-file.cue"},
		{"serve", 2, "", "rs serve: "},
	} {
		t.Run(tc.args, func(t *testing.T) {
			code, out, errs := rs(t, strings.Fields(tc.args)...)
			if code != tc.code {
				t.Errorf("exit code %d, want %d", code, tc.code)
			}
			if !strings.Contains(out, tc.out) {
				t.Errorf("stdout %q, want in it %q", out, tc.out)
			}
			if !strings.Contains(errs, tc.errs) || tc.code == 0 && errs != "" {
				t.Errorf("stderr %q, want in it %q", errs, tc.errs)
			}
			if tc.code != 0 && strings.Contains(errs, "USAGE:") {
				t.Error("the help text was printed for an error")
			}
		})
	}
}

// fullDisk is a writer that takes nothing, like /dev/full.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

// TestLostResult: a result that could not be written is a failure, in every form.
func TestLostResult(t *testing.T) {
	for _, args := range []string{"--help", "version", "version --format json", "fabric", "plan ../../../recipes/two-rail.cue", "vet -v ../../../recipes/two-rail.cue"} {
		var errw bytes.Buffer
		a := &app{in: strings.NewReader(""), out: fullDisk{}, err: &errw, getenv: func(string) string { return "" }}
		code := a.run(context.Background(), append([]string{"rs"}, strings.Fields(args)...))
		if code != exitFailed || !strings.Contains(errw.String(), "ENOSPC(28)") || !strings.Contains(errw.String(), "output") {
			t.Errorf("%s: exit code %d, stderr %q", args, code, errw.String())
		}
	}
}

func TestJSONErrors(t *testing.T) {
	for _, args := range []string{"up --format json nothing.cue", "--format=json nonsense", "--format json status x"} {
		code, out, errs := rs(t, strings.Fields(args)...)
		var e struct {
			Error launch.Failure `json:"error"`
		}
		if err := json.Unmarshal([]byte(errs), &e); err != nil || e.Error.Message == "" || e.Error.Layer == "" {
			t.Errorf("%s: stderr %q: %v", args, errs, err)
		}
		if code == 0 || out != "" {
			t.Errorf("%s: exit code %d, stdout %q", args, code, out)
		}
	}
}

func TestEveryCommandHasExamples(t *testing.T) {
	var a app
	everyCommand(a.rootCommand(), func(c *cli.Command) {
		if !strings.Contains(c.Description, "Examples:\n   rs ") {
			t.Errorf("%s has no examples", c.Name)
		}
		if c.Usage == "" {
			t.Errorf("%s does not say what it does", c.Name)
		}
	})
}

func TestExitCodes(t *testing.T) {
	at := func(l pipeline.Layer) error { return pipeline.Errorf(l, "op", pipeline.Nowhere, "x") }
	for _, tc := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{errors.New("x"), 1},
		{at(pipeline.LayerStorage), 1},
		{usagef("x"), 2},
		{at(pipeline.LayerUsage), 2},
		{&load.InvalidError{Report: &load.Report{}}, 2},
		{reported{&load.InvalidError{Report: &load.Report{}}}, 2},
		{launch.ErrNotReady, 3},
		{fmt.Errorf("x: %w", launch.ErrNotRunning), 3},
		{errors.Join(at(pipeline.LayerUsage), launch.ErrNotReady), 3},
		{launch.ErrConflict, 1},
		{at(pipeline.LayerWait), 3},
		{context.DeadlineExceeded, 3},
		{at(pipeline.LayerIntegrity), 4},
		{errDegraded, 5},
		{fmt.Errorf("%w: %w", errInterrupted, launch.ErrNotReady), 130},
	} {
		if got := exitCode(tc.err); got != tc.want {
			t.Errorf("%v: %d, want %d", tc.err, got, tc.want)
		}
	}
}

func TestRender(t *testing.T) {
	dup := pipeline.Errorf(pipeline.LayerDevice, "read", pipeline.AtRail("b"), "%w", verbs.WCRetryExceeded).WithHint("look at rail b")
	other := pipeline.Errorf(pipeline.LayerDevice, "read", pipeline.AtRail("c"), "%w", verbs.WCRetryExceeded).WithHint("look at rail c")
	var errw bytes.Buffer
	a := &app{err: &errw, getenv: func(string) string { return "" }}
	a.printError(errors.Join(dup, errors.Join(other, dup), errReported))
	want := `read: rail b: transport retry counter exceeded (RETRY_EXC(12))
hint: look at rail b
read: rail c: transport retry counter exceeded (RETRY_EXC(12))
hint: look at rail c
`
	if errw.String() != want {
		t.Errorf("got\n%swant\n%s", errw.String(), want)
	}
	errw.Reset()
	a.errTTY = true
	a.printError(dup)
	if !strings.Contains(errw.String(), "\x1b[31m") {
		t.Errorf("no colour on a terminal: %q", errw.String())
	}
	errw.Reset()
	a.getenv = func(k string) string { return map[string]string{"NO_COLOR": "1"}[k] }
	a.printError(dup)
	if strings.Contains(errw.String(), "\x1b") {
		t.Errorf("colour in spite of NO_COLOR: %q", errw.String())
	}
}

func TestUnits(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{size(0), "0 B"}, {size(1023), "1023 B"}, {size(1024), "1 KiB"}, {size(1536), "1.5 KiB"},
		{size(64 << 20), "64 MiB"}, {size(1<<40 + 1), "1.0 TiB"}, {size(1<<64 - 1), "16.0 EiB"},
		{rate(1.25e9), "10.00 Gb/s (1.16 GiB/s)"},
		{seconds(0.0000012), "1 µs"}, {seconds(0.0123), "12.3 ms"}, {seconds(1.234), "1.23 s"}, {seconds(3600), "1h0m0s"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %s, want %s", tc.got, tc.want)
		}
	}
}

func TestSignals(t *testing.T) {
	var errw bytes.Buffer
	a := &app{err: &errw}
	exited := make(chan int, 1)
	ctx, stop := a.signals(context.Background(), func(code int) { exited <- code })
	send := func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	send()
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), errInterrupted) {
		t.Errorf("cause %v", context.Cause(ctx))
	}
	send()
	select {
	case code := <-exited:
		if code != exitInterrupted {
			t.Errorf("exit code %d", code)
		}
	case <-time.After(10 * time.Second):
		t.Error("the second signal did not end the process")
	}
	stop()
}

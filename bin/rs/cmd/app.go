package cmd

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/term"
)

// app is one run of rs.
type app struct {
	in     io.Reader
	out    io.Writer
	err    io.Writer
	getenv func(string) string
	// tty of standard output and of standard error; the one decides the colours
	// of results, the other those of errors and whether progress is drawn.
	outTTY, errTTY bool
	json           bool   // --format json
	command        string // that the command line names: read, bench read
	quiet          bool   // --quiet
}

// Main runs rs with the process's arguments and gives the exit code.
func Main() int {
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr, getenv: os.Getenv,
		outTTY: term.IsTerminal(int(os.Stdout.Fd())),
		errTTY: term.IsTerminal(int(os.Stderr.Fd())),
	}
	ctx, stop := a.signals(context.Background(), os.Exit)
	defer stop()
	return a.run(ctx, os.Args)
}

// signals gives a context that the first signal ends, with errInterrupted as its
// cause; the second ends the process at once. stop waits for the goroutine.
func (a *app) signals(parent context.Context, exit func(int)) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case s := <-ch:
				if n > 0 {
					exit(exitInterrupted)
				}
				if s == syscall.SIGINT && a.errTTY {
					fmt.Fprintln(a.err, "interrupted: cleaning up; once more to end at once")
				}
				cancel(errInterrupted)
			case <-done:
				return
			}
		}
	})
	return ctx, func() {
		signal.Stop(ch)
		close(done)
		wg.Wait()
		cancel(nil)
	}
}

// run parses and runs one command line.
func (a *app) run(ctx context.Context, args []string) int {
	a.json = wantsJSON(args)
	out := &resultWriter{w: a.out}
	a.out = out
	err := a.rootCommand().Run(ctx, args)
	if err == nil {
		err = out.failed() // a result that nobody got is none
	}
	if err != nil && ctx.Err() != nil && exitCode(err) != exitInterrupted {
		// What failed because of the signal is told as the interruption it is.
		if cause := context.Cause(ctx); cause != nil {
			err = fmt.Errorf("%w: %w", cause, err)
		}
	}
	if err != nil {
		a.printError(err)
	}
	return exitCode(err)
}

// wantsJSON looks for --format json before the flags are parsed, so that an
// error of the parsing has that form too.
func wantsJSON(args []string) bool {
	for i, s := range args {
		s = strings.TrimPrefix(s, "-")
		switch {
		case s == "--":
			return false
		case s == "-format=json":
			return true
		case s == "-format" && i+1 < len(args) && args[i+1] == "json":
			return true
		}
	}
	return false
}

// silent reports that nobody wants progress: standard error is a program's as soon
// as errors have its form.
func (a *app) silent() bool { return a.quiet || a.json }

// progress prints a line for people who watch, unless they asked for quiet.
func (a *app) progress(format string, args ...any) {
	if !a.silent() {
		fmt.Fprintf(a.err, format+"\n", args...)
	}
}

func (a *app) printf(format string, args ...any) {
	fmt.Fprintf(a.out, format, args...)
}

// Colours, as SGR parameters.
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	blue   = "34"
	dim    = "2"
)

func (a *app) plain() bool { return a.getenv("NO_COLOR") != "" || a.getenv("TERM") == "dumb" }

// paint colours a piece of the result, when a person is looking.
func (a *app) paint(sgr, s string) string {
	if !a.outTTY || a.plain() || a.json {
		return s
	}
	return "\x1b[" + sgr + "m" + s + "\x1b[0m"
}

func (a *app) paintErr(sgr, s string) string {
	if !a.errTTY || a.plain() {
		return s
	}
	return "\x1b[" + sgr + "m" + s + "\x1b[0m"
}

// paintState gives the state of a shard or rail its colour.
func (a *app) paintState(s string) string {
	switch s {
	case "serving", "active":
		return a.paint(green, s)
	case "dead", "down", "unreachable":
		return a.paint(red, s)
	case "stopped", "-":
		return a.paint(dim, s)
	}
	return a.paint(yellow, s)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/railstore/railstore/bin/exit"
	"github.com/railstore/railstore/stages/object"
)

// waits is a call that ends when it is ended.
func waits(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("waiting for rail 0: %w", ctx.Err())
}

func newTestSession() *session {
	s := &session{}
	s.ctx, s.end = context.WithCancelCause(context.Background())
	return s
}

func TestCancel(t *testing.T) {
	s, tok := newTestSession(), &token{}
	begun := make(chan struct{})
	ended := make(chan error)
	for range 2 {
		go func() {
			ended <- s.do("read", limits{token: tok}, func(ctx context.Context) error {
				begun <- struct{}{}
				return waits(ctx)
			})
		}()
	}
	<-begun
	<-begun
	tok.fire()
	tok.fire()
	for range 2 {
		if err := <-ended; statusOf(err) != exit.Interrupted || kindOf(err) != "cancelled" || !strings.Contains(err.Error(), "waiting for rail 0") {
			t.Errorf("a call that was cancelled: %v", err)
		}
	}
	if err := s.do("read", limits{token: tok}, waits); kindOf(err) != "cancelled" {
		t.Errorf("a call after the cancel: %v", err)
	}
	// What is done is done.
	if err := s.do("put", limits{token: tok}, func(context.Context) error { return nil }); err != nil {
		t.Errorf("a call that was done all the same: %v", err)
	}
	if len(tok.calls) != 0 {
		t.Errorf("the cancel still knows %d calls", len(tok.calls))
	}
	if err := s.do("read", limits{}, func(context.Context) error { return object.ErrNotFound }); kindOf(err) != "not_found" || statusOf(err) != exit.Failed {
		t.Errorf("a call without a cancel: %v", err)
	}
}

func TestDeadline(t *testing.T) {
	s := newTestSession()
	for _, f := range []func(context.Context) error{waits, func(ctx context.Context) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}, func(ctx context.Context) error {
		<-ctx.Done()
		return object.ErrNoMemory // what it was waiting for
	}} {
		err := s.do("read", limits{deadline: time.Millisecond}, f)
		if statusOf(err) != exit.NotReady || kindOf(err) != "deadline" || strings.Count(err.Error(), "deadline of 1ms") != 1 {
			t.Errorf("%v (%s, %d)", err, kindOf(err), statusOf(err))
		}
	}
	for _, ms := range []int64{-1, math.MaxInt64} {
		if _, err := limitsOf("read", ms, 0); exit.Of(err) != exit.Usage {
			t.Errorf("a deadline of %d ms: %v", ms, err)
		}
	}
	if _, err := limitsOf("read", 0, 1<<50); exit.Of(err) != exit.Usage {
		t.Errorf("no such cancel: %v", err)
	}
}

// A session that closes ends its calls, and takes no more.
func TestSessionEndsCalls(t *testing.T) {
	s := newTestSession()
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- s.do("read", limits{}, func(ctx context.Context) error {
			close(begun)
			return waits(ctx)
		})
	}()
	<-begun
	s.drain()
	if err := <-ended; statusOf(err) != exit.Interrupted || kindOf(err) != "closed" {
		t.Errorf("a call whose session was closed: %v", err)
	}
	if err := s.do("read", limits{}, waits); statusOf(err) != exit.Usage || kindOf(err) != "closed" || !errors.Is(err, errClosed) {
		t.Errorf("a call after the close: %v", err)
	}
}

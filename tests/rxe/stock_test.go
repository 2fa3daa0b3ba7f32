package rxe

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stock is a command of rdma-core or perftest that runs beside the test.
type stock struct {
	t    *testing.T
	name string
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan error
}

// startStock starts a command in the guest's first network namespace, where the
// kernel's rxe is. It is killed when the test ends before it does.
func startStock(t *testing.T, args ...string) *stock {
	t.Helper()
	s := &stock{t: t, name: strings.Join(args, " "), done: make(chan error, 1)}
	if inFar() {
		args = append([]string{"nsenter", "--net=/proc/1/ns/net"}, args...)
	}
	s.cmd = exec.Command(args[0], args[1:]...)
	s.cmd.Stdout, s.cmd.Stderr = &s.out, &s.out
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		s.done <- s.cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		select {
		case <-ended:
		default:
			_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
			<-ended
		}
		if t.Failed() {
			t.Logf("%s wrote:\n%s", s.name, s.out.String())
		}
	})
	return s
}

// wait is the command's output once it has ended well.
func (s *stock) wait() string {
	s.t.Helper()
	select {
	case err := <-s.done:
		s.done <- err
		if err != nil {
			s.t.Fatalf("%s: %v\n%s", s.name, err, s.out.String())
		}
	case <-time.After(stockPatience):
		s.t.Fatalf("%s does not end", s.name)
	}
	return s.out.String()
}

const stockPatience = 60 * time.Second

// dialStock connects to a stock server once it listens, and says when it died
// before that.
func dialStock(t *testing.T, s *stock, addr string) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stockPatience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err == nil {
			return closing(t, c)
		}
		select {
		case err := <-s.done:
			s.done <- err
			t.Fatalf("%s ended before it listened: %v\n%s", s.name, err, s.out.String())
		case <-ctx.Done():
			t.Fatalf("%s does not listen on %s: %v", s.name, addr, err)
		case <-tick.C:
		}
	}
}

// acceptStock waits for a stock client, which start starts once somebody listens.
func acceptStock(t *testing.T, addr string, start func() *stock) (net.Conn, *stock) {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := start()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(stockPatience)); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatalf("%s does not connect: %v", s.name, err)
	}
	return closing(t, c), s
}

func closing(t *testing.T, c net.Conn) net.Conn {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(stockPatience)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// exchange sends a message of a fixed length and reads the other side's; the
// client sends first.
func exchange(c net.Conn, client bool, mine []byte) ([]byte, error) {
	theirs := make([]byte, len(mine))
	send := func() error { _, err := c.Write(mine); return err }
	read := func() error {
		for n := 0; n < len(theirs); {
			k, err := c.Read(theirs[n:])
			if n += k; err != nil {
				return fmt.Errorf("%d of %d bytes: %w", n, len(theirs), err)
			}
		}
		return nil
	}
	first, second := read, send
	if client {
		first, second = send, read
	}
	if err := first(); err != nil {
		return nil, err
	}
	return theirs, second()
}

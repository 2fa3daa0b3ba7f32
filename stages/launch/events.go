package launch

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/railstore/railstore/pipeline"
)

// EventLog appends to a deployment's events. Every process of the deployment has
// its own; the file is opened for appending and a line is one write, so lines of
// different processes do not mix.
type EventLog struct {
	f     *os.File
	shard *int
}

// OpenEvents opens the folder's events for appending. shard is put into events
// that name none, unless it is negative.
func (f Folder) OpenEvents(shard int) (*EventLog, error) {
	file, err := os.OpenFile(f.EventsPath(), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return nil, stateError(f.EventsPath(), err)
	}
	l := &EventLog{f: file}
	if shard >= 0 {
		l.shard = &shard
	}
	return l, nil
}

// Emit is a pipeline.Sink. An event that cannot be written is lost: events tell
// what happens, they do not decide it.
func (l *EventLog) Emit(e pipeline.Event) {
	if e.Shard == nil {
		e.Shard = l.shard
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.UTC()
	if b, err := json.Marshal(e); err == nil {
		_, _ = l.f.Write(append(b, '\n'))
	}
}

// Close closes the file.
func (l *EventLog) Close() error { return l.f.Close() }

// followPoll is how often a follower looks for more.
const followPoll = 100 * time.Millisecond

// Lines reads the lines of a file from offset on and hands each, without its
// end, to fn; the slice is valid during the call. With follow it waits for more,
// also for the file itself, until ctx ends, and then reads once more what is
// there: nothing that was written before the end of ctx is missed. A file that
// became shorter is read from its beginning. A last line without an end is
// handed out only when not following.
func Lines(ctx context.Context, path string, offset int64, follow bool, fn func(line []byte) error) error {
	var (
		file *os.File
		rd   *bufio.Reader
		part []byte
	)
	defer func() {
		if file != nil {
			_ = file.Close()
		}
	}()
	drain := func() error {
		if file == nil {
			f, err := os.Open(path)
			if errors.Is(err, fs.ErrNotExist) && follow {
				return nil
			}
			if err != nil {
				return stateError(path, err)
			}
			file = f
			if _, err := file.Seek(offset, io.SeekStart); err != nil {
				return err
			}
			rd = bufio.NewReader(file)
		}
		if st, err := file.Stat(); err == nil && st.Size() < offset {
			offset, part = 0, nil
			if _, err := file.Seek(0, io.SeekStart); err != nil {
				return err
			}
			rd.Reset(file)
		}
		for {
			b, err := rd.ReadSlice('\n')
			offset += int64(len(b))
			part = append(part, b...)
			if err == nil {
				if err := fn(bytes.TrimSuffix(part, []byte("\n"))); err != nil {
					return err
				}
				part = part[:0]
				continue
			}
			if errors.Is(err, bufio.ErrBufferFull) {
				continue
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
	t := time.NewTicker(followPoll)
	defer t.Stop()
	for {
		ended := ctx.Err() != nil
		if err := drain(); err != nil {
			return err
		}
		if !follow {
			if len(part) > 0 {
				return fn(part)
			}
			return nil
		}
		if ended {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-t.C:
		}
	}
}

// Events hands every event of the folder from offset on to fn; see Lines. A line
// that is not an event is skipped.
func (f Folder) Events(ctx context.Context, offset int64, follow bool, fn func(e pipeline.Event, raw []byte) error) error {
	return Lines(ctx, f.EventsPath(), offset, follow, func(b []byte) error {
		var e pipeline.Event
		if json.Unmarshal(b, &e) != nil || e.Event == "" {
			return nil
		}
		return fn(e, b)
	})
}

// Size is the length of a file, 0 when it is not there: where to begin reading
// what will come.
func Size(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}

// Tail gives the offset at which the last n lines of the file begin.
func Tail(path string, n int) (int64, error) {
	if n < 0 {
		return 0, nil
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, stateError(path, err)
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return 0, err
	}
	const step = 32 << 10
	end, seen := st.Size(), 0
	buf := make([]byte, step)
	for pos := end; pos > 0; {
		size := min(pos, step)
		pos -= size
		if _, err := file.ReadAt(buf[:size], pos); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := size - 1; i >= 0; i-- {
			// The end of the last line does not begin another.
			if buf[i] != '\n' || pos+i == end-1 {
				continue
			}
			if seen++; seen == n {
				return pos + i + 1, nil
			}
		}
	}
	if n == 0 {
		return end, nil
	}
	return 0, nil
}

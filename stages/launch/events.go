package launch

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/pipeline"
)

// eventsMost is the length from which the file of events is put aside.
const eventsMost = 8 << 20

// EventLog appends to a deployment's events. Every process of the deployment has
// its own; the file is opened for appending and a line is one write, so lines of
// different processes do not mix. Bursts of one event are told as a few lines and
// a count (damper). Who finds the file long puts it aside; the others notice by
// its inode and go on in the new one. No lock is waited for: a process that was
// stopped at a bad moment must not stop the others.
type EventLog struct {
	path  string
	shard *int
	also  []pipeline.Sink
	most  int64
	damp  *damper

	mu     sync.Mutex
	f      *os.File
	id     inode
	torn   bool // a write was cut short: the next one begins a new line
	closed bool
}

// OpenEvents opens the folder's events for appending. shard is put into events
// that name none, unless it is negative. What is written also goes to the sinks,
// one event at a time.
func (f Folder) OpenEvents(shard int, also ...pipeline.Sink) (*EventLog, error) {
	l := &EventLog{path: f.EventsPath(), also: also, most: eventsMost}
	if shard >= 0 {
		l.shard = &shard
	}
	if err := l.open(); err != nil {
		return nil, stateError(l.path, err)
	}
	l.damp = newDamper(l.write)
	return l, nil
}

// open opens the file that has the name now. A line that somebody could not finish
// is ended, else the next one would be lost with it.
func (l *EventLog) open() error {
	file, err := os.OpenFile(l.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		_ = file.Close()
		return err
	}
	l.id, l.torn = inode{dev: st.Dev, ino: st.Ino}, false
	if n := st.Size; n > 0 {
		var last [1]byte
		if _, err := file.ReadAt(last[:], n-1); err == nil && last[0] != '\n' {
			l.torn = true
		}
	}
	if l.f != nil {
		_ = l.f.Close()
	}
	l.f = file
	return nil
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
	l.damp.emit(e)
}

// write is called by the damper only, one event at a time.
func (l *EventLog) write(e pipeline.Event) {
	if b, err := json.Marshal(e); err == nil {
		l.append(append(b, '\n'))
	}
	for _, s := range l.also {
		s(e)
	}
}

func (l *EventLog) append(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if id, err := fileID(l.path); err != nil || id != l.id {
		_ = l.open() // on an error the old file is still better than none
	}
	if l.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := l.f.Write(line)
	if l.torn = err != nil && (n > 0 || l.torn); l.torn {
		return
	}
	if st, err := l.f.Stat(); err == nil && st.Size() >= l.most {
		l.putAside()
	}
}

// putAside renames the file and those put aside before. Another process that does
// so now is let do it.
func (l *EventLog) putAside() {
	lock, err := os.OpenFile(filepath.Join(filepath.Dir(l.path), "run", "events.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return
	}
	defer func() { _ = lock.Close() }()
	if ok, err := tryLock(lock); err != nil || !ok {
		return
	}
	if id, err := fileID(l.path); err != nil || id != l.id {
		return // it was just done
	}
	for n := generations; n > 0; n-- {
		_ = os.Rename(generation(l.path, n-1), generation(l.path, n)) // there may be a gap
	}
}

// Close tells what was held back and closes the file. It is idempotent.
func (l *EventLog) Close() error {
	l.damp.close()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	return l.f.Close()
}

// Events hands every event of the folder from a position on to fn; see Lines. A
// line that is not an event is skipped.
func (f Folder) Events(ctx context.Context, from Position, follow bool, fn func(e pipeline.Event, raw []byte) error) error {
	return Lines(ctx, f.EventsPath(), from, follow, func(b []byte) error {
		e, ok := ParseEvent(b)
		if !ok {
			return nil
		}
		return fn(e, b)
	})
}

// ParseEvent reads one line of the events.
func ParseEvent(line []byte) (e pipeline.Event, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(line))
	if dec.Decode(&e) != nil || e.Event == "" {
		return pipeline.Event{}, false
	}
	_, err := dec.Token()
	return e, err == io.EOF
}

// Size is the length of a file, 0 when it is not there.
func Size(path string) int64 {
	st, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return st.Size()
}

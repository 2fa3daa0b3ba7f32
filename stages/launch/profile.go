package launch

import (
	"context"
	"encoding/json"
	"path/filepath"
)

// ProfilePath is the file of the deployment's profiles.
func (f Folder) ProfilePath() string { return filepath.Join(f.Path, "profile.jsonl") }

// ProfileLog appends records to the deployment's profiles, one JSON object a line. Like
// events, records of several processes do not mix, and a file that is long is put aside.
type ProfileLog struct{ log EventLog }

// OpenProfile opens the folder's profiles for appending.
func (f Folder) OpenProfile() (*ProfileLog, error) {
	p := &ProfileLog{EventLog{path: f.ProfilePath(), most: eventsMost}}
	if err := p.log.open(); err != nil {
		return nil, stateError(p.log.path, err)
	}
	return p, nil
}

// Write appends a record. One that cannot be written is lost: profiles tell what
// happens, they do not decide it.
func (p *ProfileLog) Write(record any) {
	if b, err := json.Marshal(record); err == nil {
		p.log.append(append(b, '\n'))
	}
}

// Close closes the file. It is idempotent.
func (p *ProfileLog) Close() error {
	p.log.mu.Lock()
	defer p.log.mu.Unlock()
	if p.log.closed {
		return nil
	}
	p.log.closed = true
	return p.log.f.Close()
}

// Profiles hands every record of the folder from a position on to fn; see Lines. What is
// not a JSON object is skipped.
func (f Folder) Profiles(ctx context.Context, from Position, follow bool, fn func(record map[string]any, raw []byte) error) error {
	return Lines(ctx, f.ProfilePath(), from, follow, func(b []byte) error {
		var r map[string]any
		if json.Unmarshal(b, &r) != nil || r == nil {
			return nil
		}
		return fn(r, b)
	})
}

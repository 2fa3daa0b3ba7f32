package launch

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
)

// Resolved is the deployment that a folder was brought up with.
type Resolved struct {
	Digest     string             `json:"digest"`
	Recipe     string             `json:"recipe,omitempty"` // for people
	Written    time.Time          `json:"written"`
	Deployment *deploy.Deployment `json:"deployment"`
}

// Resolved reads the deployment that the folder was last brought up with.
func (f Folder) Resolved() (*Resolved, error) {
	b, err := os.ReadFile(f.resolvedPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, pipeline.Errorf(pipeline.LayerProcess, "deployment", pipeline.Nowhere, "%s: %w in state folder %s",
			f.Name, ErrUnknown, filepath.Dir(f.Path)).WithHint("bring it up with rs up RECIPE")
	}
	if err != nil {
		return nil, stateError(f.resolvedPath(), err)
	}
	r, err := decodeResolved(b)
	if err != nil {
		return nil, pipeline.Errorf(pipeline.LayerProcess, "deployment", pipeline.Nowhere, "%s: %w", f.resolvedPath(), err).
			WithHint("rs down --deployment %s, then rs up RECIPE writes it anew", f.Name)
	}
	return r, nil
}

func decodeResolved(b []byte) (*Resolved, error) {
	var raw struct {
		Digest     string          `json:"digest"`
		Recipe     string          `json:"recipe"`
		Written    time.Time       `json:"written"`
		Deployment json.RawMessage `json:"deployment"`
	}
	if err := json.Unmarshal(b, &raw); err != nil {
		return nil, err
	}
	d, err := deploy.Decode(raw.Deployment)
	if err != nil {
		return nil, err
	}
	if got := d.Digest(); got != raw.Digest {
		return nil, errors.New("the deployment does not have the digest that stands beside it: the file was changed, or another version of rs wrote it")
	}
	return &Resolved{Digest: raw.Digest, Recipe: raw.Recipe, Written: raw.Written, Deployment: d}, nil
}

// writeResolved replaces the file as a whole: after a crash there is the old
// one or the new one.
func (f Folder) writeResolved(d *deploy.Deployment, recipe string) error {
	b, err := json.Marshal(struct {
		Digest     string          `json:"digest"`
		Recipe     string          `json:"recipe,omitempty"`
		Written    time.Time       `json:"written"`
		Deployment json.RawMessage `json:"deployment"`
	}{d.Digest(), recipe, time.Now().UTC(), d.Canonical()})
	if err != nil {
		return err
	}
	return stateErrorOrNil(f.resolvedPath(), writeAtomic(f.resolvedPath(), append(b, '\n')))
}

func stateErrorOrNil(path string, err error) error {
	if err == nil {
		return nil
	}
	return stateError(path, err)
}

func writeAtomic(path string, b []byte) error {
	t, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = t.Write(b)
	if err == nil {
		err = t.Sync()
	}
	if err = errors.Join(err, t.Close()); err == nil {
		err = os.Rename(t.Name(), path)
	}
	if err != nil {
		_ = os.Remove(t.Name())
	}
	return err
}

// The up mark says that the deployment is meant to be running. Down removes it,
// which also works on a full disk; so a shard without a process is dead while
// the mark is there and stopped when it is not.
func (f Folder) markPath() string { return filepath.Join(f.runDir(), "up") }

func (f Folder) setMark() error {
	file, err := os.OpenFile(f.markPath(), os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return stateError(f.markPath(), err)
	}
	return file.Close()
}

func (f Folder) clearMark() error {
	return stateErrorOrNil(f.markPath(), removeIfThere(f.markPath()))
}

func (f Folder) marked() bool {
	_, err := os.Stat(f.markPath())
	return err == nil
}

package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"

	"github.com/railstore/railstore/pipeline"
)

// Conditions that callers tell apart with errors.Is.
var (
	// ErrNotRunning: the deployment, or the shard, has no process.
	ErrNotRunning = errors.New("not running")
	// ErrNotReady: it has processes, but not every shard serves.
	ErrNotReady = errors.New("not serving")
	// ErrConflict: another recipe runs under the same name.
	ErrConflict = errors.New("another recipe is running under this name")
	// ErrUnknown: the state folder does not know the deployment.
	ErrUnknown = errors.New("no such deployment")
	// ErrLocked: another command is changing the deployment.
	ErrLocked = errors.New("another rs command is changing this deployment")
)

// DefaultState is the state folder when the user names none: railstore below
// XDG_STATE_HOME, or below ~/.local/state. getenv is os.Getenv outside tests.
func DefaultState(getenv func(string) string) (string, error) {
	if d := getenv("XDG_STATE_HOME"); filepath.IsAbs(d) {
		return filepath.Join(d, "railstore"), nil
	}
	if h := getenv("HOME"); filepath.IsAbs(h) {
		return filepath.Join(h, ".local", "state", "railstore"), nil
	}
	return "", pipeline.Errorf(pipeline.LayerUsage, "state folder", pipeline.Nowhere,
		"neither HOME nor XDG_STATE_HOME is set to an absolute path").
		WithHint("name one with --state DIR")
}

// State is the folder that has one folder per deployment.
type State struct{ Root string }

// NewState is the state folder at dir. A relative path is made absolute, since
// shards do not share the working directory of who starts them.
func NewState(dir string) (State, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return State{}, stateError(dir, err)
	}
	return State{Root: abs}, nil
}

// nameRE keeps a deployment's name usable as a folder: no separators, no dots in
// front.
var nameRE = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Folder is the folder of the deployment name, which need not exist.
func (s State) Folder(name string) (Folder, error) {
	if !nameRE.MatchString(name) {
		return Folder{}, pipeline.Errorf(pipeline.LayerUsage, "deployment", pipeline.Nowhere,
			"name %q: want letters, digits, '.', '_' and '-', at most 63, beginning with a letter or digit", shorten(name))
	}
	return Folder{Path: filepath.Join(s.Root, name), Name: name}, nil
}

func shorten(s string) string {
	const most = 64
	if len(s) <= most {
		return s
	}
	return s[:most] + "..."
}

// Deployments are the folders that hold a resolved deployment, by name.
func (s State) Deployments() ([]Folder, error) {
	entries, err := os.ReadDir(s.Root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, stateError(s.Root, err)
	}
	var out []Folder
	for _, e := range entries {
		f, err := s.Folder(e.Name())
		if err != nil || !e.IsDir() {
			continue
		}
		switch _, err := os.Stat(f.resolvedPath()); {
		case err == nil:
			out = append(out, f)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, stateError(f.Path, err)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Name < out[j].Name })
	return out, nil
}

// Select finds the folder a command means: the named one, or the only one that
// runs, or the only one there is.
func (s State) Select(name string) (Folder, error) {
	if name != "" {
		f, err := s.Folder(name)
		if err != nil {
			return f, err
		}
		if _, err := os.Stat(f.resolvedPath()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return f, stateError(f.Path, err)
		} else if err != nil {
			return f, pipeline.Errorf(pipeline.LayerProcess, "deployment", pipeline.Nowhere,
				"%s: %w in state folder %s", name, ErrUnknown, s.Root).WithHint("bring it up with rs up RECIPE")
		}
		return f, nil
	}
	all, err := s.Deployments()
	if err != nil {
		return Folder{}, err
	}
	if len(all) == 1 {
		return all[0], nil
	}
	var running []Folder
	for _, f := range all {
		if live, err := f.live(); err == nil && len(live) > 0 {
			running = append(running, f)
		}
	}
	if len(running) == 1 {
		return running[0], nil
	}
	if len(all) == 0 {
		return Folder{}, pipeline.Errorf(pipeline.LayerProcess, "deployment", pipeline.Nowhere,
			"%w: no deployment in state folder %s", ErrNotRunning, s.Root).WithHint("bring one up with rs up RECIPE")
	}
	if len(running) > 0 {
		all = running
	}
	names := make([]string, len(all))
	for i, f := range all {
		names[i] = f.Name
	}
	return Folder{}, pipeline.Errorf(pipeline.LayerUsage, "deployment", pipeline.Nowhere,
		"which one: %s", strings.Join(names, ", ")).WithHint("name it with --deployment NAME")
}

// Folder is the folder of one deployment.
type Folder struct {
	Path string
	Name string
}

func (f Folder) root() string         { return filepath.Dir(f.Path) }
func (f Folder) lockPath() string     { return filepath.Join(f.Path, "lock") }
func (f Folder) resolvedPath() string { return filepath.Join(f.Path, "resolved.json") }
func (f Folder) runDir() string       { return filepath.Join(f.Path, "run") }
func (f Folder) logDir() string       { return filepath.Join(f.Path, "logs") }

// EventsPath is the file of events.
func (f Folder) EventsPath() string { return filepath.Join(f.Path, "events.jsonl") }

// LogPath is the file of a shard's output.
func (f Folder) LogPath(shard int) string {
	return filepath.Join(f.logDir(), fmt.Sprintf("shard-%d.log", shard))
}

func (f Folder) claimPath(shard int) string {
	return filepath.Join(f.runDir(), fmt.Sprintf("shard-%d.lock", shard))
}

func (f Folder) exitPath(shard int) string {
	return filepath.Join(f.runDir(), fmt.Sprintf("shard-%d.exit", shard))
}

// Create makes the folder and proves that it can be written.
func (f Folder) Create() error {
	for _, d := range []string{f.Path, f.runDir(), f.logDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return stateError(f.Path, err)
		}
	}
	t, err := os.CreateTemp(f.Path, ".probe-*")
	if err != nil {
		return stateError(f.Path, err)
	}
	_, err = t.WriteString("probe\n")
	err = errors.Join(err, t.Close(), os.Remove(t.Name()))
	if err != nil {
		return stateError(f.Path, err)
	}
	return nil
}

// claimed are the shards that have a lock file, whether held or not.
func (f Folder) claimed() ([]int, error) {
	entries, err := os.ReadDir(f.runDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, stateError(f.runDir(), err)
	}
	var out []int
	for _, e := range entries {
		s, ok := strings.CutPrefix(e.Name(), "shard-")
		if !ok {
			continue
		}
		s, ok = strings.CutSuffix(s, ".lock")
		if !ok {
			continue
		}
		if n, err := strconv.Atoi(s); err == nil && n >= 0 {
			out = append(out, n)
		}
	}
	sort.Ints(out)
	return out, nil
}

// live are the shards whose lock is held, that is: which have a process.
func (f Folder) live() ([]int, error) {
	all, err := f.claimed()
	if err != nil {
		return nil, err
	}
	var out []int
	for _, n := range all {
		held, err := isLocked(f.claimPath(n))
		if err != nil {
			return nil, stateError(f.claimPath(n), err)
		}
		if held {
			out = append(out, n)
		}
	}
	return out, nil
}

// stateError says which path of the state folder refused what.
func stateError(path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		path, err = pe.Path, pe.Err
	}
	e := pipeline.Errorf(pipeline.LayerProcess, "state folder", pipeline.Nowhere, "%s: %w", path, err)
	switch {
	case errors.Is(err, fs.ErrPermission), isReadOnly(err), errors.Is(err, fs.ErrExist), isNotDir(err):
		return e.WithHint("choose a folder of your own with --state DIR")
	case isNoSpace(err):
		return e.WithHint("free space there, or choose another folder with --state DIR")
	}
	return e
}

// Exists says whether there is such a folder at all.
func (f Folder) Exists() bool {
	_, err := os.Stat(f.Path)
	return err == nil
}

package object

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/railstore/railstore/cue/deploy"
)

// EnvPrefix begins every variable of the environment that a reader obeys.
const EnvPrefix = "RS_MR_"

// Environment is what the environment changes for the readers of a process: for a
// worker that is given a recipe which it does not write. What is empty is the recipe's.
type Environment struct {
	Control string // address of the control plane
	rails   []railEntry
	changes []func(*deploy.Reader)
}

// railEntry is a rail in short form: the one of that name, or of that place in its host.
type railEntry struct {
	name string
	rail *deploy.Rail // nil: as in the recipe
}

// envVariables are the variables, by their names without the prefix.
var envVariables = []struct {
	name, what string
	read       func(e *Environment, v string) error
}{
	{"COORDINATOR", "HOST:PORT of the control plane", func(e *Environment, v string) error {
		if _, port, err := net.SplitHostPort(v); err != nil || port == "" {
			return errors.New("want HOST:PORT")
		}
		e.Control = v
		return nil
	}},
	{"RAILS", "[NAME=]DEVICE[:PORT[:GID[:WEIGHT[:MTU]]]][@EP[;EP…]], separated by commas: only these rails of the host, with these devices", (*Environment).readRails},
	{"IO_TIMEOUT", "reader.ioTimeout", envDuration(1, func(r *deploy.Reader, d deploy.Duration) { r.IOTimeout = d })},
	{"COOLDOWN", "reader.cooldown", envDuration(0, func(r *deploy.Reader, d deploy.Duration) { r.Cooldown = d })},
	{"QUARANTINE", "reader.quarantine", envDuration(0, func(r *deploy.Reader, d deploy.Duration) { r.Quarantine = d })},
	{"MAX_CONNECTIONS_PER_RAIL", "reader.maxConnectionsPerRail", envInt(1, 4096, func(r *deploy.Reader, n int) { r.MaxConnectionsPerRail = n })},
	{"MAX_CONNECTIONS", "reader.maxConnections", envInt(1, 65536, func(r *deploy.Reader, n int) { r.MaxConnections = n })},
	{"MAX_INFLIGHT_PER_RAIL", "reader.maxInflightBytesPerRail", envSize(func(r *deploy.Reader, n int64) { r.MaxInflightPerRail = n })},
	{"MAX_INFLIGHT", "reader.maxInflightBytes", envSize(func(r *deploy.Reader, n int64) { r.MaxInflight = n })},
	{"MAX_STAGING", "reader.maxStagingBytes", envSize(func(r *deploy.Reader, n int64) { r.MaxStaging = n })},
	{"TASK_MAX_STRIPES", "reader.taskMaxStripes", envInt(0, 65535, func(r *deploy.Reader, n int) { r.TaskMaxStripes = n })},
	{"MIN_RAILS", "reader.minRails", envInt(1, 64, func(r *deploy.Reader, n int) { r.MinRails = n })},
	{"ON_RAIL_FAILURE", "reader.onRailFailure", envWord(func(r *deploy.Reader, s string) { r.OnRailFailure = s }, FailRead, Failover)},
	{"WEIGHTS", "reader.weights", envWord(func(r *deploy.Reader, s string) { r.Weights = s }, "configured", "adaptive")},
	{"DEADLINE", "reader.deadline", envDuration(0, func(r *deploy.Reader, d deploy.Duration) { r.Deadline = d })},
	{"HEDGE", "reader.hedge", envBool(func(r *deploy.Reader, b bool) { r.Hedge = b })},
	{"VERIFY", "reader.verify", envWord(func(r *deploy.Reader, s string) { r.Verify = s }, "whole", "stripes")},
	{"RECHECK", "reader.recheck", envBool(func(r *deploy.Reader, b bool) { r.Recheck = b })},
}

func envInt(least, most int, set func(*deploy.Reader, int)) func(*Environment, string) error {
	return func(e *Environment, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		e.changes = append(e.changes, func(r *deploy.Reader) { set(r, n) })
		return nil
	}
}

func envSize(set func(*deploy.Reader, int64)) func(*Environment, string) error {
	return func(e *Environment, v string) error {
		n, err := deploy.ParseSize(v)
		if err != nil || n < 1 {
			return errors.New("want a size above zero, as in 64MiB")
		}
		e.changes = append(e.changes, func(r *deploy.Reader) { set(r, n) })
		return nil
	}
}

func envDuration(least time.Duration, set func(*deploy.Reader, deploy.Duration)) func(*Environment, string) error {
	return func(e *Environment, v string) error {
		d, err := time.ParseDuration(v)
		if err != nil || d < least {
			return errors.New("want a time, as in 10s or 500ms")
		}
		e.changes = append(e.changes, func(r *deploy.Reader) { set(r, deploy.Duration(d)) })
		return nil
	}
}

func envWord(set func(*deploy.Reader, string), words ...string) func(*Environment, string) error {
	return func(e *Environment, v string) error {
		if !slices.Contains(words, v) {
			return fmt.Errorf("want %s", strings.Join(words, " or "))
		}
		e.changes = append(e.changes, func(r *deploy.Reader) { set(r, v) })
		return nil
	}
}

func envBool(set func(*deploy.Reader, bool)) func(*Environment, string) error {
	return func(e *Environment, v string) error {
		if v != "true" && v != "false" {
			return errors.New("want true or false")
		}
		e.changes = append(e.changes, func(r *deploy.Reader) { set(r, v == "true") })
		return nil
	}
}

func (e *Environment) readRails(v string) error {
	seen := map[string]bool{}
	for i, s := range strings.Split(v, ",") {
		var x railEntry
		s = strings.TrimSpace(s)
		if name, spec, named := strings.Cut(s, "="); named {
			x.name, s = name, spec
			if name == "" || seen[name] {
				return fmt.Errorf("entry %d: rail %q: a name stands once, and is not empty", i+1, name)
			}
			seen[name] = true
		}
		if s == "" && x.name == "" {
			return fmt.Errorf("entry %d is empty", i+1)
		}
		if s != "" {
			r, err := deploy.ParseRail(s)
			if err != nil {
				return fmt.Errorf("entry %d, %q: %w", i+1, s, err)
			}
			x.rail = &r
		}
		e.rails = append(e.rails, x)
	}
	return nil
}

// ReadEnvironment reads the variables that begin with EnvPrefix, each NAME=VALUE as
// os.Environ gives them. A name that no part of RailStore knows and a value that cannot
// be read are errors: a worker that believes itself configured must be. All of them are told.
func ReadEnvironment(environ []string) (*Environment, error) {
	e := &Environment{}
	errs := deploy.UnknownVariables(environ)
	for _, kv := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(kv, "=")
		short, ours := strings.CutPrefix(name, EnvPrefix)
		if !ours {
			continue
		}
		for _, x := range envVariables {
			if x.name != short {
				continue
			}
			if err := x.read(e, value); err != nil {
				errs = append(errs, fmt.Sprintf("%s=%s: %v", name, value, err))
			}
			break
		}
	}
	if len(errs) > 0 {
		return nil, fmt.Errorf("%w: environment: %s", ErrBadRequest, strings.Join(errs, "; "))
	}
	return e, nil
}

// Apply gives the deployment as a reader on a host sees it. Fabrics and all that the
// short form of a rail does not say stay the recipe's, and so does the identity, which
// is that of the deployment that was given.
func (e *Environment) Apply(d *deploy.Deployment, host string) (*deploy.Deployment, error) {
	out := *d
	for _, change := range e.changes {
		change(&out.Reader)
	}
	if e.rails == nil {
		return &out, nil
	}
	at := slices.IndexFunc(d.Hosts, func(h deploy.Host) bool { return h.Name == host })
	if at < 0 {
		return nil, fmt.Errorf("%w: %sRAILS: there is no host %q", ErrBadRequest, EnvPrefix, host)
	}
	h := d.Hosts[at]
	rails := make([]deploy.Rail, 0, len(e.rails))
	for i, x := range e.rails {
		k := i
		if x.name != "" {
			k = slices.IndexFunc(h.Rails, func(r deploy.Rail) bool { return r.Name == x.name })
		}
		if k < 0 || k >= len(h.Rails) {
			return nil, fmt.Errorf("%w: %sRAILS: entry %d is no rail of host %s, which has %d; a rail's fabric comes from the recipe", ErrBadRequest, EnvPrefix, i+1, host, len(h.Rails))
		}
		r := h.Rails[k]
		if slices.ContainsFunc(rails, func(o deploy.Rail) bool { return o.Name == r.Name }) {
			return nil, fmt.Errorf("%w: %sRAILS: rail %s stands twice", ErrBadRequest, EnvPrefix, r.Name)
		}
		if x.rail != nil {
			r.Device, r.Port, r.GID, r.Weight, r.MTU, r.Listeners = x.rail.Device, x.rail.Port, x.rail.GID, x.rail.Weight, x.rail.MTU, x.rail.Listeners
		}
		rails = append(rails, r)
	}
	h.Rails = rails
	out.Hosts = slices.Clone(d.Hosts)
	out.Hosts[at] = h
	return &out, nil
}

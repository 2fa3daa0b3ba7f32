package ps

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/rail"
)

// Env is what the environment says of an op-layer client. docs/ps-protocol.md has the
// table of variables.
type Env struct {
	Config         string
	Namespace      string // empty: the deployment's; likewise below, also 0
	ControlHost    string
	ControlPort    int
	ControlTimeout time.Duration
	WaitTimeout    time.Duration
	QPs, Slots     int
	Depth          int
	Modes          Modes
	GetWorkers     int // -1: not given
	Coroutines     int // -1: not given
	Host           string
	Rails          []string
	Index, Clients int // 0 and 1 if not given
}

// family is the prefix of the variables that this reads.
const family = "RS_RDMA_"

// ParseEnv reads environment variables ("NAME=value"). One that no part of RailStore
// knows, one that does not parse and one out of range are errors, all of them in one.
func ParseEnv(environ []string) (Env, error) {
	e := Env{GetWorkers: -1, Coroutines: -1, Clients: 1}
	vars := map[string]string{}
	for _, kv := range environ {
		name, value, _ := strings.Cut(kv, "=")
		vars[name] = value // of a name that comes twice the last counts, as for a process
	}
	var errs []error
	bad := func(name, format string, args ...any) {
		errs = append(errs, fmt.Errorf("%s=%q: %s", name, vars[name], fmt.Sprintf(format, args...)))
	}
	number := func(to *int, least, most int) func(string) {
		return func(name string) {
			n, err := strconv.Atoi(vars[name])
			if err != nil || n < least || n > most {
				bad(name, "want a whole number from %d to %d", least, most)
				return
			}
			*to = n
		}
	}
	millis := func(to *time.Duration) func(string) {
		return func(name string) {
			n, err := strconv.Atoi(vars[name])
			if err != nil || n < 1 || n > 1<<40 {
				bad(name, "want milliseconds, a whole number from 1")
				return
			}
			*to = time.Duration(n) * time.Millisecond
		}
	}
	word := func(to *string, words ...string) func(string) {
		return func(name string) {
			if !slices.Contains(words, vars[name]) {
				bad(name, "want %s", strings.Join(words, " or "))
				return
			}
			*to = vars[name]
		}
	}
	text := func(to *string) func(string) {
		return func(name string) {
			if vars[name] == "" {
				bad(name, "is empty; unset it, or give it a value")
			}
			*to = vars[name]
		}
	}
	var transport string
	known := map[string]func(string){
		"RS_CONFIG":                             text(&e.Config),
		family + "TRANSPORT_MODE":               word(&transport, "rc_write"),
		family + "NAMESPACE":                    text(&e.Namespace),
		family + "CONTROL_PLANE_HOST":           text(&e.ControlHost),
		family + "CONTROL_PLANE_PORT":           number(&e.ControlPort, 1, 65535),
		family + "CONTROL_PLANE_TIMEOUT_MS":     millis(&e.ControlTimeout),
		family + "WAIT_TIMEOUT_MS":              millis(&e.WaitTimeout),
		family + "QPS_PER_CLIENT_PER_SHARD":     number(&e.QPs, 1, 4096),
		family + "SLOTS_PER_QP":                 number(&e.Slots, 1, 1024),
		family + "ASYNC_DEPTH":                  number(&e.Depth, 1, 1<<22),
		family + "GET_RESPONSE_MODE":            word(&e.Modes.Get, Auto, DirectSG, StagingCopy),
		family + "PUT_PROTOCOL_VERSION":         number(&e.Modes.PutProtocol, 1, 2),
		family + "PUT_V2_TRANSFER_MODE":         word(&e.Modes.Put, Read, Push),
		family + "SERVER_GET_WORKERS":           number(&e.GetWorkers, 0, 1024),
		family + "SERVER_COROUTINES_PER_THREAD": number(&e.Coroutines, 1, 1024),
		family + "HOST":                         text(&e.Host),
		family + "RAILS": func(name string) {
			for _, r := range strings.Split(vars[name], ",") {
				if r = strings.TrimSpace(r); r == "" {
					bad(name, "want names of rails with commas between them")
					return
				}
				e.Rails = append(e.Rails, r)
			}
		},
		family + "CLIENT_INDEX":         number(&e.Index, 0, 1<<20),
		family + "NUM_CLIENT_PROCESSES": number(&e.Clients, 1, 1<<20),
	}
	for _, what := range deploy.UnknownVariables(environ) {
		errs = append(errs, errors.New(what))
	}
	// What launchers of training jobs set is looked at only where ours is not given.
	given := func(ours string, theirs ...string) {
		for _, name := range append([]string{ours}, theirs...) {
			if _, ok := vars[name]; ok {
				known[ours](name)
				return
			}
		}
	}
	given(family+"CLIENT_INDEX", "RANK", "LOCAL_RANK")
	given(family+"NUM_CLIENT_PROCESSES", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
	for _, name := range []string{family + "CLIENT_INDEX", family + "NUM_CLIENT_PROCESSES"} {
		delete(known, name)
	}
	for name, parse := range known {
		if _, ok := vars[name]; ok {
			parse(name)
		}
	}
	if _, ok := vars["RS_CONFIG"]; !ok {
		errs = append(errs, errors.New("RS_CONFIG is not set: want the file of the deployment"))
	}
	if e.Index >= e.Clients {
		errs = append(errs, fmt.Errorf("client %d of %d: want an index below the number of client processes (%sCLIENT_INDEX or RANK, %sNUM_CLIENT_PROCESSES or WORLD_SIZE)",
			e.Index, e.Clients, family, family))
	}
	if len(errs) > 0 {
		slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
		return e, pipeline.Wrap(errors.Join(errs...), pipeline.LayerConfig, "environment", pipeline.Nowhere)
	}
	return e, nil
}

// EnvConfig is what the environment does not say.
type EnvConfig struct {
	Environ []string     // nil: that of the process
	Drivers rail.Drivers // required: the providers that the program links
	// Load reads the deployment from the file RS_CONFIG; nil: the JSON that rs up keeps of a
	// deployment (resolved.json in its state folder), or a deployment alone.
	Load func(path string) (*deploy.Deployment, error)
}

// session is what a session is opened with.
func (e *Env) session(c *EnvConfig) (SessionConfig, error) {
	bad := func(format string, args ...any) (SessionConfig, error) {
		return SessionConfig{}, pipeline.Errorf(pipeline.LayerConfig, "environment", pipeline.Nowhere, format, args...)
	}
	load := c.Load
	if load == nil {
		load = loadResolved
	}
	d, err := load(e.Config)
	if err != nil {
		return bad("RS_CONFIG: %w", err)
	}
	// The identity is that of the recipe: what follows concerns this process alone.
	id := ctrl.Identity{Namespace: d.Control.Namespace, Deployment: d.Name, Epoch: d.Epoch, Digest: d.Digest()}
	own := *d
	switch {
	case e.Slots != 0 && e.Slots != d.Lanes.Slots:
		return bad("%sSLOTS_PER_QP=%d: both ends of a QP have as many, the deployment says %d: change lanes.slotsPerQP there", family, e.Slots, d.Lanes.Slots)
	case e.QPs > d.Lanes.QPs:
		return bad("%sQPS_PER_CLIENT_PER_SHARD=%d: shards have room for %d of a client: raise lanes.qpsPerClientPerShard there", family, e.QPs, d.Lanes.QPs)
	case e.GetWorkers >= 0 && e.GetWorkers != d.Server.GetWorkers:
		return bad("%sSERVER_GET_WORKERS=%d: shards have %d: change server.getWorkers in the deployment", family, e.GetWorkers, d.Server.GetWorkers)
	case e.Coroutines >= 0 && e.Coroutines != d.Server.CoroutinesPerThread:
		return bad("%sSERVER_COROUTINES_PER_THREAD=%d: shards have %d: change server.coroutinesPerThread in the deployment", family, e.Coroutines, d.Server.CoroutinesPerThread)
	case e.Clients > d.Lanes.MaxClients:
		return bad("%d client processes: shards have room for %d: raise lanes.maxClients", e.Clients, d.Lanes.MaxClients)
	}
	if e.QPs != 0 {
		own.Lanes.QPs = e.QPs
		own.Lanes.AsyncDepth = min(own.Lanes.AsyncDepth, own.Lanes.QPs*own.Lanes.Slots)
	}
	if e.WaitTimeout != 0 {
		own.Lanes.WaitTimeout = deploy.Duration(e.WaitTimeout)
	}
	host, port := d.Control.Host, d.Control.Port
	if e.ControlHost != "" {
		host = e.ControlHost
	}
	if e.ControlPort != 0 {
		port = e.ControlPort
	}
	if e.Namespace != "" {
		id.Namespace = e.Namespace
	}
	opts := ctrl.ClientOptions{Timeout: d.Control.Timeout.D()}
	if e.ControlTimeout != 0 {
		opts.Timeout = e.ControlTimeout
	}
	if t := d.Control.TLS; t != nil {
		opts.TLS = &ctrl.TLSFiles{Cert: t.Cert, Key: t.Key, CA: t.CA}
	}
	return SessionConfig{Deployment: &own, Host: e.Host, Rails: e.Rails, Drivers: c.Drivers, Control: net.JoinHostPort(host, strconv.Itoa(port)),
		Identity: id, Options: opts, Modes: e.Modes, Depth: e.Depth}, nil
}

func loadResolved(path string) (*deploy.Deployment, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var file struct {
		Deployment json.RawMessage `json:"deployment"`
	}
	if err := json.Unmarshal(b, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(file.Deployment) > 0 {
		b = file.Deployment
	}
	d, err := deploy.Decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return d, nil
}

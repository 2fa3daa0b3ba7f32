package deploy

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Deployment is one validated deployment. The CUE schema schemas.#Deployment has
// the same shape; its comments name the flag of each parameter.
type Deployment struct {
	Name            string    `json:"name"`
	Epoch           uint64    `json:"epoch"`
	ProtocolVersion int       `json:"protocolVersion"`
	Control         Control   `json:"control"`
	Fabrics         []Fabric  `json:"fabrics"`
	Hosts           []Host    `json:"hosts"`
	Shards          []Shard   `json:"shards"`
	Lanes           Lanes     `json:"lanes"`
	Health          Health    `json:"health"`
	Rebuild         Rebuild   `json:"rebuild"`
	Retry           Retry     `json:"retry"`
	Server          Server    `json:"server"`
	Objects         Objects   `json:"objects"`
	Reader          Reader    `json:"reader"`
	Tables          []Table   `json:"tables"`
	Pipeline        Pipeline  `json:"pipeline"`
	Jobs            []ReadJob `json:"jobs"`
	Profile         Profile   `json:"profile"`
}

// Control is the control plane, which runs inside shard 0.
type Control struct {
	Host      string   `json:"host"`
	Port      int      `json:"port"`
	Namespace string   `json:"namespace"` // defaults to the deployment's name
	Store     string   `json:"store"`     // bbolt | memory | etcd
	Path      string   `json:"path"`      // bbolt file; relative to the deployment's state folder
	Endpoints []string `json:"endpoints"` // etcd
	Timeout   Duration `json:"timeout"`   // of one call
	Insecure  bool     `json:"insecure"`  // allow a non-loopback address without TLS
	TLS       *TLS     `json:"tls,omitempty"`
}

// TLS are PEM files; with CA both ends authenticate.
type TLS struct {
	Cert string `json:"cert"`
	Key  string `json:"key"`
	CA   string `json:"ca"`
}

// Fabric is a network that rails share. The list may be empty: then the rails'
// own fabric names are all there is.
type Fabric struct {
	Name   string `json:"name"`
	Type   string `json:"type"` // auto | rocev2 | rocev1 | ib
	MTU    int    `json:"mtu"`  // of rails that name none; the loader has put it into them
	Routed bool   `json:"routed"`
}

// Host is one machine (or one network namespace) with its rails.
type Host struct {
	Name    string `json:"name"`
	Address string `json:"address"` // where launchers reach it; empty is this machine
	Memlock int64  `json:"memlock"` // bytes; 0 is not stated
	Rails   []Rail `json:"rails"`
}

// Shard is one server process.
type Shard struct {
	ID    int      `json:"id"`
	Host  string   `json:"host"`
	Rails []string `json:"rails"` // rails of the host that it serves on; empty: all
	Store Store    `json:"store"`
	Dirs  []string `json:"dirs"` // object directories; relative to the state folder
	Slab  int64    `json:"slab"` // bytes of registered memory for stripes

	Metrics Metrics `json:"metrics"`
}

// Metrics is the TCP address at which a shard serves its metrics.
type Metrics struct {
	Port int    `json:"port"` // 0: none
	Host string `json:"host"`
}

// Store is the parameter store of a shard.
type Store struct {
	Memory int64  `json:"memory"` // bytes
	Index  string `json:"index"`
}

// Lanes are the RC-WRITE slots between a client and a shard.
type Lanes struct {
	QPs               int      `json:"qpsPerClientPerShard"` // over all rails; every rail has at least one
	Slots             int      `json:"slotsPerQP"`
	AsyncDepth        int      `json:"asyncDepth"`
	RequestBytes      int64    `json:"requestBytes"`
	ResponseBytes     int64    `json:"responseBytes"`
	Notify            string   `json:"notify"` // scan | imm | adaptive
	Spin              Duration `json:"spin"`   // adaptive: how long to spin before sleeping
	WaitTimeout       Duration `json:"waitTimeout"`
	GetResponseMode   string   `json:"getResponseMode"`
	PutProtocol       int      `json:"putProtocolVersion"`
	PutTransferMode   string   `json:"putV2TransferMode"`
	CQHarvestInterval Duration `json:"cqHarvestInterval"`
	CQDepth           int      `json:"cqDepth"`
	MaxSendWR         int      `json:"maxSendWR"`
	MaxRecvWR         int      `json:"maxRecvWR"`
	MaxClients        int      `json:"maxClients"`      // clients that a shard has room for
	RegisteredBytes   int64    `json:"registeredBytes"` // most that the lanes of one process may take
}

// Retry is what happens to a request whose shard did not answer.
type Retry struct {
	GetAttempts int      `json:"getAttempts"` // 1 is no second try
	Backoff     Duration `json:"backoff"`
	HedgeAfter  Duration `json:"hedgeAfter"` // 0 is never
}

// Health is failure detection through the control plane.
type Health struct {
	HeartbeatInterval Duration `json:"heartbeatInterval"`
	Stale             Duration `json:"stale"`
	Dead              Duration `json:"dead"`
	ProbeAfter        Duration `json:"probeAfter"`
	ProbeInterval     Duration `json:"probeInterval"`
	ProbeTimeout      Duration `json:"probeTimeout"`
	TouchAfter        Duration `json:"touchAfter"`   // 0 is never
	TouchTimeout      Duration `json:"touchTimeout"` // 0 is that of the device
	ClientLease       Duration `json:"clientLease"`
}

// Rebuild is the healing of lanes.
type Rebuild struct {
	Enabled        bool     `json:"enabled"`
	MaxAttempts    int      `json:"maxAttempts"`
	Wait           Duration `json:"wait"`
	Poll           Duration `json:"poll"`
	PollMax        Duration `json:"pollMax"`
	PollTimeout    Duration `json:"pollTimeout"`
	Cooldown       Duration `json:"cooldown"`
	CooldownMax    Duration `json:"cooldownMax"`
	Window         Duration `json:"window"`
	WindowAttempts int      `json:"windowAttempts"`
	Sweep          Duration `json:"sweep"`
	Rejoin         bool     `json:"rejoin"` // clients connect again to a shard that comes back
}

// Server are the threads of a shard.
type Server struct {
	Threads             int      `json:"threads"`
	GetWorkers          int      `json:"getWorkers"`
	CoroutinesPerThread int      `json:"coroutinesPerThread"`
	StorageWorkers      int      `json:"storageWorkers"`
	ShutdownTimeout     Duration `json:"shutdownTimeout"`
}

// Objects is how objects are striped and stored.
type Objects struct {
	StripeBytes int64  `json:"stripeBytes"`
	Policy      string `json:"policy"`
	Checksums   string `json:"checksums"`
	Sync        bool   `json:"sync"` // fsync data before metadata
	DirectIO    string `json:"directIO"`
}

// Reader are the limits of reading.
type Reader struct {
	IOTimeout             Duration `json:"ioTimeout"`
	Cooldown              Duration `json:"cooldown"`
	MaxConnectionsPerRail int      `json:"maxConnectionsPerRail"`
	MaxConnections        int      `json:"maxConnections"`
	MaxInflightPerRail    int64    `json:"maxInflightBytesPerRail"`
	MaxInflight           int64    `json:"maxInflightBytes"`
	TaskMaxStripes        int      `json:"taskMaxStripes"`
	MaxStaging            int64    `json:"maxStagingBytes"`
	OnRailFailure         string   `json:"onRailFailure"`
	MinRails              int      `json:"minRails"`
	Weights               string   `json:"weights"`
	Deadline              Duration `json:"deadline"` // 0: none
	Hedge                 bool     `json:"hedge"`
	Quarantine            Duration `json:"quarantine"`
	Recheck               bool     `json:"recheck"`
	Verify                string   `json:"verify"` // whole | stripes
}

// Table is an embedding table: u64 keys, float32 rows.
type Table struct {
	Name      string    `json:"name"`
	Dim       int       `json:"dim"`
	Optimizer Optimizer `json:"optimizer"`
}

// Optimizer is what UPDATE does with a gradient.
type Optimizer struct {
	Type         string  `json:"type"` // sgd | adagrad | rowwise-adagrad | adam | adamw
	LearningRate float64 `json:"learningRate"`
	Epsilon      float64 `json:"epsilon"`
	Beta1        float64 `json:"beta1"`
	Beta2        float64 `json:"beta2"`
	WeightDecay  float64 `json:"weightDecay"`
	Accumulator  float64 `json:"initialAccumulator"`
}

// Profile are the records of where time goes.
type Profile struct {
	Enabled  bool     `json:"enabled"`
	Interval Duration `json:"interval"`
}

// Pipeline are the deadlines of the stages.
type Pipeline struct {
	Resolve  StageOpts `json:"resolve"`
	Allocate StageOpts `json:"allocate"`
	Publish  StageOpts `json:"publish"`
	Connect  StageOpts `json:"connect"`
	Serve    StageOpts `json:"serve"`
}

// StageOpts of one stage.
type StageOpts struct {
	Deadline Duration `json:"deadline"`
}

// ReadJob is a read that rs run starts.
type ReadJob struct {
	Name      string   `json:"name"`
	Host      string   `json:"host"` // never empty
	Namespace string   `json:"namespace"`
	Object    string   `json:"object"`
	Rails     []string `json:"rails"`  // empty: all of the host
	Output    string   `json:"output"` // empty: none
	Limits    Reader   `json:"limits"` // the deployment's where the job sets none
}

// Canonical is the deployment's canonical JSON: the struct order above, no white
// space, lists in their recipe order. A field that comes after the first release has
// Go's zero value as its default and is left out with it, so that old digests stay.
func (d *Deployment) Canonical() []byte {
	b, err := json.Marshal(d)
	if err != nil {
		// Every field is marshalable by construction.
		panic("deploy: " + err.Error())
	}
	return b
}

// Digest is the SHA-256 of Canonical in hex. Processes whose digests differ do
// not run the same recipe and refuse each other.
func (d *Deployment) Digest() string {
	s := sha256.Sum256(d.Canonical())
	return hex.EncodeToString(s[:])
}

// Decode reads a deployment that was written as JSON (by Canonical or by the
// loader) and refuses unknown fields.
func Decode(b []byte) (*Deployment, error) {
	var d Deployment
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, fmt.Errorf("resolved deployment: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("resolved deployment: something follows it")
	}
	return &d, nil
}

// Host finds a host by name.
func (d *Deployment) Host(name string) (*Host, bool) {
	for i := range d.Hosts {
		if d.Hosts[i].Name == name {
			return &d.Hosts[i], true
		}
	}
	return nil, false
}

// Shard finds a shard by id.
func (d *Deployment) Shard(id int) (*Shard, bool) {
	for i := range d.Shards {
		if d.Shards[i].ID == id {
			return &d.Shards[i], true
		}
	}
	return nil, false
}

// ShardRails are the rails that a shard serves on, in the host's order.
func (d *Deployment) ShardRails(s *Shard) []Rail {
	h, ok := d.Host(s.Host)
	if !ok {
		return nil
	}
	if len(s.Rails) == 0 {
		return h.Rails
	}
	var out []Rail
	for _, r := range h.Rails {
		for _, n := range s.Rails {
			if r.Name == n {
				out = append(out, r)
			}
		}
	}
	return out
}

// Rail finds a rail of the host by name.
func (h *Host) Rail(name string) (*Rail, bool) {
	for i := range h.Rails {
		if h.Rails[i].Name == name {
			return &h.Rails[i], true
		}
	}
	return nil, false
}

// ClientHost is the host that commands such as put and read run on when they are
// not told: the first host without a shard, else the first host.
func (d *Deployment) ClientHost() *Host {
	for i := range d.Hosts {
		if d.shardsOn(d.Hosts[i].Name) == 0 {
			return &d.Hosts[i]
		}
	}
	if len(d.Hosts) == 0 {
		return nil
	}
	return &d.Hosts[0]
}

func (d *Deployment) shardsOn(host string) int {
	n := 0
	for i := range d.Shards {
		if d.Shards[i].Host == host {
			n++
		}
	}
	return n
}

package deploy

// Rail is one path: a device port with a GID on a fabric.
type Rail struct {
	Name         string      `json:"name"`
	Fabric       string      `json:"fabric"`
	Device       string      `json:"device"` // soft:ADDR[:PORT] | ibv:DEV; see ParseDevice
	Port         int         `json:"port"`
	GID          GIDSelector `json:"gid"`
	Weight       int         `json:"weight"`
	MTU          int         `json:"mtu"` // 0: the smaller active MTU of both ends
	TrafficClass int         `json:"trafficClass"`
	HopLimit     int         `json:"hopLimit"`
	FlowLabel    int         `json:"flowLabel"`
	SL           int         `json:"sl"`
	PKey         int         `json:"pkey"`    // by value; 0 is the default partition
	Timeout      int         `json:"timeout"` // 4.096 µs × 2^n
	RetryCount   int         `json:"retryCount"`
	RNRRetry     int         `json:"rnrRetry"`
	// Listeners are the endpoints of peers that this rail may connect to: rail
	// names, ADDR or ADDR:PORT; empty is any on the fabric.
	Listeners []string       `json:"listeners"`
	Faults    []Fault        `json:"faults,omitempty"`
	Caps      map[string]int `json:"caps,omitempty"`
	GIDs      []SoftGID      `json:"gids,omitempty"`
	ActiveMTU int            `json:"activeMTU"` // of a soft device; 0: from its net device
}

// SoftGID is one entry of a soft device's own GID table.
type SoftGID struct {
	Address string `json:"address"`
	Type    string `json:"type"`
	NetDev  string `json:"netdev"`
}

// GIDSelector picks an entry of the GID table. Type narrows every selection.
type GIDSelector struct {
	Select  string `json:"select"` // auto | index | address | type
	Index   int    `json:"index"`
	Address string `json:"address"` // an address or a CIDR prefix
	Type    string `json:"type"`    // rocev1 | rocev2 | ib
}

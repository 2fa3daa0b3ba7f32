package fabric

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// Net is a net device of this network namespace.
type Net struct {
	Name      string
	Kind      string // vlan, macvlan, bond, bridge, vxlan … as the kernel says; empty for others
	MTU       int    // 0 where it is not known
	Up        bool   // switched on by the administrator
	OperState string // up, down, unknown … as the kernel says
	Master    string // the bond or bridge that it is in
	Lower     []string
	Slaves    []string // of a bond

	link   int    // ARPHRD number of the link layer
	device string // where its device is in the tree; empty for a virtual one
	port   int    // port of that device, from 0
	guest  bool   // it stands for a port of another function (switchdev representor)
}

// Link layers as ARPHRD numbers.
const (
	arpEther      = 1
	arpInfiniBand = 32
	arpTunnel     = 768
	arpTunnel6    = 769
	arpSIT        = 776
	arpIPGRE      = 778
	arpIP6GRE     = 823
	arpNone       = 65534
)

// Nets are the net devices of a network namespace. A nil *Nets knows nothing.
type Nets struct{ here map[string]Net }

// Here says whether a net device is in this network namespace; known is false
// when that cannot be told.
func (n *Nets) Here(name string) (here, known bool) {
	if n == nil {
		return false, false
	}
	_, here = n.here[name]
	return here, true
}

// Get is what is known of a net device.
func (n *Nets) Get(name string) Net {
	if n == nil {
		return Net{Name: name}
	}
	return n.here[name]
}

// above says whether a net device is stacked on another one, over any number of
// levels.
func (n *Nets) above(name, base string) bool {
	seen := map[string]bool{}
	todo := []string{name}
	for len(todo) > 0 {
		d := todo[0]
		todo = todo[1:]
		if seen[d] {
			continue
		}
		seen[d] = true
		lower := n.Get(d).Lower
		if slices.Contains(lower, base) {
			return true
		}
		todo = append(todo, lower...)
	}
	return false
}

const classNet = "class/net"

// nets reads the namespace's net devices: their names, and the rest of those
// that have to do with a device (a host may have thousands of others).
func (t tree) nets(used []string) *Nets {
	names, err := t.names(classNet)
	if err != nil && len(names) == 0 {
		return nil
	}
	n := &Nets{here: make(map[string]Net, len(names))}
	for _, name := range names {
		if name == "bonding_masters" { // a file of the bonding driver among the net devices
			continue
		}
		n.here[name] = Net{Name: name}
		if t.has(path.Join(classNet, name, "device")) {
			used = append(used, name)
		}
	}
	for len(used) > 0 {
		name := used[0]
		used = used[1:]
		if d, ok := n.here[name]; !ok || d.OperState != "" {
			continue
		}
		d := t.net(name)
		n.here[name] = d
		used = append(used, d.Lower...)
		used = append(used, d.Slaves...)
		if d.Master != "" {
			used = append(used, d.Master)
		}
	}
	return n
}

func (t tree) net(name string) Net {
	dir := t.physical(path.Join(classNet, name))
	d := Net{Name: name, OperState: t.get(path.Join(dir, "operstate")), Master: t.linkBase(path.Join(dir, "master"))}
	if d.OperState == "" {
		d.OperState = "unknown"
	}
	if n, ok := t.integer(path.Join(dir, "mtu")); ok && n > 0 && n < 1<<31 {
		d.MTU = int(n)
	}
	if n, ok := t.integer(path.Join(dir, "flags")); ok {
		d.Up = n&1 != 0 // IFF_UP
	}
	if n, ok := t.integer(path.Join(dir, "type")); ok && n >= 0 && n <= 0xffff {
		d.link = int(n)
	}
	// dev_port came later than dev_id, which older drivers of IPoIB fill instead.
	for _, f := range []string{"dev_port", "dev_id"} {
		if n, ok := t.integer(path.Join(dir, f)); ok && n > 0 && n < 256 {
			d.port = int(n)
			break
		}
	}
	if link := path.Join(dir, "device"); t.linkBase(link) != "" {
		d.device = t.physical(link)
	}
	d.guest = representorRE.MatchString(t.get(path.Join(dir, "phys_port_name")))
	d.Kind = t.kind(dir, d.link)
	files, _ := t.names(dir) // what cannot be listed has nothing below it
	for _, f := range files {
		if l, ok := strings.CutPrefix(f, "lower_"); ok {
			d.Lower = append(d.Lower, l)
		}
	}
	d.Slaves = strings.Fields(t.get(path.Join(dir, "bonding/slaves")))
	return d
}

// Names of ports that stand for virtual and sub-functions of the same device.
var representorRE = regexp.MustCompile(`^(c[0-9]+)?pf[0-9]+(vf[0-9]+|sf[0-9]+|hpf)$`)

// kind is the kernel's word for what a net device is.
func (t tree) kind(dir string, link int) string {
	for line := range strings.Lines(t.lines(path.Join(dir, "uevent"))) {
		if k, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVTYPE="); ok {
			return printable(k)
		}
	}
	switch {
	case t.has(path.Join(dir, "bonding")):
		return "bond"
	case t.has(path.Join(dir, "bridge")):
		return "bridge"
	case t.has(path.Join(dir, "tun_flags")):
		return "tun"
	}
	switch link {
	case arpTunnel, arpTunnel6, arpSIT, arpNone:
		return "tunnel"
	case arpIPGRE, arpIP6GRE:
		return "gre"
	}
	return ""
}

// tunnels are kinds whose addresses never appear on the wire of a port, whatever
// they are stacked on.
var tunnels = []string{"vxlan", "geneve", "gre", "gretap", "tun", "tunnel", "wireguard", "ipip", "sit"}

// overlayRE knows the net devices of container networks by name, for when the
// kernel's own word is not to be had.
var overlayRE = regexp.MustCompile(`^(docker\d+|docker_gwbridge|br-[0-9a-f]{12}|veth.+|cni\d+|cni-.+|flannel.*|cali[0-9a-f]{11}|vxlan[.]calico|` +
	`tunl\d+|cilium_.+|lxc[0-9a-f]+|lxcbr\d+|lxdbr\d+|weave|vethwe.*|kube-(ipvs0|bridge)|nodelocaldns|virbr\d+.*|vnet\d+|podman\d+|cni-podman\d+|nerdctl\d+|` +
	`antrea-.+|ovn-k8s-.+|genev_sys_.+|vxlan_sys_.+|wg\d+|tailscale\d+|zt[a-z0-9]{8,})$`)

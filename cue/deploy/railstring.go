package deploy

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Device is what a rail's device names: a provider and the provider's own name for
// it, an ADDR[:PORT] of soft or a DEV of ibv: the name of an RDMA or net device, a PCI
// address or a node GUID.
type Device struct{ Provider, Name string }

func (d Device) String() string { return d.Provider + ":" + d.Name }

var ibvName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_.-]{0,62}$`)

// ibvAddress is what else names a device: a PCI address or a node GUID, which have
// colons of their own.
var ibvAddress = regexp.MustCompile(`^((?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]|[0-9A-Fa-f]{4}(?::[0-9A-Fa-f]{4}){3})(?:[:@]|$)`)

// ParseDevice reads soft:ADDR[:PORT] (IPv6 in brackets) or ibv:DEV.
func ParseDevice(s string) (Device, error) {
	d, rest, err := device(s)
	if err != nil {
		return Device{}, err
	}
	if rest == "" {
		return d, nil
	}
	port, ok := strings.CutPrefix(rest, ":")
	if n, err := strconv.ParseUint(port, 10, 16); !ok || d.Provider != "soft" || err != nil || n == 0 || len(port) > 5 {
		return Device{}, fmt.Errorf("%q follows the name, and only a soft device may have a UDP port, from 1 to 65535", rest)
	}
	d.Name += rest
	return d, nil
}

// Addr is the address and the UDP port of a soft device; port 0 is any.
func (d Device) Addr() (netip.Addr, uint16, error) {
	if d.Provider != "soft" {
		return netip.Addr{}, 0, fmt.Errorf("device %v has no address", d)
	}
	if ap, err := netip.ParseAddrPort(d.Name); err == nil {
		return ap.Addr(), ap.Port(), nil
	}
	a, err := netip.ParseAddr(strings.Trim(d.Name, "[]"))
	return a, 0, err
}

// device reads the device at the front of s and returns what follows it. A soft
// device's UDP port is not read.
func device(s string) (Device, string, error) {
	provider, name, ok := strings.Cut(s, ":")
	switch {
	case !ok || provider != "soft" && provider != "ibv":
		return Device{}, "", errors.New("neither soft: nor ibv: is in front of it")
	case provider == "ibv":
		if m := ibvAddress.FindStringSubmatch(name); m != nil {
			return Device{provider, m[1]}, name[len(m[1]):], nil
		}
		n := strings.IndexAny(name, ":@")
		if n < 0 {
			n = len(name)
		}
		if !ibvName.MatchString(name[:n]) {
			return Device{}, "", fmt.Errorf("%q is not the name of a device", name[:n])
		}
		return Device{provider, name[:n]}, name[n:], nil
	case strings.HasPrefix(name, "["):
		n := strings.IndexByte(name, ']')
		if n < 0 {
			return Device{}, "", errors.New("the bracket is not closed")
		}
		if a, err := netip.ParseAddr(name[1:n]); err != nil || !a.Is6() {
			return Device{}, "", fmt.Errorf("%q is not an IPv6 address", name[1:n])
		}
		return Device{provider, name[:n+1]}, name[n+1:], nil
	}
	n := strings.IndexAny(name, ":@")
	if n < 0 {
		n = len(name)
	}
	a, err := netip.ParseAddr(name[:n])
	if err != nil || !a.Is4() {
		hint := ""
		if strings.Count(name, ":") > 1 {
			hint = "; an IPv6 address stands in brackets, as in soft:[fd00::1]"
		}
		return Device{}, "", fmt.Errorf("%q is not an IPv4 address%s", name[:n], hint)
	}
	return Device{provider, name[:n]}, name[n:], nil
}

// ParseRail reads the short form of a rail:
//
//	DEVICE[:PORT[:GID[:WEIGHT[:MTU]]]][@EP[;EP…]]
//
// DEVICE is ibv:DEV or soft:ADDR. A soft device has no UDP port here: what follows
// it is the device's port, which for soft is 1. GID is auto, an index, rocev1,
// rocev2, ib, or an address or prefix in brackets. A part left empty has its default.
// Name and Fabric stay empty; they come from the rail's place in its host.
func ParseRail(s string) (Rail, error) {
	r := Rail{Port: 1, Weight: 1, HopLimit: 64, Timeout: 14, RetryCount: 7, RNRRetry: 7, GID: GIDSelector{Select: "auto"}, Listeners: []string{}}
	d, rest, err := device(s)
	if err != nil {
		return Rail{}, err
	}
	r.Device = d.String()
	rest, eps, listens := strings.Cut(rest, "@")
	if listens {
		r.Listeners = strings.Split(eps, ";")
		for _, ep := range r.Listeners {
			if err := checkEndpoint(ep); err != nil {
				return Rail{}, err
			}
		}
	}
	if rest == "" {
		return r, nil
	}
	if rest[0] != ':' {
		return Rail{}, fmt.Errorf("%q follows the device; want a colon", rest)
	}
	parts := splitOutsideBrackets(rest[1:])
	if len(parts) > 4 {
		return Rail{}, fmt.Errorf("%d parts follow the device; there are four: port, GID, weight and MTU", len(parts))
	}
	for i, p := range parts {
		if p == "" {
			continue
		}
		switch i {
		case 0:
			r.Port, err = number(p, "port", 5, 1, 255)
			if err != nil && d.Provider == "soft" {
				err = fmt.Errorf("%w; for a UDP port write {device: %q}", err, r.Device+":"+p)
			}
		case 1:
			r.GID, err = parseGID(p)
		case 2:
			r.Weight, err = number(p, "weight", 4, 1, 1000)
		case 3:
			r.MTU, err = number(p, "MTU", 4, 0, 4096)
			if err == nil && !slices.Contains([]int{0, 256, 512, 1024, 2048, 4096}, r.MTU) {
				err = fmt.Errorf("MTU %d: want 256, 512, 1024, 2048 or 4096", r.MTU)
			}
		}
		if err != nil {
			return Rail{}, err
		}
	}
	return r, nil
}

func parseGID(p string) (GIDSelector, error) {
	switch {
	case p == "auto":
		return GIDSelector{Select: "auto"}, nil
	case p == "rocev1" || p == "rocev2" || p == "ib":
		return GIDSelector{Select: "type", Type: p}, nil
	case p[0] == '[':
		a, ok := strings.CutSuffix(p[1:], "]")
		if ok {
			ok = isAddrOrPrefix(a)
		}
		if !ok {
			return GIDSelector{}, fmt.Errorf("GID %q: want an address or a prefix in brackets, as in [10.1.0.0/16]", p)
		}
		return GIDSelector{Select: "address", Address: a}, nil
	}
	n, err := number(p, "GID", 5, 0, 65535)
	if err != nil {
		return GIDSelector{}, errors.New("GID " + strconv.Quote(p) + ": want auto, an index, rocev1, rocev2, ib, or an address in brackets")
	}
	return GIDSelector{Select: "index", Index: n}, nil
}

func isAddrOrPrefix(s string) bool {
	if a, err := netip.ParseAddr(s); err == nil {
		return a.Zone() == ""
	}
	_, err := netip.ParsePrefix(s)
	return err == nil
}

var railName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// checkEndpoint accepts a rail name, ADDR or ADDR:PORT, IPv6 in brackets.
func checkEndpoint(s string) error {
	if railName.MatchString(s) {
		return nil
	}
	if strings.HasPrefix(s, "soft:") || strings.HasPrefix(s, "ibv:") || s == "" {
		return fmt.Errorf("endpoint %q: want a rail name, ADDR or ADDR:PORT", s)
	}
	if _, err := ParseDevice("soft:" + s); err != nil {
		return fmt.Errorf("endpoint %q: want a rail name, ADDR or ADDR:PORT (IPv6 in brackets)", s)
	}
	return nil
}

func number(s, what string, digits, lo, hi int) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil || len(s) > digits || int(n) < lo || int(n) > hi {
		return 0, fmt.Errorf("%s %q: want a number from %d to %d", what, s, lo, hi)
	}
	return int(n), nil
}

// splitOutsideBrackets splits at colons, but not at those of an IPv6 address.
func splitOutsideBrackets(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, c := range []byte(s) {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ':' && depth <= 0:
			out = append(out, s[from:i])
			from = i + 1
		}
	}
	return append(out, s[from:])
}

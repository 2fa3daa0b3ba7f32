package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/verbs"
)

// ErrNoGID says that no entry of the table fits the selector.
var ErrNoGID = errors.New("no usable GID")

// Verdict is why an entry was taken or not.
type Verdict struct {
	Entry  verbs.GIDEntry
	Taken  bool
	Reason string
}

// Choice is the entry that was taken, with the verdict on every entry of the
// table in its order.
type Choice struct {
	Entry    verbs.GIDEntry
	Verdicts []Verdict
}

// Reason is why the chosen entry was taken.
func (c Choice) Reason() string {
	for _, v := range c.Verdicts {
		if v.Taken {
			return v.Reason
		}
	}
	return ""
}

// Port is what selection needs to know of a port.
type Port struct {
	Link   verbs.LinkLayer
	NetDev string // net device of the port; empty where unknown
}

// The selectors of deploy.GIDSelector.
const (
	SelectAuto    = "auto"
	SelectIndex   = "index"
	SelectAddress = "address"
	SelectType    = "type"
)

// Choose picks a GID of a port's table. auto prefers, in this order: RoCE v2 to
// v1, global addresses to link-local ones, IPv4-mapped to native IPv6, an entry
// of the port's own net device to one of another (a VLAN or an overlay), and the
// lower index. It never takes an empty entry. index, address (an address or a
// prefix) and type narrow the table first.
//
// The error wraps ErrNoGID and says what the table holds.
func Choose(table []verbs.GIDEntry, sel deploy.GIDSelector, port Port) (Choice, error) {
	var c Choice
	if len(table) == 0 {
		return c, fmt.Errorf("%w: the GID table is empty; the port has no address, or its net device is not in this network namespace", ErrNoGID)
	}
	best := -1
	for i, e := range table {
		v := Verdict{Entry: e, Reason: exclude(e, sel, port)}
		c.Verdicts = append(c.Verdicts, v)
		if v.Reason != "" {
			continue
		}
		if best < 0 {
			best = i
			continue
		}
		if why := better(e, table[best], port); why != "" {
			c.Verdicts[best].Reason = fmt.Sprintf("index %d is preferred: %s", e.Index, why)
			best = i
		} else {
			c.Verdicts[i].Reason = fmt.Sprintf("index %d is preferred: %s", table[best].Index, orElse(better(table[best], e, port), "lower index"))
		}
	}
	if best < 0 {
		return c, fmt.Errorf("%w for %s: %s", ErrNoGID, describe(sel), listing(c.Verdicts))
	}
	c.Entry = table[best]
	c.Verdicts[best].Taken = true
	c.Verdicts[best].Reason = why(c.Entry, sel)
	return c, nil
}

// exclude says why an entry cannot be taken at all, or "".
func exclude(e verbs.GIDEntry, sel deploy.GIDSelector, port Port) string {
	if e.GID.IsZero() {
		return "empty entry"
	}
	switch sel.Select {
	case SelectIndex:
		if e.Index != sel.Index {
			return fmt.Sprintf("the recipe asks for index %d", sel.Index)
		}
	case SelectAddress:
		if !matches(e.GID.Addr(), sel.Address) {
			return "not " + sel.Address
		}
	}
	if want := sel.Type; want != "" && typeWord(e.Type, port.Link) != want {
		return fmt.Sprintf("it is %s, the recipe asks for %s", typeWord(e.Type, port.Link), want)
	}
	return ""
}

// typeWord is the recipe's word for a GID type; on Ethernet the type that sysfs
// calls "IB/RoCE v1" is RoCE v1.
func typeWord(t verbs.GIDType, l verbs.LinkLayer) string {
	switch {
	case t == verbs.GIDTypeRoCEv2:
		return "rocev2"
	case t == verbs.GIDTypeRoCEv1 || l == verbs.LinkEthernet:
		return "rocev1"
	}
	return "ib"
}

func matches(a netip.Addr, want string) bool {
	if p, err := netip.ParsePrefix(want); err == nil {
		return p.Contains(a)
	}
	w, err := netip.ParseAddr(want)
	return err == nil && w.Unmap() == a
}

// better says why a is to be preferred to b, or "".
func better(a, b verbs.GIDEntry, port Port) string {
	for _, rule := range []struct {
		text string
		ok   func(verbs.GIDEntry) bool
	}{
		{"RoCE v2 before v1", func(e verbs.GIDEntry) bool { return e.Type == verbs.GIDTypeRoCEv2 }},
		{"global before link-local", func(e verbs.GIDEntry) bool { return !e.GID.IsLinkLocal() }},
		{"on the port's own net device", func(e verbs.GIDEntry) bool { return port.NetDev == "" || e.NetDev == port.NetDev }},
		{"IPv4 before native IPv6", func(e verbs.GIDEntry) bool { return e.GID.IsIPv4() }},
	} {
		switch x, y := rule.ok(a), rule.ok(b); {
		case x && !y:
			return rule.text
		case y && !x:
			return ""
		}
	}
	return ""
}

func why(e verbs.GIDEntry, sel deploy.GIDSelector) string {
	s := fmt.Sprintf("%v %v", e.Type, e.GID.Addr())
	if e.GID.IsLinkLocal() {
		s += " (link-local: there is no global address)"
	}
	if sel.Select != SelectAuto && sel.Select != "" {
		s += ", chosen by " + describe(sel)
	}
	return s
}

func describe(sel deploy.GIDSelector) string {
	switch sel.Select {
	case SelectIndex:
		return fmt.Sprintf("index %d", sel.Index)
	case SelectAddress:
		return "address " + sel.Address
	case SelectType:
		return "type " + sel.Type
	}
	return "automatic choice"
}

func listing(vs []Verdict) string {
	var p []string
	for _, v := range vs {
		p = append(p, fmt.Sprintf("index %d is %v %v (%s)", v.Entry.Index, v.Entry.Type, v.Entry.GID.Addr(), v.Reason))
	}
	return strings.Join(p, "; ")
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

package fabric

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	// Doubt is why the entry may not reach every peer; empty when it does.
	Doubt string
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

// The selectors of deploy.GIDSelector.
const (
	SelectAuto    = "auto"
	SelectIndex   = "index"
	SelectAddress = "address"
	SelectType    = "type"
)

// Choose picks a GID of a port's table. auto prefers, in this order: RoCE v2 to
// v1; a net device of this network namespace to one of another; global addresses
// to link-local ones; the port's own net device to one stacked on it (a VLAN, a
// bridge), and both to any other; IPv4-mapped to native IPv6; the lower index. It
// never takes an empty entry, and none of a container network or a tunnel, whose
// addresses do not leave the host. index and address (an address or a prefix)
// narrow the table first and may take any entry that is not empty; type narrows it
// too.
//
// On InfiniBand every entry of a port leads to it and the first one counts.
//
// The error wraps ErrNoGID and says what the table holds.
func Choose(table []verbs.GIDEntry, sel deploy.GIDSelector, port Port) (Choice, error) {
	var c Choice
	if !slices.ContainsFunc(table, func(e verbs.GIDEntry) bool { return !e.GID.IsZero() }) {
		return c, fmt.Errorf("%w: the GID table is empty; the port has no address, or its net device is not in this network namespace", ErrNoGID)
	}
	st := newStandings(port, table)
	rules := st.rules(port.Link)
	best := -1
	for i, e := range table {
		v := Verdict{Entry: e, Reason: exclude(e, sel, port, st)}
		c.Verdicts = append(c.Verdicts, v)
		if v.Reason == "" && (best < 0 || better(e, table[best], rules) != "") {
			best = i
		}
	}
	if best < 0 {
		return c, fmt.Errorf("%w for %s: %s", ErrNoGID, describe(sel), listing(c.Verdicts, port.Link))
	}
	// Reasons name the entry that won, not one that lost to it later.
	for i := range c.Verdicts {
		if v := &c.Verdicts[i]; v.Reason == "" && i != best {
			v.Reason = fmt.Sprintf("index %d is preferred: %s", table[best].Index, orElse(better(table[best], v.Entry, rules), "lower index"))
		}
	}
	c.Entry = table[best]
	c.Doubt = doubt(c.Entry, port.Link, st)
	c.Verdicts[best].Taken = true
	c.Verdicts[best].Reason = why(c.Entry, sel, port.Link, st)
	return c, nil
}

// asksIndex begins the reason of every entry but the one whose index was asked for.
const asksIndex = "the recipe asks for index "

// exclude says why an entry cannot be taken at all, or "".
func exclude(e verbs.GIDEntry, sel deploy.GIDSelector, port Port, st standings) string {
	if e.GID.IsZero() {
		return "empty entry"
	}
	if port.Only != "" && e.NetDev != port.Only {
		return "the recipe asks for net device " + port.Only
	}
	byHand := port.Only != ""
	switch sel.Select {
	case SelectIndex:
		if e.Index != sel.Index {
			return asksIndex + fmt.Sprint(sel.Index)
		}
		byHand = true
	case SelectAddress:
		if !matches(e.GID.Addr(), sel.Address) {
			return "not " + sel.Address
		}
		byHand = true
	}
	if want := sel.Type; want != "" && typeWord(e.Type, port.Link) != want {
		return fmt.Sprintf("it is %s, the recipe asks for %s", typeWord(e.Type, port.Link), want)
	}
	if !byHand && port.Link != verbs.LinkInfiniBand && st.of(e.NetDev) == overlay {
		return fmt.Sprintf("it belongs to %s: its addresses do not leave this host", st.text(e.NetDev))
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

// rule is one preference: what fulfils it is better than what does not.
type rule struct {
	text string
	ok   func(verbs.GIDEntry) bool
}

// rules are the preferences among usable entries, the first to tell two entries
// apart decides.
func (s standings) rules(link verbs.LinkLayer) []rule {
	if link == verbs.LinkInfiniBand {
		return nil
	}
	is := func(most standing) func(verbs.GIDEntry) bool {
		return func(e verbs.GIDEntry) bool { return s.of(e.NetDev) <= most }
	}
	return []rule{
		{"RoCE v2 before v1", func(e verbs.GIDEntry) bool { return e.Type == verbs.GIDTypeRoCEv2 }},
		{"its net device is in this network namespace", func(e verbs.GIDEntry) bool { return s.of(e.NetDev) != elsewhere }},
		{"global before link-local", func(e verbs.GIDEntry) bool { return !e.GID.IsLinkLocal() }},
		{"on the port's own net device", is(ownDevice)},
		{"on a net device stacked on the port's own", is(stacked)},
		{"IPv4 before native IPv6", func(e verbs.GIDEntry) bool { return e.GID.IsIPv4() }},
	}
}

// better says why a is to be preferred to b, or "".
func better(a, b verbs.GIDEntry, rules []rule) string {
	for _, r := range rules {
		switch x, y := r.ok(a), r.ok(b); {
		case x && !y:
			return r.text
		case y && !x:
			return ""
		}
	}
	return ""
}

// why says what was taken and, where a person would ask, on what.
func why(e verbs.GIDEntry, sel deploy.GIDSelector, link verbs.LinkLayer, st standings) string {
	s := typeText(e.Type, link) + " " + e.GID.Addr().String()
	if link != verbs.LinkInfiniBand {
		if e.NetDev != "" {
			s += " on " + st.text(e.NetDev)
		}
		if e.GID.IsLinkLocal() {
			s += " (link-local: there is no global address)"
		}
	}
	if sel.Select != SelectAuto && sel.Select != "" {
		s += ", chosen by " + describe(sel)
	}
	return s
}

// doubt says what an entry that was taken may not do.
func doubt(e verbs.GIDEntry, link verbs.LinkLayer, st standings) string {
	if link == verbs.LinkInfiniBand {
		return ""
	}
	switch at := st.of(e.NetDev); {
	case at == overlay:
		return fmt.Sprintf("%v belongs to %s: other hosts cannot reach it", e.GID.Addr(), st.text(e.NetDev))
	case at == elsewhere:
		return fmt.Sprintf("%v belongs to %s", e.GID.Addr(), st.text(e.NetDev))
	case e.GID.IsLinkLocal():
		return fmt.Sprintf("%v is link-local: only peers on the same Ethernet segment can reach it", e.GID.Addr())
	}
	return ""
}

// typeText is the type as people know it: what sysfs calls "IB/RoCE v1" is RoCE v1
// on an Ethernet port.
func typeText(t verbs.GIDType, l verbs.LinkLayer) string {
	if t == verbs.GIDTypeIB && l == verbs.LinkEthernet {
		t = verbs.GIDTypeRoCEv1
	}
	return t.String()
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

func listing(vs []Verdict, link verbs.LinkLayer) string {
	const most = 8 // a table may have hundreds
	var p []string
	for i, v := range vs {
		if i == most && len(vs) > most+1 {
			p = append(p, fmt.Sprintf("and %d more", len(vs)-most))
			break
		}
		text := fmt.Sprintf("index %d is %s %v", v.Entry.Index, typeText(v.Entry.Type, link), v.Entry.GID.Addr())
		if !strings.HasPrefix(v.Reason, asksIndex) {
			text += " (" + v.Reason + ")"
		}
		p = append(p, text)
	}
	return strings.Join(p, "; ")
}

func orElse(s, other string) string {
	if s != "" {
		return s
	}
	return other
}

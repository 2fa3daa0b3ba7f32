package fabric

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// PCI is the address of a PCI function as the kernel spells it, as in
// 0000:3b:00.0; empty for a device that is on no PCI bus.
type PCI string

var pciRE = regexp.MustCompile(`^(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])$`)

// ParsePCI reads an address with or without the domain, in either case.
func ParsePCI(s string) (PCI, bool) {
	m := pciRE.FindStringSubmatch(strings.ToLower(s))
	if m == nil {
		return "", false
	}
	if m[1] == "" {
		m[1] = "0000"
	}
	return PCI(m[1] + ":" + m[2]), true
}

// Slot is the address without the function: functions of a slot are one card.
func (p PCI) Slot() string {
	s, _, _ := strings.Cut(string(p), ".")
	return s
}

// pciOf is the function that a path of the tree goes through last, and the path
// as far as it. Sub-functions and auxiliary devices hang below theirs.
func pciOf(p string) (PCI, string) {
	for p != "" && p != "." && p != "/" {
		if a, ok := ParsePCI(path.Base(p)); ok && string(a) == path.Base(p) {
			return a, p
		}
		p = path.Dir(p)
	}
	return "", ""
}

// Bus is a PCI Express link.
type Bus struct {
	GTs   float64 // 10^9 transfers a second and lane
	Lanes int
}

// Gbps is what the link carries, in 10^9 bit/s, packet headers not deducted; 0
// where it is not known.
func (b Bus) Gbps() float64 {
	code := 128.0 / 130 // line code of 8 GT/s and above
	switch {
	case b.GTs <= 5:
		code = 0.8
	case b.GTs > 32:
		code = 242.0 / 256
	}
	return b.GTs * float64(b.Lanes) * code
}

func (b Bus) String() string {
	if b.GTs == 0 || b.Lanes == 0 {
		return ""
	}
	return fmt.Sprintf("%g GT/s x%d", b.GTs, b.Lanes)
}

// bus reads a link's attributes, which begin with "current" or "max".
func (t tree) bus(dir, which string) Bus {
	// "16.0 GT/s PCIe", and "Unknown" for a virtual function.
	num, _, _ := strings.Cut(t.get(path.Join(dir, which+"_link_speed")), " ")
	gts, err := strconv.ParseFloat(num, 64)
	lanes, ok := t.integer(path.Join(dir, which+"_link_width"))
	if err != nil || !(gts > 0 && gts < 1000) || !ok || lanes < 1 || lanes > 64 {
		return Bus{}
	}
	return Bus{GTs: gts, Lanes: int(lanes)}
}

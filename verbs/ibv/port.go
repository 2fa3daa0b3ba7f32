//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/railstore/railstore/verbs"
)

const linkEthernet = C.AB_LINK_LAYER_ETHERNET

func (d *device) queryPort(port uint8) (C.struct_ab_port_attr, error) {
	var a C.struct_ab_port_attr
	if e := C.rs_query_port(d.lib, d.ctx, C.uint8_t(port), &a); e != 0 {
		return a, &verbs.Error{Op: "query_port", Device: d.name, Port: port, Kind: kindOf(unix.Errno(e)), Err: unix.Errno(e)}
	}
	return a, nil
}

// QueryPort is the port as it is now.
func (d *device) QueryPort(port uint8) (verbs.PortAttr, error) {
	a, err := d.queryPort(port)
	if err != nil {
		return verbs.PortAttr{}, err
	}
	out := verbs.PortAttr{State: verbs.PortState(a.state), MaxMTU: mtuBytes(int(a.max_mtu)), ActiveMTU: mtuBytes(int(a.active_mtu)),
		LID: uint16(a.lid), SMLID: uint16(a.sm_lid), GIDs: int(a.gid_tbl_len), PKeys: int(a.pkey_tbl_len),
		Gbps: gbps(int(a.active_speed), int(a.active_width)), LinkLayer: verbs.LinkInfiniBand}
	// Devices from before the field leave it at 0; they are InfiniBand.
	if a.link_layer == linkEthernet {
		out.LinkLayer = verbs.LinkEthernet
	}
	return out, nil
}

// mtuBytes decodes an MTU code: 1 is 256 bytes, 5 is 4096. An unknown code is 0.
func mtuBytes(code int) int {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

func mtuCode(bytes int) int {
	for c := 1; c <= 5; c++ {
		if mtuBytes(c) == bytes {
			return c
		}
	}
	return 0
}

// gbps is lanes times the rate of one (IBTA 14.2.5.6); 0 where a code is unknown.
func gbps(speed, width int) float64 {
	lane := map[int]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}[speed]
	lanes := map[int]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	return lane * lanes
}

// PKeys is the port's PKey table, with the places of its empty entries.
func (d *device) PKeys(port uint8) ([]uint16, error) {
	a, err := d.queryPort(port)
	if err != nil {
		return nil, err
	}
	out := make([]uint16, a.pkey_tbl_len)
	for i := range out {
		var k C.uint16_t
		if e := C.rs_query_pkey(d.lib, d.ctx, C.uint8_t(port), C.int(i), &k); e != 0 {
			return nil, &verbs.Error{Op: "query_pkey", Device: d.name, Port: port, Kind: kindOf(unix.Errno(e)), Err: fmt.Errorf("index %d: %w", i, unix.Errno(e))}
		}
		out[i] = uint16(k)
	}
	return out, nil
}

// GIDs is the table of a port without its empty entries. A newer library reads
// it in one call; else sysfs tells the entries and their types. Net devices are
// in sysfs only.
func (d *device) GIDs(port uint8) ([]verbs.GIDEntry, error) {
	a, err := d.queryPort(port)
	if err != nil {
		return nil, err
	}
	ethernet := a.link_layer == linkEthernet
	out, err := d.gidsByCall(port, ethernet)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		out, err = d.gidsBySysfs(port, int(a.gid_tbl_len), ethernet)
	}
	if err != nil {
		return nil, err
	}
	for i := range out {
		out[i].NetDev, _ = d.readPort(port, "gid_attrs", "ndevs", strconv.Itoa(out[i].Index))
	}
	return out, nil
}

func (d *device) gidsByCall(port uint8, ethernet bool) ([]verbs.GIDEntry, error) {
	room := 0
	for p := 1; p <= d.attr.Ports; p++ {
		a, err := d.queryPort(uint8(p))
		if err != nil {
			return nil, err
		}
		room += int(a.gid_tbl_len)
	}
	if room == 0 {
		return nil, nil
	}
	entries := make([]C.struct_ab_gid_entry, room)
	n := C.rs_query_gid_table(d.lib, d.ctx, &entries[0], C.size_t(room))
	if n < 0 {
		return nil, &verbs.Error{Op: "query_gid", Device: d.name, Port: port, Kind: kindOf(unix.Errno(-n)), Err: unix.Errno(-n)}
	}
	var out []verbs.GIDEntry
	for i := range entries[:min(int(n), room)] {
		e := &entries[i]
		g := verbs.GIDEntry{Index: int(e.gid_index), GID: rawGID(&e.gid), Type: gidType(uint32(e.gid_type), ethernet)}
		if uint8(e.port_num) == port && !g.GID.IsZero() {
			out = append(out, g)
		}
	}
	return out, nil
}

func rawGID(g *C.union_ab_gid) verbs.GID { return verbs.GID(*g) }

// gidType is the entry's type; the first of the library's numbers is RoCE v1 on
// Ethernet for those that do not tell.
func gidType(number uint32, ethernet bool) verbs.GIDType {
	switch {
	case number == C.AB_GID_TYPE_ROCE_V2:
		return verbs.GIDTypeRoCEv2
	case number == C.AB_GID_TYPE_ROCE_V1, number == C.AB_GID_TYPE_IB && ethernet:
		return verbs.GIDTypeRoCEv1
	case number == C.AB_GID_TYPE_IB:
		return verbs.GIDTypeIB
	}
	return verbs.GIDType(min(number, 255))
}

func (d *device) gidsBySysfs(port uint8, n int, ethernet bool) ([]verbs.GIDEntry, error) {
	var out []verbs.GIDEntry
	for i := range n {
		index := strconv.Itoa(i)
		s, err := d.readPort(port, "gids", index)
		if err != nil {
			return nil, &verbs.Error{Op: "query_gid", Device: d.name, Port: port, Kind: verbs.ErrDevice, Err: err}
		}
		g, err := verbs.ParseGID(s)
		if err != nil {
			return nil, &verbs.Error{Op: "query_gid", Device: d.name, Port: port, Kind: verbs.ErrDevice, Err: fmt.Errorf("index %d: %w", i, err)}
		}
		if g.IsZero() {
			continue
		}
		e := verbs.GIDEntry{Index: i, GID: g, Type: verbs.GIDTypeIB}
		// An entry whose net device is in another network namespace has no type.
		t, err := d.readPort(port, "gid_attrs", "types", index)
		switch {
		case err == nil && t == "RoCE v2":
			e.Type = verbs.GIDTypeRoCEv2
		case ethernet:
			e.Type = verbs.GIDTypeRoCEv1
		}
		out = append(out, e)
	}
	return out, nil
}

// readPort reads a file of a port in sysfs.
func (d *device) readPort(port uint8, name ...string) (string, error) {
	b, err := os.ReadFile(filepath.Join(append([]string{d.sys, "ports", strconv.Itoa(int(port))}, name...)...))
	return strings.TrimSpace(string(b)), err
}

package deploy_test

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/railstore/railstore/cue/deploy"
)

func TestParseDevice(t *testing.T) {
	for _, c := range []struct {
		in, provider, name, addr string
		port                     uint16
		err                      string
	}{
		{in: "ibv:mlx5_0", provider: "ibv", name: "mlx5_0"},
		{in: "ibv:rocep1s0f0.v1", provider: "ibv", name: "rocep1s0f0.v1"},
		{in: "ibv:ens1f0np0.100", provider: "ibv", name: "ens1f0np0.100"},
		{in: "ibv:0000:3b:00.0", provider: "ibv", name: "0000:3b:00.0"},
		{in: "ibv:3B:00.7", provider: "ibv", name: "3B:00.7"},
		{in: "ibv:0x0c42a10300123456", provider: "ibv", name: "0x0c42a10300123456"},
		{in: "ibv:0c42:a103:0012:3456", provider: "ibv", name: "0c42:a103:0012:3456"},
		{in: "ibv:0000:3b:00.0:1", err: `":1" follows the name`},
		{in: "ibv:0000:3b:00.8", err: `":3b:00.8" follows the name`},
		{in: "ibv:0c42:a103:0012", err: `":a103:0012" follows the name`},
		{in: "soft:127.0.0.1", provider: "soft", name: "127.0.0.1", addr: "127.0.0.1"},
		{in: "soft:127.0.0.1:4791", provider: "soft", name: "127.0.0.1:4791", addr: "127.0.0.1", port: 4791},
		{in: "soft:[::1]", provider: "soft", name: "[::1]", addr: "::1"},
		{in: "soft:[fe80::1%eth0]:65535", provider: "soft", name: "[fe80::1%eth0]:65535", addr: "fe80::1%eth0", port: 65535},
		{in: "", err: "neither soft: nor ibv: is in front of it"},
		{in: "mlx5_0", err: "neither soft: nor ibv: is in front of it"},
		{in: "verbs:mlx5_0", err: "neither soft: nor ibv: is in front of it"},
		{in: "ibv:", err: `"" is not the name of a device`},
		{in: "ibv:mlx5 0", err: `"mlx5 0" is not the name of a device`},
		{in: "ibv:mlx5_0:1", err: `":1" follows the name`},
		{in: "soft:", err: `"" is not an IPv4 address`},
		{in: "soft:localhost", err: `"localhost" is not an IPv4 address`},
		{in: "soft:127.0.0.1:0", err: `":0" follows the name`},
		{in: "soft:127.0.0.1:65536", err: `":65536" follows the name`},
		{in: "soft:127.0.0.1:", err: `":" follows the name`},
		{in: "soft:127.0.0.1@x", err: `"@x" follows the name`},
		{in: "soft:::1", err: "an IPv6 address stands in brackets, as in soft:[fd00::1]"},
		{in: "soft:[::1", err: "the bracket is not closed"},
		{in: "soft:[127.0.0.1]", err: `"127.0.0.1" is not an IPv6 address`},
		{in: "soft:[]", err: `"" is not an IPv6 address`},
	} {
		d, err := deploy.ParseDevice(c.in)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%q: got %v, %v, want an error with %q", c.in, d, err, c.err)
			}
			continue
		}
		if err != nil || d.Provider != c.provider || d.Name != c.name || d.String() != c.in {
			t.Errorf("%q: got %+v, %v", c.in, d, err)
		}
		a, port, err := d.Addr()
		if c.addr == "" {
			if err == nil {
				t.Errorf("%q has the address %v", c.in, a)
			}
		} else if err != nil || a != netip.MustParseAddr(c.addr) || port != c.port {
			t.Errorf("%q: got address %v, port %d, %v", c.in, a, port, err)
		}
	}
}

func TestParseRail(t *testing.T) {
	base := deploy.Rail{Port: 1, Weight: 1, HopLimit: 64, Timeout: 14, RetryCount: 7, RNRRetry: 7, GID: deploy.GIDSelector{Select: "auto"}, Listeners: []string{}}
	with := func(device string, change func(*deploy.Rail)) deploy.Rail {
		r := base
		r.Device = device
		if change != nil {
			change(&r)
		}
		return r
	}
	for in, want := range map[string]deploy.Rail{
		"ibv:mlx5_0":          with("ibv:mlx5_0", nil),
		"soft:127.0.0.1":      with("soft:127.0.0.1", nil),
		"soft:[fd00::1]":      with("soft:[fd00::1]", nil),
		"soft:[fd00::1]:1::7": with("soft:[fd00::1]", func(r *deploy.Rail) { r.Weight = 7 }),
		"ibv:mlx5_0::::":      with("ibv:mlx5_0", nil),
		"ibv:mlx5_0:2":        with("ibv:mlx5_0", func(r *deploy.Rail) { r.Port = 2 }),
		"ibv:mlx5_0:1:3:16:4096": with("ibv:mlx5_0", func(r *deploy.Rail) {
			r.GID, r.Weight, r.MTU = deploy.GIDSelector{Select: "index", Index: 3}, 16, 4096
		}),
		"ibv:0000:3b:00.1":        with("ibv:0000:3b:00.1", nil),
		"ibv:0000:3b:00.1:2::3":   with("ibv:0000:3b:00.1", func(r *deploy.Rail) { r.Port, r.Weight = 2, 3 }),
		"ibv:3b:00.1@rail0":       with("ibv:3b:00.1", func(r *deploy.Rail) { r.Listeners = []string{"rail0"} }),
		"ibv:0001:0002:0003:0004": with("ibv:0001:0002:0003:0004", nil),
		"ibv:0c42:a103:0012:3456:1:7": with("ibv:0c42:a103:0012:3456", func(r *deploy.Rail) {
			r.GID = deploy.GIDSelector{Select: "index", Index: 7}
		}),
		"ibv:0001:2:3:4": with("ibv:0001", func(r *deploy.Rail) {
			r.Port, r.GID, r.Weight = 2, deploy.GIDSelector{Select: "index", Index: 3}, 4
		}),
		"ibv:a::rocev1": with("ibv:a", func(r *deploy.Rail) { r.GID = deploy.GIDSelector{Select: "type", Type: "rocev1"} }),
		"ibv:a::[fd00::/64]:2": with("ibv:a", func(r *deploy.Rail) {
			r.GID, r.Weight = deploy.GIDSelector{Select: "address", Address: "fd00::/64"}, 2
		}),
		"ibv:a@b": with("ibv:a", func(r *deploy.Rail) { r.Listeners = []string{"b"} }),
		"ibv:a:1@10.0.0.1;[fd00::2]:4791;b-2;10.0.0.1:1": with("ibv:a", func(r *deploy.Rail) {
			r.Listeners = []string{"10.0.0.1", "[fd00::2]:4791", "b-2", "10.0.0.1:1"}
		}),
	} {
		got, err := deploy.ParseRail(in)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %+v, %v, want %+v", in, got, err, want)
		}
	}
	for in, want := range map[string]string{
		"":                        "neither",
		"soft:1.2.3.4:4791":       `port "4791": want a number from 1 to 255; for a UDP port write {device: "soft:1.2.3.4:4791"}`,
		"ibv:a:0":                 `port "0": want a number from 1 to 255`,
		"ibv:a:256":               `port "256"`,
		"ibv:a:x":                 `port "x"`,
		"ibv:a:-1":                `port "-1"`,
		"ibv:a:000001":            `port "000001"`,
		"ibv:a:1:v2":              "GID \"v2\": want auto, an index, rocev1, rocev2, ib, or an address in brackets",
		"ibv:a:1:70000":           `GID "70000"`,
		"ibv:a:1:[10.0.0.0/33]":   `GID "[10.0.0.0/33]"`,
		"ibv:a:1:[fe80::1%eth0]":  `GID "[fe80::1%eth0]"`,
		"ibv:a:1:[":               `GID "["`,
		"ibv:a:1:3:0":             `weight "0": want a number from 1 to 1000`,
		"ibv:a:1:3:1.5":           `weight "1.5"`,
		"ibv:a:1:3:1:1500":        "MTU 1500: want 256, 512, 1024, 2048 or 4096",
		"ibv:a:1:3:1:8192":        `MTU "8192": want a number from 0 to 4096`,
		"ibv:a:1:3:1:1024:":       "5 parts follow the device; there are four: port, GID, weight and MTU",
		"ibv:a@":                  `endpoint ""`,
		"ibv:a@b;":                `endpoint ""`,
		"ibv:a@b@c":               `endpoint "b@c"`,
		"ibv:a@Rail":              `endpoint "Rail"`,
		"ibv:a@10.0.0.1:0":        `endpoint "10.0.0.1:0"`,
		"ibv:a@soft:127.0.0.1":    `endpoint "soft:127.0.0.1": want a rail name, ADDR or ADDR:PORT`,
		"soft:[fd00::1]x":         `"x" follows the device; want a colon`,
		"soft:fd00::1":            "an IPv6 address stands in brackets, as in soft:[fd00::1]",
		"soft:[fd00::1]:1:auto:x": `weight "x"`,
	} {
		if r, err := deploy.ParseRail(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v, want an error with %q", in, r, err, want)
		}
	}
}

// FuzzParseRail: no text panics, and what is accepted has values in range and a
// device that ParseDevice accepts too.
func FuzzParseRail(f *testing.F) {
	for _, s := range []string{"ibv:mlx5_0:1:3:2:4096@rail0;10.1.0.2:4791", "soft:[fd00::1]:1:[10.0.0.0/8]:3", "soft:127.0.0.1", "soft:[::1%lo]::::@[::1]:1", "ibv:a:]:[", "soft:["} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := deploy.ParseRail(s)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("%q: the error is not a line: %q", s, err)
			}
			return
		}
		if r.Port < 1 || r.Port > 255 || r.Weight < 1 || r.Weight > 1000 || r.MTU < 0 || r.MTU > 4096 || r.GID.Select == "" {
			t.Errorf("%q: %+v", s, r)
		}
		d, err := deploy.ParseDevice(r.Device)
		if err != nil || d.String() != r.Device || !strings.HasPrefix(s, r.Device) {
			t.Errorf("%q: device %v, %v", s, d, err)
		}
	})
}

func FuzzParseDevice(f *testing.F) {
	for _, s := range []string{"ibv:mlx5_0", "soft:127.0.0.1:4791", "soft:[fe80::1%eth0]:1", "soft:[", "soft:::"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := deploy.ParseDevice(s)
		if err != nil {
			return
		}
		if d.String() != s {
			t.Errorf("%q became %q", s, d)
		}
		if _, _, err := d.Addr(); (err == nil) != (d.Provider == "soft") {
			t.Errorf("%q: address: %v", s, err)
		}
	})
}

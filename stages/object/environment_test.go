package object

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/railstore/railstore/cue/deploy"
)

func testHosts() *deploy.Deployment {
	return &deploy.Deployment{Name: "d", Reader: deploy.Reader{MinRails: 1, Hedge: true, Recheck: true},
		Hosts: []deploy.Host{{Name: "s"}, {Name: "c", Rails: []deploy.Rail{
			{Name: "a", Fabric: "fa", Device: "soft:127.0.0.1", Port: 1, Weight: 1, TrafficClass: 7},
			{Name: "b", Fabric: "fb", Device: "soft:127.0.0.2", Port: 1, Weight: 1}}}}}
}

func TestEnvironment(t *testing.T) {
	d := testHosts()
	digest := d.Digest()
	e, err := ReadEnvironment([]string{"HOME=/root", "RS_DEPLOYMENT=x", "RS_MR_COORDINATOR=10.0.0.1:7100", "RS_MR_RAILS=ibv:mlx5_0:1:3:4:4096@10.0.0.9,b=ibv:mlx5_1",
		"RS_MR_IO_TIMEOUT=3s", "RS_MR_COOLDOWN=0s", "RS_MR_QUARANTINE=5m", "RS_MR_DEADLINE=7s", "RS_MR_MAX_CONNECTIONS_PER_RAIL=2", "RS_MR_MAX_CONNECTIONS=9",
		"RS_MR_MAX_INFLIGHT_PER_RAIL=8MiB", "RS_MR_MAX_INFLIGHT=16MiB", "RS_MR_MAX_STAGING=1GiB", "RS_MR_TASK_MAX_STRIPES=5", "RS_MR_MIN_RAILS=2",
		"RS_MR_ON_RAIL_FAILURE=fail", "RS_MR_WEIGHTS=adaptive", "RS_MR_HEDGE=false", "RS_MR_RECHECK=false", "RS_MR_VERIFY=stripes"})
	if err != nil {
		t.Fatal(err)
	}
	got, err := e.Apply(d, "c")
	if err != nil {
		t.Fatal(err)
	}
	want := deploy.Reader{IOTimeout: deploy.Duration(3 * time.Second), MaxConnectionsPerRail: 2, MaxConnections: 9, MaxInflightPerRail: 8 << 20, MaxInflight: 16 << 20,
		TaskMaxStripes: 5, MaxStaging: 1 << 30, OnRailFailure: "fail", MinRails: 2, Weights: "adaptive", Quarantine: deploy.Duration(5 * time.Minute), Deadline: deploy.Duration(7 * time.Second), Verify: "stripes"}
	if got.Reader != want || e.Control != "10.0.0.1:7100" {
		t.Errorf("%+v\nwant %+v; control %s", got.Reader, want, e.Control)
	}
	if v := reflect.TypeFor[deploy.Reader]().NumField(); v != len(envVariables)-2 {
		t.Errorf("%d fields of the reader, %d variables for them", v, len(envVariables)-2)
	}
	a, b := got.Hosts[1].Rails[0], got.Hosts[1].Rails[1]
	if a.Name != "a" || a.Fabric != "fa" || a.Device != "ibv:mlx5_0" || a.GID.Index != 3 || a.Weight != 4 || a.MTU != 4096 || a.TrafficClass != 7 || fmt.Sprint(a.Listeners) != "[10.0.0.9]" {
		t.Errorf("%+v", a)
	}
	if b.Name != "b" || b.Device != "ibv:mlx5_1" || b.Fabric != "fb" {
		t.Errorf("%+v", b)
	}
	if d.Digest() != digest {
		t.Error("the deployment itself was changed")
	}
	// Some rails only, as they are.
	if e, err = ReadEnvironment([]string{"RS_MR_RAILS=b="}); err != nil {
		t.Fatal(err)
	}
	if got, err = e.Apply(d, "c"); err != nil || len(got.Hosts[1].Rails) != 1 || got.Hosts[1].Rails[0].Device != "soft:127.0.0.2" {
		t.Errorf("%+v, %v", got, err)
	}
	// Nothing set.
	if e, err = ReadEnvironment(nil); err != nil {
		t.Fatal(err)
	}
	if got, err = e.Apply(d, "nowhere"); err != nil || got.Digest() != digest {
		t.Errorf("%v", err)
	}
}

// TestEnvironmentRefuses: nothing is guessed, and all that is wrong is told at once.
func TestEnvironmentRefuses(t *testing.T) {
	for _, bad := range []string{
		"COORDINATOR=nowhere", "COORDINATOR=", "RAILS=", "RAILS=mlx5_0", "RAILS=ibv:mlx5_0:x", "RAILS=ibv:mlx5_0::::9000", "RAILS=a=,a=", "RAILS==ibv:mlx5_0", "RAILS=ibv:mlx5_0,",
		"IO_TIMEOUT=0s", "IO_TIMEOUT=3", "COOLDOWN=-1s", "QUARANTINE=soon", "DEADLINE=-1s", "MAX_CONNECTIONS_PER_RAIL=0", "MAX_CONNECTIONS_PER_RAIL=4097", "MAX_CONNECTIONS=many",
		"MAX_INFLIGHT_PER_RAIL=0", "MAX_INFLIGHT=64MX", "MAX_STAGING=-1", "TASK_MAX_STRIPES=-1", "MIN_RAILS=0", "ON_RAIL_FAILURE=reroute", "WEIGHTS=measured", "HEDGE=1", "RECHECK=yes", "VERIFY=none",
		"COOL_DOWN=1s", "=x",
	} {
		e, err := ReadEnvironment([]string{EnvPrefix + bad})
		name, _, _ := strings.Cut(bad, "=")
		if e != nil || !errors.Is(err, ErrBadRequest) || !strings.Contains(err.Error(), EnvPrefix+name) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	// What readers obey is what is listed for them, and no part of RailStore has another.
	for _, name := range deploy.EnvNames(EnvPrefix) {
		if _, err := ReadEnvironment([]string{name + "=?"}); err == nil {
			t.Errorf("%s=? was taken", name)
		}
	}
	for _, x := range envVariables {
		if what := deploy.UnknownVariables([]string{EnvPrefix + x.name}); what != nil {
			t.Error(what)
		}
	}
	if _, err := ReadEnvironment([]string{"RS_MRHEDGE=1", "RS_STATE=/x", "RS_RDMA_RAILS=a"}); err == nil || !strings.Contains(err.Error(), "RS_MRHEDGE: there is no such variable; did you mean RS_MR_HEDGE?") || strings.Contains(err.Error(), "RS_STATE") {
		t.Errorf("%v", err)
	}
	_, err := ReadEnvironment([]string{"RS_MR_HEDGE=maybe", "RS_MR_NONSENSE=1", "RS_MR_MIN_RAILS=x"})
	for _, want := range []string{"RS_MR_HEDGE=maybe: want true or false", "RS_MR_NONSENSE: there is no such variable", "RS_MR_MIN_RAILS=x: want a whole number from 1 to 64"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %q", err, want)
		}
	}
	for _, c := range []struct{ rails, host, want string }{
		{"ibv:a,ibv:b,ibv:c", "c", "entry 3 is no rail of host c, which has 2"},
		{"z=ibv:a", "c", "entry 1 is no rail"},
		{"b=,ibv:x", "c", "rail b stands twice"},
		{"ibv:a", "x", `no host "x"`},
	} {
		e, err := ReadEnvironment([]string{"RS_MR_RAILS=" + c.rails})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Apply(testHosts(), c.host); !errors.Is(err, ErrBadRequest) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.rails, err)
		}
	}
}

// TestEnvironmentDocumented: docs/reading.md has every variable.
func TestEnvironmentDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/reading.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range envVariables {
		if !strings.Contains(string(b), fmt.Sprintf("| `%s%s` |", EnvPrefix, v.name)) {
			t.Errorf("docs/reading.md has no row for %s%s", EnvPrefix, v.name)
		}
	}
}

// TestSessionFromEnvironment reads over the rails that the environment names.
func TestSessionFromEnvironment(t *testing.T) {
	defer goleak.VerifyNone(t)
	x := newSite(t, nil)
	defer x.close()
	s := x.open(nil)
	data := randomBytes(1, 8*Align)
	putBytes(t, s.Worker, testKey, data)
	x.shut(s)
	e, err := ReadEnvironment([]string{"RS_MR_RAILS=b=", "RS_MR_ON_RAIL_FAILURE=fail"})
	if err != nil {
		t.Fatal(err)
	}
	id := x.identity()
	whole := x.dep
	if x.dep, err = e.Apply(x.dep, "c"); err != nil {
		t.Fatal(err)
	}
	defer func() { x.dep = whole }()
	s, err = OpenSession(t.Context(), SessionConfig{Deployment: x.dep, Host: "c", Drivers: x.drivers, Control: x.server.Addr(), Identity: id, Limits: LimitsOf(x.dep.Reader)})
	if err != nil {
		t.Fatal(err)
	}
	defer x.shut(s)
	rep := readBytes(t, s.Worker, testKey, data)
	if len(rep.Rails) != 1 || rep.Rails[0].Name != "b" || s.cfg.Limits.OnRailFailure != FailRead {
		t.Errorf("%+v", rep)
	}
}

func FuzzEnvironment(f *testing.F) {
	for _, s := range []string{"RS_MR_RAILS=a=ibv:x:1:auto:2,soft:127.0.0.1", "RS_MR_MAX_STAGING=1GiB", "RS_MR_COOLDOWN=1h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ReadEnvironment([]string{s})
		if err != nil {
			return
		}
		if d, err := e.Apply(testHosts(), "c"); err == nil {
			for i, r := range d.Hosts[1].Rails {
				if r.Name == "" || r.Fabric == "" || r.Device == "" || r.Weight < 1 {
					t.Errorf("%q: rail %d is %+v", s, i, r)
				}
			}
		}
	})
}

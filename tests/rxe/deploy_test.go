package rxe

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// buildCommand compiles rs into the job's folder, with cgo.
func buildCommand(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "rs"), "./bin/rs")
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("rs: %v\n%s", err, bytes.TrimSpace(out))
	}
}

// rs runs the command in the guest and gives its standard output.
func rs(t *testing.T, args ...string) []byte {
	t.Helper()
	// Not the test's context: that one has ended when its cleanups run.
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv("JOB"), "rs"), args...)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		t.Fatalf("rs %s: %v\n%s%s", strings.Join(args, " "), err, out.Bytes(), diag.Bytes())
	}
	return out.Bytes()
}

// TestInsideDeployment runs the main job on real verbs: a recipe that names rxe
// devices comes up, an object is put and read over both rails and over each
// alone, and everything goes down, with each kind of GID that rxe has.
func TestInsideDeployment(t *testing.T) {
	inside(t)
	recipe, err := os.ReadFile("testdata/two-rail.cue")
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 5<<20+4097)
	rand.NewChaCha8([32]byte{1}).Read(content)
	for _, c := range []struct{ name, gid, isType, gidHas string }{
		{"RoCE v2 IPv4", "{}", "RoCE v2", ":ffff:0a"},
		{"RoCE v2 IPv6", `{address: "fd00::/8", type: "rocev2"}`, "RoCE v2", "fd"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("RS_STATE", filepath.Join(dir, "state"))
			file := filepath.Join(dir, "two-rail.cue")
			if err := os.WriteFile(file, bytes.Replace(recipe, []byte("let GID = {}"), []byte("let GID = "+c.gid), 1), 0o644); err != nil {
				t.Fatal(err)
			}
			in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
			if err := os.WriteFile(in, content, 0o644); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { rs(t, "down", "--quiet") })
			rs(t, "up", "--quiet", file)
			var st struct {
				Shards []struct {
					State string
					Rails []struct {
						Device, Provider, GID string
						GIDType               string `json:"gid_type"`
					}
				}
			}
			if err := json.Unmarshal(rs(t, "status", "--format", "json"), &st); err != nil {
				t.Fatal(err)
			}
			for _, s := range st.Shards {
				if s.State != "serving" || len(s.Rails) != 2 {
					t.Errorf("%+v", s)
				}
				for _, r := range s.Rails {
					if r.Provider != "ibv" || r.GIDType != c.isType || !strings.Contains(r.GID, c.gidHas) {
						t.Errorf("rail %+v, want ibv with %s and a GID with %q", r, c.isType, c.gidHas)
					}
				}
			}
			rs(t, "put", "--quiet", "kv/layer0", in)
			for _, rails := range [][]string{{"rail0", "rail1"}, {"rail0"}, {"rail1"}} {
				_ = os.Remove(out)
				var rep struct {
					Rails []struct {
						Name         string
						Provider     string
						Bytes        int
						PlannedBytes int `json:"planned_bytes"`
						Errors       int
					}
				}
				if err := json.Unmarshal(rs(t, "read", "--format", "json", "--rails", strings.Join(rails, ","), "kv/layer0", "-o", out), &rep); err != nil {
					t.Fatal(err)
				}
				got, err := os.ReadFile(out)
				if err != nil || sha256.Sum256(got) != sha256.Sum256(content) {
					t.Errorf("over %v came back %d bytes of %d, or others: %v", rails, len(got), len(content), err)
				}
				sum := 0
				for _, r := range rep.Rails {
					sum += r.Bytes
					if r.Bytes != r.PlannedBytes || r.Bytes == 0 || r.Errors != 0 || r.Provider != "ibv" {
						t.Errorf("over %v: %+v", rails, r)
					}
				}
				if sum != len(content) || len(rep.Rails) != len(rails) {
					t.Errorf("over %v: %d bytes on %d rails, the object has %d", rails, sum, len(rep.Rails), len(content))
				}
			}
		})
	}
}

// TestInsideRoCEv1 asks for what rxe has not: its GID tables hold RoCE v2 alone.
// The deployment must not come up with another type.
func TestInsideRoCEv1(t *testing.T) {
	inside(t)
	types, err := filepath.Glob("/sys/class/infiniband/rxe0/ports/1/gid_attrs/types/*")
	if err != nil || len(types) == 0 {
		t.Fatalf("no GID table: %v", err)
	}
	for _, f := range types {
		// Reading the type of an entry that is not there fails.
		if b, err := os.ReadFile(f); err == nil && strings.TrimSpace(string(b)) != "RoCE v2" {
			t.Errorf("%s is %q: this rxe has more than RoCE v2, bring a deployment up on it here", f, b)
		}
	}
	recipe, err := os.ReadFile("testdata/two-rail.cue")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "two-rail.cue")
	if err := os.WriteFile(file, bytes.Replace(recipe, []byte("let GID = {}"), []byte(`let GID = {type: "rocev1"}`), 1), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv("JOB"), "rs"), "--state", filepath.Join(dir, "state"), "up", "--quiet", file)
	out, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("rs up: %v, want exit status 3\n%s", err, out)
	}
	if !bytes.Contains(out, []byte("no usable GID for type rocev1: index 0 is RoCE v2")) {
		t.Errorf("rs up says\n%s", out)
	}
}

package tests

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestRecipes does with every recipe what a user would: vet, plan, up, put, read
// over all rails and over each alone, down.
func TestRecipes(t *testing.T) {
	recipes, err := filepath.Glob("../recipes/*.cue")
	if err != nil || len(recipes) < 4 {
		t.Fatalf("%v, %v: want at least four recipes", recipes, err)
	}
	for _, r := range recipes {
		name := strings.TrimSuffix(filepath.Base(r), ".cue")
		t.Run(name, func(t *testing.T) { useRecipe(t, "recipes/"+name+".cue") })
	}
}

// readReport is what the test needs of rs read --format json.
type readReport struct {
	Bytes uint64
	Rails []struct {
		Name         string
		Provider     string
		PlannedBytes uint64 `json:"planned_bytes"`
		Bytes        uint64
	}
}

func useRecipe(t *testing.T, recipe string) {
	s := newShell(t)
	s.must("rs vet " + recipe)
	out, err := s.run("rs plan --format json " + recipe)
	if err != nil {
		t.Fatalf("plan: %v\n%s", err, out)
	}
	var plan struct {
		Deployment string
		Digest     string
		Hosts      []struct {
			Processes []struct{ Name string }
			Rails     []struct {
				Name   string
				Weight int
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &plan); err != nil {
		t.Fatalf("plan: %v\n%s", err, out)
	}
	s.must("rs up --quiet " + recipe)
	out, err = s.run("rs status --format json " + plan.Deployment)
	if err != nil || !strings.Contains(out, plan.Digest) {
		t.Errorf("status: %v, want digest %s in it\n%s", err, plan.Digest, out)
	}

	seed := rand.Uint64()
	if v := os.Getenv("RS_TEST_SEED"); v != "" {
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("RS_TEST_SEED: %v", err)
		}
	}
	t.Logf("RS_TEST_SEED=%d", seed)
	content := make([]byte, 24<<20+12345)
	rnd := rand.NewChaCha8(sha256.Sum256(fmt.Append(nil, seed)))
	_, _ = rnd.Read(content)
	file := filepath.Join(s.dir, "content")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	s.must("rs put --quiet test/content content")
	s.must("rs ls test | grep -q 'test/content'")

	read := func(flags string) readReport {
		t.Helper()
		out, err := s.run("rm -f out; rs read --quiet --format json -o out test/content " + flags)
		if err != nil {
			t.Fatalf("read %s: %v\n%s", flags, err, out)
		}
		got, err := os.ReadFile(filepath.Join(s.dir, "out"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, content) {
			t.Fatalf("read %s: other bytes came back than were stored", flags)
		}
		var rep readReport
		if err := json.Unmarshal([]byte(out), &rep); err != nil {
			t.Fatalf("read %s: %v\n%s", flags, err, out)
		}
		return rep
	}
	all := read("")
	var sum uint64
	for _, r := range all.Rails {
		sum += r.Bytes
		if r.Bytes != r.PlannedBytes || r.Bytes == 0 || r.Provider != "soft" {
			t.Errorf("rail %s: %d bytes over %s, planned %d", r.Name, r.Bytes, r.Provider, r.PlannedBytes)
		}
	}
	if sum != uint64(len(content)) {
		t.Errorf("the rails carried %d bytes, the object has %d", sum, len(content))
	}
	checkWeights(t, plan.Hosts[len(plan.Hosts)-1].Rails, all)
	for _, r := range all.Rails {
		alone := read("--rails " + r.Name)
		if len(alone.Rails) != 1 || alone.Rails[0].Name != r.Name || alone.Rails[0].Bytes != uint64(len(content)) {
			t.Errorf("over %s alone: %+v", r.Name, alone.Rails)
		}
	}
	s.must("rs rm --quiet test/content")
	s.must("rs down")
	s.must("code=0; rs status " + plan.Deployment + " || code=$?; test $code = 3")
}

// checkWeights compares what the rails carried with their weights, to within the
// stripe that cannot be split.
func checkWeights(t *testing.T, rails []struct {
	Name   string
	Weight int
}, rep readReport) {
	t.Helper()
	const stripe = 4 << 20
	weights := 0
	for _, r := range rails {
		weights += r.Weight
	}
	for i, r := range rep.Rails {
		want := float64(rep.Bytes) * float64(rails[i].Weight) / float64(weights)
		if d := float64(r.Bytes) - want; d > stripe || d < -stripe {
			t.Errorf("rail %s with weight %d of %d carried %d of %d bytes", r.Name, rails[i].Weight, weights, r.Bytes, rep.Bytes)
		}
	}
}

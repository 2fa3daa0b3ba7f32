//go:build cgo && linux

package ibv

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// requires tells whether RS_REQUIRE turns a skip for what into a failure.
func requires(what string) bool {
	return slices.Contains(strings.Split(os.Getenv("RS_REQUIRE"), ","), what)
}

// The header written down in abi.h is the installed one's: a C file of static
// assertions compiles.
func TestABIMatchesInstalledHeader(t *testing.T) {
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		if requires("rxe") {
			t.Fatal("RS_REQUIRE=rxe, but <infiniband/verbs.h> is missing: apt-get install libibverbs-dev")
		}
		t.Skip("no <infiniband/verbs.h> to compare with: apt-get install libibverbs-dev")
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	if _, err := exec.LookPath(cc); err != nil {
		t.Skipf("no C compiler %s: apt-get install gcc", cc)
	}
	if out, err := exec.Command(cc, "-fsyntax-only", "-Wall", "-Werror", "testdata/abi.c").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// The comparison itself can fail: a wrong layout does not compile.
func TestABIComparisonCanFail(t *testing.T) {
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Skip("no <infiniband/verbs.h> to compare with: apt-get install libibverbs-dev")
	}
	src, err := os.ReadFile("testdata/abi.c")
	if err != nil {
		t.Fatal(err)
	}
	header, err := os.ReadFile("abi.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, to string }{
		{"uint32_t vendor_err;\n\tuint32_t byte_len;", "uint32_t byte_len;\n\tuint32_t vendor_err;"},
		{"int cmd_fd;", ""},
		{"void *compat_qp[4];", "void *compat_qp[3];"},
		{"AB_QP_AV = 1 << 7", "AB_QP_AV = 1 << 8"},
	} {
		if !strings.Contains(string(header), c.from) {
			t.Fatalf("abi.h has no %q", c.from)
		}
		dir := t.TempDir()
		for name, text := range map[string]string{"abi.h": strings.Replace(string(header), c.from, c.to, 1), "abi.c": strings.Replace(string(src), "../abi.h", "abi.h", 1)} {
			if err := os.WriteFile(dir+"/"+name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.Command("cc", "-fsyntax-only", dir+"/abi.c").CombinedOutput(); err == nil {
			t.Errorf("with %q for %q the comparison passed\n%s", c.to, c.from, out)
		}
	}
}

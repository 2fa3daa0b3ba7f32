package vectors

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

// TestNumpy reads what numpy wrote, and has numpy read what the Writer wrote. The
// interpreter is $RS_TEST_PYTHON, else python3.
func TestNumpy(t *testing.T) {
	python := os.Getenv("RS_TEST_PYTHON")
	if python == "" {
		python = "python3"
	}
	if out, err := exec.Command(python, "-c", "import numpy").CombinedOutput(); err != nil {
		t.Skipf("needs %s with numpy (or RS_TEST_PYTHON): %v %s", python, err, out)
	}
	dir := t.TempDir()
	run := func(script string) {
		t.Helper()
		c := exec.Command(python, "-c", script)
		c.Dir = dir
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	run(`
import numpy as np
a = np.arange(35, dtype=np.float32).reshape(7, 5) / 8
i = 0
for order in "CF":
    for t in ("<f4", ">f4", "<f8", ">f8", "<f2", ">f2"):
        np.save("m%d.npy" % i, np.array(a, dtype=t, order=order)); i += 1
for v in ((1, 0), (2, 0), (3, 0)):
    with open("v%d.npy" % v[0], "wb") as f:
        np.lib.format.write_array(f, a, version=v)
np.save("k0.npy", np.array([9, 8, 7, 6, 5, 4, 2**63], dtype="<u8"))
np.save("k1.npy", np.array([9, 8, 7, 6, 5, 4, 3], dtype=">i8"))
try:
    from safetensors.numpy import save_file
    save_file({"w": a, "h": a.astype(np.float16), "n": np.arange(3)}, "a.safetensors")
except ImportError:
    pass
`)
	want := make([]float32, 35)
	for i := range want {
		want[i] = float32(i) / 8
	}
	files, _ := filepath.Glob(filepath.Join(dir, "[mv]*.npy"))
	if len(files) != 15 {
		t.Fatalf("%d files", len(files))
	}
	for _, f := range files {
		m, err := readAll(f, Options{Dim: 5})
		if err != nil || !sameBits(m.rows, want) {
			t.Errorf("%s: %v, %v", f, m.rows, err)
		}
	}
	for i, last := range []uint64{1 << 63, 3} {
		m, err := readAll(filepath.Join(dir, "m0.npy"), Options{Keys: filepath.Join(dir, []string{"k0.npy", "k1.npy"}[i])})
		if err != nil || !slices.Equal(m.keys, []uint64{9, 8, 7, 6, 5, 4, last}) {
			t.Errorf("keys %v, %v", m.keys, err)
		}
	}
	if st := filepath.Join(dir, "a.safetensors"); exists(st) {
		for _, name := range []string{"w", "h"} {
			m, err := readAll(st, Options{Tensor: name})
			if err != nil || !sameBits(m.rows, want) {
				t.Errorf("tensor %s: %v, %v", name, m.rows, err)
			}
		}
	} else {
		t.Log("python has no safetensors: its files were not compared")
	}

	w, err := CreateMatrix(filepath.Join(dir, "out.npy"), 5)
	if err != nil {
		t.Fatal(err)
	}
	k, err := CreateKeys(filepath.Join(dir, "keys.npy"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Rows(want); err != nil {
		t.Fatal(err)
	}
	if err := k.Keys([]uint64{1, 1 << 63}); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := k.Commit(); err != nil {
		t.Fatal(err)
	}
	run(`
import numpy as np
a = np.load("out.npy")
assert a.dtype == np.float32 and a.shape == (7, 5) and (a == np.load("m0.npy")).all()
k = np.load("keys.npy")
assert k.dtype == np.uint64 and list(k) == [1, 2**63]
np.load("out.npy", mmap_mode="r")
`)
}

func exists(p string) bool { _, err := os.Stat(p); return err == nil }

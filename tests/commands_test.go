package tests

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// sandboxed is a sandbox in which shell commands run with rs on the path and as
// ./rs, as after make build.
type sandboxed struct {
	*sandbox
	t *testing.T
}

func newShell(t *testing.T) *sandboxed {
	t.Helper()
	b, err := newSandbox(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.close(); err != nil {
			t.Error(err)
		}
	})
	path, err := exec.LookPath("rs")
	if err != nil {
		t.Fatal(err)
	}
	// A hard link keeps the name, by which the test binary knows its part.
	if err := os.Link(path, filepath.Join(b.dir, "rs")); err != nil {
		if err := os.Symlink(path, filepath.Join(b.dir, "rs")); err != nil {
			t.Fatal(err)
		}
	}
	big := bytes.Repeat([]byte("RailStore example content\n"), 200_000)
	if err := os.WriteFile(filepath.Join(b.dir, "big.bin"), big, 0o644); err != nil {
		t.Fatal(err)
	}
	return &sandboxed{b, t}
}

func (s *sandboxed) run(script string) (string, error) {
	c := exec.Command("bash", "-euo", "pipefail", "-c", script)
	c.Dir = s.dir
	c.Env = append(os.Environ(), s.env()...)
	out, err := c.CombinedOutput()
	return string(out), err
}

func (s *sandboxed) must(script string) {
	s.t.Helper()
	if out, err := s.run(script); err != nil {
		s.t.Fatalf("%s\n%v\n%s", script, err, out)
	}
}

var commandRE = regexp.MustCompile(`(?m)^   ([a-z]+)(, [a-z]+)? {2,}\S`)

// commandsOf are the visible subcommands of a command, from its help.
func (s *sandboxed) commandsOf(cmd string) []string {
	s.t.Helper()
	out, err := s.run(cmd + " --help")
	if err != nil {
		s.t.Fatalf("%s --help: %v\n%s", cmd, err, out)
	}
	_, list, ok := strings.Cut(out, "COMMANDS:\n")
	if !ok {
		return nil
	}
	list, _, _ = strings.Cut(list, "OPTIONS:\n")
	var names []string
	for _, m := range commandRE.FindAllStringSubmatch(list, -1) {
		if m[1] != "help" {
			names = append(names, cmd+" "+m[1])
		}
	}
	return names
}

// TestHelpExamples runs every example of every help text as it is written, with
// the recipe two-rail up, a file big.bin there and a few objects stored.
func TestHelpExamples(t *testing.T) {
	s := newShell(t)
	cmds := []string{"rs"}
	for i := 0; i < len(cmds); i++ {
		cmds = append(cmds, s.commandsOf(cmds[i])...)
	}
	if len(cmds) < 10 {
		t.Fatalf("found only the commands %v", cmds)
	}
	for _, cmd := range cmds {
		t.Run(strings.ReplaceAll(cmd, " ", "_"), func(t *testing.T) {
			s := newShell(t)
			help, err := s.run(cmd + " --help")
			if err != nil {
				t.Fatal(err)
			}
			_, list, ok := strings.Cut(help, "Examples:\n")
			if !ok {
				t.Fatal("no examples")
			}
			n := 0
			for line := range strings.Lines(list) {
				ex := strings.TrimSpace(line)
				if !strings.HasPrefix(ex, "rs ") {
					break
				}
				n++
				if raceEnabled && (strings.HasPrefix(ex, "rs bench table") || strings.HasPrefix(ex, "rs bench read")) {
					ex += " --check" // such a build does not measure
				}
				if !strings.HasPrefix(ex, "rs up") && !strings.HasPrefix(ex, "rs vet") {
					s.must("rs up --quiet recipes/two-rail.cue")
				}
				switch strings.Fields(ex)[1] {
				case "read", "run", "stat", "ls", "rm":
					s.must("rs put --quiet kv/layer0 big.bin")
				case "put":
					s.must("rs rm --quiet kv/layer1 || true") // for --if-absent
				case "fault":
					if strings.Contains(ex, " --id ") {
						s.must("rs fault add --quiet do=delay by=1us") // the first of the rail
					}
				case "table":
					if strings.HasPrefix(ex, "rs table init") {
						s.must("rs table drop --quiet --force user item")
					} else {
						s.must(tableExamples)
					}
				}
				if out, err := s.run(ex); err != nil {
					t.Errorf("%s: %v\n%s", ex, err, out)
				}
			}
			if n == 0 {
				t.Error("no examples")
			}
		})
	}
}

// tableExamples is what the examples of rs table find: tables, files and a snapshot.
const tableExamples = `
rs table init --quiet user --dim 4 --optimizer adagrad
rs table init --quiet words --dim 3
rs table put --quiet user 7=1,2,3,4 word:king=1,1,1,1
rs table drop --quiet --force item
rs table init --quiet item --dim 4 --optimizer adagrad
printf 'king 0.1 0.2 0.3\nqueen 0.4 0.5 0.6\nknave 1 2 3\n' > vectors.txt
rs table save --quiet user rows.npy --range 0:10 --keys-out keys.npy
rs table save --quiet --snapshot nightly
`

// A fenced block after this comment in a Markdown file is run by TestDocs: all
// blocks of a file one after the other, in one folder, as one user would.
const testMark = "<!-- test -->"

// TestDocs runs the commands of README and docs.
func TestDocs(t *testing.T) {
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../README.md", "../CONTRIBUTING.md")
	ran := 0
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		blocks := testBlocks(t, file, string(b))
		ran += len(blocks)
		if len(blocks) == 0 {
			continue
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			s := newShell(t)
			for _, block := range blocks {
				if out, err := s.run(block); err != nil {
					t.Fatalf("%s\n%v\n%s", block, err, out)
				}
			}
		})
	}
	if ran < 2 {
		t.Errorf("only %d blocks are marked %s", ran, testMark)
	}
}

func testBlocks(t *testing.T, file, text string) []string {
	t.Helper()
	parts := strings.Split(text, testMark+"\n")
	var out []string
	for _, p := range parts[1:] {
		_, rest, ok := strings.Cut(p, "```sh\n")
		if !ok || !strings.HasPrefix(p, "```sh\n") {
			t.Errorf("%s: %s without a block ```sh after it", file, testMark)
			continue
		}
		block, _, ok := strings.Cut(rest, "\n```")
		if !ok {
			t.Errorf("%s: a block without an end", file)
			continue
		}
		out = append(out, block)
	}
	return out
}

// TestLinks follows every relative link of README and docs.
func TestLinks(t *testing.T) {
	files, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "../README.md", "../CONTRIBUTING.md", "../CHANGELOG.md")
	link := regexp.MustCompile(`\]\(([^)#:]+)(#[^)]*)?\)`)
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(file), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
			}
		}
	}
}

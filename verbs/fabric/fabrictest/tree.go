package fabrictest

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Write makes the tree that a description tells, in a folder that is made too.
func Write(dir, description string) error {
	w := &writer{root: dir}
	if err := os.MkdirAll(filepath.Join(dir, "class"), 0o755); err != nil {
		return err
	}
	n := 0
	for line := range strings.Lines(description) {
		n++
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if err := w.line(f); err != nil {
			return fmt.Errorf("line %d: %s: %w", n, strings.TrimSpace(line), err)
		}
	}
	return nil
}

type writer struct {
	root string
	at   string // the folder that lines fill
	ib   string // the RDMA device above, its name and folder
	ibAt string
}

var errWords = errors.New("wrong number of words")

func (w *writer) line(f []string) error {
	switch f[0] {
	case "pci", "port":
		if len(f) != 2 {
			return errWords
		}
	case "ib", "net":
		if len(f) != 3 {
			return errWords
		}
	}
	switch f[0] {
	case "pci":
		return w.folder("devices/" + f[1])
	case "ib":
		at, err := w.device(f[1], f[2], "infiniband")
		w.ib, w.ibAt = f[1], at
		return err
	case "net":
		_, err := w.device(f[1], f[2], "net")
		return err
	case "port":
		if w.ib == "" {
			return errors.New("no RDMA device above")
		}
		return w.folder(w.ibAt + "/ports/" + f[1])
	}
	if w.at == "" {
		return errors.New("no folder above")
	}
	switch {
	case f[0] == "uverbs" && len(f) == 2:
		return errors.Join(w.file("class/infiniband_verbs/uverbs"+f[1]+"/ibdev", w.ib), w.file("class/infiniband_mad/umad"+f[1]+"/ibdev", w.ib))
	case f[0] == "lower" && len(f) == 2:
		return w.link(w.at+"/lower_"+f[1], "../"+f[1])
	case f[0] == "gid":
		return w.gid(f[1:])
	case f[0] == "gids" && len(f) == 2:
		return w.gids(f[1])
	case len(f) == 3 && f[1] == "->":
		return w.link(w.at+"/"+f[0], f[2])
	case len(f) == 2 && f[1] == "!":
		return w.broken(w.at + "/" + f[0])
	case len(f) < 2:
		return errWords
	}
	return w.file(w.at+"/"+f[0], strings.Join(f[1:], " "))
}

// device makes the folder of a device of a class, with the links that the kernel
// makes.
func (w *writer) device(name, parent, class string) (string, error) {
	at := path.Join("devices", parent, class, name)
	if err := w.folder(at); err != nil {
		return "", err
	}
	if parent != "virtual" {
		if err := w.link(at+"/device", "../.."); err != nil {
			return "", err
		}
	}
	return at, w.link("class/"+class+"/"+name, "../../"+at)
}

func (w *writer) folder(name string) error {
	w.at = name
	return os.MkdirAll(filepath.Join(w.root, name), 0o755)
}

func (w *writer) file(name, content string) error {
	full := filepath.Join(w.root, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	return os.WriteFile(full, []byte(content+"\n"), 0o644)
}

func (w *writer) link(name, target string) error {
	full := filepath.Join(w.root, name)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	return os.Symlink(target, full)
}

// broken is a folder where a file should be: reading it fails, as reading the
// attributes of an empty GID does in sysfs.
func (w *writer) broken(name string) error { return os.MkdirAll(filepath.Join(w.root, name), 0o755) }

func (w *writer) gid(f []string) error {
	if len(f) != 4 {
		return errWords
	}
	a, err := netip.ParseAddr(f[1])
	if err != nil {
		return err
	}
	b := a.As16()
	var groups []string
	for i := 0; i < 16; i += 2 {
		groups = append(groups, fmt.Sprintf("%02x%02x", b[i], b[i+1]))
	}
	types, ndevs := w.at+"/gid_attrs/types/"+f[0], w.at+"/gid_attrs/ndevs/"+f[0]
	if err := w.file(w.at+"/gids/"+f[0], strings.Join(groups, ":")); err != nil {
		return err
	}
	content, ok := map[string]string{"v1": "IB/RoCE v1", "ib": "IB/RoCE v1", "v2": "RoCE v2"}[f[2]]
	switch {
	case f[2] == "!":
		return errors.Join(w.broken(types), w.broken(ndevs))
	case !ok:
		return fmt.Errorf("type %s is none of v1, v2, ib and !, which cannot be read", f[2])
	}
	if err := w.file(types, content); err != nil {
		return err
	}
	if f[3] == "-" {
		return w.broken(ndevs)
	}
	return w.file(ndevs, f[3])
}

func (w *writer) gids(total string) error {
	n, err := strconv.Atoi(total)
	if err != nil || n < 0 || n > 256 {
		return fmt.Errorf("%s entries: want 0 to 256", total)
	}
	for i := range n {
		name := fmt.Sprintf("%s/gids/%d", w.at, i)
		if _, err := os.Stat(filepath.Join(w.root, name)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := errors.Join(w.file(name, strings.Repeat("0000:", 7)+"0000"),
			w.broken(fmt.Sprintf("%s/gid_attrs/types/%d", w.at, i)), w.broken(fmt.Sprintf("%s/gid_attrs/ndevs/%d", w.at, i))); err != nil {
			return err
		}
	}
	return nil
}

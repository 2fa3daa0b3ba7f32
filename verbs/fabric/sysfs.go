package fabric

import (
	"cmp"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// fileLimit is more than sysfs gives for one attribute (a page).
const fileLimit = 4096

// tree reads a sysfs tree.
type tree struct{ fsys fs.FS }

// word is the content of an attribute without white space around it. The error is
// the kernel's: attributes of entries that do not exist answer EINVAL.
func (t tree) word(name string) (string, error) {
	f, err := t.fsys.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, fileLimit))
	if err != nil {
		return "", err
	}
	return printable(strings.TrimSpace(string(b))), nil
}

// get is word, with "" for what cannot be read.
func (t tree) get(name string) string {
	s, err := t.word(name)
	if err != nil {
		return ""
	}
	return s
}

// integer is an attribute in decimal or, with 0x, in hexadecimal.
func (t tree) integer(name string) (int64, bool) {
	n, err := strconv.ParseInt(t.get(name), 0, 64)
	return n, err == nil
}

// has says that there is a file or folder of that name.
func (t tree) has(name string) bool {
	_, err := fs.Stat(t.fsys, name)
	return err == nil
}

// names is a folder's content in the order of people: mlx5_2 before mlx5_10.
func (t tree) names(dir string) ([]string, error) {
	entries, err := fs.ReadDir(t.fsys, dir)
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		// A name that could not be printed or spelt in a path is nothing of the
		// kernel's.
		if n := e.Name(); n == printable(n) && fs.ValidPath(n) {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, byNumber)
	return out, err
}

// indexes is the numbers that a folder's files are named after.
func (t tree) indexes(dir string) []int {
	names, err := t.names(dir)
	if err != nil && len(names) == 0 {
		return nil
	}
	var out []int
	for _, n := range names {
		if i, err := strconv.ParseUint(n, 10, 16); err == nil && strconv.FormatUint(i, 10) == n {
			out = append(out, int(i))
		}
	}
	slices.Sort(out)
	return out
}

// physical is where a name leads to when its last part is a symbolic link, in the
// tree; the name itself when it is none, "" when it leads out of the tree.
func (t tree) physical(name string) string {
	target, err := fs.ReadLink(t.fsys, name)
	if err != nil {
		if t.has(name) {
			return name
		}
		return ""
	}
	if path.IsAbs(target) {
		return ""
	}
	p := path.Join(path.Dir(name), target)
	if !fs.ValidPath(p) {
		return ""
	}
	return p
}

// linkBase is the last part of what a symbolic link points to, whether that is
// there or not; "" when it is no link.
func (t tree) linkBase(name string) string {
	target, err := fs.ReadLink(t.fsys, name)
	if err != nil {
		return ""
	}
	return printable(path.Base(target))
}

// byNumber compares names with the digits in them as numbers.
func byNumber(a, b string) int {
	for a != "" && b != "" {
		an, bn := digits(a), digits(b)
		if an > 0 && bn > 0 {
			x, y := strings.TrimLeft(a[:an], "0"), strings.TrimLeft(b[:bn], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), strings.Compare(x, y), cmp.Compare(an, bn)); c != 0 {
				return c
			}
			a, b = a[an:], b[bn:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

func digits(s string) int {
	n := 0
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}

// printable replaces what would change a terminal or a line: control characters,
// and bytes that are no text.
func printable(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// coded is the number of an attribute like "4: ACTIVE".
func coded(s string) (int, bool) {
	num, _, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(num, 10, 8)
	return int(n), ok && err == nil
}

// guid reads 0c42:a103:0012:3456 or 0x0c42a10300123456.
func guid(s string) (uint64, bool) {
	if h, ok := strings.CutPrefix(strings.ToLower(s), "0x"); ok {
		n, err := strconv.ParseUint(h, 16, 64)
		return n, err == nil && len(h) == 16
	}
	parts := strings.Split(s, ":")
	if len(parts) != 4 {
		return 0, false
	}
	var n uint64
	for _, p := range parts {
		v, err := strconv.ParseUint(p, 16, 16)
		if err != nil || len(p) != 4 {
			return 0, false
		}
		n = n<<16 | v
	}
	return n, true
}

// isAbsent says that there is nothing of the name, as opposed to something that
// cannot be read.
func isAbsent(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// lines is a file of several lines as it is, "" when it cannot be read.
func (t tree) lines(name string) string {
	f, err := t.fsys.Open(name)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, fileLimit))
	if err != nil {
		return ""
	}
	return string(b)
}

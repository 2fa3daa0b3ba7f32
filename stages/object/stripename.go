package object

import (
	"fmt"
	"strconv"
	"strings"
)

// handleParts is a handle taken apart.
type handleParts struct {
	digest     string // of the key
	generation uint64
	layout     uint64
	nonce      string
}

func parseHandle(h string) (handleParts, bool) {
	p := strings.Split(h, "-")
	if len(h) > MaxHandleBytes || len(p) != 5 || p[0] != handlePrefix || !isHex(p[1], 2*keyDigestBytes) || !isHex(p[4], 16) {
		return handleParts{}, false
	}
	g, ok1 := parseCount(p[2], 'g')
	l, ok2 := parseCount(p[3], 'l')
	return handleParts{digest: p[1], generation: g, layout: l, nonce: p[4]}, ok1 && ok2
}

// FileName is where a stripe lives below its directory: a fan-out folder of the
// key's digest, then digest, generation, layout, nonce and stripe index. All of
// it comes from the handle, so two puts never share a file.
func FileName(handle string, index uint32) (string, error) {
	p, ok := parseHandle(handle)
	if !ok {
		return "", fmt.Errorf("%w: handle %s", ErrDescriptor, quote(handle))
	}
	return fmt.Sprintf("%s/%s.g%d.l%d.%s.s%d", p.digest[:2], p.digest[2:], p.generation, p.layout, p.nonce, index), nil
}

// ParseFileName takes a name that FileName made apart into handle and index. Any
// other string is refused, so nothing else below a directory can be named.
func ParseFileName(name string) (handle string, index uint32, ok bool) {
	fan, rest, ok := strings.Cut(name, "/")
	if !ok || !isHex(fan, 2) {
		return "", 0, false
	}
	p := strings.Split(rest, ".")
	if len(p) != 5 || !isHex(p[0], 2*keyDigestBytes-2) || !isHex(p[3], 16) {
		return "", 0, false
	}
	g, ok1 := parseCount(p[1], 'g')
	l, ok2 := parseCount(p[2], 'l')
	i, ok3 := parseCount(p[4], 's')
	if !ok1 || !ok2 || !ok3 || i > 1<<32-1 {
		return "", 0, false
	}
	return fmt.Sprintf("%s-%s%s-g%d-l%d-%s", handlePrefix, fan, p[0], g, l, p[3]), uint32(i), true
}

// parseCount reads a letter and a decimal number without leading zeros: one
// number has one spelling.
func parseCount(s string, letter byte) (uint64, bool) {
	if len(s) < 2 || s[0] != letter || (s[1] == '0' && len(s) > 2) || s[1] == '+' {
		return 0, false
	}
	v, err := strconv.ParseUint(s[1:], 10, 64)
	return v, err == nil
}

func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for i := range n {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

package deploy

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// Duration is a time.Duration that is a Go duration string in JSON.
type Duration time.Duration

// D is the time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

// MarshalJSON writes the string form.
func (d Duration) MarshalJSON() ([]byte, error) { return json.Marshal(d.String()) }

// UnmarshalJSON reads a duration string such as "30s" or "500ms".
func (d *Duration) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("duration %s: want a string such as \"30s\"", b)
	}
	v, err := time.ParseDuration(s)
	if err != nil {
		return fmt.Errorf("duration %q: want a number with a unit, such as \"30s\"", s)
	}
	*d = Duration(v)
	return nil
}

var (
	sizeForm = regexp.MustCompile(`^(0|[1-9][0-9]*)([KMGT]i?)?B?$`)
	// As many digits as leave the number of bytes below 2^63.
	sizeFits = regexp.MustCompile(`^([0-9]{1,18}|[0-9]{1,15}Ki?|[0-9]{1,12}Mi?|[0-9]{1,9}Gi?|[0-9]{1,6}Ti?)B?$`)
)

var sizeUnits = map[string]int64{
	"":  1,
	"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// ParseSize reads a number of bytes: "4MiB", "64KB", "1M", "4096". With an i the
// unit is a power of 1024, without one of 1000.
func ParseSize(s string) (int64, error) {
	m := sizeForm.FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is not a size: want a whole number of bytes, with a unit such as in 64KiB, 4MiB or 1G", s)
	}
	if !sizeFits.MatchString(s) {
		return 0, fmt.Errorf("%q is more bytes than any machine has", s)
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a size: %w", s, err)
	}
	return n * sizeUnits[m[2]], nil
}

// FormatSize writes a number of bytes with the largest unit of 1024 that divides
// it, such as 64KiB; ParseSize reads it back.
func FormatSize(n int64) string {
	for _, u := range []struct {
		word string
		n    int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n != 0 && n%u.n == 0 {
			return strconv.FormatInt(n/u.n, 10) + u.word
		}
	}
	return strconv.FormatInt(n, 10)
}

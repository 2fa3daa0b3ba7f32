package cmd

import (
	"encoding/json"
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/railstore/railstore/stages/vectors"
)

// namedKey is a key as it was written: a number, or word:WORD.
type namedKey struct {
	key  uint64
	word string // empty: a number
}

const wordPrefix = "word:"

func parseKey(s string) (namedKey, error) {
	if w, ok := strings.CutPrefix(s, wordPrefix); ok && w != "" {
		return namedKey{vectors.WordKey(w), w}, nil
	}
	k, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return namedKey{}, usagef("key %q: want a whole number from 0 to 2^64-1, or word:WORD", s)
	}
	return namedKey{key: k}, nil
}

func (k namedKey) String() string {
	if k.word != "" {
		return wordPrefix + k.word
	}
	return strconv.FormatUint(k.key, 10)
}

// parseRow reads KEY=V,V,... with dim numbers.
func parseRow(s string, dim int) (k namedKey, row []float32, err error) {
	// A word may have an equals sign in it, a number has none.
	i := strings.LastIndexByte(s, '=')
	if i < 0 {
		return k, nil, usagef("%q: want KEY=NUMBER,NUMBER,...", s)
	}
	if k, err = parseKey(s[:i]); err != nil {
		return k, nil, err
	}
	fields := strings.Split(s[i+1:], ",")
	if len(fields) != dim {
		return k, nil, usagef("key %s: %d numbers, the rows of the table have %d", k, len(fields), dim)
	}
	for _, f := range fields {
		v, err := strconv.ParseFloat(strings.TrimSpace(f), 32)
		switch {
		case errors.Is(err, strconv.ErrRange):
			return k, nil, usagef("key %s: %s does not fit into a float32", k, f)
		case err != nil:
			return k, nil, usagef("key %s: %q is not a number", k, f)
		case math.IsNaN(v) || math.IsInf(v, 0):
			return k, nil, usagef("key %s: %s is not finite", k, f)
		}
		row = append(row, float32(v))
	}
	return k, row, nil
}

// floats are a row for JSON, each the shortest number that is the same float32. What is
// not finite is a string: JSON has no such numbers.
type floats []float32

func (f floats) MarshalJSON() ([]byte, error) {
	b := []byte{'['}
	for i, v := range f {
		if i > 0 {
			b = append(b, ',')
		}
		if d := float64(v); math.IsNaN(d) || math.IsInf(d, 0) {
			q, err := json.Marshal(strconv.FormatFloat(d, 'g', -1, 32))
			if err != nil {
				return nil, err
			}
			b = append(b, q...)
			continue
		}
		b = strconv.AppendFloat(b, float64(v), 'g', -1, 32)
	}
	return append(b, ']'), nil
}

func (f floats) String() string {
	var b []byte
	for i, v := range f {
		if i > 0 {
			b = append(b, ' ')
		}
		b = strconv.AppendFloat(b, float64(v), 'g', -1, 32)
	}
	return string(b)
}

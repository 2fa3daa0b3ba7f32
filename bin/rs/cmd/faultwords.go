package cmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/railstore/railstore/cue/deploy"
	"github.com/railstore/railstore/cue/load"
)

// A fault on the command line is FIELD=VALUE words, the fields being those of a
// recipe: do=drop rate=0.1 match.opcode=write. The words become a recipe of that
// one fault, so that the schema says what is wrong with it, in its own messages.

var faultFieldRE = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,40}(\.[A-Za-z][A-Za-z0-9_]{0,40})?$`)

// faultPath is where the fault stands in the recipe that is made of it.
const faultPath = "hosts[0].rails[0].faults[0]"

// faultObject makes the fault of its words, whatever they say.
func faultObject(command string, words []string) (map[string]any, error) {
	fields := map[string]any{}
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok || !faultFieldRE.MatchString(name) {
			return nil, usagef("%s: %q: want FIELD=VALUE, such as do=drop or rate=0.1", command, w)
		}
		if value == "" {
			return nil, usagef("%s: %s: is empty", command, name)
		}
		to := fields
		if outer, inner, nested := strings.Cut(name, "."); nested {
			sub, ok := fields[outer].(map[string]any)
			if !ok {
				if _, taken := fields[outer]; taken {
					return nil, usagef("%s: %s: has a value already", command, outer)
				}
				sub = map[string]any{}
				fields[outer] = sub
			}
			to, name = sub, inner
		}
		if _, twice := to[name]; twice {
			return nil, usagef("%s: %s: is given twice", command, name)
		}
		to[name] = cueValue(value)
	}
	return fields, nil
}

// parseFault reads the words of a fault.
func parseFault(command string, words []string) (deploy.Fault, error) {
	var none deploy.Fault
	fields, err := faultObject(command, words)
	if err != nil {
		return none, err
	}
	fault, err := json.Marshal(fields)
	if err != nil {
		return none, usagef("%s: %v", command, err)
	}
	recipe := fmt.Sprintf(`package fault
import %q
schemas.#Deployment
name: "fault"
hosts: [{name: "h", rails: [{device: "soft:127.0.0.1", faults: [%s]}]}]
shards: [{id: 0, host: "h"}]
`, load.SchemaImport, fault)
	d, rep, err := load.Load("fault", load.Options{Source: []byte(recipe)})
	var invalid *load.InvalidError
	if errors.As(err, &invalid) {
		var errs []error
		for _, is := range rep.Errors {
			at := strings.TrimPrefix(strings.TrimPrefix(is.Path, faultPath), ".")
			if at != "" {
				at += ": "
			}
			e := usagef("%s: %s%s", command, at, is.Message)
			// Of recipes alone the hints say more than this.
			if hint, _, _ := strings.Cut(is.Hint, "; a helper"); hint != "" {
				e = e.withHint("%s", hint)
			}
			errs = append(errs, e)
		}
		return none, errors.Join(errs...)
	}
	if err != nil {
		return none, err
	}
	return d.Hosts[0].Rails[0].Faults[0], nil
}

// cueValue is a word's value: a number where it looks like one, else a string.
// Sizes, durations and names with letters are strings in recipes, too.
func cueValue(s string) any {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return n
	}
	if f, err := strconv.ParseFloat(s, 64); err == nil && !strings.ContainsAny(s, "xXpPnN_") {
		if n := int64(f); f == float64(n) && math.Abs(f) < 1<<53 {
			return n // 200e6 is as whole a number as 200000000
		}
		return json.Number(strconv.FormatFloat(f, 'g', -1, 64))
	}
	return s
}

// faultWords is the fault of a row as it would be typed: do first.
func faultWords(f map[string]any) string {
	out := []string{fmt.Sprint(f["do"])}
	for _, k := range slices.Sorted(maps.Keys(f)) {
		if k == "do" {
			continue
		}
		if sub, ok := f[k].(map[string]any); ok {
			for _, n := range slices.Sorted(maps.Keys(sub)) {
				out = append(out, fmt.Sprintf("%s.%s=%s", k, n, wordValue(sub[n])))
			}
			continue
		}
		out = append(out, k+"="+wordValue(f[k]))
	}
	return strings.Join(out, " ")
}

// wordValue keeps large numbers, which JSON makes floats, readable.
func wordValue(v any) string {
	if f, ok := v.(float64); ok {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	return fmt.Sprint(v)
}

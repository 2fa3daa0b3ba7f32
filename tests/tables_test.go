package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// scriptRS runs rs for a command of a script and gives its standard output.
func scriptRS(ts *testscript.TestScript, args ...string) (string, error) {
	c := exec.Command("rs", args...)
	c.Dir = ts.MkAbs(".")
	for _, k := range []string{"HOME", "RS_STATE", "NO_COLOR", "TZ", "GORACE", "GOCOVERDIR", "PATH"} {
		c.Env = append(c.Env, k+"="+ts.Getenv(k))
	}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		return out.String(), fmt.Errorf("rs %s: %w\n%s", strings.Join(args[:min(len(args), 6)], " "), err, errs.String())
	}
	return out.String(), nil
}

// waitrows DEPLOYMENT TABLE N: waits until the table has that many rows.
func cmdWaitRows(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: waitrows deployment table rows")
	}
	want, err := strconv.ParseInt(args[2], 10, 64)
	ts.Check(err)
	last := ""
	if !poll(30*time.Second, func() bool {
		out, err := scriptRS(ts, "table", "ls", args[1], "-d", args[0], "--format", "json")
		last = out
		if err != nil {
			last = err.Error()
			return false
		}
		var row struct {
			Table string
			Rows  int64
		}
		for l := range strings.Lines(out) {
			if json.Unmarshal([]byte(l), &row) == nil && row.Table == args[1] && row.Rows >= want {
				return true
			}
		}
		return false
	}) {
		ts.Fatalf("table %s never had %d rows: %s", args[1], want, last)
	}
}

// checkload REPORT TABLE: of a load of lines "wN N N ...", from 1, that failed because
// shard 1 did: every row of the file is at shard 0 if, and only if, the report says that
// it was applied; of those whose fate it does not know either is right.
func cmdCheckLoad(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: checkload report table")
	}
	var rep struct {
		Read, Applied int64
		NotApplied    int64 `json:"not_applied"`
		Unknown       int64
		Failed        []struct {
			Shard   int
			Applied string
			Count   int64
			Rows    [][2]int64
		}
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &rep))
	fate := make([]string, rep.Read+500) // "" is applied
	for i := rep.Read; i < int64(len(fate)); i++ {
		fate[i] = "no"
	}
	var failed int64
	for _, f := range rep.Failed {
		n := int64(0)
		for _, r := range f.Rows {
			for i := r[0]; i < r[1]; i++ {
				if i >= rep.Read || fate[i] != "" {
					ts.Fatalf("row %d of %d is told twice or was never read", i, rep.Read)
				}
				fate[i] = f.Applied
				n++
			}
		}
		if n != f.Count || f.Shard != 1 {
			ts.Fatalf("a part of shard %d has %d rows and tells of %d", f.Shard, n, f.Count)
		}
		failed += n
	}
	if failed == 0 || failed != rep.NotApplied+rep.Unknown || rep.Applied+failed != rep.Read {
		ts.Fatalf("%d rows failed: %s", failed, ts.ReadFile(args[0]))
	}
	checked, beyond := 0, 0
	for from := 0; from < len(fate); from += 500 {
		to := min(from+500, len(fate))
		cmd := []string{"table", "get", args[1], "--format", "json"}
		for i := from; i < to; i++ {
			cmd = append(cmd, "word:w"+strconv.Itoa(i+1))
		}
		out, err := scriptRS(ts, cmd...)
		ts.Check(err)
		i := from
		for l := range strings.Lines(out) {
			var row struct {
				Shard int
				Found bool
				Row   []float64
			}
			ts.Check(json.Unmarshal([]byte(l), &row))
			if row.Shard == 0 {
				if row.Found != (fate[i] == "") {
					ts.Fatalf("row %d is at shard 0: %v, the report says %q", i, row.Found, fate[i])
				}
				if row.Found && (row.Row[0] != float64(i+1) || row.Row[15] != float64(i+1)) {
					ts.Fatalf("row %d is %v", i, row.Row)
				}
				if row.Found {
					checked++
				} else {
					beyond++
				}
			}
			i++
		}
		if i != to {
			ts.Fatalf("%d answers for %d keys", i-from, to-from)
		}
	}
	if checked == 0 || beyond == 0 {
		ts.Fatalf("%d rows were applied at shard 0, %d were not: nothing was tested", checked, beyond)
	}
	ts.Logf("%d rows read, %d applied, %d not, %d unknown; %d of shard 0 compared", rep.Read, rep.Applied, rep.NotApplied, rep.Unknown, checked)
}

package cmd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// readSetting is on what was measured.
type readSetting struct {
	Deployment   string      `json:"deployment"`
	Namespace    string      `json:"namespace"`
	Host         string      `json:"host"`
	Rails        []benchRail `json:"rails"`
	OneRail      string      `json:"one_rail"`
	Shards       int         `json:"shards"`
	ShardsHere   int         `json:"shards_here"` // whose CPU and RSS are known
	StripeBytes  int64       `json:"stripe_bytes"`
	WarmupRounds int         `json:"warmup_rounds"`
	Version      string      `json:"version"`
	CPUs         int         `json:"cpus"`
	Began        time.Time   `json:"began"`
	LoadBefore   float64     `json:"load_before"`
	LoadAfter    float64     `json:"load_after"`
	Busy         bool        `json:"busy"`
	Partial      string      `json:"partial,omitempty"` // why not all was measured that was asked for
}

type benchRail struct {
	Name     string `json:"name"`
	Device   string `json:"device"`
	Provider string `json:"provider"`
	Weight   int    `json:"weight"`
}

// readResult is raw.json.
type readResult struct {
	readSetting
	Cases   []readCase   `json:"cases"`
	Command *commandCase `json:"command,omitempty"`
}

// measured reports whether there is any sample.
func (r *readResult) measured() bool { return len(r.Cases) > 0 || r.Command != nil }

// partial is a line that says what the result lacks, or empty.
func (s *readSetting) partial() string {
	if s.Partial == "" {
		return ""
	}
	return "PARTIAL: the run ended before all was measured (" + s.Partial + "). Cases are missing, and the last one may have fewer samples of some kinds.\n"
}

// readCase is one size with one number of readers.
type readCase struct {
	Bytes   int64 `json:"bytes"` // of the object
	Readers int   `json:"readers"`
	// WriteBytes is a message of the plain WRITE, 0 without it.
	WriteBytes int64        `json:"write_bytes"`
	Kinds      []kindSum    `json:"kinds"`
	Ratios     []pairRatio  `json:"ratios"`
	Samples    []readSample `json:"samples"`
}

type readSample struct {
	Round          int               `json:"round"`
	Kind           string            `json:"kind"`
	Place          int               `json:"place"` // within its round
	Began          time.Time         `json:"began"`
	Seconds        float64           `json:"seconds"`
	Bytes          uint64            `json:"bytes"` // of all readers
	BytesPerSecond float64           `json:"bytes_per_second"`
	RailBytes      map[string]uint64 `json:"rail_bytes,omitempty"`
	Degraded       bool              `json:"degraded"`
	ClientCPU      float64           `json:"client_cpu_seconds"`
	ShardCPU       float64           `json:"shard_cpu_seconds"`
	ClientRSS      int64             `json:"client_rss_bytes"`
	ShardRSS       int64             `json:"shard_rss_bytes"`
	Load           float64           `json:"load"`
}

// kindSum are medians over the samples of a kind.
type kindSum struct {
	Kind           string  `json:"kind"`
	Samples        int     `json:"samples"`
	Degraded       int     `json:"degraded"` // samples with a read that was
	BytesPerSecond float64 `json:"bytes_per_second"`
	Least          float64 `json:"least_bytes_per_second"`
	Most           float64 `json:"most_bytes_per_second"`
	ClientCPU      float64 `json:"client_cpu_seconds_per_gib"`
	ShardCPU       float64 `json:"shard_cpu_seconds_per_gib"`
	ClientRSS      int64   `json:"client_rss_bytes"` // the most
	ShardRSS       int64   `json:"shard_rss_bytes"`
}

// pairRatio is the median of the ratios within rounds, which is not that of the medians.
type pairRatio struct {
	Of    string  `json:"of"`
	To    string  `json:"to"`
	Ratio float64 `json:"ratio"`
	Least float64 `json:"least"`
	Most  float64 `json:"most"`

	Rounds int `json:"rounds"` // that have both
}

// commandCase are runs of the command rs read.
type commandCase struct {
	Bytes       int64           `json:"bytes"`
	Seconds     float64         `json:"seconds"`      // median of the whole process
	ReadSeconds float64         `json:"read_seconds"` // median of the read in it
	Least       float64         `json:"least_seconds"`
	Most        float64         `json:"most_seconds"`
	Samples     []commandSample `json:"samples"`
}

type commandSample struct {
	Seconds     float64 `json:"seconds"`
	ReadSeconds float64 `json:"read_seconds"`
	Load        float64 `json:"load"`
}

// median of an even number of values is between the two in the middle.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}

// kind is the name of a kind, for the plain WRITE with the length of its messages.
func (c *readCase) kind(k string) string {
	if k == kindWrite {
		return k + " of " + size(uint64(c.WriteBytes))
	}
	return k
}

// sum computes medians and ratios from the samples.
func (c *readCase) sum() {
	c.Kinds, c.Ratios = []kindSum{}, []pairRatio{}
	rates := map[string]map[int]float64{} // by kind and round
	for _, kind := range []string{kindOne, kindAll, kindWrite} {
		var bps, client, shard []float64
		k := kindSum{Kind: kind}
		rates[kind] = map[int]float64{}
		for i := range c.Samples {
			s := &c.Samples[i]
			if s.Kind != kind {
				continue
			}
			gib := float64(s.Bytes) / (1 << 30)
			bps, client, shard = append(bps, s.BytesPerSecond), append(client, s.ClientCPU/gib), append(shard, s.ShardCPU/gib)
			k.ClientRSS, k.ShardRSS = max(k.ClientRSS, s.ClientRSS), max(k.ShardRSS, s.ShardRSS)
			rates[kind][s.Round] = s.BytesPerSecond
			if s.Degraded {
				k.Degraded++
			}
		}
		if len(bps) == 0 {
			continue
		}
		k.Samples, k.BytesPerSecond, k.ClientCPU, k.ShardCPU = len(bps), median(bps), median(client), median(shard)
		k.Least, k.Most = slices.Min(bps), slices.Max(bps)
		c.Kinds = append(c.Kinds, k)
	}
	for _, p := range [][2]string{{kindAll, kindOne}, {kindAll, kindWrite}, {kindOne, kindWrite}} {
		var v []float64
		for round, x := range rates[p[0]] {
			if y := rates[p[1]][round]; y > 0 {
				v = append(v, x/y)
			}
		}
		if len(v) > 0 {
			c.Ratios = append(c.Ratios, pairRatio{p[0], p[1], median(v), slices.Min(v), slices.Max(v), len(v)})
		}
	}
}

func (c *commandCase) sum() {
	var all, read []float64
	for _, s := range c.Samples {
		all, read = append(all, s.Seconds), append(read, s.ReadSeconds)
	}
	c.Seconds, c.ReadSeconds, c.Least, c.Most = median(all), median(read), slices.Min(all), slices.Max(all)
}

func (s *readSetting) busyText() string {
	return fmt.Sprintf("the machine was busy (load average %.2f on %d CPUs before the run): rates are too low, and even ratios within a round suffer", s.LoadBefore, s.CPUs)
}

// scope says what the figures are about, and what not.
func (s *readSetting) scope() string {
	var rails []string
	soft, other := false, false
	for _, r := range s.Rails {
		rails = append(rails, fmt.Sprintf("%s %s (%s, weight %d)", r.Name, r.Device, r.Provider, r.Weight))
		soft, other = soft || r.Provider == "soft", other || r.Provider != "soft"
	}
	t := "Rails: " + strings.Join(rails, ", ") + ". "
	switch {
	case soft && other:
		t += "Some of these rails are software in user space (soft)."
	case soft:
		t += "The provider is soft: RoCE v2 in user space over UDP sockets. No RDMA hardware took part."
	default:
		t += "The provider is what the devices are; a device of the kernel's Soft-RoCE is software, too (rs fabric tells)."
	}
	return t + " Nothing is claimed about hardware that was not there."
}

func (s *readSetting) conditions() string {
	t := fmt.Sprintf("rs %s, %d CPUs, load average %.2f before and %.2f after; %d shards, %d of them on this machine; stripes of %s; %d rounds of warm-up; one rail is %s.",
		s.Version, s.CPUs, s.LoadBefore, s.LoadAfter, s.Shards, s.ShardsHere, size(uint64(s.StripeBytes)), s.WarmupRounds, s.OneRail)
	if s.Busy {
		t += " " + strings.ToUpper(s.busyText()[:1]) + s.busyText()[1:] + "."
	}
	return t
}

func perGIB(s float64) string { return fmt.Sprintf("%.2f", s) }

func (r *readResult) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s%s\n%s\n\n", r.partial(), r.scope(), r.conditions())
	t := newTable("OBJECT", "READERS", "KIND", "SAMPLES", "MEDIAN", "LEAST", "MOST", "CPU s/GiB rs", "shards", "RSS rs", "shards")
	t.rightAlign(2, 4, 8, 9)
	for i := range r.Cases {
		c := &r.Cases[i]
		for _, k := range c.Kinds {
			t.row(size(uint64(c.Bytes)), c.Readers, c.kind(k.Kind), k.Samples, rate(k.BytesPerSecond), gbits(k.Least), gbits(k.Most), perGIB(k.ClientCPU), perGIB(k.ShardCPU),
				size(uint64(k.ClientRSS)), size(uint64(k.ShardRSS)))
		}
	}
	b.WriteString(t.String())
	for i := range r.Cases {
		c := &r.Cases[i]
		for _, p := range c.Ratios {
			fmt.Fprintf(&b, "%s, %d at once: %s / %s = %.3f (median of %d rounds, %.3f to %.3f)\n", size(uint64(c.Bytes)), c.Readers, p.Of, p.To, p.Ratio, p.Rounds, p.Least, p.Most)
		}
		for _, k := range c.Kinds {
			if k.Degraded > 0 {
				fmt.Fprintf(&b, "%s, %d at once: %d of %d samples of %s did not come as planned\n", size(uint64(c.Bytes)), c.Readers, k.Degraded, k.Samples, k.Kind)
			}
		}
	}
	if m := r.Command; m != nil {
		fmt.Fprintf(&b, "%s\n", m.text())
	}
	return b.String()
}

func (m *commandCase) text() string {
	return fmt.Sprintf("The command rs read of %s, from the start of its process to the end: %s (median of %d, %s to %s), of which the read takes %s.",
		size(uint64(m.Bytes)), seconds(m.Seconds), len(m.Samples), seconds(m.Least), seconds(m.Most), seconds(m.ReadSeconds))
}

func gbits(bytesPerSecond float64) string { return fmt.Sprintf("%.2f Gb/s", bytesPerSecond*8/1e9) }

func (r *readResult) summary() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# rs bench read\n\n%s\n\n", r.Began.Format("2006-01-02 15:04:05 MST"))
	if p := r.partial(); p != "" {
		fmt.Fprintf(&b, "%s\n", p)
	}
	fmt.Fprintf(&b, "%s\n\n%s\n\n", r.scope(), r.conditions())
	b.WriteString("| object | readers | kind | samples | median Gb/s | least | most | rs CPU s/GiB | shards CPU s/GiB | rs RSS | shards RSS | degraded |\n")
	b.WriteString("| --: | --: | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n")
	for i := range r.Cases {
		c := &r.Cases[i]
		for _, k := range c.Kinds {
			fmt.Fprintf(&b, "| %s | %d | %s | %d | %.2f | %.2f | %.2f | %.3f | %.3f | %s | %s | %d |\n", size(uint64(c.Bytes)), c.Readers, c.kind(k.Kind), k.Samples,
				k.BytesPerSecond*8/1e9, k.Least*8/1e9, k.Most*8/1e9, k.ClientCPU, k.ShardCPU, size(uint64(k.ClientRSS)), size(uint64(k.ShardRSS)), k.Degraded)
		}
	}
	b.WriteString("\nRatios of rates, the median over the rounds of a case:\n\n| object | readers | ratio | median | least | most |\n| --: | --: | --- | --: | --: | --: |\n")
	for i := range r.Cases {
		c := &r.Cases[i]
		for _, p := range c.Ratios {
			fmt.Fprintf(&b, "| %s | %d | %s / %s | %.3f | %.3f | %.3f |\n", size(uint64(c.Bytes)), c.Readers, p.Of, p.To, p.Ratio, p.Least, p.Most)
		}
	}
	b.WriteString("\nA rate is the bytes of all readers by the time from the begin of the first to the end of the last. Every read was verified: checksums of stripes and of the " +
		"whole, and the object looked up again. A plain WRITE stores and verifies nothing, and both its ends are in one process. CPU and RSS of shards are of those on this machine; RSS is the most that was seen, that of rs with the buffers of the plain WRITE.\n")
	if r.Command != nil {
		fmt.Fprintf(&b, "\n%s\n", r.Command.text())
	}
	return b.String()
}

// write makes the folder of results. What is in it from before is replaced file by file.
func (r *readResult) write(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	for name, b := range map[string][]byte{"raw.json": append(raw, '\n'), "summary.md": []byte(r.summary())} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			return err
		}
	}
	return nil
}

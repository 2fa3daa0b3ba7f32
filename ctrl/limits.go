package ctrl

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits on what one node may say. They bound what a faulty or hostile peer can
// make the control plane keep.
const (
	MaxKeyBytes     = 1024 // of a namespace, of a name
	MaxIDBytes      = 128
	MaxReasonBytes  = 1024
	MaxFileBytes    = 512
	MaxRails        = 64
	MaxLanes        = 4096 // per offer
	MaxParams       = 64
	MaxStripes      = 65535
	MaxNodes        = 16384
	MaxWaitIDs      = 4096
	MaxBarriers     = 256
	MaxParties      = 16384
	MinLease        = 100 * time.Millisecond
	MaxLease        = 10 * time.Minute
	MaxMessageBytes = 48 << 20 // of one gRPC message: MaxStripes with the longest file names

	maxNameBytes  = 128 // rail, fabric, device, policy
	maxHostBytes  = 255
	maxParamBytes = 1024
	maxListLimit  = 1000

	// MaxLookups bounds the keys of one LookupMany.
	MaxLookups = 1000
	// MaxTTL bounds an object's time, MinTTL is what clocks can tell apart.
	MaxTTL = 100 * 365 * 24 * time.Hour
	MinTTL = time.Millisecond
)

// InvalidError is a value that a message must not have.
type InvalidError struct {
	Field  string
	Reason string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Reason }

func invalidf(field, format string, args ...any) *InvalidError {
	return &InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// quote shows a value from outside in an error: bounded, on one line.
func quote(s string) string {
	const most = 48
	if len(s) <= most {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprintf("%q... (%d bytes)", s[:most], len(s))
}

// checkText checks length, encoding and that s prints on one line.
func checkText(field, s string, least, most int) error {
	if e := textFault(field, s, least, most); e != nil {
		return e
	}
	return nil
}

func textFault(field, s string, least, most int) *InvalidError {
	switch {
	case len(s) < least:
		if least == 1 {
			return invalidf(field, "empty")
		}
		return invalidf(field, "%d bytes, at least %d are needed", len(s), least)
	case len(s) > most:
		return invalidf(field, "%s is longer than %d bytes", quote(s), most)
	case !utf8.ValidString(s):
		return invalidf(field, "%s is not valid UTF-8", quote(s))
	}
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 {
		r, _ := utf8.DecodeRuneInString(s[i:])
		return invalidf(field, "%s has the control character %U at byte %d", quote(s), r, i)
	}
	return nil
}

func hasDotDot(s string) bool { return slices.Contains(strings.Split(s, "/"), "..") }

// Validate checks both parts: 1 to MaxKeyBytes bytes of UTF-8 without control
// characters and without a ".." path element; only the name may contain "/".
func (k ObjectKey) Validate() error {
	if err := k.validateNamespace(); err != nil {
		return err
	}
	if err := checkText("name", k.Name, 1, MaxKeyBytes); err != nil {
		return err
	}
	if hasDotDot(k.Name) {
		return invalidf("name", "%s has the path element \"..\"", quote(k.Name))
	}
	return nil
}

func (k ObjectKey) validateNamespace() error {
	if err := checkText("namespace", k.Namespace, 1, MaxKeyBytes); err != nil {
		return err
	}
	if k.Namespace == ".." {
		return invalidf("namespace", "it is \"..\"")
	}
	if strings.Contains(k.Namespace, "/") {
		return invalidf("namespace", "%s contains \"/\", only the name may", quote(k.Namespace))
	}
	return nil
}

// Validate checks the form of an id: "shard/N" or "client/NAME".
func (id NodeID) Validate() error {
	if err := checkText("node id", string(id), 1, MaxIDBytes); err != nil {
		return err
	}
	if _, ok := id.Shard(); ok {
		return nil
	}
	if name, ok := strings.CutPrefix(string(id), "client/"); ok && name != "" {
		return nil
	}
	return invalidf("node id", "%s is neither shard/N nor client/NAME", quote(string(id)))
}

func (n NodeInfo) validate() error {
	if err := n.ID.Validate(); err != nil {
		return err
	}
	_, shard := n.ID.Shard()
	if want := map[bool]Role{true: RoleShard, false: RoleClient}[shard]; n.Role != want {
		return invalidf("role", "%s cannot be a %s", n.ID, n.Role)
	}
	if err := checkText("host", n.Host, 0, maxHostBytes); err != nil {
		return err
	}
	if n.PID < 0 {
		return invalidf("pid", "%d is negative", n.PID)
	}
	if n.Lease != 0 && (n.Lease < MinLease || n.Lease > MaxLease) {
		return invalidf("lease", "%v is outside %v to %v", n.Lease, MinLease, MaxLease)
	}
	return validateRails(n.Rails)
}

func validateRails(rails []RailInfo) error {
	if len(rails) > MaxRails {
		return invalidf("rails", "%d, at most %d are allowed", len(rails), MaxRails)
	}
	for i, r := range rails {
		f := fmt.Sprintf("rails[%d].", i)
		for _, t := range []struct {
			name, v string
			most    int
		}{{"name", r.Name, maxNameBytes}, {"fabric", r.Fabric, maxNameBytes}, {"device", r.Device, maxNameBytes},
			{"provider", r.Provider, maxNameBytes}, {"gid_type", r.GIDType, maxNameBytes}, {"state", r.State, maxNameBytes},
			{"reason", r.Reason, MaxReasonBytes}} {
			if err := checkText(f+t.name, t.v, 0, t.most); err != nil {
				return err
			}
		}
		if r.MTU < 0 || r.Weight < 0 {
			return invalidf(f+"mtu, weight", "negative")
		}
	}
	return nil
}

func (c LaneCounts) validate() error {
	if min(c.Active, c.Dirty, c.Rebuilding, c.Dead) < 0 {
		return invalidf("lanes", "a negative count")
	}
	return nil
}

func (r Report) validate() error {
	if err := r.Lanes.validate(); err != nil {
		return err
	}
	return validateRails(r.Rails)
}

func (o Offer) validate() error {
	if err := o.From.Validate(); err != nil {
		return err
	}
	if err := o.To.Validate(); err != nil {
		return err
	}
	if o.From == o.To {
		return invalidf("to", "an offer of %s to itself", o.From)
	}
	if o.Generation == 0 {
		return invalidf("generation", "0, the first one is 1")
	}
	if len(o.Lanes) > MaxLanes {
		return invalidf("lanes", "%d, an offer has at most %d", len(o.Lanes), MaxLanes)
	}
	if len(o.Params) > MaxParams {
		return invalidf("params", "%d, an offer has at most %d", len(o.Params), MaxParams)
	}
	for k, v := range o.Params {
		if err := checkText("params", k, 1, maxNameBytes); err != nil {
			return err
		}
		if err := checkText("params."+k, v, 0, maxParamBytes); err != nil {
			return err
		}
	}
	for i, l := range o.Lanes {
		if err := l.validate(fmt.Sprintf("lanes[%d].", i)); err != nil {
			return err
		}
	}
	return nil
}

func (l LaneMeta) validate(f string) error {
	for _, t := range []struct {
		name, v string
		most    int
	}{{"rail", l.Rail, maxNameBytes}, {"peer_rail", l.PeerRail, maxNameBytes}, {"fabric", l.Fabric, maxNameBytes},
		{"error", l.Error, MaxReasonBytes}} {
		if err := checkText(f+t.name, t.v, 0, t.most); err != nil {
			return err
		}
	}
	switch e := l.Endpoint; {
	case l.Index < 0:
		return invalidf(f+"index", "%d is negative", l.Index)
	case e.QPN >= 1<<24:
		return invalidf(f+"endpoint.qpn", "%#x has more than 24 bits", e.QPN)
	case e.PSN >= 1<<24:
		return invalidf(f+"endpoint.psn", "%#x has more than 24 bits", e.PSN)
	case e.MTU < 0 || e.MTU > 1<<16:
		return invalidf(f+"endpoint.mtu", "%d is no MTU", e.MTU)
	case l.Slots.Addr+l.Slots.Length < l.Slots.Addr:
		return invalidf(f+"slots", "%d bytes at %#x wrap around", l.Slots.Length, l.Slots.Addr)
	}
	return nil
}

func isHash(s string) bool {
	if len(s) != 16 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func checkHash(field, s string) error {
	if s != "" && !isHash(s) {
		return invalidf(field, "%s is not 16 lower-case hex digits", quote(s))
	}
	return nil
}

// Validate checks that the object adds up: its stripes are 0 to n-1 exactly once,
// each where it must be and as long as it must be, on one of the shards, in a
// file below its directory. No shard is known when shards is nil.
func (o Object) Validate(shards []int) error {
	if err := o.Key.Validate(); err != nil {
		return err
	}
	if o.Generation == 0 || o.Generation == AnyOlder {
		return invalidf("generation", "%d is reserved", o.Generation)
	}
	for _, t := range []struct {
		name, v string
		most    int
	}{{"handle", o.Handle, MaxKeyBytes}, {"placement.policy", o.Placement.Policy, maxNameBytes}, {"placement.layout_hash", o.Placement.LayoutHash, maxNameBytes}} {
		if err := checkText(t.name, t.v, 0, t.most); err != nil {
			return err
		}
	}
	if err := checkHash("xxh3", o.XXH3); err != nil {
		return err
	}
	if o.TTL != 0 && (o.TTL < MinTTL || o.TTL > MaxTTL) {
		return invalidf("ttl", "%v is outside %v to %v", o.TTL, MinTTL, MaxTTL)
	}
	if o.Size > 0 && o.StripeBytes == 0 {
		return invalidf("stripe_bytes", "0 for an object of %d bytes", o.Size)
	}
	if o.Size > 1<<62 || o.StripeBytes > 1<<62 {
		return invalidf("size", "%d bytes in stripes of %d are more than this store can hold", o.Size, o.StripeBytes)
	}
	want := uint64(0)
	if o.Size > 0 {
		want = (o.Size-1)/o.StripeBytes + 1
	}
	if want > MaxStripes {
		return invalidf("stripe_bytes", "%d bytes in stripes of %d make %d stripes, at most %d are allowed: use larger stripes", o.Size, o.StripeBytes, want, MaxStripes)
	}
	return o.Placement.validate(o.Size, o.StripeBytes, int(want), shards)
}

func (p Placement) validate(size, stripeBytes uint64, want int, shards []int) error {
	if len(p.Stripes) != want {
		return invalidf("placement.stripes", "%d, but %d bytes in stripes of %d make %d", len(p.Stripes), size, stripeBytes, want)
	}
	seen := make([]bool, want)
	files := make(map[[2]int]map[string]uint32)
	for i, s := range p.Stripes {
		err := s.validate(size, stripeBytes, seen, shards)
		if err == nil {
			at := [2]int{s.Shard, s.Dir}
			if files[at] == nil {
				files[at] = make(map[string]uint32)
			}
			if other, ok := files[at][s.File]; ok {
				err = invalidf("file", "%s holds stripe %d already", quote(s.File), other)
			}
			files[at][s.File] = s.Index
		}
		if err != nil {
			return &InvalidError{Field: fmt.Sprintf("placement.stripes[%d].%s", i, err.Field), Reason: err.Reason}
		}
	}
	return nil
}

// validate checks one stripe of len(seen) and marks it there.
func (s Stripe) validate(size, stripeBytes uint64, seen []bool, shards []int) *InvalidError {
	if uint64(s.Index) >= uint64(len(seen)) {
		return invalidf("index", "%d, the object has %d stripes", s.Index, len(seen))
	}
	if seen[s.Index] {
		return invalidf("index", "stripe %d is there twice", s.Index)
	}
	seen[s.Index] = true
	off := uint64(s.Index) * stripeBytes
	if s.Offset != off {
		return invalidf("offset", "%d, stripe %d begins at %d", s.Offset, s.Index, off)
	}
	if n := min(stripeBytes, size-off); s.Length != n {
		return invalidf("length", "%d, stripe %d has %d bytes", s.Length, s.Index, n)
	}
	if !slices.Contains(shards, s.Shard) {
		return invalidf("shard", "the deployment has no shard %d", s.Shard)
	}
	if s.Dir < 0 {
		return invalidf("dir", "%d is negative", s.Dir)
	}
	if s.XXH3 != "" && !isHash(s.XXH3) {
		return invalidf("xxh3", "%s is not 16 lower-case hex digits", quote(s.XXH3))
	}
	return checkFile("file", s.File)
}

// checkFile refuses every name that could lead out of its directory.
func checkFile(field, s string) *InvalidError {
	if err := textFault(field, s, 1, MaxFileBytes); err != nil {
		return err
	}
	if strings.HasPrefix(s, "/") || strings.Contains(s, `\`) {
		return invalidf(field, "%s is not relative", quote(s))
	}
	for e := range strings.SplitSeq(s, "/") {
		if e == "" || e == "." || e == ".." {
			return invalidf(field, "%s has the path element %q", quote(s), e)
		}
	}
	return nil
}

// clip shortens a text of our own to what the other end accepts.
func clip(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) <= most {
		return s
	}
	for !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

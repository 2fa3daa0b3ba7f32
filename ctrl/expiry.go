package ctrl

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/railstore/railstore/ctrl/internal/pb"
)

// The time of an object. One clock decides: that of the process with the catalog.
// It sets Expires when the object is committed, and compares with it when somebody
// asks; clocks of writers and readers have no say. The time that is compared never
// goes back while the process lives, so what was over once stays over.

// now is the clock's time, or the latest that it ever showed.
func (c *Catalog) now() time.Time {
	t := time.Now()
	if c.Clock != nil {
		t = c.Clock()
	}
	t = t.Round(0).UTC() // the wall clock alone: it is what is stored
	c.clockMu.Lock()
	defer c.clockMu.Unlock()
	if t.Before(c.latest) {
		return c.latest
	}
	c.latest = t
	return t
}

func (c *Catalog) expiry(ttl time.Duration) time.Time {
	if ttl == 0 {
		return time.Time{}
	}
	return c.now().Add(ttl)
}

const expiryPrefix = "x/"

// expiring is the entry by which an object is found when its time is over.
func expiring(o Object) []Change {
	if o.Expires.IsZero() {
		return nil
	}
	// Fixed width: the order of the keys is that of the times.
	return []Change{{fmt.Sprintf("%s%016x\x00%s", expiryPrefix, uint64(o.Expires.UnixNano()), o.Key.path("")), []byte{}}}
}

func parseExpiring(s string) (at time.Time, key ObjectKey, err error) {
	p := strings.SplitN(strings.TrimPrefix(s, expiryPrefix), "\x00", 3)
	if len(p) != 3 || len(p[0]) != 16 {
		return at, key, fmt.Errorf("%q: stored time of an object: not in the form TIME, key", s)
	}
	n, err := strconv.ParseUint(p[0], 16, 63)
	if err != nil {
		return at, key, fmt.Errorf("%q: stored time of an object: %w", s, err)
	}
	key = ObjectKey{Namespace: p[1], Name: p[2]}
	return time.Unix(0, int64(n)).UTC(), key, key.Validate()
}

// Expire takes objects whose time is over out, the earliest first, at most so many,
// and tells how many there were and whether there are more. They become garbage.
func (c *Catalog) Expire(most int) (n int, more bool, err error) {
	if most < 1 || most > maxListLimit {
		return 0, false, invalidf("most", "%d, 1 to %d are taken out at once", most, maxListLimit)
	}
	now := c.now()
	for {
		es, err := c.store.List(expiryPrefix, "", 1)
		if err != nil || len(es) == 0 {
			return n, false, err
		}
		at, key, err := parseExpiring(es[0].Key)
		if err != nil || at.After(now) {
			return n, false, err
		}
		if n == most {
			return n, true, nil
		}
		err = c.change(key, func(e entry) ([]Change, error) {
			stale := Change{es[0].Key, nil} // goes in any case, else this would not end
			if !e.found || !e.current.Expires.Equal(at) {
				return []Change{stale}, nil
			}
			out, err := takeOut(e.current)
			return append(out, stale, Change{key.path("o/"), nil}, Change{key.path("p/"), nil}), err
		})
		if err != nil {
			return n, false, err
		}
		n++
	}
}

// ForgetShard says that the stripes of garbage on one shard are removed. When no
// shard has any the garbage is forgotten. Saying it twice is no error.
func (c *Catalog) ForgetShard(key ObjectKey, generation uint64, shard int) error {
	if err := key.Validate(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	path := key.garbagePath(generation)
	for range tries {
		b, found, err := c.store.Get(path)
		if err != nil || !found {
			return err
		}
		o, err := decodePlaced(Entry{path, b})
		if err != nil {
			return err
		}
		var rest []Stripe
		for _, s := range o.Placement.Stripes {
			if s.Shard != shard {
				rest = append(rest, s)
			}
		}
		ch := Change{Key: path}
		if o.Placement.Stripes = rest; len(rest) > 0 {
			if ch.Value, err = encode(placedToPB(o)); err != nil {
				return err
			}
		}
		if err = c.store.Apply([]Cond{{path, b}}, []Change{ch}); !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return errBusy(key)
}

// lookupBytes bounds the answer of LookupMany; one object may be longer.
const lookupBytes = 8 << 20

// LookupMany looks the first of the keys up, as many as fit an answer, at least
// one. An object that is not there has generation 0.
func (c *Catalog) LookupMany(keys []ObjectKey) ([]Object, error) {
	if len(keys) == 0 || len(keys) > MaxLookups {
		return nil, invalidf("keys", "%d, want 1 to %d", len(keys), MaxLookups)
	}
	var out []Object
	size := 0
	for _, k := range keys {
		o, _, err := c.Lookup(k)
		if err != nil {
			return nil, err
		}
		if size += proto.Size(placedToPB(o)); size > lookupBytes && len(out) > 0 {
			break
		}
		out = append(out, o)
	}
	return out, nil
}

func foundToPB(o Object) *pb.LookupReply {
	if o.Generation == 0 {
		return &pb.LookupReply{}
	}
	return &pb.LookupReply{Found: placedToPB(o)}
}

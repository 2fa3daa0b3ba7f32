package ctrl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/railstore/railstore/ctrl/internal/pb"
)

// Catalog knows which objects exist and where their stripes are. It is safe for
// concurrent use.
//
// Generations of a key grow for ever: a deleted object's generation is not used
// again, so a file or a slot of an old one is never taken for the new. What a
// commit or a delete takes out of the catalog is kept as garbage until Forget,
// so that a crash before its stripes were removed loses track of none.
//
// Layout of the store, where KEY is namespace, a zero byte, name:
//
//	o/KEY                        Object without its stripes
//	p/KEY                        its stripes
//	g/KEY                        highest generation reserved, highest committed
//	d/KEY, zero byte, generation an object taken out, with its stripes
//	x/TIME, zero byte, KEY       an object that will be over at that time; see expiry.go
type Catalog struct {
	// Clock, by which objects are over; tests set it before the first call. nil is
	// this machine's.
	Clock func() time.Time

	mu     sync.Mutex // serialises changes
	store  Store
	shards []int

	clockMu sync.Mutex
	latest  time.Time
}

// NewCatalog makes a catalog on a store, which stays the caller's.
func NewCatalog(store Store, shards []int) *Catalog {
	return &Catalog{store: store, shards: slices.Clone(shards)}
}

func (k ObjectKey) path(kind string) string { return kind + k.Namespace + "\x00" + k.Name }

func (k ObjectKey) garbagePath(generation uint64) string {
	return fmt.Sprintf("%s\x00%016x", k.path("d/"), generation)
}

// entry is what the store has for one key. Values are nil where there is none.
type entry struct {
	object, stripes, counter []byte
	current                  Object
	found                    bool // a current one is kept
	over                     bool // and its time is over: it reads as absent
	reserved, committed      uint64
}

// present is the generation that readers see, or 0.
func (e entry) present() uint64 {
	if e.over {
		return 0
	}
	return e.current.Generation
}

func (c *Catalog) read(key ObjectKey) (e entry, err error) {
	for _, f := range []struct {
		kind string
		to   *[]byte
	}{{"o/", &e.object}, {"p/", &e.stripes}, {"g/", &e.counter}} {
		if *f.to, _, err = c.store.Get(key.path(f.kind)); err != nil {
			return e, err
		}
	}
	if e.object != nil {
		e.found = true
		if e.current, err = decodeObject(e.object, e.stripes); err != nil {
			return e, fmt.Errorf("%s: stored metadata: %w", key, err)
		}
		e.over = e.current.Over(c.now())
	}
	e.reserved, e.committed, err = decodeCounter(key, e.counter)
	return e, err
}

func decodeCounter(key ObjectKey, b []byte) (reserved, committed uint64, err error) {
	switch len(b) {
	case 0:
		return 0, 0, nil
	case 16:
		return binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), nil
	}
	return 0, 0, fmt.Errorf("%s: stored generation: %d bytes, want 16", key, len(b))
}

func encodeCounter(reserved, committed uint64) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, reserved), committed)
}

func encode(m proto.Message) ([]byte, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if b == nil {
		b = []byte{} // nil is no value to a store
	}
	return b, err
}

func decodeObject(object, stripes []byte) (Object, error) {
	var o pb.Object
	var s pb.Stripes
	if err := errors.Join(proto.Unmarshal(object, &o), proto.Unmarshal(stripes, &s)); err != nil {
		return Object{}, err
	}
	return placedFromPB(&pb.Placed{Object: &o, Stripes: s.GetStripes()})
}

// change runs one read-modify-write until nobody else's came between.
func (c *Catalog) change(key ObjectKey, f func(e entry) ([]Change, error)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range tries {
		e, err := c.read(key)
		if err != nil {
			return err
		}
		changes, err := f(e)
		if err != nil || len(changes) == 0 {
			return err
		}
		conds := []Cond{{key.path("o/"), e.object}, {key.path("g/"), e.counter}}
		if err := c.store.Apply(conds, changes); !errors.Is(err, ErrChanged) {
			return err
		}
	}
	return errBusy(key)
}

// Lookup gives an object with its stripes.
func (c *Catalog) Lookup(key ObjectKey) (o Object, found bool, err error) {
	if err := key.Validate(); err != nil {
		return Object{}, false, err
	}
	// A commit between two reads would show an object with another's stripes.
	c.mu.Lock()
	defer c.mu.Unlock()
	e, err := c.read(key)
	if err != nil || !e.found || e.over {
		return Object{}, false, err
	}
	return e.current, true, nil
}

// Begin reserves the next generation of a key.
func (c *Catalog) Begin(key ObjectKey) (generation uint64, err error) {
	if err := key.Validate(); err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	path := key.path("g/")
	for range tries {
		b, _, err := c.store.Get(path)
		if err != nil {
			return 0, err
		}
		reserved, committed, err := decodeCounter(key, b)
		if err != nil {
			return 0, err
		}
		generation = max(reserved, committed) + 1
		err = c.store.Apply([]Cond{{path, b}}, []Change{{path, encodeCounter(generation, committed)}})
		if !errors.Is(err, ErrChanged) {
			return generation, err
		}
	}
	return 0, errBusy(key)
}

// tries bounds how often a change starts again because another process that
// writes to the same store came between.
const tries = 16

func errBusy(key ObjectKey) error {
	return &ConflictError{Key: key, Reason: "others change it all the time: try again"}
}

// Commit makes o the object of its key, if the present generation is expect: 0
// there must be none, AnyOlder every older one is replaced. The generation must
// have been reserved and never committed. Committing the same object again, as
// after a lost reply, gives the same answer. old is what was replaced; it is kept
// as garbage until Forget.
func (c *Catalog) Commit(o Object, expect uint64) (old Object, replaced bool, err error) {
	if err := o.Validate(c.shards); err != nil {
		return Object{}, false, err
	}
	// What time a reader gets must not depend on whether the store kept it.
	o.Created = o.Created.UTC().Round(0)
	stripes, err := encode(&pb.Stripes{Stripes: stripesToPB(o.Placement.Stripes)})
	if err != nil {
		return Object{}, false, err
	}
	err = c.change(o.Key, func(e entry) ([]Change, error) {
		old, replaced = Object{}, false
		if o.Expires = c.expiry(o.TTL); e.found && e.current.Handle == o.Handle {
			o.Expires = e.current.Expires // a repeat does not prolong it
		}
		object, err := encode(objectToPB(o))
		if err != nil {
			return nil, err
		}
		if e.found && string(e.object) == string(object) && string(e.stripes) == string(stripes) {
			old, replaced, err = c.lastGarbage(o.Key, o.Generation)
			return nil, err
		}
		if err := e.mayCommit(o, expect); err != nil {
			return nil, err
		}
		ch := []Change{{o.Key.path("o/"), object}, {o.Key.path("p/"), stripes}, {o.Key.path("g/"), encodeCounter(e.reserved, o.Generation)}}
		if !e.found {
			return append(ch, expiring(o)...), nil
		}
		old, replaced = e.current, true
		out, err := takeOut(e.current)
		return append(append(ch, out...), expiring(o)...), err
	})
	if err != nil {
		return Object{}, false, err
	}
	return old, replaced, nil
}

func (e entry) mayCommit(o Object, expect uint64) error {
	have := e.present()
	c := &ConflictError{Key: o.Key, Expect: expect, Have: have}
	switch {
	case o.Generation > e.reserved:
		return invalidf("generation", "%s: %d was not reserved, the last that was is %d", o.Key, o.Generation, e.reserved)
	case have != 0 && expect == 0:
		c.Reason = fmt.Sprintf("it exists already, generation %d", have)
	case have != 0 && expect != AnyOlder && have != expect:
		c.Reason = fmt.Sprintf("it is generation %d, not %d: somebody has replaced it", have, expect)
	case e.over && expect != 0 && expect != AnyOlder:
		c.Reason = fmt.Sprintf("its time was over at %v, generation %d was expected", e.current.Expires.UTC().Format(time.RFC3339), expect)
	case have == 0 && expect != 0 && expect != AnyOlder:
		c.Reason = fmt.Sprintf("it is gone, generation %d was expected", expect)
	case o.Generation <= e.committed:
		c.Reason = fmt.Sprintf("generation %d comes too late, %d was committed", o.Generation, e.committed)
	default:
		return nil
	}
	return c
}

// takeOut turns what is kept of a current object beside its metadata into garbage.
func takeOut(o Object) ([]Change, error) {
	b, err := encode(placedToPB(o))
	ch := []Change{{o.Key.garbagePath(o.Generation), b}}
	for _, x := range expiring(o) {
		ch = append(ch, Change{x.Key, nil})
	}
	return ch, err
}

// lastGarbage is the youngest object taken out before a generation.
func (c *Catalog) lastGarbage(key ObjectKey, before uint64) (last Object, found bool, err error) {
	after := ""
	for {
		es, err := c.store.List(key.path("d/")+"\x00", after, 16)
		if err != nil {
			return Object{}, false, err
		}
		for _, x := range es {
			o, err := decodePlaced(x)
			if err != nil {
				return Object{}, false, err
			}
			// A name with a zero byte does not exist, so the prefix is exact.
			if o.Generation < before {
				last, found = o, true
			}
			after = x.Key
		}
		if len(es) < 16 {
			return last, found, nil
		}
	}
}

func decodePlaced(x Entry) (Object, error) {
	var p pb.Placed
	if err := proto.Unmarshal(x.Value, &p); err != nil {
		return Object{}, fmt.Errorf("%q: stored garbage: %w", x.Key, err)
	}
	return placedFromPB(&p)
}

// Delete takes an object of one generation (AnyOlder: of any) out. old is what it
// was, kept as garbage until Forget; found is false when there is none, and then
// that is no error. Deleting again before Forget gives the same answer.
func (c *Catalog) Delete(key ObjectKey, generation uint64) (old Object, found bool, err error) {
	if err := key.Validate(); err != nil {
		return Object{}, false, err
	}
	if generation == 0 {
		return Object{}, false, invalidf("generation", "0 is never one")
	}
	err = c.change(key, func(e entry) ([]Change, error) {
		old, found = Object{}, false
		if !e.found || e.over && generation == AnyOlder {
			if generation != AnyOlder {
				b, ok, err := c.store.Get(key.garbagePath(generation))
				if err != nil || !ok {
					return nil, err
				}
				found = true
				old, err = decodePlaced(Entry{key.garbagePath(generation), b})
				return nil, err
			}
			return nil, nil
		}
		if generation != AnyOlder && e.current.Generation != generation {
			return nil, &ConflictError{Key: key, Expect: generation, Have: e.current.Generation,
				Reason: fmt.Sprintf("it is generation %d, not %d: somebody has replaced it", e.current.Generation, generation)}
		}
		old, found = e.current, true
		out, err := takeOut(e.current)
		return append(out, Change{key.path("o/"), nil}, Change{key.path("p/"), nil}), err
	})
	if err != nil {
		return Object{}, false, err
	}
	return old, found, nil
}

// Garbage gives the next object that was taken out and not forgotten, after one
// of a key and generation (zero: the first).
func (c *Catalog) Garbage(after ObjectKey, generation uint64) (o Object, found bool, err error) {
	at := ""
	if after != (ObjectKey{}) {
		if err := after.Validate(); err != nil {
			return Object{}, false, err
		}
		at = after.garbagePath(generation)
	}
	es, err := c.store.List("d/", at, 1)
	if err != nil || len(es) == 0 {
		return Object{}, false, err
	}
	o, err = decodePlaced(es[0])
	return o, err == nil, err
}

// Forget says that the stripes of garbage are removed. Forgetting twice is no
// error.
func (c *Catalog) Forget(key ObjectKey, generation uint64) error {
	if err := key.Validate(); err != nil {
		return err
	}
	return c.store.Apply(nil, []Change{{key.garbagePath(generation), nil}})
}

package ctrl

import "fmt"

// ListQuery says what List gives: a namespace (empty: all, then without Prefix),
// names that begin with Prefix, what sorts after After, at most Limit (0: 1000), and
// with Over also what is still kept although its time is over.
type ListQuery struct {
	Namespace string
	Prefix    string
	After     ObjectKey
	Limit     int
	Over      bool
}

func (q ListQuery) validate() error {
	if q.Namespace != "" {
		if err := (ObjectKey{Namespace: q.Namespace}).validateNamespace(); err != nil {
			return err
		}
	} else if q.Prefix != "" {
		return invalidf("prefix", "%s without a namespace", quote(q.Prefix))
	}
	if err := checkText("prefix", q.Prefix, 0, MaxKeyBytes); err != nil {
		return err
	}
	if q.Limit < 0 || q.Limit > maxListLimit {
		return invalidf("limit", "%d, at most %d (0) are given at once", q.Limit, maxListLimit)
	}
	if q.After != (ObjectKey{}) {
		return q.After.Validate()
	}
	return nil
}

// List gives objects without their stripes, in the order of their keys, and
// whether there are more.
func (c *Catalog) List(q ListQuery) (out []Object, more bool, err error) {
	if err := q.validate(); err != nil {
		return nil, false, err
	}
	limit := q.Limit
	if limit == 0 {
		limit = maxListLimit
	}
	prefix, after := "o/", ""
	if q.Namespace != "" {
		prefix = ObjectKey{q.Namespace, q.Prefix}.path("o/")
	}
	if q.After != (ObjectKey{}) {
		after = q.After.path("o/")
	}
	now := c.now()
	for {
		es, err := c.store.List(prefix, after, limit+1)
		if err != nil {
			return nil, false, err
		}
		for _, x := range es {
			o, err := decodeObject(x.Value, nil)
			if err != nil {
				return nil, false, fmt.Errorf("%q: stored metadata: %w", x.Key, err)
			}
			if after = x.Key; o.Over(now) && !q.Over {
				continue
			}
			if len(out) == limit {
				return out, true, nil
			}
			out = append(out, o)
		}
		if len(es) <= limit {
			return out, false, nil
		}
	}
}

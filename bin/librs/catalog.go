package main

import (
	"bytes"
	"context"
	"strings"
	"time"

	"github.com/railstore/railstore/ctrl"
	"github.com/railstore/railstore/pipeline"
	"github.com/railstore/railstore/stages/object"
)

// putting says how to store an object.
type putting struct {
	name  string
	rails string
	opt   object.PutOptions
	limits
}

func (s *session) put(p putting, data []byte) (rep *object.PutReport, err error) {
	key, err := keyOf("put", p.name)
	if err != nil {
		return nil, err
	}
	if p.opt.Rails, err = railNames("put", p.rails); err != nil {
		return nil, err
	}
	err = s.do("put", p.limits, func(ctx context.Context) (err error) {
		rep, err = s.Put(ctx, key, object.NewSource(bytes.NewReader(data), uint64(len(data)), "the caller's memory"), p.opt)
		return err
	})
	return rep, err
}

func (s *session) remove(name string, generation uint64, l limits) (rep *object.RemoveReport, err error) {
	key, err := keyOf("remove", name)
	if err != nil {
		return nil, err
	}
	if generation == 0 {
		generation = object.AnyOlder
	}
	err = s.do("remove", l, func(ctx context.Context) (err error) {
		rep, err = s.RemoveIf(ctx, key, generation)
		return err
	})
	return rep, err
}

func (s *session) stat(name string, l limits) (o object.Object, err error) {
	key, err := keyOf("stat", name)
	if err != nil {
		return o, err
	}
	err = s.do("stat", l, func(ctx context.Context) (err error) {
		o, err = s.Lookup(ctx, key)
		return pipeline.Wrap(err, pipeline.LayerUsage, "stat", pipeline.Nowhere)
	})
	return o, err
}

// listing is a page of the catalog, with the keys of rs ls.
type listing struct {
	Objects []listedObject `json:"objects"`
	More    bool           `json:"more"`
	After   string         `json:"after"` // where the next page begins; empty without more
}

type listedObject struct {
	Namespace  string    `json:"namespace"`
	Object     string    `json:"object"`
	Generation uint64    `json:"generation"`
	Bytes      uint64    `json:"bytes"`
	Stripes    int       `json:"stripes"`
	XXH3       string    `json:"xxh3"`
	Created    time.Time `json:"created"`
	Expires    time.Time `json:"expires,omitzero"`
}

// pageSize is how many objects a page has unless the caller says otherwise, and at most.
const pageSize = 500

func (s *session) list(prefix, after string, limit uint32, l limits) (out listing, err error) {
	if limit > pageSize {
		return out, usage("list", nil, "a limit of %d: want at most %d", limit, pageSize)
	}
	q := ctrl.ListQuery{Limit: pageSize}
	if limit > 0 {
		q.Limit = int(limit)
	}
	q.Namespace, q.Prefix, _ = strings.Cut(prefix, "/")
	if after != "" {
		if q.After, err = keyOf("list", after); err != nil {
			return out, err
		}
	}
	out.Objects = []listedObject{}
	err = s.do("list", l, func(ctx context.Context) error {
		objects, more, err := s.Control().List(ctx, q)
		if err != nil {
			return err
		}
		for i := range objects {
			o := &objects[i]
			out.Objects = append(out.Objects, listedObject{o.Key.Namespace, o.Key.Name, o.Generation, o.Size, o.Stripes(), o.XXH3, o.Created, o.Expires})
		}
		if out.More = more && len(objects) > 0; out.More {
			out.After = objects[len(objects)-1].Key.String()
		}
		return nil
	})
	return out, err
}

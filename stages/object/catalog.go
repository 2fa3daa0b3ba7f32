package object

import (
	"context"

	"github.com/railstore/railstore/ctrl"
)

// The metadata of objects belongs to the control plane; these are its types under
// the names of this package.
type (
	Key       = ctrl.ObjectKey
	Object    = ctrl.Object
	Placement = ctrl.Placement
	Stripe    = ctrl.Stripe
)

// AnyOlder as an expectation of Commit: nothing, or any lower generation.
const AnyOlder = ctrl.AnyOlder

var _ CleanerCatalog = (*ctrl.Client)(nil)

// Catalog is what putting, reading and removing need of the control plane. A
// *ctrl.Client is one; what the calls mean is said at ctrl.Catalog. What Commit
// and Delete take out stays listed as garbage until Forget.
type Catalog interface {
	Lookup(ctx context.Context, key Key) (o Object, found bool, err error)
	LookupMany(ctx context.Context, keys []Key) ([]Object, error)
	Begin(ctx context.Context, key Key) (generation uint64, err error)
	Commit(ctx context.Context, o Object, expect uint64) (old Object, replaced bool, err error)
	Delete(ctx context.Context, key Key, generation uint64) (old Object, found bool, err error)
	List(ctx context.Context, q ctrl.ListQuery) (objects []Object, more bool, err error)
	Garbage(ctx context.Context, after Key, generation uint64) (o Object, found bool, err error)
	Forget(ctx context.Context, key Key, generation uint64) error
}

// CleanerCatalog is what a shard needs of the control plane to clean up and to
// scrub.
type CleanerCatalog interface {
	Catalog
	Expire(ctx context.Context, most int) (n int, more bool, err error)
	ForgetShard(ctx context.Context, key Key, generation uint64, shard int) error
}

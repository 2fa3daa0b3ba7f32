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

// Catalog is what putting and reading need of the control plane's catalog.
type Catalog interface {
	// Lookup reports the current generation of an object, or that there is none.
	Lookup(ctx context.Context, key Key) (Object, bool, error)
	// Begin reserves a generation that no other put of the key ever gets.
	Begin(ctx context.Context, key Key) (uint64, error)
	// Commit makes obj the current generation and returns the one it replaced, if
	// any. expect is the generation that must be there: 0 for none, AnyOlder for
	// none or any lower one. A *ctrl.ConflictError says that it was not so.
	Commit(ctx context.Context, obj Object, expect uint64) (old Object, replaced bool, err error)
	// Delete removes the entry if it is still this generation.
	Delete(ctx context.Context, key Key, generation uint64) (old Object, err error)
	// List gives the objects of a namespace in the order of their names, at most
	// limit of those that begin with prefix and come after the name after.
	List(ctx context.Context, namespace, prefix, after string, limit int) ([]Object, error)
}

// AnyOlder as an expectation of Commit: nothing, or any lower generation.
const AnyOlder = ctrl.AnyOlder

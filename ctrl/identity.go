package ctrl

import (
	"fmt"
	"strconv"
)

// ProtocolVersion is the version of this package's wire protocol. Both ends must
// have the same.
const ProtocolVersion = 1

// Identity says which deployment a caller believes it is in. Every call carries
// it; the control plane refuses a caller whose identity differs from its own.
type Identity struct {
	Namespace  string
	Deployment string
	Epoch      uint64
	Digest     string // SHA-256 of the resolved deployment, hex
}

// IdentityError is the first field in which two identities differ.
type IdentityError struct {
	Field        string // protocol_version, namespace, deployment, epoch or digest
	Mine, Theirs string
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("another deployment: %s is %s here and %s at the control plane", e.Field, orNone(e.Mine), orNone(e.Theirs))
}

// Hint says what to do about it.
func (e *IdentityError) Hint() string {
	switch e.Field {
	case "protocol_version":
		return "run the same release of rs on both ends"
	case "digest", "epoch":
		return "the recipe changed since the control plane started, or one of the two is of another release: use the recipe it was started from and the same release, or take the deployment down and up again"
	}
	return "check control.host and control.port: this address belongs to another deployment"
}

func orNone(s string) string {
	if s == "" {
		return "not set"
	}
	return strconv.Quote(s)
}

// diff gives the first field in which id and theirs differ, nil when none does.
// The order is from the most to the least fundamental, so that a foreign
// deployment is not reported as a changed recipe.
func (id Identity) diff(version uint32, theirs Identity, theirVersion uint32) *IdentityError {
	u := func(v uint64) string { return strconv.FormatUint(v, 10) }
	for _, f := range []struct{ name, mine, theirs string }{
		{"protocol_version", u(uint64(version)), u(uint64(theirVersion))},
		{"namespace", id.Namespace, theirs.Namespace},
		{"deployment", id.Deployment, theirs.Deployment},
		{"epoch", u(id.Epoch), u(theirs.Epoch)},
		{"digest", id.Digest, theirs.Digest},
	} {
		if f.mine != f.theirs {
			return &IdentityError{Field: f.name, Mine: f.mine, Theirs: f.theirs}
		}
	}
	return nil
}

package ctrl

import (
	"time"
)

// AnyOlder makes a commit replace whatever older generation is there.
const AnyOlder = ^uint64(0)

// ObjectKey names an object. Neither part is a path for anybody; see Validate.
type ObjectKey struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (k ObjectKey) String() string { return k.Namespace + "/" + k.Name }

// Object is the metadata of one generation of an object.
type Object struct {
	Key           ObjectKey `json:"key"`
	Handle        string    `json:"handle"`
	Generation    uint64    `json:"generation"`
	XXH3          string    `json:"xxh3"` // of the whole content, 16 hex digits
	LayoutVersion uint64    `json:"layout_version"`
	Size          uint64    `json:"size"`
	StripeBytes   uint64    `json:"stripe_bytes"`
	Created       time.Time `json:"created"` // by the writer's clock, for people
	// TTL is how long the object is there, from its commit on; 0 is for ever.
	TTL time.Duration `json:"-"`
	// Expires is when it is over, by the clock of the control plane, which sets it:
	// from then on it reads as absent.
	Expires   time.Time `json:"expires,omitzero"`
	Placement Placement `json:"placement"`
}

// Stripes is how many stripes the object has: 0 for an empty one.
func (o Object) Stripes() int {
	if o.Size == 0 || o.StripeBytes == 0 {
		return 0
	}
	return int((o.Size-1)/o.StripeBytes + 1)
}

// Placement says where the stripes are.
type Placement struct {
	Epoch      uint64   `json:"epoch"`
	Policy     string   `json:"policy"`
	LayoutHash string   `json:"layout_hash"`
	Stripes    []Stripe `json:"stripes,omitempty"`
	// Shards are the active rails of the shards that have stripes of the object, as far
	// as the control plane knows at the lookup. It is advice: not stored, not in the
	// layout hash, and empty from a control plane that does not tell.
	Shards []ShardRails `json:"shards,omitempty"`
}

// ShardRails are the rails over which a shard can be reached.
type ShardRails struct {
	Shard int         `json:"shard"`
	Rails []ShardRail `json:"rails"`
}

// ShardRail is a rail of a shard.
type ShardRail struct {
	Name   string `json:"name"`
	Fabric string `json:"fabric"`
	Device string `json:"device"`
	GID    string `json:"gid"`
}

// Stripe is one contiguous part of an object, in one file.
type Stripe struct {
	Index  uint32 `json:"index"`
	Shard  int    `json:"shard"`
	Dir    int    `json:"dir"`    // directory of the shard
	Offset uint64 `json:"offset"` // in the object
	Length uint64 `json:"length"`
	XXH3   string `json:"xxh3"` // 16 hex digits; empty without checksums
	File   string `json:"file"` // below the directory
}

// Over reports whether the object reads as absent at a time.
func (o Object) Over(now time.Time) bool { return !o.Expires.IsZero() && !now.Before(o.Expires) }

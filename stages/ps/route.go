package ps

// Mix is the finalizer of splitmix64, a one-to-one hash of 64 bits. Test vectors are in
// docs/ps-protocol.md.
func Mix(key uint64) uint64 {
	key ^= key >> 30
	key *= 0xbf58476d1ce4e5b9
	key ^= key >> 27
	key *= 0x94d049bb133111eb
	return key ^ key>>31
}

// ShardOf is the place of the shard that has a key: an index into the deployment's shard
// numbers in ascending order. It is the same in every language and for ever.
func ShardOf(key uint64, shards int) int { return int(Mix(key) % uint64(shards)) }

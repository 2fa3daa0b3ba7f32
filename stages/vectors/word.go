package vectors

import "github.com/zeebo/xxh3"

// WordKey is the key of a word: XXH3-64, without a seed, of its UTF-8 bytes. It is the
// same on every machine and in every language that has the hash.
func WordKey(word string) uint64 { return xxh3.HashString(word) }

func wordKey(word []byte) uint64 { return xxh3.Hash(word) }

// Package vectors reads and writes matrices as files: rows of float32 with a key
// each, as tables of a parameter server are filled from and saved to. It has no
// network in it and knows nothing of tables.
//
// # Formats
//
//	npy           versions 1 to 3; f2, f4, f8; C and Fortran order; either byte order.
//	              Keys are the row numbers, or the numbers of a second, one-dimensional
//	              file of u8 or i8
//	safetensors   one tensor of two dimensions, F16, BF16, F32 or F64, by name, or the
//	              only one; keys as for npy
//	text          GloVe and word2vec: a word and its numbers on each line, with or without
//	              the line "count dim" in front. A word's key is WordKey of it
//
// Open looks at the whole of a binary file's shape at once: a file that is shorter or
// longer than its header says is refused before the first row. Text has no such header;
// its faults are found where they stand. Check reads a file to its end without giving
// rows, for callers that want all or nothing.
//
// # Bounds
//
// A file may come from anybody. Headers, lines, dimensions and what is buffered are
// bounded (limits.go), products of sizes are checked, and nothing is allocated because a
// header says so. The one thing that grows with the file are the keys that are
// remembered to find duplicates, eight bytes each and some slack, up to
// Options.MaxKeys; with DuplicatesLast nothing is remembered.
//
// # Errors
//
// A *FaultError says which file, which byte, which line or row and column, and what is
// wrong there; it Is one of ErrShape, ErrTruncated, ErrTrailing, ErrNotFinite,
// ErrDuplicate, ErrFormat and ErrKeys. It stands in a pipeline.Error whose layer is
// integrity for files that are broken, and storage for the others.
//
// Owns: Reader, Writer, Options, FaultError, WordKey.
// Imports: pipeline; github.com/zeebo/xxh3.
// Goroutines: none. Locks: none; a Reader or Writer is one goroutine's.
package vectors

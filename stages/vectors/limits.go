package vectors

// Bounds of what a file can make a reader do.
const (
	// MaxDim bounds the floats of a row, as tables do.
	MaxDim = 65536
	// DefaultMaxKeys bounds the keys that are remembered to find duplicates: at 8 to 22
	// bytes each, 1.4 GB at most.
	DefaultMaxKeys = 64 << 20

	maxNpyHeader = 64 << 10 // numpy itself refuses longer ones when it does not trust a file
	maxSTHeader  = 16 << 20 // 100 000 tensors and more; the format allows 100 MB
	maxWord      = 4 << 10
	maxNumber    = 64                             // digits of one number in text
	maxLine      = maxWord + MaxDim*(maxNumber+1) // bytes of a line of text
	blockBytes   = 1 << 20                        // read at once
	columnBytes  = 16 << 20                       // read at once of a matrix that lies in columns
	maxTensors   = 1 << 20
	maxRows      = 1 << 48
)

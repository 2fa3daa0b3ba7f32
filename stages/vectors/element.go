package vectors

import (
	"encoding/binary"
	"math"
)

// element is how a float lies in a file.
type element struct {
	kind byte // f: IEEE float, b: bfloat16
	size int
	big  bool
}

func (e element) order() binary.ByteOrder {
	if e.big {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// decode puts the floats of b at dst[0], dst[step], dst[2·step], ... It gives the place
// of the first that is finite in the file and does not fit into a float32, or -1; that
// one is an infinity in dst.
func (e element) decode(dst []float32, step int, b []byte) (tooLarge int) {
	tooLarge = -1
	switch {
	case e.kind == 'b':
		for i, j := 0, 0; i+2 <= len(b); i, j = i+2, j+step {
			dst[j] = math.Float32frombits(uint32(e.order().Uint16(b[i:])) << 16)
		}
	case e.size == 2:
		for i, j := 0, 0; i+2 <= len(b); i, j = i+2, j+step {
			dst[j] = fromHalf(e.order().Uint16(b[i:]))
		}
	case e.size == 4 && !e.big:
		for i, j := 0, 0; i+4 <= len(b); i, j = i+4, j+step {
			dst[j] = math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))
		}
	case e.size == 4:
		for i, j := 0, 0; i+4 <= len(b); i, j = i+4, j+step {
			dst[j] = math.Float32frombits(binary.BigEndian.Uint32(b[i:]))
		}
	case e.size == 8:
		for i, j := 0, 0; i+8 <= len(b); i, j = i+8, j+step {
			v := math.Float64frombits(e.order().Uint64(b[i:]))
			dst[j] = float32(v)
			if tooLarge < 0 && math.IsInf(float64(dst[j]), 0) && !math.IsInf(v, 0) {
				tooLarge = i / 8
			}
		}
	}
	return tooLarge
}

// fromHalf widens an IEEE binary16; every value of it is exact.
func fromHalf(h uint16) float32 {
	sign, exp, man := uint32(h>>15)<<31, uint32(h>>10&31), uint32(h&0x3ff)
	switch exp {
	case 0:
		f := float32(man) / (1 << 24)
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0xff<<23 | man<<13)
	}
	return math.Float32frombits(sign | (exp+127-15)<<23 | man<<13)
}

func finite(f float32) bool { return math.Float32bits(f)&0x7f800000 != 0x7f800000 }

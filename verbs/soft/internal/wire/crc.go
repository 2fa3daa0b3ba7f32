package wire

import "encoding/binary"

// The ICRC is CRC-32 with the IEEE polynomial in its reflected form, as
// hash/crc32 has it. hash/crc32 is the fastest for payload; what follows is for
// headers (a dozen bytes, one of them masked) and for shifting a CRC over bytes
// that are not there, which a CRC allows because it is linear.

const ieee = 0xedb88320

// slicing[k][b] is the register after byte b and k zero bytes, from register 0.
var slicing = func() (t [8][256]uint32) {
	for i := range t[0] {
		r := uint32(i)
		for range 8 {
			r = r>>1 ^ ieee&-(r&1)
		}
		t[0][i] = r
	}
	for k := 1; k < 8; k++ {
		for i := range t[k] {
			r := t[k-1][i]
			t[k][i] = r>>8 ^ t[0][r&0xff]
		}
	}
	return
}()

// headerCRC continues register c (not inverted) over headers, whose length is a
// multiple of 4 and at least BTHLen. BTH byte 4 counts as 0xff.
func headerCRC(c uint32, h []byte) uint32 {
	lo := binary.LittleEndian.Uint32(h) ^ c
	hi := binary.LittleEndian.Uint32(h[4:]) | 0xff
	c = eight(lo, hi)
	h = h[8:]
	for len(h) >= 8 {
		c = eight(binary.LittleEndian.Uint32(h)^c, binary.LittleEndian.Uint32(h[4:]))
		h = h[8:]
	}
	if len(h) >= 4 {
		w := binary.LittleEndian.Uint32(h) ^ c
		c = slicing[3][w&0xff] ^ slicing[2][w>>8&0xff] ^ slicing[1][w>>16&0xff] ^ slicing[0][w>>24]
	}
	return c
}

func eight(lo, hi uint32) uint32 {
	return slicing[7][lo&0xff] ^ slicing[6][lo>>8&0xff] ^ slicing[5][lo>>16&0xff] ^ slicing[4][lo>>24] ^
		slicing[3][hi&0xff] ^ slicing[2][hi>>8&0xff] ^ slicing[1][hi>>16&0xff] ^ slicing[0][hi>>24]
}

// zeros continues register c over n zero bytes; for building tables.
func zeros(c uint32, n int) uint32 {
	for range n {
		c = c>>8 ^ slicing[0][c&0xff]
	}
	return c
}

// field16 holds what a big-endian 16-bit field contributes to the register
// after further bytes: field16[0] its upper byte, field16[1] its lower.
type field16 [2][256]uint32

func newField16(after int) (f field16) {
	for i := range 256 {
		f[0][i] = zeros(uint32(i), after+2)
		f[1][i] = zeros(uint32(i), after+1)
	}
	return
}

func (f *field16) at(v uint16) uint32 { return f[0][v>>8] ^ f[1][v&0xff] }

// undoTable[n] is x^(-8n) modulo the polynomial: multiplying by it takes n zero
// bytes off a register's history. It covers every packet of path MTU 4096.
var undoTable = func() (t [4352]uint32) {
	r := uint32(1) << 31 // 1 in reflected form
	for i := range t {
		t[i] = r
		for range 8 {
			if r>>31 != 0 {
				r = (r^ieee)<<1 | 1
			} else {
				r <<= 1
			}
		}
	}
	return
}()

// undoZeros is the register that n zero bytes would turn into c.
func undoZeros(c uint32, n int) uint32 {
	for n >= len(undoTable) {
		c = mulmod(c, undoTable[len(undoTable)-1])
		n -= len(undoTable) - 1
	}
	return mulmod(c, undoTable[n])
}

// mulmod is a times b modulo the polynomial, all in reflected form.
func mulmod(a, b uint32) uint32 {
	var p uint32
	for range 32 {
		p ^= b & -(a >> 31)
		a <<= 1
		b = b>>1 ^ ieee&-(b&1)
	}
	return p
}

package vectors

import "io"

// keyFile is a .npy file with one key for each row.
type keyFile struct {
	d      dense
	n      int64
	signed bool
	file   io.Closer
}

// KeyReader gives the keys of a .npy file of u8 or i8, in its order. Keys may come twice.
type KeyReader struct {
	path string
	k    *keyFile
}

// OpenKeys opens a file of keys.
func OpenKeys(path string) (*KeyReader, error) {
	k, err := openKeys(path)
	if err != nil {
		return nil, fail("vectors", path, err)
	}
	return &KeyReader{path, k}, nil
}

// Len is how many keys the file has.
func (r *KeyReader) Len() int64 { return r.k.n }

// Next fills keys and says how many there are; at the end it gives io.EOF.
func (r *KeyReader) Next(keys []uint64) (int, error) {
	n := min(int64(len(keys)), r.k.n-r.k.d.next)
	if n == 0 {
		return 0, io.EOF
	}
	m, err := r.k.read(keys[:n])
	if err != nil {
		return m, fail("vectors", r.path, err)
	}
	return int(n), nil
}

// Close closes the file.
func (r *KeyReader) Close() error { return r.k.close() }

func openKeys(path string) (_ *keyFile, err error) {
	f, size, err := openRegular(path)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close() // it was only read
		}
	}()
	h, err := readNpyHeader(f, size)
	if err != nil {
		return nil, err
	}
	big, signed, err := keyOf(h.descr)
	if err != nil {
		return nil, err
	}
	if len(h.shape) != 1 {
		return nil, at(0).fault(ErrKeys, "the array has %d dimensions, want 1", len(h.shape))
	}
	if err := checkSize(h.data, size, h.shape[0], 8); err != nil {
		return nil, err
	}
	return &keyFile{n: h.shape[0], signed: signed, file: f,
		d: dense{f: f, el: element{size: 8, big: big}, data: h.data, rows: h.shape[0], dim: 1}}, nil
}

func (k *keyFile) offset(row int64) int64 { return k.d.data + 8*row }
func (k *keyFile) close() error           { return k.file.Close() }

// read fills keys and gives len(keys), or, with an error, those before it.
func (k *keyFile) read(keys []uint64) (n int, err error) {
	for n < len(keys) {
		m := min(len(keys)-n, blockBytes/8)
		b, err := k.d.bytes(k.offset(k.d.next), 8*m)
		if err != nil {
			return n, err
		}
		for i := range m {
			v := k.d.el.order().Uint64(b[8*i:])
			if k.signed && int64(v) < 0 {
				return n + i, place{offset: k.offset(k.d.next + int64(i)), row: k.d.next + int64(i), column: -1}.
					fault(ErrKeys, "the key is %d", int64(v))
			}
			keys[n+i] = v
		}
		n += m
		k.d.next += int64(m)
	}
	return n, nil
}

package object

import "fmt"

// openStripe is a stripe file whose trailer was read and found whole.
type openStripe struct {
	storedFile
	meta StripeMeta
	body int                        // bytes that are read in blocks
	tail [Align + trailerBytes]byte // the rest of the data, and more
}

// stripeReader reads a stripe from its begin to its end, in pieces.
type stripeReader struct {
	openStripe
	d    *directory
	m    *mount
	done func()
	file string
	off  int
}

// reader opens a stripe. The file must carry the wanted identity (ErrStale otherwise) and
// exactly n bytes: ErrTooSmall if it has more, ErrWrongLength if it has less. A file that
// is cut or whose trailer is damaged is ErrCorrupt. On an error there is nothing to close.
func (s *Store) reader(dir int, file string, want Identity, n uint64) (_ *stripeReader, err error) {
	d, err := s.dir(dir, file, want.Index)
	if err != nil {
		return nil, err
	}
	r := &stripeReader{d: d, file: file}
	if r.m, r.done, err = d.use(); err != nil {
		return nil, err
	}
	if err := d.openStripe(r.m, &r.openStripe, file, r.m.direct.Load()); err != nil {
		r.done()
		return nil, err
	}
	switch m := &r.meta; {
	case m.Identity != want:
		err = fmt.Errorf("%w: %s is generation %d of %s, asked for generation %d of %s", ErrStale, file, m.Generation, m.Handle, want.Generation, want.Handle)
	case m.Length > n:
		err = fmt.Errorf("%w: stripe %d has %d bytes, the buffer %d", ErrTooSmall, want.Index, m.Length, n)
	case m.Length < n:
		err = fmt.Errorf("%w: stripe %d has %d bytes, asked for %d", ErrWrongLength, want.Index, m.Length, n)
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// next fills dst with the next bytes. All pieces but the last are of whole blocks.
func (r *stripeReader) next(dst []byte) error {
	if err := r.d.at("read"); err != nil {
		return r.d.fail(r.m, "read a stripe from", err, 0)
	}
	n := min(len(dst), max(0, r.body-r.off))
	if err := readBlocks(r.storedFile, dst[:n], int64(r.off)); err != nil {
		return r.d.fail(r.m, "read "+r.file+" from", err, 0)
	}
	r.off += len(dst)
	copy(dst[n:], r.tail[:])
	return nil
}

func (r *stripeReader) close() {
	_ = r.openStripe.close() // it was only read
	r.done()
}

// Read reads a whole stripe of len(dst) bytes and returns what the file says of itself.
// The data's checksum is not computed: the receiver does it, or Verify. What it refuses,
// reader does.
func (s *Store) Read(dir int, file string, want Identity, dst []byte) (StripeMeta, error) {
	r, err := s.reader(dir, file, want, uint64(len(dst)))
	if err != nil {
		return StripeMeta{}, err
	}
	defer r.close()
	return r.meta, r.next(dst)
}

package ctrl

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// boltWait is how long another process that has the file open is waited for: one
// that is just going down, not one that serves.
const boltWait = time.Second

var boltBucket = []byte("railstore.control.v1")

type boltStore struct {
	db   *bbolt.DB
	path string
}

// OpenBoltStore opens or makes a store in one file. Every Apply is on stable
// storage when it returns; a crash at any moment leaves the state before or after
// an Apply, never between.
func OpenBoltStore(path string) (Store, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("control store %s: %w", path, err)
	}
	_, statErr := os.Stat(path)
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: boltWait, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			err = errors.New("another process has it open: is the deployment up already?")
		}
		return nil, fmt.Errorf("control store %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(boltBucket)
		return err
	})
	if err == nil && statErr != nil {
		err = syncDir(filepath.Dir(path)) // else the new file's name may not survive
	}
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("control store %s: %w", path, err)
	}
	return &boltStore{db: db, path: path}, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

func (s *boltStore) wrap(err error) error {
	switch {
	case err == nil, errors.Is(err, ErrChanged):
		return err
	case errors.Is(err, bolterrors.ErrDatabaseNotOpen):
		err = ErrClosed
	}
	return fmt.Errorf("control store %s: %w", s.path, err)
}

func (s *boltStore) Get(key string) (v []byte, found bool, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(boltBucket).Get([]byte(key)); b != nil {
			v, found = bytes.Clone(b), true // b lives in the mapped file
		}
		return nil
	})
	return v, found, s.wrap(err)
}

func (s *boltStore) List(prefix, after string, limit int) (out []Entry, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(boltBucket).Cursor()
		k, v := c.Seek([]byte(max(prefix, after)))
		for ; k != nil && len(out) < limit && bytes.HasPrefix(k, []byte(prefix)); k, v = c.Next() {
			if string(k) > after {
				out = append(out, Entry{string(k), bytes.Clone(v)})
			}
		}
		return nil
	})
	return out, s.wrap(err)
}

func (s *boltStore) Apply(conds []Cond, changes []Change) error {
	return s.wrap(s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(boltBucket)
		for _, c := range conds {
			v := b.Get([]byte(c.Key))
			if !c.holds(v, v != nil) {
				return ErrChanged
			}
		}
		for _, c := range changes {
			var err error
			if c.Value == nil {
				err = b.Delete([]byte(c.Key))
			} else {
				err = b.Put([]byte(c.Key), c.Value)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
}

func (s *boltStore) Close() error { return s.wrap(s.db.Close()) }

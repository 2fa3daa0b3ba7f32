package object

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// knownDirectories is what a shard remembers, elsewhere than in them, of its
// directories. An empty directory is a new one the first time; later it is one
// whose file system is not mounted, and stripes must not go beneath it.
type knownDirectories struct {
	Format      int              `json:"format"`
	Deployment  string           `json:"deployment"`
	Shard       int              `json:"shard"`
	Directories []knownDirectory `json:"directories"`
}

type knownDirectory struct {
	Path string `json:"path"`
	ID   string `json:"id"`
}

const (
	knownFormat = 1
	knownMost   = 4 << 20
)

func decodeKnown(raw []byte, deployment string, shard int) (k knownDirectories, err error) {
	if err := json.Unmarshal(raw, &k); err != nil {
		return k, err
	}
	switch {
	case k.Format != knownFormat:
		return k, fmt.Errorf("format %d, want %d", k.Format, knownFormat)
	case k.Deployment != deployment || k.Shard != shard:
		return k, fmt.Errorf("it is of shard %d of deployment %q", k.Shard, k.Deployment)
	}
	return k, nil
}

// readKnown reads the file, which is not there the first time.
func readKnown(path, deployment string, shard int) (k knownDirectories, err error) {
	none := knownDirectories{Format: knownFormat, Deployment: deployment, Shard: shard}
	if path == "" {
		return none, nil
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, nil
	}
	if err == nil && len(raw) > knownMost {
		err = fmt.Errorf("%d bytes", len(raw))
	}
	if err == nil {
		k, err = decodeKnown(raw, deployment, shard)
	}
	if err != nil {
		return k, fmt.Errorf("%w: %s, which says what the shard's directories were: %w: restore it, or remove it to take them as they are", ErrWrongDir, path, err)
	}
	return k, nil
}

func (k *knownDirectories) id(i int) string {
	if i < len(k.Directories) {
		return k.Directories[i].ID
	}
	return ""
}

// write makes the file durable under its name.
func (k *knownDirectories) write(path string) error {
	raw, err := json.MarshalIndent(k, "", "  ")
	if err != nil {
		return err
	}
	if err := makeFolder(filepath.Dir(path)); err != nil {
		return err
	}
	tmp := path + tmpSuffix
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = both(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return both(d.Sync(), d.Close())
}

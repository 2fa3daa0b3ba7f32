package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"unicode/utf8"
)

// maxSource bounds a recipe: a thousand hosts with eight rails each fit well.
const maxSource = 1 << 20

// maxDepth bounds how deep brackets and operators nest; the parser and the
// evaluator recurse, and a stack that overflows cannot be caught.
const maxDepth = 200

// read returns the text of a recipe, or a plain error for what is not one at all.
func read(path string) ([]byte, error) {
	if path == "" {
		return nil, errors.New("no recipe is named")
	}
	// Without O_NONBLOCK the open of a FIFO waits for its writer, and nothing but
	// the end of the process ends that.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, reason(err))
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, reason(err))
	}
	if st.IsDir() {
		return nil, fmt.Errorf("%s: is a directory; name the recipe's file in it", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSource+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, reason(err))
	}
	if len(b) == 0 && st.Mode()&fs.ModeNamedPipe != 0 {
		return nil, fmt.Errorf("%s: a pipe that nobody writes to", path)
	}
	return b, sane(path, b)
}

// reason takes the path and the call out of an error, whose text begins with the
// path already.
func reason(err error) error {
	var pe *fs.PathError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("no such file%.0w", err)
	case errors.As(err, &pe):
		return pe.Err
	}
	return err
}

// sane refuses what cannot be a recipe, before a parser sees it.
func sane(path string, b []byte) error {
	switch {
	case len(b) > maxSource:
		return fmt.Errorf("%s: larger than %d MiB; a recipe is a text that people write", path, maxSource>>20)
	case len(bytes.TrimSpace(b)) == 0:
		return fmt.Errorf("%s: the file is empty", path)
	case bytes.IndexByte(b, 0) >= 0 || !utf8.Valid(b):
		return fmt.Errorf("%s: not a text file (want CUE in UTF-8)", path)
	}
	return nil
}

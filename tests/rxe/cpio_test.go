package rxe

import (
	"fmt"
	"io"
)

// cpioWriter writes an archive of the kind that the kernel unpacks as its first
// root ("newc"): a header of fourteen numbers in hex, the name and the content,
// each padded to four bytes.
type cpioWriter struct {
	w   io.Writer
	n   int64 // bytes written
	ino int
	err error
}

const (
	cpioDir  = 0o040755
	cpioFile = 0o100644
	cpioExec = 0o100755
	cpioLink = 0o120777
)

func (c *cpioWriter) add(name string, mode int, content []byte) {
	c.ino++
	c.put(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.ino, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name)+1, 0))
	c.put([]byte(name + "\x00"))
	c.pad()
	c.put(content)
	c.pad()
}

func (c *cpioWriter) put(b []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(b)
	c.n, c.err = c.n+int64(n), err
}

func (c *cpioWriter) pad() { c.put(make([]byte, (4-c.n%4)%4)) }

// close writes the entry that ends an archive.
func (c *cpioWriter) close() error {
	c.add("TRAILER!!!", 0, nil)
	return c.err
}

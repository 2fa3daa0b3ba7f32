//go:build cgo && linux

package ibv

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"

	"github.com/railstore/railstore/verbs"
)

// libraries are the loaded ones by file name. A library stays loaded, so its
// table of functions stays too.
var libraries struct {
	sync.Mutex
	m map[string]*C.struct_rs_lib
}

// load gives the functions of one file.
func load(file string) (*C.struct_rs_lib, error) {
	libraries.Lock()
	defer libraries.Unlock()
	if l := libraries.m[file]; l != nil {
		return l, nil
	}
	l := (*C.struct_rs_lib)(C.calloc(1, C.sizeof_struct_rs_lib))
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	if msg := C.rs_load(l, name); msg != nil {
		defer C.free(unsafe.Pointer(msg))
		C.free(unsafe.Pointer(l))
		return nil, fmt.Errorf("%s", C.GoString(msg))
	}
	if libraries.m == nil {
		libraries.m = map[string]*C.struct_rs_lib{}
	}
	libraries.m[file] = l
	return l, nil
}

// library loads what the options, the environment or the system name.
func (d *Driver) library() (*C.struct_rs_lib, error) {
	files, from := []string{"libibverbs.so.1", "libibverbs.so"}, ""
	if f := os.Getenv(EnvLibrary); f != "" {
		files, from = []string{f}, " (from "+EnvLibrary+")"
	}
	if d.opt.Library != "" {
		files, from = []string{d.opt.Library}, ""
	}
	var why []string
	for _, f := range files {
		l, err := load(f)
		if err == nil {
			return l, nil
		}
		why = append(why, err.Error())
	}
	return nil, verbs.Errorf(verbs.ErrNotSupported, "load_library", "",
		"libibverbs cannot be loaded: %s%s; install the packages libibverbs1 and ibverbs-providers (rdma-core)", strings.Join(why, "; "), from)
}

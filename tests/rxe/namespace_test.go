package rxe

import "net"

// inFar tells whether this process is in the namespace far: its one link is
// there.
func inFar() bool {
	_, err := net.InterfaceByName("rf1")
	return err == nil
}

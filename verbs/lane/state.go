package lane

import "fmt"

// State of a client's lane.
type State uint8

const (
	Active State = iota
	Dirty
	Rebuilding
	Dead
)

var stateNames = [...]string{"active", "dirty", "rebuilding", "dead"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("lane state %d", uint8(s))
}

// Flags tell more than the state.
type Flags struct {
	Dirty       bool   // not usable now
	Rebuildable bool   // what made it dirty may be cured by new QPs
	Dead        bool   // for good
	Epoch       uint32 // grows with each rebuild; who waits on an older one fails
}

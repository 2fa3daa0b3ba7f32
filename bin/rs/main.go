// Command rs brings up RailStore deployments and uses them.
//
// Owns: nothing. Imports: bin/rs/cmd.
// Goroutines: none. Locks: none.
package main

import (
	"os"

	"github.com/railstore/railstore/bin/rs/cmd"
)

func main() { os.Exit(cmd.Main()) }

// Package cmd is the rs command: one file per subcommand. It is the only package
// that prints. Results go to standard output, progress and errors to standard
// error; an error has one line that says what, where and why, and a hint line
// (render.go); the exit code says which kind it was (exit.go).
//
// A subcommand parses its flags, calls the package that does the work and shows
// what came back. Drivers are handed to the stages from bin/provider, so
// that no other package has to know which providers exist.
//
// A process with rails, a shard or a client such as read, shows its lanes, faults and
// metrics on an admin socket (observe.go, collector.go, devices.go); the commands
// status, fault and metrics ask there (asked.go).
//
// Owns: flags, help, text and JSON output, signals, metrics.
// Imports: everything below it.
// Goroutines: one per run waits for signals, those of up and logs follow files,
// one tells who waits for what, some send the batches of a table load or are the readers of a benchmark; the function that starts one waits for it. Locks: lineWriter.mu,
// devices.mu, eventCounts.mu, transfer.mu, none of them with another.
package cmd

// Command librs is librailstore.so, the C interface of RailStore: built with
// -buildmode=c-shared (make librs), declared in railstore.h, used from Python by the
// package in python/. docs/c-abi.md has its rules.
//
// A call goes through two thin layers to what it does. shim.c has the functions that the
// library shows; it refuses what is wrong with the arguments, turns structs of older and
// newer callers into those of this release, and notices a fork. export_unsafe.go turns C
// values into Go ones and errors into an rs_error. Behind them is plain Go that knows no
// C: handles, sessions, calls with a deadline and a cancel.
//
// Nothing of Go's is kept by C: handles are numbers, texts are copies, leased memory is
// mapped and not of Go's heap. Nothing of C's is kept by Go when a call has returned. The
// library prints nothing, ends no process and asks for no signal; a panic in a call is an
// error of that call.
//
// Owns: the C interface, its handles, what its errors are called, its Python package.
// Imports: as bin/rs/cmd, bin/provider, bin/exit, cue/deploy, cue/load, pipeline, ctrl and the stages;
// C in files that need it.
// Goroutines: none of its own; a call waits for those that it starts.
// Locks: registry.mu, token.mu, session.mu and session.tables, of which the last is held
// while a session's tables are attached and no other is taken under another.
package main

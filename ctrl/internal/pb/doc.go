// Package pb is generated from control.proto by go generate ./ctrl/...
//
// Owns: the wire form of the control plane. Imports: protobuf and gRPC only.
// Goroutines: none. Locks: none.
package pb

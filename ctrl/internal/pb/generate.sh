#!/bin/sh
# Makes the Go code of control.proto. Needs protoc (package protobuf-compiler);
# the two plugins are tools of go.mod, so their versions are fixed there.
set -eu
cd "$(dirname "$0")"
protoc -I . \
	--plugin=protoc-gen-go="$(go tool -n protoc-gen-go)" \
	--plugin=protoc-gen-go-grpc="$(go tool -n protoc-gen-go-grpc)" \
	--go_out=. --go_opt=paths=source_relative \
	--go-grpc_out=. --go-grpc_opt=paths=source_relative \
	control.proto

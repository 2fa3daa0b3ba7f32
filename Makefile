# RailStore. Every target does its own set-up on a machine with Go, gcc and make;
# none but net and rxe tests needs root, and none needs an RDMA device.

GO ?= go
RS := ./rs
# One slow machine is the yardstick: a test run that takes longer hangs.
TIMEOUT ?= 20m
BENCHTIME ?= 1s
# Where make librs puts the C library.
DIST ?= dist

# Packages whose tests need neither root nor QEMU.
PACKAGES = $$($(GO) list ./... | grep -v '/tests/rxe$$')

.PHONY: all help build librs test test-arm64 test-rxe bench-rxe bench-read-rxe race nocgo check lint generate generated demo bench fuzz clean

all: build

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## ./rs, the command
	$(GO) build -o $(RS) ./bin/rs

# The version script comes from here: cgo does not let a package ask for one, and without it
# Go's own symbols would show, too. cgo's header is for nobody: railstore.h is the interface.
librs: ## $(DIST)/librailstore.so, the C library, with its header and its Python package
	CGO_ENABLED=1 $(GO) build -buildmode=c-shared -o $(DIST)/librailstore.so \
	  -ldflags "-extldflags=-Wl,--version-script=$(CURDIR)/bin/librs/railstore.map,-soname,librailstore.so.1" ./bin/librs
	rm -f $(DIST)/librailstore.h
	ln -sf librailstore.so $(DIST)/librailstore.so.1
	cp bin/librs/railstore.h $(DIST)/
	mkdir -p $(DIST)/python/railstore
	cp bin/librs/python/railstore/*.py bin/librs/python/railstore/py.typed $(DIST)/python/railstore/
	ln -f $(DIST)/librailstore.so $(DIST)/python/railstore/

test: ## every test that needs neither root nor QEMU
	$(GO) test -timeout $(TIMEOUT) $(PACKAGES)

# go test cannot see what the guest runs: a result of its cache would stand for other code.
test-rxe: ## the tests on the kernel's Soft-RoCE, in a guest under QEMU
	RS_REQUIRE=rxe $(GO) test -v -count=1 -timeout 40m ./tests/rxe

bench-rxe: ## the provider ibv beside perftest, and soft beside rxe, in one guest
	RS_REQUIRE=rxe RS_BENCH=1 $(GO) test -v -count=1 -timeout 40m -run 'TestGuestSpeed$$' ./tests/rxe

bench-read-rxe: ## reads over two rails beside one and beside UCX, shaped and not, in one guest
	RS_REQUIRE=rxe RS_BENCH=1 $(GO) test -v -count=1 -timeout 40m -run 'TestGuestReadSpeed$$' ./tests/rxe

test-arm64: ## what is kept on disks, as an arm64 program under qemu-aarch64-static (package qemu-user-static)
	GOARCH=arm64 CGO_ENABLED=0 $(GO) test -count=1 -exec qemu-aarch64-static -run 'Direct|TestStore|TestStripe|TestTier' ./stages/object

race: ## the same under the race detector
	CGO_ENABLED=1 $(GO) test -race -timeout $(TIMEOUT) $(PACKAGES)

nocgo: ## the same without cgo
	CGO_ENABLED=0 $(GO) build ./...
	CGO_ENABLED=0 $(GO) test -timeout $(TIMEOUT) $(PACKAGES)

lint: ## go vet and staticcheck
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

generate: ## write generated files anew (needs protoc)
	$(GO) generate ./...

# Generated files are committed; this proves that they are what their sources say.
generated: generate ## fail when a generated file is not up to date
	@changed=$$(git status --porcelain -- ctrl/internal/pb); \
	if [ -n "$$changed" ]; then echo "generated files are not up to date, commit what make generate writes:"; echo "$$changed"; exit 1; fi

check: lint generated test race nocgo ## all of it

demo: build ## bring a deployment up, store a file, read it over two rails, take it down
	bash tests/demo.sh $(RS)

bench: build ## Go benchmarks of the data path
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -timeout $(TIMEOUT) ./verbs/... ./stages/...

fuzz: ## every fuzz target for FUZZTIME each
	@set -e; for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "$$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $${FUZZTIME:-10s} $$p; \
	  done; done

clean: ## remove what was built
	rm -f $(RS)
	rm -rf dist results

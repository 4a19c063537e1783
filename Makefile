# Kingpost: what there is to run. `make` alone lists it.
#
# Every target first brings what the machine lacks (.ci/bootstrap): Debian packages by name, and the Go that go.mod asks.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The Go that .ci/bootstrap settled on, and nothing that it might bring by itself. mke2fs, sgdisk and fsck live in sbin.
export PATH := $(CURDIR)/.cache/toolchain/bin:$(PATH):/usr/sbin:/sbin
export GOTOOLCHAIN := local
unexport GOROOT

# Which mesh `make raise` raises, from which recipe, and how large its machine is.
MESH ?= home
RECIPE ?= images/vm.yaml
# One end-to-end test by name, each part of it a whole name or an expression: make test RUN=TestRaise/process
RUN ?=
RUN_EXACT = $(if $(RUN),-run '^$(subst /,$$/^,$(RUN))$$')
# Figures by area: make bench ONLY=raise,host
ONLY ?=
# staticcheck is run by version, so it needs no place in go.mod.
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2


.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make test RUN=TestRaise/process     one test"
	@echo "  make bench ONLY=raise,host          some figures"

.PHONY: raise
raise: ready-vm kingpost ## build an image, boot it in QEMU and raise a mesh in it; stays up on a terminal, else powers off
	bin/kingpost build $(RECIPE)
	@go build -trimpath -o bin/ ./qemu-tests/demo
	@bin/demo -kingpost bin/kingpost -image out/$(basename $(notdir $(RECIPE))) -mesh $(MESH)

.PHONY: kingpost
kingpost: ready-build ## build the operator's program, bin/kingpost
	@go build -trimpath -o bin/ ./cmd/kingpost

.PHONY: test
test: ready-test kingpost ## every test that fits 45 minutes on two cores: units, then a spread-out sample in QEMU
	bin/kingpost build images/vm.yaml # first, so that the tests that build find what they share in the cache
	$(if $(RUN),,go test -timeout 40m $$(go list ./... | grep -v /qemu-tests))
	$(if $(RUN),,go test -count 1 -timeout 20m -run '^TestSoak$$' ./internal/host/supervise -soak 1m)
	go test -v -p 1 -count 1 -timeout 60m $(RUN_EXACT) ./qemu-tests -seed 1

.PHONY: test-long
test-long: ready-test kingpost ## everything: every kill of the raise, race detector, a minute of fuzzing per target
	bin/kingpost build images/vm.yaml
	$(if $(RUN),,go test -race -timeout 90m $$(go list ./... | grep -v /qemu-tests))
	$(if $(RUN),,go test -v -count 1 -timeout 60m -run '^TestSoak$$' ./internal/host/supervise -soak 20m)
	$(if $(RUN),,.ci/fuzz 60s)
	go test -v -p 1 -count 1 -timeout 8h $(RUN_EXACT) ./qemu-tests -long

.PHONY: bench
bench: ready-test kingpost ## measure the figures, each beside its peer, and print them one a line
	go run ./qemu-tests/bench -kingpost bin/kingpost $(if $(ONLY),-only $(ONLY))

.PHONY: lint
lint: ready-build ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not gofmt'd:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go run $(STATICCHECK) ./...

.PHONY: clean
clean: ## remove what was built and what was cached
	chmod -R u+w .cache 2>/dev/null || true
	rm -rf out .cache bin

.PHONY: ready-build ready-vm ready-test
ready-build ready-vm ready-test: ready-%:
	@.ci/bootstrap $*

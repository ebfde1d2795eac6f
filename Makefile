# Stayput: targets for people and for CI. `make` alone prints them.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# One set of build flags everywhere, so that Go's build cache serves the product, its tests and the lab alike.
export CGO_ENABLED := 0
export GOFLAGS     := -trimpath -buildvcs=false
export GOTOOLCHAIN := local

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo v0.0.0-dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)

BIN         := bin
BUILDINFO   := github.com/stayput-dev/stayput/cmd/internal/buildinfo
LDFLAGS     := -s -w -X $(BUILDINFO).Version=$(VERSION) -X $(BUILDINFO).Commit=$(COMMIT)
LAB_CACHE   := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/stayput-lab
KUBERNETES  := v1.36.3
export KUBEBUILDER_ASSETS := $(LAB_CACHE)/kubernetes-$(KUBERNETES)

.PHONY: help
help: ## Print this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the three binaries into bin/
	go build -ldflags "$(LDFLAGS)" -o $(BIN)/ ./cmd/stayput ./cmd/stayput-agent ./cmd/stayput-controller

.PHONY: demo
demo: packages build ## Show the main job on two virtual machines: update, fallback, BMC rescue
	go run ./hack/lab demo

.PHONY: test
test: packages check unit e2e ## Run everything that CI runs

.PHONY: check
check: generated lint ## Check generated files, modules and style

.PHONY: unit
unit: packages lab-tools ## Run the tests that boot no operating system
	@# One package more than processors: some wait most of the time, for emulators and for seconds to pass.
	go test -p $$(($$(nproc) + 1)) -timeout 20m ./... -skip '^TestScenarios$$'

.PHONY: e2e
e2e: packages build lab-tools ## Run the end-to-end scenarios on virtual machines; STAYPUT_E2E=REGEXP plays some
	go test -v -count=1 -timeout 85m -run '^TestScenarios$$/($(STAYPUT_E2E))' ./test/e2e

.PHONY: lab
lab: packages build ## Bring the lab up and leave it running
	go run ./hack/lab up --agent $(BIN)/stayput-agent --controller $(BIN)/stayput-controller

.PHONY: lab-ssh
lab-ssh: ## Enter a machine of the running lab: make lab-ssh NODE=node-1
	go run ./hack/lab ssh $(NODE)

.PHONY: lab-down
lab-down: ## Tear the lab down
	go run ./hack/lab down

.PHONY: lint
lint: $(BIN)/golangci-lint ## Run golangci-lint
	$(BIN)/golangci-lint run ./...

.PHONY: generate
generate: $(BIN)/controller-gen ## Write the generated files
	$(BIN)/controller-gen object paths=./api/...
	$(BIN)/controller-gen crd paths=./api/... output:crd:dir=config/crd/bases

.PHONY: generated
generated: generate
	go mod tidy -diff
	@git diff --exit-code -- api config || { echo "generated files differ: run 'make generate' and commit"; exit 1; }

.PHONY: bench
bench: build ## Print figures of docs/measurements.md that need no machine; profiles stay in bin/profiles
	hack/bench/staging.sh
	hack/bench/memory.sh

.PHONY: bench-import
bench-import: ## Measure `stayput image import` of a disk, compressed in several ways, beside the decompressors
	hack/bench/import.sh

.PHONY: bench-agent
bench-agent: packages build lab-tools ## Measure the agent's memory while it stages 2 GiB on a virtual machine
	go run ./hack/lab memory

.PHONY: bench-others
bench-others: ## Measure staging beside RAUC, systemd-sysupdate and casync; needs root and what the script names
	hack/bench/others.sh

.PHONY: fuzz
fuzz: ## Fuzz every parser, FUZZTIME each (default 1m)
	hack/fuzz.sh

.PHONY: bench-delta
bench-delta: ## Measure what updates of real Debian images move, beside other tools; takes long
	go run ./hack/deltabench pairs $(LAB_CACHE)/delta

.PHONY: bmc-soak
bmc-soak: ## Poll 1,000 simulated BMCs, act on 200 at a time for 10 minutes, and print the figures
	go test -v -count=1 -timeout 20m -run '^TestSoak$$' ./bmc/fault -soak 10m -soak-bmcs 1000 -soak-operations 200

.PHONY: interop
interop: ## Test signatures against cosign v2 and v3; the first time builds them, for a quarter of an hour
	go test -v -count=1 -timeout 60m -tags interop ./test/interop

.PHONY: packages
packages:
	@hack/packages.sh

.PHONY: lab-tools
lab-tools:
	go run ./hack/lab tools

.PHONY: clean
clean: ## Remove what was built here; the caches stay
	rm -rf $(BIN)

$(BIN)/golangci-lint $(BIN)/controller-gen $(BIN)/kustomize: hack/tools/go.mod
	cd hack/tools && go build -o ../../$(BIN)/ tool

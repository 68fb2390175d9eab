# `make help` lists the targets. Needed: Go, GNU make, bash; git for the version;
# a C compiler for the race detector (RACE=-race); Docker to load the image. Tools
# are pinned in .ci/*.mod and built by Go the first time they are used.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Everything is built in one way, servers and tools too, so that Go compiles a package once for all of
# them. The module files of the tools have the versions of Kubernetes' modules that go.mod has, for
# the same reason.
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath

VERSION  ?= $(shell git describe --tags --always --dirty --abbrev=12 2>/dev/null || echo dev)
REVISION ?= $(shell git rev-parse --verify --quiet HEAD 2>/dev/null || echo unknown)
# The time of the commit stands for every time in an image or an archive.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
IMAGE    ?= appbridge/appbridge:dev
DOCKER   ?= docker
# RACE=-race: with the race detector, as CI runs the tests.
RACE     ?=
FUZZTIME ?= 30s
TESTFLAGS ?=
# Images and releases are built by this Go on every machine, or their digests would differ.
RELEASE_GO := go1.26.8
comma := ,
PLATFORMS  ?= linux/amd64,linux/arm64,darwin/amd64,darwin/arm64

# What lies below testdata is invisible to ./... and is named.
PACKAGES        := ./... $(addprefix ./testdata/,$(addsuffix /...,testenv demo services chaos histories logsoak bench))
DEPLOY_PACKAGES := $(addprefix ./testdata/,$(addsuffix /...,docs alerts rbac accounts chart))
LINT_PACKAGES   := $(PACKAGES) $(DEPLOY_PACKAGES) $(addprefix ./testdata/,compat/... compose/... knative/...)

# The version is stamped by name, so Go need not ask git, which refuses in a clone
# that another user owns.
go-build = go build -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION) -X main.commit=$(REVISION)"
# `go tool` does not know -trimpath.
tool = go run -modfile=$(CURDIR)/.ci/$(1).mod
golangci-lint = $(call tool,golangci-lint) github.com/golangci/golangci-lint/v2/cmd/golangci-lint
lint = $(golangci-lint) run --config=$(CURDIR)/.golangci.yaml
helm = $(call tool,helm) helm.sh/helm/v3/cmd/helm
dist = GOWORK=off GOTOOLCHAIN=$(RELEASE_GO) go run -C .ci/dist .
dist-flags = --root "$(CURDIR)" --version "$(VERSION)" --revision "$(REVISION)" --created "$(SOURCE_DATE_EPOCH)"
generate = $(call tool,buf) github.com/bufbuild/buf/cmd/buf generate subjects/appv1 --template subjects/appv1/buf.gen.yaml

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: build
build: ## Build bin/appbridge, a static binary
	$(go-build) -o bin/appbridge ./cmd/appbridge

.PHONY: cluster-bin
cluster-bin: ## Build kube-apiserver, kubectl, etcd, nats-server, kwok, the nats CLI, promtool and a jq once, into the user's cache folder
	@bin=$$(testdata/cluster/build.sh); echo "servers and tools: $$bin"

# For CI. The module files of Prometheus name the clients of every cloud, which are left out of it.
.PHONY: modules
modules: ## Download the modules that the servers, the tools and the tests are built from
	go mod download
	@for mod in $(filter-out .ci/compose.mod .ci/prom%.mod,$(wildcard .ci/*.mod)); do go mod download -modfile="$$mod"; done
	@cd testdata/cluster && for mod in *.mod; do go mod download -modfile="$$mod"; done
	@for dir in .ci/dist testdata/contract testdata/examples testdata/cluster/knative; do GOWORK=off go -C "$$dir" mod download; done

.PHONY: ahead
ahead: ## Compile what the later steps of CI need: for the platforms of a release, and Knative
	@for platform in $(subst $(comma), ,$(PLATFORMS)); do \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} go list -export -deps ./cmd/appbridge >/dev/null; \
	done
	$(MAKE) knative-bin

.PHONY: knative-bin
knative-bin: ## Build Knative's reconcilers and webhooks and kube-controller-manager once, into the user's cache folder
	@bin=$$(testdata/cluster/knative/build.sh); echo "Knative: $$bin"

# What the demo builds: an API server and etcd unless KUBEBUILDER_ASSETS names a folder with them,
# and for its guide the nats CLI unless PATH has one.
demo-once    = $(filter-out 0 false,$(DEMO_ONCE))
demo-knative = $(filter 1 true,$(KNATIVE))
demo-bin     = $(strip $(if $(KUBEBUILDER_ASSETS),,etcd kube-apiserver) $(if $(demo-once)$(shell command -v nats),,nats) $(if $(demo-knative),kwok))

# exec: Ctrl-C and SIGTERM reach the demo itself, and make returns its exit code.
.PHONY: demo
demo: build ## Run a local cluster, JetStream and appbridge, and show events (DEMO_ONCE=1: check them and exit; KNATIVE=1: on Knative itself, as where it is built already, KNATIVE=0: without; KUBEBUILDER_ASSETS: use its kube-apiserver and etcd)
	$(if $(demo-bin),@testdata/cluster/build.sh $(demo-bin) >/dev/null)
	$(if $(demo-knative),@testdata/cluster/knative/build.sh >/dev/null)
	@go build -buildvcs=false -o bin/demo ./testdata/demo
	@exec bin/demo --bin bin/appbridge $(if $(demo-once),--once) $(if $(KNATIVE),--knative $(KNATIVE))

.PHONY: recording
recording: cluster-bin ## Record the terminal sessions of README.md and docs/watch.md: docs/demo.* and docs/watch.* (Linux)
	@go run -buildvcs=false ./testdata/demo/recording --out docs

# CHAOS_SCENARIO=random (two bridges, every kind of fault), kills, pauses, outage, mute (faults
# that no part reports), hostile (150 hostile clients against a memory limit), quiet, load, cost
# or churn (measurements);
# bin/chaos --help lists the other variables, as flags.
.PHONY: chaos
chaos: cluster-bin build ## Try to break every promise with faults at random (CHAOS_SEED, CHAOS_SECONDS, CHAOS_SERVERS, CHAOS_SCENARIO)
	@go build -buildvcs=false -o bin/chaos ./testdata/chaos
	@exec bin/chaos --bin bin/appbridge $(CHAOS_ARGS)

# HISTORIES_READER: the command of a reader in any language (testdata/histories/README.md); default: that of
# package appwatch. HISTORIES_ARGS: more flags of bin/histories.
HISTORIES_SEED ?= 1
HISTORIES_COUNT ?= 1000
.PHONY: histories
histories: ## Judge a reader of events by random histories with every fault (HISTORIES_SEED, HISTORIES_COUNT, HISTORIES_READER)
	@go build -buildvcs=false -o bin/histories ./testdata/histories
	bin/histories --seed $(HISTORIES_SEED) --count $(HISTORIES_COUNT) --resume 1s $(HISTORIES_ARGS) $(if $(HISTORIES_READER),-- $(HISTORIES_READER))

# LOG_SOAK_ARGS: more flags of bin/logsoak (bin/logsoak --help), such as --seed 7, --form crio,
# --without bridge,nats.
SECONDS ?= 600
LOG_SOAK_ARGS ?=
.PHONY: log-soak
log-soak: cluster-bin ## Follow logs while all that befalls logs happens, and compare each line (SECONDS, default 600; LOG_SOAK_ARGS)
	@go build -buildvcs=false -o bin/logsoak ./testdata/logsoak
	@exec bin/logsoak --seconds $(SECONDS) $(LOG_SOAK_ARGS)

# Tests wait more than they compute: three packages at a time and six tests of each keep two cores
# busy. The packages that take longest begin first. `make lint` runs vet, and a debugger needs no
# test binary of these (-w).
LONG_PACKAGES := ./bridge/e2e ./logsvc/e2e ./testdata/testenv ./logsvc ./cmd/appbridge ./bridge/appsvc ./bridge/appsvc/e2e ./bridge \
	./subjects/appwatch ./testdata/histories ./logsvc/client ./bridge/projector ./bridge/publisher ./logsvc/pods ./testdata/chaos/audit \
	./bridge/watch
go-test       := go test -vet=off -ldflags=-w -p 3 -parallel 6
# A module of its own: its dependencies validate the contract for machines and serve nothing else.
contract-test := GOWORK=off go test -C testdata/contract -vet=off -count=1 ./...
# Likewise: only an example needs SQLite.
examples-test := GOWORK=off go test -C testdata/examples -vet=off -count=1 -timeout=20m ./...

# `build` is for its packages: several tests build the program, and each would compile them.
.PHONY: test
test: cluster-bin build ## Run the tests of the program: unit, fuzz seeds, conformance, end to end (RACE=-race: with the race detector)
ifneq ($(RACE),)
	@cc=($$(go env CC)); command -v "$$cc" >/dev/null || { echo "make test: the race detector needs a C compiler, and there is no $$cc (Debian: install gcc); without it: make test" >&2; exit 1; }
endif
	$(if $(RACE),CGO_ENABLED=1 )$(go-test) $(RACE) -count=1 -timeout=30m $(TESTFLAGS) $(LONG_PACKAGES) $(PACKAGES)

# These run the built program. The race detector would watch the tests alone.
.PHONY: deploy-test
deploy-test: cluster-bin ## Run the tests of what is installed and read: chart, rights, NATS accounts, alerts, the commands of the documentation, contract, examples, releases
	$(go-test) -count=1 -timeout=30m $(TESTFLAGS) $(DEPLOY_PACKAGES)
	$(contract-test) $(TESTFLAGS)
	$(examples-test) $(TESTFLAGS)
	GOWORK=off GOTOOLCHAIN=$(RELEASE_GO) go test -C .ci/dist -vet=off -count=1 -timeout=30m $(TESTFLAGS) .

# Not part of `make test`: who changes nothing that Knative sees need not build it. One package at a
# time, since each starts a Knative. The program is checked here too: `make lint` would compile all of
# Knative.
.PHONY: knative-test
knative-test: cluster-bin knative-bin ## Run the tests on Knative's own reconcilers and webhooks, and lint the program that runs them
	$(go-test) -p 1 -v -count=1 -timeout=30m $(TESTFLAGS) ./testdata/knative/... ./testdata/testenv/knative/...
	cd testdata/cluster/knative && GOWORK=off $(lint) .

# The versions of nats-server that docs/compatibility.md names: those with a module file, and the one
# that go.mod requires.
COMPAT_SERVERS ?= $(patsubst testdata/cluster/nats-server-%.mod,%,$(wildcard testdata/cluster/nats-server-*.mod)) newest

.PHONY: compat-bin
compat-bin: cluster-bin ## Build the older nats-servers of COMPAT_SERVERS once, into the folder of cluster-bin
	$(if $(filter-out newest,$(COMPAT_SERVERS)),@testdata/cluster/build.sh $(patsubst %,nats-server-%,$(filter-out newest,$(COMPAT_SERVERS))) >/dev/null)

.PHONY: compat-test
compat-test: compat-bin ## Run what depends on the storage of NATS on other versions of nats-server (COMPAT_SERVERS="2.11.0 newest"; default: all that docs/compatibility.md names)
	COMPAT_SERVERS="$(COMPAT_SERVERS)" $(go-test) -count=1 -timeout=30m $(TESTFLAGS) ./testdata/compat/...

# Every package of the program, and what judges it in tests, but those whose tests all need an API
# server. -short skips the other tests that do; `make test` runs them.
UNIT_PACKAGES = $(shell go list $(LONG_PACKAGES) ./... ./testdata/histories/... ./testdata/testenv/corpus \
	| grep -vE '/(e2e|testenv)$$')

# Without an API server they wait still more: twice as many at a time.
.PHONY: test-unit
test-unit: ## Run what needs no API server, of every package of the program, in about a minute (make test runs everything)
	$(go-test) -p 6 -parallel 12 -short $(TESTFLAGS) $(UNIT_PACKAGES)

.PHONY: fuzz
fuzz: ## Fuzz every parser for FUZZTIME (30s) each
	@grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' cmd subjects bridge $(wildcard logsvc) | sort | while IFS=: read -r file func; do \
		echo "== $$(dirname "$$file") $${func#func }"; \
		go test -run='^$$' -fuzz="^$${func#func }\$$" -fuzztime=$(FUZZTIME) "./$$(dirname "$$file")"; \
	done

# BENCH_ARGS: flags of bin/bench (bin/bench --help). BENCH_BASE: a commit, which is built and measured
# in the same rounds. bin/bench.out has the figures of each round.
BENCH_ARGS ?=
BENCH_BASE ?=
benchstat = $(call tool,benchstat) golang.org/x/perf/cmd/benchstat

.PHONY: bench
bench: cluster-bin build ## Measure against a plain informer (BENCH_ARGS="--apps 1000,20000,100000") and against a commit (BENCH_BASE)
	@go build -buildvcs=false -o bin/bench ./testdata/bench
	@rm -rf bin/bench.out && mkdir -p bin/bench.out
ifeq ($(BENCH_BASE),)
	bin/bench --bin bin/appbridge --out bin/bench.out $(BENCH_ARGS)
else
	@tree=$$(mktemp -d) && trap 'git worktree remove --force "$$tree"' EXIT; \
	git worktree add --quiet --detach "$$tree" "$(BENCH_BASE)"; \
	$(MAKE) -C "$$tree" build; \
	bin/bench --bin bin/appbridge --base "$$tree/bin/appbridge" --out bin/bench.out $(BENCH_ARGS)
	$(benchstat) bin/bench.out/base.txt bin/bench.out/new.txt
endif

BENCHTIME ?= 5x

.PHONY: bench-go
bench-go: ## Run the benchmarks of Go: decoding, conversion, encoding, log lines
	go test -run='^$$' -bench=. -benchmem -timeout=30m $(TESTFLAGS) ./...

# Nothing else may run on the machine meanwhile.
.PHONY: bench-logs
bench-logs: cluster-bin ## Measure logs beside kubectl and stern: throughput, processor time, and how long a line takes that is written meanwhile (BENCHTIME, default 5x)
	@bin=$$(testdata/cluster/build.sh stern) && go test -run='^$$' -bench='^Benchmark(Logs|Live)$$' -benchtime=$(BENCHTIME) -timeout=30m $(TESTFLAGS) ./logsvc/e2e -stern "$$bin/stern"

# The wire's names are spelled out in package subjects alone: one place to read, one to change.
.PHONY: lint
lint: ## Run golangci-lint, which has the checks of go vet, and the check for wire names outside package subjects
	$(lint) $(LINT_PACKAGES)
	cd testdata/contract && $(lint) ./...
	cd testdata/examples && $(lint) ./...
	cd .ci/dist && $(lint) .
	@found=$$(grep -rnE --include='*.go' --exclude='*_test.go' '["`][^"`]*(flyte\.apps|\$$KV\.|Flyte-[A-Z]|Nats-[A-Z])' cmd bridge $(wildcard logsvc) \
		| grep -vE '^[^:]+:[0-9]+:[[:space:]]*//' || true); \
	[ -z "$$found" ] || { printf '%s\n' "$$found" "make lint: use the constants and builders of package subjects instead" >&2; exit 1; }

.PHONY: fmt
fmt: ## Format the Go files
	$(golangci-lint) fmt

.PHONY: generate
generate: ## Generate subjects/appv1 and docs/schema from the .proto files
	$(generate)

.PHONY: chart
chart: ## Write deploy/appbridge.yaml, which the chart renders from its defaults
	HELM="$(helm)" deploy/chart/manifest.sh >deploy/appbridge.yaml

.PHONY: verify
verify: ## Check that generated code, the manifest and the module files are up to date, changing none; and the chart
	go mod tidy -diff
	go -C .ci/dist mod tidy -diff
	go -C testdata/contract mod tidy -diff
	go -C testdata/examples mod tidy -diff
	@cd testdata/cluster && for mod in *.mod; do echo "go mod tidy -diff ($$mod)"; go mod tidy -modfile="$$mod" -diff; done
	cd testdata/cluster/knative && GOWORK=off go mod tidy -diff
	@tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT; \
	echo "buf generate (subjects/appv1, docs/schema)"; \
	mkdir "$$tmp/committed" && cp subjects/appv1/*.pb.go "$$tmp/committed"; \
	$(generate) --output "$$tmp"; \
	diff -ru "$$tmp/committed" "$$tmp/subjects/appv1" && diff -ru docs/schema "$$tmp/docs/schema" \
		|| { echo "make verify: subjects/appv1 or docs/schema differs from the .proto files: run make generate" >&2; exit 1; }
	@for values in /dev/null deploy/chart/appbridge/ci/*-values.yaml; do \
		echo "helm lint, helm template ($$values)"; \
		$(helm) lint --strict --quiet --namespace appbridge --values "$$values" deploy/chart/appbridge; \
		$(helm) template appbridge deploy/chart/appbridge --namespace appbridge --values "$$values" >/dev/null; \
	done
	@echo "make chart (deploy/appbridge.yaml)"; \
	HELM="$(helm)" deploy/chart/manifest.sh | diff -u deploy/appbridge.yaml - \
		|| { echo "make verify: deploy/appbridge.yaml differs from the chart: run make chart" >&2; exit 1; }

# The image of `make dist`, for the platform of this machine's engine.
.PHONY: image
image: ## Build the container image for this machine and load it into Docker (IMAGE, default appbridge/appbridge:dev)
	$(dist) image $(dist-flags) --tag "$(IMAGE)" --out "$(CURDIR)/bin/image.tar"
	$(DOCKER) load --input bin/image.tar

# A release names its commit, so it holds nothing that the commit does not.
.PHONY: dist
dist: ## Write the binaries, the image archive, the chart, the manifest and SHA256SUMS into dist/: the same bytes for the same commit
	@[ -z "$$(git status --porcelain 2>/dev/null)" ] || { git status --short >&2; echo "make dist: the tree differs from its commit: commit or stash these files (make build and make image take a tree as it is)" >&2; exit 1; }
	@[ "$(VERSION)" != dev ] && [ "$(REVISION)" != unknown ] && [ "$(SOURCE_DATE_EPOCH)" != 0 ] || { echo "make dist: git names no commit of this folder: set VERSION, REVISION and SOURCE_DATE_EPOCH" >&2; exit 1; }
	@rm -rf dist
	$(dist) release $(dist-flags) --platforms "$(PLATFORMS)" --out "$(CURDIR)/dist"
	@cat dist/SHA256SUMS

.PHONY: compose-test
compose-test: cluster-bin image ## Start both profiles of docker-compose.yaml against a local API server (needs a Docker engine)
	BRIDGE_IMAGE="$(IMAGE)" go test -count=1 -v -timeout=40m ./testdata/compose

.PHONY: clean
clean: ## Remove bin/ and dist/ (the servers of cluster-bin stay in the user's cache folder)
	rm -rf bin dist

# headgate. `make` lists the targets.
export GOTOOLCHAIN := local
export PATH := $(PATH):$(CURDIR)/.tools/bin

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
IMAGE   ?= headgate:$(VERSION)
FUZZTIME ?= 20s
PERF     ?= -out bench/results# options of go run ./bench/perf: -rounds 3 -window 2s -v
RUN  ?= TestFaults|TestChaos
SEED ?= 1
FOR  ?= 10m

.DEFAULT_GOAL := help
.PHONY: help dev tools check vuln test test-clients test-faults fuzz bench replay build image clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

dev: ## run headgate with an embedded store and two simulated engines; needs nothing but Go
	@go build -o bin/headgate ./cmd/headgate
	@trap : INT TERM; bin/headgate dev

tools: ## install what the tests need and is missing: redis-server, a Consul agent, nginx, curl, a C compiler for the race detector
	@.ci/tools

check: ## formatting, vet, staticcheck, and what ARCHITECTURE.md and the script headers promise
	@.ci/check

vuln: ## known vulnerabilities in what headgate calls, where the database can be reached
	@.ci/vulnerabilities

test: tools ## all tests with the race detector
	go build ./...
	@# -parallel: most tests wait for processes and clocks, not for a processor. The replay runs in one goroutine.
	go test -race -shuffle=on -p 2 -parallel 8 -timeout 10m $$(go list ./... | grep -v /bench/replay)
	go test -shuffle=on ./bench/replay
	cd bench/scanners && GOEXPERIMENT=jsonv2 go test ./judge

test-clients: tools ## the public client libraries of Go, Node and Python against two replicas; downloads them once
	@.ci/clients
	go test -tags clients -count=1 -v -timeout 8m ./bench/clients

test-faults: tools ## faults under load, two hours at most: RUN=TestFaults/redis for those of a name, SEED and FOR for TestChaos
	nice go test -tags faults -count=1 -timeout 3h -v -run '$(RUN)' ./bench/faults -seed $(SEED) -chaos $(FOR)

fuzz: ## every fuzz target for FUZZTIME (20s)
	@.ci/fuzz $(FUZZTIME)

bench: bench-small bench-big bench-stream bench-mem bench-redis bench-litellm ## all tables of bench/README.md, beside nginx, nginx with Lua and LiteLLM: about 45 minutes, on a machine that does nothing else

bench-small: bench-tools ## CPU of small requests, in pairs with nginx, nginx with Lua, and the same with Redis
	go run ./bench/perf $(PERF) small

bench-big: bench-tools ## CPU of 100 KB prompts, and how cost grows from 1 KB to 1 MB
	go run ./bench/perf $(PERF) big sizes

bench-stream: bench-tools ## CPU per chunk of a stream, and what 2,000 streams on one core are slowed by
	go run ./bench/perf $(PERF) stream stretch

bench-mem: bench-tools ## memory per open stream, 100 to 9,500 of them; start-up time and idle memory
	go run ./bench/perf $(PERF) mem start

bench-redis: bench-tools ## what a request costs Redis: beside naive scripts, 1 to 16 replicas, 1 to 3 primaries
	go run ./bench/perf $(PERF) redis

bench-litellm: bench-tools ## small requests beside the LiteLLM proxy, which it installs into .tools
	@.ci/litellm
	go run ./bench/perf $(PERF) litellm

bench-scale: tools ## what a request and a living fleet cost Redis (docs/scale.md): some minutes
	go run ./bench/scale

bench-plots: ## draw bench/plots from the last figures; installs matplotlib into .tools
	@.ci/plots

bench-go: tools ## the Go benchmarks
	go test -run '^$$' -bench . -benchmem ./...

.PHONY: bench-small bench-big bench-stream bench-mem bench-redis bench-litellm bench-scale bench-plots bench-go bench-tools
bench-tools: tools
	@.ci/tools-bench

replay: tools ## routing policies compared on recorded traffic, in virtual time; TRACES=dir takes whole traces (bench/replay/README.md)
	go run ./bench/replay $(if $(TRACES),-traces $(TRACES)) $(REPLAY)

build: ## a static binary, bin/headgate
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w -X main.release=$(VERSION)' -o bin/headgate ./cmd/headgate

image: ## the container image
	docker build --build-arg VERSION=$(VERSION) -t $(IMAGE) .

clean: ## remove what was built or downloaded here
	rm -rf bin .tools bench/clients/node/node_modules bench/clients/python/.venv

# Gaia's build. `make` builds into build/, `make test` runs everything that this machine can run.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-builtin-rules

PREFIX  ?= /usr/local
DESTDIR ?=

# A tree without git, a tarball for one, still builds; it just knows less about itself.
VERSION ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null | sed 's/^v//' | grep . || echo 0.0.0-dev)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE    ?= $(shell TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ 2>/dev/null)
LDFLAGS := -s -w -X gaia/internal/version.version=$(VERSION) -X gaia/internal/version.commit=$(COMMIT) -X gaia/internal/version.date=$(DATE)

# Many tests wait for units and processes and not for a processor, hence more in parallel than there are processors.
TESTFLAGS ?= -race -timeout 20m -parallel 8

.PHONY: build man install demo bench test lint clean

# Static and without cgo: one file runs on every distribution.
build:
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o build/ ./cmd/...

# The manual pages, from man/*.md.
man:
	rm -rf build/man && mkdir -p build/man
	for page in man/*.md; do \
	  go tool -modfile=tools/go.mod go-md2man -in "$$page" -out "build/man/$$(basename "$$page" .md)"; done

install: build man
	install -d '$(DESTDIR)$(PREFIX)/bin'
	for program in cmd/*/; do install -m 755 "build/$$(basename "$$program")" '$(DESTDIR)$(PREFIX)/bin/'; done
	for page in build/man/*.[1-8]; do \
	  install -D -m 644 "$$page" '$(DESTDIR)$(PREFIX)/share/man/man'"$${page##*.}/$$(basename "$$page")"; done
	install -D -m 644 LICENSE '$(DESTDIR)$(PREFIX)/share/doc/gaia/LICENSE'

# One ticket from its creation to done, by real units, on a hub, a conductor and a home of its own. AGENT=claude has it done
# by the real program, which needs npm: with your login, or with a scripted model where there is none.
AGENT ?= script
demo:
	packaging/deps.sh
	go run ./internal/demo $(AGENT)

# What Gaia costs, as ratios to floors that are measured in the same run; BENCH names some of the measures. The table is
# printed, and bench.json has the same.
bench:
	packaging/deps.sh
	mkdir -p build
	go run ./internal/bench $(BENCH) >build/bench.json
	mv build/bench.json bench.json

lint: man
	packaging/deps.sh --lint
	mandoc -Tlint -W warning build/man/*.[1-8]
	@unformatted=$$(find . -name '*.go' -not -path './build/*' -print0 | xargs -0 gofmt -l); \
	  [[ -z $$unformatted ]] || { echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	go vet -tags root ./...
	go tool -modfile=tools/go.mod staticcheck ./...
	go tool -modfile=tools/go.mod staticcheck -tags root ./...

# The tests build the same binaries with the same flags, so that what build leaves in the cache is theirs.
test: build
	packaging/deps.sh --test
	TESTFLAGS='$(TESTFLAGS)' packaging/test.sh

clean:
	rm -rf build

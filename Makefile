# Gaia's build. `make` builds into build/, `make test` runs everything that this machine can run.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build
MAKEFLAGS += --no-builtin-rules

PREFIX  ?= /usr/local
DESTDIR ?=
BUILD   ?= build

# A tree without git, a tarball for one, still builds; it just knows less about itself.
VERSION ?= $(shell git describe --tags --match 'v*' --dirty 2>/dev/null | sed 's/^v//' | grep . || echo 0.0.0-dev)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
DATE    ?= $(shell TZ=UTC git log -1 --format=%cd --date=format-local:%Y-%m-%dT%H:%M:%SZ 2>/dev/null)
LDFLAGS := -s -w -X gaia/internal/version.version=$(VERSION) -X gaia/internal/version.commit=$(COMMIT) -X gaia/internal/version.date=$(DATE)

# Many tests wait for units and processes and not for a processor, hence more in parallel than there are processors.
TESTFLAGS ?= -race -timeout 20m -parallel 8

# What runs here is built for here, whatever GOARCH the result is for.
HERE := env -u GOOS -u GOARCH
TOOL := $(HERE) go tool -modfile=tools/go.mod

.PHONY: build man completions install package demo pictures bench test boot-test vm-test lint clean

# Static and without cgo: one file runs on every distribution.
build:
	CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o '$(BUILD)/' ./cmd/...

# The manual pages, from man/*.md.
man:
	rm -rf '$(BUILD)/man' && mkdir -p '$(BUILD)/man'
	for page in man/*.md; do $(TOOL) go-md2man -in "$$page" -out "$(BUILD)/man/$$(basename "$$page" .md)"; done

# For bash, zsh and fish, from the command itself.
completions:
	mkdir -p '$(BUILD)/completions'
	for shell in bash zsh fish; do $(HERE) go run ./cmd/gaia completion "$$shell" >"$(BUILD)/completions/$$shell"; done

# Everything of an installation; a package holds the same. Nothing is enabled or started.
install: build man completions
	install -d '$(DESTDIR)$(PREFIX)/bin'
	for program in cmd/*/; do install -m 755 "$(BUILD)/$$(basename "$$program")" '$(DESTDIR)$(PREFIX)/bin/'; done
	umask 022; $(HERE) go run ./internal/dist -prefix '$(PREFIX)' '$(DESTDIR)/'
	install -D -m 644 internal/log/gaia.catalog '$(DESTDIR)$(PREFIX)/lib/systemd/catalog/gaia.catalog'
	for page in '$(BUILD)'/man/*.[1-8]; do \
	  install -D -m 644 "$$page" '$(DESTDIR)$(PREFIX)/share/man/man'"$${page##*.}/$$(basename "$$page")"; done
	for file in conductor hub machine; do ln -sf "gaia-$$file.toml.5" '$(DESTDIR)$(PREFIX)/share/man/man5/'"$$file.toml.5"; done # as the files are called
	install -D -m 644 '$(BUILD)/completions/bash' '$(DESTDIR)$(PREFIX)/share/bash-completion/completions/gaia'
	install -D -m 644 '$(BUILD)/completions/zsh' '$(DESTDIR)$(PREFIX)/share/zsh/site-functions/_gaia'
	install -D -m 644 '$(BUILD)/completions/fish' '$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/gaia.fish'
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/share/doc/gaia' LICENSE docs/openapi.yaml docs/*.md tmux/gaia.conf
	install -D -m 644 -t '$(DESTDIR)$(PREFIX)/share/doc/gaia/pictures' docs/pictures/*.svg

# build/package/gaia_VERSION_ARCH.deb and gaia-VERSION-1.ARCH.rpm. The same commit gives the same bytes.
package:
	rm -rf '$(BUILD)/package'
	$(MAKE) install DESTDIR='$(BUILD)/package/root' PREFIX=/usr
	packaging/package.sh '$(VERSION)' '$(BUILD)/package'

# One ticket from its creation to done, by real units, on a hub, a conductor and a home of its own. AGENT=claude has it done
# by the real program, which needs npm: with your login, or with a scripted model where there is none.
AGENT ?= script
demo:
	packaging/deps.sh
	go run ./internal/demo $(AGENT)

# The pictures of the guides, taken anew from what the commands really show. It needs npm, for the agent that is seen at work.
pictures:
	packaging/deps.sh
	mkdir -p '$(BUILD)'
	go run ./internal/pictures >'$(BUILD)/pictures.tar'
	tar -x -m --no-same-owner -C docs/pictures -f '$(BUILD)/pictures.tar'

# What Gaia costs, as ratios to floors that are measured in the same run; BENCH names some of the measures. The table is
# printed, and bench.json has the same.
bench:
	packaging/deps.sh
	mkdir -p build
	go run ./internal/bench $(BENCH) >build/bench.json
	mv build/bench.json bench.json

lint: man
	packaging/deps.sh --lint
	mandoc -Tlint -W warning '$(BUILD)'/man/*.[1-8]
	@unformatted=$$(find . -name '*.go' -not -path './build/*' -print0 | xargs -0 gofmt -l); \
	  [[ -z $$unformatted ]] || { echo "not formatted, run gofmt -w on:"; echo "$$unformatted"; exit 1; }
	go vet ./...
	go vet -tags root,boot,vm ./...
	$(TOOL) staticcheck ./...
	$(TOOL) staticcheck -tags root,boot,vm ./...

# The tests build the same binaries with the same flags, so that what build leaves in the cache is theirs.
test: build
	packaging/deps.sh --test
	TESTFLAGS='$(TESTFLAGS)' packaging/test.sh

# A Debian 12, or the one that GAIA_BOOT_RELEASE names, in a container that is booted, loses its power, is upgraded and purged. It says
# what it lacks where it is skipped.
boot-test:
	((EUID != 0)) || packaging/deps.sh --boot
	go test -v -count=1 -tags boot -timeout 20m -run '^TestBoot$$' ./packaging/boot

# The same system as a virtual machine, where limits are real and so is a power cut. Takes a quarter of an hour and more where
# qemu has no help from the processor.
vm-test:
	((EUID != 0)) || packaging/deps.sh --vm
	go test -v -count=1 -tags vm -timeout 90m -run '^TestMachine$$' ./packaging/boot

clean:
	rm -rf '$(BUILD)'

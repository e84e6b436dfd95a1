# make demo shows edm at work; make test tests all of it. make alone lists the rest.

# The version stands in the file VERSION and nowhere else.
VERSION := $(shell cat VERSION)

# A static binary, without the paths of the machine that built it. The flags
# are the same for everything, so that nothing is compiled twice.
export CGO_ENABLED := 0
export GOFLAGS := -trimpath

# What make test meets on the other side: programs that send, and programs that
# read. Debian's names of packages, for CI=true.
PACKAGES := unbound bind9 knot-resolver dnsdist pdns-recursor fstrm-bin \
	postgresql-15 postgresql-client-15 postgresql-15-hll ca-certificates \
	mosquitto mosquitto-clients bind9-dnsutils curl file \
	nix-bin systemd systemd-container
# Installed only where there is no npm: it may have come from elsewhere.
NPM_PACKAGES := nodejs npm

# What make install, dist and deb make. The flags are those of nix/package.nix.
PREFIX ?= /usr/local
ARCHITECTURES := amd64 arm64
RELEASE = go build -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)'
# All times in a package: when the source was last changed.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
FUZZTIME := 10s

.PHONY: help demo build install files dist deb test check format vet staticcheck race fuzz bench pgo packages clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: ## replay a minute of made-up traffic and show what comes of it, in ./demo
	@go run ./bench demo

build: ## build the static binary build/edm
	go build -ldflags '-X main.version=$(VERSION)' -o build/edm .

install: ## build and install, with systemd's files, below DESTDIR and PREFIX=/usr/local
	$(RELEASE) -o build/release/edm .
	install -Dm755 build/release/edm '$(DESTDIR)$(PREFIX)/bin/edm'
	@$(MAKE) --no-print-directory files

files: # what make install installs but the binary
	install -d '$(DESTDIR)$(PREFIX)/lib/systemd/system'
	sed 's|/usr/bin/edm|$(PREFIX)/bin/edm|' contrib/systemd/edm.service > '$(DESTDIR)$(PREFIX)/lib/systemd/system/edm.service'
	chmod 644 '$(DESTDIR)$(PREFIX)/lib/systemd/system/edm.service'
	install -Dm644 -t '$(DESTDIR)$(PREFIX)/lib/systemd/system' contrib/systemd/edm.socket
	install -Dm644 -t '$(DESTDIR)$(PREFIX)/lib/sysusers.d' contrib/sysusers.d/edm.conf
	install -Dm644 -t '$(DESTDIR)$(PREFIX)/lib/tmpfiles.d' contrib/tmpfiles.d/edm.conf
	install -Dm644 -t '$(DESTDIR)$(PREFIX)/share/doc/edm' README.md CHANGELOG.md LICENSE edm.toml.example

# The same source and the same Go make the same bytes, wherever they are built.
dist: ## static binaries for Linux in dist/, with checksums and what is in them
	rm -rf dist && mkdir dist
	@set -eu; for arch in $(ARCHITECTURES); do \
		file=dist/edm-$(VERSION)-linux-$$arch; \
		echo "building $$file"; \
		GOOS=linux GOARCH=$$arch $(RELEASE) -o $$file .; \
		go version -m $$file | sed '1s|^[^:]*|'$${file##*/}'|' > $$file.sbom.txt; \
	done
	cd dist && sha256sum edm-* > SHA256SUMS

deb: dist ## Debian packages of these binaries, in dist/
	@set -eu; for arch in $(ARCHITECTURES); do \
		contrib/debian/build.sh dist/edm-$(VERSION)-linux-$$arch $$arch dist/edm_$(VERSION)_$$arch.deb; done
	cd dist && sha256sum edm-* edm_* > SHA256SUMS

test: ## test everything; with CI=true install what that needs (root, Debian), and allow no skip
	@if [ "$$CI" = true ]; then $(MAKE) --no-print-directory packages; fi
	@{ go test -v -count=1 -timeout 15m ./...; echo "go test ended with $$?"; } | awk -f .ci/summary.awk

check: format vet staticcheck race fuzz ## quick checks: format, vet, staticcheck, race, 10 s of each fuzz target

format:
	@files=$$(gofmt -l .); if [ -n "$$files" ]; then echo "not formatted, run gofmt -w:" $$files; exit 1; fi

vet:
	go vet ./...

staticcheck:
	go run $(STATICCHECK) ./...

race: # the race detector is C
	CGO_ENABLED=1 go test -race -short ./...

fuzz:
	@go test -list '^Fuzz' ./... | awk '/^Fuzz/ { name[n++] = $$1 } /^ok/ { for (i = 0; i < n; i++) print $$2, name[i]; n = 0 }' | \
	while read package name; do \
		echo "fuzzing $$package $$name"; \
		go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) $$package </dev/null || exit 1; \
	done

# The compiler looks at default.pgo to see which calls are worth inlining.
pgo: ## measure again where edm spends its time, for the compiler (default.pgo)
	mkdir -p build
	DURATION=20s PROFILE=build/off.prof go run ./bench
	DURATION=20s MQTT=1 PROFILE=build/on.prof go run ./bench
	go tool pprof -proto build/off.prof build/on.prof > default.pgo

bench: ## measure; RATE=20000, FRAMES, DURATION=10m, NOVEL=0.5, MQTT=1, SYNC=1, SLOW_SYNC=1ms, STALL=15s, CONNS, WORKERS, SESSIONS=0, RUNS, PROFILE=file, EDM=file
	@go run ./bench $(if $(JSON),-json)

# Services stay off: Debian's policy-rc.d says so while they are installed.
packages: # install the Debian packages that make test needs, as root
	@set -eu; \
	wanted="$(PACKAGES)"; \
	command -v npm >/dev/null || wanted="$$wanted $(NPM_PACKAGES)"; \
	missing=; \
	for p in $$wanted; do \
		dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; \
	done; \
	[ -n "$$missing" ] || exit 0; \
	echo "installing$$missing"; \
	if [ ! -e /usr/sbin/policy-rc.d ]; then \
		printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d; \
		chmod 755 /usr/sbin/policy-rc.d; \
		trap 'rm -f /usr/sbin/policy-rc.d' EXIT; \
	fi; \
	export DEBIAN_FRONTEND=noninteractive; \
	apt-get update -qq; \
	apt-get install -qq -y --no-install-recommends $$missing >/dev/null

clean: ## remove what make has made
	rm -rf build demo dist

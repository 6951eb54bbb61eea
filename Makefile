# gputune's build. "make help" lists the targets.
#
# Variables: PREFIX, LIBDIR, MANDIR, SYSCONFDIR and DESTDIR place "make install";
# SLURM=24.11 links that release's shim as the one to load (default: the release
# that is installed); CC, CFLAGS, CPPFLAGS, LDFLAGS and GOFLAGS as usual.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build

PREFIX ?= /usr
LIBDIR ?= $(PREFIX)/lib
PKGLIBDIR := $(LIBDIR)/gputune
SYSCONFDIR ?= /etc
UNITDIR ?= $(PREFIX)/lib/systemd/system
VERSION := 0.1.0
# Of the packages; PACKAGE_RELEASE counts packages of the same version.
PACKAGE_RELEASE ?= 1
# Who answers for the packages that are built here: "Name <address>".
MAINTAINER ?= gputune maintainers <maintainers@gputune.invalid>
# The releases of Slurm for which a shim is built: major.minor as Slurm writes it.
SLURM_RELEASES := 22.05 23.02 23.11 24.05 24.11 25.05 25.11 26.05 26.11

GO ?= go
override GOFLAGS += -buildvcs=false -trimpath
export GOFLAGS
# go-nvml's own header marks functions that it wraps as deprecated.
HARDENING := -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 -fstack-protector-strong
RELRO := -Wl,-z,relro,-z,now,-z,noexecstack
CGO_CFLAGS ?= -O2 -g
override CGO_CFLAGS += -Wno-deprecated-declarations $(HARDENING)
export CGO_CFLAGS
CC ?= cc
CFLAGS ?= -O2 -g
SHIM_CFLAGS := -std=gnu11 -D_GNU_SOURCE -ffile-prefix-map=$(CURDIR)=. -fPIC -fvisibility=hidden -Wall -Wextra $(CFLAGS) $(CPPFLAGS) $(HARDENING) \
	-DGPUTUNE_CORE='"$(PKGLIBDIR)/libgputune.so"' -DGPUTUNE_PROGRAM='"$(PREFIX)/bin/gputune"'
SHIM_LDFLAGS := $(LDFLAGS) -shared $(RELRO) -Wl,-z,nodelete -Wl,--version-script=spank/shim/exports.map

BUILD := build
TOOLS := $(BUILD)/tools
SHIMS := $(SLURM_RELEASES:%=$(BUILD)/lib/slurm-%/spank_gputune.so)
GOLANGCI_LINT_VERSION := v2.12.2
GOFUMPT_VERSION := v0.9.2

# What a bare Debian 12 with Go lacks: to build, to test on loopback, to build
# packages, to judge them, to run the virtual machine.
PACKAGES_build := ca-certificates gcc libc6-dev binutils libslurm-dev
PACKAGES_test := slurmd slurmctld slurm-client munge hwloc-nox numactl procps util-linux bzip2 strace groff-base
PACKAGES_package := dpkg rpm xz-utils
PACKAGES_judge := lintian rpmlint mandoc
PACKAGES_vm := qemu-system-x86 qemu-system-common qemu-utils mmdebstrap debootstrap e2fsprogs seabios fdisk kmod

# Folders with Go packages, and where each program's is.
GO_FOLDERS := agent cmd conf epilog internal prolog spank tests
PROGRAMS := gputune gputuned gputune-prolog gputune-epilog
package_gputune := ./cmd/gputune
package_gputuned := ./agent
package_gputune-prolog := ./prolog
package_gputune-epilog := ./epilog
GO_SOURCES := $(shell find $(GO_FOLDERS) -name '*.go' 2>/dev/null) go.mod
SHIM_SOURCES := $(wildcard spank/shim/*.c)
SHIM_HEADERS := $(wildcard spank/shim/*.h spank/abi/*.h)

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 24

.PHONY: deps
deps: $(BUILD)/deps-build.stamp $(BUILD)/deps-test.stamp $(BUILD)/deps-package.stamp $(BUILD)/deps-judge.stamp $(BUILD)/deps-vm.stamp $(TOOLS)/golangci-lint $(TOOLS)/gofumpt ## install what building and testing need

# Asks dpkg first, so that it needs neither root nor a network once all is there.
# Elsewhere than on Debian, the build goes on with what there is.
$(BUILD)/deps-%.stamp: Makefile
	@mkdir -p $(BUILD)
	@if command -v apt-get >/dev/null; then \
		missing=$$(for p in $(PACKAGES_$*); do \
			dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
		if [ -n "$$missing" ]; then \
			sudo=; [ $$(id -u) = 0 ] || sudo=sudo; \
			echo "installing" $$missing; \
			$$sudo apt-get update -qq; \
			$$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing >$(BUILD)/apt-$*.log 2>&1 || \
				{ tail -n 20 $(BUILD)/apt-$*.log; exit 1; }; \
		fi; \
	else \
		echo "no apt-get here: install what these Debian packages have: $(PACKAGES_$*)"; \
	fi
	@touch $@

$(TOOLS)/golangci-lint: | $(BUILD)/deps-build.stamp
	GOBIN=$(CURDIR)/$(TOOLS) GOFLAGS= $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

$(TOOLS)/gofumpt: | $(BUILD)/deps-build.stamp
	GOBIN=$(CURDIR)/$(TOOLS) GOFLAGS= $(GO) install mvdan.cc/gofumpt@$(GOFUMPT_VERSION)

# Go's own build ID is made of the flags, and of the folder with them.
GO_LDFLAGS := -s -w -buildid=
# Lazily bound: of the functions that go-nvml wraps, a driver has those of its own age.
PROGRAM_LDFLAGS := $(GO_LDFLAGS) -X main.version=$(VERSION) -extldflags=-Wl,-z,relro,-z,lazy
CORE_LDFLAGS := $(GO_LDFLAGS) "-extldflags=$(RELRO) -Wl,--version-script=$(CURDIR)/spank/core/exports.map"

.PHONY: build
build: $(PROGRAMS:%=$(BUILD)/bin/%) $(BUILD)/lib/libgputune.so $(SHIMS) ## build the programs, the core and the shims of all Slurm releases

$(BUILD)/bin/%: $(GO_SOURCES) $(BUILD)/go-flags | $(BUILD)/deps-build.stamp
	$(GO) build -buildmode=pie -ldflags '$(PROGRAM_LDFLAGS)' -o $@ $(package_$*)

$(BUILD)/lib/libgputune.so: $(GO_SOURCES) spank/core/exports.map $(wildcard spank/core/*.[ch]) $(SHIM_HEADERS) $(BUILD)/go-flags | $(BUILD)/deps-build.stamp
	$(GO) build -buildmode=c-shared -o $@ \
		-ldflags '$(CORE_LDFLAGS)' ./spank/core
	@rm -f $(BUILD)/lib/libgputune.h

# 22.05 -> 0x160500: major and minor must be Slurm's own, micro is free.
release_number = $(shell printf '0x%02x%02x00' $$((10#$(word 1,$(subst ., ,$(1))))) $$((10#$(word 2,$(subst ., ,$(1))))))

# What is built with, so that other places make other shims and other flags other files.
$(BUILD)/shim-flags: flags = $(CC) $(SHIM_CFLAGS) $(SHIM_LDFLAGS)
$(BUILD)/go-flags: flags = $(GO) $(GOFLAGS) $(CGO_CFLAGS) $(PROGRAM_LDFLAGS) $(CORE_LDFLAGS)
$(BUILD)/shim-flags $(BUILD)/go-flags: FORCE | $(BUILD)/deps-build.stamp
	@echo '$(subst ','"'"',$(flags))' | cmp -s - $@ || echo '$(subst ','"'"',$(flags))' >$@
FORCE:

$(BUILD)/lib/slurm-%/spank_gputune.so: $(SHIM_SOURCES) $(SHIM_HEADERS) spank/shim/exports.map $(BUILD)/shim-flags | $(BUILD)/deps-build.stamp
	@mkdir -p $(@D)
	@echo "cc $@"
	@$(CC) $(SHIM_CFLAGS) -DGPUTUNE_SLURM_RELEASE=$(call release_number,$*) $(SHIM_SOURCES) $(SHIM_LDFLAGS) -o $@ -ldl -pthread

.PHONY: demo
demo: build $(BUILD)/deps-test.stamp ## a real Slurm on loopback: the same job without and with --gpu-numa-bind
	@$(GO) run ./tests/slurm/demo

.PHONY: test
test: test-unit test-package test-slurm test-vm test-vm-node ## every level that this machine can run

.PHONY: test-unit
test-unit: build $(BUILD)/deps-test.stamp ## placement, parsers, readers, ledger: with the race detector
	$(GO) vet ./...
	$(GO) test -race -short ./agent/... ./cmd/... ./conf/... ./epilog/... ./internal/... ./prolog/... ./spank/... ./tests/machines/... ./tests/fakenvml/...
	$(GO) test ./internal/ledger ./internal/mig ./tests/fakenvml # every kill point, which the race detector has no time for
	$(GO) test -count=1 -v -run 'Published|Lstopo' ./internal/topology/... # says how many files of real machines were read
	$(GO) test -count=1 -timeout 20m -v ./tests/kernel # settings of a node on this machine's kernel, put back whatever happens; as root
	$(GO) test -count=1 -timeout 30m -v ./tests/node # Prolog, Epilog and restore on a made-up node, killed at every system call

.PHONY: test-package
test-package: rpm deb $(BUILD)/deps-test.stamp $(BUILD)/deps-judge.stamp ## rpm and deb: the same bytes twice, installed, upgraded, removed
	$(GO) test -tags packages -count=1 -timeout 20m -v ./tests/package

.PHONY: test-slurm
test-slurm: build $(BUILD)/deps-test.stamp ## the plugin in a real Slurm on loopback
	$(GO) test -tags slurm -count=1 -parallel 4 -timeout 30m -v ./tests/slurm/... # most of the time jobs wait

.PHONY: test-vm
test-vm: build $(BUILD)/deps-test.stamp $(BUILD)/deps-package.stamp $(BUILD)/deps-vm.stamp ## the plugin in a virtual NUMA machine with real cpusets
	$(GO) test -tags vm -count=1 -timeout 40m -skip '^TestNode$$' -v ./tests/vm/...

.PHONY: test-vm-node
test-vm-node: build $(BUILD)/deps-test.stamp $(BUILD)/deps-package.stamp $(BUILD)/deps-vm.stamp ## the same machine as a site's node: package, settings of jobs, agent
	$(GO) test -tags vm -count=1 -timeout 40m -run '^TestNode$$' -v ./tests/vm

.PHONY: test-gpu
test-gpu: build $(BUILD)/deps-test.stamp ## on a machine with NVIDIA GPUs, against nvidia-smi; GPUTUNE_HW_WRITE=1 changes settings, too
	$(GO) test -tags gpu -count=1 -v ./tests/hw/...

# Slurm from Debian's packages, for machines that have neither Slurm nor a network.
PACKAGES_bundle := slurmd slurmctld slurm-client slurm-wlm-basic-plugins libmunge2 libhwloc15 libnuma1 libjson-c5 liblua5.1-0 hwloc-nox libdbus-1-3

.PHONY: hw-bundle
hw-bundle: build $(BUILD)/deps-build.stamp ## build/hw-bundle.tar.gz: gputune, its tests and a Slurm for a bare machine with NVIDIA GPUs
	@rm -rf $(BUILD)/hw-bundle $(BUILD)/hw-debs
	@mkdir -p $(BUILD)/hw-bundle/{bin,lib,slurm,testdata} $(BUILD)/hw-debs
	cd $(BUILD)/hw-debs && apt-get download -qq $(PACKAGES_bundle)
	@for deb in $(BUILD)/hw-debs/*.deb; do dpkg-deb -x $$deb $(BUILD)/hw-bundle/slurm; done
	@rm -rf $(BUILD)/hw-bundle/slurm/usr/share $(BUILD)/hw-bundle/slurm/{etc,lib/systemd,var}
	@for program in $(BUILD)/hw-bundle/slurm/usr/sbin/*-wlm; do ln -s $${program##*/} $${program%-wlm}; done
	cp $(PROGRAMS:%=$(BUILD)/bin/%) $(BUILD)/hw-bundle/bin
	cp -r $(BUILD)/lib/libgputune.so $(BUILD)/lib/slurm-22.05 $(BUILD)/hw-bundle/lib
	cp tests/hw/bundle/start $(BUILD)/hw-bundle
	$(GO) test -c -tags gpu -ldflags '-s -w' -o $(BUILD)/hw-bundle/hw.test ./tests/hw
	$(GO) test -c -ldflags '-s -w' -o $(BUILD)/hw-bundle/fakenvml.test ./tests/fakenvml
	$(CC) -O2 -Wall -Wextra -Werror -o $(BUILD)/hw-bundle/cuda tests/hw/testdata/cuda.c -ldl
	tar -C $(BUILD) -czf $(BUILD)/hw-bundle.tar.gz hw-bundle
	@du -h $(BUILD)/hw-bundle.tar.gz

.PHONY: bench
bench: build $(BUILD)/deps-test.stamp ## step time, memory and planning time, as ratios within one run
	@$(GO) run ./tests/slurm/bench
	@echo "Prolog and Epilog (aims: 10 ms for a job without options, 20 ms of their own for eight GPUs)"
	@$(GO) test -run '^$$' -bench 'NothingAsked|EightGPUs' -benchtime 100x ./tests/node
	@echo "gputuned in a minute in which nothing happens (aims: 0.1 % of a core, 25 MiB)"
	@$(GO) test -run '^$$' -bench AgentIdle -benchtime 1x ./tests/node
	@echo "gputuned following eight workers on eight GPUs (aim: 1 % of a core)"
	@$(GO) test -run '^$$' -bench AgentFollows -benchtime 1x ./tests/node
	@echo "gputuned in a minute in which it samples eight GPUs, and the process that asks the driver (aim: 0.1 % of a core)"
	@$(GO) test -run '^$$' -bench AgentSampling -benchtime 1x ./tests/node
	@echo "planning (aim: 1 ms) and reading a machine"
	@$(GO) test -run '^$$' -bench . -benchmem ./internal/placement ./internal/topology ./internal/topology/source

.PHONY: lint
lint: $(TOOLS)/golangci-lint build ## golangci-lint, and the C compiler's warnings as errors
	GOFLAGS=-buildvcs=false $(TOOLS)/golangci-lint run --build-tags slurm,vm,gpu,packages ./... # -trimpath would have it look for cgo's files of another checkout
	$(CC) $(SHIM_CFLAGS) -Werror -fsyntax-only -DGPUTUNE_SLURM_RELEASE=0x160500 $(SHIM_SOURCES)

.PHONY: fmt
fmt: $(TOOLS)/gofumpt ## format the Go code
	$(TOOLS)/gofumpt -l -w $(GO_FOLDERS)

.PHONY: man
man: ## write the man pages of the commands in docs/man anew, from the texts that --help shows
	$(GO) test -count=1 -run '^TestManPages$$' ./cmd/gputune -update

COMPLETIONS := $(BUILD)/completions/bash/gputune $(BUILD)/completions/zsh/_gputune $(BUILD)/completions/fish/gputune.fish

$(COMPLETIONS): $(BUILD)/bin/gputune
	@mkdir -p $(@D)
	@$< completion $(notdir $(@D)) >$@.new && mv $@.new $@

# Made anew each time, since it depends on where PREFIX is.
$(BUILD)/gputuned.service: conf/gputuned.service FORCE
	@sed 's#@sbindir@#$(PREFIX)/sbin#' $< >$@

# What rpm/stage and rpm/deb want to know.
STAGE := BUILD=$(BUILD) PREFIX=$(PREFIX) LIBDIR=$(LIBDIR) SYSCONFDIR=$(SYSCONFDIR) UNITDIR=$(UNITDIR) DESTDIR=$(DESTDIR)

.PHONY: install
install: build $(COMPLETIONS) $(BUILD)/gputuned.service ## install below $(DESTDIR)$(PREFIX), with the shim for SLURM=<release>
	@list=$$(mktemp); trap 'rm -f $$list' EXIT; $(STAGE) rpm/stage >$$list; \
		install -m 644 $$list $(DESTDIR)$(PKGLIBDIR)/installed
	@$(DESTDIR)$(PKGLIBDIR)/setup link $(DESTDIR:%=--root=%) $(SLURM:%=--release=%)
	@[ -n "$(DESTDIR)" ] || $(PKGLIBDIR)/setup serve
	@echo "add to plugstack.conf:  optional $(PKGLIBDIR)/spank_gputune.so"
	@echo "add to slurm.conf:      what is in $(PREFIX)/share/gputune/slurm.conf"

.PHONY: uninstall
uninstall: ## put back what jobs changed, and remove what install put there, but for changed configuration
	@setup=$(DESTDIR)$(PKGLIBDIR)/setup; \
	if [ ! -e $$setup ]; then :; elif [ -n "$(DESTDIR)" ]; then $$setup unlink --root=$(DESTDIR); else $$setup leave; fi
	@$(STAGE) rpm/stage remove

# The packages are for the usual places, which are compiled into the shims. The
# same commit gives the same bytes, wherever and whenever they are built.
ifndef SOURCE_DATE_EPOCH
SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
endif
export SOURCE_DATE_EPOCH
RPM := $(BUILD)/gputune-$(VERSION)-$(PACKAGE_RELEASE).$(shell uname -m).rpm
DEB := $(BUILD)/gputune_$(VERSION)-$(PACKAGE_RELEASE)_$(shell dpkg --print-architecture 2>/dev/null).deb

.PHONY: usual-places
usual-places:
	@[ "$(PREFIX) $(LIBDIR) $(SYSCONFDIR)" = "/usr /usr/lib /etc" ] || \
		{ echo "packages are for PREFIX=/usr LIBDIR=/usr/lib SYSCONFDIR=/etc"; exit 1; }

.PHONY: rpm
rpm: usual-places build $(COMPLETIONS) $(BUILD)/gputuned.service $(BUILD)/deps-package.stamp ## build/gputune-VERSION.rpm: all of it for sites with rpm
	@rm -rf $(BUILD)/rpm && mkdir -p $(BUILD)/rpm
	@rpmbuild --quiet -bb --build-in-place rpm/gputune.spec --define '_topdir $(CURDIR)/$(BUILD)/rpm' \
		--define 'version_ $(VERSION)' --define 'release_ $(PACKAGE_RELEASE)' --define 'build_ $(BUILD)' \
		--define 'maintainer_ $(MAINTAINER)' --define 'list_ $(CURDIR)/$(BUILD)/rpm/files' >$(BUILD)/rpm/log 2>&1 || { cat $(BUILD)/rpm/log; exit 1; }
	@mv $(BUILD)/rpm/RPMS/*/*.rpm $(RPM)
	@echo $(RPM)

.PHONY: deb
deb: usual-places build $(COMPLETIONS) $(BUILD)/gputuned.service $(BUILD)/deps-package.stamp ## build/gputune_VERSION.deb: the same for Debian and its kind
	@BUILD=$(BUILD) VERSION=$(VERSION)-$(PACKAGE_RELEASE) MAINTAINER='$(MAINTAINER)' rpm/deb $(DEB) >/dev/null
	@echo $(DEB)

.PHONY: clean
clean: ## remove what was built
	rm -rf $(BUILD)

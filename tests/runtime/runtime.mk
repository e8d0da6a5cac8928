# The files of the runtime's tests for the guest: the daemon, the command line, policies good and bad, and the
# program with the tests, in a folder with the same paths as in the guest. Included by the top Makefile.
GUEST_ROOT := $(or $(CARGO_TARGET_DIR),target)/guest
TEST_POLICIES := $(basename $(notdir $(wildcard tests/runtime/policies/*.c)))
RUNTIME_PACKAGES := cprt ppcctl runtime-tests ppc-test-panic
RUNTIME_BUILT := $(or $(CARGO_TARGET_DIR),target)/release

# The benchmark measures the module, in the smallest possible guest.
vm vm-matrix vm-debug vm-shell vm-exec: export GUEST_ROOT := $(abspath $(GUEST_ROOT))
vm vm-matrix vm-debug vm-shell vm-exec: guest-root

# Optimised: the guest is emulated, and tests there limit the CPU time of the runtime.
.PHONY: guest-root
guest-root: rust policies $(TEST_POLICIES:%=$(GUEST_ROOT)/usr/lib/ppc/test/%.so)
	@cargo build --quiet --locked --release $(RUNTIME_PACKAGES:%=--package %)
	@install -D -m 644 -t $(GUEST_ROOT)/usr/lib/ppc $(POLICIES_OUT)/*.so
	@install -D -m 644 $(RUNTIME_BUILT)/libppc_test_panic.so $(GUEST_ROOT)/usr/lib/ppc/test/panic.so
	@install -D -m 755 $(RUNTIME_BUILT)/cprtd $(GUEST_ROOT)/usr/sbin/cprtd
	@install -D -m 755 $(RUNTIME_BUILT)/ppcctl $(GUEST_ROOT)/usr/bin/ppcctl
	@install -D -m 755 $(RUNTIME_BUILT)/cprt-test $(GUEST_ROOT)/bin/cprt-test

# One machine after the other; the clock of each counts instructions.
.PHONY: cprt-bench
cprt-bench: export GUEST_ROOT := $(abspath $(GUEST_ROOT))
cprt-bench: guest-root guest-programs ## what policies that misbehave, and hearing of events, cost readers
	@$(VM) exec --icount $(K) -- cprt-test bench_misbehaviour
	@$(VM) exec --icount $(K) -- cprt-test bench_hearing

# MAIO and a model of the given size in MiB, which four workers share, by mappings or with MAIO_BENCH_BY=read: what
# readers had to read themselves, what the disk delivered, and which bars that reaches. The disk is simulated, in
# memory; in a guest, whose processor is emulated, it takes ten times as long. A call of the policy that takes longer
# than MAIO_BENCH_DEADLINE ends the worker. The kernel reads MAIO_BENCH_READAHEAD KiB ahead. `maio-bench-host` does the
# same on this machine's own kernel, without the module; as root.
MAIO_BENCH_MIB ?= 2048
MAIO_BENCH_BY ?= mmap
MAIO_BENCH_DEADLINE ?= 2s
MAIO_BENCH_READAHEAD ?= 128
MAIO_BENCH = --maio --mib $(MAIO_BENCH_MIB) --by $(MAIO_BENCH_BY) \
	--deadline $(subst $(space),,$(MAIO_BENCH_DEADLINE)) --read-ahead $(MAIO_BENCH_READAHEAD)
.PHONY: maio-bench maio-bench-host
maio-bench: tools ## what MAIO spares the readers of a model, and what it takes
	@cargo build --quiet --locked --release --package ppc-bench
	@MEMORY=$$(($(MAIO_BENCH_MIB) * 3 + 2048)) tools/bench/vm.sh $(K) $(MAIO_BENCH)

maio-bench-host: tools ## the same on this machine
	@cargo build --quiet --locked --release --package ppc-bench
	@$(TOOLS_OUT)/ppc-bench $(MAIO_BENCH) --output $(or $(CARGO_TARGET_DIR),target)/bench

$(GUEST_ROOT)/usr/lib/ppc/test/%.so: tests/runtime/policies/%.c policies/ppc.h tests/runtime/policies/ppc-v1.h
	@install -d $(@D)
	$(CC) -shared -fPIC -Wall -Wextra -Werror -std=c11 -O2 -pthread $(CFLAGS) -Ipolicies -o $@ $<

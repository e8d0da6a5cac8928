# What the runtime's tests take into the guest: the daemon, the command line, policies good and bad, and
# the program with the tests. It is laid out in a folder as it is to be found there. Included by the top
# Makefile.
GUEST_ROOT := $(or $(CARGO_TARGET_DIR),target)/guest
TEST_POLICIES := $(basename $(notdir $(wildcard tests/runtime/policies/*.c)))
RUNTIME_PACKAGES := cprt ppcctl runtime-tests ppc-test-panic
RUNTIME_BUILT := $(or $(CARGO_TARGET_DIR),target)/release

# The benchmark measures the module, in a guest as small as can be.
vm vm-matrix vm-debug vm-shell vm-exec: export GUEST_ROOT := $(abspath $(GUEST_ROOT))
vm vm-matrix vm-debug vm-shell vm-exec: guest-root

# Optimised: the guest is emulated, and how much CPU time the runtime takes is tested there.
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

$(GUEST_ROOT)/usr/lib/ppc/test/%.so: tests/runtime/policies/%.c policies/ppc.h tests/runtime/policies/ppc-v1.h
	@install -d $(@D)
	$(CC) -shared -fPIC -Wall -Wextra -Werror -std=c11 -O2 -pthread $(CFLAGS) -Ipolicies -o $@ $<

# The policies of the tree as shared libraries. Included by the top Makefile.
POLICIES_OUT := $(or $(CARGO_TARGET_DIR),target)/policies
POLICIES_RUST := eager null precache readahead

##@ Policies
.PHONY: policies
policies: policies-rust $(POLICIES_OUT)/shift.so ## build all policies into target/policies/*.so

# ppcctl is built with them, as it contains MAIO as a library, under the same name. Without it, dependencies would have
# other features, and each build of the one would have the other built again.
.PHONY: policies-rust
policies-rust: rust
	@cargo build --quiet --locked --release --package maio --package ppcctl $(POLICIES_RUST:%=--package ppc-%)
	@install -d $(POLICIES_OUT)
	@for policy in $(POLICIES_RUST); do \
		install -m 644 $(or $(CARGO_TARGET_DIR),target)/release/libppc_$$policy.so $(POLICIES_OUT)/$$policy.so; \
	done
	@install -m 644 $(or $(CARGO_TARGET_DIR),target)/release/libmaio.so $(POLICIES_OUT)/maio.so

# The header and a compiler are all that a policy in C takes, and no more is used here.
$(POLICIES_OUT)/shift.so: policies/shift/shift.c policies/ppc.h
	@install -d $(@D)
	$(CC) -shared -fPIC -Wall -Wextra -Werror -std=c11 -O2 -g $(CFLAGS) -Ipolicies -o $@ $<

# The make targets of the VM rig; included by the top Makefile.
#
#   make vm K=6.12 T=pattern [V=1]    tests on one kernel, on ext4 and xfs
#   make vm-matrix [T=pattern]        tests on every kernel of tests/vm/kernels, and a table
#   make vm-debug [T=pattern] [K=...] tests and storms on the debug kernels (each built once, 8 minutes)
#   make vm-shell K=6.12              a shell in a guest
#   make vm-exec K=6.12 EXEC='...'    one command line in a guest
#   make vm-bench [K="6.1 6.12"]      rfs, the lower file system and FUSE side by side, in counted instructions
#   make vm-arm64 [K="6.1 6.12"]      rfs.ko compiled for arm64, for every kernel; not part of make test
#   make vm-arm64-quick               the tests of tests/vm/quick on arm64 with pages of 64 KiB; neither is this
#   make vm-clean                     remove builds and logs from the cache

K ?= 6.12
T ?=
VM := python3 $(dir $(lastword $(MAKEFILE_LIST)))vm.py

# Words such as V=1, STRICT=1 and EXTRA=... given to make reach the rig as environment variables.
export V JOBS EXTRA STRICT

# The one kernel that K is by default is not all that these are for.
NAMED_KERNELS := $(if $(filter file,$(origin K)),,$(K))

quoted = '$(subst ','\'',$(1))'

.PHONY: vm vm-matrix vm-debug vm-shell vm-exec vm-bench vm-arm64 vm-arm64-quick vm-clean deps

vm:
	@$(VM) run $(K) "$(T)"

vm-matrix:
	@$(VM) matrix "$(T)"

vm-debug:
	@$(VM) debug "$(T)" $(NAMED_KERNELS)

vm-shell:
	@$(VM) shell $(K)

vm-exec:
	@$(VM) exec $(K) -- $(call quoted,$(EXEC))

vm-bench:
	@EXTRA= python3 $(dir $(lastword $(filter %vm.mk,$(MAKEFILE_LIST))))bench.py $(NAMED_KERNELS) $(BENCH)

vm-arm64:
	@python3 $(dir $(lastword $(filter %vm.mk,$(MAKEFILE_LIST))))arm64.py $(NAMED_KERNELS)

vm-arm64-quick:
	@$(VM) quick 7.3-arm64

vm-clean:
	@$(VM) clean

deps:
	@sh $(dir $(lastword $(filter %vm.mk,$(MAKEFILE_LIST))))deps.sh

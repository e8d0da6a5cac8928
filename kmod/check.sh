#!/usr/bin/env bash
# All static checks of the module: compiler warnings and sparse for every kernel
# of tests/vm/kernels, checkpatch, and the rules that only compat/ knows kernel versions and that no
# file calls one that calls it.
#
#   kmod/check.sh [KERNEL...]     default: all of them
set -euo pipefail
cd "$(dirname "$0")/.."
tools=$PWD/target/checkpatch failed=0
fail() { echo "kmod/check.sh: $*" >&2 && failed=1; }

# No package of headers has checkpatch; the source of a debug kernel does.
fetch_checkpatch() {
	tarball=$(PYTHONPATH=tests/vm python3 -c 'import debug, kernel
print(debug.fetch_source(kernel.debug_kernels()[0]).tarball)')
	mkdir -p "$tools"
	tar -xf "$tarball" -C "$tools" --strip-components=2 --wildcards '*/scripts/checkpatch.pl' \
		'*/scripts/spelling.txt' '*/scripts/const_structs.checkpatch'
}
# Run in kmod: checkpatch finds .checkpatch.conf there, and recognizes include/uapi by its path.
checkpatch() (cd kmod && "$tools/checkpatch.pl" --terse --no-summary "$@")

echo "== versions only in kmod/compat"
if git grep --untracked -nE 'LINUX_VERSION_CODE|KERNEL_VERSION' -- \
	'kmod/*.[ch]' 'kmod/Kbuild' ':!kmod/compat'; then fail "a version is compat/'s business"; fi

echo "== checkpatch"
[[ -x $tools/checkpatch.pl ]] || fetch_checkpatch
mapfile -t sources < <(cd kmod && git ls-files --cached --others --exclude-standard '*.[ch]' ':!trace.h')
checkpatch --file "${sources[@]}" || fail "checkpatch has remarks"
# The layout of TRACE_EVENT is older than these two rules.
[[ ! -e kmod/trace.h ]] || checkpatch --ignore OPEN_ENDED_LINE,PARENTHESIS_ALIGNMENT --file trace.h ||
	fail "checkpatch has remarks"

# Debian's headers lack the script by which 7.x checks for sparse, so KBUILD_CHECKSRC skips that check. This
# sparse knows neither __typeof_unqual__ nor that __builtin_strlen() of a string is a constant.
command -v sparse >/dev/null || fail "sparse is not installed"
sparse=(C=2 KBUILD_CHECKSRC=2 'CF=-D__CHECK_ENDIAN__ -D__typeof_unqual__=__typeof__ -D__builtin_strlen=-1+sizeof')
kernels=("$@")
[[ $# -gt 0 ]] || mapfile -t kernels < <(python3 tests/vm/vm.py kernels --names)
for kernel in "${kernels[@]}"; do
	echo "== W=1 and sparse: $kernel"
	if said=$(python3 tests/vm/vm.py build --werror "$kernel" W=1 "${sparse[@]}"); then
		echo "$said"
		module=${said%%: built for *}
		kmod/calls.sh "${module%/*}" | tsort >/dev/null || fail "$kernel: files that call each other"
	else
		echo "$said"
		fail "$kernel: not clean"
	fi
done
exit "$failed"

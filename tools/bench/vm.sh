#!/usr/bin/env bash
# ppc-bench on rfs.ko, in a virtual machine: all times but CPU time are ten times as long there, as the processor is
# emulated. Results and their page are copied to target/bench/module.{json,html}.
#
#   tools/bench/vm.sh KERNEL [WORD...]     arguments of ppc-bench, instead of the three cases with mappings kept
#
# The guest has MEMORY MiB of memory, 6144 by default.
set -euo pipefail
cd "$(dirname "$0")/../.."

kernel=$1
shift
kept=full-kept/limited
(($#)) || set -- --rounds 1 --case native/$kept --case maio-first/$kept --case maio-replay/$kept
built=${CARGO_TARGET_DIR:-target}
losetup=$(command -v losetup || command -v /sbin/losetup) || { echo "there is no losetup; install util-linux" >&2; exit 1; }
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
install -D -m 755 -t "$root/guest/usr/bin" "$built/release/ppc-bench"
install -D -m 644 -t "$root/guest/usr/lib/ppc" "$built"/policies/*.so

# The disk is in the guest's memory, and so is its page cache.
bench="/usr/bin/ppc-bench --slower 10 --backend module --name module --output /tmp/bench $*"
command="$bench 2>&1; code=\$?; echo == results; gzip -c /tmp/bench/module.json | base64; exit \$code"
code=0
GUEST_ROOT=$root/guest EXTRA=$(readlink -f "$losetup") \
	python3 tests/vm/vm.py exec --memory "${MEMORY:-6144}" --disk 64 --factor 6 "$kernel" -- "$command" |
	awk -v results="$root/results" '/^== results/ { over = 1 } /^== results|^\/tmp\/bench/ { next }
		over { print > results; next } { print; fflush() }' ||
	code=$?
if [[ -s $root/results ]] && mkdir -p "$built/bench" && base64 -d "$root/results" | gunzip > "$root/module.json"; then
	install -m 644 "$root/module.json" "$built/bench/module.json"
	"$built/release/ppc-bench" report "$built/bench/module.json"
fi
exit "$code"

#!/usr/bin/env bash
# The runtime's tests on this machine's own kernel, on the backends that need no module. They see a file system in
# which the runtime is installed, in their own mount namespace, and leave nothing behind.
#
#   tests/runtime/host.sh [--contained] [PATTERN...]     shell patterns of test names; cprt_on_* unless given
#
# With --contained everything, including the daemon, runs in a container: with namespaces of its own for processes and
# cgroups as well, and as root, as before. Benchmarks whose names match a pattern run, too, and their output is shown.
set -euo pipefail
cd "$(dirname "$0")/../.."

root=${GUEST_ROOT:-${CARGO_TARGET_DIR:-target}/guest}
tests=$root/bin/cprt-test
passed=0 failed=0 skipped=0

finish() {
	echo "$passed passed, $failed failed$( ((skipped)) && echo ", $skipped skipped")"
	((failed == 0)) || exit 1
	exit 0
}

skip_all() {
	for name in $("$tests" --list | cut -d' ' -f1); do
		[[ $name != cprt_on_* ]] || { skipped=$((skipped + 1)) && echo "skip  $name: $1"; }
	done
	finish
}

contained=()
if [[ ${1:-} == --contained ]]; then
	contained=(--pid --fork --kill-child --mount-proc --cgroup)
	shift
fi
[[ -x $tests ]] || { echo "there is no $tests; 'make guest-root' builds it" >&2; exit 1; }
if [[ -z ${HOST_TESTS_INSIDE:-} ]]; then
	((EUID == 0)) || skip_all "mounting is for root"
	HOST_TESTS_INSIDE=1 exec unshare --mount "${contained[@]}" "$0" "$@"
fi

scratch=$(mktemp -d /var/tmp/cprt-host.XXXXXX)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/lower"
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work
mount -t overlay none -o lowerdir=/usr,upperdir=/mnt/upper,workdir=/mnt/work /usr 2> /dev/null ||
	skip_all "no overlay over /usr"
cp -r "$root/usr/." /usr/
mount -t tmpfs none /mnt
export RFS_LOWER=$scratch/lower RFS_FS=host RFS_KERNEL=host

for name in $("$tests" --list | cut -d' ' -f1); do
	wanted=
	for pattern in "${@:-cprt_on_*}"; do
		# shellcheck disable=SC2053 # it is a pattern
		[[ $name == $pattern ]] && wanted=1
	done
	[[ $wanted ]] || continue
	code=0
	said=$(timeout 300 "$tests" "$name" 2>&1) || code=$?
	case $code in
	0) passed=$((passed + 1)) ;;
	77)
		why=${said##*$'\n'} why=${why#"$name: "}
		skipped=$((skipped + 1)) && echo "skip  $name: ${why#skipped: }"
		;;
	*) failed=$((failed + 1)) && printf 'fail  %s\n%s\n' "$name" "$said" ;;
	esac
done
finish

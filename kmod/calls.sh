#!/bin/sh
# Prints pairs of files of a built rfs.ko, of which the first uses functions or data of the second: "dir.o inode.o".
# tsort puts them in order, and fails if two of them use each other, directly or through others.
#
#   kmod/calls.sh FOLDER | tsort     FOLDER: where it was built, kmod after make -C kmod
set -eu
cd "$1"

pairs=$(find . -name '*.o' | sed 's|^\./||' | while read -r object; do
	# An object linked from others, or left by a file that is gone, has no source.
	[ -e "${object%.o}.c" ] || continue
	case $object in *.mod.o) continue ;; esac
	nm -g "$object" | sed -n "s|.* \([A-Z]\) \(.*\)|\1 \2 $object|p"
done | awk '
	$1 == "U" { uses[$3 " " $2] = 1; next }
	{ home[$2] = $3 }
	END {
		for (use in uses) {
			split(use, part)
			if (part[2] in home)
				print part[1], home[part[2]]
		}
	}' | sort -u)
[ -n "$pairs" ] || { echo "calls.sh: nothing is built in $1" >&2 && exit 1; }
echo "$pairs"

#!/usr/bin/env bash
# Builds the Debian packages of the built tree: deb.sh FOLDER [OPTION...]. REVISION counts the packages of one VERSION,
# MAINTAINER answers for them. Fails if lintian, which gets the options, has something against them.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$(realpath -m "$1")
shift
version=${VERSION:?}-${REVISION:?}
source=$out/deb/ppc
# What is built twice from one commit is the same twice.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || stat -c %Y Cargo.toml)}
TREE=$PWD
export TREE SOURCE_DATE_EPOCH
# Variables of the make that calls this script.
unset MAKEFLAGS MFLAGS MAKELEVEL

# A text, as a field of a copyright file has it.
field() {
	sed 's/^[[:space:]]*$/./; s/^[[:space:]]*/ /' "$1"
}

rm -rf "$out/deb" "$out"/*.deb
mkdir -p "$source"
cp -r tools/packages/debian "$source"
cd "$source/debian"
"$TREE/tools/packages/third_party.py" > THIRD-PARTY
sed "s/@MAINTAINER@/$MAINTAINER/" control.in > control
sed -e "/^@NOTE@$/{s/.*//; r /dev/fd/3
}" -e "/^@MIT@$/{s/.*//; r /dev/fd/4
}" copyright.in 3< <(field "$TREE/LICENSE-Linux-syscall-note") 4< <(sed 1,4d "$TREE/LICENSE-MIT" | field /dev/stdin) |
	sed '/^$/{N; /^\n /D}' > copyright
cat > changelog << END
ppc ($version) unstable; urgency=medium

  * What has changed is in CHANGELOG.md.

 -- $MAINTAINER  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
END
rm ./*.in

cd "$source"
# With -d, as cargo need not be Debian's; packages.mk has the rest installed.
log=$out/deb/build.log
dpkg-buildpackage -b -d -us -uc > "$log" 2>&1 || {
	tail -n 40 "$log" >&2
	echo "deb.sh: dpkg-buildpackage failed; all it said is in $log" >&2
	exit 1
}
# These are about packages that are sent to Debian: whom to write to there, and which of its bugs the first one closes.
lintian --fail-on error,warning --show-overrides --tag-display-limit 0 --allow-root "$@" --suppress-tags \
	bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact,initial-upload-closes-no-bugs \
	"$out"/deb/*.changes
mv "$out"/deb/*.deb "$out"

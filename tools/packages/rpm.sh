#!/usr/bin/env bash
# Builds the rpms of the built tree: rpm.sh FOLDER, with VERSION and REVISION as deb.sh.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=$(realpath -m "$1")
top=$out/rpm
# Variables of the make that calls this script.
unset MAKEFLAGS MFLAGS MAKELEVEL
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH

rm -rf "$top" "$out"/*.rpm
mkdir -p "$top"
tools/packages/third_party.py > "$top/THIRD-PARTY"
rpmbuild -bb --define "_topdir $top" --define "tree $PWD" --define "third_party $top/THIRD-PARTY" \
	--define "version_of_tree $VERSION" --define "revision $REVISION" --define '_build_id_links none' \
	--define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
	tools/packages/ppc.spec > "$top/build.log" 2>&1 || {
	tail -n 40 "$top/build.log" >&2
	echo "rpm.sh: rpmbuild failed; all it said is in $top/build.log" >&2
	exit 1
}
mv "$top"/RPMS/*/*.rpm "$out"

#!/bin/sh
# Installs missing packages: those named, or those of tests/vm/packages. Without root, prints how to install them.
set -eu

# The unquoted variables are split into words on purpose.
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(sed 's/#.*//' "$(dirname "$0")/packages")
if ! command -v dpkg-query > /dev/null; then
	echo "deps: no Debian: what is in these packages has to be there: $*"
	exit 0
fi
missing=
for package; do
	status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
	[ "$status" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
	echo "deps: all packages are installed"
	exit 0
fi
command="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" -ne 0 ]; then
	echo "deps: run as root: $command"
	exit 1
fi
apt-get -q update
exec $command

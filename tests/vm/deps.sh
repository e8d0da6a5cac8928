#!/bin/sh
# Installs the packages of tests/vm/packages that are missing; without root, says how to.
set -eu

list=$(dirname "$0")/packages
missing=
for package in $(sed 's/#.*//' "$list"); do
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

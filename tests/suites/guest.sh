#!/bin/sh
# In the guest: suites of others, on a mirror of the disk under test. Prints "pass  NAME" or "fail  NAME" for each part.
set -u
lower=/lower/suites mirror=/mnt/mirror status=0
mkdir -p "$lower" "$mirror"

# Runs a command and prints how it ended; prints its output if it failed.
check() {
	name=$1
	shift
	if "$@" > /tmp/said 2>&1; then
		echo "pass  $name"
	else
		echo "fail  $name"
		tail -n 60 /tmp/said
		status=1
	fi
}

fails() {
	# shellcheck disable=SC2317 # check() calls it
	! "$@"
}

show() {
	mount -t rfs "$1" "$mirror"
}

# Each way to read, of data that has its own check sums, and of data in which two bytes are wrong
fio_suite() {
	mkdir "$lower/fio"
	set -- --size=32m --bs=64k --verify=crc32c --thread
	fio --name=write --filename="$lower/fio/f" --rw=write --do_verify=0 --ioengine=psync "$@" > /tmp/said 2>&1
	cp "$lower/fio/f" "$lower/fio/wrong"
	printf 'xx' | dd of="$lower/fio/wrong" bs=1 seek=1000000 conv=notrunc 2> /dev/null
	set -- --readonly --rw=randread --verify_fatal=1 --verify_state_load=0 "$@"
	show "$lower/fio"
	for engine in psync pvsync2 mmap splice libaio io_uring posixaio; do
		for how in --direct=0 --direct=1 "--direct=0 --numjobs=4" "--direct=0 --invalidate=0"; do
			case "$engine $how" in
			*mmap*=1* | *splice*=1*) continue ;;
			esac
			# The words of "how" are options.
			# shellcheck disable=SC2086
			check "fio $engine $how" fio --name=read --filename="$mirror/f" --ioengine=$engine $how "$@"
		done
		check "fio $engine finds what is wrong" \
			fails fio --name=read --filename="$mirror/wrong" --ioengine="$engine" "$@"
	done
	umount "$mirror"
}

run_python() {
	PYTHONHOME=$mirror/usr TMPDIR=/tmp HOME=/tmp "$mirror/usr/bin/python3.11" "$@"
}

# Runs one of Python's tests; leaves the names of what fails in a file, or the end of the output if it ends early.
run_part() {
	run_python -m test --verbose --timeout 1200 "test_$1" > /tmp/said 2>&1
	ended=$?
	sed -n 's/^\(ERROR\|FAIL\): //p' /tmp/said | sort > "$2"
	[ "$ended" -eq 0 ] || [ -s "$2" ] || tail -n 20 /tmp/said > "$2"
}

# What fails has to fail in the same way on a read-only bind mount: in the guest there is no compiler, for one
python_part() {
	show "$lower/python"
	run_part "$1" /tmp/mirror.failed
	umount "$mirror"
	if [ -s /tmp/mirror.failed ]; then
		mount -o bind "$lower/python" "$mirror"
		mount -o remount,bind,ro "$mirror"
		run_part "$1" /tmp/bound.failed
		umount "$mirror"
		if ! cmp -s /tmp/mirror.failed /tmp/bound.failed; then
			echo "fail  python test_$1"
			diff /tmp/bound.failed /tmp/mirror.failed
			status=1
			return
		fi
	fi
	echo "pass  python test_$1: $(wc -l < /tmp/mirror.failed) fail below, too"
}

# All of Python comes from the mirror; its tests write elsewhere
python_suite() {
	copy_python
	cd /tmp || exit 1
	for part in import zipimport mmap ctypes pkgutil zipfile; do
		python_part "$part"
	done
	cd /
}

copy_python() {
	[ -e "$lower/python" ] || cp -r /opt/python "$lower/python"
}

# Each file of packages by the hash that its author has given
wheels_suite() {
	copy_python
	show "$lower/python"
	for wheel in /opt/wheels/*.whl; do
		run_python -m zipfile -e "$wheel" "$lower/python/wheels"
	done
	check "hashes of wheels" run_python /opt/records.py "$mirror/wheels"
	printf 'x' >> "$lower/python/wheels/yaml/__init__.py"
	check "hashes of wheels tell what is wrong" fails run_python /opt/records.py "$mirror/wheels"
	umount "$mirror"
}

fsx_suite() {
	check "fsx below while pages are loaded and dropped" rfs-test storm_fsx
	tail -n 1 /tmp/said
}

# Calls that have to fail with EROFS. Where pjdfstest makes its file system read-only, a mirror is mounted over it.
pjdfstest_suite() {
	mkdir -p /tmp/shim "$lower/pjdfstest"
	cat > /tmp/shim/mount <<- 'END'
		#!/bin/sh
		case "$2" in
		remount,ro) exec /bin/mount -t rfs "$3" "$3" ;;
		remount,rw) exec /bin/umount "$3" ;;
		*) exit 1 ;;
		esac
	END
	chmod 755 /tmp/shim/mount
	echo "tests:x:1001:1001::/tmp:/bin/sh" >> /etc/passwd
	echo "tests:x:1001:" >> /etc/group
	PATH=/tmp/shim:$PATH pjdfstest -c /opt/pjdfstest.toml -p "$lower/pjdfstest" erofs > /tmp/pjdfstest 2>&1
	ended=$?
	sed -n 's/^\([a-z_:]*erofs[a-z_]*\)  *ok$/pass  pjdfstest \1/p' /tmp/pjdfstest
	check "pjdfstest: $(tail -n 1 /tmp/pjdfstest)" test "$ended" -eq 0
	[ "$ended" -eq 0 ] || cat /tmp/pjdfstest
}

for suite; do
	case $suite in
	fio) fio_suite ;;
	python) python_suite ;;
	wheels) wheels_suite ;;
	fsx) fsx_suite ;;
	pjdfstest) pjdfstest_suite ;;
	esac
done
exit "$status"

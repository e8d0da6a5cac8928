#!/bin/bash
# What an operator does with the packages, in a guest that had none of them: guest.sh runs the steps of this boot and
# prints a line for each; guest.sh STEP runs one. /run/given has the packages, their successors, a model and its reader.
set -euo pipefail
shopt -s inherit_errexit

given=/run/given
kept=/var/tmp/packages-test
# The service reads this much.
all=$((48 << 20))

# As `!`, but a shell that ends at the first failure ends here, too.
not() {
	if "$@"; then return 1; fi
}

# What is not called left behind: logs, caches, what the package manager and systemd keep of all that ever was there.
files() {
	find / -xdev \( -path /tmp -o -path /var/tmp -o -path /var/log -o -path /var/cache -o -path /var/lib/dpkg -o \
		-path /var/lib/systemd -o -path /proc -o -path /sys -o -path /dev \) -prune -o -print
	# The terminal's own file is created whenever it looks at the machine's name again.
	find /run -xdev \( -path /run/systemd -o -path /run/udev -o -path /run/log -o -path /run/given \
		-o -path /run/agetty.reload \) -prune -o -print
}

# Starts the service with no page of the model in memory; prints what it had to read from the disk itself, in percent.
cold_start() {
	sync
	echo 3 > /proc/sys/vm/drop_caches
	rm -f /run/model.read
	systemctl start "model@$1"
	local read
	read=$(cat /run/model.read)
	echo "the service at $1 read $read of $all bytes from the disk itself" >&2
	echo $((read * 100 / all))
}

installs() {
	[[ $(dpkg-query -W 'ppc' 'rfs-dkms' 'libppc-dev' 2> /dev/null | wc -l) == 0 ]]
	mkdir -p "$kept"
	files | sort > "$kept/before"
	getent group | sort > "$kept/groups"
	dpkg -i $given/packages/*.deb
	systemctl is-active cprtd
	systemctl is-enabled cprtd
	[[ $(stat -c %G /run/cprt/control.sock) == ppc ]]
	[[ $(dkms status rfs) == *"$(uname -r)"*installed* ]]
	[[ $(modinfo -F filename rfs) == /lib/modules/*/updates/dkms/rfs.ko ]]
}

has_what_policies_are_written_with() {
	# Its flags are words.
	# shellcheck disable=SC2046
	cc -shared -fPIC -Wall -Werror $(pkg-config --cflags --libs ppc) -o /tmp/shift.so $given/shift.c
	printf '#include <linux/rfs.h>\nint version = RFS_VERSION_MAJOR;\n' | cc -c -x c -o /dev/null -
	ppcctl policy inspect /tmp/shift.so || [[ $? == 4 ]]
	rm /tmp/shift.so
}

has_manuals_and_completions() {
	local page
	for page in ppcctl.1 ppcctl-run.1 cprtd.8 mount.rfs.8; do
		zcat /usr/share/man/man?/$page.gz | grep -q '^\.TH'
	done
	bash -n /usr/share/bash-completion/completions/ppcctl
}

# An operator's only hand: where the model is, and who loads it.
is_set_up() {
	cp -r $given/model /srv/model
	mkdir -p /mnt/model /mnt/other
	echo '/srv/model /mnt/model rfs defaults 0 0' >> /etc/fstab
	cc -O2 -o /usr/local/bin/reader $given/reader.c
	cp $given/model@.service /etc/systemd/system
	systemctl daemon-reload
	[[ ! -e /sys/module/rfs ]]
	mount /mnt/model
	[[ -e /sys/module/rfs && $(findmnt -n -o FSTYPE /mnt/model) == rfs ]]
	(($(cold_start model) > 90))
	printf '%s\n' '[mount."/mnt/model"]' 'policy = "/usr/lib/ppc/maio.so"' 'settings = { service = "model=test" }' \
		>> /etc/cprt.toml
	systemctl restart cprtd
	ppcctl status
}

is_recorded() {
	cold_start model
	are_kept 1
}

templates() {
	find /var/lib/ppc/templates -name '*.maio' | sort
}

# Waits until the loads so far are over, which they are once nothing is read for a while, and have left templates.
are_kept() {
	local i
	for ((i = 0; i < 60; i++)); do
		(($(templates | wc -l) < $1)) || return 0
		sleep 1
	done
	return 1
}

# After a boot that no hand has touched.
is_there_after_a_boot() {
	systemctl is-active cprtd
	[[ -e /sys/module/rfs && $(findmnt -n -o FSTYPE /mnt/model) == rfs ]]
	ppcctl status | grep -q /mnt/model
}

is_accelerated() {
	(($(cold_start model) < 20))
}

# A registration at run time is what an upgrade might forget.
is_registered_by_command() {
	mount -t rfs /srv/model /mnt/other
	ppcctl reg-policy /mnt/other maio --service model=other
	cold_start other
	are_kept 2
	(($(cold_start other) < 20))
}

# Reads both models again and again; each sum of a file is the right one.
read_on() {
	while [[ ! -e /run/enough ]]; do
		sha256sum /mnt/model/*.safetensors /mnt/other/*.safetensors
		echo 1 > /proc/sys/vm/drop_caches
		# The guest has two emulated processors, on which the module is built meanwhile.
		sleep 1
	done > /run/sums
	(cd /srv/model && sha256sum -- *.safetensors) | sort > /run/expected
	sed 's|/mnt/[a-z]*/||' /run/sums | sort -u | diff /run/expected -
}

is_upgraded_under_load() {
	local before main reader rounds
	before=$(templates)
	main=$(systemctl show -P MainPID cprtd)
	read_on &
	reader=$!
	dpkg -i $given/next/*.deb
	rounds=$(wc -l < /run/sums)
	touch /run/enough
	wait $reader
	((rounds > 8))
	[[ $(dpkg-query -W -f '${Version}' ppc) == *.1-1 ]]
	[[ $(systemctl show -P MainPID cprtd) != "$main" && $(systemctl is-active cprtd) == active ]]
	[[ $(dkms status rfs) == rfs/*.1,*"$(uname -r)"*installed* ]]
	[[ $(dkms status rfs | wc -l) == 1 ]]
	grep -q '^\[mount."/mnt/model"\]' /etc/cprt.toml
	ppcctl status
	(($(ppcctl status | grep -c '/usr/lib/ppc/maio.so\|maio') >= 2))
	# None is lost; the readers have meanwhile changed their content, and made others.
	[[ -z $(comm -23 <(echo "$before") <(templates)) ]]
}

is_accelerated_after_the_upgrade() {
	# The readers' loads are over 10 s after their last read; a start before that would be a part of them.
	sleep 12
	(($(cold_start model) < 20))
	(($(cold_start other) < 20))
}

runs_again() {
	local i
	for ((i = 0; i < 60; i++)); do
		if [[ $(systemctl show -P MainPID cprtd) != "$1" && $(systemctl is-active cprtd) == active ]]; then
			return 0
		fi
		sleep 1
	done
	return 1
}

# Killed, told to reload and stopped, each time while models are read through it.
comes_back_under_load() {
	local main reader begun i
	rm -f /run/enough
	read_on &
	reader=$!
	sleep 5
	main=$(systemctl show -P MainPID cprtd)
	systemctl kill --signal=KILL --kill-whom=main cprtd
	runs_again "$main"
	(($(systemctl show -P NRestarts cprtd) == 1))
	(($(ppcctl status | grep -c maio) >= 2))

	main=$(systemctl show -P MainPID cprtd)
	printf '%s\n' '[service.reloaded]' 'exe = "/usr/local/bin/reader"' >> /etc/cprt.toml
	systemctl reload cprtd
	for ((i = 0; i < 30; i++)); do
		[[ $(ppcctl status) != *reloaded* ]] || break
		sleep 1
	done
	[[ $(ppcctl status) == *reloaded* ]]
	[[ $(systemctl show -P MainPID cprtd) == "$main" ]]

	begun=$(date +%s)
	systemctl stop cprtd
	(($(date +%s) - begun <= 5))
	[[ -z $(find /proc -maxdepth 2 -name exe -lname '/usr/sbin/cprtd*' 2> /dev/null) ]]
	systemctl start cprtd
	ppcctl status | grep -q /mnt/model
	touch /run/enough
	wait $reader
	(($(wc -l < /run/sums) > 8))
	sed -i '/^\[service.reloaded\]/,$d' /etc/cprt.toml
	systemctl reload cprtd
	rm /run/enough
}

is_removed_with_mounts_in_use() {
	local main
	main=$(systemctl show -P MainPID cprtd)
	dpkg -r ppc rfs-dkms libppc-dev
	[[ ! -e /proc/$main && ! -e /run/cprt ]]
	not systemctl is-active cprtd
	# What is mounted is read on, natively.
	(($(cold_start other) > 90))
	# Settings and what was learned are for the next installation.
	[[ -e /etc/cprt.toml && -n $(templates) ]]
	[[ ! -e $(modinfo -F filename rfs 2> /dev/null || echo /none) ]]
	umount /mnt/model /mnt/other
	modprobe -r rfs 2> /dev/null || rmmod rfs
}

is_purged() {
	dpkg -P ppc rfs-dkms libppc-dev
	rm -r /srv/model /mnt/model /mnt/other /usr/local/bin/reader /etc/systemd/system/model@.service
	rm -f /run/model.read /run/enough /run/sums /run/expected
	systemctl daemon-reload
	files | sort | diff "$kept/before" -
	getent group | sort | diff "$kept/groups" -
	[[ ! -e /sys/module/rfs ]]
	[[ $(systemctl list-unit-files) != *cprtd* ]]
	[[ -z $(systemctl --failed --plain --no-legend) ]]
}

# The lines of "On a fleet", as they stand, where the packages are as after 'make packages'.
does_what_the_readme_has() {
	local tree=/var/tmp/readme lines=/var/tmp/readme.sh
	mkdir -p $tree/target
	ln -sfn $given/packages $tree/target/packages
	cp -r $given/model /srv/model
	# The quotes of Markdown, not of the shell.
	# shellcheck disable=SC2016
	sed -n '/^\*\*On a fleet\*\*/,/^```$/p' $given/README.md | sed '1,/^```sh$/d; /^```$/d' > $lines
	[[ $(wc -l < $lines) == 10 ]]
	(cd $tree && bash -euxo pipefail $lines)
	[[ ! -e /usr/bin/ppcctl && ! -e /etc/cprt.toml && ! -e /var/lib/ppc ]]
	rm -r /srv/model $tree $lines
}

# On a system of another kind; what is required there is called otherwise here.
rpms_install_and_leave() {
	rpm --initdb
	files | sort > "$kept/before-rpms"
	rpm -i --nodeps $given/rpms/*.rpm
	[[ $(systemctl is-enabled cprtd) == enabled ]]
	systemctl start cprtd
	ppcctl status
	[[ $(stat -c %G /run/cprt/control.sock) == ppc ]]
	[[ $(dkms status rfs) == *"$(uname -r)"*installed* ]]
	rpm -V --nodeps ppc rfs-dkms ppc-devel
	rpm -e --nodeps ppc rfs-dkms ppc-devel
	not systemctl is-active cprtd
	# There is no purge: what was learned and the group stay.
	rmdir /var/lib/cprt
	files | sort | diff "$kept/before-rpms" -
	[[ -z $(dkms status rfs) ]]
}

steps() {
	if [[ ! -e $kept ]]; then
		echo installs has_what_policies_are_written_with has_manuals_and_completions is_set_up is_recorded
	else
		echo is_there_after_a_boot is_accelerated is_registered_by_command is_upgraded_under_load \
			is_accelerated_after_the_upgrade comes_back_under_load is_removed_with_mounts_in_use is_purged \
			does_what_the_readme_has rpms_install_and_leave
	fi
}

if (($#)); then
	"$1"
	exit
fi
for step in $(steps); do
	begin=$SECONDS
	# A shell of its own, in which a command that fails ends the step.
	if bash -x "$0" "$step" > /run/step.log 2>&1; then
		echo "pass packages_$step $((SECONDS - begin)) s"
		grep '^the service at' /run/step.log || true
	else
		echo "fail packages_$step"
		tail -n 40 /run/step.log
		journalctl --no-pager -n 40 -u cprtd -o cat | cut -c 1-300
		break
	fi
done

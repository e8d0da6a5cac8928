// SPDX-License-Identifier: GPL-2.0
/* The Rust side of the protocol, and the runtime's daemon, against the module, where the guest has them. */
#include "t.h"
#include <dirent.h>

#define DAEMON	"/usr/sbin/cprtd"
#define PROBE	"/usr/lib/ppc/test/probe.so"
#define FOLDER	"/tmp/gone"
#define SOCKET	FOLDER "/control.sock"
#define PROMPT	(5ULL * 1000 * 1000 * 1000)

TEST(rust_smoke, 60)
{
	if (absent("/bin/rfs-smoke"))
		SKIP("rfs-smoke was not brought along: make guest-programs");
	mk_file(lo("f"), 1, MIB);
	setup();
	CHECK_EQ(t_run("/bin/rfs-smoke", up("f"), NULL), 0);
}

static pid_t start_daemon(void)
{
	pid_t pid;
	int i;

	CHECK_OK(mkdir(FOLDER, 0700));
	defer_rmtree(FOLDER);
	put_str(FOLDER "/cprt.toml", "socket = \"" SOCKET "\"\nstate = \"" FOLDER "/state.json\"\n");
	pid = t_fork();
	if (!pid) {
		execl(DAEMON, DAEMON, "--config", FOLDER "/cprt.toml", NULL);
		_exit(127);
	}
	for (i = 0; absent(SOCKET); i++) {
		CHECK(i < 1000);
		sleep_ms(20);
	}
	return pid;
}

static void must_ask(const char *word, const char *mnt, const char *third, const char *fourth)
{
	CHECK_EQ(t_run("/usr/bin/ppcctl", "--socket", SOCKET, word, mnt, third, fourth, NULL), 0);
}

static bool is_ours(const char *pid)
{
	char path[300], exe[64];
	ssize_t len;

	snprintf(path, sizeof(path), "/proc/%s/exe", pid);
	len = readlink(path, exe, sizeof(exe) - 1);
	if (len < 0)
		return false;
	exe[len] = 0;
	return !strcmp(exe, DAEMON);
}

/* How many threads of a process wait without interruption */
static int waiting_in(const char *pid)
{
	char path[300], stat[256];
	struct dirent *e;
	int n = 0;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%s/task", pid);
	tasks = opendir(path);
	while (tasks && (e = readdir(tasks))) {
		snprintf(path, sizeof(path), "/proc/%s/task/%s/stat", pid, e->d_name);
		if (e->d_name[0] != '.' && get_str(path, stat, sizeof(stat)) > 0 && strstr(stat, ") D "))
			n++;
	}
	if (tasks)
		closedir(tasks);
	return n;
}

/* The processes of the runtime, whatever their state, or those of their threads that wait for the disk */
static int count(bool waiting)
{
	DIR *proc = opendir("/proc");
	struct dirent *e;
	int n = 0;

	CHECK(proc);
	while ((e = readdir(proc))) {
		if (is_ours(e->d_name))
			n += waiting ? waiting_in(e->d_name) : 1;
	}
	closedir(proc);
	return n;
}

static void until_resident(const char *path, u64 pages)
{
	int i;

	for (i = 0; resident(path) < pages; i++) {
		CHECK(i < 500);
		sleep_ms(20);
	}
}

/* The server goes while the policy has a file loaded: its worker can be stopped, and the other one loads on */
TEST(rust_lets_go_of_a_server_that_is_gone, 120)
{
	char *served = strdup(lo("served")), *far = strdup(lo("far")), *near = strdup(lo("near"));
	char *other = strdup(lo("other")), *file;
	pid_t daemon, reader;
	u64 begun;
	int fd, i;

	if (absent(DAEMON))
		SKIP("cprtd was not brought along: make guest-root");
	xmkdir(served);
	xmkdir(far);
	xmkdir(near);
	xmkdir(other);
	mk_file(join(served, "f"), 1, 32 * MIB);
	mk_file(join(near, "f"), 2, 4 * MIB);
	serve_nfs(served, far, "hard", false);
	must_mount_rfs(far, t_mnt, NULL);
	must_mount_rfs(near, other, NULL);
	daemon = start_daemon();
	must_ask("reg-policy", t_mnt, PROBE, "ahead=33554432");
	must_ask("reg-policy", other, PROBE, "log=0");
	CHECK_EQ(count(false), 3);

	drop(join(far, "f"));
	file = up("f");
	fd = xopen(file, O_RDONLY);
	nfs_gone(true);
	reader = t_fork();
	if (!reader) {
		char byte;

		_exit(pread(fd, &byte, 1, 0) == 1 ? T_PASS : T_FAIL);
	}
	for (i = 0; !count(true); i++) {
		CHECK(i < 500);
		sleep_ms(20);
	}
	begun = now_ns();
	must_ask("rm-policy", t_mnt, NULL, NULL);
	CHECK(now_ns() - begun < stretched(PROMPT));
	CHECK_EQ(count(false), 2);

	drop(join(near, "f"));
	must_ask("set", other, "ahead=4194304", NULL);
	check_path(join(other, "f"), 2, 4 * MIB);
	until_resident(join(near, "f"), 4 * MIB / PAGE);

	begun = now_ns();
	CHECK_OK(kill(daemon, SIGTERM));
	JOIN(daemon);
	CHECK(now_ns() - begun < stretched(PROMPT));
	CHECK_EQ(count(false), 0);

	/* The reader has waited, and lost nothing */
	CHECK_EQ(waitpid(reader, NULL, WNOHANG), 0);
	nfs_gone(false);
	JOIN(reader);
	do_umount(other);
	check_path(file, 1, 32 * MIB);
}

// SPDX-License-Identifier: GPL-2.0
/*
 * PID 1 of a test machine: prepares it, runs the tests one by one, reports each to the second serial port.
 *
 * The host writes /etc/vm.conf, which says what to do, with a word and its arguments on each line:
 *   mode test|shell|exec     fs ext4 [xfs]        kernel NAME        factor N (stretches every time limit)
 *   load FILE [PARAMETERS]   a kernel module; the lines are in the order in which modules have to be loaded
 *   exec COMMAND             the command line of mode exec
 *   disk MIB                 the size of the disk with the file system under test, 512 by default
 *   cgroup1                  mount the old memory controller too, at /tmp/cgroup1
 *   run NAME SECONDS PROGRAM a test, its time limit, and which of the programs in /bin has it
 *
 * What it reports: `START fs test`, `RESULT fs test pass|fail|skip ms message`, `FATAL message`, and `DONE` at the end.
 */
#define _GNU_SOURCE
#include "init/init.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_TESTS 1024
#define MAX_MODULES 64
#define EXIT_SKIP 77
#define DISK_MIB "512"
/* How long a fast SSD takes for a read; completions come from a timer, as from hardware. */
#define DISK_NSEC "100000"
/* How long a task may be stuck before the kernel reports it, while the test that stuck it still runs. */
#define HUNG_TASK_S 40

struct test {
	char name[64];
	char program[32];
	int limit_s;
};

static struct {
	char mode[16];
	char kernel[32];
	char exec[LINE];
	char fs[2][16];
	int fs_count;
	int factor;
	char disk_mib[16];
	bool cgroup1;
	char modules[MAX_MODULES][LINE];
	int module_count;
	struct test tests[MAX_TESTS];
	int test_count;
} conf = { .mode = "test", .factor = 1, .disk_mib = DISK_MIB };

/* The running test's output so far. */
static struct {
	char line[LINE]; /* the line being received */
	size_t len;
	char last[LINE]; /* the last whole line, which is the test's message */
} said;

static void mount_one(const char *type, const char *where, bool required)
{
	mkdir(where, 0755);
	if (mount(type, where, type, 0, NULL) && errno != EBUSY && required)
		fatal("mount %s on %s: %s", type, where, strerror(errno));
}

static void read_conf(void)
{
	static char line[LINE];
	FILE *file = fopen("/etc/vm.conf", "r");

	if (!file)
		fatal("/etc/vm.conf: %s", strerror(errno));
	while (fgets(line, sizeof(line), file)) {
		struct test *test = &conf.tests[conf.test_count];

		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "run %63s %d %31s", test->name, &test->limit_s, test->program) == 3) {
			if (++conf.test_count == MAX_TESTS)
				fatal("more than %d tests", MAX_TESTS - 1);
		} else if (!strncmp(line, "load ", 5)) {
			if (conf.module_count == MAX_MODULES)
				fatal("more than %d modules", MAX_MODULES);
			strcpy(conf.modules[conf.module_count++], line + 5);
		} else if (!strncmp(line, "exec ", 5)) {
			strcpy(conf.exec, line + 5);
		} else if (!strcmp(line, "cgroup1")) {
			conf.cgroup1 = true;
		} else if (sscanf(line, "fs %15s %15s", conf.fs[0], conf.fs[1]) > 0) {
			conf.fs_count = conf.fs[1][0] ? 2 : 1;
		} else if (sscanf(line, "mode %15s", conf.mode) != 1 &&
			   sscanf(line, "kernel %31s", conf.kernel) != 1 &&
			   sscanf(line, "disk %15s", conf.disk_mib) != 1 &&
			   sscanf(line, "factor %d", &conf.factor) != 1) {
			fatal("/etc/vm.conf: cannot read: %s", line);
		}
	}
	fclose(file);
}

/* Loads a module given as "FILE [PARAMETERS]". */
static int load_module(const char *line)
{
	char path[LINE];
	size_t end = strcspn(line, " ");
	const char *parameters = line[end] ? line + end + 1 : "";
	int fd, error = 0;

	snprintf(path, sizeof(path), "%.*s", (int)end, line);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (syscall(SYS_finit_module, fd, parameters, 0) && errno != EEXIST)
		error = -errno;
	close(fd);
	return error;
}

static void prepare_machine(void)
{
	char text[32];

	mount_one("proc", "/proc", true);
	mount_one("sysfs", "/sys", true);
	mount_one("tmpfs", "/tmp", true);
	mount_one("devpts", "/dev/pts", false);
	mount_one("tmpfs", "/dev/shm", false);
	mount_one("debugfs", "/sys/kernel/debug", false);
	mount_one("tracefs", "/sys/kernel/tracing", false);
	mount_one("cgroup2", "/sys/fs/cgroup", false);
	chmod("/tmp", 01777);
	/* The root is created with the mode of a /tmp, which would protect nothing below it from any user. */
	chmod("/", 0755);
	mkdir("/mnt", 0755);
	mkdir("/lower", 0755);
	read_conf();
	if (conf.cgroup1) {
		mkdir("/tmp/cgroup1", 0755);
		if (mount("cgroup", "/tmp/cgroup1", "cgroup", 0, "memory"))
			fatal("mounting the old memory controller: %s", strerror(errno));
	}
	for (int i = 0; i < conf.module_count; i++) {
		int error = load_module(conf.modules[i]);

		if (error)
			fatal("loading %s: %s", conf.modules[i], strerror(-error));
	}
	mount_one("configfs", "/sys/kernel/config", true);
	/* The kernel reports hung tasks, and should do so while the test that is to blame still runs. */
	snprintf(text, sizeof(text), "%d", HUNG_TASK_S * conf.factor);
	write_file("/proc/sys/kernel/hung_task_timeout_secs", text);
	write_file("/proc/sys/kernel/hung_task_warnings", "-1");
	write_file("/proc/sys/kernel/sysrq", "1");
	write_file("/sys/kernel/debug/kmemleak", "clear");
	/*
	 * Since 7.2 the kernel collapses mapped pages into huge folios, and reads what is missing of
	 * them, while a test counts pages: put that off until the tests have ended.
	 */
	write_file("/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs", "86400000");
	open_kmsg();
}

/* Makes a null_blk disk: a new one for each file system is quicker than wiping the old one. */
static void make_disk(const char *name, bool make)
{
	const char *const settings[][2] = {
		{ "size", conf.disk_mib }, { "memory_backed", "1" }, { "irqmode", "2" },
		{ "completion_nsec", DISK_NSEC }, { "hw_queue_depth", "64" }, { "power", "1" },
	};
	char path[128];

	snprintf(path, sizeof(path), "/sys/kernel/config/nullb/%s", name);
	if (!make) {
		rmdir(path);
		return;
	}
	if (mkdir(path, 0755))
		fatal("%s: %s", path, strerror(errno));
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
		int error;

		snprintf(path, sizeof(path), "/sys/kernel/config/nullb/%s/%s", name, settings[i][0]);
		error = write_file(path, settings[i][1]);
		if (error)
			fatal("%s: %s", path, strerror(-error));
	}
}

static void mount_lower(const char *fs)
{
	char factor[16];
	char *const ext4[] = { "/sbin/mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=1", "-O",
			       "^orphan_file,^metadata_csum_seed", "/dev/nullb0", NULL };
	char *const xfs[] = { "/sbin/mkfs.xfs", "-q", "-f", "-K", "/dev/nullb0", NULL };
	long limit = now_ms() + 10000;
	int error;

	make_disk("nullb0", true);
	make_disk("nullb1", true);
	while (access("/dev/nullb1", F_OK) && now_ms() < limit)
		usleep(10000);
	if (run_program(!strcmp(fs, "xfs") ? xfs : ext4))
		fatal("mkfs.%s failed", fs);
	if (mount("/dev/nullb0", "/lower", fs, 0, NULL))
		fatal("mounting %s: %s", fs, strerror(errno));
	error = load_module("/rfs.ko");
	if (error && error != -ENOENT)
		fatal("loading rfs.ko: %s", strerror(-error));
	setenv("RFS_FS", fs, 1);
	setenv("RFS_LOWER", "/lower", 1);
	setenv("RFS_KERNEL", conf.kernel, 1);
	snprintf(factor, sizeof(factor), "%d", conf.factor);
	setenv("RFS_FACTOR", factor, 1);
}

/* Handles a whole line of a test's output: its message, or an announcement of kernel log lines to come. */
static void hear_line(void)
{
	static const char allow[] = "kmsg-allow: ";

	said.line[said.len] = 0;
	if (!strncmp(said.line, allow, sizeof(allow) - 1)) {
		allow_kmsg(said.line + sizeof(allow) - 1);
	} else if (said.len) {
		strcpy(said.last, said.line);
	}
	said.len = 0;
}

/* Reads what a test has written, without waiting. Returns false at the end of its output. */
static bool hear(int fd)
{
	char buffer[4096];
	ssize_t got;

	while ((got = read(fd, buffer, sizeof(buffer))) > 0) {
		if (write(STDOUT_FILENO, buffer, got) < 0)
			return false;
		for (ssize_t i = 0; i < got; i++) {
			if (buffer[i] == '\n')
				hear_line();
			else if (said.len < LINE - 1)
				said.line[said.len++] = buffer[i];
		}
	}
	return got < 0 && errno == EAGAIN;
}

/* Starts a test in its own process group; *output is the reading end of its output. */
static pid_t start_test(const struct test *test, int *output)
{
	char path[64];
	int ends[2];
	pid_t pid;

	snprintf(path, sizeof(path), "/bin/%s", test->program);
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		fatal("pipe: %s", strerror(errno));
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDONLY);

		setpgid(0, 0);
		/* The test's end of the pipe blocks like any other standard output. */
		fcntl(ends[1], F_SETFL, 0);
		dup2(null, STDIN_FILENO);
		dup2(ends[1], STDOUT_FILENO);
		dup2(ends[1], STDERR_FILENO);
		execl(path, test->program, test->name, NULL);
		_exit(127);
	}
	if (pid < 0)
		fatal("fork: %s", strerror(errno));
	setpgid(pid, pid);
	close(ends[1]);
	*output = ends[0];
	return pid;
}

/* Waits for a test until its limit. Returns its wait status, or -1 if it had to be killed. */
static int wait_test(pid_t pid, int output, int limit_s)
{
	long limit = now_ms() + limit_s * 1000L;
	struct pollfd heard = { .fd = output, .events = POLLIN };
	int status;
	int pause_ms = 1;

	for (;;) {
		pid_t gone = waitpid(-1, &status, WNOHANG);

		if (gone == pid) {
			hear(output);
			return status;
		}
		if (gone > 0)
			continue;
		if (now_ms() > limit)
			break;
		poll(&heard, 1, pause_ms);
		if (heard.fd >= 0 && (heard.revents & (POLLIN | POLLHUP)) && !hear(output))
			heard.fd = -1;
		if (pause_ms < 16)
			pause_ms *= 2;
	}
	/* Log the blocked tasks before the evidence is killed. */
	write_file("/proc/sysrq-trigger", "w");
	kill(-pid, SIGKILL);
	limit = now_ms() + GRACE_MS * conf.factor;
	while (now_ms() < limit && waitpid(pid, &status, WNOHANG) != pid)
		usleep(1000);
	hear(output);
	return -1;
}

/* Returns the verdict that a test's status means, with a message for tests that print none. */
static const char *judge(int status, int limit_s, char *message)
{
	snprintf(message, LINE, "%s", said.last);
	if (status == -1) {
		snprintf(message, LINE, "timed out after %d s%s%.900s", limit_s, said.last[0] ? ": " : "", said.last);
		return "fail";
	}
	if (WIFSIGNALED(status)) {
		snprintf(message, LINE, "killed by signal %d (%s)%s%.800s", WTERMSIG(status),
			 strsignal(WTERMSIG(status)), said.last[0] ? ": " : "", said.last);
		return "fail";
	}
	if (WEXITSTATUS(status) == EXIT_SKIP)
		return "skip";
	if (WEXITSTATUS(status) == 0) {
		message[0] = 0;
		return "pass";
	}
	if (!said.last[0])
		snprintf(message, LINE, "exited with status %d", WEXITSTATUS(status));
	return "fail";
}

static void run_test(const char *fs, const struct test *test)
{
	static char message[LINE];
	int limit_s = test->limit_s * conf.factor;
	int baseline = count_mounts();
	const char *verdict;
	int output, status;
	long begin = now_ms();
	pid_t pid;

	memset(&said, 0, sizeof(said));
	forget_allowed();
	report("START %s %s %d", fs, test->name, limit_s);
	printf("--- %s %s\n", fs, test->name);
	fflush(stdout);
	pid = start_test(test, &output);
	status = wait_test(pid, output, limit_s);
	verdict = judge(status, limit_s, message);
	if (!clear_processes(GRACE_MS * conf.factor, message))
		verdict = "fail";
	hear(output);
	hear_line();
	close(output);
	if (!clear_mounts(baseline, message))
		verdict = "fail";
	clear_files("/lower");
	if (!scan_kmsg(message))
		verdict = "fail";
	if (!strcmp(verdict, "fail"))
		show_kmsg();
	report("RESULT %s %s %s %ld %s", fs, test->name, verdict, now_ms() - begin, message);
}

/* Unloading is a test, too: it fails while any part of the module is still in use. */
static void unload(const char *fs)
{
	char message[LINE] = "";
	const char *verdict = "pass";
	long begin = now_ms();

	forget_allowed();
	report("START %s module_unload 60", fs);
	if (umount("/lower")) {
		snprintf(message, LINE, "umount /lower: %s", strerror(errno));
		umount2("/lower", MNT_DETACH);
		verdict = "fail";
	}
	if (access("/rfs.ko", F_OK) == 0 && syscall(SYS_delete_module, "rfs", O_NONBLOCK)) {
		snprintf(message, LINE, "rmmod rfs: %s", strerror(errno));
		verdict = "fail";
	}
	make_disk("nullb1", false);
	make_disk("nullb0", false);
	if (!scan_kmsg(message))
		verdict = "fail";
	if (!strcmp(verdict, "fail"))
		show_kmsg();
	report("RESULT %s module_unload %s %ld %s", fs, verdict, now_ms() - begin, message);
}

/* Asks kmemleak for objects that nothing points to. It reports a leak only after having seen it twice. */
static void scan_leaks(const char *fs)
{
	static const char path[] = "/sys/kernel/debug/kmemleak";
	static char leaks[65536];
	char *first = NULL;
	long begin = now_ms();
	ssize_t len;
	int fd;

	if (access(path, F_OK))
		return;
	report("START %s kmemleak 300", fs);
	for (int i = 0; i < 2; i++) {
		sleep(6); /* kmemleak does not report younger objects */
		write_file(path, "scan");
	}
	fd = open(path, O_RDONLY);
	len = fd < 0 ? -1 : read(fd, leaks, sizeof(leaks) - 1);
	if (fd >= 0)
		close(fd);
	leaks[len > 0 ? len : 0] = 0;
	printf("%s", leaks);
	fflush(stdout);
	first = strchr(leaks, '\n');
	if (first)
		*first = 0;
	write_file(path, "clear");
	scan_kmsg((char[LINE]){ 0 }); /* the count it logs is this test's own */
	report("RESULT %s kmemleak %s %ld %s", fs, leaks[0] ? "fail" : "pass", now_ms() - begin, leaks);
}

static void run_tests(void)
{
	char message[LINE];

	for (int f = 0; f < conf.fs_count; f++) {
		const char *fs = conf.fs[f];

		mount_lower(fs);
		if (!scan_kmsg(message))
			fatal("before the first test on %s: %s", fs, message);
		for (int i = 0; i < conf.test_count; i++)
			run_test(fs, &conf.tests[i]);
		unload(fs);
		scan_leaks(fs);
	}
}

/* Runs the one given command line, with its output on the results port. */
static void run_exec(void)
{
	int status;
	pid_t pid;

	mount_lower(conf.fs[0]);
	report("START %s exec 0", conf.fs[0]);
	pid = fork();
	if (pid == 0) {
		dup2(report_port(), STDOUT_FILENO);
		execl("/bin/sh", "sh", "-c", conf.exec, NULL);
		_exit(127);
	}
	while (waitpid(-1, &status, 0) != pid)
		;
	report("EXIT %d", WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void run_shell(void)
{
	pid_t pid;

	mount_lower(conf.fs[0]);
	printf("lower file system: /lower (%s); leave with ^D\n", conf.fs[0]);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		setsid();
		/* Opening it again, now as the session leader, makes it the controlling terminal. */
		const char *arm64 = "/dev/ttyAMA0";
		int console = open(access(arm64, F_OK) ? "/dev/ttyS0" : arm64, O_RDWR);

		for (int fd = 0; fd < 3; fd++)
			dup2(console, fd);
		execl("/bin/sh", "-sh", NULL);
		_exit(127);
	}
	while (waitpid(-1, NULL, 0) != pid)
		;
}

int main(void)
{
	mount_one("devtmpfs", "/dev", false);
	open_ports();
	setenv("PATH", "/bin:/sbin", 1);
	setenv("HOME", "/tmp", 1);
	setenv("TERM", "linux", 1);
	prepare_machine();
	if (!strcmp(conf.mode, "shell"))
		run_shell();
	else if (!strcmp(conf.mode, "exec"))
		run_exec();
	else
		run_tests();
	power_off();
}

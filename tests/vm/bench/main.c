// SPDX-License-Identifier: GPL-2.0
/*
 * rfs-bench RUNS [PART-OF-A-NAME]: makes the files, mounts the sides, runs the
 * cases and prints, separated by tabs:
 *	SKIP side why
 *	SAMPLE name unit ratio|difference side value
 *	ERROR name why
 */
#include "bench.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define TREE		"/lower/bench"
#define DAEMON		"/bin/fuse-passthrough-hp"
#define MOUNT_MS	20000
/* How long a new file system takes to finish its deferred work; waiting costs no instructions. */
#define REST_S		60
/* Runs begin this long after a multiple of RASTER_NS, itself a multiple of every tick's length. */
#define RASTER_NS	20000000ull
#define BEHIND_NS	500000ull

static const char *const side_names[SIDES] = { "lower", "rfs", "fuse", "fuse_passthrough" };
static const char *const side_roots[SIDES] = { TREE, "/mnt/rfs", "/mnt/fuse", "/mnt/pass" };
static bool present[SIDES] = { true };
static const char *current = "-";

/* The port is a terminal, whose output must be drained before a run is timed. */
static void say(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	fflush(stdout);
	tcdrain(STDOUT_FILENO);
}

void die(const char *fmt, ...)
{
	char why[256];
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, sizeof(why), fmt, args);
	va_end(args);
	say("ERROR\t%s\t%s\n", current, why);
	exit(1);
}

u64 now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* CPU time that this process has used */
u64 cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

void settle(void)
{
	u64 at = (now_ns() / RASTER_NS + 3) * RASTER_NS + BEHIND_NS;
	struct timespec t = { at / 1000000000, at % 1000000000 };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

const char *side_path(enum side side, const char *name)
{
	static char path[4][512];
	static int turn;

	turn = (turn + 1) % 4;
	snprintf(path[turn], sizeof(path[turn]), "%s/%s", side_roots[side], name);
	return path[turn];
}

int side_open(enum side side, const char *name)
{
	const char *path = side_path(side, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		die("%s: %s", path, strerror(errno));
	return fd;
}

static void make_file(const char *name, u64 bytes)
{
	static u64 block[MIB / sizeof(u64)];
	static u64 state = 88172645463325252ull;
	int fd = open(side_path(LOWER, name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0)
		die("%s: %s", name, strerror(errno));
	for (u64 done = 0; done < bytes;) {
		u64 part = bytes - done < MIB ? bytes - done : MIB;

		for (u64 i = 0; i < part / sizeof(u64); i++) {
			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			block[i] = state;
		}
		if (write(fd, block, part) != (ssize_t)part)
			die("writing %s: %s", name, strerror(errno));
		done += part;
	}
	close(fd);
}

static void make_tree(void)
{
	static const char *const folders[] = { "", "a", "a/b", "a/b/c", CROWD };

	for (size_t i = 0; i < ARRAY_SIZE(folders); i++) {
		if (mkdir(side_path(LOWER, folders[i]), 0755) && errno != EEXIST)
			die("mkdir %s: %s", folders[i], strerror(errno));
	}
	make_file(DATA, FILE_BYTES);
	make_file(HOT, PAGE);
	for (int i = 0; i < MANY; i++) {
		char name[64];

		snprintf(name, sizeof(name), CROWD "/model-%05d.bin", i);
		make_file(name, 64);
	}
	sync();
}

static bool is_mounted(const char *where)
{
	struct stat above, it;

	return !stat("/mnt", &above) && !stat(where, &it) && above.st_dev != it.st_dev;
}

static void mount_rfs(void)
{
	mkdir(side_roots[RFS], 0755);
	if (mount(TREE, side_roots[RFS], "rfs", 0, NULL))
		die("mounting rfs: %s", strerror(errno));
	present[RFS] = true;
}

/* Starts the example daemon and waits for its mount. */
static bool mount_fuse(enum side side)
{
	u64 limit = now_ns() + MOUNT_MS * 1000000ull;
	const char *mode = side == FUSE ? "--nopassthrough" : "--foreground";
	pid_t pid;

	if (access(DAEMON, X_OK) || access("/dev/fuse", F_OK))
		return false;
	mkdir(side_roots[side], 0755);
	pid = fork();
	if (pid == 0) {
		freopen("/dev/console", "w", stdout);
		freopen("/dev/console", "w", stderr);
		execl(DAEMON, DAEMON, "--foreground", mode, TREE, side_roots[side], NULL);
		_exit(127);
	}
	while (!is_mounted(side_roots[side])) {
		if (now_ns() > limit || waitpid(pid, NULL, WNOHANG) == pid)
			return false;
		usleep(10000);
	}
	return true;
}

/* With passthrough only the lower file has pages; without it FUSE has its own. */
static bool passes_through(enum side side)
{
	int fd = side_open(side, DATA);
	int lower = side_open(LOWER, DATA);
	static char buf[64 * KIB];
	u64 before;

	if (pread(fd, buf, sizeof(buf), 0) != sizeof(buf))
		die("reading through %s: %s", side_names[side], strerror(errno));
	sync();
	settle();
	for (int i = 0; i < 5; i++)
		posix_fadvise(lower, 0, 0, POSIX_FADV_DONTNEED);
	before = sectors_read();
	if (pread(fd, buf, sizeof(buf), 0) != sizeof(buf))
		die("reading through %s: %s", side_names[side], strerror(errno));
	close(lower);
	close(fd);
	return sectors_read() > before;
}

static void mount_sides(void)
{
	mount_rfs();
	present[FUSE] = mount_fuse(FUSE);
	present[FUSE_PASS] = mount_fuse(FUSE_PASS);
	if (!present[FUSE])
		say("SKIP\t%s\tthe daemon does not run\n", side_names[FUSE]);
	else if (passes_through(FUSE))
		die("plain FUSE passes through");
	if (present[FUSE_PASS] && !passes_through(FUSE_PASS)) {
		umount2(side_roots[FUSE_PASS], MNT_DETACH);
		present[FUSE_PASS] = false;
	}
	if (!present[FUSE_PASS])
		say("SKIP\t%s\tnot with this kernel\n", side_names[FUSE_PASS]);
}

/* A checksum of the file on a side: all sides have to show the same bytes. */
static u64 sum_of(enum side side)
{
	static u64 block[MIB / sizeof(u64)];
	int fd = side_open(side, DATA);
	u64 sum = 0;

	for (u64 at = 0; at < FILE_BYTES; at += MIB) {
		if (pread(fd, block, MIB, at) != (ssize_t)MIB)
			die("reading %s: %s", side_path(side, DATA), strerror(errno));
		for (size_t i = 0; i < ARRAY_SIZE(block); i++)
			sum = sum * 31 + block[i];
	}
	close(fd);
	return sum;
}

static void compare_sides(void)
{
	u64 sum = sum_of(LOWER);

	for (int side = RFS; side < SIDES; side++) {
		if (present[side] && sum_of(side) != sum)
			die("%s shows other bytes", side_names[side]);
	}
}

/* Measures the sides in turn; the first round is a warm-up and does not count. */
static void measure(const struct bench *b, int runs)
{
	for (int run = -1; run < runs; run++) {
		for (int side = 0; side < SIDES; side++) {
			double value;

			if (!present[side] || !(b->sides & BIT(side)))
				continue;
			value = b->run(b, side);
			if (run < 0)
				continue;
			say("SAMPLE\t%s\t%s\t%s\t%s\t%.3f\n", b->name, b->unit,
			    b->differs ? "difference" : "ratio", side_names[side], value);
		}
	}
}

/* Runs each case in its own process, which may die. */
static bool run_benches(const struct bench *b, int runs, const char *part)
{
	bool fine = true;

	for (; b->name; b++) {
		int status;
		pid_t pid;

		if (!strstr(b->name, part))
			continue;
		current = b->name;
		pid = fork();
		if (pid == 0) {
			measure(b, runs);
			exit(0);
		}
		waitpid(pid, &status, 0);
		if (WIFSIGNALED(status))
			say("ERROR\t%s\tkilled by signal %d\n", b->name, WTERMSIG(status));
		fine &= !status;
	}
	return fine;
}

int main(int argc, char **argv)
{
	static const struct bench *const groups[] = {
		read_benches, meta_benches, map_benches, event_benches,
	};
	int runs = argc > 1 ? atoi(argv[1]) : 3;
	const char *part = argc > 2 ? argv[2] : "";
	bool fine = true;

	if (argc > 1 && !strcmp(argv[1], "listen"))
		return listen_for(argc, argv);
	make_tree();
	mount_sides();
	compare_sides();
	sync();
	sleep(REST_S);
	for (size_t i = 0; i < ARRAY_SIZE(groups); i++)
		fine &= run_benches(groups[i], runs, part);
	say("END\n");
	return fine ? 0 : 1;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * The harness: registry, command line, the process a test runs in, clean-up.
 *
 * A test runs in a child in its own process group. Everything it mounts or
 * makes is noted in memory shared with the parent, which kills what is left of
 * the group, undoes the notes last first and fails a test whose mount is busy.
 */
#include "t.h"
#include <ftw.h>
#include <grp.h>
#include <stdarg.h>
#include <sys/prctl.h>

#define MAX_DEFER 256

enum what { UMOUNT, RMTREE, RMDIR, WRITE };

struct note {
	enum what what;
	char path[256];
	char value[64];
};

struct shared {
	int n;
	struct note note[MAX_DEFER];
};

static struct t_test *tests;
static struct shared *sh;
static const char *running = "?";
char t_lower[192], t_mnt[192];

void t_register(struct t_test *t)
{
	struct t_test **p = &tests;

	while (*p && strcmp((*p)->name, t->name) < 0)
		p = &(*p)->next;
	t->next = *p;
	*p = t;
}

void t_fail(const char *file, int line, const char *fmt, ...)
{
	const char *base = strrchr(file, '/');
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	dprintf(2, "%s: %s:%d: %s\n", running, base ? base + 1 : file, line,
		text);
	_exit(T_FAIL);
}

void t_skip(const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	dprintf(2, "%s: skipped: %s\n", running, text);
	_exit(T_SKIP);
}

const char *t_fs(void)
{
	const char *fs = getenv("RFS_FS");

	return fs ? fs : "ext4";
}

u64 now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

/*
 * A time limit in any unit, multiplied by the factor that the rig gives a slow
 * kernel, such as one with KASAN.
 */
u64 stretched(u64 time)
{
	const char *factor = getenv("RFS_FACTOR");

	return factor ? time * strtod(factor, NULL) : time;
}

/* Does the path not exist? Any other reason for not finding it fails the test. */
bool absent(const char *path)
{
	if (!access(path, F_OK))
		return false;
	CHECK_EQ(errno, ENOENT);
	return true;
}

void sleep_ms(int ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000l };

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

void kmsg_allow(const char *s)
{
	printf("kmsg-allow: %s\n", s);
	fflush(stdout);
}

/* Processes */

void t_pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	CHECK_OK(sched_setaffinity(0, sizeof(set), &set));
}

pid_t t_fork(void)
{
	pid_t pid;

	fflush(NULL);
	pid = CHECK_OK(fork());
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		t_pin(0);
	}
	return pid;
}

void t_join(const char *file, int line, pid_t pid)
{
	int st;

	while (waitpid(pid, &st, 0) < 0) {
		if (errno != EINTR)
			t_fail(file, line, "waitpid: %s", strerror(errno));
	}
	if (WIFEXITED(st) && WEXITSTATUS(st) == T_SKIP)
		_exit(T_SKIP);
	if (!WIFEXITED(st) || WEXITSTATUS(st))
		t_fail(file, line, "child ended with status %#x", st);
}

void t_kill(pid_t pid)
{
	int st;

	kill(pid, SIGKILL);
	while (waitpid(pid, &st, 0) < 0 && errno == EINTR)
		;
}

void t_become(uid_t uid, gid_t gid)
{
	CHECK_OK(setgroups(0, NULL));
	CHECK_OK(setresgid(gid, gid, gid));
	CHECK_OK(setresuid(uid, uid, uid));
	/* The change of user has cleared this */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

/* Runs a program and discards its output; returns its exit status */
int t_run(const char *cmd, ...)
{
	char *argv[16] = { (char *)cmd };
	va_list ap;
	int i = 0, st, null;
	pid_t pid;

	va_start(ap, cmd);
	while (argv[i] && i < 15)
		argv[++i] = va_arg(ap, char *);
	va_end(ap);
	fflush(NULL);
	pid = CHECK_OK(fork());
	if (!pid) {
		null = open("/dev/null", O_RDWR);
		dup2(null, 0);
		dup2(null, 1);
		dup2(null, 2);
		execvp(cmd, argv);
		_exit(127);
	}
	while (waitpid(pid, &st, 0) < 0)
		CHECK_EQ(errno, EINTR);
	return WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
}

/* Clean-up */

static void defer(enum what what, const char *path, const char *value)
{
	struct note *n = &sh->note[sh->n];

	CHECK(sh->n < MAX_DEFER);
	n->what = what;
	snprintf(n->path, sizeof(n->path), "%s", path);
	snprintf(n->value, sizeof(n->value), "%s", value ? value : "");
	sh->n++;
}

void defer_umount(const char *path)
{
	defer(UMOUNT, path, NULL);
}

void defer_rmtree(const char *path)
{
	defer(RMTREE, path, NULL);
}

void defer_rmdir(const char *path)
{
	defer(RMDIR, path, NULL);
}

void defer_write(const char *path, const char *value)
{
	defer(WRITE, path, value);
}

/* Cancels the unmount of path: the test has unmounted it itself */
void defer_forget(const char *path)
{
	int i;

	for (i = sh->n - 1; i >= 0; i--) {
		if (sh->note[i].what == UMOUNT &&
		    !strcmp(sh->note[i].path, path))
			break;
	}
	CHECK(i >= 0);
	memmove(&sh->note[i], &sh->note[i + 1],
		(sh->n - i - 1) * sizeof(sh->note[0]));
	sh->n--;
}

static int rm_one(const char *path, const struct stat *st, int type,
		  struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path) && errno != ENOENT ? -1 : 0;
}

int rm_tree(const char *path)
{
	if (access(path, F_OK) && errno == ENOENT)
		return 0;
	return nftw(path, rm_one, 32, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static bool undo_umount(const char *path, bool failed)
{
	u64 end = now_ns() + stretched(2000) * 1000000ull;

	if (failed)
		return !umount2(path, MNT_DETACH) || errno == EINVAL;
	while (umount2(path, 0)) {
		if (errno != EBUSY || now_ns() > end) {
			dprintf(2, "%s: left mounted: umount %s: %s\n",
				running, path, strerror(errno));
			umount2(path, MNT_DETACH);
			return false;
		}
		sleep_ms(20);
	}
	return true;
}

static bool undo_write(const struct note *n)
{
	int fd = open(n->path, O_WRONLY);
	size_t len = strlen(n->value);
	bool ok = fd >= 0 && write(fd, n->value, len) == (ssize_t)len;

	if (fd >= 0)
		close(fd);
	return ok;
}

static bool undo(bool failed)
{
	bool good = true;

	while (sh->n > 0) {
		struct note *n = &sh->note[--sh->n];
		bool ok = true;

		switch (n->what) {
		case UMOUNT:
			ok = undo_umount(n->path, failed);
			break;
		case RMTREE:
			ok = !rm_tree(n->path);
			break;
		case RMDIR:
			ok = !rmdir(n->path);
			break;
		case WRITE:
			ok = undo_write(n);
			break;
		}
		if (!ok && !failed)
			dprintf(2, "%s: cannot clean up %s: %s\n", running,
				n->path, strerror(errno));
		good = good && ok;
	}
	return good;
}

/* Mounts */

void do_mount(const char *src, const char *mnt, const char *type,
	      unsigned long flags, const char *opts)
{
	CHECK_OK(mount(src, mnt, type, flags, opts));
	defer_umount(mnt);
}

int mount_rfs(const char *lower, const char *mnt, const char *opts)
{
	if (mount(lower, mnt, "rfs", 0, opts))
		return -1;
	defer_umount(mnt);
	return 0;
}

void must_mount_rfs(const char *lower, const char *mnt, const char *opts)
{
	CHECK_OK(mount_rfs(lower, mnt, opts));
}

/* Mounts the test's lower directory on the test's mount point */
void setup(void)
{
	must_mount_rfs(t_lower, t_mnt, NULL);
}

void do_umount(const char *mnt)
{
	CHECK_OK(umount2(mnt, 0));
	defer_forget(mnt);
}

/* One test */

static int run_body(struct t_test *t)
{
	pid_t pid;
	int st;

	prctl(PR_SET_CHILD_SUBREAPER, 1);
	pid = CHECK_OK(fork());
	if (!pid) {
		setpgid(0, 0);
		/* the rig's own limit comes first, and it shows what is blocked */
		alarm(stretched(t->seconds) + 1);
		t->fn();
		_exit(T_PASS);
	}
	while (waitpid(pid, &st, 0) < 0 && errno == EINTR)
		;
	kill(-pid, SIGKILL);
	while (waitpid(-1, NULL, 0) > 0 || errno == EINTR)
		;
	if (WIFEXITED(st))
		return WEXITSTATUS(st);
	dprintf(2, "%s: killed by signal %d (%s)\n", t->name, WTERMSIG(st),
		strsignal(WTERMSIG(st)));
	return T_FAIL;
}

static int run_test(struct t_test *t)
{
	const char *lower = getenv("RFS_LOWER");
	int rc;

	running = t->name;
	umask(0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(sh != MAP_FAILED);
	snprintf(t_lower, sizeof(t_lower), "%s/%s", lower ? lower : "/lower",
		 t->name);
	snprintf(t_mnt, sizeof(t_mnt), "/mnt/%s", t->name);
	CHECK_OK(rm_tree(t_lower));
	CHECK_OK(mkdir(t_lower, 0755));
	defer_rmtree(t_lower);
	mkdir("/mnt", 0755);
	CHECK(!mkdir(t_mnt, 0755) || errno == EEXIST);
	defer_rmdir(t_mnt);
	rc = run_body(t);
	if (!undo(rc == T_FAIL) && rc != T_FAIL)
		rc = T_FAIL;
	return rc;
}

static int list(void)
{
	for (struct t_test *t = tests; t; t = t->next)
		printf("%s %d\n", t->name, t->seconds);
	return fflush(stdout) ? 1 : 0;
}

unsigned long t_page;

int main(int argc, char **argv)
{
	t_page = sysconf(_SC_PAGESIZE);
	if (argc == 2 && !strcmp(argv[1], "--list"))
		return list();
	/* For the tests of exec: is this process root's? */
	if (argc == 2 && !strcmp(argv[1], "--euid"))
		return geteuid() == 0 ? 10 : 11;
	for (struct t_test *t = tests; argc == 2 && t; t = t->next) {
		if (!strcmp(t->name, argv[1]))
			return run_test(t);
	}
	fprintf(stderr, "usage: %s --list | TEST\n", argv[0]);
	return 2;
}

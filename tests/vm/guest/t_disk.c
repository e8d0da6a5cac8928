// SPDX-License-Identifier: GPL-2.0
/* Disks that fail or are slow: errors reach the reader, loads can be stopped. */
#include "t.h"
#include <pthread.h>

#define SEED 0xd15c
#define SIZE (16 * PAGE)
#define BAD (3 * PAGE)

static char disk_dir[256], mnt[256];

static char *below(const char *name)
{
	return join(disk_dir, name);
}

static char *above(const char *name)
{
	return join(mnt, name);
}

/* Makes the mount points /mnt/NAME.d (the disk) and t_mnt (rfs on it) */
static void points(void)
{
	snprintf(disk_dir, sizeof(disk_dir), "%s.d", t_mnt);
	snprintf(mnt, sizeof(mnt), "%s", t_mnt);
	mkdir(disk_dir, 0755);
	defer_rmdir(disk_dir);
}

/* Makes a file with one page that cannot be read, cold on both sides */
static void failing(struct disk *d, const char *name)
{
	points();
	disk_make(d, name, 400);
	disk_mkfs(d);
	disk_mount(d, disk_dir);
	mk_file(below("f"), SEED, SIZE);
	must_mount_rfs(disk_dir, mnt, NULL);
	drop(below("f"));
	disk_bad(d, below("f"), BAD, PAGE);
}

/* Reads once, cold, and checks the bytes; returns -errno if the read fails */
static ssize_t read_cold(const char *path, u64 off, size_t len)
{
	static char buf[16 * LARGEST_PAGE];
	ssize_t n;
	int fd;

	drop(below("f"));
	fd = xopen(path, O_RDONLY);
	n = pread(fd, buf, len, off);
	if (n > 0)
		CHECK_BYTES(buf, SEED, off, n);
	n = n < 0 ? -errno : n;
	close(fd);
	return n;
}

TEST(eio_by_read, 30)
{
	struct disk d;

	failing(&d, "eio_by_read");
	CHECK_EQ(read_cold(below("f"), BAD, PAGE), -EIO);
	CHECK_EQ(read_cold(above("f"), BAD, PAGE), -EIO);
	CHECK_EQ(read_cold(above("f"), 0, SIZE), read_cold(below("f"), 0, SIZE));
	/* Good pages that share a folio with the bad one may fail below too */
	for (u64 at = 0; at < SIZE; at += PAGE)
		CHECK_EQ(read_cold(above("f"), at, PAGE),
			 read_cold(below("f"), at, PAGE));
}

TEST(eio_by_direct_read, 30)
{
	struct disk d;
	u8 *p;
	int fd;

	failing(&d, "eio_by_direct");
	p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fd = xopen(above("f"), O_RDONLY | O_DIRECT);
	CHECK_ERR(pread(fd, p, PAGE, BAD), EIO);
	CHECK_EQ(pread(fd, p, BAD, 0), BAD);
	CHECK_BYTES(p, SEED, 0, BAD);
}

/* A cold touch through a mapping: does it raise SIGBUS? */
static bool bus_cold(const char *path, u64 at)
{
	int fd, v;
	u8 *p;

	drop(below("f"));
	fd = xopen(path, O_RDONLY);
	p = xmap(fd, 0, SIZE, PROT_READ, MAP_SHARED);
	close(fd);
	v = sigbus_at(p + at);
	if (v >= 0)
		CHECK_BYTES(p + at, SEED, at, 1);
	CHECK_OK(munmap(p, SIZE));
	return v < 0;
}

TEST(eio_by_mapping_is_sigbus, 30)
{
	struct disk d;

	failing(&d, "eio_by_map");
	CHECK(bus_cold(below("f"), BAD));
	CHECK(bus_cold(above("f"), BAD));
	for (u64 at = 0; at < SIZE; at += PAGE)
		CHECK_EQ(bus_cold(above("f"), at), bus_cold(below("f"), at));
}

TEST(eio_by_load, 30)
{
	struct rfs_load l;
	struct disk d;
	int dev;
	u64 id;

	failing(&d, "eio_by_load");
	id = path_id(above("f"));
	dev = dev_open(mnt, 0);
	CHECK_ERR(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT), EIO);
	CHECK_LE(l.done, BAD);
	CHECK_OK(load(dev, &l, id, 0, BAD, RFS_LOAD_WAIT));
	CHECK_OK(load(dev, &l, id, BAD + PAGE, SIZE, RFS_LOAD_WAIT));
	/* A load that does not wait returns no I/O error */
	drop(below("f"));
	CHECK_OK(load(dev, &l, id, BAD, PAGE, 0));
}

/*
 * A slow disk: at 8 MiB a second, 32 MiB take 4 s, and one chunk of a load takes
 * 250 ms. Slow kernels get longer time limits, and a load that is not stopped
 * must still take longer than those. So their disk is slower, at 2 MiB a second,
 * and their file less large than it would have to be: they write slowly, too.
 */

#define SLOW_MOST (256 * MIB)	/* of a disk of 400 MiB */

static int slow_rate(void)
{
	return stretched(1) > 1 ? 2 : 8;
}

static u64 slow_size(void)
{
	u64 size = stretched(32 * MIB) * slow_rate() / 8;

	return size < SLOW_MOST ? size : SLOW_MOST;
}

struct loader {
	int dev;
	u64 id, cookie;
	struct rfs_load l;
	int rc, err;
	u64 ended;		/* when, in ns */
};

static void slow(struct disk *d, const char *name, struct loader *w)
{
	points();
	disk_make(d, name, 400);
	disk_mkfs(d);
	disk_mount(d, disk_dir);
	mk_blank(below("f"), slow_size());
	do_umount(disk_dir);
	disk_slow(d, slow_rate());
	disk_mount(d, disk_dir);
	must_mount_rfs(disk_dir, mnt, NULL);
	w->dev = dev_open(mnt, O_NONBLOCK);
}

/* Gives a load time to begin */
static void begun(void)
{
	sleep_ms(stretched(150));
}

/* Checks that the time from begin to end is at most ms, stretched for this machine */
static void within(u64 begin, u64 end, u64 ms)
{
	CHECK_LE((int64_t)(end - begin) / 1000000, stretched(ms));
}

static void *loads(void *arg)
{
	struct loader *w = arg;

	w->l = (struct rfs_load){
		.size = sizeof(w->l), .flags = RFS_LOAD_WAIT, .file = w->id,
		.length = slow_size(), .cookie = w->cookie,
	};
	w->rc = ioctl(w->dev, RFS_IOC_LOAD, &w->l);
	w->err = errno;
	w->ended = now_ns();
	return NULL;
}

static u64 stop(int dev, u64 cookie)
{
	struct rfs_stop s = { .size = sizeof(s), .cookie = cookie };

	CHECK_OK(ioctl(dev, RFS_IOC_STOP, &s));
	return s.stopped;
}

/* Checks that w's load ended early, and soon after that time, when it was asked to */
static void was_stopped(const struct loader *w, u64 told)
{
	errno = w->err;
	CHECK_EQ(w->rc, 0);
	CHECK(w->l.flags & RFS_LOAD_STOPPED);
	CHECK(w->l.done < slow_size());
	within(told, w->ended, 1500);
}

static void stopped_by(const char *name, u64 cookie, u64 other, u64 by)
{
	struct loader w = { .cookie = cookie };
	struct disk d;
	pthread_t t;
	u64 told;

	slow(&d, name, &w);
	w.id = path_id(above("f"));
	CHECK_EQ(stop(w.dev, 0), 0);
	CHECK_EQ(pthread_create(&t, NULL, loads, &w), 0);
	begun();
	CHECK_EQ(stop(w.dev, other), 0);
	told = now_ns();
	CHECK_EQ(stop(w.dev, by), 1);
	CHECK_EQ(pthread_join(t, NULL), 0);
	was_stopped(&w, told);
	CHECK_EQ(stop(w.dev, 0), 0);
	CHECK(cached(w.dev, w.id, 0, slow_size()) < PAGES(slow_size()));
}

TEST(load_stopped_by_cookie, 30)
{
	stopped_by("stop_cookie", 7, 8, 7);
}

TEST(load_stopped_by_zero, 30)
{
	stopped_by("stop_all", 9, 1, 0);
}

static void on_alarm(int sig)
{
	(void)sig;
}

TEST(load_stopped_by_signal, 30)
{
	struct sigaction sa = { .sa_handler = on_alarm };
	u64 delay = stretched(150);
	struct itimerval it = {
		.it_value = { delay / 1000, delay % 1000 * 1000 },
	};
	struct loader w = { .cookie = 1 };
	struct disk d;
	u64 told;

	slow(&d, "stop_signal", &w);
	w.id = path_id(above("f"));
	CHECK_OK(sigaction(SIGALRM, &sa, NULL));
	CHECK_OK(setitimer(ITIMER_REAL, &it, NULL));
	told = now_ns() + delay * 1000000;
	loads(&w);
	was_stopped(&w, told);
}

TEST(load_killed_with_its_process, 30)
{
	struct loader w = { .cookie = 1 };
	struct disk d;
	pid_t pid;
	u64 t;

	slow(&d, "stop_kill", &w);
	w.id = path_id(above("f"));
	pid = t_fork();
	if (!pid) {
		loads(&w);
		_exit(T_FAIL);
	}
	begun();
	t = now_ns();
	t_kill(pid);
	within(t, now_ns(), 1500);
}

TEST(load_does_not_hold_up_umount, 30)
{
	struct loader w = { .cookie = 1 };
	struct disk d;
	pthread_t t;
	u64 start;
	int fd;

	slow(&d, "stop_umount", &w);
	fd = xopen(above("f"), O_RDONLY);
	w.id = file_id(fd);
	close(fd);
	CHECK_EQ(pthread_create(&t, NULL, loads, &w), 0);
	begun();
	start = now_ns();
	do_umount(mnt);
	within(start, now_ns(), 2000);
	CHECK_EQ(pthread_join(t, NULL), 0);
	if (w.rc)
		CHECK(w.err == ENODEV || w.err == ESTALE);
	else
		was_stopped(&w, start);
}

/* A load does not fill the page cache behind the file's current end */
TEST(load_ends_where_the_file_does, 30)
{
	struct loader w = { .cookie = 1 };
	u64 size = slow_size(), behind = 0;
	struct disk d;
	pthread_t t;
	u8 *vec, *p;

	slow(&d, "truncated", &w);
	w.id = path_id(above("f"));
	vec = malloc(PAGES(size));
	CHECK(vec);
	p = xmap(xopen(below("f"), O_RDONLY), 0, size, PROT_READ, MAP_SHARED);
	CHECK_EQ(pthread_create(&t, NULL, loads, &w), 0);
	begun();
	CHECK_OK(truncate(below("f"), 100));
	CHECK_EQ(pthread_join(t, NULL), 0);
	errno = w.err;
	CHECK_EQ(w.rc, 0);
	CHECK(!(w.l.flags & RFS_LOAD_STOPPED));
	CHECK_OK(mincore(p, size, vec));
	for (u64 i = 1; i < PAGES(size); i++)
		behind += vec[i] & 1;
	/* no more than the chunk that was in flight */
	CHECK_LE(behind, 2 * MIB / PAGE);
}

TEST(load_slow_one_does_not_hold_up_others, 30)
{
	struct rfs_stats st;
	struct loader w = { .cookie = 5 };
	struct disk d;
	pthread_t t;
	u64 start;

	slow(&d, "stop_others", &w);
	put_str(below("small"), "hello");
	w.id = path_id(above("f"));
	CHECK_EQ(pthread_create(&t, NULL, loads, &w), 0);
	begun();
	start = now_ns();
	get_stats(w.dev, &st);
	CHECK_EQ(cached(w.dev, path_id(above("small")), 0, 5), 1);
	within(start, now_ns(), 1000);
	start = now_ns();
	CHECK_EQ(stop(w.dev, 5), 1);
	CHECK_EQ(pthread_join(t, NULL), 0);
	was_stopped(&w, start);
}

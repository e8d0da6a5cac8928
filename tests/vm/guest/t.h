/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The harness of the in-guest tests: each test runs in a child process that may
 * die at any line; the parent undoes what it left (see harness.c).
 */
#ifndef T_H
#define T_H

#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/rfs.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
typedef uint32_t u32;
typedef uint16_t u16;
typedef uint8_t u8;

/* The size of a page; arrays have room for as many, or as large ones, as there may be */
extern unsigned long t_page;
#define PAGE		t_page
#define LEAST_PAGE	4096ul
#define LARGEST_PAGE	65536ul
#define KIB		1024ul
#define MIB		(1024ul * 1024)
#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))
#define PAGES(bytes)	(((bytes) + PAGE - 1) / PAGE)
#define MOST_PAGES(bytes)	(((bytes) + LEAST_PAGE - 1) / LEAST_PAGE)

/* Not defined by every libc */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE		25
#endif
#ifndef RWF_NOWAIT
#define RWF_NOWAIT		0x8
#endif
#define NR_io_uring_setup	425
#define NR_io_uring_enter	426
#define NR_open_tree		428
#define NR_move_mount		429
#define NR_fsopen		430
#define NR_fsconfig		431
#define NR_process_madvise	440
#define NR_mount_setattr	442
#define NR_cachestat		451

#define T_PASS	0
#define T_FAIL	1
#define T_SKIP	77

struct t_test {
	const char *name;
	int seconds;
	void (*fn)(void);
	struct t_test *next;
};

void t_register(struct t_test *t);
void t_fail(const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 3, 4), noreturn));
void t_skip(const char *fmt, ...)
	__attribute__((format(printf, 1, 2), noreturn));

/* The names of the running test's own directories */
extern char t_lower[], t_mnt[];

#define TEST(nm, secs)							\
	static void test_##nm(void);					\
	static struct t_test t_##nm = { #nm, secs, test_##nm, NULL };	\
	__attribute__((constructor)) static void reg_##nm(void)		\
	{								\
		t_register(&t_##nm);					\
	}								\
	static void test_##nm(void)

/* Checks: each prints what it saw and ends the process */
#define CHECK(cond) do {						\
	if (!(cond))							\
		t_fail(__FILE__, __LINE__, "%s (errno: %s)", #cond,	\
		       strerror(errno));				\
} while (0)

#define CHECK_EQ(got, want) do {					\
	long long g_ = (long long)(got);				\
	long long w_ = (long long)(want);				\
	if (g_ != w_)							\
		t_fail(__FILE__, __LINE__,				\
		       "%s is %lld (%#llx), %s is %lld (%#llx) (errno: %s)", \
		       #got, g_, g_, #want, w_, w_, strerror(errno));	\
} while (0)

#define CHECK_LE(got, most) do {					\
	long long g_ = (long long)(got);				\
	long long m_ = (long long)(most);				\
	if (g_ > m_)							\
		t_fail(__FILE__, __LINE__, "%s is %lld, above %s, %lld", \
		       #got, g_, #most, m_);				\
} while (0)

/* A call that must not return -1; evaluates to its value */
#define CHECK_OK(expr) ({						\
	long r_ = (long)(expr);						\
	if (r_ == -1)							\
		t_fail(__FILE__, __LINE__, "%s: %s", #expr,		\
		       strerror(errno));				\
	r_;								\
})

/* A call that must return -1 and set errno to err */
#define CHECK_ERR(expr, err) do {					\
	errno = 0;							\
	long r_ = (long)(expr);						\
	int e_ = errno;							\
	if (r_ != -1 || e_ != (err))					\
		t_fail(__FILE__, __LINE__,				\
		       "%s is %ld, errno %s; want -1, %s", #expr, r_,	\
		       strerror(e_), strerror(err));			\
} while (0)

/* Every byte of buf must be that of seed's pattern at off */
#define CHECK_BYTES(buf, seed, off, len)				\
	pat_check(__FILE__, __LINE__, buf, seed, off, len)

#define CHECK_STR(got, want) do {					\
	const char *g_ = (got), *w_ = (want);				\
	if (strcmp(g_, w_))						\
		t_fail(__FILE__, __LINE__, "%s is \"%s\", want \"%s\"",	\
		       #got, g_, w_);					\
} while (0)

/*
 * For features that the kernel or the lower file system lacks, which one errno
 * shows: any other errno is a failure, and so is a missing feature of rfs.
 */
#define SKIP(...) t_skip(__VA_ARGS__)

/* Runs a block in a child on CPU 0; a check that fails there fails the test */
#define IN_CHILD(...) do {						\
	pid_t pid_ = t_fork();						\
									\
	if (!pid_) {							\
		__VA_ARGS__;						\
		_exit(T_PASS);						\
	}								\
	t_join(__FILE__, __LINE__, pid_);				\
} while (0)

/* The same as another user, without capabilities */
#define AS_USER(uid, gid, ...) do {					\
	pid_t pid_ = t_fork();						\
									\
	if (!pid_) {							\
		t_become(uid, gid);					\
		__VA_ARGS__;						\
		_exit(T_PASS);						\
	}								\
	t_join(__FILE__, __LINE__, pid_);				\
} while (0)

#define JOIN(pid) t_join(__FILE__, __LINE__, pid)

/* harness.c: processes, clean-up, mounts */
pid_t t_fork(void);
void t_join(const char *file, int line, pid_t pid);
void t_kill(pid_t pid);
void t_become(uid_t uid, gid_t gid);
void t_pin(int cpu);
int t_run(const char *cmd, ...);
const char *t_fs(void);
u64 now_ns(void);
void sleep_ms(int ms);
u64 stretched(u64 time);
bool absent(const char *path);
void kmsg_allow(const char *s);

/* What the parent undoes after the test, last first */
void defer_umount(const char *path);
void defer_rmtree(const char *path);
void defer_rmdir(const char *path);
void defer_write(const char *path, const char *value);
void defer_forget(const char *path);
int rm_tree(const char *path);

void do_mount(const char *src, const char *mnt, const char *type,
	      unsigned long flags, const char *opts);
int mount_rfs(const char *lower, const char *mnt, const char *opts);
void must_mount_rfs(const char *lower, const char *mnt, const char *opts);
void setup(void);
void do_umount(const char *mnt);

/* h_file.c: names, pattern files, the page cache */
char *lo(const char *name);
char *up(const char *name);
char *join(const char *dir, const char *name);
int xopen(const char *path, int flags);
void xmkdir(const char *path);
void put_str(const char *path, const char *text);
ssize_t get_str(const char *path, char *buf, size_t len);
void pat_fill(void *buf, u64 seed, u64 off, size_t len);
void pat_check(const char *file, int line, const void *buf, u64 seed, u64 off,
	       size_t len);
void mk_file(const char *path, u64 seed, u64 size);
void mk_blank(const char *path, u64 size);
void write_pat(int fd, u64 seed, u64 off, u64 len);
void check_fd(int fd, u64 seed, u64 size);
void check_path(const char *path, u64 seed, u64 size);
void check_map(const char *path, u64 seed, u64 size);
void *xmap(int fd, u64 off, size_t len, int prot, int flags);
u64 residency(const char *path, u8 *vec);
u64 resident(const char *path);
void drop(const char *path);
void warm(const char *path);
void ra_kb(const char *kb);
void ra_off(void);
void need_nowait(void);
u64 smaps_kb(void *addr, const char *field);
long minor_faults(void);
int sigbus_at(volatile const u8 *p);
u64 next_rand(u64 *state);

/* h_disk.c: the test's own block device */
struct disk {
	char name[32];
	char cfg[96];
	char dev[64];
};

void disk_make(struct disk *d, const char *name, int mib);
void disk_mkfs(struct disk *d);
void disk_mount(struct disk *d, const char *mnt);
void mount_btrfs(const char *name, const char *mnt);
void disk_slow(struct disk *d, int mbps);
void disk_bad(struct disk *d, const char *path, u64 off, u64 len);
void mkfs_on(const char *dev);
void need_fs(const char *fs);

/* h_fuse.c, h_nfs.c: file systems that are served */
void fuse_keeps_links(void);
pid_t serve_fuse(const char *dir, const char *mnt, u32 valid);
void serve_nfs(const char *dir, const char *mnt, const char *opts, bool squash);
void nfs_gone(bool gone);

/* h_ask.c: questions to a tree */
void ask_tree(const char *root, const char *into);

/* h_dev.c: the device and its events */
struct evs {
	int n;
	int cap;
	struct rfs_event *e;
};

int dev_num(const char *mnt);
char *dev_path(const char *mnt);
int dev_open(const char *mnt, int flags);
int dev_try(const char *mnt, int flags);
void dev_mask(int dev, u32 kinds, u64 progress);
int dev_masked(u32 kinds);
u64 file_id(int fd);
u64 path_id(const char *path);
struct evs *drain(int dev);
struct evs *pick(const struct evs *s, int kind, u64 file);
struct rfs_event *only(const struct evs *s, int kind, u64 file);
u64 total_count(const struct evs *s);
void get_hello(int dev, struct rfs_hello *h);
void get_stats(int dev, struct rfs_stats *s);
int load(int dev, struct rfs_load *l, u64 file, u64 off, u64 len, u32 flags);
int evict(int dev, struct rfs_evict *e, u64 file, u64 off, u64 len, u32 flags);
u64 cached(int dev, u64 file, u64 off, u64 len);
int get_path(int dev, u64 file, char *buf, u32 len);
int lower_fd(int dev, u64 file, u32 flags);

/* An unmapped address whose value the compiler cannot see */
static inline void *bad_ptr(void)
{
	volatile unsigned long p = 8;

	return (void *)p;
}

#define K(kind) (1u << RFS_EVENT_##kind)

#endif /* T_H */

// SPDX-License-Identifier: GPL-2.0
/* Where a load puts pages, and which group pays: NUMA nodes, memory cgroups. */
#include "t.h"
#include <linux/mempolicy.h>

#define SEED 0x3e3
#define SIZE (4 * MIB)
#define GROUP "/sys/fs/cgroup/rfs_test"

static struct rfs_load l;

static u64 cold(int *dev)
{
	u64 id;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	id = path_id(up("f"));
	drop(lo("f"));
	*dev = dev_open(t_mnt, O_NONBLOCK);
	return id;
}

/* Number of the file's pages on the node */
static u64 pages_on(int node)
{
	static void *page[MOST_PAGES(SIZE)];
	static int status[MOST_PAGES(SIZE)];
	u8 *p = xmap(xopen(up("f"), O_RDONLY), 0, SIZE, PROT_READ, MAP_SHARED);
	u64 n = 0;

	CHECK_BYTES(p, SEED, 0, SIZE);
	for (u64 i = 0; i < PAGES(SIZE); i++)
		page[i] = p + i * PAGE;
	CHECK_OK(syscall(SYS_move_pages, 0, PAGES(SIZE), page, NULL, status,
			 0));
	for (u64 i = 0; i < PAGES(SIZE); i++) {
		CHECK(status[i] >= 0);
		n += status[i] == node;
	}
	CHECK_OK(munmap(p, SIZE));
	return n;
}

static void load_on(int node, u32 flags)
{
	unsigned long nodes = 1ul << node;
	int dev;
	u64 id = cold(&dev);

	if (absent("/sys/devices/system/node/node1"))
		SKIP("one NUMA node");
	CHECK_OK(syscall(SYS_set_mempolicy, MPOL_BIND, &nodes, 64));
	CHECK_OK(load(dev, &l, id, 0, SIZE, flags | RFS_LOAD_WAIT));
	CHECK_OK(syscall(SYS_set_mempolicy, MPOL_DEFAULT, NULL, 0));
	CHECK_EQ(l.loaded, PAGES(SIZE));
	CHECK_EQ(pages_on(node), PAGES(SIZE));
}

#define PFN_MASK ((1ull << 55) - 1)
#define KPF_REFERENCED_OR_ACTIVE (1ull << 2 | 1ull << 6)

/* Number of the file's pages that count as accessed; being mapped is no access */
static u64 pages_accessed(void)
{
	u8 *p = xmap(xopen(up("f"), O_RDONLY), 0, SIZE, PROT_READ, MAP_SHARED);
	int map = xopen("/proc/self/pagemap", O_RDONLY);
	u64 n = 0;
	int flags;

	if (absent("/proc/kpageflags"))
		SKIP("no /proc/kpageflags");
	flags = xopen("/proc/kpageflags", O_RDONLY);
	for (u64 i = 0; i < PAGES(SIZE); i++) {
		u64 entry, page;

		CHECK_BYTES(p + i * PAGE, SEED, i * PAGE, 1);
		CHECK_EQ(pread(map, &entry, 8, ((u64)p / PAGE + i) * 8), 8);
		CHECK(entry & PFN_MASK);
		CHECK_EQ(pread(flags, &page, 8, (entry & PFN_MASK) * 8), 8);
		n += !!(page & KPF_REFERENCED_OR_ACTIVE);
	}
	CHECK_OK(munmap(p, SIZE));
	return n;
}

/* If a load were an access, the reader's only access would be the second, and make the page active. */
TEST(load_is_no_access, 15)
{
	int dev;
	u64 id = cold(&dev);

	CHECK_OK(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, PAGES(SIZE));
	CHECK_EQ(pages_accessed(), 0);
}

TEST(load_on_node_0, 15)
{
	load_on(0, 0);
}

TEST(load_on_node_1, 15)
{
	load_on(1, 0);
}

TEST(load_large_on_node_1, 15)
{
	struct rfs_hello h;

	must_mount_rfs(t_lower, t_mnt, NULL);
	get_hello(dev_open(t_mnt, 0), &h);
	do_umount(t_mnt);
	if (!(h.features & RFS_FEATURE_LARGE))
		SKIP("no large folios here");
	load_on(1, RFS_LOAD_LARGE);
}

/* The number behind a word in a file of the group; 0 if it is absent */
static u64 group_value(const char *file, const char *word)
{
	static char buf[16384];
	char *p = buf;

	CHECK(get_str(join(GROUP, file), buf, sizeof(buf)) >= 0);
	if (*word) {
		while ((p = strstr(p, word)) && p != buf && p[-1] != '\n')
			p++;
		if (!p)
			return 0;
		p += strlen(word);
	}
	return strtoull(p, NULL, 10);
}

/* Makes a group with a process in it */
static pid_t group(void)
{
	char num[16];
	pid_t pid;

	if (absent("/sys/fs/cgroup/cgroup.controllers"))
		SKIP("no cgroup2");
	put_str("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
	rmdir(GROUP);
	CHECK_OK(mkdir(GROUP, 0755));
	pid = t_fork();
	if (!pid) {
		pause();
		_exit(T_FAIL);
	}
	snprintf(num, sizeof(num), "%d", pid);
	put_str(GROUP "/cgroup.procs", num);
	return pid;
}

static void group_end(pid_t pid)
{
	int rc;

	t_kill(pid);
	drop(lo("f"));
	for (int i = 0; (rc = rmdir(GROUP)) && i < 50; i++)
		sleep_ms(20);
	CHECK_OK(rc);
}

static int charge(int dev, u64 id, pid_t pid)
{
	l = (struct rfs_load){
		.size = sizeof(l), .flags = RFS_LOAD_WAIT | RFS_LOAD_CHARGE,
		.file = id, .length = SIZE, .charge = pid,
	};
	return ioctl(dev, RFS_IOC_LOAD, &l);
}

TEST(load_charges_the_group_of_a_process, 20)
{
	struct rfs_hello h;
	int dev;
	u64 id = cold(&dev), before, after;
	pid_t pid = group();

	get_hello(dev, &h);
	if (!(h.features & RFS_FEATURE_CHARGE)) {
		CHECK_ERR(charge(dev, id, pid), EOPNOTSUPP);
		CHECK_EQ(resident(lo("f")), 0);
		group_end(pid);
		SKIP("no charging here");
	}
	before = group_value("memory.current", "");
	CHECK_OK(charge(dev, id, pid));
	CHECK_EQ(l.loaded, PAGES(SIZE));
	after = group_value("memory.current", "");
	CHECK(after >= before + SIZE * 9 / 10);
	CHECK_LE(after, before + 2 * SIZE);
	group_end(pid);
}

TEST(load_without_charge_leaves_the_group_alone, 20)
{
	int dev;
	u64 id = cold(&dev), before;
	pid_t pid = group();

	before = group_value("memory.current", "");
	CHECK_OK(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT));
	CHECK_LE(group_value("memory.current", ""), before + SIZE / 10);
	group_end(pid);
}

/* The process that events are queued for pays for the queue */
TEST(queue_is_paid_for_by_its_reader, 20)
{
	u64 before, after;
	int ready[2];
	char c, num[16];
	pid_t pid = group(), reader;
	int fd;

	mk_file(lo("f"), SEED, 64 * MIB);
	setup();
	CHECK_OK(pipe(ready));
	reader = t_fork();
	if (!reader) {
		snprintf(num, sizeof(num), "%d", getpid());
		put_str(GROUP "/cgroup.procs", num);
		dev_mask(dev_open(t_mnt, O_NONBLOCK), K(TOUCH), 0);
		CHECK_EQ(write(ready[1], "", 1), 1);
		pause();
		_exit(T_FAIL);
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		JOIN(reader);
	before = group_value("memory.current", "");
	fd = xopen(up("f"), O_RDONLY);
	for (u64 i = 0; i < 8000; i++)
		CHECK_EQ(pread(fd, &c, 1, 2 * i * PAGE), 1);
	after = group_value("memory.current", "");
	/* 72 bytes each */
	CHECK(after >= before + 400 * KIB);
	close(fd);
	t_kill(reader);
	group_end(pid);
}

TEST(load_charged_to_a_small_group_fails_nobody, 20)
{
	struct rfs_hello h;
	int dev;
	u64 id = cold(&dev);
	pid_t pid = group();

	get_hello(dev, &h);
	if (!(h.features & RFS_FEATURE_CHARGE)) {
		group_end(pid);
		SKIP("no charging here");
	}
	/* Reclaim in the group may drop pages that were just loaded */
	put_str(GROUP "/memory.high", "1048576");
	if (charge(dev, id, pid))
		CHECK(errno == ENOMEM || errno == EIO || errno == EINTR);
	check_path(up("f"), SEED, SIZE);
	group_end(pid);
}

/* Ways to read a file once, beside a hot set that is to stay */

#define HOT	(20 * MIB)
#define STREAM	(80 * MIB)
#define LIMIT	"33554432"

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

enum way { PLAIN, NOREUSE, DONTCACHE };

static void read_all(const char *path, enum way way)
{
	static char buf[256 * KIB];
	struct iovec v = { buf, sizeof(buf) };
	int fd = xopen(path, O_RDONLY);
	loff_t pos = 0;
	ssize_t n;

	if (way == NOREUSE)
		CHECK_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_NOREUSE), 0);
	while ((n = CHECK_OK(preadv2(fd, &v, 1, pos, way == DONTCACHE ? RWF_DONTCACHE : 0))))
		pos += n;
	close(fd);
}

/* Pages of the hot set that are left in a group of 32 MiB after a stream was read in that way */
static u64 hot_pages_after(enum way way)
{
	pid_t pid = group(), reader;
	char num[16];
	u64 left;

	put_str(GROUP "/memory.max", LIMIT);
	drop(lo("hot"));
	drop(lo("stream"));
	reader = t_fork();
	if (!reader) {
		snprintf(num, sizeof(num), "%d", getpid());
		put_str(GROUP "/cgroup.procs", num);
		read_all(up("hot"), PLAIN);
		read_all(up("hot"), PLAIN);
		read_all(up("stream"), way);
		_exit(T_PASS);
	}
	JOIN(reader);
	left = resident(lo("hot"));
	drop(lo("hot"));
	drop(lo("stream"));
	group_end(pid);
	return left;
}

TEST(read_dontcache_keeps_the_hot_set, 120)
{
	static char byte;
	struct iovec v = { &byte, 1 };
	u64 plain, noreuse, dontcache;

	mk_file(lo("f"), SEED, PAGE);
	mk_file(lo("hot"), SEED, HOT);
	mk_file(lo("stream"), SEED + 1, STREAM);
	setup();
	if (preadv2(xopen(up("f"), O_RDONLY), &v, 1, 0, RWF_DONTCACHE) < 0) {
		CHECK_EQ(errno, EOPNOTSUPP);
		SKIP("no RWF_DONTCACHE here");
	}
	plain = hot_pages_after(PLAIN);
	noreuse = hot_pages_after(NOREUSE);
	dontcache = hot_pages_after(DONTCACHE);
	printf("of %lu hot pages %lu are left after read, %lu with POSIX_FADV_NOREUSE, %lu with RWF_DONTCACHE\n",
	       PAGES(HOT), plain, noreuse, dontcache);
	CHECK(dontcache >= PAGES(HOT) * 95 / 100);
}

// SPDX-License-Identifier: GPL-2.0
/*
 * The owner of a device is not trusted: it can open only regular files, and
 * whatever it waits for, no other process waits for it.
 */
#include "t.h"
#include <linux/dm-ioctl.h>
#include <linux/userfaultfd.h>
#include <sys/sysmacros.h>

#define SEED 0x03e4
#define SIZE (MIB + 77)

static char path_buf[512];

/* Makes a file whose inode the mount keeps in memory, but that is not open; returns its id */
static u64 closed_file(void)
{
	int fd;
	u64 id;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	fd = xopen(up("f"), O_RDONLY);
	id = file_id(fd);
	close(fd);
	return id;
}

/* Does the child end by itself within the time? */
static bool ends_within(pid_t pid, int ms)
{
	u64 until = now_ns() + stretched(ms) * 1000000ull;
	int st;

	while (now_ns() < until) {
		if (waitpid(pid, &st, WNOHANG) == pid)
			return WIFSIGNALED(st) || !WEXITSTATUS(st);
		sleep_ms(5);
	}
	return false;
}

/* An umount, which no process may hold up, in a child that can be left behind */
static bool umounts_within(const char *mnt, int ms)
{
	pid_t pid = t_fork();

	if (!pid)
		_exit(umount2(mnt, 0) ? T_FAIL : T_PASS);
	if (!ends_within(pid, ms))
		return false;
	defer_forget(mnt);
	return true;
}

/* Which files it opens */

TEST(owner_opens_regular_files_only, 15)
{
	struct stat st;
	int dev, opened = 0;

	mk_file(lo("f"), SEED, SIZE);
	xmkdir(lo("d"));
	CHECK_OK(mkfifo(lo("fifo"), 0666));
	CHECK_OK(mknod(lo("null"), S_IFCHR | 0666, makedev(1, 3)));
	CHECK_OK(mknod(lo("sock"), S_IFSOCK | 0666, 0));
	CHECK_OK(symlink("f", lo("link")));
	setup();
	for (int i = 0; i < 6; i++)
		CHECK_OK(lstat(up(((char *[]){ "f", "d", "fifo", "null", "sock", "link" })[i]),
			       &st));
	dev = dev_open(t_mnt, O_NONBLOCK);
	/* Ids are assigned in order, so any process can guess those that FILE does not return */
	for (u64 id = 1; id < 32; id++) {
		int fd = lower_fd(dev, id, 0);

		if (fd < 0) {
			CHECK(errno == ESTALE || errno == EISDIR);
			continue;
		}
		CHECK_OK(fstat(fd, &st));
		CHECK(S_ISREG(st.st_mode));
		close(fd);
		opened++;
	}
	CHECK_EQ(opened, 1);
}

static int open_fds(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

TEST(owner_gets_no_descriptor_untold, 15)
{
	u64 id = closed_file();
	int dev = dev_open(t_mnt, O_NONBLOCK), before;
	struct rfs_lower_fd *l = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(l != MAP_FAILED);
	*l = (struct rfs_lower_fd){ .size = sizeof(*l), .file = id };
	CHECK_OK(mprotect(l, PAGE, PROT_READ));
	before = open_fds();
	for (int i = 0; i < 10; i++)
		CHECK_ERR(ioctl(dev, RFS_IOC_LOWER_FD, l), EFAULT);
	CHECK_EQ(open_fds(), before);
	close(CHECK_OK(lower_fd(dev, id, 0)));
}

/* Memory that never comes */

static void *missing_memory(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	void *p;

	if (fd < 0) {
		CHECK_EQ(errno, ENOSYS);
		SKIP("no userfaultfd");
	}
	p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(p != MAP_FAILED);
	CHECK_OK(ioctl(fd, UFFDIO_API, &api));
	reg.range = (struct uffdio_range){ (u64)(unsigned long)p, PAGE };
	CHECK_OK(ioctl(fd, UFFDIO_REGISTER, &reg));
	return p;
}

static void ask_path(int dev, u64 id, void *where)
{
	get_path(dev, id, where, PAGE);
}

static void ask_resident(int dev, u64 id, void *where)
{
	struct rfs_resident r = {
		.size = sizeof(r), .file = id, .length = SIZE,
		.bitmap = (u64)(unsigned long)where, .bitmap_len = PAGE,
	};

	ioctl(dev, RFS_IOC_RESIDENT, &r);
}

static void umount_beside(void (*ask)(int dev, u64 id, void *where))
{
	u64 id = closed_file();
	int ready[2];
	char c;
	pid_t pid;

	CHECK_OK(pipe(ready));
	pid = t_fork();
	if (!pid) {
		int dev = dev_open(t_mnt, O_NONBLOCK);
		void *p = missing_memory();

		CHECK_EQ(write(ready[1], "", 1), 1);
		ask(dev, id, p);
		_exit(T_FAIL);
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		JOIN(pid);
	sleep_ms(stretched(300));
	CHECK_EQ(waitpid(pid, NULL, WNOHANG), 0);
	CHECK(umounts_within(t_mnt, 2000));
	sync();
	kill(pid, SIGKILL);
	CHECK(ends_within(pid, 2000));
}

TEST(owner_waits_for_memory_of_a_path_alone, 20)
{
	umount_beside(ask_path);
}

TEST(owner_waits_for_memory_of_a_bitmap_alone, 20)
{
	umount_beside(ask_resident);
}

/* A disk that hangs: a device-mapper device that is suspended while it is mounted */

struct dm {
	struct dm_ioctl d;
	struct dm_target_spec t;
	char params[80];
};

static int dm_do(unsigned long cmd, u32 flags, struct dm *m)
{
	int ctl = xopen("/dev/mapper/control", O_RDWR), rc;

	m->d.version[0] = DM_VERSION_MAJOR;
	m->d.data_size = sizeof(*m);
	m->d.data_start = sizeof(m->d);
	m->d.flags = flags;
	strcpy(m->d.name, "owner");
	rc = ioctl(ctl, cmd, m);
	close(ctl);
	return rc;
}

/* Puts a device-mapper device over the disk; d->dev names that from then on */
static void dm_over(struct disk *d, int mib)
{
	struct dm m = { .t = { .length = mib * (MIB / 512) } };

	if (absent("/dev/mapper/control"))
		SKIP("no device mapper");
	CHECK_OK(dm_do(DM_DEV_CREATE, 0, &m));
	m.d.target_count = 1;
	strcpy(m.t.target_type, "linear");
	snprintf(m.params, sizeof(m.params), "%s 0", d->dev);
	snprintf(d->dev, sizeof(d->dev), "/dev/dm-%u",
		 (u32)((m.d.dev & 0xff) | (m.d.dev >> 12 & ~0xffu)));
	/* found by its name, or by its number, but not by both */
	m.d.dev = 0;
	CHECK_OK(dm_do(DM_TABLE_LOAD, 0, &m));
	memset(&m, 0, sizeof(m));
	CHECK_OK(dm_do(DM_DEV_SUSPEND, 0, &m));
}

static void dm_hang(bool hang)
{
	struct dm m = { 0 };

	CHECK_OK(dm_do(DM_DEV_SUSPEND, hang ? DM_SUSPEND_FLAG | DM_SKIP_LOCKFS_FLAG |
		       DM_NOFLUSH_FLAG : 0, &m));
}

static void dm_gone(void)
{
	struct dm m = { 0 };

	for (int i = 0; i < 100 && dm_do(DM_DEV_REMOVE, 0, &m); i++) {
		sleep_ms(20);
		memset(&m, 0, sizeof(m));
	}
	CHECK_ERR(dm_do(DM_DEV_STATUS, 0, &m), ENXIO);
}

/* Nothing is checked while the disk hangs: a check that fails would leave it hanging */
TEST(owner_waits_for_a_disk_alone, 30)
{
	static char below[192];
	bool umounted, killed;
	struct disk d;
	pid_t pid;
	int fd, dev;
	u64 id;

	snprintf(below, sizeof(below), "%s", lo("disk"));
	xmkdir(below);
	disk_make(&d, "owner", 320);
	dm_over(&d, 320);
	disk_mkfs(&d);
	disk_mount(&d, below);
	mk_file(join(below, "f"), SEED, 8 * MIB);
	must_mount_rfs(below, t_mnt, NULL);
	drop(join(below, "f"));
	dev = dev_open(t_mnt, O_NONBLOCK);
	fd = xopen(up("f"), O_RDONLY);
	id = file_id(fd);
	close(fd);
	dm_hang(true);
	pid = t_fork();
	if (!pid) {
		struct rfs_load l;

		load(dev, &l, id, 0, 8 * MIB, RFS_LOAD_WAIT);
		_exit(T_FAIL);
	}
	sleep_ms(stretched(300));
	umounted = umounts_within(t_mnt, 2000);
	kill(pid, SIGKILL);
	killed = ends_within(pid, 2000);
	dm_hang(false);
	CHECK(umounted);
	CHECK(killed);
	close(dev);
	/* the load's last reference to the file is put after its process has gone */
	do_umount(below);
	dm_gone();
}

/* Files larger than any memory */

#define HUGE_SIZE (7ull << 60)

static struct rfs_load l;
static struct rfs_evict e;

/* Makes a file of 7 EiB with 64 pages far from each other; returns its id */
static u64 huge_file(void)
{
	static char below[192];
	int fd;
	u64 id;

	snprintf(below, sizeof(below), "%s", lo("huge"));
	xmkdir(below);
	do_mount("tmpfs", below, "tmpfs", 0, NULL);
	fd = xopen(join(below, "f"), O_RDWR | O_CREAT);
	CHECK_OK(ftruncate(fd, HUGE_SIZE));
	for (u64 i = 0; i < 64; i++)
		CHECK_EQ(pwrite(fd, "x", 1, i * (HUGE_SIZE / 64)), 1);
	close(fd);
	must_mount_rfs(below, t_mnt, NULL);
	fd = xopen(up("f"), O_RDONLY);
	id = file_id(fd);
	close(fd);
	return id;
}

TEST(owner_walks_a_huge_sparse_file, 20)
{
	u64 id = huge_file(), start = now_ns();
	int dev = dev_open(t_mnt, O_NONBLOCK);
	struct rfs_resident r = {
		.size = sizeof(r), .file = id, .length = HUGE_SIZE,
		.bitmap = (u64)(unsigned long)path_buf, .bitmap_len = sizeof(path_buf),
	};

	CHECK_ERR(ioctl(dev, RFS_IOC_RESIDENT, &r), EMSGSIZE);
	r.bitmap = 0;
	r.bitmap_len = 0;
	CHECK_OK(ioctl(dev, RFS_IOC_RESIDENT, &r));
	CHECK_EQ(r.pages, HUGE_SIZE / PAGE);
	CHECK_EQ(r.cached, 64);
	CHECK_OK(evict(dev, &e, id, 0, HUGE_SIZE, 0));
	CHECK_LE(now_ns() - start, stretched(2000000000ull));
}

/* A long command ends with its process, and does not hold up the umount */
TEST(owner_loads_a_huge_sparse_file, 20)
{
	u64 id = huge_file();
	int dev = dev_open(t_mnt, O_NONBLOCK);
	pid_t pid[2];

	for (int i = 0; i < 2; i++) {
		pid[i] = t_fork();
		if (pid[i])
			continue;
		CHECK_OK(load(dev, &l, id, 0, HUGE_SIZE, 0));
		_exit(l.flags & RFS_LOAD_STOPPED ? T_PASS : T_FAIL);
	}
	sleep_ms(100);
	kill(pid[0], SIGKILL);
	CHECK(ends_within(pid[0], 2000));
	CHECK(umounts_within(t_mnt, 2000));
	CHECK(ends_within(pid[1], 2000));
}

/* Sends random commands, which cause nothing but errors of their own */
static void random_commands(int dev, u64 *state, int n)
{
	static const unsigned long cmd[] = {
		RFS_IOC_HELLO, RFS_IOC_MASK, RFS_IOC_LOWER_FD, RFS_IOC_PATH, RFS_IOC_LOAD,
		RFS_IOC_STOP, RFS_IOC_EVICT, RFS_IOC_RESIDENT, RFS_IOC_STATS,
	};
	union {
		u64 word[16];
		struct rfs_lower_fd fd;
	} arg;

	while (n--) {
		unsigned long nr = cmd[next_rand(state) % ARRAY_SIZE(cmd)];

		for (size_t i = 0; i < ARRAY_SIZE(arg.word); i++) {
			u64 r = next_rand(state);

			arg.word[i] = r % 4 ? r >> r % 64 & (r % 3 ? 0xff : ~0ull) : 0;
		}
		/* the size that every command begins with, and the file that most continue with */
		arg.word[0] = (next_rand(state) % 8 ? 0 : (u64)next_rand(state) << 32) |
			 _IOC_SIZE(nr);
		arg.word[1] = next_rand(state) % 4;
		if (!ioctl(dev, nr, &arg) && nr == RFS_IOC_LOWER_FD)
			close(arg.fd.fd);
	}
}

TEST(owner_sends_anything, 60)
{
	u64 state = SEED;
	int dev;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	close(xopen(up("f"), O_RDONLY));
	dev = dev_open(t_mnt, O_NONBLOCK);
	IN_CHILD(random_commands(dev, &state, 30000));
	check_path(up("f"), SEED, SIZE);
	close(dev);
	CHECK(umounts_within(t_mnt, 2000));
}

/* The same with a million commands */
TEST(storm_owner_sends_anything, 600)
{
	int dev;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	close(xopen(up("f"), O_RDONLY));
	dev = dev_open(t_mnt, O_NONBLOCK);
	for (int i = 0; i < 2; i++) {
		u64 state = SEED + i;

		IN_CHILD(random_commands(dev, &state, 500000));
	}
	check_path(up("f"), SEED, SIZE);
}

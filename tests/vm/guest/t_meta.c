// SPDX-License-Identifier: GPL-2.0
/* Metadata: names, attributes, directories, links. All as in the lower file system. */
#include "t.h"
#include <linux/stat.h>
#include <sys/sysmacros.h>

#define SEED 0x3e7a
#define SIZE 12345

/* Not defined by every libc */
#define T_STATX_DIOALIGN	0x2000u
#define T_STATX_BTIME		0x800u

struct t_statx {
	u32 mask, blksize;
	u64 attributes;
	u32 nlink, uid, gid;
	u16 mode, pad1;
	u64 ino, size, blocks, attributes_mask;
	struct { int64_t sec; u32 nsec; int pad; } atime, btime, ctime, mtime;
	u32 rdev_major, rdev_minor, dev_major, dev_minor;
	u64 mnt_id;
	u32 dio_mem_align, dio_offset_align;
	u64 spare[12];
};

static void tree(void)
{
	mk_file(lo("f"), SEED, SIZE);
	xmkdir(lo("d"));
	mk_file(lo("d/e"), SEED, 5);
	CHECK_OK(symlink("d/e", lo("s")));
	setup();
}

TEST(lookup_enoent, 10)
{
	tree();
	CHECK_ERR(access(up("no"), F_OK), ENOENT);
	CHECK_ERR(access(up("d/no"), F_OK), ENOENT);
	CHECK_ERR(access(up("no/no"), F_OK), ENOENT);
}

TEST(lookup_enotdir, 10)
{
	tree();
	CHECK_ERR(access(up("f/x"), F_OK), ENOTDIR);
	CHECK_ERR(open(up("f"), O_RDONLY | O_DIRECTORY), ENOTDIR);
	CHECK_ERR(access(up("f/"), F_OK), ENOTDIR);
}

TEST(lookup_enametoolong, 10)
{
	char name[300];

	tree();
	memset(name, 'n', sizeof(name));
	name[256] = 0;
	CHECK_ERR(access(lo(name), F_OK), ENAMETOOLONG);
	CHECK_ERR(access(up(name), F_OK), ENAMETOOLONG);
	name[255] = 0;
	CHECK_ERR(access(up(name), F_OK), ENOENT);
	mk_file(lo(name), SEED, 5);
	check_path(up(name), SEED, 5);
}

TEST(lookup_dot_dot, 10)
{
	tree();
	check_path(up("d/../f"), SEED, SIZE);
	check_path(up("./d/./e"), SEED, 5);
}

TEST(lookup_odd_names, 10)
{
	static const char *const name[] = {
		" ", "a b", "\n", "\xff\xfe", "...", "-f", "*", "\\",
	};

	setup();
	for (size_t i = 0; i < ARRAY_SIZE(name); i++) {
		mk_file(lo(name[i]), SEED + i, 100);
		check_path(up(name[i]), SEED + i, 100);
	}
}

static void same_stat(const char *name)
{
	struct stat a, b;

	CHECK_OK(lstat(up(name), &a));
	CHECK_OK(lstat(lo(name), &b));
	CHECK(a.st_dev != b.st_dev);
	CHECK_EQ(a.st_ino, b.st_ino);
	CHECK_EQ(a.st_mode, b.st_mode);
	CHECK_EQ(a.st_nlink, b.st_nlink);
	CHECK_EQ(a.st_uid, b.st_uid);
	CHECK_EQ(a.st_gid, b.st_gid);
	CHECK_EQ(a.st_rdev, b.st_rdev);
	CHECK_EQ(a.st_size, b.st_size);
	CHECK_EQ(a.st_blksize, b.st_blksize);
	CHECK_EQ(a.st_blocks, b.st_blocks);
	CHECK_EQ(a.st_atim.tv_sec, b.st_atim.tv_sec);
	CHECK_EQ(a.st_atim.tv_nsec, b.st_atim.tv_nsec);
	CHECK_EQ(a.st_mtim.tv_sec, b.st_mtim.tv_sec);
	CHECK_EQ(a.st_mtim.tv_nsec, b.st_mtim.tv_nsec);
	CHECK_EQ(a.st_ctim.tv_sec, b.st_ctim.tv_sec);
	CHECK_EQ(a.st_ctim.tv_nsec, b.st_ctim.tv_nsec);
}

TEST(stat_as_lower, 10)
{
	tree();
	CHECK_OK(chown(lo("f"), 123, 456));
	CHECK_OK(chmod(lo("f"), 04751));
	CHECK_OK(mknod(lo("fifo"), S_IFIFO | 0640, 0));
	CHECK_OK(mknod(lo("null"), S_IFCHR | 0666, makedev(1, 3)));
	CHECK_OK(mknod(lo("loop"), S_IFBLK | 0600, makedev(7, 0)));
	CHECK_OK(mknod(lo("sock"), S_IFSOCK | 0600, 0));
	same_stat("f");
	same_stat("d");
	same_stat("d/e");
	same_stat("s");
	same_stat("fifo");
	same_stat("null");
	same_stat("loop");
	same_stat("sock");
	same_stat(".");
}

TEST(fstat_as_stat, 10)
{
	struct stat a, b;

	tree();
	CHECK_OK(stat(up("f"), &a));
	CHECK_OK(fstat(xopen(up("f"), O_RDONLY), &b));
	CHECK_EQ(a.st_dev, b.st_dev);
	CHECK_EQ(a.st_ino, b.st_ino);
	CHECK_EQ(a.st_size, b.st_size);
	CHECK_EQ(a.st_mode, b.st_mode);
	CHECK_OK(stat(t_mnt, &b));
	CHECK_EQ(a.st_dev, b.st_dev);
}

static struct t_statx statx_of(const char *path, u32 mask)
{
	struct t_statx x = { 0 };

	CHECK_EQ(sizeof(x), 256);
	CHECK_OK(syscall(SYS_statx, AT_FDCWD, path, 0, mask, &x));
	return x;
}

TEST(statx_as_lower, 10)
{
	struct t_statx a, b;

	tree();
	a = statx_of(up("f"), STATX_BASIC_STATS | T_STATX_BTIME);
	b = statx_of(lo("f"), STATX_BASIC_STATS | T_STATX_BTIME);
	CHECK_EQ(a.mask, b.mask);
	CHECK_EQ(a.attributes, b.attributes);
	CHECK_EQ(a.size, b.size);
	CHECK_EQ(a.btime.sec, b.btime.sec);
	CHECK_EQ(a.btime.nsec, b.btime.nsec);
	if (b.mask & T_STATX_BTIME)
		CHECK(a.btime.sec > 0);
	CHECK_EQ(a.mtime.nsec, b.mtime.nsec);
	CHECK(a.dev_major != b.dev_major || a.dev_minor != b.dev_minor);
}

TEST(statx_dioalign_as_lower, 10)
{
	struct t_statx a, b;

	tree();
	b = statx_of(lo("f"), T_STATX_DIOALIGN);
	if (!(b.mask & T_STATX_DIOALIGN))
		SKIP("no STATX_DIOALIGN");
	a = statx_of(up("f"), T_STATX_DIOALIGN);
	CHECK(a.mask & T_STATX_DIOALIGN);
	CHECK_EQ(a.dio_mem_align, b.dio_mem_align);
	CHECK_EQ(a.dio_offset_align, b.dio_offset_align);
}

TEST(statx_dioalign_when_denied, 10)
{
	struct t_statx a;

	mk_file(lo("f"), SEED, SIZE);
	must_mount_rfs(t_lower, t_mnt, "odirect=deny");
	a = statx_of(up("f"), T_STATX_DIOALIGN);
	if (!(statx_of(lo("f"), T_STATX_DIOALIGN).mask & T_STATX_DIOALIGN))
		SKIP("no STATX_DIOALIGN");
	/* Zero says that direct I/O is not supported */
	if (a.mask & T_STATX_DIOALIGN)
		CHECK_EQ(a.dio_offset_align, 0);
}

TEST(statfs_as_lower, 10)
{
	struct statfs a, b;

	tree();
	CHECK_OK(statfs(up("f"), &a));
	CHECK_OK(statfs(lo("f"), &b));
	CHECK_EQ(a.f_type, RFS_SUPER_MAGIC);
	CHECK_EQ(a.f_bsize, b.f_bsize);
	CHECK_EQ(a.f_blocks, b.f_blocks);
	CHECK_EQ(a.f_bfree, b.f_bfree);
	CHECK_EQ(a.f_files, b.f_files);
	CHECK_EQ(a.f_namelen, b.f_namelen);
}

/* Directories */

#define MANY 5000

/* A debug kernel takes minutes to make and remove MANY names */
static int how_many(void)
{
	return stretched(1) > 1 ? MANY / 5 : MANY;
}

static void many(void)
{
	char name[32];

	xmkdir(lo("big"));
	for (int i = 0; i < how_many(); i++) {
		snprintf(name, sizeof(name), "big/entry_%d", i);
		close(xopen(lo(name), O_WRONLY | O_CREAT));
	}
	setup();
}

TEST(readdir_5000_entries, 30)
{
	static u8 seen[MANY];
	struct dirent *e;
	struct stat st;
	int i, n = 0;
	DIR *d;

	many();
	d = opendir(up("big"));
	CHECK(d);
	while ((e = readdir(d))) {
		n++;
		if (e->d_name[0] == '.')
			continue;
		CHECK_EQ(sscanf(e->d_name, "entry_%d", &i), 1);
		CHECK(i >= 0 && i < how_many());
		CHECK_EQ(seen[i], 0);
		seen[i] = 1;
		if (i % 500 == 0) {
			CHECK_OK(fstatat(dirfd(d), e->d_name, &st, 0));
			CHECK_EQ(st.st_ino, e->d_ino);
		}
	}
	CHECK_EQ(n, how_many() + 2);
	closedir(d);
}

TEST(readdir_seek_and_rewind, 30)
{
	static char names[MANY + 2][24];
	static long at[MANY + 2];
	struct dirent *e;
	int n = 0;
	DIR *d;

	many();
	d = opendir(up("big"));
	CHECK(d);
	for (; (at[n] = telldir(d), e = readdir(d)); n++)
		snprintf(names[n], sizeof(names[n]), "%.23s", e->d_name);
	CHECK_EQ(n, how_many() + 2);
	for (int i = n - 1; i >= 0; i -= 617) {
		seekdir(d, at[i]);
		e = readdir(d);
		CHECK(e);
		CHECK_STR(e->d_name, names[i]);
	}
	seekdir(d, at[how_many() / 2]);
	for (int i = how_many() / 2; i < n; i++) {
		e = readdir(d);
		CHECK(e);
		CHECK_STR(e->d_name, names[i]);
	}
	CHECK(!readdir(d));
	rewinddir(d);
	e = readdir(d);
	CHECK(e);
	CHECK_STR(e->d_name, names[0]);
	closedir(d);
}

TEST(readdir_types_and_inode_numbers, 10)
{
	struct dirent *e;
	struct stat st;
	int n = 0;
	DIR *d;

	tree();
	CHECK_OK(mknod(lo("fifo"), S_IFIFO | 0640, 0));
	CHECK_OK(mknod(lo("null"), S_IFCHR | 0666, makedev(1, 3)));
	d = opendir(t_mnt);
	CHECK(d);
	while ((e = readdir(d))) {
		if (!strcmp(e->d_name, ".."))
			continue;
		CHECK_OK(fstatat(dirfd(d), e->d_name, &st,
				 AT_SYMLINK_NOFOLLOW));
		CHECK_EQ(e->d_ino, st.st_ino);
		CHECK_EQ(DTTOIF(e->d_type), st.st_mode & S_IFMT);
		n++;
	}
	CHECK_EQ(n, 6);
	closedir(d);
}

TEST(readdir_dot_entries, 10)
{
	struct dirent *e;
	int dots = 0;
	DIR *d;

	tree();
	d = opendir(up("d"));
	CHECK(d);
	while ((e = readdir(d)))
		dots += !strcmp(e->d_name, ".") || !strcmp(e->d_name, "..");
	CHECK_EQ(dots, 2);
	closedir(d);
}

TEST(readdir_small_buffer, 10)
{
	static char buf[280];
	int fd, n, total = 0;

	tree();
	fd = xopen(t_mnt, O_RDONLY | O_DIRECTORY);
	CHECK_ERR(syscall(SYS_getdents64, fd, buf, 8), EINVAL);
	while ((n = CHECK_OK(syscall(SYS_getdents64, fd, buf, 30))) > 0)
		total++;
	CHECK(total >= 5);
	CHECK_OK(lseek(fd, 0, SEEK_SET));
	CHECK(CHECK_OK(syscall(SYS_getdents64, fd, buf, sizeof(buf))) > 0);
}

/* Links */

TEST(symlink_relative_and_absolute, 10)
{
	char buf[512] = "";

	tree();
	CHECK_EQ(readlink(up("s"), buf, sizeof(buf)), 3);
	CHECK_STR(buf, "d/e");
	check_path(up("s"), SEED, 5);
	CHECK_OK(symlink(up("f"), lo("abs")));
	check_path(up("abs"), SEED, SIZE);
	CHECK_OK(symlink("../f", lo("d/up")));
	check_path(up("d/up"), SEED, SIZE);
	CHECK_OK(symlink("d", lo("dir")));
	check_path(up("dir/e"), SEED, 5);
	CHECK_ERR(open(up("s"), O_RDONLY | O_NOFOLLOW), ELOOP);
	CHECK_ERR(readlink(up("f"), buf, sizeof(buf)), EINVAL);
}

TEST(symlink_dangling_and_loop, 10)
{
	struct stat st;

	tree();
	CHECK_OK(symlink("nowhere", lo("dangling")));
	CHECK_ERR(open(up("dangling"), O_RDONLY), ENOENT);
	CHECK_OK(lstat(up("dangling"), &st));
	CHECK_OK(symlink("b", lo("a")));
	CHECK_OK(symlink("a", lo("b")));
	CHECK_ERR(open(up("a"), O_RDONLY), ELOOP);
}

TEST(symlink_long_target, 10)
{
	static char target[1001], a[4096], b[4096];

	setup();
	memset(target, 'x', sizeof(target) - 1);
	CHECK_OK(symlink(target, lo("long")));
	CHECK_EQ(readlink(up("long"), a, sizeof(a)), 1000);
	CHECK_EQ(readlink(lo("long"), b, sizeof(b)), 1000);
	CHECK_EQ(memcmp(a, b, 1000), 0);
	CHECK_EQ(readlink(up("long"), a, 10), 10);
}

TEST(hard_links_share_the_inode, 10)
{
	struct stat a, b;

	tree();
	CHECK_OK(link(lo("f"), lo("d/g")));
	CHECK_OK(stat(up("f"), &a));
	CHECK_OK(stat(up("d/g"), &b));
	CHECK_EQ(a.st_ino, b.st_ino);
	CHECK_EQ(a.st_dev, b.st_dev);
	CHECK_EQ(a.st_nlink, 2);
	check_path(up("d/g"), SEED, SIZE);
}

/* Other kinds of files */

TEST(special_fifo_works, 10)
{
	char buf[8] = "";
	int r, w;

	CHECK_OK(mkfifo(lo("fifo"), 0666));
	setup();
	/* Writing to a pipe changes no file system */
	r = xopen(up("fifo"), O_RDONLY | O_NONBLOCK);
	w = xopen(up("fifo"), O_WRONLY | O_NONBLOCK);
	CHECK_EQ(write(w, "hello", 5), 5);
	CHECK_EQ(read(r, buf, 8), 5);
	CHECK_STR(buf, "hello");
}

TEST(special_device_node_works, 10)
{
	char buf[4096];

	CHECK_OK(mknod(lo("zero"), S_IFCHR | 0666, makedev(1, 5)));
	setup();
	memset(buf, 1, sizeof(buf));
	CHECK_EQ(read(xopen(up("zero"), O_RDONLY), buf, 100), 100);
	CHECK(buf[0] == 0 && buf[99] == 0 && buf[100] == 1);
}

TEST(special_socket_refused, 10)
{
	CHECK_OK(mknod(lo("sock"), S_IFSOCK | 0666, 0));
	setup();
	CHECK_ERR(open(up("sock"), O_RDONLY), ENXIO);
}

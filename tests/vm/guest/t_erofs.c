// SPDX-License-Identifier: GPL-2.0
/* Every call that would write is refused, and nothing changes below. */
#include "t.h"
#include <sys/statvfs.h>
#include <sys/xattr.h>

#define SEED 0xe20f5
#define SIZE 10000

static struct stat before_f, before_d;

static void note(void)
{
	CHECK_OK(stat(lo("f"), &before_f));
	CHECK_OK(stat(lo("d"), &before_d));
}

static void same(const struct stat *a, const struct stat *b)
{
	CHECK_EQ(a->st_mode, b->st_mode);
	CHECK_EQ(a->st_uid, b->st_uid);
	CHECK_EQ(a->st_gid, b->st_gid);
	CHECK_EQ(a->st_nlink, b->st_nlink);
	CHECK_EQ(a->st_size, b->st_size);
	CHECK_EQ(a->st_blocks, b->st_blocks);
	CHECK_EQ(a->st_mtim.tv_sec, b->st_mtim.tv_sec);
	CHECK_EQ(a->st_mtim.tv_nsec, b->st_mtim.tv_nsec);
	CHECK_EQ(a->st_ctim.tv_sec, b->st_ctim.tv_sec);
	CHECK_EQ(a->st_ctim.tv_nsec, b->st_ctim.tv_nsec);
	CHECK_EQ(a->st_atim.tv_sec, b->st_atim.tv_sec);
	CHECK_EQ(a->st_atim.tv_nsec, b->st_atim.tv_nsec);
}

/* f a file, s a symlink to it, d a directory with a file e */
static void tree(void)
{
	mk_file(lo("f"), SEED, SIZE);
	CHECK_OK(symlink("f", lo("s")));
	xmkdir(lo("d"));
	mk_file(lo("d/e"), SEED, 1);
	CHECK_OK(setxattr(lo("f"), "user.a", "b", 1, 0));
	setup();
	note();
}

/* No file appeared, disappeared or changed */
static void unchanged(void)
{
	struct stat st;

	CHECK_OK(stat(lo("f"), &st));
	same(&st, &before_f);
	CHECK_OK(stat(lo("d"), &st));
	same(&st, &before_d);
	CHECK_ERR(access(lo("new"), F_OK), ENOENT);
	CHECK_OK(access(lo("d/e"), F_OK));
	CHECK_OK(access(lo("s"), F_OK));
	check_path(lo("f"), SEED, SIZE);
}

#define REFUSED(name, expr)						\
	TEST(erofs_##name, 10)						\
	{								\
		tree();							\
		CHECK_ERR(expr, EROFS);					\
		unchanged();						\
	}

static const struct timespec times[2] = { { 1, 0 }, { 2, 0 } };

REFUSED(open_wronly, open(up("f"), O_WRONLY))
REFUSED(open_rdwr, open(up("f"), O_RDWR))
REFUSED(open_append, open(up("f"), O_WRONLY | O_APPEND))
REFUSED(open_trunc, open(up("f"), O_WRONLY | O_TRUNC))
REFUSED(open_creat, open(up("new"), O_RDONLY | O_CREAT, 0644))
REFUSED(open_creat_write, open(up("new"), O_RDWR | O_CREAT | O_EXCL, 0644))
REFUSED(open_tmpfile, open(t_mnt, O_RDWR | O_TMPFILE, 0600))
REFUSED(mkdir, mkdir(up("new"), 0755))
REFUSED(rmdir, rmdir(up("d")))
REFUSED(unlink, unlink(up("f")))
REFUSED(rename, rename(up("f"), up("new")))
REFUSED(rename_over, rename(up("f"), up("d/e")))
REFUSED(rename_exchange,
	renameat2(AT_FDCWD, up("f"), AT_FDCWD, up("d/e"), RENAME_EXCHANGE))
REFUSED(link, link(up("f"), up("new")))
REFUSED(symlink, symlink("f", up("new")))
REFUSED(mknod_fifo, mknod(up("new"), S_IFIFO | 0644, 0))
REFUSED(mknod_file, mknod(up("new"), S_IFREG | 0644, 0))
REFUSED(mknod_device, mknod(up("new"), S_IFCHR | 0644, 0x103))
REFUSED(chmod, chmod(up("f"), 0600))
REFUSED(chown, chown(up("f"), 1, 1))
REFUSED(lchown, lchown(up("s"), 1, 1))
REFUSED(utimensat, utimensat(AT_FDCWD, up("f"), times, 0))
REFUSED(utimensat_now, utimensat(AT_FDCWD, up("f"), NULL, 0))
REFUSED(truncate, truncate(up("f"), 5))
REFUSED(truncate_longer, truncate(up("f"), SIZE + 1))
REFUSED(setxattr, setxattr(up("f"), "user.x", "y", 1, 0))
REFUSED(setxattr_trusted, setxattr(up("f"), "trusted.x", "y", 1, 0))
REFUSED(removexattr, removexattr(up("f"), "user.a"))
REFUSED(access_w_ok, access(up("f"), W_OK))

TEST(erofs_link_between_mounts_exdev, 10)
{
	tree();
	CHECK_ERR(link(lo("f"), up("new")), EROFS);
	CHECK_ERR(link(up("f"), lo("new")), EXDEV);
	CHECK_ERR(rename(lo("f"), up("new")), EXDEV);
	CHECK_ERR(rename(up("f"), lo("new")), EXDEV);
	unchanged();
}

TEST(erofs_by_descriptor, 10)
{
	int fd, flags = 0;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	CHECK_ERR(fchmod(fd, 0600), EROFS);
	CHECK_ERR(fchown(fd, 1, 1), EROFS);
	CHECK_ERR(futimens(fd, times), EROFS);
	CHECK_ERR(fsetxattr(fd, "user.x", "y", 1, 0), EROFS);
	CHECK_ERR(fremovexattr(fd, "user.a"), EROFS);
	CHECK_ERR(write(fd, "x", 1), EBADF);
	CHECK_ERR(pwrite(fd, "x", 1, 0), EBADF);
	CHECK_ERR(ftruncate(fd, 1), EINVAL);
	CHECK_ERR(fallocate(fd, 0, 0, 100), EBADF);
	CHECK_ERR(splice(xopen(lo("f"), O_RDONLY), NULL, fd, NULL, 1, 0),
		  EBADF);
	/* FS_IOC_SETFLAGS: refused, or unknown */
	CHECK(ioctl(fd, 0x40086602, &flags) == -1);
	CHECK(errno == EROFS || errno == ENOTTY);
	unchanged();
}

TEST(erofs_write_through_proc_link, 10)
{
	char link[64];

	tree();
	snprintf(link, sizeof(link), "/proc/self/fd/%d",
		 xopen(up("f"), O_RDONLY));
	CHECK_ERR(open(link, O_WRONLY), EROFS);
	CHECK_ERR(truncate(link, 1), EROFS);
	unchanged();
}

TEST(erofs_mmap_shared_write_eacces, 10)
{
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) ==
	      MAP_FAILED);
	CHECK_EQ(errno, EACCES);
	unchanged();
}

TEST(erofs_mprotect_shared_write_eacces, 10)
{
	u8 *p;

	tree();
	p = xmap(xopen(up("f"), O_RDONLY), 0, SIZE, PROT_READ, MAP_SHARED);
	CHECK_ERR(mprotect(p, SIZE, PROT_READ | PROT_WRITE), EACCES);
	CHECK_BYTES(p, SEED, 0, SIZE);
	unchanged();
}

TEST(erofs_proc_mem_write_does_not_reach_lower, 10)
{
	int mem;
	u8 *p;

	tree();
	p = xmap(xopen(up("f"), O_RDONLY), 0, SIZE, PROT_READ, MAP_SHARED);
	mem = xopen("/proc/self/mem", O_RDWR);
	/* A debugger's forced writes never reach a shared read-only mapping */
	CHECK(pwrite(mem, "x", 1, (off_t)(unsigned long)p) == -1);
	CHECK_BYTES(p, SEED, 0, SIZE);
	unchanged();
}

TEST(erofs_swapon_refused, 10)
{
	tree();
	CHECK_ERR(syscall(SYS_swapon, up("f"), 0), EROFS);
	unchanged();
}

/* Reading leaves no trace, not even an access time */
TEST(erofs_reading_changes_nothing_below, 15)
{
	struct timespec old[2] = { { 1000, 0 }, { 2000, 0 } };
	char buf[64];
	struct dirent *e;
	DIR *d;

	tree();
	/* An access time that relatime would update */
	CHECK_OK(utimensat(AT_FDCWD, lo("f"), old, 0));
	CHECK_OK(utimensat(AT_FDCWD, lo("d"), old, 0));
	CHECK_OK(utimensat(AT_FDCWD, lo("s"), old, AT_SYMLINK_NOFOLLOW));
	note();
	check_path(up("f"), SEED, SIZE);
	check_map(up("f"), SEED, SIZE);
	CHECK(readlink(up("s"), buf, sizeof(buf)) == 1);
	CHECK(getxattr(up("f"), "user.a", buf, 1) == 1);
	d = opendir(up("d"));
	CHECK(d);
	while ((e = readdir(d)))
		CHECK(e->d_name[0]);
	closedir(d);
	sync();
	unchanged();
}

TEST(erofs_statfs_says_read_only, 10)
{
	struct statvfs v;

	tree();
	CHECK_OK(statvfs(t_mnt, &v));
	CHECK(v.f_flag & ST_RDONLY);
}

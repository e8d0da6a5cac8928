// SPDX-License-Identifier: GPL-2.0
/* Extended attributes, permissions, and what else a descriptor can do. */
#include "t.h"
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/sendfile.h>
#include <sys/xattr.h>

#define SEED 0xa77
#define SIZE 12345

static void tree(void)
{
	mk_file(lo("f"), SEED, SIZE);
	xmkdir(lo("d"));
	mk_file(lo("d/e"), SEED, 5);
	setup();
}

TEST(xattr_get, 10)
{
	char buf[64] = "";

	tree();
	CHECK_OK(setxattr(lo("f"), "user.color", "green", 5, 0));
	CHECK_OK(setxattr(lo("f"), "user.empty", "", 0, 0));
	CHECK_EQ(getxattr(up("f"), "user.color", buf, sizeof(buf)), 5);
	CHECK_STR(buf, "green");
	CHECK_EQ(getxattr(up("f"), "user.color", NULL, 0), 5);
	CHECK_EQ(getxattr(up("f"), "user.empty", buf, sizeof(buf)), 0);
	CHECK_ERR(getxattr(up("f"), "user.color", buf, 4), ERANGE);
	CHECK_ERR(getxattr(up("f"), "user.none", buf, 4), ENODATA);
	CHECK_ERR(getxattr(up("f"), "unknown.x", buf, 4), EOPNOTSUPP);
	CHECK_EQ(fgetxattr(xopen(up("f"), O_RDONLY), "user.color", buf, 64), 5);
	CHECK_OK(setxattr(lo("d"), "user.dir", "1", 1, 0));
	CHECK_EQ(getxattr(up("d"), "user.dir", buf, sizeof(buf)), 1);
}

TEST(xattr_list_as_lower, 10)
{
	char a[512], b[512];
	ssize_t n;

	tree();
	CHECK_EQ(listxattr(up("f"), a, sizeof(a)),
		 listxattr(lo("f"), b, sizeof(b)));
	CHECK_OK(setxattr(lo("f"), "user.one", "1", 1, 0));
	CHECK_OK(setxattr(lo("f"), "user.two", "2", 1, 0));
	CHECK_OK(setxattr(lo("f"), "trusted.three", "3", 1, 0));
	n = CHECK_OK(listxattr(up("f"), a, sizeof(a)));
	CHECK_EQ(n, listxattr(lo("f"), b, sizeof(b)));
	CHECK_EQ(memcmp(a, b, n), 0);
	CHECK_EQ(listxattr(up("f"), NULL, 0), n);
	CHECK_ERR(listxattr(up("f"), a, n - 1), ERANGE);
	CHECK_EQ(flistxattr(xopen(up("f"), O_RDONLY), a, sizeof(a)), n);
}

TEST(xattr_trusted_for_root_only, 10)
{
	char buf[256];

	tree();
	CHECK_OK(setxattr(lo("f"), "trusted.t", "42", 2, 0));
	CHECK_EQ(getxattr(up("f"), "trusted.t", buf, sizeof(buf)), 2);
	AS_USER(1000, 1000,
		CHECK_ERR(getxattr(up("f"), "trusted.t", buf, 256), ENODATA);
		ssize_t n = CHECK_OK(listxattr(up("f"), buf, sizeof(buf)));
		CHECK(!memmem(buf, n, "trusted", 7)));
}

TEST(xattr_user_needs_read_permission, 10)
{
	char buf[16];

	tree();
	CHECK_OK(setxattr(lo("f"), "user.a", "1", 1, 0));
	CHECK_OK(chmod(lo("f"), 0600));
	AS_USER(1000, 1000,
		CHECK_ERR(getxattr(up("f"), "user.a", buf, 16), EACCES));
}

/* A POSIX ACL as the kernel keeps it */
struct acl {
	u32 version;
	struct { u16 tag, perm; u32 id; } e[5];
};

static void set_acl(const char *path, u16 perm_of_1000)
{
	struct acl a = {
		2, { { 0x01, 6, ~0u }, { 0x02, perm_of_1000, 1000 },
		     { 0x04, 0, ~0u }, { 0x10, 7, ~0u }, { 0x20, 0, ~0u } },
	};

	if (setxattr(path, "system.posix_acl_access", &a, sizeof(a), 0)) {
		CHECK_EQ(errno, EOPNOTSUPP);
		SKIP("the lower file system has no ACLs");
	}
}

TEST(acl_grants_and_denies, 10)
{
	tree();
	CHECK_OK(chmod(lo("f"), 0600));
	AS_USER(1000, 1000, CHECK_ERR(open(up("f"), O_RDONLY), EACCES));
	set_acl(lo("f"), 4);
	AS_USER(1000, 1000, check_path(up("f"), SEED, SIZE));
	AS_USER(1001, 1001, CHECK_ERR(open(up("f"), O_RDONLY), EACCES));
	set_acl(lo("f"), 0);
	AS_USER(1000, 1000, CHECK_ERR(open(up("f"), O_RDONLY), EACCES));
}

TEST(acl_of_directory_is_enforced, 10)
{
	tree();
	CHECK_OK(chmod(lo("d"), 0700));
	AS_USER(1000, 1000, CHECK_ERR(open(up("d/e"), O_RDONLY), EACCES));
	set_acl(lo("d"), 5);
	AS_USER(1000, 1000, check_path(up("d/e"), SEED, 5));
	AS_USER(1001, 1001, CHECK_ERR(open(up("d/e"), O_RDONLY), EACCES));
}

TEST(acl_reads_as_lower, 10)
{
	char a[256], b[256];
	ssize_t n;

	tree();
	set_acl(lo("f"), 4);
	n = CHECK_OK(getxattr(up("f"), "system.posix_acl_access", a, 256));
	CHECK_EQ(n, getxattr(lo("f"), "system.posix_acl_access", b, 256));
	CHECK_EQ(memcmp(a, b, n), 0);
}

TEST(permission_by_mode, 10)
{
	tree();
	CHECK_OK(chmod(lo("f"), 0600));
	AS_USER(1000, 1000, CHECK_ERR(open(up("f"), O_RDONLY), EACCES));
	CHECK_OK(chown(lo("f"), 0, 1000));
	AS_USER(1000, 1000, CHECK_ERR(open(up("f"), O_RDONLY), EACCES));
	CHECK_OK(chmod(lo("f"), 0640));
	AS_USER(1000, 1000, check_path(up("f"), SEED, SIZE));
	AS_USER(1000, 1001, CHECK_ERR(open(up("f"), O_RDONLY), EACCES));
	CHECK_OK(chmod(lo("f"), 0000));
	check_path(up("f"), SEED, SIZE);
}

TEST(permission_of_directories, 10)
{
	DIR *d;

	tree();
	CHECK_OK(chmod(lo("d"), 0744));
	AS_USER(1000, 1000, CHECK_ERR(access(up("d/e"), F_OK), EACCES);
		CHECK_ERR(chdir(up("d")), EACCES);
		d = opendir(up("d"));
		CHECK(d && readdir(d)));
	CHECK_OK(chmod(lo("d"), 0711));
	AS_USER(1000, 1000, check_path(up("d/e"), SEED, 5);
		CHECK(!opendir(up("d")));
		CHECK_EQ(errno, EACCES));
}

TEST(permission_of_open_file_is_kept, 10)
{
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	CHECK_OK(chmod(lo("f"), 0600));
	AS_USER(1000, 1000, check_fd(fd, SEED, SIZE);
		u8 *p = xmap(fd, 0, SIZE, PROT_READ, MAP_SHARED);
		CHECK_BYTES(p, SEED, 0, SIZE));
}

TEST(permission_access_call, 10)
{
	tree();
	CHECK_OK(access(up("f"), R_OK));
	CHECK_ERR(access(up("f"), X_OK), EACCES);
	CHECK_OK(chmod(lo("f"), 0711));
	CHECK_OK(access(up("f"), X_OK));
	AS_USER(1000, 1000, CHECK_OK(access(up("f"), X_OK));
		CHECK_ERR(access(up("f"), R_OK), EACCES));
}

TEST(permission_noatime_needs_the_owner, 10)
{
	tree();
	close(xopen(up("f"), O_RDONLY | O_NOATIME));
	AS_USER(1000, 1000,
		CHECK_ERR(open(up("f"), O_RDONLY | O_NOATIME), EPERM));
}

TEST(permission_setuid_bit_shows, 10)
{
	struct stat st;

	tree();
	CHECK_OK(chmod(lo("f"), 06755));
	CHECK_OK(stat(up("f"), &st));
	CHECK_EQ(st.st_mode & 07777, 06755);
}

/* Seeking */

TEST(seek_hole_and_data_as_lower, 10)
{
	int fd, low;

	setup();
	low = xopen(lo("s"), O_RDWR | O_CREAT);
	CHECK_OK(ftruncate(low, 2 * MIB));
	write_pat(low, SEED, 256 * KIB, 8192);
	write_pat(low, SEED, MIB, 100);
	CHECK_OK(fsync(low));
	fd = xopen(up("s"), O_RDONLY);
	CHECK_EQ(lseek(fd, 0, SEEK_DATA), 256 * KIB);
	for (u64 at = 0; at <= 2 * MIB; at += 64 * KIB - 100) {
		CHECK_EQ(lseek(fd, at, SEEK_HOLE), lseek(low, at, SEEK_HOLE));
		CHECK_EQ(lseek(fd, at, SEEK_DATA), lseek(low, at, SEEK_DATA));
	}
	CHECK_ERR(lseek(fd, 3 * MIB, SEEK_DATA), ENXIO);
	CHECK_ERR(lseek(fd, 3 * MIB, SEEK_HOLE), ENXIO);
}

TEST(seek_set_cur_end, 10)
{
	char c;
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	CHECK_EQ(lseek(fd, 0, SEEK_END), SIZE);
	CHECK_EQ(read(fd, &c, 1), 0);
	CHECK_EQ(lseek(fd, -10, SEEK_END), SIZE - 10);
	CHECK_EQ(lseek(fd, 5, SEEK_CUR), SIZE - 5);
	CHECK_EQ(read(fd, &c, 1), 1);
	CHECK_BYTES(&c, SEED, SIZE - 5, 1);
	CHECK_ERR(lseek(fd, -1, SEEK_SET), EINVAL);
	CHECK_EQ(lseek(fd, 1ll << 40, SEEK_SET), 1ll << 40);
	CHECK_EQ(read(fd, &c, 1), 0);
	CHECK_ERR(lseek(fd, 0, 77), EINVAL);
}

/* Locks and leases */

TEST(lock_flock, 10)
{
	int a, b;

	tree();
	a = xopen(up("f"), O_RDONLY);
	b = xopen(up("f"), O_RDONLY);
	CHECK_OK(flock(a, LOCK_EX));
	CHECK_ERR(flock(b, LOCK_EX | LOCK_NB), EWOULDBLOCK);
	CHECK_ERR(flock(b, LOCK_SH | LOCK_NB), EWOULDBLOCK);
	CHECK_OK(flock(a, LOCK_UN));
	CHECK_OK(flock(b, LOCK_SH | LOCK_NB));
	CHECK_OK(flock(a, LOCK_SH | LOCK_NB));
}

TEST(lock_fcntl, 10)
{
	struct flock l = { .l_type = F_RDLCK, .l_len = 100 };
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	CHECK_OK(fcntl(fd, F_SETLK, &l));
	IN_CHILD(struct flock q = { .l_type = F_WRLCK, .l_len = 50 };
		 CHECK_OK(fcntl(fd, F_GETLK, &q));
		 CHECK_EQ(q.l_type, F_RDLCK);
		 CHECK_EQ(q.l_len, 100));
	l.l_type = F_WRLCK;
	CHECK_ERR(fcntl(fd, F_SETLK, &l), EBADF);
	l.l_type = F_UNLCK;
	CHECK_OK(fcntl(fd, F_SETLK, &l));
}

TEST(lock_is_not_shared_with_lower, 10)
{
	struct flock l = { .l_type = F_WRLCK, .l_len = 100 };
	int low;

	tree();
	CHECK_OK(flock(xopen(up("f"), O_RDONLY), LOCK_EX));
	low = xopen(lo("f"), O_RDWR);
	CHECK_OK(flock(low, LOCK_EX | LOCK_NB));
	CHECK_OK(fcntl(low, F_SETLK, &l));
	l.l_type = F_RDLCK;
	IN_CHILD(CHECK_OK(fcntl(xopen(up("f"), O_RDONLY), F_SETLK, &l)));
}

TEST(copy_goes_to_another_file_system, 10)
{
	int fd, to;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	to = xopen(lo("copy"), O_RDWR | O_CREAT);
	CHECK_ERR(copy_file_range(fd, &(off64_t){ 0 }, to, &(off64_t){ 0 }, SIZE, 0), EXDEV);
	CHECK_EQ(sendfile(to, fd, &(off_t){ 0 }, SIZE), SIZE);
	check_path(lo("copy"), SEED, SIZE);
}

TEST(atime_below_stays, 10)
{
	struct timespec t[2] = { { 1111, 22 }, { 3333, 44 } };
	struct stat st;

	tree();
	CHECK_OK(utimensat(AT_FDCWD, lo("f"), t, 0));
	check_path(up("f"), SEED, SIZE);
	check_map(up("f"), SEED, SIZE);
	CHECK_OK(stat(lo("f"), &st));
	CHECK_EQ(st.st_atim.tv_sec, 1111);
}

/* A process that opens the lower file for writing would not break it */
TEST(lock_lease_is_refused, 10)
{
	int fd;

	tree();
	CHECK_OK(fcntl(xopen(lo("f"), O_RDONLY), F_SETLEASE, F_RDLCK));
	fd = xopen(up("f"), O_RDONLY);
	CHECK_ERR(fcntl(fd, F_SETLEASE, F_RDLCK), EINVAL);
	CHECK_EQ(fcntl(fd, F_GETLEASE), F_UNLCK);
	CHECK_ERR(fcntl(xopen(up("d"), O_RDONLY), F_SETLEASE, F_RDLCK), EINVAL);
}

/* What lsattr(1) shows */
TEST(ioctl_flags_as_lower, 10)
{
	struct fsxattr a, b;
	int low, flags, got, version, want;

	tree();
	low = xopen(lo("f"), O_RDONLY);
	CHECK_OK(ioctl(low, FS_IOC_GETFLAGS, &flags));
	flags |= FS_NODUMP_FL;
	CHECK_OK(ioctl(low, FS_IOC_SETFLAGS, &flags));
	CHECK_OK(ioctl(low, FS_IOC_GETFLAGS, &want));
	CHECK(want & FS_NODUMP_FL);
	CHECK_OK(ioctl(xopen(up("f"), O_RDONLY), FS_IOC_GETFLAGS, &got));
	CHECK_EQ(got, want);
	CHECK_OK(ioctl(low, FS_IOC_FSGETXATTR, &a));
	CHECK_OK(ioctl(xopen(up("f"), O_RDONLY), FS_IOC_FSGETXATTR, &b));
	CHECK_EQ(memcmp(&a, &b, sizeof(a)), 0);
	CHECK_OK(ioctl(low, FS_IOC_GETVERSION, &want));
	CHECK_OK(ioctl(xopen(up("f"), O_RDONLY), FS_IOC_GETVERSION, &version));
	CHECK_EQ(version, want);
	CHECK_OK(ioctl(xopen(lo("d"), O_RDONLY), FS_IOC_GETFLAGS, &want));
	CHECK_OK(ioctl(xopen(up("d"), O_RDONLY), FS_IOC_GETFLAGS, &got));
	CHECK_EQ(got, want);
	CHECK(ioctl(xopen(up("f"), O_RDONLY), FS_IOC_SETFLAGS, &flags) < 0);
}

/* Watching */

TEST(inotify_sees_readers, 10)
{
	static char buf[4096]
		__attribute__((aligned(__alignof__(struct inotify_event))));
	int in = CHECK_OK(inotify_init1(IN_NONBLOCK));
	u32 seen = 0;
	ssize_t n;
	int fd;

	tree();
	CHECK_OK(inotify_add_watch(in, up("f"), IN_ALL_EVENTS));
	fd = xopen(up("f"), O_RDONLY);
	CHECK_EQ(read(fd, buf, 10), 10);
	close(fd);
	while ((n = read(in, buf, sizeof(buf))) > 0) {
		for (char *p = buf; p < buf + n;) {
			struct inotify_event *e = (void *)p;

			seen |= e->mask;
			p += sizeof(*e) + e->len;
		}
	}
	CHECK_EQ(seen, IN_OPEN | IN_ACCESS | IN_CLOSE_NOWRITE);
}

/* Others */

struct extents {
	struct fiemap fm;
	struct fiemap_extent e[8];
};

static int fiemap(const char *path, u64 from, u64 len, struct extents *x)
{
	int fd = xopen(path, O_RDONLY), rc;

	*x = (struct extents){
		.fm = {
			.fm_start = from, .fm_length = len,
			.fm_flags = FIEMAP_FLAG_SYNC,
			.fm_extent_count = ARRAY_SIZE(x->e),
		},
	};
	rc = ioctl(fd, FS_IOC_FIEMAP, x);
	close(fd);
	return rc;
}

/* The same extents on both sides; how many */
static u32 same_extents(u64 from, u64 len)
{
	struct extents a, b;

	CHECK_OK(fiemap(lo("s"), from, len, &b));
	CHECK_OK(fiemap(up("s"), from, len, &a));
	CHECK_EQ(a.fm.fm_mapped_extents, b.fm.fm_mapped_extents);
	CHECK_EQ(memcmp(&a, &b, sizeof(a)), 0);
	return b.fm.fm_mapped_extents;
}

TEST(fiemap_as_lower, 10)
{
	int low;

	setup();
	low = xopen(lo("s"), O_RDWR | O_CREAT);
	CHECK_OK(ftruncate(low, 2 * MIB));
	write_pat(low, SEED, 256 * KIB, 8192);
	write_pat(low, SEED, MIB, 100);
	CHECK_OK(fsync(low));
	CHECK_EQ(same_extents(0, ~0ull), 2);
	CHECK_EQ(same_extents(0, 128 * KIB), 0);
	CHECK_EQ(same_extents(512 * KIB, MIB), 1);
}

TEST(fiemap_refused_as_lower, 10)
{
	struct extents x;

	do_mount("tmpfs", t_lower, "tmpfs", 0, NULL);
	mk_file(lo("f"), SEED, SIZE);
	setup();
	CHECK_ERR(fiemap(lo("f"), 0, ~0ull, &x), EOPNOTSUPP);
	CHECK_ERR(fiemap(up("f"), 0, ~0ull, &x), EOPNOTSUPP);
}

TEST(fcntl_flags_as_opened, 10)
{
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY | O_NONBLOCK);
	CHECK_EQ(fcntl(fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_NONBLOCK);
	CHECK_OK(fcntl(fd, F_SETFL, O_APPEND));
	CHECK(fcntl(fd, F_GETFL) & O_APPEND);
	check_fd(fd, SEED, SIZE);
}

TEST(poll_says_ready, 10)
{
	struct pollfd p = { .events = POLLIN };

	tree();
	p.fd = xopen(up("f"), O_RDONLY);
	CHECK_EQ(poll(&p, 1, 0), 1);
	CHECK_EQ(p.revents, POLLIN);
}

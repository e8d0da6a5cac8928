// SPDX-License-Identifier: GPL-2.0
/* Reading by system calls: every byte, count and errno. */
#include "t.h"
#include <pthread.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#define SEED 0x5ead

static void read_size(u64 size)
{
	static char buf[10007];
	int fd;

	mk_file(lo("f"), SEED, size);
	setup();
	drop(lo("f"));
	fd = xopen(up("f"), O_RDONLY);
	for (int pass = 0; pass < 2; pass++) {
		u64 at = 0;
		ssize_t n;

		while ((n = read(fd, buf, sizeof(buf))) > 0) {
			CHECK_BYTES(buf, SEED, at, n);
			at += n;
		}
		CHECK_EQ(n, 0);
		CHECK_EQ(at, size);
		CHECK_EQ(lseek(fd, 0, SEEK_SET), 0);
	}
}

#define READ_SIZE(name, size) TEST(read_size_##name, 15) { read_size(size); }

READ_SIZE(0, 0)
READ_SIZE(1, 1)
READ_SIZE(4096, 4096)
READ_SIZE(4097, 4097)
READ_SIZE(2m_and_1, 2 * MIB + 1)

/* Makes a cold file of 64 KiB and 100 bytes; returns its descriptor in rfs */
static int cold_file(int flags)
{
	mk_file(lo("f"), SEED, 64 * KIB + 100);
	setup();
	drop(lo("f"));
	return xopen(up("f"), flags);
}

TEST(read_pread_unaligned, 15)
{
	int fd = cold_file(O_RDONLY);
	char buf[9000];

	CHECK_EQ(pread(fd, buf, 9000, 4001), 9000);
	CHECK_BYTES(buf, SEED, 4001, 9000);
	CHECK_EQ(pread(fd, buf, 1, 65535), 1);
	CHECK_BYTES(buf, SEED, 65535, 1);
	CHECK_EQ(lseek(fd, 0, SEEK_CUR), 0);
}

TEST(read_at_and_over_eof, 15)
{
	int fd = cold_file(O_RDONLY);
	char buf[300];

	CHECK_EQ(pread(fd, buf, sizeof(buf), 64 * KIB + 100), 0);
	CHECK_EQ(pread(fd, buf, sizeof(buf), 1ull << 40), 0);
	CHECK_EQ(pread(fd, buf, sizeof(buf), 64 * KIB + 99), 1);
	CHECK_BYTES(buf, SEED, 64 * KIB + 99, 1);
	CHECK_EQ(pread(fd, buf, sizeof(buf), 64 * KIB - 50), 150);
	CHECK_BYTES(buf, SEED, 64 * KIB - 50, 150);
	CHECK_ERR(pread(fd, buf, sizeof(buf), -1), EINVAL);
}

TEST(read_zero_bytes, 15)
{
	int fd = cold_file(O_RDONLY);
	char c = 'x';

	CHECK_EQ(read(fd, &c, 0), 0);
	CHECK_EQ(pread(fd, &c, 0, 70000), 0);
	CHECK_EQ(c, 'x');
	CHECK_EQ(resident(lo("f")), 0);
}

TEST(read_huge_count, 15)
{
	int fd = cold_file(O_RDONLY);
	size_t len = 1ul << 30;
	char *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	CHECK(p != MAP_FAILED);
	CHECK_EQ(read(fd, p, len), 64 * KIB + 100);
	CHECK_BYTES(p, SEED, 0, 64 * KIB + 100);
	CHECK_EQ(p[64 * KIB + 100], 0);
	CHECK_EQ(read(fd, p, len), 0);
}

TEST(read_bad_buffer_efault, 15)
{
	int fd = cold_file(O_RDONLY);

	CHECK_ERR(pread(fd, bad_ptr(), 4096, 0), EFAULT);
	warm(lo("f"));
	CHECK_ERR(pread(fd, bad_ptr(), 4096, 0), EFAULT);
	check_fd(fd, SEED, 64 * KIB + 100);
}

TEST(read_half_bad_buffer_short, 15)
{
	int fd = cold_file(O_RDONLY);
	int low = xopen(lo("f"), O_RDONLY);
	u8 *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ssize_t want, got;

	CHECK(p != MAP_FAILED);
	CHECK_OK(munmap(p + PAGE, PAGE));
	want = pread(low, p, 2 * PAGE, 0);
	memset(p, 0, PAGE);
	got = pread(fd, p, 2 * PAGE, 0);
	CHECK_EQ(got, want);
	if (got > 0)
		CHECK_BYTES(p, SEED, 0, got);
}

TEST(read_wrong_kind_of_descriptor, 15)
{
	char buf[8];
	int dir;

	setup();
	dir = xopen(t_mnt, O_RDONLY | O_DIRECTORY);
	CHECK_ERR(read(dir, buf, 8), EISDIR);
	CHECK_ERR(read(xopen(t_mnt, O_PATH), buf, 8), EBADF);
}

TEST(read_readv, 15)
{
	int fd = cold_file(O_RDONLY);
	char a[100], b[4096], c[20000];
	struct iovec v[3] = { { a, 100 }, { b, 4096 }, { c, 20000 } };

	CHECK_EQ(readv(fd, v, 3), 24196);
	CHECK_BYTES(a, SEED, 0, 100);
	CHECK_BYTES(b, SEED, 100, 4096);
	CHECK_BYTES(c, SEED, 4196, 20000);
	CHECK_EQ(lseek(fd, 0, SEEK_CUR), 24196);
}

TEST(read_preadv, 15)
{
	int fd = cold_file(O_RDONLY);
	char a[5], b[7000];
	struct iovec v[2] = { { a, 5 }, { b, 7000 } };

	CHECK_EQ(preadv(fd, v, 2, 60000), 5536 + 100);
	CHECK_BYTES(a, SEED, 60000, 5);
	CHECK_BYTES(b, SEED, 60005, 5631);
}

TEST(read_preadv2_current_offset, 15)
{
	int fd = cold_file(O_RDONLY);
	char a[5000];
	struct iovec v = { a, 5000 };

	CHECK_EQ(lseek(fd, 1234, SEEK_SET), 1234);
	CHECK_EQ(preadv2(fd, &v, 1, -1, 0), 5000);
	CHECK_BYTES(a, SEED, 1234, 5000);
	CHECK_EQ(lseek(fd, 0, SEEK_CUR), 6234);
	CHECK_ERR(preadv2(fd, &v, 1, 0, 0x40000000), EOPNOTSUPP);
}

TEST(read_nowait_cold, 15)
{
	int fd = cold_file(O_RDONLY);
	static char buf[64 * 1024];
	struct iovec v = { buf, sizeof(buf) };
	ssize_t n;

	need_nowait();
	n = preadv2(fd, &v, 1, 0, RWF_NOWAIT);
	/* The read may start the I/O, and returns what a fast disk has delivered by then */
	if (n < 0)
		CHECK_EQ(errno, EAGAIN);
	else
		CHECK(n > 0);
	if (n > 0)
		CHECK_BYTES(buf, SEED, 0, n);
	check_fd(fd, SEED, 64 * KIB + 100);
}

TEST(read_nowait_warm, 15)
{
	int fd = cold_file(O_RDONLY);
	static char buf[64 * 1024];
	struct iovec v = { buf, sizeof(buf) };

	need_nowait();
	warm(lo("f"));
	CHECK_EQ(preadv2(fd, &v, 1, 0, RWF_NOWAIT), sizeof(buf));
	CHECK_BYTES(buf, SEED, 0, sizeof(buf));
	CHECK_EQ(preadv2(fd, &v, 1, sizeof(buf), RWF_NOWAIT), 100);
	CHECK_BYTES(buf, SEED, sizeof(buf), 100);
}

/* Splice, sendfile, copy_file_range */

TEST(read_splice_to_pipe, 15)
{
	int fd = cold_file(O_RDONLY), p[2];
	static char buf[64 * 1024];
	u64 at = 0;
	ssize_t n, m;

	CHECK_OK(pipe(p));
	for (int pass = 0; pass < 2; pass++) {
		loff_t off = 0;

		at = 0;
		while ((n = CHECK_OK(splice(fd, &off, p[1], NULL, 40000, 0)))) {
			for (; n; n -= m, at += m) {
				m = CHECK_OK(read(p[0], buf, n));
				CHECK_BYTES(buf, SEED, at, m);
			}
		}
		CHECK_EQ(at, 64 * KIB + 100);
		CHECK_EQ(off, at);
	}
}

TEST(read_sendfile_to_lower_file, 15)
{
	int fd = cold_file(O_RDONLY);
	int out = xopen(lo("copy"), O_WRONLY | O_CREAT);
	off_t off = 0;
	ssize_t n;

	while ((n = CHECK_OK(sendfile(out, fd, &off, 1 << 20))))
		;
	CHECK_EQ(off, 64 * KIB + 100);
	check_path(lo("copy"), SEED, 64 * KIB + 100);
}

TEST(read_sendfile_to_socket, 15)
{
	int fd = cold_file(O_RDONLY), s[2];
	u64 left = 64 * KIB + 100;
	static char buf[64 * 1024 + 100];
	pid_t pid;

	CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, s));
	pid = t_fork();
	if (!pid) {
		while (left)
			left -= CHECK_OK(sendfile(s[1], fd, NULL, left));
		_exit(T_PASS);
	}
	CHECK_EQ(recv(s[0], buf, sizeof(buf), MSG_WAITALL), sizeof(buf));
	CHECK_BYTES(buf, SEED, 0, sizeof(buf));
	JOIN(pid);
}

static u8 first_of(u64 seed)
{
	u8 c;

	pat_fill(&c, seed, PAGE, 1);
	return c;
}

/* Is what splice(2) has put into a pipe the page cache itself, so that a later write below shows in the pipe? */
static bool pipe_shows_later_write(void)
{
	int fd = xopen(up("f"), O_RDONLY), p[2];
	loff_t off = PAGE;
	char c;

	CHECK_OK(pipe(p));
	CHECK_EQ(splice(fd, &off, p[1], NULL, PAGE, 0), PAGE);
	write_pat(xopen(lo("f"), O_WRONLY), SEED + 1, PAGE, PAGE);
	CHECK_EQ(read(p[0], &c, 1), 1);
	write_pat(xopen(lo("f"), O_WRONLY), SEED, PAGE, PAGE);
	close(p[0]);
	close(p[1]);
	close(fd);
	return (u8)c == first_of(SEED + 1);
}

TEST(splice_copy_keeps_the_cache_out_of_pipes, 15)
{
	mk_file(lo("f"), SEED, 3 * PAGE);
	setup();
	CHECK(first_of(SEED) != first_of(SEED + 1));
	CHECK(pipe_shows_later_write());
	CHECK_OK(mount(NULL, t_mnt, NULL, MS_REMOUNT | MS_RDONLY, "splice=copy"));
	CHECK(!pipe_shows_later_write());
	CHECK_OK(mount(NULL, t_mnt, NULL, MS_REMOUNT | MS_RDONLY, "splice=pass"));
	CHECK(pipe_shows_later_write());
}

/* A pipe takes what it has room for, and a short pipe does not lose what follows */
TEST(splice_copy_fills_pipes_as_far_as_they_go, 15)
{
	static u8 buf[64 * 1024 + 100];
	loff_t off = 5;
	int fd, p[2];
	ssize_t n;

	mk_file(lo("f"), SEED, sizeof(buf));
	must_mount_rfs(t_lower, t_mnt, "splice=copy");
	fd = xopen(up("f"), O_RDONLY);
	CHECK_OK(pipe2(p, O_NONBLOCK));
	CHECK_OK(fcntl(p[1], F_SETPIPE_SZ, 4 * PAGE));
	for (u64 at = off; at < sizeof(buf); at += n) {
		n = CHECK_OK(splice(fd, &off, p[1], NULL, sizeof(buf), 0));
		CHECK_EQ((u64)n, sizeof(buf) - at < 4 * PAGE ? sizeof(buf) - at : 4 * PAGE);
		CHECK_EQ(off, at + n);
		if ((u64)n == 4 * PAGE)
			CHECK_ERR(splice(fd, &off, p[1], NULL, PAGE, 0), EAGAIN);
		CHECK_EQ(off, at + n);
		CHECK_EQ(read(p[0], buf, sizeof(buf)), n);
		CHECK_BYTES(buf, SEED, at, n);
	}
	CHECK_EQ(splice(fd, &off, p[1], NULL, PAGE, 0), 0);
	CHECK_EQ(sendfile(xopen(lo("copy"), O_WRONLY | O_CREAT), fd, NULL, sizeof(buf)), sizeof(buf));
	check_path(lo("copy"), SEED, sizeof(buf));
}

TEST(read_copy_file_range_out, 15)
{
	int fd = cold_file(O_RDONLY);
	int out = xopen(lo("copy"), O_WRONLY | O_CREAT);
	loff_t in_off = 0, out_off = 0;
	ssize_t n = copy_file_range(fd, &in_off, out, &out_off, 64 * KIB, 0);

	if (n < 0) {
		/* Source and target are two file systems; overlayfs returns the same */
		CHECK_EQ(errno, EXDEV);
		CHECK_EQ(in_off, 0);
		return;
	}
	CHECK(n > 0);
	check_path(lo("copy"), SEED, n);
}

TEST(read_copy_file_range_into_refused, 15)
{
	int fd = cold_file(O_RDONLY);
	int in = xopen(lo("f"), O_RDONLY);

	CHECK_ERR(copy_file_range(in, NULL, fd, NULL, 4096, 0), EBADF);
}

/* Descriptors */

TEST(read_o_path_and_proc_fd_link, 15)
{
	int fd = cold_file(O_RDONLY), path;
	char link[64], name[512] = "";
	struct stat a, b;

	path = xopen(up("f"), O_PATH);
	CHECK_OK(fstat(path, &a));
	CHECK_OK(fstat(fd, &b));
	CHECK_EQ(a.st_ino, b.st_ino);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", path);
	CHECK(readlink(link, name, sizeof(name) - 1) > 0);
	CHECK_STR(name, up("f"));
	check_path(link, SEED, 64 * KIB + 100);
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	memset(name, 0, sizeof(name));
	CHECK(readlink(link, name, sizeof(name) - 1) > 0);
	CHECK_STR(name, up("f"));
	check_path(link, SEED, 64 * KIB + 100);
}

TEST(read_dup_and_fork_share_offset, 15)
{
	int fd = cold_file(O_RDONLY), two = dup(fd);
	char buf[4096];

	CHECK_EQ(read(fd, buf, 100), 100);
	CHECK_EQ(read(two, buf, 1000), 1000);
	CHECK_BYTES(buf, SEED, 100, 1000);
	IN_CHILD(CHECK_EQ(read(fd, buf, 4096), 4096);
		 CHECK_BYTES(buf, SEED, 1100, 4096));
	CHECK_EQ(read(two, buf, 4096), 4096);
	CHECK_BYTES(buf, SEED, 5196, 4096);
	/* Each open has an offset of its own */
	CHECK_EQ(read(xopen(up("f"), O_RDONLY), buf, 10), 10);
	CHECK_BYTES(buf, SEED, 0, 10);
}

TEST(read_fsync_is_harmless, 15)
{
	int fd = cold_file(O_RDONLY);
	int low = xopen(lo("f"), O_RDONLY);

	CHECK_EQ(fsync(fd), 0);
	CHECK_EQ(fdatasync(fd), 0);
	CHECK_EQ(syncfs(fd), 0);
	CHECK_EQ(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE),
		 sync_file_range(low, 0, 0, SYNC_FILE_RANGE_WRITE));
	check_fd(fd, SEED, 64 * KIB + 100);
}

/* Many at once */

static void *random_reader(void *arg)
{
	int fd = xopen(up("f"), O_RDONLY);
	u64 state = (u64)(unsigned long)arg;
	static __thread char buf[20000];

	for (int i = 0; i < 60; i++) {
		u64 off = next_rand(&state) % (2 * MIB + 1000);
		size_t len = next_rand(&state) % sizeof(buf) + 1;
		ssize_t n = pread(fd, buf, len, off);
		ssize_t left = off < 2 * MIB ? 2 * MIB - off : 0;

		CHECK_EQ(n, (ssize_t)len < left ? (ssize_t)len : left);
		CHECK_BYTES(buf, SEED, off, n);
	}
	close(fd);
	return NULL;
}

TEST(read_four_threads_at_random, 20)
{
	pthread_t t[4];

	mk_file(lo("f"), SEED, 2 * MIB);
	setup();
	drop(lo("f"));
	for (unsigned long i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&t[i], NULL, random_reader,
					(void *)(i + 1)), 0);
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_join(t[i], NULL), 0);
}

/* exec */

static void copy_self(const char *to, mode_t mode)
{
	int in = xopen("/proc/self/exe", O_RDONLY);
	int out = xopen(to, O_WRONLY | O_CREAT | O_TRUNC);
	struct stat st;
	off_t off = 0;

	CHECK_OK(fstat(in, &st));
	while (off < st.st_size)
		CHECK(CHECK_OK(sendfile(out, in, &off, 1 << 20)) > 0);
	CHECK_OK(fchmod(out, mode));
	CHECK_OK(fsync(out));
	close(out);
	close(in);
}

TEST(read_exec, 20)
{
	copy_self(lo("prog"), 0755);
	setup();
	drop(lo("prog"));
	CHECK_EQ(t_run(up("prog"), "--list", NULL), 0);
	CHECK_EQ(t_run(up("prog"), "--list", NULL), 0);
	CHECK_EQ(t_run(up("prog"), "--euid", NULL), 10);
	CHECK_OK(chmod(lo("prog"), 0644));
	CHECK_EQ(t_run(up("prog"), "--list", NULL), 127);
}

TEST(read_exec_setuid, 20)
{
	copy_self(lo("prog"), 0755);
	setup();
	AS_USER(1000, 1000, CHECK_EQ(t_run(up("prog"), "--euid", NULL), 11));
	CHECK_OK(chmod(lo("prog"), 04755));
	AS_USER(1000, 1000, CHECK_EQ(t_run(up("prog"), "--euid", NULL), 10));
}

#ifndef RWF_DONTCACHE
#define RWF_DONTCACHE 0x80
#endif

/* A read may ask to leave nothing in the page cache wherever the lower file system allows it */
TEST(read_dontcache_as_lower, 10)
{
	static char buf[64 * 1024];
	struct iovec v = { buf, sizeof(buf) };
	ssize_t low;

	mk_file(lo("f"), SEED, sizeof(buf));
	setup();
	drop(lo("f"));
	low = preadv2(xopen(lo("f"), O_RDONLY), &v, 1, 0, RWF_DONTCACHE);
	if (low < 0) {
		CHECK_EQ(errno, EOPNOTSUPP);
		CHECK_ERR(preadv2(xopen(up("f"), O_RDONLY), &v, 1, 0, RWF_DONTCACHE), EOPNOTSUPP);
		return;
	}
	drop(lo("f"));
	CHECK_EQ(preadv2(xopen(up("f"), O_RDONLY), &v, 1, 0, RWF_DONTCACHE), sizeof(buf));
	CHECK_BYTES(buf, SEED, 0, sizeof(buf));
	CHECK_EQ(resident(lo("f")), 0);
}

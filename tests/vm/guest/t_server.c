// SPDX-License-Identifier: GPL-2.0
/*
 * A lower file system served by a process: FUSE, with one file, which answers
 * when the test tells it to.
 */
#include "t.h"
#include <linux/fuse.h>

#define SEED 0xf05e
#define SIZE (64 * KIB)
#define NODE 2

/* what the server and the test share */
struct said {
	bool hang;		/* opens wait until this is false */
	int opens, flushes;
	u32 looker;		/* who has looked up a name last */
};

static struct said *said;
static char below[192];

static struct fuse_attr attr_of(u64 node)
{
	return (struct fuse_attr){
		.ino = node, .nlink = 1, .blksize = PAGE,
		.mode = node == NODE ? S_IFREG | 0644 : S_IFDIR | 0755,
		.size = node == NODE ? SIZE : 0,
	};
}

static void answer(int fd, const struct fuse_in_header *in, int error, const void *data, size_t len)
{
	struct fuse_out_header out = {
		.len = sizeof(out) + len, .error = -error, .unique = in->unique,
	};
	struct iovec v[2] = { { &out, sizeof(out) }, { (void *)data, len } };

	/* the process that asked may have been killed meanwhile */
	if (writev(fd, v, 2) < 0)
		CHECK_EQ(errno, ENOENT);
}

static void answer_read(int fd, const struct fuse_in_header *in, const struct fuse_read_in *r)
{
	static u8 buf[SIZE];
	u64 end = r->offset + r->size < SIZE ? r->offset + r->size : SIZE;
	u64 len = end > r->offset ? end - r->offset : 0;

	pat_fill(buf, SEED, r->offset, len);
	answer(fd, in, 0, buf, len);
}

static void serve_one(int fd, const struct fuse_in_header *in)
{
	struct fuse_init_out init = { .major = 7, .minor = 31, .max_write = 128 * KIB };
	struct fuse_attr_out attr = { .attr = attr_of(in->nodeid) };
	struct fuse_entry_out entry = { .nodeid = NODE, .attr = attr_of(NODE) };
	struct fuse_open_out open = { .fh = 1 };
	struct fuse_statfs_out statfs = { .st = { .bsize = PAGE, .namelen = 255 } };

	switch (in->opcode) {
	case FUSE_INIT:
		return answer(fd, in, 0, &init, sizeof(init));
	case FUSE_LOOKUP:
		said->looker = in->uid;
		if (strcmp((const char *)(in + 1), "f"))
			return answer(fd, in, ENOENT, NULL, 0);
		return answer(fd, in, 0, &entry, sizeof(entry));
	case FUSE_GETATTR:
		return answer(fd, in, 0, &attr, sizeof(attr));
	case FUSE_OPEN:
		said->opens++;
		while (__atomic_load_n(&said->hang, __ATOMIC_ACQUIRE))
			sleep_ms(5);
		return answer(fd, in, 0, &open, sizeof(open));
	case FUSE_OPENDIR:
		return answer(fd, in, 0, &open, sizeof(open));
	case FUSE_READ:
		return answer_read(fd, in, (const void *)(in + 1));
	case FUSE_STATFS:
		return answer(fd, in, 0, &statfs, sizeof(statfs));
	case FUSE_FLUSH:
		said->flushes++;
		return answer(fd, in, 0, NULL, 0);
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_READDIR:
		return answer(fd, in, 0, NULL, 0);
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		return answer(fd, in, ENOSYS, NULL, 0);
	}
}

static void serve(int fd)
{
	static u8 buf[256 * 1024] __attribute__((aligned(8)));

	for (;;) {
		if (read(fd, buf, sizeof(buf)) > 0) {
			serve_one(fd, (const struct fuse_in_header *)buf);
			continue;
		}
		/* the umount */
		if (errno == ENODEV)
			return;
		/* a request that was withdrawn */
		CHECK(errno == ENOENT || errno == EINTR);
	}
}

/* Mounts the server's file system and a mirror of it */
static pid_t served(void)
{
	char opts[96];
	pid_t pid;
	int fd;

	said = xmap(-1, 0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
	snprintf(below, sizeof(below), "%s", lo("served"));
	xmkdir(below);
	if (absent("/dev/fuse"))
		SKIP("no FUSE");
	fd = xopen("/dev/fuse", O_RDWR);
	snprintf(opts, sizeof(opts), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd);
	do_mount("server", below, "fuse", 0, opts);
	pid = t_fork();
	if (!pid) {
		serve(fd);
		_exit(T_PASS);
	}
	close(fd);
	must_mount_rfs(below, t_mnt, NULL);
	return pid;
}

static void served_end(pid_t pid)
{
	do_umount(below);
	JOIN(pid);
}

TEST(server_below_is_mirrored, 15)
{
	pid_t pid = served();

	check_path(up("f"), SEED, SIZE);
	check_map(up("f"), SEED, SIZE);
	CHECK(absent(up("g")));
	do_umount(t_mnt);
	served_end(pid);
}

/* A server hears who looks names up, and may answer each user differently: as below, it is not the mounter */
TEST(server_below_hears_who_looks_up, 15)
{
	pid_t pid = served();

	AS_USER(1000, 1000, CHECK_OK(access(join(below, "f"), F_OK)));
	CHECK_EQ(said->looker, 1000);
	AS_USER(1001, 1001, CHECK_OK(access(up("f"), F_OK)));
	CHECK_EQ(said->looker, 1001);
	AS_USER(1002, 1002, CHECK(absent(up("g"))));
	CHECK_EQ(said->looker, 1002);
	do_umount(t_mnt);
	served_end(pid);
}

/* Each close of a descriptor reaches the server, as late writes and locks need that */
TEST(server_below_hears_of_each_close, 15)
{
	pid_t pid = served();
	int fd = xopen(up("f"), O_RDONLY), other = dup(fd);

	CHECK_EQ(said->flushes, 0);
	CHECK_OK(close(other));
	CHECK_EQ(said->flushes, 1);
	CHECK_OK(close(fd));
	CHECK_EQ(said->flushes, 2);
	do_umount(t_mnt);
	served_end(pid);
}

/* The owner of the device waits for an answer that never comes; no other process waits for the owner */
TEST(server_below_holds_up_the_owner_alone, 20)
{
	pid_t pid = served(), owner, other;
	bool umounted = false;
	u64 id, until;
	int fd, st;

	fd = xopen(up("f"), O_RDONLY);
	id = file_id(fd);
	close(fd);
	said->opens = 0;
	said->hang = true;
	owner = t_fork();
	if (!owner) {
		CHECK_OK(lower_fd(dev_open(t_mnt, 0), id, 0));
		_exit(T_PASS);
	}
	while (!__atomic_load_n(&said->opens, __ATOMIC_ACQUIRE))
		sleep_ms(5);
	other = t_fork();
	if (!other)
		_exit(umount2(t_mnt, 0) ? T_FAIL : T_PASS);
	until = now_ns() + stretched(2000) * 1000000ull;
	while (!umounted && now_ns() < until) {
		umounted = waitpid(other, &st, WNOHANG) == other && !st;
		sleep_ms(5);
	}
	/* nothing is checked before this, or the umount would wait forever */
	__atomic_store_n(&said->hang, false, __ATOMIC_RELEASE);
	CHECK(umounted);
	defer_forget(t_mnt);
	JOIN(owner);
	served_end(pid);
}

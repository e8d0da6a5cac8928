// SPDX-License-Identifier: GPL-2.0
/*
 * A FUSE server for tests: a process that passes a directory through, read-only. Large files bypass the page cache,
 * as FUSE servers may ask for.
 */
#include "t.h"
#include <linux/fs.h>
#include <linux/fuse.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#define MOST_NODES	1024
#define MOST_DATA	(128 * KIB)
#define LARGE		(4 * MIB)

#ifndef FUSE_POSIX_ACL
#define FUSE_POSIX_ACL	(1 << 20)
#endif

/* A file of the directory: its number in FUSE is its place here, and the root's is 1 */
static struct node {
	int fd;		/* of its path */
	dev_t dev;
	ino_t ino;
} nodes[MOST_NODES];

static int node_count;
static int channel;
static u32 valid_s;
static u32 features = FUSE_ASYNC_READ | FUSE_PARALLEL_DIROPS | FUSE_POSIX_ACL;

static void answer(const struct fuse_in_header *in, int error, const void *data, size_t len)
{
	struct fuse_out_header out = { .len = sizeof(out) + len, .error = -error, .unique = in->unique };
	struct iovec v[2] = { { &out, sizeof(out) }, { (void *)data, len } };

	/* The process that asked may have been killed meanwhile, or the file system unmounted */
	if (writev(channel, v, 2) < 0)
		CHECK(errno == ENOENT || errno == ENODEV);
}

/* The result of a call that sets errno */
static void answer_data(const struct fuse_in_header *in, const void *data, ssize_t len)
{
	if (len < 0)
		answer(in, errno, NULL, 0);
	else
		answer(in, 0, data, len);
}

/* Opens a file by the path of its descriptor, which is what O_PATH descriptors allow */
static const char *path_of(u64 node)
{
	static char path[64];

	CHECK(node > 0 && node <= (u64)node_count);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", nodes[node].fd);
	return path;
}

static u64 node_of(int fd, const struct stat *st)
{
	for (int i = 1; i <= node_count; i++) {
		if (nodes[i].dev == st->st_dev && nodes[i].ino == st->st_ino) {
			close(fd);
			return i;
		}
	}
	CHECK(node_count + 1 < MOST_NODES);
	nodes[++node_count] = (struct node){ fd, st->st_dev, st->st_ino };
	return node_count;
}

static void fill_attr(struct fuse_attr *attr, const struct stat *st)
{
	*attr = (struct fuse_attr){
		.ino = st->st_ino, .size = st->st_size, .blocks = st->st_blocks, .mode = st->st_mode,
		.nlink = st->st_nlink, .uid = st->st_uid, .gid = st->st_gid, .rdev = st->st_rdev,
		.blksize = st->st_blksize, .atime = st->st_atim.tv_sec, .atimensec = st->st_atim.tv_nsec,
		.mtime = st->st_mtim.tv_sec, .mtimensec = st->st_mtim.tv_nsec,
		.ctime = st->st_ctim.tv_sec, .ctimensec = st->st_ctim.tv_nsec,
	};
}

static void do_lookup(const struct fuse_in_header *in, const char *name)
{
	struct fuse_entry_out entry = { .entry_valid = valid_s, .attr_valid = valid_s };
	int fd = openat(nodes[in->nodeid].fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return answer(in, errno, NULL, 0);
	CHECK_OK(fstat(fd, &st));
	entry.nodeid = node_of(fd, &st);
	fill_attr(&entry.attr, &st);
	answer(in, 0, &entry, sizeof(entry));
}

static void do_getattr(const struct fuse_in_header *in)
{
	struct fuse_attr_out out = { .attr_valid = valid_s };
	struct stat st;

	CHECK_OK(fstat(nodes[in->nodeid].fd, &st));
	fill_attr(&out.attr, &st);
	answer(in, 0, &out, sizeof(out));
}

static void do_open(const struct fuse_in_header *in, int flags)
{
	struct fuse_open_out out = { 0 };
	struct stat st;
	int fd = open(path_of(in->nodeid), flags | O_NOATIME | O_CLOEXEC);

	if (fd < 0)
		return answer(in, errno, NULL, 0);
	CHECK_OK(fstat(fd, &st));
	if (S_ISREG(st.st_mode) && st.st_size > (off_t)LARGE)
		out.open_flags = FOPEN_DIRECT_IO;
	out.fh = fd;
	answer(in, 0, &out, sizeof(out));
}

static void do_readdir(const struct fuse_in_header *in, const struct fuse_read_in *r)
{
	static char from[8 * KIB], to[2 * sizeof(from)];
	size_t used = 0;
	long n;

	CHECK_OK(lseek(r->fh, r->offset, SEEK_SET));
	n = syscall(SYS_getdents64, (int)r->fh, from, sizeof(from));
	if (n < 0)
		return answer(in, errno, NULL, 0);
	for (const struct dirent64 *d = (void *)from; (char *)d < from + n; d = (void *)((char *)d + d->d_reclen)) {
		struct fuse_dirent *out = (void *)(to + used);
		size_t len = strlen(d->d_name), size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + len);

		if (used + size > r->size)
			break;
		*out = (struct fuse_dirent){ .ino = d->d_ino, .off = d->d_off, .namelen = len, .type = d->d_type };
		memcpy(out->name, d->d_name, len);
		used += size;
	}
	answer(in, 0, to, used);
}

static void do_read(const struct fuse_in_header *in, const struct fuse_read_in *r)
{
	static char data[MOST_DATA];

	CHECK(r->size <= sizeof(data));
	answer_data(in, data, pread(r->fh, data, r->size, r->offset));
}

static void do_xattr(const struct fuse_in_header *in, const struct fuse_getxattr_in *x)
{
	static char data[64 * KIB];
	const char *name = in->opcode == FUSE_GETXATTR ? (const char *)(x + 1) : NULL;
	struct fuse_getxattr_out out = { 0 };
	struct stat st;
	ssize_t len;

	CHECK_OK(fstat(nodes[in->nodeid].fd, &st));
	/* its path would be followed */
	if (S_ISLNK(st.st_mode))
		return answer(in, EOPNOTSUPP, NULL, 0);
	CHECK(x->size <= sizeof(data));
	len = name ? getxattr(path_of(in->nodeid), name, data, x->size) :
	      listxattr(path_of(in->nodeid), data, x->size);
	if (len < 0 || x->size)
		return answer_data(in, data, len);
	out.size = len;
	answer(in, 0, &out, sizeof(out));
}

static void do_statfs(const struct fuse_in_header *in)
{
	struct fuse_statfs_out out = { 0 };
	struct statvfs fs;

	CHECK_OK(statvfs(path_of(in->nodeid), &fs));
	out.st = (struct fuse_kstatfs){
		.blocks = fs.f_blocks, .bfree = fs.f_bfree, .bavail = fs.f_bavail, .files = fs.f_files,
		.ffree = fs.f_ffree, .bsize = fs.f_bsize, .namelen = fs.f_namemax, .frsize = fs.f_frsize,
	};
	answer(in, 0, &out, sizeof(out));
}

static void do_lseek(const struct fuse_in_header *in, const struct fuse_lseek_in *s)
{
	struct fuse_lseek_out out = { .offset = lseek(s->fh, s->offset, s->whence) };

	answer_data(in, &out, (off_t)out.offset < 0 ? -1 : (ssize_t)sizeof(out));
}

static void do_init(const struct fuse_in_header *in, const struct fuse_init_in *asked)
{
	struct fuse_init_out init = {
		.major = FUSE_KERNEL_VERSION, .minor = 31, .max_write = MOST_DATA,
		.max_readahead = asked->max_readahead, .time_gran = 1,
		.flags = asked->flags & features,
	};

	answer(in, 0, &init, sizeof(init));
}

static void serve_one(const struct fuse_in_header *in)
{
	const void *arg = in + 1;
	char target[PATH_MAX];

	switch (in->opcode) {
	case FUSE_INIT:
		return do_init(in, arg);
	case FUSE_LOOKUP:
		return do_lookup(in, arg);
	case FUSE_GETATTR:
		return do_getattr(in);
	case FUSE_READLINK:
		return answer_data(in, target, readlinkat(nodes[in->nodeid].fd, "", target, sizeof(target)));
	case FUSE_OPEN:
		return do_open(in, ((const struct fuse_open_in *)arg)->flags & O_ACCMODE);
	case FUSE_OPENDIR:
		return do_open(in, O_RDONLY | O_DIRECTORY);
	case FUSE_READ:
		return do_read(in, arg);
	case FUSE_READDIR:
		return do_readdir(in, arg);
	case FUSE_GETXATTR:
	case FUSE_LISTXATTR:
		return do_xattr(in, arg);
	case FUSE_STATFS:
		return do_statfs(in);
	case FUSE_LSEEK:
		return do_lseek(in, arg);
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		close(((const struct fuse_release_in *)arg)->fh);
		return answer(in, 0, NULL, 0);
	case FUSE_FLUSH:
	case FUSE_FSYNC:
	case FUSE_FSYNCDIR:
		return answer(in, 0, NULL, 0);
	/* As a read-only file system does that has no such calls */
	case FUSE_IOCTL:
		return answer(in, ((const struct fuse_ioctl_in *)arg)->cmd == FS_IOC_SETFLAGS ? EROFS : ENOTTY, NULL, 0);
	/* A node stays: that keeps the number of a deleted file from another */
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_INTERRUPT:
		return;
	default:
		return answer(in, ENOSYS, NULL, 0);
	}
}

static void serve(void)
{
	static u8 request[MOST_DATA + 8 * KIB] __attribute__((aligned(8)));

	for (;;) {
		if (read(channel, request, sizeof(request)) > 0) {
			serve_one((const struct fuse_in_header *)request);
			continue;
		}
		/* The umount */
		if (errno == ENODEV)
			return;
		/* A request that was withdrawn */
		CHECK(errno == ENOENT || errno == EINTR);
	}
}

/* Has the kernel keep the targets of links: without that, a link to itself asks the server 40 times */
void fuse_keeps_links(void)
{
	features |= FUSE_CACHE_SYMLINKS;
}

/* Mounts a directory, passed through by a process; names and attributes are valid for this many seconds */
pid_t serve_fuse(const char *dir, const char *mnt, u32 valid)
{
	char opts[96];
	struct stat st;
	pid_t pid;

	if (absent("/dev/fuse"))
		SKIP("no FUSE");
	channel = xopen("/dev/fuse", O_RDWR);
	valid_s = valid;
	snprintf(opts, sizeof(opts), "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions",
		 channel);
	do_mount("server", mnt, "fuse", 0, opts);
	pid = t_fork();
	if (!pid) {
		int root = xopen(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);

		CHECK_OK(fstat(root, &st));
		CHECK_EQ(node_of(root, &st), FUSE_ROOT_ID);
		umask(0);
		serve();
		_exit(T_PASS);
	}
	close(channel);
	/* On one processor, an answer takes a fifth of the time */
	t_pin(0);
	return pid;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * A tree's answers to system calls, as text with one line for each question.
 * Two mounts of one directory are alike if their texts are.
 */
#include "t.h"
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/sendfile.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#define SAMPLE	(64 * KIB)

/* Where answers go, and the file that questions are about: its path and its name in the tree */
static FILE *out;
static const char *path, *name;

static void say(const char *question, const char *answer)
{
	fprintf(out, "%s: %s: %s\n", name, question, answer);
}

static void say_number(const char *question, long long number)
{
	char text[32];

	snprintf(text, sizeof(text), "%lld", number);
	say(question, text);
}

static void say_result(const char *question, long result)
{
	if (result == -1)
		say(question, strerror(errno));
	else
		say_number(question, result);
}

#define ASK(question, call) say_result(question, (long)(call))

/* The same for a call that returns a descriptor */
#define ASK_OPEN(question, call) do {			\
	int fd_ = (call);				\
							\
	say_result(question, fd_ < 0 ? -1 : 0);		\
	if (fd_ >= 0)					\
		close(fd_);				\
} while (0)

static u64 hash_of(u64 hash, const void *bytes, size_t len)
{
	const u8 *p = bytes;

	while (len--)
		hash = (hash ^ *p++) * 0x100000001b3ull;
	return hash;
}

static void say_time(const char *way, const char *which, const struct statx_timestamp *t)
{
	fprintf(out, "%s: %s, %s: %lld.%09u\n", name, way, which, (long long)t->tv_sec, t->tv_nsec);
}

static void say_stat(const char *way, const struct statx *s)
{
	const struct { const char *what; u64 value; } fields[] = {
		{ "mode", s->stx_mode }, { "links", s->stx_nlink }, { "owner", s->stx_uid },
		{ "group", s->stx_gid }, { "major", s->stx_rdev_major }, { "minor", s->stx_rdev_minor },
		{ "size", s->stx_size }, { "blocks", s->stx_blocks }, { "block", s->stx_blksize },
		{ "inode", s->stx_ino }, { "known", s->stx_mask & (STATX_BASIC_STATS | STATX_BTIME) },
		/* mounts may differ in this attribute */
		{ "attributes", s->stx_attributes & ~STATX_ATTR_MOUNT_ROOT },
		{ "attributes known", s->stx_attributes_mask },
	};

	for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
		fprintf(out, "%s: %s, %s: %#llx\n", name, way, fields[i].what,
			(unsigned long long)fields[i].value);
	say_time(way, "read", &s->stx_atime);
	say_time(way, "written", &s->stx_mtime);
	say_time(way, "changed", &s->stx_ctime);
	say_time(way, "born", &s->stx_btime);
}

static void ask_stat(void)
{
	static const struct { const char *what; int flags; } ways[] = {
		{ "lstat", AT_SYMLINK_NOFOLLOW }, { "stat", 0 },
		{ "stat afresh", AT_STATX_FORCE_SYNC }, { "stat as it is", AT_STATX_DONT_SYNC },
	};
	struct statx s;

	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		if (statx(AT_FDCWD, path, ways[i].flags, STATX_BASIC_STATS | STATX_BTIME, &s))
			say(ways[i].what, strerror(errno));
		else
			say_stat(ways[i].what, &s);
	}
}

static void ask_rights(void)
{
	ASK("may it be read", access(path, R_OK));
	ASK("may it be written", access(path, W_OK));
	ASK("may it be executed", access(path, X_OK));
	ASK("may it be read, effectively", faccessat(AT_FDCWD, path, R_OK, AT_EACCESS));
	ASK("may it be executed, effectively", faccessat(AT_FDCWD, path, X_OK, AT_EACCESS));
}

static void ask_openings(void)
{
	struct { const char *what; int flags; } ways[] = {
		{ "to read", O_RDONLY }, { "to write", O_WRONLY }, { "for both", O_RDWR },
		{ "to truncate", O_RDONLY | O_TRUNC }, { "to append", O_WRONLY | O_APPEND },
		{ "to make it", O_RDWR | O_CREAT }, { "to read or make it", O_RDONLY | O_CREAT },
		{ "to make it new", O_RDWR | O_CREAT | O_EXCL }, { "as a directory", O_DIRECTORY },
		{ "no link", O_NOFOLLOW }, { "its path", O_PATH }, { "its path, no link", O_PATH | O_NOFOLLOW },
		{ "a temporary file", O_TMPFILE | O_RDWR }, { "direct", O_DIRECT },
		{ "without a trace", O_NOATIME }, { "synchronous", O_RDONLY | O_SYNC },
		{ "a directory to write", O_DIRECTORY | O_RDWR },
	};

	for (size_t i = 0; i < ARRAY_SIZE(ways); i++)
		ASK_OPEN(ways[i].what, open(path, ways[i].flags | O_NONBLOCK | O_CLOEXEC, 0644));
}

static void ask_resolution(int root)
{
	struct { const char *what; u64 resolve; } ways[] = {
		{ "beneath", RESOLVE_BENEATH }, { "in the root", RESOLVE_IN_ROOT },
		{ "no mount crossed", RESOLVE_NO_XDEV }, { "no links", RESOLVE_NO_SYMLINKS },
		{ "no magic links", RESOLVE_NO_MAGICLINKS },
	};

	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		struct open_how how = { .flags = O_PATH, .resolve = ways[i].resolve };

		ASK_OPEN(ways[i].what, syscall(SYS_openat2, root, name, &how, sizeof(how)));
	}
}

static void ask_attributes(void)
{
	const char *names[] = { "user.a", "user.missing", "trusted.t", "security.selinux", "system.posix_acl_access",
				"system.posix_acl_default", "nonsense", "user.", "security.capability" };
	char list[4096], value[4096];
	ssize_t len = listxattr(path, list, sizeof(list));

	ASK("attributes' length", listxattr(path, NULL, 0));
	ASK("attributes in 1 byte", listxattr(path, list, 1));
	say_result("attributes", len < 0 ? -1 : (long)(hash_of(1, list, len) >> 1));
	ASK("a link's own attributes", llistxattr(path, list, sizeof(list)));
	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		len = getxattr(path, names[i], value, sizeof(value));
		say_result(names[i], len < 0 ? -1 : (long)(hash_of(2, value, len) >> 1));
		ASK("its length", getxattr(path, names[i], NULL, 0));
		ASK("it in 1 byte", getxattr(path, names[i], value, 1));
	}
}

static void ask_changes(void)
{
	char other[2100];
	struct timespec now[2] = { { .tv_nsec = UTIME_NOW }, { .tv_nsec = UTIME_NOW } };

	snprintf(other, sizeof(other), "%s.new", path);
	ASK("chmod", chmod(path, 0777));
	ASK("chown", chown(path, 5, 5));
	ASK("chown to whom it is", chown(path, -1, -1));
	ASK("lchown", lchown(path, 5, 5));
	ASK("truncate", truncate(path, 0));
	ASK("touch", utimensat(AT_FDCWD, path, now, 0));
	ASK("touch a link", utimensat(AT_FDCWD, path, now, AT_SYMLINK_NOFOLLOW));
	ASK("set an attribute", setxattr(path, "user.b", "b", 1, 0));
	ASK("replace one", setxattr(path, "user.missing", "b", 1, XATTR_REPLACE));
	ASK("remove one", removexattr(path, "user.a"));
	ASK("remove what is not", removexattr(path, "user.missing"));
	ASK("unlink", unlink(path));
	ASK("rmdir", rmdir(path));
	ASK("rename", rename(path, other));
	ASK("rename to itself", rename(path, path));
	ASK("exchange", renameat2(AT_FDCWD, path, AT_FDCWD, other, RENAME_EXCHANGE));
	ASK("link", link(path, other));
	ASK("link on to it", link(other, path));
	ASK("symlink", symlink("target", path));
	ASK("symlink beside", symlink("target", other));
	ASK("mkdir", mkdir(path, 0755));
	ASK("mkdir beside", mkdir(other, 0755));
	ASK("mknod", mknod(path, S_IFREG | 0644, 0));
	ASK("mkfifo beside", mkfifo(other, 0644));
}

static void ask_program(void)
{
	char *argv[] = { (char *)path, NULL }, *env[] = { NULL };
	pid_t pid = CHECK_OK(fork());
	int st;

	if (!pid) {
		execve(path, argv, env);
		_exit(100 + errno % 100);
	}
	CHECK_EQ(waitpid(pid, &st, 0), pid);
	say_number("to execute it", st);
}

static void ask_seeks(int fd, u64 size)
{
	long long places[] = { 0, 1, 4095, 4096, 65536, MIB, MIB + 1, size / 2, size - 1, size, size + 1, 1ll << 40, -1 };
	const char *whences[] = { "seek set", "seek on", "seek from the end", "seek data", "seek hole", "seek what" };
	char question[64];

	for (size_t w = 0; w < ARRAY_SIZE(whences); w++) {
		for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
			CHECK_OK(lseek(fd, 0, SEEK_SET));
			snprintf(question, sizeof(question), "%s %lld", whences[w], places[i]);
			ASK(question, lseek(fd, places[i], w));
		}
	}
}

static void ask_reads(int fd, u64 size)
{
	u64 places[] = { 0, 1, 4095, size / 2, size ? size - 1 : 0, size, size + 4096, 1ull << 62, -4096ull };
	static char buf[SAMPLE];
	char question[64];
	u64 hash = 1;
	ssize_t n;

	for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
		snprintf(question, sizeof(question), "read at %lld", (long long)places[i]);
		n = pread(fd, buf, sizeof(buf), places[i]);
		say_result(question, n < 0 ? -1 : (long)(hash_of(n, buf, n) >> 1));
	}
	CHECK_OK(lseek(fd, 0, SEEK_SET));
	while ((n = read(fd, buf, sizeof(buf))) > 0)
		hash = hash_of(hash, buf, n);
	say_result("all of it", n < 0 ? -1 : (long)(hash >> 1));
	ASK("read nothing", pread(fd, buf, 0, 0));
	ASK("read to nowhere", pread(fd, bad_ptr(), 10, 0));
	ASK("write", write(fd, "x", 1));
	ASK("write at", pwrite(fd, "x", 1, 0));
}

static void ask_mapping(int fd, u64 size)
{
	struct { const char *what; int prot, flags; u64 off; } ways[] = {
		{ "map shared", PROT_READ, MAP_SHARED, 0 }, { "map private", PROT_READ, MAP_PRIVATE, 0 },
		{ "map to write", PROT_READ | PROT_WRITE, MAP_SHARED, 0 },
		{ "map to write for itself", PROT_READ | PROT_WRITE, MAP_PRIVATE, 0 },
		{ "map to execute", PROT_READ | PROT_EXEC, MAP_PRIVATE, 0 },
		{ "map nothing readable", PROT_NONE, MAP_SHARED, 0 },
		{ "map between pages", PROT_READ, MAP_SHARED, 100 },
		{ "map what is behind", PROT_READ, MAP_SHARED, 1ull << 40 },
		{ "map for persistence", PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, 0 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
		u8 *p = mmap(NULL, 2 * MIB, ways[i].prot, ways[i].flags, fd, ways[i].off);
		u64 hash = 3;

		say_result(ways[i].what, p == MAP_FAILED ? -1 : 0);
		if (p == MAP_FAILED)
			continue;
		if (ways[i].prot & PROT_READ && !ways[i].off)
			hash = hash_of(hash, p, size < 2 * MIB ? size : 2 * MIB);
		say_number("what is there", (long)(hash >> 1));
		ASK("to make it writable", mprotect(p, PAGE, PROT_READ | PROT_WRITE));
		CHECK_OK(munmap(p, 2 * MIB));
	}
}

static void ask_file(int fd)
{
	struct flock lock = { .l_type = F_RDLCK };
	struct timespec now[2] = { { .tv_nsec = UTIME_NOW }, { .tv_nsec = UTIME_NOW } };
	struct fsxattr attributes = { 0 };
	struct fiemap extents = { .fm_length = FIEMAP_MAX_OFFSET };
	int flags = 0, fds[2];

	ASK("its flags", fcntl(fd, F_GETFL));
	ASK("lock", flock(fd, LOCK_SH | LOCK_NB));
	ASK("lock alone", flock(fd, LOCK_EX | LOCK_NB));
	ASK("unlock", flock(fd, LOCK_UN));
	ASK("lock a range", fcntl(fd, F_SETLK, &lock));
	lock.l_type = F_WRLCK;
	ASK("lock a range to write", fcntl(fd, F_SETLK, &lock));
	ASK("who has locked", fcntl(fd, F_GETLK, &lock));
	ASK("chmod of what is open", fchmod(fd, 0777));
	ASK("chown of what is open", fchown(fd, 5, 5));
	ASK("touch what is open", futimens(fd, now));
	ASK("cut what is open", ftruncate(fd, 0));
	ASK("make room", fallocate(fd, 0, 0, 4096));
	ASK("punch a hole", fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096));
	ASK("attribute of what is open", fsetxattr(fd, "user.b", "b", 1, 0));
	ASK("lease", fcntl(fd, F_SETLEASE, F_RDLCK));
	ASK("no lease", fcntl(fd, F_SETLEASE, F_UNLCK));
	ASK("sync", fsync(fd));
	ASK("sync its data", fdatasync(fd));
	ASK("sync a range", sync_file_range(fd, 0, 4096, SYNC_FILE_RANGE_WRITE));
	ASK("readahead", readahead(fd, 0, MIB));
	for (int advice = 0; advice < 7; advice++)
		ASK("advice", posix_fadvise(fd, 0, MIB, advice));
	ASK("flags", ioctl(fd, FS_IOC_GETFLAGS, &flags));
	say_number("which", flags);
	ASK("set flags", ioctl(fd, FS_IOC_SETFLAGS, &flags));
	ASK("more flags", ioctl(fd, FS_IOC_FSGETXATTR, &attributes));
	say_number("which", attributes.fsx_xflags);
	say_number("of which project", attributes.fsx_projid);
	ASK("where it is", ioctl(fd, FS_IOC_FIEMAP, &extents));
	ASK("version", ioctl(fd, FS_IOC_GETVERSION, &flags));
	ASK("size of blocks", ioctl(fd, FIGETBSZ, &flags));
	ASK("bytes left", ioctl(fd, 0x541b /* FIONREAD */, &flags));
	ASK("no such ioctl", ioctl(fd, 0xdead, &flags));
	CHECK_OK(pipe(fds));
	CHECK_OK(lseek(fd, 0, SEEK_SET));
	ASK("sendfile", sendfile(fds[1], fd, NULL, 4096));
	ASK("splice", splice(fd, NULL, fds[1], NULL, 4096, SPLICE_F_NONBLOCK));
	close(fds[0]);
	close(fds[1]);
}

/* Reads of what is cached, and reads that bypass the cache */
static void ask_ways_to_read(int fd)
{
	void *buf = xmap(-1, 0, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
	struct iovec v = { buf, 4096 };
	int direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
	char question[64];
	const int flags[] = { 0, RWF_HIPRI, RWF_SYNC, RWF_APPEND, RWF_NOWAIT, RWF_NOWAIT << 20 };
	ssize_t n;

	CHECK(pread(fd, buf, 4096, 0) >= 0);
	for (size_t i = 0; i < ARRAY_SIZE(flags); i++) {
		snprintf(question, sizeof(question), "read with flags %#x", flags[i]);
		ASK(question, preadv2(fd, &v, 1, 0, flags[i]));
	}
	if (direct < 0)
		return say("direct", strerror(errno));
	for (u64 at = 0; at < 2 * MIB; at += MIB + 512) {
		n = pread(direct, buf, MIB, at);
		say_result("direct", n < 0 ? -1 : (long)(hash_of(n, buf, n) >> 1));
	}
	ASK("direct, askew", pread(direct, (char *)buf + 1, 4096, 0));
	ASK("direct, a part", pread(direct, buf, 100, 0));
	close(direct);
	CHECK_OK(munmap(buf, MIB));
}

static void ask_handle(int dir)
{
	char bytes[sizeof(struct file_handle) + MAX_HANDLE_SZ];
	struct file_handle *handle = (void *)bytes;
	int mount, fd;
	ssize_t n;

	handle->handle_bytes = 0;
	ASK("a handle of no length", name_to_handle_at(AT_FDCWD, path, handle, &mount, 0));
	handle->handle_bytes = MAX_HANDLE_SZ;
	ASK("a handle", name_to_handle_at(AT_FDCWD, path, handle, &mount, 0));
	/* What it has in it may differ, not what it leads to */
	fd = open_by_handle_at(dir, handle, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	say_result("to open it", fd < 0 ? -1 : 0);
	if (fd < 0)
		return;
	n = read(fd, bytes, sizeof(bytes));
	say_result("to read what it names", n < 0 ? -1 : (long)(hash_of(n, bytes, n) >> 1));
	close(fd);
}

static void ask_regular(void)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		return;
	CHECK_OK(fstat(fd, &st));
	ask_seeks(fd, st.st_size);
	ask_reads(fd, st.st_size);
	ask_mapping(fd, st.st_size);
	ask_file(fd);
	ask_ways_to_read(fd);
	close(fd);
}

static void ask_file_system(void)
{
	int watch = CHECK_OK(inotify_init1(IN_NONBLOCK));
	struct statvfs fs;

	ASK("watch", inotify_add_watch(watch, path, IN_OPEN));
	close(watch);
	if (statvfs(path, &fs))
		return say("file system", strerror(errno));
	say_number("blocks of", fs.f_bsize);
	say_number("fragments of", fs.f_frsize);
	say_number("how many", fs.f_blocks);
	say_number("names of", fs.f_namemax);
	say_number("mount flags", fs.f_flag & (ST_RDONLY | ST_NOSUID | ST_NODEV | ST_NOEXEC));
}

static void ask_all(const char *root, const char *about, int dir)
{
	char full[2048], target[512];
	struct stat st;
	ssize_t n;

	snprintf(full, sizeof(full), "%s/%s", root, about);
	path = full;
	name = about;
	ask_stat();
	ask_rights();
	ask_openings();
	ask_resolution(dir);
	ask_attributes();
	n = readlink(path, target, sizeof(target));
	say_result("its target", n < 0 ? -1 : (long)(hash_of(4, target, n) >> 1));
	ASK("to go there", chdir(path));
	CHECK_OK(chdir("/"));
	ask_handle(dir);
	ask_file_system();
	if (!stat(path, &st) && S_ISREG(st.st_mode)) {
		ask_regular();
		ask_program();
	}
	ask_changes();
}

/* The names in the order of readdir, and what is below them; links are not followed */
static void ask_below(const char *root, const char *about, int dir)
{
	char full[2048], below[1024];
	struct dirent *e;
	struct stat st;
	DIR *d;

	snprintf(full, sizeof(full), "%s/%s", root, about);
	d = opendir(full);
	name = about;
	if (!d)
		return say("to list it", strerror(errno));
	while ((e = readdir(d))) {
		name = about;
		say("has", e->d_name);
		say_number("a kind of", e->d_type);
		/* the directory above the root is not part of the mount */
		if (!strcmp(e->d_name, "..") || !strcmp(e->d_name, "."))
			continue;
		say_number("with number", e->d_ino);
		snprintf(below, sizeof(below), "%s%s%s", about, *about ? "/" : "", e->d_name);
		ask_all(root, below, dir);
		snprintf(full, sizeof(full), "%s/%s", root, below);
		if (!lstat(full, &st) && S_ISDIR(st.st_mode))
			ask_below(root, below, dir);
	}
	closedir(d);
}

/* Writes the answers of the whole tree, and for odd and missing names, to a file */
void ask_tree(const char *root, const char *into)
{
	static const char *const odd[] = {
		"", ".", "f/", "f/.", "f/..", "dir/", "dir/.", "dir/..", "link/", "dirlink/", "dirlink/f", "missing",
		"missing/", "missing/f", "f/f", "broken/", "loop/f", "dir/../f", "dir//a///b", "closed/f", "passed/f",
		"null/", "fifo/",
	};
	char longest[NAME_MAX + 8];
	int dir = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	out = fopen(into, "w");
	CHECK(out && dir >= 0);
	for (size_t i = 0; i < ARRAY_SIZE(odd); i++)
		ask_all(root, odd[i], dir);
	memset(longest, 'n', sizeof(longest));
	longest[NAME_MAX + 1] = 0;
	ask_all(root, longest, dir);
	ask_below(root, "", dir);
	CHECK(!fclose(out));
	close(dir);
}

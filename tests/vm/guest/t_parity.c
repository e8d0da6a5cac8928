// SPDX-License-Identifier: GPL-2.0
/*
 * A mirror answers like a read-only bind mount of the same directory: each
 * question of h_ask.c, on each kind of file system, asked by root and by other
 * users, and once more after changes below.
 */
#include "t.h"
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#define SEED 0x9a17
#define MOST_SHOWN 60

static char bound[256];

static void set(const char *file, const char *attribute, const void *value, size_t len)
{
	/* file systems differ in the attributes that they have */
	CHECK(!lsetxattr(file, attribute, value, len, 0) || errno == EOPNOTSUPP || errno == EPERM);
}

/* User 1000 may not read, all other users may */
static void deny_by_acl(const char *file)
{
	static const struct { u32 version; struct { u16 tag, perm; u32 id; } e[5]; } __attribute__((packed)) acl = {
		2, { { 0x01, 6, -1 }, { 0x02, 0, 1000 }, { 0x04, 4, -1 }, { 0x10, 7, -1 }, { 0x20, 4, -1 } },
	};

	set(file, "system.posix_acl_access", &acl, sizeof(acl));
}

static void mk_mode(const char *file, mode_t mode, uid_t owner)
{
	mk_file(file, SEED + mode, 3000);
	CHECK_OK(chown(file, owner, owner));
	CHECK_OK(chmod(file, mode));
}

/* A file with the longest name allowed */
static char *longest_in(const char *in)
{
	char longest[NAME_MAX + 1];

	memset(longest, 'l', NAME_MAX);
	longest[NAME_MAX] = 0;
	return join(in, longest);
}

static void mk_files(const char *in)
{
	int fd;

	mk_file(join(in, "f"), SEED, 70000);
	mk_file(join(in, "big"), SEED, 5 * MIB + 77);
	mk_file(join(in, "empty"), SEED, 0);
	fd = xopen(join(in, "sparse"), O_RDWR | O_CREAT);
	write_pat(fd, SEED, MIB, 2 * PAGE);
	CHECK_OK(ftruncate(fd, 3 * MIB + 5));
	close(fd);
	put_str(join(in, "script"), "#!/bin/true\n");
	CHECK_OK(chmod(join(in, "script"), 0755));
	mk_mode(join(in, "secret"), 0600, 0);
	mk_mode(join(in, "theirs"), 0640, 1000);
	mk_mode(join(in, "unread"), 0000, 0);
	mk_mode(join(in, "writable"), 0666, 0);
	mk_mode(join(in, "setuid"), 04755, 0);
	mk_mode(join(in, "setgid"), 02755, 1000);
	mk_mode(join(in, "acl"), 0644, 0);
	deny_by_acl(join(in, "acl"));
	set(join(in, "f"), "user.a", "some value", 10);
	set(join(in, "f"), "trusted.t", "another", 7);
	CHECK_OK(link(join(in, "f"), join(in, "hard")));
	put_str(longest_in(in), "long");
	put_str(join(in, " -odd\t\xc3\xbc\xff"), "odd");
}

static void mk_others(const char *in)
{
	static const struct { const char *target, *name; } links[] = {
		{ "f", "link" }, { "missing", "broken" }, { "loop", "loop" }, { "/nowhere/else", "absolute" },
		{ "dir", "dirlink" }, { "secret", "to-secret" },
	};

	for (size_t i = 0; i < ARRAY_SIZE(links); i++)
		CHECK_OK(symlink(links[i].target, join(in, links[i].name)));
	xmkdir(join(in, "dir"));
	xmkdir(join(in, "dir/a"));
	xmkdir(join(in, "dir/a/b"));
	mk_file(join(in, "dir/a/b/f"), SEED, 100);
	xmkdir(join(in, "closed"));
	mk_file(join(in, "closed/f"), SEED, 100);
	CHECK_OK(chmod(join(in, "closed"), 0700));
	xmkdir(join(in, "passed"));
	mk_file(join(in, "passed/f"), SEED, 100);
	CHECK_OK(chmod(join(in, "passed"), 0711));
	xmkdir(join(in, "sticky"));
	CHECK_OK(chmod(join(in, "sticky"), 01777));
	xmkdir(join(in, "bare"));
	CHECK_OK(mkfifo(join(in, "fifo"), 0644));
	CHECK_OK(mknod(join(in, "socket"), S_IFSOCK | 0644, 0));
	CHECK_OK(mknod(join(in, "null"), S_IFCHR | 0666, makedev(1, 3)));
}

static void mk_tree(const char *in)
{
	mk_files(in);
	mk_others(in);
	sync();
}

/* Reads a line without its newline; returns false at the end */
static bool next_line(FILE *f, char *line, size_t len)
{
	if (!fgets(line, len, f))
		return false;
	line[strcspn(line, "\n")] = 0;
	return true;
}

static bool ends(const char *line, const char *end)
{
	size_t len = strlen(line), end_len = strlen(end);

	return len >= end_len && !strcmp(line + len - end_len, end);
}

/* Is this a difference that has to be, by kmod/README.md? */
static bool is_known(const char *below, const char *above)
{
	static const char *const questions[] = {
		"lease", "no lease",
		/* NFS refuses to lock files alone that are open to be read, which the mirror does not ask */
		"lock alone",
	};
	char part[64];

	for (size_t i = 0; i < ARRAY_SIZE(questions); i++) {
		snprintf(part, sizeof(part), ": %s: ", questions[i]);
		if (strstr(below, part) && strstr(above, part))
			return true;
	}
	/* NFS checks at the open below, after open(2) has checked who may open without a trace */
	if (strstr(above, ": without a trace: ") && ends(below, strerror(EPERM)) && ends(above, strerror(EACCES)))
		return true;
	/* A user without write permission gets EROFS first */
	return ends(above, strerror(EROFS)) &&
	       (ends(below, strerror(EACCES)) || ends(below, strerror(EPERM)));
}

static void same_text(const char *who)
{
	static char one[4096], other[4096];
	FILE *below = fopen("/tmp/parity.bound", "r"), *above = fopen("/tmp/parity.mirror", "r");
	int differ = 0, lines = 0;

	CHECK(below && above);
	while (next_line(below, one, sizeof(one))) {
		lines++;
		if (next_line(above, other, sizeof(other)) && (!strcmp(one, other) || is_known(one, other)))
			continue;
		if (differ++ < MOST_SHOWN)
			dprintf(2, "bound:  %s\nmirror: %s\n", one, other);
	}
	CHECK(!next_line(above, other, sizeof(other)));
	fclose(below);
	fclose(above);
	/* With fewer lines, hardly anything was asked */
	CHECK(lines > 5000);
	if (differ)
		t_fail(__FILE__, __LINE__, "to %s %d of %d answers differ", who, differ, lines);
}

static void ask_both(void)
{
	umask(022);
	/* first, so that it does not profit from what the other has found to be changed */
	ask_tree(t_mnt, "/tmp/parity.mirror");
	ask_tree(bound, "/tmp/parity.bound");
	same_text(geteuid() ? "a user" : "root");
	CHECK_OK(unlink("/tmp/parity.bound"));
	CHECK_OK(unlink("/tmp/parity.mirror"));
}

/* Mounts both over a directory with all its files */
static void mount_both(const char *dir)
{
	snprintf(bound, sizeof(bound), "%s.bound", t_mnt);
	CHECK(!mkdir(bound, 0755) || errno == EEXIST);
	defer_rmdir(bound);
	do_mount(dir, bound, NULL, MS_BIND, NULL);
	CHECK_OK(mount(NULL, bound, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
	must_mount_rfs(dir, t_mnt, NULL);
}

/* While a server still answers */
static void umount_both(void)
{
	do_umount(bound);
	do_umount(t_mnt);
}

static void all_alike(const char *dir)
{
	mount_both(dir);
	ask_both();
	AS_USER(1000, 1000, ask_both());
}

static void warm_mapped(const char *file)
{
	int fd = xopen(file, O_RDONLY);
	volatile u8 *p = xmap(fd, 0, 3 * MIB, PROT_READ, MAP_SHARED);

	for (u64 at = 0; at < 3 * MIB; at += PAGE)
		p[at];
	munmap((void *)p, 3 * MIB);
	close(fd);
}

/* Makes a mount point for another file system */
static char *point(const char *under)
{
	char *p = strdup(lo(under));

	CHECK(p);
	xmkdir(p);
	return p;
}

TEST(parity_with_a_bind_mount, 60)
{
	mk_tree(t_lower);
	all_alike(t_lower);
	AS_USER(2000, 2000, ask_both());
}

TEST(parity_on_tmpfs, 60)
{
	char *dir = point("tmpfs");

	do_mount("tmpfs", dir, "tmpfs", 0, "mode=755");
	mk_tree(dir);
	/* Reading a hole through a mapping fills it */
	warm_mapped(join(dir, "sparse"));
	all_alike(dir);
}

TEST(parity_on_overlayfs, 60)
{
	char opts[1024], *dir = point("merged");

	mk_tree(point("lower"));
	xmkdir(lo("upper"));
	xmkdir(lo("work"));
	snprintf(opts, sizeof(opts), "lowerdir=%s,upperdir=%s,workdir=%s", lo("lower"), lo("upper"), lo("work"));
	kmsg_allow("overlayfs:");
	do_mount("overlay", dir, "overlay", 0, opts);
	/* copied up, replaced, covered */
	CHECK_OK(chmod(join(dir, "theirs"), 0644));
	CHECK_OK(unlink(join(dir, "writable")));
	mk_file(join(dir, "dir/new"), SEED, 4096);
	CHECK_OK(rename(join(dir, "big"), join(dir, "dir/big")));
	all_alike(dir);
}

TEST(parity_on_btrfs, 90)
{
	char *dir = point("btrfs");

	mount_btrfs("parity", dir);
	mk_tree(dir);
	all_alike(dir);
}

TEST(parity_on_erofs, 90)
{
	char *dir = point("erofs");

	need_fs("erofs");
	mk_tree(point("tree"));
	/* mkfs.erofs cannot store a name of that length */
	CHECK_OK(unlink(longest_in(lo("tree"))));
	CHECK_EQ(t_run("mkfs.erofs", lo("image"), lo("tree"), NULL), 0);
	CHECK_EQ(t_run("mount", "-o", "loop,ro", "-t", "erofs", lo("image"), dir, NULL), 0);
	defer_umount(dir);
	all_alike(dir);
}

/* Makes what a server passes on: it may follow links, and must not leave a trace of that */
static char *mk_served(void)
{
	char *tree = point("tree");

	do_mount(tree, tree, NULL, MS_BIND, NULL);
	CHECK_OK(mount(NULL, tree, NULL, MS_REMOUNT | MS_BIND | MS_NOATIME, NULL));
	mk_tree(tree);
	return tree;
}

TEST(parity_on_fuse, 120)
{
	char *dir = point("fuse");
	pid_t server;

	mk_served();
	fuse_keeps_links();
	server = serve_fuse(t_lower, dir, 60);
	/* Not the root: Linux 7.2 caches no ACL of that, so each step of a user's path would ask the server */
	all_alike(join(dir, "tree"));
	umount_both();
	do_umount(dir);
	JOIN(server);
}

TEST(parity_on_nfs, 120)
{
	char *dir = point("nfs");

	serve_nfs(mk_served(), dir, "actimeo=60", false);
	all_alike(dir);
	umount_both();
	do_umount(dir);
}

static void change_tree(const char *in)
{
	CHECK_OK(rename(join(in, "dir"), join(in, "moved")));
	CHECK_OK(rename(join(in, "f"), join(in, "moved/f")));
	CHECK_OK(unlink(join(in, "empty")));
	xmkdir(join(in, "empty"));
	CHECK_OK(truncate(join(in, "big"), MIB + 1));
	CHECK_OK(truncate(join(in, "secret"), 9000));
	CHECK_OK(chmod(join(in, "unread"), 0444));
	CHECK_OK(chmod(join(in, "closed"), 0755));
	CHECK_OK(chown(join(in, "writable"), 1000, 1000));
	CHECK_OK(rename(join(in, "setgid"), join(in, "setuid")));
	CHECK_OK(unlink(join(in, "link")));
	CHECK_OK(symlink("moved", join(in, "link")));
	put_str(join(in, "missing"), "there now");
	set(join(in, "acl"), "user.a", "new", 3);
	CHECK_OK(rmdir(join(in, "bare")));
	CHECK_OK(unlink(join(in, "fifo")));
	put_str(join(in, "fifo"), "a file");
	/* Linux 5.10 takes a page that is being written for one to read ahead from, and RWF_NOWAIT then reads nothing */
	sync();
}

/* Changes below show above, whatever either has cached */
TEST(parity_after_changes_below, 120)
{
	mk_tree(t_lower);
	mount_both(t_lower);
	ask_both();
	change_tree(t_lower);
	ask_both();
	AS_USER(1000, 1000, ask_both());
}

/* A change that only the server knows of shows, too, once what is known of names and attributes is a second old */
static void alike_after_changes_by_server(const char *tree, const char *dir)
{
	mount_both(dir);
	ask_tree(t_mnt, "/tmp/parity.mirror");
	change_tree(tree);
	sleep_ms(1100);
	ask_both();
	umount_both();
	do_umount(dir);
}

TEST(parity_on_fuse_after_changes, 120)
{
	char *dir = point("fuse"), *tree = mk_served();
	pid_t server = serve_fuse(tree, dir, 1);

	alike_after_changes_by_server(tree, dir);
	JOIN(server);
}

TEST(parity_on_nfs_after_changes, 120)
{
	char *dir = point("nfs"), *tree = mk_served();

	serve_nfs(tree, dir, "actimeo=1", false);
	alike_after_changes_by_server(tree, dir);
}

/* What differs */

TEST(erofs_comes_before_eacces, 10)
{
	put_str(lo("f"), "text");
	setup();
	AS_USER(1000, 1000,
		CHECK_ERR(open(lo("f"), O_WRONLY), EACCES);
		CHECK_ERR(open(up("f"), O_WRONLY), EROFS));
}

static void may_read(const char *file, int error)
{
	int fd = open(file, O_RDONLY | O_CLOEXEC);

	CHECK_EQ(fd < 0 ? errno : 0, error);
	close(fd);
}

/* NFS tells the server who opens a file: that is the mounter, whom the server may allow less than the reader */
TEST(nfs_below_is_opened_by_the_mounter, 30)
{
	char *dir = point("nfs"), *tree = mk_served();

	serve_nfs(tree, dir, "actimeo=1", true);
	mount_both(dir);
	AS_USER(1000, 1000,
		may_read(join(bound, "theirs"), 0);
		may_read(up("theirs"), EACCES);
		may_read(up("f"), 0);
		may_read(join(bound, "secret"), EACCES);
		may_read(up("secret"), EACCES));
	umount_both();
	do_umount(dir);
}

// SPDX-License-Identifier: GPL-2.0
/* Over and under other file systems: overlayfs, rfs, tmpfs, idmapped mounts. */
#include "t.h"
#include <linux/btrfs.h>
#include <sys/utsname.h>
#include <sys/xattr.h>

#define SEED 0x57ac
#define SIZE (2 * MIB + 77)

static char *point(const char *suffix)
{
	static char buf[4][256];
	static int next;
	char *p = buf[next++ % 4];

	snprintf(p, sizeof(buf[0]), "%s.%s", t_mnt, suffix);
	CHECK(!mkdir(p, 0755) || errno == EEXIST);
	defer_rmdir(p);
	return p;
}

/* Checks it cold and warm, by read and by mmap */
static void all_bytes(const char *path, const char *cold)
{
	drop(cold);
	check_path(path, SEED, SIZE);
	check_path(path, SEED, SIZE);
	drop(cold);
	check_map(path, SEED, SIZE);
	check_map(path, SEED, SIZE);
}

static void overlay(const char *lowerdir, const char *mnt)
{
	char opts[1024];

	CHECK(!mkdir(lo("upper"), 0755) || errno == EEXIST);
	CHECK(!mkdir(lo("work"), 0755) || errno == EEXIST);
	snprintf(opts, sizeof(opts), "lowerdir=%s,upperdir=%s,workdir=%s",
		 lowerdir, lo("upper"), lo("work"));
	do_mount("overlay", mnt, "overlay", 0, opts);
	kmsg_allow("overlayfs:");
}

TEST(stack_under_overlayfs, 15)
{
	char *ovl = point("ovl");

	xmkdir(lo("a"));
	mk_file(lo("a/f"), SEED, SIZE);
	must_mount_rfs(lo("a"), t_mnt, NULL);
	overlay(t_mnt, ovl);
	all_bytes(join(ovl, "f"), lo("a/f"));
	/* Its layers are mounts of its own */
	do_umount(t_mnt);
	all_bytes(join(ovl, "f"), lo("a/f"));
}

TEST(stack_under_overlayfs_copies_up, 15)
{
	char *ovl = point("ovl");
	int fd;

	xmkdir(lo("a"));
	mk_file(lo("a/f"), SEED, SIZE);
	must_mount_rfs(lo("a"), t_mnt, NULL);
	overlay(t_mnt, ovl);
	fd = xopen(join(ovl, "f"), O_RDWR);
	check_fd(fd, SEED, SIZE);
	write_pat(fd, SEED + 1, 0, SIZE);
	close(fd);
	check_path(lo("a/f"), SEED, SIZE);
	check_path(up("f"), SEED, SIZE);
	check_path(lo("upper/f"), SEED + 1, SIZE);
	check_path(join(ovl, "f"), SEED + 1, SIZE);
}

TEST(stack_under_overlayfs_makes_events, 15)
{
	char *ovl = point("ovl");
	int dev;
	u64 id;

	xmkdir(lo("a"));
	mk_file(lo("a/f"), SEED, SIZE);
	ra_off();
	must_mount_rfs(lo("a"), t_mnt, NULL);
	overlay(t_mnt, ovl);
	id = path_id(up("f"));
	drop(lo("a/f"));
	dev = dev_open(t_mnt, O_NONBLOCK);
	dev_mask(dev, K(MISS), 0);
	IN_CHILD(char buf[PAGE];
		 CHECK_EQ(pread(xopen(join(ovl, "f"), O_RDONLY), buf, PAGE,
				3 * PAGE), PAGE);
		 CHECK_BYTES(buf, SEED, 3 * PAGE, PAGE));
	CHECK_EQ(only(drain(dev), RFS_EVENT_MISS, id)->offset, 3 * PAGE);
}

TEST(stack_over_overlayfs, 15)
{
	char *ovl = point("ovl");

	xmkdir(lo("a"));
	mk_file(lo("a/f"), SEED, SIZE);
	overlay(lo("a"), ovl);
	mk_file(join(ovl, "g"), SEED, SIZE);
	must_mount_rfs(ovl, t_mnt, NULL);
	all_bytes(up("f"), lo("a/f"));
	all_bytes(up("g"), lo("upper/g"));
}

TEST(stack_over_overlayfs_makes_miss_events, 15)
{
	char *ovl = point("ovl");
	struct rfs_event *e;
	int dev;
	u64 id;

	xmkdir(lo("a"));
	mk_file(lo("a/f"), SEED, SIZE);
	ra_off();
	overlay(lo("a"), ovl);
	must_mount_rfs(ovl, t_mnt, NULL);
	id = path_id(up("f"));
	drop(lo("a/f"));
	dev = dev_open(t_mnt, O_NONBLOCK);
	dev_mask(dev, K(MISS), 0);
	IN_CHILD(char buf[PAGE];
		 CHECK_EQ(pread(xopen(up("f"), O_RDONLY), buf, PAGE, 3 * PAGE),
			  PAGE);
		 CHECK_BYTES(buf, SEED, 3 * PAGE, PAGE));
	e = only(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(e->offset, 3 * PAGE);
	CHECK_EQ(e->length, PAGE);
	IN_CHILD(char buf[PAGE];
		 CHECK_EQ(pread(xopen(up("f"), O_RDONLY), buf, PAGE, 3 * PAGE),
			  PAGE));
	CHECK_EQ(drain(dev)->n, 0);
}

TEST(stack_over_overlayfs_shows_copied_up_file, 15)
{
	char *ovl = point("ovl");
	int fd;

	xmkdir(lo("a"));
	mk_file(lo("a/f"), SEED, SIZE);
	overlay(lo("a"), ovl);
	must_mount_rfs(ovl, t_mnt, NULL);
	check_path(up("f"), SEED, SIZE);
	fd = xopen(join(ovl, "f"), O_RDWR);
	write_pat(fd, SEED + 1, 0, SIZE);
	close(fd);
	check_path(up("f"), SEED + 1, SIZE);
	check_map(up("f"), SEED + 1, SIZE);
}

/* Files that have the same device number below have the same one in the mirror, and others have others */
static void same_devices(const char *lower, const char *const names[], int n)
{
	struct stat low[8], our[8];

	CHECK(n <= (int)ARRAY_SIZE(low));
	for (int i = 0; i < n; i++) {
		CHECK_OK(lstat(join(lower, names[i]), &low[i]));
		CHECK_OK(lstat(up(names[i]), &our[i]));
		CHECK_EQ(our[i].st_ino, low[i].st_ino);
	}
	for (int i = 0; i < n; i++)
		for (int k = 0; k < n; k++)
			if ((our[i].st_dev == our[k].st_dev) != (low[i].st_dev == low[k].st_dev))
				t_fail(__FILE__, __LINE__, "%s has device %lx, %s has %lx; below %lx and %lx",
				       names[i], our[i].st_dev, names[k], our[k].st_dev,
				       low[i].st_dev, low[k].st_dev);
}

static void subvolume(const char *parent, const char *name)
{
	struct btrfs_ioctl_vol_args args = { .fd = 0 };
	int fd = xopen(parent, O_RDONLY | O_DIRECTORY);

	snprintf(args.name, sizeof(args.name), "%s", name);
	CHECK_OK(ioctl(fd, BTRFS_IOC_SUBVOL_CREATE, &args));
	close(fd);
	mk_file(join(join(parent, name), "f"), SEED, 10);
}

TEST(stack_over_subvolumes_tells_them_apart, 30)
{
	static const char *const names[] = { ".", "f", "a", "a/f", "b", "b/f", "a/inner", "a/inner/f" };
	char *t = point("btrfs");
	struct stat one, two;

	mount_btrfs("subvolumes", t);
	mk_file(join(t, "f"), SEED, 10);
	subvolume(t, "a");
	subvolume(t, "b");
	subvolume(join(t, "a"), "inner");
	must_mount_rfs(t, t_mnt, NULL);
	same_devices(t, names, ARRAY_SIZE(names));
	/* the first file of each has the same inode number */
	CHECK_OK(stat(up("a/f"), &one));
	CHECK_OK(stat(up("b/f"), &two));
	CHECK_EQ(one.st_ino, two.st_ino);
	CHECK(one.st_dev != two.st_dev);
	do_umount(t_mnt);
	must_mount_rfs(join(t, "a"), t_mnt, NULL);
	same_devices(join(t, "a"), (const char *[]){ ".", "f", "inner", "inner/f" }, 4);
}

TEST(stack_over_overlayfs_tells_layers_apart, 15)
{
	static const char *const names[] = { ".", "f", "g", "dir", "dir/h", "dir/i" };
	char *ovl = point("ovl"), *t = point("tmp"), opts[1024];

	xmkdir(lo("a"));
	mk_file(lo("a/f"), SEED, 10);
	xmkdir(lo("a/dir"));
	mk_file(lo("a/dir/h"), SEED, 10);
	do_mount("tmpfs", t, "tmpfs", 0, NULL);
	xmkdir(join(t, "upper"));
	xmkdir(join(t, "work"));
	snprintf(opts, sizeof(opts), "xino=off,lowerdir=%s,upperdir=%s/upper,workdir=%s/work", lo("a"), t, t);
	do_mount("overlay", ovl, "overlay", 0, opts);
	kmsg_allow("overlayfs:");
	mk_file(join(ovl, "g"), SEED, 10);
	mk_file(join(ovl, "dir/i"), SEED, 10);
	must_mount_rfs(ovl, t_mnt, NULL);
	same_devices(ovl, names, ARRAY_SIZE(names));
}

TEST(stack_over_rfs, 15)
{
	char *two = point("two");

	mk_file(lo("f"), SEED, SIZE);
	setup();
	must_mount_rfs(t_mnt, two, NULL);
	all_bytes(join(two, "f"), lo("f"));
	CHECK_OK(rename(lo("f"), lo("g")));
	CHECK_ERR(access(join(two, "f"), F_OK), ENOENT);
	check_path(join(two, "g"), SEED, SIZE);
}

TEST(stack_over_the_limit_einval, 15)
{
	char *two = point("two"), *three = point("three");

	mk_file(lo("f"), SEED, SIZE);
	setup();
	must_mount_rfs(t_mnt, two, NULL);
	CHECK_ERR(mount_rfs(two, three, NULL), EINVAL);
	kmsg_allow("stack");
	check_path(join(two, "f"), SEED, SIZE);
}

TEST(stack_over_tmpfs, 15)
{
	char *t = point("tmp");

	do_mount("tmpfs", t, "tmpfs", 0, NULL);
	mk_file(join(t, "f"), SEED, SIZE);
	must_mount_rfs(t, t_mnt, NULL);
	check_path(up("f"), SEED, SIZE);
	check_map(up("f"), SEED, SIZE);
	check_map(up("f"), SEED, SIZE);
	CHECK_OK(truncate(join(t, "f"), 100));
	check_path(up("f"), SEED, 100);
	CHECK_OK(unlink(join(t, "f")));
	CHECK_ERR(access(up("f"), F_OK), ENOENT);
}

TEST(stack_over_tmpfs_commands, 15)
{
	char *t = point("tmp");
	struct rfs_evict e;
	struct rfs_load l;
	int dev;
	u64 id;

	do_mount("tmpfs", t, "tmpfs", 0, NULL);
	mk_file(join(t, "f"), SEED, SIZE);
	must_mount_rfs(t, t_mnt, NULL);
	id = path_id(up("f"));
	dev = dev_open(t_mnt, O_NONBLOCK);
	/* tmpfs has no other place for its pages: they stay, whatever is asked */
	CHECK_OK(evict(dev, &e, id, 0, SIZE, 0));
	CHECK_EQ(e.evicted, 0);
	CHECK_EQ(e.kept, PAGES(SIZE));
	CHECK_OK(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, 0);
	check_path(up("f"), SEED, SIZE);
	check_map(up("f"), SEED, SIZE);
}

/* It compares names in its own way, which no mirror can follow */
TEST(stack_over_proc_einval, 15)
{
	CHECK_ERR(mount_rfs("/proc/sys", t_mnt, NULL), EINVAL);
	kmsg_allow("rfs");
}

/* Idmapped lower mounts */

struct t_mount_attr {
	u64 set, clr, propagation, userns_fd;
};

#define T_MOUNT_ATTR_IDMAP	0x100000
#define T_OPEN_TREE_CLONE	1
#define T_AT_EMPTY_PATH		0x1000
#define T_MOVE_EMPTY_PATH	4

/* Makes a user namespace in which 0 to 9 are 10000 to 10009 outside */
static int other_userns(void)
{
	int ready[2], fd;
	char path[64], c;
	pid_t pid;

	CHECK_OK(pipe(ready));
	pid = t_fork();
	if (!pid) {
		if (unshare(CLONE_NEWUSER)) {
			CHECK_EQ(errno, EINVAL);
			SKIP("no user namespaces");
		}
		CHECK_EQ(write(ready[1], "r", 1), 1);
		pause();
	}
	close(ready[1]);
	/* A child that ends early has reported a skip or a failure */
	if (read(ready[0], &c, 1) != 1)
		JOIN(pid);
	snprintf(path, sizeof(path), "/proc/%d/uid_map", pid);
	put_str(path, "0 10000 10");
	snprintf(path, sizeof(path), "/proc/%d/gid_map", pid);
	put_str(path, "0 10000 10");
	snprintf(path, sizeof(path), "/proc/%d/ns/user", pid);
	fd = xopen(path, O_RDONLY);
	t_kill(pid);
	return fd;
}

/* Mounts another view of a tree, with an id mapping; returns an errno */
static int idmapped(const char *of, const char *mnt)
{
	struct t_mount_attr a = {
		.set = T_MOUNT_ATTR_IDMAP, .userns_fd = other_userns(),
	};
	int tree = CHECK_OK(syscall(NR_open_tree, AT_FDCWD, of, T_OPEN_TREE_CLONE | O_CLOEXEC));

	if (syscall(NR_mount_setattr, tree, "", T_AT_EMPTY_PATH, &a, sizeof(a)))
		return errno;
	CHECK_OK(syscall(NR_move_mount, tree, "", AT_FDCWD, mnt, T_MOVE_EMPTY_PATH));
	defer_umount(mnt);
	close(tree);
	return 0;
}

/* A file of user 5 that only this one may read */
static void mk_theirs(const char *name)
{
	mk_file(lo(name), SEED, SIZE);
	CHECK_OK(setxattr(lo(name), "user.a", "value", 5, 0));
	CHECK_OK(chown(lo(name), 5, 5));
	CHECK_OK(chmod(lo(name), 0600));
}

static bool kernel_has_idmapped_rfs(void)
{
	struct utsname u;
	int major, minor;

	CHECK_OK(uname(&u));
	CHECK_EQ(sscanf(u.release, "%d.%d", &major, &minor), 2);
	return major > 6 || (major == 6 && minor >= 12);
}

TEST(stack_over_idmapped_refused_or_right, 15)
{
	char *map = point("map");
	struct stat a, b;
	int err;

	mk_theirs("f");
	err = idmapped(t_lower, map);
	if (err) {
		CHECK_EQ(err, ENOSYS);
		SKIP("no idmapped mounts");
	}
	CHECK_OK(stat(join(map, "f"), &a));
	CHECK_EQ(a.st_uid, 10005);
	if (mount_rfs(map, t_mnt, NULL)) {
		CHECK_EQ(errno, EINVAL);
		return;
	}
	CHECK_OK(stat(up("f"), &b));
	CHECK_EQ(b.st_uid, 10005);
	CHECK_EQ(b.st_gid, 10005);
	AS_USER(10005, 10005, check_path(up("f"), SEED, SIZE));
	AS_USER(5, 5, CHECK_ERR(open(up("f"), O_RDONLY), EACCES));
}

TEST(stack_idmapped_on_top, 15)
{
	char *map = point("map"), value[8];
	struct stat st;
	int err;

	mk_theirs("f");
	setup();
	err = idmapped(t_mnt, map);
	if (!kernel_has_idmapped_rfs()) {
		CHECK(err == EINVAL || err == ENOSYS);
		SKIP("no idmapped mounts of rfs");
	}
	CHECK_EQ(err, 0);
	CHECK_OK(stat(join(map, "f"), &st));
	CHECK_EQ(st.st_uid, 10005);
	CHECK_EQ(st.st_gid, 10005);
	CHECK_OK(stat(up("f"), &st));
	CHECK_EQ(st.st_uid, 5);
	AS_USER(10005, 10005,
		check_path(join(map, "f"), SEED, SIZE);
		check_map(join(map, "f"), SEED, SIZE);
		CHECK_EQ(getxattr(join(map, "f"), "user.a", value, sizeof(value)), 5);
		CHECK_ERR(open(up("f"), O_RDONLY), EACCES));
	AS_USER(5, 5,
		check_path(up("f"), SEED, SIZE);
		CHECK_ERR(getxattr(join(map, "f"), "user.a", value, sizeof(value)), EACCES);
		CHECK_ERR(open(join(map, "f"), O_RDONLY), EACCES));
}

/*
 * The file system below is asked for permission, so what it knows of id mappings
 * decides. overlayfs has learned of them.
 */
TEST(stack_idmapped_over_overlayfs_as_that, 15)
{
	char *ovl = point("ovl"), *low = point("low"), *map = point("map");
	int below, above;

	xmkdir(lo("a"));
	mk_theirs("a/f");
	overlay(lo("a"), ovl);
	must_mount_rfs(ovl, t_mnt, NULL);
	below = idmapped(ovl, low);
	above = idmapped(t_mnt, map);
	if (kernel_has_idmapped_rfs())
		CHECK_EQ(above, below);
	if (above) {
		CHECK(above == EINVAL || above == ENOSYS);
		check_path(up("f"), SEED, SIZE);
		return;
	}
	AS_USER(10005, 10005,
		check_path(join(low, "f"), SEED, SIZE);
		check_path(join(map, "f"), SEED, SIZE));
	AS_USER(5, 5, CHECK_ERR(open(join(map, "f"), O_RDONLY), EACCES));
}

/* Capabilities of a file that count in one user namespace, as its root sees them */
TEST(xattr_capabilities_in_user_namespace_as_lower, 15)
{
	/* VFS_CAP_REVISION_3, effective; CAP_NET_RAW; root is user 10000 */
	static const u32 caps[] = { 0x03000001, 1 << 13, 0, 0, 0, 10000 };
	int ns;

	mk_file(lo("f"), SEED, 10);
	CHECK_OK(setxattr(lo("f"), "security.capability", caps, sizeof(caps), 0));
	setup();
	ns = other_userns();
	IN_CHILD(char below[64];
		 char above[64];
		 ssize_t n;
		 CHECK_OK(setns(ns, CLONE_NEWUSER));
		 n = CHECK_OK(getxattr(lo("f"), "security.capability", below, sizeof(below)));
		 CHECK_EQ(getxattr(up("f"), "security.capability", above, sizeof(above)), n);
		 CHECK(!memcmp(above, below, n)));
}

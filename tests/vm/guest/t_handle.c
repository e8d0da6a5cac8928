// SPDX-License-Identifier: GPL-2.0
/* File handles: files of a mirror are found again without a path, by open_by_handle_at(2) and by an NFS server. */
#include "t.h"

#define SEED 0x4a1d
#define SIZE 9000

struct handle {
	struct file_handle h;
	char room[MAX_HANDLE_SZ];
};

static char whole[256];
static struct disk own_disk;

static struct handle handle_of(const char *path)
{
	struct handle a = { .h.handle_bytes = MAX_HANDLE_SZ };
	int mount;

	CHECK_OK(name_to_handle_at(AT_FDCWD, path, &a.h, &mount, 0));
	return a;
}

/* Opens a file of a mount by its handle */
static int by_handle(const char *mnt, struct handle *a)
{
	int at = xopen(mnt, O_RDONLY | O_DIRECTORY), fd, error;

	fd = open_by_handle_at(at, &a->h, O_RDONLY | O_CLOEXEC);
	error = errno;
	close(at);
	errno = error;
	return fd;
}

static void tree_in(const char *in)
{
	xmkdir(join(in, "d"));
	xmkdir(join(in, "d/e"));
	xmkdir(join(in, "other"));
	mk_file(join(in, "f"), SEED, SIZE);
	mk_file(join(in, "d/e/g"), SEED + 1, SIZE);
}

/* The kernel forgets all names and files that are not in use */
static void forget(void)
{
	sync();
	put_str("/proc/sys/vm/drop_caches", "2");
}

static void opens(const char *mnt, struct handle *a, u64 seed)
{
	int fd = CHECK_OK(by_handle(mnt, a));

	check_fd(fd, seed, SIZE);
	close(fd);
}

/* A handle leads to files and folders, whether the kernel has just used them or not */
static void handles_lead_back(const char *lower)
{
	struct handle f, g, e, root;
	char link[64], name[512];
	ssize_t len;
	int dir, fd;

	tree_in(lower);
	must_mount_rfs(lower, t_mnt, NULL);
	f = handle_of(up("f"));
	g = handle_of(up("d/e/g"));
	e = handle_of(up("d/e"));
	root = handle_of(t_mnt);
	for (int pass = 0; pass < 3; pass++) {
		opens(t_mnt, &g, SEED + 1);
		opens(t_mnt, &f, SEED);
		dir = CHECK_OK(by_handle(t_mnt, &e));
		fd = CHECK_OK(openat(dir, "g", O_RDONLY | O_CLOEXEC));
		check_fd(fd, SEED + 1, SIZE);
		close(fd);
		snprintf(link, sizeof(link), "/proc/self/fd/%d", dir);
		len = CHECK_OK(readlink(link, name, sizeof(name) - 1));
		name[len] = 0;
		CHECK_STR(name, up("d/e"));
		close(dir);
		close(CHECK_OK(by_handle(t_mnt, &root)));
		if (pass == 1) {
			do_umount(t_mnt);
			must_mount_rfs(lower, t_mnt, NULL);
		}
		forget();
	}
}

TEST(handle_leads_back_to_the_file, 20)
{
	handles_lead_back(t_lower);
}

/* The test's own file system, all of which is mirrored */
static char *own_fs(void)
{
	snprintf(whole, sizeof(whole), "%s", lo("whole"));
	xmkdir(whole);
	disk_make(&own_disk, "handles", !strcmp(t_fs(), "xfs") ? 320 : 64);
	disk_mkfs(&own_disk);
	disk_mount(&own_disk, whole);
	return whole;
}

TEST(handle_leads_back_where_all_is_mirrored, 40)
{
	handles_lead_back(own_fs());
}

/* A file that is not below LOWER is none of the mirror's */
TEST(handle_of_a_file_outside_is_stale, 20)
{
	struct handle inside, outside, dir;

	xmkdir(lo("shown"));
	xmkdir(lo("hidden"));
	mk_file(lo("shown/f"), SEED, SIZE);
	mk_file(lo("hidden/f"), SEED, SIZE);
	must_mount_rfs(lo("shown"), t_mnt, NULL);
	inside = handle_of(lo("shown/f"));
	outside = handle_of(lo("hidden/f"));
	dir = handle_of(lo("hidden"));
	opens(t_mnt, &inside, SEED);
	for (int pass = 0; pass < 2; pass++) {
		CHECK_ERR(by_handle(t_mnt, &outside), ESTALE);
		CHECK_ERR(by_handle(t_mnt, &dir), ESTALE);
		forget();
	}
}

TEST(handle_of_a_deleted_file_is_stale, 20)
{
	struct handle f, e;

	tree_in(t_lower);
	setup();
	f = handle_of(up("f"));
	e = handle_of(up("d/e"));
	CHECK_OK(unlink(lo("f")));
	CHECK_OK(rm_tree(lo("d")));
	CHECK_ERR(by_handle(t_mnt, &f), ESTALE);
	CHECK_ERR(by_handle(t_mnt, &e), ESTALE);
}

/* What was opened by a handle has no name until it is looked up, and is the same file then */
TEST(handle_is_the_file_that_a_path_names, 20)
{
	struct handle g;
	char path[256];
	int dev, fd;
	u64 id;

	tree_in(t_lower);
	setup();
	g = handle_of(up("d/e/g"));
	dev = dev_open(t_mnt, 0);
	do_umount(t_mnt);
	forget();
	close(dev);
	setup();
	dev = dev_open(t_mnt, 0);
	fd = CHECK_OK(by_handle(t_mnt, &g));
	id = file_id(fd);
	check_fd(CHECK_OK(lower_fd(dev, id, 0)), SEED + 1, SIZE);
	CHECK_EQ(path_id(up("d/e/g")), id);
	CHECK_OK(get_path(dev, id, path, sizeof(path)));
	CHECK_STR(path, "/d/e/g");
	close(fd);
}

/* A directory keeps its handle when it is moved; so does a file, where all of its file system is mirrored */
TEST(handle_is_kept_by_what_is_moved, 40)
{
	struct handle g, e;

	tree_in(own_fs());
	must_mount_rfs(whole, t_mnt, NULL);
	g = handle_of(up("d/e/g"));
	e = handle_of(up("d/e"));
	CHECK_OK(rename(join(whole, "d/e/g"), join(whole, "other/g")));
	CHECK_OK(rename(join(whole, "d/e"), join(whole, "other/e")));
	for (int pass = 0; pass < 2; pass++) {
		opens(t_mnt, &g, SEED + 1);
		close(CHECK_OK(by_handle(t_mnt, &e)));
		forget();
	}
}

/* Elsewhere a handle has the folder in it, so it ends when the file is moved to another */
TEST(handle_of_a_part_ends_when_the_file_is_moved, 40)
{
	struct handle g;

	own_fs();
	xmkdir(join(whole, "part"));
	tree_in(join(whole, "part"));
	must_mount_rfs(join(whole, "part"), t_mnt, NULL);
	g = handle_of(up("d/e/g"));
	CHECK_OK(rename(join(whole, "part/d/e/g"), join(whole, "part/d/e/renamed")));
	forget();
	opens(t_mnt, &g, SEED + 1);
	CHECK_OK(rename(join(whole, "part/d/e/renamed"), join(whole, "part/other/g")));
	do_umount(t_mnt);
	/* forget() may leave the file's name in memory for a while: it has just been used */
	do_umount(whole);
	disk_mount(&own_disk, whole);
	must_mount_rfs(join(whole, "part"), t_mnt, NULL);
	CHECK_ERR(by_handle(t_mnt, &g), ESTALE);
}

TEST(handle_needs_a_privilege, 20)
{
	struct handle f;

	tree_in(t_lower);
	setup();
	f = handle_of(up("f"));
	AS_USER(1000, 1000, CHECK_ERR(by_handle(t_mnt, &f), EPERM));
}

/* An NFS server exports a mirror; what it has forgotten, clients still read */
TEST(nfs_exports_a_mirror, 40)
{
	char *dir = strdup(lo("nfs"));
	int fd;

	xmkdir(lo("tree"));
	xmkdir(dir);
	tree_in(lo("tree"));
	must_mount_rfs(lo("tree"), t_mnt, NULL);
	serve_nfs(t_mnt, dir, "actimeo=1", false);
	check_path(join(dir, "d/e/g"), SEED + 1, SIZE);
	fd = xopen(join(dir, "f"), O_RDONLY);
	forget();
	check_fd(fd, SEED, SIZE);
	check_path(join(dir, "d/e/g"), SEED + 1, SIZE);
	CHECK_ERR(open(join(dir, "f"), O_WRONLY), EROFS);
	CHECK_OK(rename(lo("tree/d"), lo("tree/moved")));
	sleep_ms(1100);
	check_path(join(dir, "moved/e/g"), SEED + 1, SIZE);
	CHECK_ERR(open(join(dir, "d/e/g"), O_RDONLY), ENOENT);
	close(fd);
	do_umount(dir);
}

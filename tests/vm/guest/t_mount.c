// SPDX-License-Identifier: GPL-2.0
/* Mounting: options, what is refused, busy and lazy, namespaces. */
#include "t.h"

#define SEED 0x30047
#define SIZE (3 * PAGE + 11)

static void lower(void)
{
	mk_file(lo("f"), SEED, SIZE);
	xmkdir(lo("d"));
	mk_file(lo("d/e"), SEED + 1, SIZE);
}

static void good(const char *mnt)
{
	check_path(join(mnt, "f"), SEED, SIZE);
	check_map(join(mnt, "f"), SEED, SIZE);
	check_path(join(mnt, "d/e"), SEED + 1, SIZE);
}

/* Another mount point, /mnt/NAME.SUFFIX */
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

/* The options of the last mount on mnt, "" if there is no mount */
static const char *options(const char *mnt)
{
	static char opts[512];
	char line[1024], at[512], type[64], o[512];
	FILE *f = fopen("/proc/mounts", "re");

	CHECK(f);
	opts[0] = 0;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%*s %511s %63s %511s", at, type, o) == 3 &&
		    !strcmp(at, mnt) && !strcmp(type, "rfs"))
			snprintf(opts, sizeof(opts), ",%.500s,", o);
	}
	fclose(f);
	return opts;
}

static bool has_option(const char *mnt, const char *opt)
{
	char want[64];

	snprintf(want, sizeof(want), ",%s,", opt);
	return strstr(options(mnt), want);
}

TEST(mount_mirrors_the_tree, 10)
{
	lower();
	setup();
	good(t_mnt);
	do_umount(t_mnt);
	CHECK_ERR(access(up("f"), F_OK), ENOENT);
}

TEST(mount_of_subdirectory, 10)
{
	struct stat st;

	lower();
	must_mount_rfs(lo("d"), t_mnt, NULL);
	check_path(up("e"), SEED + 1, SIZE);
	/* Nothing above the root */
	CHECK_ERR(access(up("../f"), F_OK), ENOENT);
	CHECK_OK(stat(t_mnt, &st));
	CHECK(S_ISDIR(st.st_mode));
}

TEST(mount_over_itself, 10)
{
	struct stat before, after;

	lower();
	CHECK_OK(stat(lo("f"), &before));
	must_mount_rfs(t_lower, t_lower, NULL);
	good(t_lower);
	CHECK_OK(stat(lo("f"), &after));
	CHECK_EQ(after.st_ino, before.st_ino);
	CHECK(after.st_dev != before.st_dev);
	CHECK_ERR(open(lo("new"), O_WRONLY | O_CREAT, 0644), EROFS);
	CHECK(dev_num(t_lower) >= 0);
	do_umount(t_lower);
	close(xopen(lo("new"), O_WRONLY | O_CREAT));
}

TEST(mount_over_itself_makes_events, 10)
{
	int dev;

	lower();
	must_mount_rfs(t_lower, t_lower, NULL);
	dev = dev_open(t_lower, O_NONBLOCK);
	dev_mask(dev, K(OPEN) | K(TOUCH), 0);
	IN_CHILD(check_path(lo("f"), SEED, SIZE));
	CHECK_EQ(pick(drain(dev), RFS_EVENT_OPEN, 0)->n, 1);
}

TEST(mount_options_in_proc_mounts, 10)
{
	char dev[32];

	lower();
	setup();
	snprintf(dev, sizeof(dev), "dev=rfs%d", dev_num(t_mnt));
	CHECK(has_option(t_mnt, dev));
	CHECK(has_option(t_mnt, "ro"));
	CHECK(!has_option(t_mnt, "odirect=deny"));
	CHECK(!has_option(t_mnt, "splice=copy"));
	do_umount(t_mnt);
	must_mount_rfs(t_lower, t_mnt, "odirect=deny,splice=copy");
	CHECK(has_option(t_mnt, "odirect=deny"));
	CHECK(has_option(t_mnt, "splice=copy"));
	do_umount(t_mnt);
	must_mount_rfs(t_lower, t_mnt, "odirect=pass,splice=pass");
	CHECK(!has_option(t_mnt, "odirect=deny"));
	CHECK(!has_option(t_mnt, "splice=copy"));
}

TEST(mount_source_in_proc_mounts, 10)
{
	char line[1024], src[512], at[512];
	bool seen = false;
	FILE *f;

	lower();
	setup();
	f = fopen("/proc/mounts", "re");
	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%511s %511s", src, at) == 2 &&
		    !strcmp(at, t_mnt)) {
			CHECK_STR(src, t_lower);
			seen = true;
		}
	}
	CHECK(seen);
}

TEST(mount_unknown_option_einval, 10)
{
	lower();
	CHECK_ERR(mount_rfs(t_lower, t_mnt, "nonsense"), EINVAL);
	CHECK_ERR(mount_rfs(t_lower, t_mnt, "odirect=maybe"), EINVAL);
	CHECK_ERR(mount_rfs(t_lower, t_mnt, "odirect"), EINVAL);
	CHECK_ERR(mount_rfs(t_lower, t_mnt, "splice=maybe"), EINVAL);
	CHECK_ERR(mount_rfs(t_lower, t_mnt, "dev=rfs7"), EINVAL);
	CHECK_ERR(mount_rfs(t_lower, t_mnt, "odirect=pass,x=y"), EINVAL);
}

/* Who reads the message knows of what it is, by one word in front of it */
TEST(mount_error_names_rfs_once, 10)
{
	char said[256] = "";
	int context = syscall(NR_fsopen, "rfs", 0);

	CHECK(context >= 0);
	CHECK_ERR(syscall(NR_fsconfig, context, FSCONFIG_SET_STRING, "dev", "rfs7", 0), EINVAL);
	CHECK(read(context, said, sizeof(said) - 1) > 0);
	CHECK_STR(said, "e rfs: dev= is chosen by the kernel, leave it out\n");
	close(context);
}

TEST(mount_of_file_enotdir, 10)
{
	lower();
	CHECK_ERR(mount_rfs(lo("f"), t_mnt, NULL), ENOTDIR);
}

TEST(mount_of_nothing_enoent, 10)
{
	CHECK_ERR(mount_rfs(lo("missing"), t_mnt, NULL), ENOENT);
	CHECK_ERR(mount_rfs("", t_mnt, NULL), ENOENT);
}

TEST(mount_without_source_einval, 10)
{
	CHECK_ERR(mount_rfs(NULL, t_mnt, NULL), EINVAL);
}

TEST(mount_on_file_enotdir, 10)
{
	lower();
	CHECK_ERR(mount_rfs(t_lower, lo("f"), NULL), ENOTDIR);
}

TEST(mount_by_user_eperm, 10)
{
	lower();
	AS_USER(1000, 1000, CHECK_ERR(mount(t_lower, t_mnt, "rfs", 0, NULL),
				      EPERM));
}

TEST(mount_in_user_namespace_eperm, 10)
{
	lower();
	IN_CHILD(if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) {
			CHECK_EQ(errno, EINVAL);
			SKIP("no user namespaces");
		 }
		 put_str("/proc/self/setgroups", "deny");
		 put_str("/proc/self/uid_map", "0 0 1");
		 CHECK_ERR(mount(t_lower, t_mnt, "rfs", 0, NULL), EPERM));
}

/* setuid programs of a container's root must not work in a mirror where they do not work below */
TEST(mount_of_another_user_namespace_refused, 10)
{
	static char path[64];
	int ready[2];
	char c;
	pid_t pid;

	lower();
	CHECK_OK(pipe(ready));
	pid = t_fork();
	if (!pid) {
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS)) {
			CHECK_EQ(errno, EINVAL);
			SKIP("no user namespaces");
		}
		CHECK_OK(mount("tmpfs", "/tmp", "tmpfs", 0, NULL));
		CHECK_EQ(write(ready[1], "", 1), 1);
		pause();
		_exit(T_FAIL);
	}
	close(ready[1]);
	if (read(ready[0], &c, 1) != 1)
		JOIN(pid);
	snprintf(path, sizeof(path), "/proc/%d/root/tmp", pid);
	CHECK_ERR(mount(path, t_mnt, "rfs", 0, NULL), EINVAL);
	t_kill(pid);
}

#ifndef MS_NOSYMFOLLOW
#define MS_NOSYMFOLLOW 256
#endif

TEST(mount_of_nosymfollow, 10)
{
	static char buf[16];

	lower();
	CHECK_OK(symlink("f", lo("link")));
	do_mount(t_lower, t_lower, NULL, MS_BIND, NULL);
	CHECK_OK(mount(NULL, t_lower, NULL, MS_REMOUNT | MS_BIND | MS_NOSYMFOLLOW, NULL));
	if (!access(lo("link"), F_OK))
		SKIP("no nosymfollow");
	setup();
	CHECK_ERR(open(up("link"), O_RDONLY), ELOOP);
	CHECK_EQ(readlink(up("link"), buf, sizeof(buf)), 1);
	CHECK_EQ(buf[0], 'f');
	close(xopen(up("f"), O_RDONLY));
}

/* Remounting */

static int remount(unsigned long flags, const char *opts)
{
	return mount(NULL, t_mnt, NULL, MS_REMOUNT | flags, opts);
}

TEST(remount_changes_odirect, 10)
{
	lower();
	setup();
	close(xopen(up("f"), O_RDONLY | O_DIRECT));
	CHECK_OK(remount(MS_RDONLY, "odirect=deny"));
	CHECK(has_option(t_mnt, "odirect=deny"));
	CHECK_ERR(open(up("f"), O_RDONLY | O_DIRECT), EINVAL);
	CHECK_OK(remount(MS_RDONLY, "odirect=pass"));
	close(xopen(up("f"), O_RDONLY | O_DIRECT));
	good(t_mnt);
}

TEST(remount_read_write_erofs, 10)
{
	lower();
	setup();
	CHECK_ERR(remount(0, NULL), EROFS);
	CHECK(has_option(t_mnt, "ro"));
	CHECK_ERR(open(up("f"), O_WRONLY), EROFS);
}

TEST(remount_bad_option_changes_nothing, 10)
{
	lower();
	must_mount_rfs(t_lower, t_mnt, "odirect=deny");
	CHECK_ERR(remount(MS_RDONLY, "odirect=pass,nonsense"), EINVAL);
	CHECK(has_option(t_mnt, "odirect=deny"));
	CHECK_ERR(open(up("f"), O_RDONLY | O_DIRECT), EINVAL);
}

TEST(remount_keeps_odirect_and_device, 10)
{
	int num;

	lower();
	must_mount_rfs(t_lower, t_mnt, "odirect=deny");
	num = dev_num(t_mnt);
	CHECK_OK(remount(MS_RDONLY | MS_NOSUID, NULL));
	CHECK(has_option(t_mnt, "odirect=deny"));
	CHECK_EQ(dev_num(t_mnt), num);
}

TEST(mount_noexec_nosuid_nodev, 10)
{
	lower();
	CHECK_OK(chmod(lo("f"), 0755));
	CHECK_OK(mknod(lo("zero"), S_IFCHR | 0666, 0x105));
	do_mount(t_lower, t_mnt, "rfs", MS_NOEXEC | MS_NOSUID | MS_NODEV, NULL);
	CHECK(has_option(t_mnt, "noexec") && has_option(t_mnt, "nosuid"));
	CHECK_EQ(t_run(up("f"), NULL), 127);
	CHECK_ERR(open(up("zero"), O_RDONLY), EACCES);
	CHECK(mmap(NULL, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE,
		   xopen(up("f"), O_RDONLY), 0) == MAP_FAILED);
	CHECK_EQ(errno, EPERM);
	good(t_mnt);
}

/* Unmounting */

TEST(umount_busy_by_open_file, 10)
{
	int fd;

	lower();
	setup();
	fd = xopen(up("f"), O_RDONLY);
	CHECK_ERR(umount2(t_mnt, 0), EBUSY);
	check_fd(fd, SEED, SIZE);
	close(fd);
	do_umount(t_mnt);
}

TEST(umount_busy_by_cwd, 10)
{
	lower();
	setup();
	CHECK_OK(chdir(up("d")));
	CHECK_ERR(umount2(t_mnt, 0), EBUSY);
	CHECK_OK(chdir("/"));
	do_umount(t_mnt);
}

TEST(umount_lazy_keeps_open_file, 10)
{
	char buf[100];
	int fd, dir;

	lower();
	setup();
	fd = xopen(up("f"), O_RDONLY);
	dir = xopen(t_mnt, O_RDONLY | O_DIRECTORY);
	CHECK_OK(umount2(t_mnt, MNT_DETACH));
	defer_forget(t_mnt);
	CHECK_ERR(access(up("f"), F_OK), ENOENT);
	drop(lo("f"));
	check_fd(fd, SEED, SIZE);
	CHECK_EQ(pread(CHECK_OK(openat(dir, "d/e", O_RDONLY)), buf, 100, 0),
		 100);
	CHECK_BYTES(buf, SEED + 1, 0, 100);
}

TEST(umount_lazy_device_lives_until_last_close, 10)
{
	char dev[64];
	int fd;

	lower();
	setup();
	fd = xopen(up("f"), O_RDONLY);
	snprintf(dev, sizeof(dev), "%s", dev_path(t_mnt));
	CHECK_OK(umount2(t_mnt, MNT_DETACH));
	defer_forget(t_mnt);
	CHECK_OK(access(dev, F_OK));
	close(fd);
	for (int i = 0; i < 100 && !access(dev, F_OK); i++)
		sleep_ms(20);
	CHECK_ERR(access(dev, F_OK), ENOENT);
}

TEST(umount_forced, 10)
{
	lower();
	setup();
	good(t_mnt);
	CHECK_OK(umount2(t_mnt, MNT_FORCE));
	defer_forget(t_mnt);
	CHECK_EQ(dev_num(t_mnt), -1);
}

TEST(mount_and_umount_50_times, 30)
{
	lower();
	for (int i = 0; i < 50; i++) {
		setup();
		if (i % 10 == 0)
			good(t_mnt);
		do_umount(t_mnt);
	}
	/* Device numbers are used again, not used up */
	setup();
	CHECK(dev_num(t_mnt) < 50);
	good(t_mnt);
}

/* Several mounts */

TEST(mount_twice_gives_two_devices, 10)
{
	char *two = point("two");
	int a, b;

	lower();
	setup();
	must_mount_rfs(t_lower, two, NULL);
	CHECK(dev_num(t_mnt) != dev_num(two));
	a = dev_open(t_mnt, O_NONBLOCK);
	b = dev_open(two, O_NONBLOCK);
	dev_mask(a, K(OPEN), 0);
	dev_mask(b, K(OPEN), 0);
	IN_CHILD(close(xopen(join(two, "f"), O_RDONLY)));
	CHECK_EQ(drain(a)->n, 0);
	CHECK_EQ(drain(b)->n, 1);
	good(t_mnt);
	good(two);
	do_umount(two);
	good(t_mnt);
}

TEST(mount_twice_over_itself, 10)
{
	lower();
	must_mount_rfs(t_lower, t_lower, NULL);
	must_mount_rfs(t_lower, t_lower, NULL);
	good(t_lower);
	do_umount(t_lower);
	good(t_lower);
}

TEST(mount_bind_is_the_same_mount, 10)
{
	char *b = point("bind");
	struct stat x, y;

	lower();
	setup();
	do_mount(up("d"), b, NULL, MS_BIND, NULL);
	check_path(join(b, "e"), SEED + 1, SIZE);
	CHECK_OK(stat(join(b, "e"), &x));
	CHECK_OK(stat(up("d/e"), &y));
	CHECK_EQ(x.st_dev, y.st_dev);
	CHECK_EQ(x.st_ino, y.st_ino);
	do_umount(t_mnt);
	check_path(join(b, "e"), SEED + 1, SIZE);
}

TEST(mount_in_new_mount_namespace, 10)
{
	lower();
	IN_CHILD(CHECK_OK(unshare(CLONE_NEWNS));
		 CHECK_OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
		 CHECK_OK(mount(t_lower, t_mnt, "rfs", 0, NULL));
		 good(t_mnt));
	/* The mount is gone with its last process */
	CHECK_ERR(access(up("f"), F_OK), ENOENT);
	CHECK_EQ(dev_num(t_mnt), -1);
}

TEST(mount_seen_from_other_namespace, 10)
{
	lower();
	setup();
	IN_CHILD(CHECK_OK(unshare(CLONE_NEWNS));
		 good(t_mnt));
	do_umount(t_mnt);
}

TEST(mount_submounts_do_not_show, 10)
{
	struct stat st;

	lower();
	xmkdir(lo("sub"));
	do_mount("tmpfs", lo("sub"), "tmpfs", 0, NULL);
	mk_file(lo("sub/x"), SEED, 10);
	setup();
	CHECK_OK(stat(up("sub"), &st));
	CHECK_ERR(access(up("sub/x"), F_OK), ENOENT);
	good(t_mnt);
}

TEST(mount_lower_may_be_unmounted, 30)
{
	char *below = point("l");
	int fd;

	mkfs_on("/dev/nullb1");
	do_mount("/dev/nullb1", below, t_fs(), 0, NULL);
	mk_file(join(below, "f"), SEED, SIZE);
	must_mount_rfs(below, t_mnt, NULL);
	do_umount(below);
	CHECK_ERR(access(join(below, "f"), F_OK), ENOENT);
	check_path(up("f"), SEED, SIZE);
	check_map(up("f"), SEED, SIZE);
	/* The file system below is in use until rfs is unmounted */
	CHECK_ERR(open("/dev/nullb1", O_RDONLY | O_EXCL), EBUSY);
	do_umount(t_mnt);
	for (int i = 0; i < 50; i++) {
		fd = open("/dev/nullb1", O_RDONLY | O_EXCL);
		if (fd >= 0)
			break;
		sleep_ms(20);
	}
	CHECK(fd >= 0);
}

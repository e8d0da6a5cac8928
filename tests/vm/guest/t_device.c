// SPDX-License-Identifier: GPL-2.0
/* The character device: who may open it, reading it, waiting for it. */
#include "t.h"
#include <grp.h>
#include <sys/epoll.h>
#include <sys/sysmacros.h>

#define SEED 0xde71ce

static u64 mounted(void)
{
	mk_file(lo("f"), SEED, 256 * PAGE);
	setup();
	warm(lo("f"));
	return path_id(up("f"));
}

/* Makes n events that cannot merge, in another process */
static void events(int n)
{
	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 char c;
		 for (int i = 0; i < n; i++)
			CHECK_EQ(pread(fd, &c, 1, (i & 63) * PAGE), 1));
}

static short polled(int dev, int ms)
{
	struct pollfd p = { .fd = dev, .events = POLLIN | POLLRDNORM };
	int n = CHECK_OK(poll(&p, 1, ms));

	CHECK_EQ(n, p.revents != 0);
	return p.revents;
}

/* Reading */

TEST(device_empty_read_eagain, 15)
{
	char buf[4096];
	int dev;

	mounted();
	dev = dev_masked(K(TOUCH));
	CHECK_ERR(read(dev, buf, sizeof(buf)), EAGAIN);
	events(1);
	CHECK_EQ(read(dev, buf, sizeof(buf)), sizeof(struct rfs_event));
	CHECK_ERR(read(dev, buf, sizeof(buf)), EAGAIN);
}

TEST(device_short_buffer_emsgsize, 15)
{
	char buf[sizeof(struct rfs_event)];
	int dev;

	mounted();
	dev = dev_masked(K(TOUCH));
	events(1);
	CHECK_ERR(read(dev, buf, sizeof(buf) - 1), EMSGSIZE);
	CHECK_EQ(read(dev, buf, sizeof(buf)), sizeof(buf));
}

TEST(device_read_gives_whole_records, 15)
{
	static char buf[100 * sizeof(struct rfs_event)];
	size_t one = sizeof(struct rfs_event);
	int dev;

	mounted();
	dev = dev_masked(K(TOUCH));
	events(50);
	CHECK_EQ(read(dev, buf, 3 * one + 5), 3 * one);
	CHECK_EQ(read(dev, buf, one), one);
	CHECK_EQ(read(dev, buf, sizeof(buf)), 46 * one);
}

TEST(device_read_into_bad_buffer_loses_nothing, 15)
{
	struct evs *s;
	int dev;

	mounted();
	dev = dev_masked(K(TOUCH));
	events(5);
	CHECK_ERR(read(dev, bad_ptr(), 4096), EFAULT);
	s = drain(dev);
	CHECK_EQ(total_count(s), 5);
}

TEST(device_write_and_mmap_refused, 15)
{
	int dev;

	mounted();
	dev = dev_open(t_mnt, 0);
	CHECK_ERR(write(dev, "x", 1), EBADF);
	CHECK_ERR((long)mmap(NULL, PAGE, PROT_READ, MAP_SHARED, dev, 0),
		  ENODEV);
	CHECK_ERR(lseek(dev, 1, SEEK_SET), ESPIPE);
}

/* Waiting */

TEST(device_poll_wakes, 15)
{
	pid_t pid;
	int dev;

	mounted();
	dev = dev_masked(K(TOUCH));
	CHECK_EQ(polled(dev, 0), 0);
	pid = t_fork();
	if (!pid) {
		sleep_ms(50);
		events(1);
		_exit(T_PASS);
	}
	CHECK_EQ(polled(dev, 5000), POLLIN | POLLRDNORM);
	JOIN(pid);
	CHECK_EQ(polled(dev, 0), POLLIN | POLLRDNORM);
	CHECK_EQ(drain(dev)->n, 1);
	CHECK_EQ(polled(dev, 0), 0);
}

static int epoll_on(int dev, u32 how)
{
	int ep = CHECK_OK(epoll_create1(EPOLL_CLOEXEC));
	struct epoll_event e = { .events = how };

	CHECK_OK(epoll_ctl(ep, EPOLL_CTL_ADD, dev, &e));
	return ep;
}

TEST(device_epoll_level, 15)
{
	struct epoll_event e;
	int dev, ep;

	mounted();
	dev = dev_masked(K(TOUCH));
	ep = epoll_on(dev, EPOLLIN);
	CHECK_EQ(epoll_wait(ep, &e, 1, 0), 0);
	events(1);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(epoll_wait(ep, &e, 1, 1000), 1);
		CHECK_EQ(e.events, EPOLLIN);
	}
	drain(dev);
	CHECK_EQ(epoll_wait(ep, &e, 1, 0), 0);
}

TEST(device_epoll_edge, 15)
{
	struct epoll_event e;
	int dev, ep;

	mounted();
	dev = dev_masked(K(TOUCH));
	ep = epoll_on(dev, EPOLLIN | EPOLLET);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(epoll_wait(ep, &e, 1, 0), 0);
		events(1);
		CHECK_EQ(epoll_wait(ep, &e, 1, 1000), 1);
		CHECK_EQ(epoll_wait(ep, &e, 1, 0), 0);
		CHECK(drain(dev)->n >= 1);
	}
}

TEST(device_blocking_read_wakes, 15)
{
	struct rfs_event e[8];
	pid_t pid;
	int dev;

	mounted();
	dev = dev_open(t_mnt, 0);
	dev_mask(dev, K(OPEN), 0);
	for (int i = 0; i < 3; i++) {
		pid = t_fork();
		if (!pid) {
			sleep_ms(30);
			close(xopen(up("f"), O_RDONLY));
			_exit(T_PASS);
		}
		CHECK_EQ(read(dev, e, sizeof(e)), sizeof(e[0]));
		CHECK_EQ(e[0].kind, RFS_EVENT_OPEN);
		CHECK_EQ(e[0].tgid, pid);
		JOIN(pid);
	}
}

static void on_alarm(int sig)
{
	(void)sig;
}

TEST(device_blocking_read_is_interruptible, 15)
{
	struct sigaction sa = { .sa_handler = on_alarm };
	struct rfs_event e;
	int dev;

	mounted();
	dev = dev_open(t_mnt, 0);
	dev_mask(dev, K(MISS), 0);
	CHECK_OK(sigaction(SIGALRM, &sa, NULL));
	alarm(1);
	CHECK_ERR(read(dev, &e, sizeof(e)), EINTR);
}

/* The end of the mount */

TEST(device_does_not_pin_the_mount, 15)
{
	char buf[512];
	int dev;

	mk_file(lo("f"), SEED, MIB);
	setup();
	dev = dev_masked(K(TOUCH));
	events(3);
	do_umount(t_mnt);
	CHECK(polled(dev, 0) & POLLHUP);
	CHECK_EQ(total_count(drain(dev)), 3);
	CHECK_EQ(read(dev, buf, sizeof(buf)), 0);
	CHECK(polled(dev, 0) & POLLHUP);
}

TEST(device_commands_after_umount_fail, 15)
{
	struct rfs_stats st = { .size = sizeof(st) };
	struct rfs_load l;
	u64 id;
	int dev, fd;

	mk_file(lo("f"), SEED, MIB);
	setup();
	dev = dev_masked(K(MISS));
	fd = xopen(up("f"), O_RDONLY);
	id = file_id(fd);
	close(fd);
	do_umount(t_mnt);
	CHECK_ERR(ioctl(dev, RFS_IOC_STATS, &st), ENODEV);
	drop(lo("f"));
	CHECK_ERR(load(dev, &l, id, 0, MIB, RFS_LOAD_WAIT), ENODEV);
	CHECK_EQ(resident(lo("f")), 0);
}

TEST(device_umount_wakes_blocked_reader, 15)
{
	struct rfs_event e;
	pid_t pid;
	int dev;

	mk_file(lo("f"), SEED, MIB);
	setup();
	pid = t_fork();
	if (!pid) {
		dev = dev_open(t_mnt, 0);
		dev_mask(dev, K(MISS), 0);
		CHECK_EQ(read(dev, &e, sizeof(e)), 0);
		_exit(T_PASS);
	}
	sleep_ms(100);
	do_umount(t_mnt);
	JOIN(pid);
}

TEST(device_node_goes_with_the_mount, 15)
{
	char path[64];

	setup();
	snprintf(path, sizeof(path), "%s", dev_path(t_mnt));
	CHECK_OK(access(path, F_OK));
	do_umount(t_mnt);
	for (int i = 0; i < 50 && !access(path, F_OK); i++)
		sleep_ms(20);
	CHECK_ERR(access(path, F_OK), ENOENT);
}

/* One reader at a time */

TEST(device_second_open_ebusy, 15)
{
	int dev;

	mounted();
	dev = dev_open(t_mnt, 0);
	CHECK_ERR(dev_try(t_mnt, 0), EBUSY);
	IN_CHILD(CHECK_ERR(dev_try(t_mnt, 0), EBUSY));
	close(dev);
	dev = dev_open(t_mnt, 0);
	CHECK_ERR(dev_try(t_mnt, 0), EBUSY);
}

TEST(device_reopened_starts_clean, 15)
{
	struct rfs_stats st;
	int dev;

	mounted();
	dev = dev_masked(K(TOUCH));
	events(20);
	close(dev);
	events(5);
	dev = dev_open(t_mnt, O_NONBLOCK);
	CHECK_EQ(drain(dev)->n, 0);
	events(5);
	CHECK_EQ(drain(dev)->n, 0);
	get_stats(dev, &st);
	CHECK_EQ(st.queued, 0);
	dev_mask(dev, K(TOUCH), 0);
	events(5);
	CHECK_EQ(drain(dev)->n, 5);
}

TEST(device_reader_killed_files_go_on, 20)
{
	pid_t dev_pid, file_pid;
	int ready[2], stop[2], dev;
	char c;

	mounted();
	CHECK_OK(pipe(ready));
	CHECK_OK(pipe(stop));
	dev_pid = t_fork();
	if (!dev_pid) {
		struct rfs_event e;

		dev = dev_open(t_mnt, 0);
		dev_mask(dev, K(TOUCH), 0);
		CHECK_EQ(write(ready[1], "r", 1), 1);
		while (read(dev, &e, sizeof(e)) > 0)
			;
		_exit(T_FAIL);
	}
	CHECK_EQ(read(ready[0], &c, 1), 1);
	file_pid = t_fork();
	if (!file_pid) {
		close(stop[1]);
		/* until the other end is closed */
		CHECK_OK(fcntl(stop[0], F_SETFL, O_NONBLOCK));
		while (read(stop[0], &c, 1) < 0)
			check_path(up("f"), SEED, MIB);
		_exit(T_PASS);
	}
	sleep_ms(50);
	t_kill(dev_pid);
	sleep_ms(50);
	close(stop[1]);
	JOIN(file_pid);
	dev = dev_masked(K(TOUCH));
	events(2);
	CHECK_EQ(total_count(drain(dev)), 2);
}

TEST(device_stopped_reader_files_go_on, 20)
{
	int ready[2], dev;
	pid_t pid;
	char c;

	mounted();
	CHECK_OK(pipe(ready));
	pid = t_fork();
	if (!pid) {
		dev = dev_open(t_mnt, 0);
		dev_mask(dev, K(TOUCH) | K(MISS), 0);
		CHECK_EQ(write(ready[1], "r", 1), 1);
		pause();
		_exit(T_FAIL);
	}
	CHECK_EQ(read(ready[0], &c, 1), 1);
	kill(pid, SIGSTOP);
	events(1000);
	check_path(up("f"), SEED, MIB);
	check_map(up("f"), SEED, MIB);
	t_kill(pid);
}

/* Permissions */

TEST(device_not_for_everybody, 15)
{
	mounted();
	AS_USER(1000, 1000, CHECK_ERR(dev_try(t_mnt, 0), EACCES));
}

TEST(device_mode_alone_is_not_enough, 15)
{
	mounted();
	CHECK_OK(chmod(dev_path(t_mnt), 0666));
	AS_USER(1000, 1000, CHECK_ERR(dev_try(t_mnt, 0), EPERM));
}

TEST(device_for_its_group, 15)
{
	struct rfs_hello h;

	mounted();
	CHECK_OK(chown(dev_path(t_mnt), 0, 2000));
	CHECK_OK(chmod(dev_path(t_mnt), 0660));
	AS_USER(1000, 2000, get_hello(dev_open(t_mnt, 0), &h));
	AS_USER(1000, 1000, CHECK_ERR(dev_try(t_mnt, 0), EACCES));
}

TEST(device_for_its_supplementary_group, 15)
{
	struct rfs_hello h;
	gid_t g = 2000;

	mounted();
	CHECK_OK(chown(dev_path(t_mnt), 0, 2000));
	CHECK_OK(chmod(dev_path(t_mnt), 0660));
	IN_CHILD(CHECK_OK(setgroups(1, &g));
		 CHECK_OK(setresgid(1000, 1000, 1000));
		 CHECK_OK(setresuid(1000, 1000, 1000));
		 get_hello(dev_open(t_mnt, 0), &h));
}

TEST(device_number_by_any_file, 15)
{
	struct rfs_file_info f = { .size = sizeof(f) };
	struct rfs_hello h;
	struct stat st;
	int dev;

	mounted();
	CHECK_OK(ioctl(xopen(up("f"), O_RDONLY), RFS_IOC_FILE, &f));
	CHECK_EQ(f.device, dev_num(t_mnt));
	dev = dev_open(t_mnt, 0);
	get_hello(dev, &h);
	CHECK_EQ(h.device, f.device);
	CHECK_EQ(h.event_size, sizeof(struct rfs_event));
	CHECK_OK(stat(t_lower, &st));
	CHECK_EQ(major(h.lower_dev), major(st.st_dev));
	CHECK_EQ(minor(h.lower_dev), minor(st.st_dev));
	CHECK_EQ(h.kinds & (K(OPEN) | K(CLOSE) | K(MISS) | K(TOUCH) |
			    K(PROGRESS)),
		 K(OPEN) | K(CLOSE) | K(MISS) | K(TOUCH) | K(PROGRESS));
	CHECK(h.queue_bytes >= 64 * KIB);
}

#define MANY 200

/* The tree of one of many mounts, on a tmpfs that covers the test's mount point */
static const char *one_of_many(int i)
{
	static char path[64];

	snprintf(path, sizeof(path), "%s/%d", t_mnt, i);
	return path;
}

TEST(device_for_each_of_200_mounts, 60)
{
	mk_file(lo("f"), SEED, MIB);
	CHECK(!mkdir(t_mnt, 0755) || errno == EEXIST);
	IN_CHILD(
		bool seen[4 * MANY] = { false };
		struct rfs_hello h;
		struct stat st;

		CHECK_OK(unshare(CLONE_NEWNS));
		CHECK_OK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
		CHECK_OK(mount("tmpfs", t_mnt, "tmpfs", 0, NULL));
		for (int i = 0; i < MANY; i++) {
			xmkdir(one_of_many(i));
			CHECK_OK(mount(t_lower, one_of_many(i), "rfs", 0, NULL));
		}
		for (int i = 0; i < MANY; i++) {
			int num = dev_num(one_of_many(i));
			int dev = dev_open(one_of_many(i), 0);

			CHECK(num >= 0 && num < (int)ARRAY_SIZE(seen) && !seen[num]);
			seen[num] = true;
			get_hello(dev, &h);
			CHECK_EQ(h.device, num);
			CHECK_OK(fstat(dev, &st));
			CHECK_EQ(st.st_mode, S_IFCHR | 0660);
			CHECK_EQ(st.st_uid, 0);
			CHECK_EQ(st.st_gid, 0);
			close(dev);
		}
		for (int i = 0; i < MANY; i++)
			CHECK_OK(umount(one_of_many(i)));
	);
	/* Numbers of mounts that are gone are used again */
	setup();
	CHECK(dev_num(t_mnt) < MANY);
}

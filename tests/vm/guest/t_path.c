// SPDX-License-Identifier: GPL-2.0
/* What the device returns about files: LOWER_FD, PATH, STATS, file ids. */
#include "t.h"
#include <grp.h>

#define SEED 0x9a74
#define SIZE (MIB + 33)

static char buf[4096];

static int mounted(u64 *id)
{
	mk_file(lo("f"), SEED, SIZE);
	setup();
	*id = path_id(up("f"));
	return dev_open(t_mnt, O_NONBLOCK);
}

TEST(lower_fd_reads_the_lower_file, 15)
{
	struct stat a, b;
	u64 id;
	int dev = mounted(&id), fd;

	drop(lo("f"));
	fd = CHECK_OK(lower_fd(dev, id, 0));
	CHECK_OK(fstat(fd, &a));
	CHECK_OK(stat(lo("f"), &b));
	CHECK_EQ(a.st_dev, b.st_dev);
	CHECK_EQ(a.st_ino, b.st_ino);
	CHECK_EQ(fcntl(fd, F_GETFL) & (O_ACCMODE | O_DIRECT), O_RDONLY);
	CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	check_fd(fd, SEED, SIZE);
	CHECK_ERR(write(fd, "x", 1), EBADF);
	/* The loader's own reads through it cause no event */
	dev_mask(dev, K(OPEN) | K(CLOSE) | K(MISS) | K(TOUCH), 0);
	drop(lo("f"));
	IN_CHILD(check_fd(fd, SEED, SIZE));
	CHECK_EQ(drain(dev)->n, 0);
}

TEST(lower_fd_direct, 15)
{
	u8 *p = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	u64 id;
	int dev = mounted(&id), fd;

	drop(lo("f"));
	fd = CHECK_OK(lower_fd(dev, id, O_DIRECT));
	CHECK(fcntl(fd, F_GETFL) & O_DIRECT);
	CHECK_EQ(pread(fd, p, 64 * KIB, 0), 64 * KIB);
	CHECK_BYTES(p, SEED, 0, 64 * KIB);
	CHECK_EQ(resident(lo("f")), 0);
}

TEST(lower_fd_does_not_pin_the_mount, 15)
{
	int dev, fd, file;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	file = xopen(up("f"), O_RDONLY);
	dev = dev_open(t_mnt, O_NONBLOCK);
	fd = CHECK_OK(lower_fd(dev, file_id(file), 0));
	close(file);
	do_umount(t_mnt);
	check_fd(fd, SEED, SIZE);
}

TEST(lower_fd_of_private_file_for_the_group, 15)
{
	int dev, fd;
	u64 id;

	mk_file(lo("f"), SEED, SIZE);
	CHECK_OK(chmod(lo("f"), 0600));
	setup();
	id = path_id(up("f"));
	CHECK_OK(chown(dev_path(t_mnt), 0, 2000));
	CHECK_OK(chmod(dev_path(t_mnt), 0660));
	AS_USER(1000, 2000, CHECK_ERR(open(up("f"), O_RDONLY), EACCES);
		dev = dev_open(t_mnt, O_NONBLOCK);
		fd = CHECK_OK(lower_fd(dev, id, 0));
		check_fd(fd, SEED, SIZE));
}

TEST(lower_fd_of_unlinked_file, 15)
{
	u64 id;
	int dev = mounted(&id);

	CHECK_OK(unlink(lo("f")));
	check_fd(CHECK_OK(lower_fd(dev, id, 0)), SEED, SIZE);
}

TEST(lower_fd_flags_refused, 15)
{
	u64 id;
	int dev = mounted(&id);

	CHECK_ERR(lower_fd(dev, id, O_RDWR), EINVAL);
	CHECK_ERR(lower_fd(dev, id, O_WRONLY), EINVAL);
	CHECK_ERR(lower_fd(dev, id, O_TRUNC), EINVAL);
	CHECK_ERR(lower_fd(dev, id, O_CLOEXEC), EINVAL);
}

/* PATH */

TEST(path_of_nested_file, 15)
{
	u64 id;
	int dev = mounted(&id);

	xmkdir(lo("a"));
	xmkdir(lo("a/b"));
	mk_file(lo("a/b/c.bin"), SEED, PAGE);
	CHECK_OK(get_path(dev, path_id(up("a/b/c.bin")), buf, sizeof(buf)));
	CHECK_STR(buf, "/a/b/c.bin");
	CHECK_OK(get_path(dev, path_id(up("a/b")), buf, sizeof(buf)));
	CHECK_STR(buf, "/a/b");
	CHECK_OK(get_path(dev, id, buf, sizeof(buf)));
	CHECK_STR(buf, "/f");
	CHECK_OK(get_path(dev, path_id(t_mnt), buf, sizeof(buf)));
	CHECK_STR(buf, "/");
}

TEST(path_buffer_of_exact_size, 15)
{
	u64 id;
	int dev = mounted(&id);

	CHECK_ERR(get_path(dev, id, buf, 2), ENAMETOOLONG);
	CHECK_ERR(get_path(dev, id, buf, 0), ENAMETOOLONG);
	CHECK_OK(get_path(dev, id, buf, 3));
	CHECK_STR(buf, "/f");
}

TEST(path_after_rename_below, 15)
{
	u64 id, now;
	int dev = mounted(&id);

	xmkdir(lo("d"));
	CHECK_OK(rename(lo("f"), lo("d/g")));
	now = path_id(up("d/g"));
	CHECK_OK(get_path(dev, now, buf, sizeof(buf)));
	CHECK_STR(buf, "/d/g");
}

TEST(path_after_directory_rename_below, 15)
{
	u64 id;
	int dev = mounted(&id);

	xmkdir(lo("d"));
	mk_file(lo("d/g"), SEED, PAGE);
	path_id(up("d/g"));
	CHECK_OK(rename(lo("d"), lo("e")));
	CHECK_OK(get_path(dev, path_id(up("e/g")), buf, sizeof(buf)));
	CHECK_STR(buf, "/e/g");
}

/* The file's own name stays, but its path changes */
TEST(path_after_folder_above_renamed_below, 15)
{
	u64 id;
	int dev = mounted(&id);

	xmkdir(lo("d"));
	xmkdir(lo("d/e"));
	mk_file(lo("d/e/g"), SEED, PAGE);
	id = path_id(up("d/e/g"));
	CHECK_OK(get_path(dev, id, buf, sizeof(buf)));
	CHECK_STR(buf, "/d/e/g");
	CHECK_OK(rename(lo("d"), lo("x")));
	CHECK_ERR(get_path(dev, id, buf, sizeof(buf)), ENOENT);
	CHECK_EQ(path_id(up("x/e/g")), id);
	CHECK_OK(get_path(dev, id, buf, sizeof(buf)));
	CHECK_STR(buf, "/x/e/g");
}

TEST(path_after_unlink_below, 15)
{
	u64 id;
	int dev = mounted(&id);

	CHECK_OK(unlink(lo("f")));
	CHECK_ERR(get_path(dev, id, buf, sizeof(buf)), ENOENT);
}

TEST(path_of_hard_links_is_one_of_them, 15)
{
	u64 id;
	int dev = mounted(&id);

	CHECK_OK(link(lo("f"), lo("g")));
	CHECK_EQ(path_id(up("g")), id);
	CHECK_OK(get_path(dev, id, buf, sizeof(buf)));
	CHECK(!strcmp(buf, "/f") || !strcmp(buf, "/g"));
	CHECK_OK(unlink(lo("f")));
	CHECK_EQ(path_id(up("g")), id);
	CHECK_OK(get_path(dev, id, buf, sizeof(buf)));
	CHECK_STR(buf, "/g");
}

/* Ids */

TEST(file_id_is_gone_with_the_inode, 15)
{
	struct rfs_load l;
	int dev, fd;
	u64 id, next;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	dev = dev_open(t_mnt, O_NONBLOCK);
	fd = xopen(up("f"), O_RDONLY);
	id = file_id(fd);
	CHECK_OK(unlink(lo("f")));
	CHECK_OK(load(dev, &l, id, 0, SIZE, 0));
	close(fd);
	for (int i = 0; i < 100 && !load(dev, &l, id, 0, SIZE, 0); i++)
		sleep_ms(20);
	CHECK_ERR(load(dev, &l, id, 0, SIZE, 0), ESTALE);
	/* Never used twice, even if the inode number is */
	mk_file(lo("f"), SEED, SIZE);
	next = path_id(up("f"));
	CHECK(next != id);
	CHECK_ERR(load(dev, &l, id, 0, SIZE, 0), ESTALE);
}

TEST(file_id_lives_while_mapped, 15)
{
	struct rfs_load l;
	int dev, fd;
	u64 id;
	u8 *p;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	dev = dev_open(t_mnt, O_NONBLOCK);
	fd = xopen(up("f"), O_RDONLY);
	id = file_id(fd);
	p = xmap(fd, 0, SIZE, PROT_READ, MAP_SHARED);
	close(fd);
	put_str("/proc/sys/vm/drop_caches", "3");
	CHECK_OK(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT));
	CHECK_BYTES(p, SEED, 0, SIZE);
	CHECK_EQ(path_id(up("f")), id);
	CHECK_OK(munmap(p, SIZE));
}

TEST(file_id_differs_after_rename_over, 15)
{
	u64 id;
	int dev = mounted(&id);

	mk_file(lo("g"), SEED + 1, SIZE);
	CHECK_OK(rename(lo("g"), lo("f")));
	CHECK(path_id(up("f")) != id);
	check_fd(CHECK_OK(lower_fd(dev, id, 0)), SEED, SIZE);
	check_fd(CHECK_OK(lower_fd(dev, path_id(up("f")), 0)), SEED + 1, SIZE);
}

/* STATS */

TEST(stats_count_loads_and_evictions, 15)
{
	struct rfs_stats a, b;
	struct rfs_load l;
	struct rfs_evict e;
	u64 id;
	int dev = mounted(&id);

	drop(lo("f"));
	get_stats(dev, &a);
	CHECK_OK(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT));
	CHECK_OK(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT));
	CHECK_OK(evict(dev, &e, id, 0, SIZE, 0));
	get_stats(dev, &b);
	CHECK_EQ(b.loads - a.loads, 2);
	CHECK_EQ(b.loaded - a.loaded, PAGES(SIZE));
	CHECK_EQ(b.evicts - a.evicts, 1);
	CHECK_EQ(b.evicted - a.evicted, PAGES(SIZE));
}

TEST(stats_count_events, 15)
{
	struct rfs_stats a, b;
	struct evs *s;
	u64 id;
	int dev = mounted(&id);

	warm(lo("f"));
	dev_mask(dev, K(TOUCH) | K(OPEN), 0);
	get_stats(dev, &a);
	CHECK_EQ(a.queued, 0);
	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 char c;
		 /* 10 that merge, 10 that don't */
		 for (int i = 0; i < 10; i++)
			CHECK_EQ(pread(fd, &c, 1, i), 1);
		 for (int i = 0; i < 10; i++)
			CHECK_EQ(pread(fd, &c, 1, (i + 5) * PAGE), 1));
	get_stats(dev, &b);
	CHECK_EQ(b.events - a.events, 21);
	CHECK_EQ(b.merged - a.merged, 9);
	CHECK_EQ(b.queued, 12);
	CHECK_EQ(b.lost, 0);
	s = drain(dev);
	CHECK_EQ(s->n, 12);
	CHECK_EQ(total_count(s), 21);
	get_stats(dev, &b);
	CHECK_EQ(b.queued, 0);
	CHECK_EQ(b.delivered - a.delivered, 12);
}

/* Two names of one file are looked up at the same time: one of the two new inodes is thrown away */
TEST(stats_files_do_not_drift, 30)
{
	const char *name[2] = { "f", "g" };
	struct rfs_stats a, b;
	int dev, go[2][2], done[2];
	pid_t pid[2];
	char c;

	mk_file(lo("f"), SEED, 1);
	CHECK_OK(link(lo("f"), lo("g")));
	setup();
	dev = dev_open(t_mnt, O_NONBLOCK);
	get_stats(dev, &a);
	CHECK_OK(pipe(done));
	for (int i = 0; i < 2; i++) {
		CHECK_OK(pipe(go[i]));
		pid[i] = t_fork();
		if (!pid[i]) {
			t_pin(i);
			close(go[i][1]);
			while (read(go[i][0], &c, 1) == 1) {
				access(up(name[i]), F_OK);
				CHECK_EQ(write(done[1], &c, 1), 1);
			}
			_exit(T_PASS);
		}
		close(go[i][0]);
	}
	for (int round = 0; round < 500; round++) {
		for (int i = 0; i < 2; i++)
			CHECK_EQ(write(go[i][1], "", 1), 1);
		for (int i = 0; i < 2; i++)
			CHECK_EQ(read(done[0], &c, 1), 1);
		/* forgets both names */
		for (int i = 0; i < 2; i++) {
			CHECK_OK(rename(lo(name[i]), lo("away")));
			CHECK_OK(rename(lo("away"), lo(name[i])));
		}
	}
	for (int i = 0; i < 2; i++)
		t_kill(pid[i]);
	get_stats(dev, &b);
	CHECK_EQ(b.files, a.files);
}

TEST(stats_count_files, 15)
{
	struct rfs_stats a, b;
	char name[16];
	u64 id;
	int dev = mounted(&id);

	get_stats(dev, &a);
	CHECK(a.files >= 2);
	for (int i = 0; i < 50; i++) {
		snprintf(name, sizeof(name), "n%d", i);
		mk_file(lo(name), SEED, 1);
		path_id(up(name));
	}
	get_stats(dev, &b);
	CHECK_EQ(b.files - a.files, 50);
}

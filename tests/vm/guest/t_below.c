// SPDX-License-Identifier: GPL-2.0
/* Changes below show at once; nothing is stale, nothing pinned. */
#include "t.h"
#include <sys/xattr.h>

#define SEED 0xbe10
#define SIZE (300 * KIB + 7)

static void tree(void)
{
	mk_file(lo("f"), SEED, SIZE);
	xmkdir(lo("d"));
	mk_file(lo("d/e"), SEED + 9, PAGE);
	setup();
	check_path(up("f"), SEED, SIZE);
	check_path(up("d/e"), SEED + 9, PAGE);
}

static u64 size_of(const char *path)
{
	struct stat st;

	CHECK_OK(stat(path, &st));
	return st.st_size;
}

TEST(below_new_file, 10)
{
	tree();
	mk_file(lo("new"), SEED + 1, SIZE);
	check_path(up("new"), SEED + 1, SIZE);
}

TEST(below_new_file_after_negative_lookup, 10)
{
	tree();
	for (int i = 0; i < 3; i++)
		CHECK_ERR(open(up("new"), O_RDONLY), ENOENT);
	CHECK_ERR(open(up("d/new"), O_RDONLY), ENOENT);
	mk_file(lo("new"), SEED + 1, SIZE);
	mk_file(lo("d/new"), SEED + 2, SIZE);
	check_path(up("new"), SEED + 1, SIZE);
	check_path(up("d/new"), SEED + 2, SIZE);
}

/* Asks twice, so that the second answer may come from a cache */
static void not_there(const char *path)
{
	CHECK_ERR(access(path, F_OK), ENOENT);
	CHECK_ERR(access(path, F_OK), ENOENT);
}

TEST(below_absent_name_gets_a_file_in_each_way, 15)
{
	struct stat st;

	xmkdir(lo("d"));
	mk_file(lo("d/other"), SEED, 100);
	setup();
	not_there(up("d/new"));
	CHECK_OK(rename(lo("d/other"), lo("d/new")));
	check_path(up("d/new"), SEED, 100);
	not_there(up("d/other"));
	CHECK_OK(link(lo("d/new"), lo("d/other")));
	check_path(up("d/other"), SEED, 100);
	not_there(up("d/link"));
	CHECK_OK(symlink("new", lo("d/link")));
	check_path(up("d/link"), SEED, 100);
	not_there(up("d/sub"));
	xmkdir(lo("d/sub"));
	not_there(up("d/sub/f"));
	CHECK_OK(stat(up("d/sub"), &st));
	CHECK_OK(rmdir(lo("d/sub")));
	not_there(up("d/sub"));
	not_there(up("d/sub/f"));
	xmkdir(lo("d/sub"));
	mk_file(lo("d/sub/f"), SEED + 1, 100);
	check_path(up("d/sub/f"), SEED + 1, 100);
	CHECK_OK(rename(lo("d/sub"), lo("d/moved")));
	not_there(up("d/sub/f"));
	check_path(up("d/moved/f"), SEED + 1, 100);
}

TEST(below_rename_over, 10)
{
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	mk_file(lo("g"), SEED + 1, 5000);
	CHECK_OK(rename(lo("g"), lo("f")));
	check_path(up("f"), SEED + 1, 5000);
	CHECK_EQ(size_of(up("f")), 5000);
	check_map(up("f"), SEED + 1, 5000);
	/* A process that has the old file open keeps it */
	check_fd(fd, SEED, SIZE);
	CHECK_ERR(open(up("g"), O_RDONLY), ENOENT);
}

TEST(below_rename_away, 10)
{
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	CHECK_OK(rename(lo("f"), lo("d/g")));
	CHECK_ERR(open(up("f"), O_RDONLY), ENOENT);
	CHECK_ERR(access(up("f"), F_OK), ENOENT);
	check_path(up("d/g"), SEED, SIZE);
	check_fd(fd, SEED, SIZE);
}

TEST(below_rename_exchange, 10)
{
	tree();
	mk_file(lo("g"), SEED + 1, 5000);
	check_path(up("g"), SEED + 1, 5000);
	CHECK_OK(renameat2(AT_FDCWD, lo("f"), AT_FDCWD, lo("g"),
			   RENAME_EXCHANGE));
	check_path(up("f"), SEED + 1, 5000);
	check_path(up("g"), SEED, SIZE);
}

TEST(below_unlink, 10)
{
	struct stat st;
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	CHECK_OK(unlink(lo("f")));
	CHECK_ERR(open(up("f"), O_RDONLY), ENOENT);
	CHECK_ERR(stat(up("f"), &st), ENOENT);
	check_fd(fd, SEED, SIZE);
	CHECK_OK(fstat(fd, &st));
	CHECK_EQ(st.st_nlink, 0);
	CHECK_EQ(st.st_size, SIZE);
}

TEST(below_unlink_and_create_again, 10)
{
	tree();
	for (int i = 1; i < 20; i++) {
		CHECK_OK(unlink(lo("f")));
		CHECK_ERR(access(up("f"), F_OK), ENOENT);
		mk_file(lo("f"), SEED + i, 100 + i);
		check_path(up("f"), SEED + i, 100 + i);
	}
}

/* The lower file system must have that many free blocks again within 2 s */
static void freed(u64 want)
{
	struct statfs s;

	for (int i = 0; i < 100; i++) {
		CHECK_OK(statfs(t_lower, &s));
		if (s.f_bfree >= want)
			return;
		sleep_ms(20);
	}
	t_fail(__FILE__, __LINE__, "%llu blocks are free, want %llu",
	       (unsigned long long)s.f_bfree, (unsigned long long)want);
}

static u64 free_now(void)
{
	struct statfs s;

	sync();
	CHECK_OK(statfs(t_lower, &s));
	return s.f_bfree;
}

TEST(below_unlinked_blocks_are_freed, 15)
{
	u64 with;

	mk_file(lo("f"), SEED, 8 * MIB);
	setup();
	check_path(up("f"), SEED, 8 * MIB);
	check_map(up("f"), SEED, 8 * MIB);
	with = free_now();
	CHECK_OK(unlink(lo("f")));
	freed(with + 2000);
}

TEST(below_replaced_blocks_are_freed, 15)
{
	u64 with;

	mk_file(lo("f"), SEED, 8 * MIB);
	mk_file(lo("g"), SEED, 1);
	setup();
	check_path(up("f"), SEED, 8 * MIB);
	with = free_now();
	CHECK_OK(rename(lo("g"), lo("f")));
	freed(with + 2000);
}

TEST(below_unlinked_in_subdirectory_is_freed, 15)
{
	u64 with;

	xmkdir(lo("d"));
	xmkdir(lo("d/d"));
	mk_file(lo("d/d/f"), SEED, 8 * MIB);
	setup();
	check_path(up("d/d/f"), SEED, 8 * MIB);
	with = free_now();
	CHECK_OK(unlink(lo("d/d/f")));
	freed(with + 2000);
}

TEST(below_removed_tree_is_freed, 20)
{
	u64 with;

	xmkdir(lo("d"));
	xmkdir(lo("d/d"));
	mk_file(lo("d/d/f"), SEED, 8 * MIB);
	mk_file(lo("d/g"), SEED, MIB);
	setup();
	check_path(up("d/d/f"), SEED, 8 * MIB);
	check_path(up("d/g"), SEED, MIB);
	with = free_now();
	CHECK_EQ(rm_tree(lo("d")), 0);
	freed(with + 2200);
	CHECK_ERR(access(up("d"), F_OK), ENOENT);
}

/* A file that was absent when it was asked for, and never since */
TEST(below_once_absent_is_freed, 15)
{
	u64 with;

	setup();
	not_there(up("f"));
	mk_file(lo("f"), SEED, 8 * MIB);
	with = free_now();
	CHECK_OK(unlink(lo("f")));
	freed(with + 2000);
}

/* A removed folder in which names were asked for */
TEST(below_removed_folder_of_absent_names_is_freed, 20)
{
	struct statfs before, after;

	setup();
	sync();
	CHECK_OK(statfs(t_lower, &before));
	for (int i = 0; i < 100; i++) {
		xmkdir(lo("sub"));
		not_there(up("sub/none"));
		CHECK_OK(rmdir(lo("sub")));
	}
	for (int i = 0; i < 50; i++) {
		sync();
		CHECK_OK(statfs(t_lower, &after));
		if (after.f_ffree + 10 > before.f_ffree)
			break;
		sleep_ms(100);
	}
	CHECK(after.f_ffree + 10 > before.f_ffree);
}

TEST(below_freed_after_last_close, 15)
{
	u64 with;
	int fd;

	mk_file(lo("f"), SEED, 8 * MIB);
	setup();
	fd = xopen(up("f"), O_RDONLY);
	with = free_now();
	CHECK_OK(unlink(lo("f")));
	check_fd(fd, SEED, 8 * MIB);
	close(fd);
	freed(with + 2000);
}

TEST(below_directory_renamed, 10)
{
	int dir;

	tree();
	dir = xopen(up("d"), O_RDONLY | O_DIRECTORY);
	CHECK_OK(rename(lo("d"), lo("c")));
	CHECK_ERR(access(up("d"), F_OK), ENOENT);
	CHECK_ERR(access(up("d/e"), F_OK), ENOENT);
	check_path(up("c/e"), SEED + 9, PAGE);
	/* A process that has the directory open stays in it */
	CHECK_OK(faccessat(dir, "e", F_OK, 0));
}

TEST(below_directory_moved_into_another, 10)
{
	tree();
	xmkdir(lo("x"));
	CHECK_OK(access(up("x"), F_OK));
	CHECK_OK(rename(lo("d"), lo("x/d")));
	CHECK_ERR(access(up("d/e"), F_OK), ENOENT);
	check_path(up("x/d/e"), SEED + 9, PAGE);
	CHECK_OK(rename(lo("x/d"), lo("d")));
	check_path(up("d/e"), SEED + 9, PAGE);
	CHECK_ERR(access(up("x/d/e"), F_OK), ENOENT);
}

TEST(below_directory_removed_under_cwd, 10)
{
	tree();
	IN_CHILD(CHECK_OK(chdir(up("d")));
		 CHECK_OK(unlink(lo("d/e")));
		 CHECK_OK(rmdir(lo("d")));
		 CHECK_ERR(access("e", F_OK), ENOENT);
		 CHECK_ERR(access(up("d"), F_OK), ENOENT);
		 CHECK_OK(access("..", F_OK)));
}

TEST(below_file_becomes_directory, 10)
{
	tree();
	CHECK_OK(unlink(lo("f")));
	xmkdir(lo("f"));
	mk_file(lo("f/in"), SEED + 3, 10);
	check_path(up("f/in"), SEED + 3, 10);
	CHECK_OK(unlink(lo("d/e")));
	CHECK_OK(rmdir(lo("d")));
	mk_file(lo("d"), SEED + 4, 10);
	check_path(up("d"), SEED + 4, 10);
	CHECK_ERR(access(up("d/e"), F_OK), ENOTDIR);
}

TEST(below_symlink_retargeted, 10)
{
	char buf[64] = "";

	tree();
	mk_file(lo("g"), SEED + 1, 10);
	CHECK_OK(symlink("f", lo("s")));
	check_path(up("s"), SEED, SIZE);
	CHECK_OK(unlink(lo("s")));
	CHECK_OK(symlink("g", lo("s")));
	CHECK_EQ(readlink(up("s"), buf, sizeof(buf)), 1);
	CHECK_STR(buf, "g");
	check_path(up("s"), SEED + 1, 10);
}

TEST(below_chmod_chown_utime, 10)
{
	struct timespec t[2] = { { 1111, 22 }, { 3333, 44 } };
	struct stat st;

	tree();
	CHECK_OK(stat(up("f"), &st));
	CHECK_OK(chmod(lo("f"), 0751));
	CHECK_OK(chown(lo("f"), 12, 34));
	CHECK_OK(utimensat(AT_FDCWD, lo("f"), t, 0));
	CHECK_OK(stat(up("f"), &st));
	CHECK_EQ(st.st_mode, S_IFREG | 0751);
	CHECK_EQ(st.st_uid, 12);
	CHECK_EQ(st.st_gid, 34);
	CHECK_EQ(st.st_atim.tv_sec, 1111);
	CHECK_EQ(st.st_mtim.tv_sec, 3333);
	CHECK_EQ(st.st_mtim.tv_nsec, 44);
}

TEST(below_chmod_takes_effect_on_open, 10)
{
	tree();
	CHECK_OK(chmod(lo("f"), 0644));
	AS_USER(1000, 1000, xopen(up("f"), O_RDONLY));
	CHECK_OK(chmod(lo("f"), 0600));
	AS_USER(1000, 1000, CHECK_ERR(open(up("f"), O_RDONLY), EACCES));
	CHECK_OK(chmod(lo("d"), 0700));
	AS_USER(1000, 1000, CHECK_ERR(open(up("d/e"), O_RDONLY), EACCES));
	CHECK_OK(chmod(lo("d"), 0755));
	AS_USER(1000, 1000, xopen(up("d/e"), O_RDONLY));
	CHECK_OK(chown(lo("f"), 1000, 0));
	AS_USER(1000, 1000, xopen(up("f"), O_RDONLY));
}

TEST(below_truncated_shorter, 10)
{
	char c;
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	CHECK_OK(truncate(lo("f"), 5001));
	CHECK_EQ(size_of(up("f")), 5001);
	CHECK_EQ(lseek(fd, 0, SEEK_END), 5001);
	CHECK_EQ(pread(fd, &c, 1, 5001), 0);
	check_fd(fd, SEED, 5001);
}

TEST(below_truncated_longer, 10)
{
	char buf[100];
	int fd;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	CHECK_OK(truncate(lo("f"), SIZE + 50));
	CHECK_EQ(size_of(up("f")), SIZE + 50);
	CHECK_EQ(lseek(fd, 0, SEEK_END), SIZE + 50);
	CHECK_EQ(pread(fd, buf, 100, SIZE), 50);
	for (int i = 0; i < 50; i++)
		CHECK_EQ(buf[i], 0);
}

TEST(below_appended, 10)
{
	int fd, low;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	low = xopen(lo("f"), O_WRONLY);
	for (u64 at = SIZE; at < SIZE + 50000; at += 1000) {
		static char buf[1000];

		write_pat(low, SEED, at, 1000);
		CHECK_EQ(pread(fd, buf, 1000, at), 1000);
		CHECK_BYTES(buf, SEED, at, 1000);
		CHECK_EQ(size_of(up("f")), at + 1000);
	}
	check_fd(fd, SEED, SIZE + 50000);
}

TEST(below_written, 10)
{
	u8 *p;
	int fd, low;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	p = xmap(fd, 0, SIZE, PROT_READ, MAP_SHARED);
	low = xopen(lo("f"), O_WRONLY);
	for (int i = 1; i < 5; i++) {
		write_pat(low, SEED + i, 0, SIZE);
		check_fd(fd, SEED + i, SIZE);
		CHECK_BYTES(p, SEED + i, 0, SIZE);
	}
}

TEST(below_written_direct, 10)
{
	u8 *p = mmap(NULL, 64 * KIB, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	static char buf[64 * 1024];
	int fd, low;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	low = xopen(lo("f"), O_WRONLY | O_DIRECT);
	pat_fill(p, SEED + 5, 0, 64 * KIB);
	CHECK_EQ(pwrite(low, p, 64 * KIB, 0), 64 * KIB);
	CHECK_EQ(pread(fd, buf, 64 * KIB, 0), 64 * KIB);
	CHECK_BYTES(buf, SEED + 5, 0, 64 * KIB);
}

TEST(below_hole_punched, 10)
{
	static char buf[64 * 1024];
	int fd, low;

	tree();
	fd = xopen(up("f"), O_RDONLY);
	low = xopen(lo("f"), O_RDWR);
	CHECK_OK(fallocate(low, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			   64 * KIB));
	CHECK_EQ(pread(fd, buf, sizeof(buf), 0), sizeof(buf));
	for (size_t i = 0; i < sizeof(buf); i++)
		CHECK(buf[i] == 0);
	CHECK_EQ(lseek(fd, 0, SEEK_DATA), 64 * KIB);
}

TEST(below_xattr_changed, 10)
{
	char buf[16] = "";

	tree();
	CHECK_ERR(getxattr(up("f"), "user.a", buf, 16), ENODATA);
	CHECK_OK(setxattr(lo("f"), "user.a", "one", 3, 0));
	CHECK_EQ(getxattr(up("f"), "user.a", buf, 16), 3);
	CHECK_OK(setxattr(lo("f"), "user.a", "three", 5, 0));
	CHECK_EQ(getxattr(up("f"), "user.a", buf, 16), 5);
	CHECK_STR(buf, "three");
	CHECK_OK(removexattr(lo("f"), "user.a"));
	CHECK_ERR(getxattr(up("f"), "user.a", buf, 16), ENODATA);
}

TEST(below_hard_link_count, 10)
{
	struct stat st;

	tree();
	CHECK_OK(stat(up("f"), &st));
	CHECK_EQ(st.st_nlink, 1);
	CHECK_OK(link(lo("f"), lo("g")));
	CHECK_OK(stat(up("f"), &st));
	CHECK_EQ(st.st_nlink, 2);
	CHECK_OK(unlink(lo("f")));
	CHECK_OK(stat(up("g"), &st));
	CHECK_EQ(st.st_nlink, 1);
	check_path(up("g"), SEED, SIZE);
}

TEST(below_readdir_is_fresh, 10)
{
	struct dirent *e;
	int n = 0, seen = 0;
	DIR *d;

	tree();
	d = opendir(up("d"));
	CHECK(d && readdir(d));
	mk_file(lo("d/new"), SEED, 1);
	CHECK_OK(unlink(lo("d/e")));
	rewinddir(d);
	while ((e = readdir(d))) {
		n++;
		seen += !strcmp(e->d_name, "new");
		CHECK(strcmp(e->d_name, "e"));
	}
	CHECK_EQ(n, 3);
	CHECK_EQ(seen, 1);
	closedir(d);
}

/* A file that is replaced by rename all the time: readers see the old or the new, never a mixture */

static void storm_reader(int stop)
{
	static u8 buf[20000];
	char c;

	/* until the other end is closed */
	while (read(stop, &c, 1) < 0) {
		int fd = xopen(up("f"), O_RDONLY);
		u64 seed = 0;

		CHECK_EQ(read(fd, buf, sizeof(buf)), sizeof(buf));
		close(fd);
		for (u64 s = SEED; s < SEED + 4 && !seed; s++) {
			u8 first[8];

			pat_fill(first, s, 0, 8);
			if (!memcmp(first, buf, 8))
				seed = s;
		}
		CHECK(seed);
		CHECK_BYTES(buf, seed, 0, sizeof(buf));
	}
}

TEST(below_rename_storm, 20)
{
	int stop[2];
	pid_t pid[2];

	mk_file(lo("f"), SEED, 20000);
	setup();
	CHECK_OK(pipe2(stop, O_NONBLOCK));
	for (int i = 0; i < 2; i++) {
		pid[i] = t_fork();
		if (!pid[i]) {
			close(stop[1]);
			storm_reader(stop[0]);
			_exit(T_PASS);
		}
	}
	for (int i = 0; i < 200; i++) {
		int fd = xopen(lo("tmp"), O_WRONLY | O_CREAT | O_TRUNC);

		write_pat(fd, SEED + i % 4, 0, 20000);
		close(fd);
		CHECK_OK(rename(lo("tmp"), lo("f")));
	}
	close(stop[1]);
	JOIN(pid[0]);
	JOIN(pid[1]);
	check_path(up("f"), SEED + 199 % 4, 20000);
}

/*
 * A name that was looked up while it moved away is not taken for current
 * forever: after each round, only the file's last name may be seen.
 */
TEST(below_renamed_back_and_forth, 60)
{
	const char *name[2] = { "a", "b" };
	u64 state = SEED, until = now_ns() + 10000000000ull;
	int stop[2], at = 0;
	pid_t pid[2];

	mk_file(lo("a"), SEED, 100);
	setup();
	CHECK_OK(pipe2(stop, O_NONBLOCK));
	for (int i = 0; i < 2; i++) {
		pid[i] = t_fork();
		if (!pid[i]) {
			struct stat st;
			char c;

			t_pin(1);
			close(stop[1]);
			while (read(stop[0], &c, 1) < 0)
				stat(up(name[i]), &st);
			_exit(T_PASS);
		}
	}
	for (int round = 0; round < 3000 && now_ns() < until; round++) {
		/* several renames in a row, so that look-ups are under way */
		for (u64 n = 1 + next_rand(&state) % 6; n; n--, at = 1 - at)
			CHECK_OK(rename(lo(name[at]), lo(name[1 - at])));
		CHECK(absent(up(name[1 - at])));
		CHECK_OK(access(up(name[at]), F_OK));
	}
	close(stop[1]);
	JOIN(pid[0]);
	JOIN(pid[1]);
}

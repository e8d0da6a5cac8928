// SPDX-License-Identifier: GPL-2.0
/* Reading through mappings. Tests check every byte, because a wrong page is silent. */
#include "t.h"

#define SEED 0x3a99

struct shape {
	u64 size;		/* of the file */
	u64 off, len;		/* of the mapping; len 0: to the end */
	int prot, flags;
};

#define SHARED	PROT_READ, MAP_SHARED
#define PRIVATE	PROT_READ, MAP_PRIVATE

static void map_shape(const struct shape *s, bool is_warm)
{
	u64 len = s->len ? s->len : s->size - s->off;
	u64 pages = PAGES(s->size);
	int fd;
	u8 *p;

	mk_file(lo("f"), SEED, s->size);
	setup();
	if (is_warm)
		warm(lo("f"));
	else
		drop(lo("f"));
	fd = xopen(up("f"), O_RDONLY);
	p = xmap(fd, s->off, len, s->prot, s->flags);
	CHECK_BYTES(p, SEED, s->off, len);
	/* To the end of the last page: the file's bytes, then zeros */
	for (u64 i = len; i % PAGE; i++) {
		if (s->off + i < s->size)
			CHECK_BYTES(p + i, SEED, s->off + i, 1);
		else
			CHECK_EQ(p[i], 0);
	}
	if (!s->off && len == s->size)
		CHECK_EQ(resident(lo("f")), pages);
	CHECK_OK(munmap(p, len));
}

#define MAP_TEST(name, ...)						\
	TEST(mmap_##name##_cold, 15)					\
	{								\
		map_shape(&(struct shape){ __VA_ARGS__ }, false);	\
	}								\
	TEST(mmap_##name##_warm, 15)					\
	{								\
		map_shape(&(struct shape){ __VA_ARGS__ }, true);	\
	}

MAP_TEST(shared, 3 * MIB + 5, 0, 0, SHARED)
MAP_TEST(private, 3 * MIB + 5, 0, 0, PRIVATE)
MAP_TEST(private_writable, 3 * MIB + 5, 0, 0, PROT_READ | PROT_WRITE,
	 MAP_PRIVATE)
MAP_TEST(populate_shared, 3 * MIB + 5, 0, 0, PROT_READ,
	 MAP_SHARED | MAP_POPULATE)
MAP_TEST(populate_private, 3 * MIB + 5, 0, 0, PROT_READ | PROT_WRITE,
	 MAP_PRIVATE | MAP_POPULATE)
MAP_TEST(one_page, PAGE, 0, 0, SHARED)
MAP_TEST(one_byte, 1, 0, 0, SHARED)
MAP_TEST(odd_offset, 6 * MIB + 5, 37 * PAGE, 0, SHARED)
MAP_TEST(unaligned_length, 3 * MIB + 5, 0, 2 * MIB + 1234, SHARED)
MAP_TEST(middle, 6 * MIB, 2 * MIB - PAGE, 2 * MIB + 2 * PAGE, PRIVATE)

/* Maps a warm (or cold) file of that size */
static u8 *mapped(u64 size, int prot, int flags, bool is_warm)
{
	int fd;
	u8 *p;

	mk_file(lo("f"), SEED, size);
	setup();
	if (is_warm)
		warm(lo("f"));
	else
		drop(lo("f"));
	fd = xopen(up("f"), O_RDONLY);
	p = xmap(fd, 0, size, prot, flags);
	close(fd);
	return p;
}

TEST(mmap_private_write_copies, 15)
{
	u64 size = 2 * MIB + 3 * PAGE;
	u8 *p = mapped(size, PROT_READ | PROT_WRITE, MAP_PRIVATE, false);

	for (u64 i = 0; i < size; i += 7 * PAGE)
		pat_fill(p + i, SEED + 1, i, PAGE);
	for (u64 i = 0; i < size; i += PAGE)
		CHECK_BYTES(p + i, SEED + (i / PAGE % 7 == 0), i, PAGE);
	check_path(lo("f"), SEED, size);
	check_path(up("f"), SEED, size);
	check_map(up("f"), SEED, size);
	CHECK_OK(munmap(p, size));
}

TEST(mmap_private_write_of_warm_copies, 15)
{
	u64 size = 2 * MIB + 3 * PAGE;
	u8 *p = mapped(size, PROT_READ | PROT_WRITE, MAP_PRIVATE, true);

	CHECK_BYTES(p, SEED, 0, size);
	for (u64 i = 0; i < size; i += 3 * PAGE)
		pat_fill(p + i, SEED + 1, i, PAGE);
	for (u64 i = 0; i < size; i += PAGE)
		CHECK_BYTES(p + i, SEED + (i / PAGE % 3 == 0), i, PAGE);
	check_path(lo("f"), SEED, size);
	check_map(up("f"), SEED, size);
}

TEST(mmap_behind_eof_is_sigbus, 15)
{
	u64 size = 2 * PAGE + 10;
	int fd;
	u8 *p;

	mk_file(lo("f"), SEED, size);
	setup();
	fd = xopen(up("f"), O_RDONLY);
	p = xmap(fd, 0, 600 * PAGE, PROT_READ, MAP_SHARED);
	CHECK_EQ(sigbus_at(p + 3 * PAGE), -1);
	CHECK_EQ(sigbus_at(p + 599 * PAGE), -1);
	CHECK_EQ(sigbus_at(p + 3 * PAGE - 1), 0);
	CHECK_BYTES(p, SEED, 0, size);
}

TEST(mmap_empty_file_is_sigbus, 15)
{
	u8 *p;

	mk_file(lo("f"), SEED, 0);
	setup();
	p = xmap(xopen(up("f"), O_RDONLY), 0, PAGE, PROT_READ, MAP_SHARED);
	CHECK_EQ(sigbus_at(p), -1);
}

TEST(mmap_of_directory_enodev, 15)
{
	int fd;

	setup();
	fd = xopen(t_mnt, O_RDONLY);
	CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK_EQ(errno, ENODEV);
}

TEST(mmap_mremap_grows_and_moves, 15)
{
	u64 size = 4 * MIB;
	int fd;
	u8 *p;

	mk_file(lo("f"), SEED, size);
	setup();
	fd = xopen(up("f"), O_RDONLY);
	p = xmap(fd, MIB, 100 * PAGE, PROT_READ, MAP_SHARED);
	CHECK_BYTES(p, SEED, MIB, 100 * PAGE);
	p = mremap(p, 100 * PAGE, 700 * PAGE, MREMAP_MAYMOVE);
	CHECK(p != MAP_FAILED);
	CHECK_BYTES(p, SEED, MIB, 700 * PAGE);
	p = mremap(p, 700 * PAGE, 3 * PAGE, 0);
	CHECK(p != MAP_FAILED);
	CHECK_BYTES(p, SEED, MIB, 3 * PAGE);
	CHECK_OK(munmap(p, 3 * PAGE));
}

TEST(mmap_mprotect_splits, 15)
{
	u64 size = 3 * MIB;
	u8 *p = mapped(size, PROT_READ, MAP_SHARED, true);

	CHECK_OK(mprotect(p + 100 * PAGE, 50 * PAGE, PROT_NONE));
	CHECK_BYTES(p, SEED, 0, 100 * PAGE);
	CHECK_BYTES(p + 150 * PAGE, SEED, 150 * PAGE, size - 150 * PAGE);
	CHECK_OK(mprotect(p + 100 * PAGE, 50 * PAGE, PROT_READ));
	CHECK_BYTES(p, SEED, 0, size);
	CHECK_OK(munmap(p + 10 * PAGE, 5 * PAGE));
	CHECK_BYTES(p, SEED, 0, 10 * PAGE);
	CHECK_BYTES(p + 15 * PAGE, SEED, 15 * PAGE, size - 15 * PAGE);
}

/* The number of areas of which [p, p + len) consists */
static int areas(const u8 *p, u64 len)
{
	unsigned long from = (unsigned long)p, start, end;
	FILE *maps = fopen("/proc/self/maps", "re");
	char line[512];
	int n = 0;

	CHECK(maps);
	while (fgets(line, sizeof(line), maps)) {
		CHECK_EQ(sscanf(line, "%lx-%lx", &start, &end), 2);
		n += start < from + len && end > from;
	}
	fclose(maps);
	return n;
}

static int areas_after_split(const char *path, u64 size)
{
	u8 *p = xmap(xopen(path, O_RDONLY), 0, size, PROT_READ, MAP_SHARED);

	CHECK_OK(mprotect(p + 100 * PAGE, 50 * PAGE, PROT_NONE));
	CHECK_EQ(areas(p, size), 3);
	CHECK_OK(mprotect(p + 100 * PAGE, 50 * PAGE, PROT_READ));
	return areas(p, size);
}

/* A process may have only so many areas: what is split and alike again becomes one again */
TEST(mmap_split_areas_are_joined_as_below, 15)
{
	mk_file(lo("f"), SEED, MIB);
	setup();
	CHECK_EQ(areas_after_split(lo("f"), MIB), 1);
	CHECK_EQ(areas_after_split(up("f"), MIB), 1);
}

TEST(mmap_executable, 15)
{
	u64 size = MIB;
	u8 *p = mapped(size, PROT_READ | PROT_EXEC, MAP_PRIVATE, false);

	CHECK_BYTES(p, SEED, 0, size);
}

TEST(mmap_survives_fork, 15)
{
	u64 size = 3 * MIB + 5;
	u8 *p = mapped(size, PROT_READ | PROT_WRITE, MAP_PRIVATE, false);

	CHECK_BYTES(p, SEED, 0, MIB);
	pat_fill(p, SEED + 1, 0, PAGE);
	IN_CHILD(CHECK_BYTES(p, SEED + 1, 0, PAGE);
		 CHECK_BYTES(p + PAGE, SEED, PAGE, size - PAGE);
		 pat_fill(p + PAGE, SEED + 2, PAGE, PAGE));
	CHECK_BYTES(p + PAGE, SEED, PAGE, size - PAGE);
}

TEST(mmap_four_processes, 20)
{
	u64 size = 3 * MIB + 5;
	pid_t pid[4];

	mk_file(lo("f"), SEED, size);
	setup();
	drop(lo("f"));
	for (int i = 0; i < 4; i++) {
		pid[i] = t_fork();
		if (!pid[i]) {
			t_pin(i % sysconf(_SC_NPROCESSORS_ONLN));
			check_map(up("f"), SEED, size);
			_exit(T_PASS);
		}
	}
	for (int i = 0; i < 4; i++)
		JOIN(pid[i]);
}

static void random_touch(bool is_warm)
{
	u64 n = 1024, state = 7, size = n * PAGE;
	u8 *p = mapped(size, PROT_READ, MAP_SHARED, is_warm);
	static u8 seen[1024];

	for (u64 i = 0; i < n / 4; i++) {
		u64 at = next_rand(&state) % n;

		CHECK_BYTES(p + at * PAGE, SEED, at * PAGE, PAGE);
		seen[at] = 1;
	}
	for (u64 i = n; i-- > 0;) {
		if (!seen[i])
			CHECK_BYTES(p + i * PAGE, SEED, i * PAGE, PAGE);
	}
	CHECK_BYTES(p, SEED, 0, size);
}

TEST(mmap_random_order_cold, 15)
{
	random_touch(false);
}

TEST(mmap_random_order_warm, 15)
{
	random_touch(true);
}

TEST(mmap_backward_cold, 15)
{
	u64 size = 3 * MIB;
	u8 *p = mapped(size, PROT_READ, MAP_SHARED, false);

	for (u64 at = size; at > 0; at -= PAGE)
		CHECK_BYTES(p + at - PAGE, SEED, at - PAGE, PAGE);
	CHECK_BYTES(p, SEED, 0, size);
}

/*
 * The window of fault-around ends at the page table and at the mapping. Wrong
 * arithmetic there maps wrong pages: sweep starts of mapping and file that
 * are not aligned to a table, nor to one another.
 */
TEST(mmap_window_edges, 25)
{
	static const u16 at[] = { 0, 1, 15, 16, 17, 255, 510, 511 };
	u64 size = 6 * MIB, len = 2 * MIB + 5 * PAGE;
	u8 *area;
	int fd;

	mk_file(lo("f"), SEED, size);
	setup();
	warm(lo("f"));
	fd = xopen(up("f"), O_RDONLY);
	area = mmap(NULL, 8 * MIB, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	CHECK(area != MAP_FAILED);
	area = (u8 *)(((unsigned long)area + 2 * MIB - 1) & ~(2 * MIB - 1));
	for (size_t i = 0; i < ARRAY_SIZE(at); i++) {
		u64 off = at[(i * 3 + 1) % ARRAY_SIZE(at)] * PAGE;
		u64 mid = len / PAGE / 2 * PAGE;
		u8 *p = mmap(area + at[i] * PAGE, len, PROT_READ,
			     MAP_SHARED | MAP_FIXED, fd, off);

		CHECK(p == area + at[i] * PAGE);
		CHECK_BYTES(p + mid, SEED, off + mid, PAGE);
		CHECK_BYTES(p, SEED, off, len);
		CHECK_OK(munmap(p, len));
	}
}

TEST(mmap_holes_in_cache, 20)
{
	u64 size = 4 * MIB;
	int low;
	u8 *p;

	mk_file(lo("f"), SEED, size);
	setup();
	drop(lo("f"));
	low = xopen(lo("f"), O_RDONLY);
	CHECK_EQ(posix_fadvise(low, 0, 0, POSIX_FADV_RANDOM), 0);
	for (u64 i = 0; i < size / PAGE; i++) {
		char c;

		if (i % 3)
			CHECK_EQ(pread(low, &c, 1, i * PAGE), 1);
	}
	CHECK_EQ(resident(lo("f")), size / PAGE - PAGES(size / 3));
	p = xmap(xopen(up("f"), O_RDONLY), 0, size, PROT_READ, MAP_SHARED);
	CHECK_OK(madvise(p, size, MADV_RANDOM));
	CHECK_BYTES(p + size / 2, SEED, size / 2, PAGE);
	CHECK_BYTES(p, SEED, 0, size);
	CHECK_EQ(resident(lo("f")), size / PAGE);
}

TEST(mmap_kept_after_close, 15)
{
	u64 size = MIB + 9;
	u8 *p = mapped(size, PROT_READ, MAP_SHARED, false);

	CHECK_ERR(umount2(t_mnt, 0), EBUSY);
	CHECK_BYTES(p, SEED, 0, size);
	CHECK_OK(munmap(p, size));
	do_umount(t_mnt);
}

TEST(mmap_kept_after_lazy_umount, 15)
{
	u64 size = 3 * MIB + 9;
	u8 *p = mapped(size, PROT_READ, MAP_SHARED, false);

	CHECK_OK(umount2(t_mnt, MNT_DETACH));
	defer_forget(t_mnt);
	CHECK_BYTES(p, SEED, 0, size);
	/* Unmapped pages can be dropped; then it has to fault again */
	CHECK_OK(madvise(p, size, MADV_DONTNEED));
	drop(lo("f"));
	CHECK_BYTES(p, SEED, 0, size);
	CHECK_OK(munmap(p, size));
}

TEST(mmap_read_by_proc_mem, 15)
{
	u64 size = 300 * KIB;
	u8 *p = mapped(size, PROT_READ, MAP_SHARED, false);
	int mem = xopen("/proc/self/mem", O_RDONLY);
	static char buf[300 * 1024];

	CHECK_EQ(pread(mem, buf, size, (off_t)(unsigned long)p), size);
	CHECK_BYTES(buf, SEED, 0, size);
}

TEST(mmap_as_buffer_of_write, 15)
{
	u64 size = 300 * KIB;
	u8 *p = mapped(size, PROT_READ, MAP_SHARED, false);
	int out = xopen(lo("out"), O_WRONLY | O_CREAT);

	CHECK_EQ(write(out, p, size), size);
	check_path(lo("out"), SEED, size);
}

TEST(mmap_read_into_own_mapping, 15)
{
	u64 size = 300 * KIB;
	u8 *p = mapped(size, PROT_READ | PROT_WRITE, MAP_PRIVATE, false);
	int fd = xopen(up("f"), O_RDONLY);

	/* A fault on the file within a read of the file */
	CHECK_EQ(pread(fd, p + PAGE, size - PAGE, 0), size - PAGE);
	CHECK_BYTES(p, SEED, 0, PAGE);
	CHECK_BYTES(p + PAGE, SEED, 0, size - PAGE);
	check_path(lo("f"), SEED, size);
}

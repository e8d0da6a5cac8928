// SPDX-License-Identifier: GPL-2.0
/* Mappings: advice, what /proc shows of them, faults, changes below. */
#include "t.h"

#define SEED 0x3ad

static u8 *map_path(const char *path, u64 len, int prot, int flags)
{
	int fd = xopen(path, O_RDONLY);
	u8 *p = xmap(fd, 0, len, prot, flags);

	close(fd);
	return p;
}

/* Result of madvise, 0 or errno, on half of a mapping after touching that half */
static int advise(const char *path, u64 size, int advice)
{
	u8 *p = map_path(path, size, PROT_READ, MAP_SHARED);
	int err;

	CHECK_BYTES(p, SEED, 0, 8 * PAGE);
	err = madvise(p, size / 2, advice) ? errno : 0;
	if (advice != MADV_DONTFORK && advice != MADV_REMOVE)
		CHECK_BYTES(p, SEED, 0, size);
	CHECK_OK(munmap(p, size));
	return err;
}

static void advice_as_lower(int advice)
{
	u64 size = 2 * MIB + 64 * KIB;
	int want;

	mk_file(lo("f"), SEED, size);
	setup();
	drop(lo("f"));
	want = advise(lo("f"), size, advice);
	drop(lo("f"));
	CHECK_EQ(advise(up("f"), size, advice), want);
	CHECK_EQ(advise(up("f"), size, advice), want);
	check_path(lo("f"), SEED, size);
}

#define ADVICE(name, advice) \
	TEST(madvise_##name, 15) { advice_as_lower(advice); }

ADVICE(normal, MADV_NORMAL)
ADVICE(willneed, MADV_WILLNEED)
ADVICE(sequential, MADV_SEQUENTIAL)
ADVICE(random, MADV_RANDOM)
ADVICE(dontneed, MADV_DONTNEED)
ADVICE(hugepage, MADV_HUGEPAGE)
ADVICE(nohugepage, MADV_NOHUGEPAGE)
ADVICE(cold, MADV_COLD)
ADVICE(pageout, MADV_PAGEOUT)
ADVICE(populate_read, MADV_POPULATE_READ)
ADVICE(populate_write, MADV_POPULATE_WRITE)
ADVICE(collapse, MADV_COLLAPSE)
ADVICE(free, MADV_FREE)
ADVICE(remove, MADV_REMOVE)
ADVICE(dontfork, MADV_DONTFORK)
ADVICE(dontdump, MADV_DONTDUMP)
ADVICE(mergeable, MADV_MERGEABLE)
ADVICE(unknown, 99)

TEST(madvise_willneed_loads, 15)
{
	u64 size = MIB;
	u8 *p;

	mk_file(lo("f"), SEED, size);
	setup();
	drop(lo("f"));
	p = map_path(up("f"), size, PROT_READ, MAP_SHARED);
	CHECK_OK(madvise(p, 64 * KIB, MADV_WILLNEED));
	for (int i = 0; i < 100 && resident(lo("f")) < 16; i++)
		sleep_ms(20);
	CHECK(resident(lo("f")) >= 16);
	CHECK_BYTES(p, SEED, 0, size);
}

/* Does MADV_PAGEOUT on a mapping with all pages touched drop any page of the lower file? */
static bool pages_out(const char *name, const char *path, u64 size)
{
	struct iovec v = { NULL, size };
	int pidfd = CHECK_OK(syscall(SYS_pidfd_open, getpid(), 0));
	bool gone;
	ssize_t n;

	warm(lo(name));
	v.iov_base = map_path(path, size, PROT_READ, MAP_SHARED);
	CHECK_BYTES(v.iov_base, SEED, 0, size);
	n = syscall(NR_process_madvise, pidfd, &v, 1, MADV_PAGEOUT, 0);
	if (n < 0) {
		CHECK_EQ(errno, ENOSYS);
		SKIP("no process_madvise");
	}
	CHECK_EQ(n, size);
	gone = resident(lo(name)) < PAGES(size);
	CHECK_BYTES(v.iov_base, SEED, 0, size);
	CHECK_OK(munmap(v.iov_base, size));
	close(pidfd);
	return gone;
}

TEST(madvise_process_madvise, 15)
{
	u64 size = MIB;
	bool want;

	/*
	 * Kernels before 6.7 stop at the first large folio. Pages that are read
	 * again after a pageout get other folios, so each side has a fresh file.
	 */
	mk_file(lo("f"), SEED, size);
	mk_file(lo("g"), SEED, size);
	setup();
	want = pages_out("f", lo("f"), size);
	CHECK_EQ(pages_out("g", up("g"), size), want);
}

/* What /proc shows */

TEST(mmap_proc_maps_shows_path, 15)
{
	char line[1024], want[300];
	bool found = false;
	struct stat st;
	FILE *f;
	u8 *p;

	mk_file(lo("f"), SEED, MIB);
	setup();
	p = map_path(up("f"), MIB, PROT_READ, MAP_SHARED);
	CHECK_OK(stat(up("f"), &st));
	f = fopen("/proc/self/maps", "re");
	CHECK(f);
	snprintf(want, sizeof(want), " %s\n", up("f"));
	while (fgets(line, sizeof(line), f)) {
		unsigned long start, ino;

		if (sscanf(line, "%lx-%*x %*s %*s %*s %lu", &start, &ino) != 2 ||
		    start != (unsigned long)p)
			continue;
		CHECK(strstr(line, want));
		CHECK_EQ(ino, st.st_ino);
		found = true;
	}
	fclose(f);
	CHECK(found);
}

TEST(mmap_proc_smaps_counts, 15)
{
	u64 size = 300 * KIB;
	u8 *p;

	mk_file(lo("f"), SEED, size);
	setup();
	warm(lo("f"));
	p = map_path(up("f"), size, PROT_READ, MAP_SHARED);
	CHECK_EQ(smaps_kb(p, "Rss"), 0);
	CHECK_BYTES(p, SEED, 0, size);
	CHECK_EQ(smaps_kb(p, "Rss"), 300);
	CHECK_EQ(smaps_kb(p, "Anonymous"), 0);
	CHECK_EQ(smaps_kb(p, "Size"), 300);
	CHECK_EQ(smaps_kb(p, "Shared_Dirty") + smaps_kb(p, "Private_Dirty"), 0);
}

/* Faults */

/* Number of minor faults for reading every byte of path, which is cached */
static long faults_of(const char *path, u64 size, int advice)
{
	u8 *p = map_path(path, size, PROT_READ, MAP_SHARED);
	long before;

	CHECK_OK(madvise(p, size, advice));
	/* The loop's own code and data are mapped already */
	before = minor_faults();
	CHECK_BYTES(p, SEED, 0, size);
	before = minor_faults() - before;
	CHECK_OK(munmap(p, size));
	return before;
}

TEST(mmap_warm_faults_fewer_than_lower, 30)
{
	u64 size = 64 * MIB;
	long lower, rfs;

	mk_file(lo("f"), SEED, size);
	setup();
	warm(lo("f"));
	faults_of(lo("f"), MIB, MADV_NORMAL);
	lower = faults_of(lo("f"), size, MADV_NORMAL);
	rfs = faults_of(up("f"), size, MADV_NORMAL);
	printf("minor faults of a warm 64 MiB copy: lower %ld, rfs %ld\n",
	       lower, rfs);
	/* With large folios the lower file needs few itself */
	CHECK_LE(rfs, lower >= 1024 ? lower / 16 : lower);
	CHECK(rfs > 0);
}

TEST(mmap_warm_faults_of_small_pages, 30)
{
	u64 size = 16 * MIB;
	long lower, rfs;
	int low;
	char c;

	if (PAGE >= 64 * KIB)
		SKIP("for pages of 64 KiB the kernel asks for no neighbours");
	mk_file(lo("f"), SEED, size);
	setup();
	drop(lo("f"));
	/* Page by page, so that no large folio is made */
	low = xopen(lo("f"), O_RDONLY);
	CHECK_EQ(posix_fadvise(low, 0, 0, POSIX_FADV_RANDOM), 0);
	for (u64 at = 0; at < size; at += PAGE)
		CHECK_EQ(pread(low, &c, 1, at), 1);
	faults_of(lo("f"), MIB, MADV_NORMAL);
	lower = faults_of(lo("f"), size, MADV_NORMAL);
	rfs = faults_of(up("f"), size, MADV_NORMAL);
	printf("minor faults of a warm 16 MiB copy, small pages: lower %ld, rfs %ld\n",
	       lower, rfs);
	CHECK(lower >= 256);
	CHECK_LE(rfs, lower / 16);
}

#define NO_HUGE_PAGES (~0ull)

/* KiB of huge mappings after reading the file through a mapping that asks for them */
static u64 huge_kb(const char *path, u64 size)
{
	int fd = xopen(path, O_RDONLY);
	u8 *area = mmap(NULL, size + 2 * MIB, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	u64 kb;
	u8 *p;

	CHECK(area != MAP_FAILED);
	p = (u8 *)(((unsigned long)area + 2 * MIB - 1) & ~(2 * MIB - 1));
	CHECK(mmap(p, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == p);
	close(fd);
	if (madvise(p, size, MADV_HUGEPAGE)) {
		CHECK_EQ(errno, EINVAL);
		return NO_HUGE_PAGES;
	}
	drop(lo("f"));
	CHECK_BYTES(p, SEED, 0, size);
	/* Faults map by PMD only a huge page that is cached in one piece */
	CHECK_OK(madvise(p, size, MADV_DONTNEED));
	CHECK_BYTES(p, SEED, 0, size);
	kb = smaps_kb(p, "FilePmdMapped");
	CHECK_EQ(smaps_kb(p, "AnonHugePages"), 0);
	CHECK_OK(munmap(area, size + 2 * MIB));
	return kb;
}

TEST(mmap_huge_maps_as_lower, 30)
{
	u64 size = 8 * MIB, want;

	mk_file(lo("f"), SEED, size);
	setup();
	want = huge_kb(lo("f"), size);
	CHECK_EQ(huge_kb(up("f"), size), want);
	if (want == NO_HUGE_PAGES)
		SKIP("no huge pages");
	if (!want)
		SKIP("the lower file system has no huge folios");
}

TEST(mmap_address_alignment_as_lower, 15)
{
	u64 size = 8 * MIB;
	u8 *a, *b;

	mk_file(lo("f"), SEED, size);
	setup();
	a = map_path(lo("f"), size, PROT_READ, MAP_SHARED);
	if ((unsigned long)a % (2 * MIB))
		SKIP("the lower file system does not align mappings");
	CHECK_OK(munmap(a, size));
	CHECK(mmap(NULL, 3 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		   0) != MAP_FAILED);
	b = map_path(up("f"), size, PROT_READ, MAP_SHARED);
	CHECK_EQ((unsigned long)b % (2 * MIB), 0);
	CHECK_BYTES(b, SEED, 0, size);
}

/* Changes below */

TEST(mmap_truncated_below_is_sigbus, 15)
{
	u64 size = 3 * MIB;
	u8 *p, *q;

	mk_file(lo("f"), SEED, size);
	setup();
	p = map_path(up("f"), size, PROT_READ, MAP_SHARED);
	q = map_path(lo("f"), size, PROT_READ, MAP_SHARED);
	CHECK_BYTES(p, SEED, 0, size);
	CHECK_OK(truncate(lo("f"), MIB + 100));
	CHECK_EQ(sigbus_at(q + 2 * MIB), -1);
	CHECK_EQ(sigbus_at(p + 2 * MIB), -1);
	CHECK_EQ(sigbus_at(p + MIB + PAGE), -1);
	CHECK_EQ(sigbus_at(p + size - 1), -1);
	CHECK_BYTES(p, SEED, 0, MIB + 100);
	for (u64 i = MIB + 100; i % PAGE; i++)
		CHECK_EQ(p[i], 0);
}

TEST(mmap_appended_below_is_visible, 15)
{
	u64 size = MIB + 100, more = 2 * MIB + 7;
	int fd;
	u8 *p;

	mk_file(lo("f"), SEED, size);
	setup();
	p = map_path(up("f"), more, PROT_READ, MAP_SHARED);
	CHECK_BYTES(p, SEED, 0, size);
	CHECK_EQ(sigbus_at(p + MIB + PAGE), -1);
	fd = xopen(lo("f"), O_WRONLY);
	write_pat(fd, SEED, size, more - size);
	CHECK_BYTES(p, SEED, 0, more);
}

TEST(mmap_written_below_is_visible, 15)
{
	u64 size = MIB;
	u8 *p;
	int fd;

	mk_file(lo("f"), SEED, size);
	setup();
	p = map_path(up("f"), size, PROT_READ, MAP_SHARED);
	CHECK_BYTES(p, SEED, 0, size);
	fd = xopen(lo("f"), O_WRONLY);
	write_pat(fd, SEED + 1, 0, size);
	CHECK_BYTES(p, SEED + 1, 0, size);
}

TEST(mmap_written_by_lower_mapping_is_visible, 15)
{
	u64 size = MIB;
	u8 *p, *q;
	int fd;

	mk_file(lo("f"), SEED, size);
	setup();
	p = map_path(up("f"), size, PROT_READ, MAP_SHARED);
	CHECK_BYTES(p, SEED, 0, size);
	fd = xopen(lo("f"), O_RDWR);
	q = xmap(fd, 0, size, PROT_READ | PROT_WRITE, MAP_SHARED);
	pat_fill(q, SEED + 2, 0, size);
	CHECK_BYTES(p, SEED + 2, 0, size);
	check_path(up("f"), SEED + 2, size);
}

TEST(mmap_hole_reads_zero, 15)
{
	u8 *p;
	int fd;

	mk_file(lo("f"), SEED, PAGE);
	fd = xopen(lo("f"), O_WRONLY);
	CHECK_OK(ftruncate(fd, 2 * MIB));
	write_pat(fd, SEED, MIB, PAGE);
	CHECK_OK(fsync(fd));
	setup();
	drop(lo("f"));
	p = map_path(up("f"), 2 * MIB, PROT_READ, MAP_SHARED);
	for (u64 i = PAGE; i < 2 * MIB; i++) {
		if (i < MIB || i >= MIB + PAGE)
			CHECK(p[i] == 0);
	}
	CHECK_BYTES(p, SEED, 0, PAGE);
	CHECK_BYTES(p + MIB, SEED, MIB, PAGE);
}

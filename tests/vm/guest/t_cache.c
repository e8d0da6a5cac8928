// SPDX-License-Identifier: GPL-2.0
/* Advice and queries about the page cache reach the lower file. */
#include "t.h"

#define SEED 0xcac4e
#define SIZE (1 * MIB + 5)

struct cache_range {
	u64 off, len;
};

struct cache_stat {
	u64 cache, dirty, writeback, evicted, recently_evicted;
};

static int cold(void)
{
	mk_file(lo("f"), SEED, SIZE);
	setup();
	drop(lo("f"));
	return xopen(up("f"), O_RDONLY);
}

/* Waits up to 2 s until this many pages are cached */
static u64 await(const char *path, u64 pages)
{
	u64 n = resident(path);

	for (int i = 0; i < 100 && n < pages; i++) {
		sleep_ms(20);
		n = resident(path);
	}
	return n;
}

TEST(cache_fadvise_willneed, 15)
{
	int fd = cold();

	CHECK_EQ(posix_fadvise(fd, 128 * KIB, 64 * KIB, POSIX_FADV_WILLNEED),
		 0);
	CHECK(await(lo("f"), 16) >= 16);
	check_fd(fd, SEED, SIZE);
}

TEST(cache_readahead_call, 15)
{
	int fd = cold();

	CHECK_EQ(readahead(fd, 0, 64 * KIB), 0);
	CHECK(await(lo("f"), 16) >= 16);
	check_fd(fd, SEED, SIZE);
}

TEST(cache_fadvise_dontneed, 15)
{
	int fd = cold();
	u64 n;

	warm(lo("f"));
	for (int i = 0; i < 50; i++) {
		CHECK_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
		n = resident(lo("f"));
		if (!n)
			break;
		sleep_ms(10);
	}
	CHECK_EQ(n, 0);
	check_fd(fd, SEED, SIZE);
}

/* A reader of single pages */
struct window {
	int dev;
	u64 id, pages;		/* how many pages it reads */
};

/* Number of pages cached or in flight once it has read a file with this advice */
static u64 read_some(const struct window *w, const char *path, int advice)
{
	int fd = xopen(path, O_RDONLY);
	char buf[PAGE];

	drop(lo("f"));
	CHECK_EQ(posix_fadvise(fd, 0, 0, advice), 0);
	for (u64 at = 0; at < w->pages * PAGE; at += PAGE) {
		CHECK_EQ(pread(fd, buf, PAGE, at), PAGE);
		CHECK_BYTES(buf, SEED, at, PAGE);
	}
	close(fd);
	return cached(w->dev, w->id, 0, ~0ull >> 1);
}

TEST(cache_fadvise_random_stops_readahead, 15)
{
	struct window w = { .pages = 1 };

	w.id = file_id(cold());
	w.dev = dev_open(t_mnt, O_NONBLOCK);
	CHECK_EQ(read_some(&w, up("f"), POSIX_FADV_RANDOM), 1);
	CHECK_EQ(read_some(&w, lo("f"), POSIX_FADV_RANDOM), 1);
	CHECK(read_some(&w, up("f"), POSIX_FADV_NORMAL) > 1);
}

/*
 * How many pages are read ahead depends on whether the first of them got a
 * large folio, and the allocator may have none at one time and some the next:
 * one right attempt is enough.
 */
TEST(cache_fadvise_sequential_widens_readahead, 30)
{
	u64 narrow[2], wide[2];
	struct window w = { .pages = 256 };

	mk_file(lo("f"), SEED, 4 * MIB);
	setup();
	w.id = path_id(up("f"));
	w.dev = dev_open(t_mnt, O_NONBLOCK);
	for (int i = 0; i < 10; i++) {
		narrow[0] = read_some(&w, lo("f"), POSIX_FADV_NORMAL);
		narrow[1] = read_some(&w, up("f"), POSIX_FADV_NORMAL);
		wide[0] = read_some(&w, lo("f"), POSIX_FADV_SEQUENTIAL);
		wide[1] = read_some(&w, up("f"), POSIX_FADV_SEQUENTIAL);
		if (narrow[0] == narrow[1] && wide[0] == wide[1] &&
		    wide[0] > narrow[0])
			return;
	}
	t_fail(__FILE__, __LINE__,
	       "cached after 256 pages: lower %llu, advised %llu; rfs %llu, advised %llu",
	       (unsigned long long)narrow[0], (unsigned long long)wide[0],
	       (unsigned long long)narrow[1], (unsigned long long)wide[1]);
}

TEST(cache_fadvise_bad_advice_einval, 15)
{
	int fd = cold();

	CHECK_EQ(posix_fadvise(fd, 0, 0, 99), EINVAL);
	CHECK_EQ(posix_fadvise(fd, 0, -1, POSIX_FADV_WILLNEED), EINVAL);
}

static struct cache_stat cachestat(int fd, u64 off, u64 len)
{
	struct cache_range r = { off, len };
	struct cache_stat st = { 0 };

	if (syscall(NR_cachestat, fd, &r, &st, 0)) {
		CHECK_EQ(errno, ENOSYS);
		SKIP("no cachestat");
	}
	return st;
}

TEST(cache_cachestat_as_lower, 15)
{
	int fd = cold(), low = xopen(lo("f"), O_RDONLY);
	struct cache_stat a, b;

	a = cachestat(fd, 0, 0);
	CHECK_EQ(a.cache, 0);
	CHECK_EQ(posix_fadvise(low, 0, 0, POSIX_FADV_RANDOM), 0);
	for (int i = 0; i < 10; i++) {
		char c;

		CHECK_EQ(pread(low, &c, 1, i * 8 * PAGE), 1);
	}
	a = cachestat(fd, 0, 0);
	b = cachestat(low, 0, 0);
	CHECK_EQ(a.cache, 10);
	CHECK_EQ(a.cache, b.cache);
	CHECK_EQ(a.dirty, b.dirty);
	CHECK_EQ(a.evicted, b.evicted);
	a = cachestat(fd, 8 * PAGE, 9 * PAGE);
	CHECK_EQ(a.cache, 2);
	write_pat(xopen(lo("f"), O_WRONLY), SEED, 0, 100);
	CHECK_EQ(cachestat(fd, 0, 0).dirty, 1);
}

TEST(cache_mincore_as_lower, 15)
{
	static u8 mine[MOST_PAGES(SIZE)], theirs[MOST_PAGES(SIZE)];
	int low;
	char c;

	cold();
	low = xopen(lo("f"), O_RDONLY);
	CHECK_EQ(residency(up("f"), mine), 0);
	CHECK_EQ(posix_fadvise(low, 0, 0, POSIX_FADV_RANDOM), 0);
	for (u64 i = 0; i < PAGES(SIZE); i += 1 + i % 5)
		CHECK_EQ(pread(low, &c, 1, i * PAGE), 1);
	CHECK_EQ(residency(up("f"), mine), residency(lo("f"), theirs));
	CHECK_EQ(memcmp(mine, theirs, sizeof(mine)), 0);
	CHECK(mine[0] && mine[1]);
}

TEST(cache_is_shared_with_lower, 15)
{
	int fd = cold();

	check_fd(fd, SEED, SIZE);
	CHECK_EQ(resident(lo("f")), PAGES(SIZE));
	drop(lo("f"));
	CHECK_EQ(resident(up("f")), 0);
	warm(lo("f"));
	CHECK_EQ(resident(up("f")), PAGES(SIZE));
}

// SPDX-License-Identifier: GPL-2.0
/* Reading. */
#include "bench.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

/* one page in this many is left out of a partly cached file */
#define SPARSE		1000
#define SMALL_READS	4096
#define COLD_READS	1024
/* lower bound on the time of a read from the disk */
#define DISK_NS		90000

enum { SEQUENTIAL, RANDOM };

static char buffer[MIB] __attribute__((aligned(4096)));

static void read_at(int fd, u64 at, size_t len)
{
	if (pread(fd, buffer, len, at) != (ssize_t)len)
		die("reading at %llu: %s", (unsigned long long)at, strerror(errno));
}

static double read_through(int fd)
{
	u64 begin;

	lseek(fd, 0, SEEK_SET);
	settle();
	begin = now_ns();
	for (u64 at = 0; at < FILE_BYTES; at += MIB) {
		if (read(fd, buffer, MIB) != (ssize_t)MIB)
			die("reading: %s", strerror(errno));
	}
	return (double)(now_ns() - begin) / (FILE_BYTES / MIB);
}

static double warm_large(const struct bench *b, enum side side)
{
	int fd = side_open(side, DATA);
	double value;

	fill_cache(fd);
	if (side == RFS)
		attach(b->attached, b->kinds);
	value = read_through(fd);
	detach();
	close(fd);
	return value;
}

/*
 * One page in SPARSE is not cached. A page can be dropped only if it is not
 * part of a large folio: WILLNEED makes small ones.
 */
static void make_partly_cached(void)
{
	int fd = side_open(LOWER, DATA);
	u64 missing = 0;

	make_cold();
	for (u64 at = 0; at < FILE_BYTES; at += READAHEAD)
		posix_fadvise(fd, at, READAHEAD, POSIX_FADV_WILLNEED);
	read_all(fd);
	for (u64 page = SPARSE / 2; page < FILE_PAGES; page += SPARSE) {
		posix_fadvise(fd, page * PAGE, PAGE, POSIX_FADV_DONTNEED);
		missing++;
	}
	close(fd);
	if (cached_pages(DATA) != FILE_PAGES - missing)
		die("%llu pages are cached, not %llu", (unsigned long long)cached_pages(DATA),
		    (unsigned long long)(FILE_PAGES - missing));
}

static double partly_large(const struct bench *b, enum side side)
{
	double value;
	u64 sectors;
	int fd;

	make_partly_cached();
	fd = side_open(side, DATA);
	if (side == RFS)
		attach(b->attached, b->kinds);
	sectors = sectors_read();
	value = read_through(fd);
	detach();
	expect_read(sectors, FILE_PAGES / SPARSE * PAGE);
	close(fd);
	return value;
}

static double warm_small(const struct bench *b, enum side side)
{
	int fd = side_open(side, DATA);
	u64 begin, end;

	fill_cache(fd);
	if (side == RFS)
		attach(b->attached, b->kinds);
	settle();
	begin = now_ns();
	for (u32 i = 0; i < SMALL_READS; i++) {
		u64 page = b->how == RANDOM ? mixed(i, FILE_PAGES) : i;

		read_at(fd, page * PAGE, PAGE);
	}
	end = now_ns();
	detach();
	close(fd);
	return (double)(end - begin) / SMALL_READS;
}

static double cold_large(const struct bench *b, enum side side)
{
	double value;
	u64 sectors;
	int fd;

	make_cold();
	fd = side_open(side, DATA);
	if (side == RFS)
		attach(b->attached, b->kinds);
	sectors = sectors_read();
	value = read_through(fd);
	detach();
	expect_read(sectors, FILE_BYTES);
	close(fd);
	return value;
}

static double cold_small(const struct bench *b, enum side side)
{
	u64 begin, end, sectors;
	double each;
	int fd;

	make_cold();
	fd = side_open(side, DATA);
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	if (side == RFS)
		attach(b->attached, b->kinds);
	sectors = sectors_read();
	settle();
	begin = now_ns();
	for (u32 i = 0; i < COLD_READS; i++)
		read_at(fd, mixed(i, FILE_PAGES) * PAGE, PAGE);
	end = now_ns();
	detach();
	expect_read(sectors, COLD_READS * PAGE);
	/* FUSE's daemon reads ahead, so a read may find pages that an earlier one brought in */
	each = (double)(end - begin) / COLD_READS;
	if (side <= RFS && each < DISK_NS)
		die("a cold read took only %.0f ns", each);
	close(fd);
	return each;
}

#define MISS		BIT(RFS_EVENT_MISS)
#define KINDS		(MISS | BIT(RFS_EVENT_TOUCH) | BIT(RFS_EVENT_PROGRESS))

const struct bench read_benches[] = {
	{ "warm 1 MiB reads", "ns/MiB", warm_large, ALL },
	{ "warm 1 MiB reads, MISS wanted", "ns/MiB", warm_large, BOTH,
	  .attached = READING, .kinds = MISS },
	{ "warm 1 MiB reads, MISS TOUCH PROGRESS wanted", "ns/MiB", warm_large, BOTH,
	  .attached = READING, .kinds = KINDS },
	{ "warm 1 MiB reads, MISS TOUCH PROGRESS wanted, reader parked", "ns/MiB", warm_large,
	  BOTH, .attached = PARKED, .kinds = KINDS },
	{ "partly cached 1 MiB reads", "ns/MiB", partly_large, BOTH },
	{ "partly cached 1 MiB reads, MISS wanted", "ns/MiB", partly_large, BOTH,
	  .attached = READING, .kinds = MISS },
	{ "warm 4 KiB reads, sequential", "ns/read", warm_small, ALL, .how = SEQUENTIAL },
	{ "warm 4 KiB reads, random", "ns/read", warm_small, ALL, .how = RANDOM },
	{ "warm 4 KiB reads, random, MISS wanted", "ns/read", warm_small, BOTH,
	  .how = RANDOM, .attached = READING, .kinds = MISS },
	{ "cold 1 MiB reads, sequential", "ns/MiB", cold_large, ALL },
	{ "cold 1 MiB reads, sequential, MISS wanted", "ns/MiB", cold_large, BOTH,
	  .attached = READING, .kinds = MISS },
	{ "cold 4 KiB reads, random", "ns/read", cold_small, ALL },
	{ "cold 4 KiB reads, random, MISS wanted", "ns/read", cold_small, BOTH,
	  .attached = READING, .kinds = MISS },
	{ NULL },
};

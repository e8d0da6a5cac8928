// SPDX-License-Identifier: GPL-2.0
/* Queries the page cache, fills it and drops it. */
#include "bench.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DISK		"/sys/block/nullb0/stat"
#define TRIES		10
#define SECTOR		512
#define ROUNDS		3

/* Maps each i in [0, count) to a number in it, each once, in a mixed order. count is a power of two. */
u32 mixed(u32 i, u32 count)
{
	u32 mask = count - 1;

	i = (i * 2654435761u + 12345) & mask;
	i ^= i >> 5;
	i = (i * 2246822519u + 6789) & mask;
	i ^= i >> 7;
	return i & mask;
}

/* Pages of an open file in the page cache of its side. */
static u64 cached_of(int fd)
{
	static unsigned char in[FILE_PAGES];
	void *map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	u64 count = 0;

	if (map == MAP_FAILED || mincore(map, FILE_BYTES, in))
		die("mincore: %s", strerror(errno));
	for (size_t i = 0; i < FILE_PAGES; i++)
		count += in[i] & 1;
	munmap(map, FILE_BYTES);
	return count;
}

/* Pages of the lower file in the page cache. */
u64 cached_pages(const char *name)
{
	int fd = side_open(LOWER, name);
	u64 count = cached_of(fd);

	close(fd);
	return count;
}

void drop_cached(const char *what)
{
	int fd = open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, what, strlen(what)) < 0)
		die("drop_caches: %s", strerror(errno));
	close(fd);
}

/* Drops the file from the page cache of every side. */
void make_cold(void)
{
	u64 left = 0;

	for (int i = 0; i < TRIES; i++) {
		drop_cached("1");
		left = cached_pages(DATA);
		if (!left)
			return;
	}
	die("%llu pages stay cached", (unsigned long long)left);
}

/*
 * Reads more than once: by the last round the kernel has moved the pages to the
 * active list, for which the first side to use them would pay otherwise.
 */
void read_all(int fd)
{
	static char buf[MIB];

	for (u64 at = 0; at < ROUNDS * FILE_BYTES; at += MIB) {
		if (pread(fd, buf, MIB, at % FILE_BYTES) != (ssize_t)MIB)
			die("reading: %s", strerror(errno));
	}
}

/*
 * Brings the whole file into the cache of fd's side. Which large folios it gets
 * depends on the side that reads it first: each case, its own process,
 * begins with an empty cache and with the lower side.
 */
void fill_cache(int fd)
{
	static bool begun;

	if (!begun)
		make_cold();
	begun = true;
	if (cached_of(fd) != FILE_PAGES)
		read_all(fd);
}

u64 sectors_read(void)
{
	unsigned long long sectors = 0;
	FILE *f = fopen(DISK, "re");

	if (!f || fscanf(f, "%*u %*u %llu", &sectors) != 1)
		die("%s: %s", DISK, strerror(errno));
	fclose(f);
	return sectors;
}

/* Dies if the disk delivered too little for a cold run. */
void expect_read(u64 sectors_before, u64 bytes)
{
	u64 got = (sectors_read() - sectors_before) * SECTOR;

	if (got < bytes)
		die("only %llu bytes came from the disk", (unsigned long long)got);
}

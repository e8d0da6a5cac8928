// SPDX-License-Identifier: GPL-2.0
/* Mappings. */
#include "bench.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define RANDOM_FAULTS		4096

/*
 * libc's memcpy goes backwards if both sides have the same offset in a page, and
 * the kernel does not read ahead backwards.
 */
#define BESIDE			1024
static char copy[MIB + BESIDE] __attribute__((aligned(4096)));
static volatile char sink;

static char *map_file(int fd)
{
	char *map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED)
		die("mmap: %s", strerror(errno));
	return map;
}

static u64 small_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_minflt;
}

/* Maps the file again, copies all of it and unmaps it. */
static void copy_out(int fd)
{
	char *map = map_file(fd);

	for (u64 at = 0; at < FILE_BYTES; at += MIB) {
		memcpy(copy + BESIDE, map + at, MIB);
		/* keeps the compiler from leaving out the unused copy */
		asm volatile("" : : "r"(copy) : "memory");
	}
	munmap(map, FILE_BYTES);
}

static void touch_in_order(int fd)
{
	char *map = map_file(fd);

	for (u64 page = 0; page < FILE_PAGES; page++)
		sink = map[page * PAGE];
	munmap(map, FILE_BYTES);
}

static void touch_at_random(int fd, u32 count, bool advised)
{
	char *map = map_file(fd);

	if (advised)
		madvise(map, FILE_BYTES, MADV_RANDOM);
	for (u32 i = 0; i < count; i++)
		sink = map[mixed(i, FILE_PAGES) * PAGE];
	munmap(map, FILE_BYTES);
}

enum { COPY, FAULTS, ORDER, SHUFFLED, ADVISED };

static double warm(const struct bench *b, enum side side)
{
	int fd = side_open(side, DATA);
	u64 begin, faults;
	double value;

	fill_cache(fd);
	memset(copy, 1, sizeof(copy));
	settle();
	faults = small_faults();
	begin = now_ns();
	if (b->how == ORDER)
		touch_in_order(fd);
	else if (b->how == SHUFFLED)
		touch_at_random(fd, FILE_PAGES, false);
	else if (b->how == ADVISED)
		touch_at_random(fd, RANDOM_FAULTS, true);
	else
		copy_out(fd);
	value = b->how == FAULTS ? small_faults() - faults : now_ns() - begin;
	if (b->how == ADVISED)
		value /= RANDOM_FAULTS;
	close(fd);
	return value;
}

static double cold(const struct bench *b, enum side side)
{
	u64 begin, sectors;
	double value;
	int fd;

	make_cold();
	fd = side_open(side, DATA);
	if (side == RFS)
		attach(b->attached, b->kinds);
	memset(copy, 1, sizeof(copy));
	sectors = sectors_read();
	settle();
	begin = now_ns();
	copy_out(fd);
	value = now_ns() - begin;
	detach();
	expect_read(sectors, FILE_BYTES);
	close(fd);
	return value;
}

const struct bench map_benches[] = {
	{ "warm mmap copy", "ns/64MiB", warm, ALL, .how = COPY },
	{ "warm mmap faults", "faults", warm, ALL, .how = FAULTS },
	{ "warm mmap, one byte a page", "ns/64MiB", warm, ALL, .how = ORDER },
	{ "warm random faults", "ns/64MiB", warm, ALL, .how = SHUFFLED },
	{ "warm random faults, MADV_RANDOM", "ns/touch", warm, ALL, .how = ADVISED },
	{ "cold mmap copy", "ns/64MiB", cold, ALL },
	{ "cold mmap copy, MISS wanted", "ns/64MiB", cold, BOTH, .attached = READING,
	  .kinds = BIT(RFS_EVENT_MISS) },
	{ NULL },
};

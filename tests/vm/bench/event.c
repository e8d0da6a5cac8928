// SPDX-License-Identifier: GPL-2.0
/* Events: what they cost, and the commands of the device. */
#include "bench.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MISSES		1024
#define BEACON		MIB
#define BATCH		1024

static pid_t reader;

static u64 file_info(int fd, u32 *number)
{
	struct rfs_file_info info = { .size = sizeof(info) };

	if (ioctl(fd, RFS_IOC_FILE, &info))
		die("RFS_IOC_FILE: %s", strerror(errno));
	if (number)
		*number = info.device;
	return info.file;
}

/* Opens the device of the mount. */
int device(void)
{
	int file = side_open(RFS, HOT);
	char path[32];
	u32 number;
	int dev;

	file_info(file, &number);
	close(file);
	snprintf(path, sizeof(path), "/dev/rfs%u", number);
	dev = open(path, O_RDONLY | O_CLOEXEC);
	if (dev < 0)
		die("%s: %s", path, strerror(errno));
	return dev;
}

/* Runs the reader until it is killed: rfs-bench listen HOW KINDS FD. */
int listen_for(int argc, char **argv)
{
	static struct rfs_event batch[BATCH];
	struct rfs_mask mask = { .size = sizeof(mask) };
	int dev = device();

	if (argc != 5)
		die("the reader's arguments");
	mask.kinds = strtoul(argv[3], NULL, 0);
	if (mask.kinds & BIT(RFS_EVENT_PROGRESS))
		mask.progress_bytes = BEACON;
	if (ioctl(dev, RFS_IOC_MASK, &mask))
		die("RFS_IOC_MASK: %s", strerror(errno));
	if (write(atoi(argv[4]), "", 1) != 1)
		die("reader: %s", strerror(errno));
	while (atoi(argv[2]) == PARKED)
		pause();
	while (read(dev, batch, sizeof(batch)) > 0)
		;
	return 1;
}

/*
 * Starts the reader as a separate process, because a reader's own events are never
 * queued. It executes the program again: after a mere fork, our next writes,
 * those into the buffers of timed reads, would have to copy memory.
 */
void attach(enum attached how, u32 kinds)
{
	char words[3][16], byte;
	char *argv[] = { "rfs-bench", "listen", words[0], words[1], words[2], NULL };
	int ends[2];

	if (how == NOBODY)
		return;
	if (pipe(ends) || fcntl(ends[0], F_SETFD, FD_CLOEXEC))
		die("pipe: %s", strerror(errno));
	snprintf(words[0], sizeof(words[0]), "%d", how);
	snprintf(words[1], sizeof(words[1]), "%#x", kinds);
	snprintf(words[2], sizeof(words[2]), "%d", ends[1]);
	errno = posix_spawn(&reader, "/proc/self/exe", NULL, NULL, argv, environ);
	if (errno)
		die("posix_spawn: %s", strerror(errno));
	close(ends[1]);
	if (read(ends[0], &byte, 1) != 1)
		die("the reader does not start");
	close(ends[0]);
}

void detach(void)
{
	if (!reader)
		return;
	kill(reader, SIGKILL);
	waitpid(reader, NULL, 0);
	reader = 0;
}

static void check_events(u64 least)
{
	struct rfs_stats stats = { .size = sizeof(stats) };
	static u64 before;
	int dev = device();

	if (ioctl(dev, RFS_IOC_STATS, &stats))
		die("RFS_IOC_STATS: %s", strerror(errno));
	close(dev);
	if (stats.events - before < least)
		die("%llu events instead of %llu", (unsigned long long)(stats.events - before),
		    (unsigned long long)least);
	before = stats.events;
}

enum { BY_READ, BY_FAULT, BY_READ_CPU };

static void miss_by_read(int fd)
{
	static char page[PAGE];

	for (u32 i = 0; i < MISSES; i++) {
		if (pread(fd, page, PAGE, mixed(i, FILE_PAGES) * PAGE) != (ssize_t)PAGE)
			die("reading: %s", strerror(errno));
	}
}

static void miss_by_fault(char *map)
{
	static volatile char sink;

	for (u32 i = 0; i < MISSES; i++)
		sink = map[mixed(i, FILE_PAGES) * PAGE];
	(void)sink;
}

/* Misses through rfs; the side RFS is the one with a reader attached. */
static double miss(const struct bench *b, enum side side)
{
	u64 begin, cpu, sectors;
	double value;
	char *map;
	int fd;

	make_cold();
	fd = side_open(RFS, DATA);
	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED || madvise(map, FILE_BYTES, MADV_RANDOM))
		die("mmap: %s", strerror(errno));
	if (side == RFS)
		attach(b->attached, BIT(RFS_EVENT_MISS));
	sectors = sectors_read();
	settle();
	begin = now_ns();
	cpu = cpu_ns();
	if (b->how == BY_FAULT)
		miss_by_fault(map);
	else
		miss_by_read(fd);
	cpu = cpu_ns() - cpu;
	value = b->how == BY_READ_CPU ? cpu : now_ns() - begin;
	detach();
	check_events(side == RFS ? MISSES : 0);
	expect_read(sectors, MISSES * PAGE);
	munmap(map, FILE_BYTES);
	close(fd);
	return value / MISSES;
}

/* Starts the I/O with WILLNEED, and waits for it by reading each piece's last byte. */
static void willneed(int fd)
{
	char byte;

	for (u64 at = 0; at < FILE_BYTES; at += READAHEAD)
		posix_fadvise(fd, at, READAHEAD, POSIX_FADV_WILLNEED);
	for (u64 at = READAHEAD; at <= FILE_BYTES; at += READAHEAD) {
		if (pread(fd, &byte, 1, at - 1) != 1)
			die("reading: %s", strerror(errno));
	}
}

static void load(int dev, int fd, int how)
{
	struct rfs_load l = {
		.size = sizeof(l), .flags = RFS_LOAD_WAIT | how, .file = file_info(fd, NULL),
		.length = FILE_BYTES, .cookie = 1,
	};

	if (ioctl(dev, RFS_IOC_LOAD, &l) || l.done != FILE_BYTES)
		die("RFS_IOC_LOAD: %s", strerror(errno));
}

static double load_all(const struct bench *b, enum side side)
{
	int fd, dev;
	u64 begin, end;

	make_cold();
	fd = side_open(side, DATA);
	dev = device();
	settle();
	begin = now_ns();
	if (side == RFS)
		load(dev, fd, b->how);
	else
		willneed(fd);
	end = now_ns();
	close(dev);
	close(fd);
	if (cached_pages(DATA) != FILE_PAGES)
		die("only %llu pages are cached", (unsigned long long)cached_pages(DATA));
	return (double)(end - begin) / (FILE_BYTES / MIB);
}

static void evict(int dev, int fd)
{
	struct rfs_evict e = {
		.size = sizeof(e), .file = file_info(fd, NULL), .length = FILE_BYTES,
	};

	if (ioctl(dev, RFS_IOC_EVICT, &e))
		die("RFS_IOC_EVICT: %s", strerror(errno));
}

static double evict_all(const struct bench *b, enum side side)
{
	int fd = side_open(side, DATA);
	int dev = device();
	u64 begin, end;

	(void)b;
	fill_cache(fd);
	settle();
	begin = now_ns();
	if (side == RFS)
		evict(dev, fd);
	else
		posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	end = now_ns();
	close(dev);
	close(fd);
	if (cached_pages(DATA) > FILE_PAGES / 100)
		die("%llu pages stay cached", (unsigned long long)cached_pages(DATA));
	return (double)(end - begin) / (FILE_BYTES / MIB);
}

const struct bench event_benches[] = {
	{ "event cost per miss", "ns/miss", miss, BOTH, .differs = true,
	  .attached = READING, .how = BY_READ },
	{ "event cost per miss, reader parked", "ns/miss", miss, BOTH, .differs = true,
	  .attached = PARKED, .how = BY_READ },
	{ "event cost per miss, the caller's own time", "ns/miss", miss, BOTH, .differs = true,
	  .attached = READING, .how = BY_READ_CPU },
	{ "event cost per miss, by fault", "ns/miss", miss, BOTH, .differs = true,
	  .attached = READING, .how = BY_FAULT },
	{ "LOAD or WILLNEED", "ns/MiB", load_all, BOTH },
	{ "LOAD in large folios, or WILLNEED", "ns/MiB", load_all, BOTH, .how = RFS_LOAD_LARGE },
	{ "EVICT or DONTNEED", "ns/MiB", evict_all, BOTH },
	{ NULL },
};

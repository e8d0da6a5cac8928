/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The benchmark that runs in the guest. Each case is measured on up to four
 * sides, which show the same files: the lower file system itself, rfs, and
 * FUSE with and without the kernel's passthrough.
 *
 * The machine counts instructions and takes each for a nanosecond, so times
 * are instructions plus, where the disk is read, its delay.
 */
#ifndef BENCH_H
#define BENCH_H

#define _GNU_SOURCE
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <linux/rfs.h>

typedef uint64_t u64;
typedef uint32_t u32;

#define KIB		1024ul
#define MIB		(1024ul * 1024)
#define PAGE		4096ul
#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))

#define FILE_BYTES	(64 * MIB)
#define FILE_PAGES	(FILE_BYTES / PAGE)
/* how much the kernel reads ahead by default */
#define READAHEAD	(128 * KIB)
#define MANY		1000
/* the file that is read, a file some folders deep, and a folder of MANY files */
#define DATA		"data"
#define HOT		"a/b/c/hot"
#define CROWD		"crowd"

enum side { LOWER, RFS, FUSE, FUSE_PASS, SIDES };

#define BIT(n)		(1u << (n))
#define BOTH		(BIT(LOWER) | BIT(RFS))
#define ALL		(BIT(SIDES) - 1)

/* the reader of the device: none, one that does not read, one that reads events as they come */
enum attached { NOBODY, PARKED, READING };

struct bench {
	const char *name;
	const char *unit;
	/*
	 * Makes one run: prepares, measures, and returns the value in the unit.
	 * Calls die() if anything is wrong.
	 */
	double (*run)(const struct bench *b, enum side side);
	u32 sides;
	/*
	 * The result is a difference, not a ratio: both sides are rfs, LOWER
	 * without events and RFS with them.
	 */
	bool differs;
	enum attached attached;
	u32 kinds;
	/* for the case itself */
	int how;
};

extern const struct bench read_benches[], meta_benches[], map_benches[];
extern const struct bench event_benches[];

/* main.c */
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
const char *side_path(enum side side, const char *name);
int side_open(enum side side, const char *name);
/* Waits until the machine is idle, and until the same distance from the timer tick each time. */
void settle(void);
u64 now_ns(void);
u64 cpu_ns(void);

/* cache.c */
u64 cached_pages(const char *name);
void read_all(int fd);
void fill_cache(int fd);
void make_cold(void);
void drop_cached(const char *what);
u64 sectors_read(void);
void expect_read(u64 sectors_before, u64 bytes);
u32 mixed(u32 i, u32 count);

/* event.c */
int device(void);
int listen_for(int argc, char **argv);
void attach(enum attached how, u32 kinds);
void detach(void);

#endif

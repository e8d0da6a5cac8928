// SPDX-License-Identifier: GPL-2.0
/* Names and attributes. */
#include "bench.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CALLS		4000
#define SCANS		4
#define ROUNDS		4

static void stat_it(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		die("%s: %s", path, strerror(errno));
}

static double stat_hot(const struct bench *b, enum side side)
{
	const char *path = side_path(side, HOT);
	u64 begin;

	(void)b;
	stat_it(path);
	settle();
	begin = now_ns();
	for (int i = 0; i < CALLS; i++)
		stat_it(path);
	return (double)(now_ns() - begin) / CALLS;
}

/* What imports and the linker do most: they look for a file in one folder after the other. */
static double stat_absent(const struct bench *b, enum side side)
{
	const char *path = side_path(side, "a/b/none");
	struct stat st;
	u64 begin;

	(void)b;
	if (!stat(path, &st) || errno != ENOENT)
		die("%s exists", path);
	settle();
	begin = now_ns();
	for (int i = 0; i < CALLS; i++)
		stat(path, &st);
	return (double)(now_ns() - begin) / CALLS;
}

static double open_close(const struct bench *b, enum side side)
{
	const char *path = side_path(side, HOT);
	u64 begin;

	(void)b;
	stat_it(path);
	settle();
	begin = now_ns();
	for (int i = 0; i < CALLS; i++)
		close(side_open(side, HOT));
	return (double)(now_ns() - begin) / CALLS;
}

enum { KNOWN, FORGOTTEN };

static double stat_crowd(const struct bench *b, enum side side)
{
	static char paths[MANY][64];
	int rounds = b->how == KNOWN ? 4 : 1;
	u64 begin;

	for (int i = 0; i < MANY; i++) {
		char name[64];

		snprintf(name, sizeof(name), CROWD "/model-%05d.bin", i);
		strcpy(paths[i], side_path(side, name));
		stat_it(paths[i]);
	}
	/* an inode outlives the first round if it had pages, or a dentry above it */
	for (int i = 0; i < ROUNDS && b->how == FORGOTTEN; i++)
		drop_cached("3");
	settle();
	begin = now_ns();
	for (int round = 0; round < rounds; round++) {
		for (int i = 0; i < MANY; i++)
			stat_it(paths[i]);
	}
	return (double)(now_ns() - begin) / (rounds * MANY);
}

static int scan(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;

	if (!dir)
		die("%s: %s", path, strerror(errno));
	while (readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static double read_folder(const struct bench *b, enum side side)
{
	const char *path = side_path(side, CROWD);
	u64 begin;

	(void)b;
	scan(path);
	settle();
	begin = now_ns();
	for (int i = 0; i < SCANS; i++) {
		if (scan(path) != MANY + 2)
			die("%s has lost names", path);
	}
	return (double)(now_ns() - begin) / SCANS;
}

const struct bench meta_benches[] = {
	{ "stat of one path", "ns/call", stat_hot, ALL },
	{ "stat of no file", "ns/call", stat_absent, ALL },
	{ "stat of 1,000 files", "ns/call", stat_crowd, ALL, .how = KNOWN },
	{ "cold stat of 1,000 files", "ns/call", stat_crowd, ALL, .how = FORGOTTEN },
	{ "open and close", "ns/pair", open_close, ALL },
	{ "readdir of 1,000 entries", "ns/scan", read_folder, ALL },
	{ NULL },
};

// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A generated application, as slow to start as one that imports a framework: a chain of shared objects, each of which
 * reads its small files when it is loaded, reads some of its tables and loads the next one. With OBJECT, this is one of
 * the objects, which are identical and find their files by their own names: FOLDER/objects/00.so, FOLDER/modules/00/00.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void application_take(const unsigned char *bytes, size_t length);

#ifdef OBJECT
#define TABLE (1 << 20)
#define STEP (64 << 10)
#define POINTERS (32 << 10)

/* Stored in the file, as its first byte is not 0. */
static const unsigned char table[TABLE] = { 1 };
/* The dynamic loader relocates these. */
static const void *const pointers[POINTERS] = { [0 ... POINTERS - 1] = table };

static int take_module(const char *folder, long object, int module)
{
	unsigned char bytes[16384];
	char path[PATH_MAX + 32];
	struct stat about;
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "%s/../modules/%02ld/%02d", folder, object, module);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	fstat(fd, &about);
	while ((length = read(fd, bytes, sizeof(bytes))) > 0)
		application_take(bytes, length);
	close(fd);
	return 1;
}

static __attribute__((constructor)) void load(void)
{
	char path[PATH_MAX], *name;
	Dl_info about;
	long object;
	size_t at;
	int module;

	if (!dladdr(table, &about))
		exit(2);
	snprintf(path, sizeof(path), "%s", about.dli_fname);
	name = strrchr(path, '/');
	if (!name)
		exit(2);
	object = strtol(name + 1, NULL, 10);
	*name = 0;
	for (module = 0; take_module(path, object, module); module++)
		;
	/* In places, not all of it. */
	for (at = object % 3 * STEP; at < TABLE; at += 2 * STEP)
		application_take((const unsigned char *)pointers[at / STEP] + at, 4096);
	snprintf(name, sizeof(path) - (name - path), "/%02ld.so", object + 1);
	if (!access(path, R_OK) && !dlopen(path, RTLD_NOW)) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
}
#else
/* Makes each byte take as long as in an interpreter. */
#define TURNS 20

static uint64_t sum = 14695981039346656037u;

void application_take(const unsigned char *bytes, size_t length)
{
	size_t at;
	int turn;

	for (turn = 0; turn < TURNS; turn++)
		for (at = 0; at < length; at++)
			sum = (sum ^ bytes[at]) * 1099511628211u;
}

int main(int argc, char **argv)
{
	char path[PATH_MAX];

	if (argc != 2)
		return 2;
	snprintf(path, sizeof(path), "%s/objects/00.so", argv[1]);
	if (!dlopen(path, RTLD_NOW)) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	printf("sum of all bytes: %016llx\n", (unsigned long long)sum);
	return 0;
}
#endif

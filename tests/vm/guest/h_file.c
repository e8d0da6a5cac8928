// SPDX-License-Identifier: GPL-2.0
/* Names, pattern files, and the state of the page cache. */
#include "t.h"
#include <sys/sysmacros.h>

char *join(const char *dir, const char *name)
{
	static __thread char buf[16][512];
	static __thread unsigned int next;
	char *p = buf[next++ % ARRAY_SIZE(buf)];

	snprintf(p, sizeof(buf[0]), "%s/%s", dir, name);
	return p;
}

char *lo(const char *name)
{
	return join(t_lower, name);
}

char *up(const char *name)
{
	return join(t_mnt, name);
}

int xopen(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0644);

	if (fd < 0)
		t_fail(__FILE__, __LINE__, "open %s: %s", path,
		       strerror(errno));
	return fd;
}

void xmkdir(const char *path)
{
	CHECK_OK(mkdir(path, 0755));
}

void put_str(const char *path, const char *text)
{
	int fd = xopen(path, O_WRONLY | O_CREAT | O_TRUNC);

	CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
	close(fd);
}

/* Reads up to len - 1 bytes of a small file, NUL terminated */
ssize_t get_str(const char *path, char *buf, size_t len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t got = 0;
	ssize_t n;

	if (fd < 0)
		return -1;
	while (got < len - 1 && (n = read(fd, buf + got, len - 1 - got)) > 0)
		got += n;
	buf[got] = 0;
	close(fd);
	return got;
}

/* The pattern: each 8 bytes are a hash of seed and offset, no two alike */

static inline u64 pat_word(u64 seed, u64 off)
{
	u64 x = (seed * 0xd1342543de82ef95ull + (off >> 3)) *
		0x9e3779b97f4a7c15ull;

	return x ^ (x >> 29);
}

static inline u8 pat_byte(u64 seed, u64 off)
{
	return pat_word(seed, off) >> (off % 8 * 8);
}

void pat_fill(void *buf, u64 seed, u64 off, size_t len)
{
	u8 *p = buf;
	size_t i = 0;

	for (; i < len && (off + i) % 8; i++)
		p[i] = pat_byte(seed, off + i);
	for (; i + 8 <= len; i += 8) {
		u64 w = pat_word(seed, off + i);

		memcpy(p + i, &w, 8);
	}
	for (; i < len; i++)
		p[i] = pat_byte(seed, off + i);
}

static void pat_wrong(const char *file, int line, const u8 *p, u64 seed,
		      u64 off, size_t i, size_t len)
{
	while (i < len && p[i] == pat_byte(seed, off + i))
		i++;
	t_fail(file, line,
	       "wrong byte at file offset %llu (%#llx; byte %zu of %zu): %#x, want %#x",
	       (unsigned long long)(off + i), (unsigned long long)(off + i), i,
	       len, p[i], pat_byte(seed, off + i));
}

void pat_check(const char *file, int line, const void *buf, u64 seed, u64 off,
	       size_t len)
{
	const u8 *p = buf;
	size_t i = 0;
	u64 w;

	for (; i < len && (off + i) % 8; i++)
		if (p[i] != pat_byte(seed, off + i))
			pat_wrong(file, line, p, seed, off, i, len);
	for (; i + 8 <= len; i += 8) {
		memcpy(&w, p + i, 8);
		if (w != pat_word(seed, off + i))
			pat_wrong(file, line, p, seed, off, i, len);
	}
	for (; i < len; i++)
		if (p[i] != pat_byte(seed, off + i))
			pat_wrong(file, line, p, seed, off, i, len);
}

void write_pat(int fd, u64 seed, u64 off, u64 len)
{
	size_t chunk = len < MIB ? len : MIB;
	char *buf = malloc(chunk ? chunk : 1);

	CHECK(buf);
	for (u64 at = 0; at < len; at += chunk) {
		size_t n = len - at < chunk ? len - at : chunk;

		pat_fill(buf, seed, off + at, n);
		CHECK_EQ(pwrite(fd, buf, n, off + at), n);
	}
	free(buf);
}

void mk_file(const char *path, u64 seed, u64 size)
{
	int fd = xopen(path, O_WRONLY | O_CREAT | O_TRUNC);

	write_pat(fd, seed, 0, size);
	CHECK_OK(fsync(fd));
	close(fd);
}

/*
 * A file whose contents do not matter, written past the page cache, as filling
 * that takes a slow kernel a minute
 */
void mk_blank(const char *path, u64 size)
{
	int fd = xopen(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT);
	void *buf;

	CHECK_EQ(posix_memalign(&buf, PAGE, MIB), 0);
	memset(buf, 0, MIB);
	for (u64 at = 0; at < size; at += MIB)
		CHECK_EQ(pwrite(fd, buf, MIB, at), MIB);
	free(buf);
	CHECK_OK(fsync(fd));
	close(fd);
}

/* Checks all of fd by pread: size bytes of the pattern and no more */
void check_fd(int fd, u64 seed, u64 size)
{
	static __thread char buf[128 * 1024];
	u64 at = 0;
	ssize_t n;

	while ((n = pread(fd, buf, sizeof(buf), at)) > 0) {
		CHECK_LE(at + n, size);
		CHECK_BYTES(buf, seed, at, n);
		at += n;
	}
	CHECK_EQ(n, 0);
	CHECK_EQ(at, size);
}

void check_path(const char *path, u64 seed, u64 size)
{
	int fd = xopen(path, O_RDONLY);

	check_fd(fd, seed, size);
	close(fd);
}

void *xmap(int fd, u64 off, size_t len, int prot, int flags)
{
	void *p = mmap(NULL, len, prot, flags, fd, off);

	CHECK(p != MAP_FAILED);
	return p;
}

/* Checks all of path through a new shared mapping, including the zeros behind its end */
void check_map(const char *path, u64 seed, u64 size)
{
	int fd = xopen(path, O_RDONLY);
	u8 *p = xmap(fd, 0, size, PROT_READ, MAP_SHARED);

	close(fd);
	CHECK_BYTES(p, seed, 0, size);
	for (u64 i = size; i % PAGE; i++)
		CHECK_EQ(p[i], 0);
	CHECK_OK(munmap(p, size));
}

/* The page cache */

/* Pages of path that are cached; vec, if given, gets a byte for each page */
u64 residency(const char *path, u8 *vec)
{
	int fd = xopen(path, O_RDONLY);
	struct stat st;
	u64 n, sum = 0;
	void *p;
	u8 *v;

	CHECK_OK(fstat(fd, &st));
	n = PAGES(st.st_size);
	if (!n) {
		close(fd);
		return 0;
	}
	v = vec ? vec : malloc(n);
	p = xmap(fd, 0, st.st_size, PROT_READ, MAP_SHARED);
	CHECK_OK(mincore(p, st.st_size, v));
	for (u64 i = 0; i < n; i++) {
		v[i] &= 1;
		sum += v[i];
	}
	munmap(p, st.st_size);
	close(fd);
	if (!vec)
		free(v);
	return sum;
}

u64 resident(const char *path)
{
	return residency(path, NULL);
}

/* Makes the file cold. The kernel promises no more than best effort, so this retries. */
void drop(const char *path)
{
	int fd = xopen(path, O_RDONLY);

	for (int i = 0; i < 50; i++) {
		CHECK_OK(fsync(fd));
		CHECK_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
		if (!resident(path)) {
			close(fd);
			return;
		}
		if (i >= 3)
			put_str("/proc/sys/vm/drop_caches", "1");
		sleep_ms(10);
	}
	t_fail(__FILE__, __LINE__, "%s stays cached: %llu pages", path,
	       (unsigned long long)resident(path));
}

/* Brings all of the file into the page cache */
void warm(const char *path)
{
	static char buf[256 * 1024];
	int fd = xopen(path, O_RDONLY);
	struct stat st;
	ssize_t n;

	while ((n = read(fd, buf, sizeof(buf))) > 0)
		;
	CHECK_EQ(n, 0);
	CHECK_OK(fstat(fd, &st));
	close(fd);
	CHECK_EQ(resident(path), PAGES(st.st_size));
}

/* Sets the readahead of the lower device for files opened from now on */
void ra_kb(const char *kb)
{
	char path[96], old[32];
	struct stat st;

	CHECK_OK(stat(t_lower, &st));
	snprintf(path, sizeof(path), "/sys/class/bdi/%u:%u/read_ahead_kb",
		 major(st.st_dev), minor(st.st_dev));
	CHECK(get_str(path, old, sizeof(old)) > 0);
	defer_write(path, old);
	put_str(path, kb);
}

void ra_off(void)
{
	ra_kb("0");
}

/* Skips where the lower file system has no RWF_NOWAIT; leaves f cold */
void need_nowait(void)
{
	int fd = xopen(lo("f"), O_RDONLY);
	char c;
	struct iovec v = { &c, 1 };

	if (preadv2(fd, &v, 1, 0, RWF_NOWAIT) < 0 && errno != EAGAIN) {
		CHECK_EQ(errno, EOPNOTSUPP);
		SKIP("the lower file system has no RWF_NOWAIT");
	}
	close(fd);
	drop(lo("f"));
}

/* Value in KiB of a field of the mapping at addr in /proc/self/smaps */
u64 smaps_kb(void *addr, const char *field)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long start, end, kb = 0;
	char line[512];
	bool here = false, seen = false;

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		char *colon = strchr(line, ':');

		if (sscanf(line, "%lx-%lx ", &start, &end) == 2)
			here = (unsigned long)addr >= start &&
			       (unsigned long)addr < end;
		else if (here && colon && strlen(field) == (size_t)(colon - line) &&
			 !strncmp(line, field, colon - line)) {
			kb = strtoul(colon + 1, NULL, 10);
			seen = true;
		}
	}
	fclose(f);
	CHECK(seen);
	return kb;
}

long minor_faults(void)
{
	struct rusage ru;

	CHECK_OK(getrusage(RUSAGE_SELF, &ru));
	return ru.ru_minflt;
}

static sigjmp_buf bus_jmp;

static void on_bus(int sig)
{
	(void)sig;
	siglongjmp(bus_jmp, 1);
}

/* Reads a byte. Returns its value, or -1 if that raised SIGBUS */
int sigbus_at(volatile const u8 *p)
{
	struct sigaction sa = { .sa_handler = on_bus }, old;
	volatile int v = -1;

	CHECK_OK(sigaction(SIGBUS, &sa, &old));
	if (!sigsetjmp(bus_jmp, 1))
		v = *p;
	CHECK_OK(sigaction(SIGBUS, &old, NULL));
	return v;
}

u64 next_rand(u64 *state)
{
	u64 x = *state += 0x9e3779b97f4a7c15ull;

	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

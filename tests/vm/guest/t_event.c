// SPDX-License-Identifier: GPL-2.0
/* Events: what causes one, and what its record says. */
#include "t.h"
#include <pthread.h>

#define SEED 0xe7e47
#define NPAGES 64
#define SIZE (NPAGES * PAGE)
/* with folios as large as they get */
#define LARGE (8 * MIB)
#define ALL (K(OPEN) | K(CLOSE) | K(MISS) | K(TOUCH))

/* Mounts a cold file, without readahead anywhere; returns its id */
static u64 cold(void)
{
	mk_file(lo("f"), SEED, SIZE);
	ra_off();
	setup();
	drop(lo("f"));
	return path_id(up("f"));
}

static u64 hot(void)
{
	u64 id = cold();

	warm(lo("f"));
	return id;
}

/* Reads the file once, in a process of its own */
static void reader(const char *path, u64 off, u64 len)
{
	static char buf[NPAGES * LARGEST_PAGE];
	int fd = xopen(path, O_RDONLY);

	CHECK_EQ(pread(fd, buf, len, off), len);
	CHECK_BYTES(buf, SEED, off, len);
	close(fd);
}

static void is(const struct rfs_event *e, u64 off, u64 len, u32 flags)
{
	CHECK_EQ(e->offset, off);
	CHECK_EQ(e->length, len);
	CHECK_EQ(e->flags, flags);
}

/* Loads single pages through the lower file, without an event */
static void load_page(u64 index)
{
	int low = xopen(lo("f"), O_RDONLY);
	char c;

	CHECK_EQ(posix_fadvise(low, 0, 0, POSIX_FADV_RANDOM), 0);
	CHECK_EQ(pread(low, &c, 1, index * PAGE), 1);
	close(low);
}

TEST(event_open_and_close, 15)
{
	u64 id = cold(), t0 = now_ns();
	int dev = dev_masked(ALL);
	struct evs *s;
	pid_t pid = t_fork();

	if (!pid) {
		close(xopen(up("f"), O_RDONLY));
		_exit(T_PASS);
	}
	JOIN(pid);
	s = drain(dev);
	CHECK_EQ(s->n, 2);
	CHECK_EQ(s->e[0].kind, RFS_EVENT_OPEN);
	is(&s->e[0], 0, SIZE, 0);
	CHECK_EQ(s->e[1].kind, RFS_EVENT_CLOSE);
	for (int i = 0; i < 2; i++) {
		CHECK_EQ(s->e[i].file, id);
		CHECK_EQ(s->e[i].count, 1);
		CHECK_EQ(s->e[i].tgid, pid);
		CHECK_EQ(s->e[i].tid, pid);
		CHECK_EQ(s->e[i].cpu, 0);
		CHECK(s->e[i].time_ns >= t0);
	}
	CHECK(s->e[1].time_ns >= s->e[0].time_ns);
}

static void *thread_reads(void *arg)
{
	reader(up("f"), 0, PAGE);
	*(pid_t *)arg = syscall(SYS_gettid);
	return NULL;
}

TEST(event_names_process_and_thread, 15)
{
	static pid_t *tid;
	struct rfs_event *e;
	pthread_t t;
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	pid_t pid;

	tid = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
		   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid = t_fork();
	if (!pid) {
		CHECK_EQ(pthread_create(&t, NULL, thread_reads, tid), 0);
		CHECK_EQ(pthread_join(t, NULL), 0);
		_exit(T_PASS);
	}
	JOIN(pid);
	e = only(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(e->tgid, pid);
	CHECK_EQ(e->tid, *tid);
	CHECK(e->tid != e->tgid);
}

TEST(event_names_process_of_initial_namespace, 15)
{
	u64 id = hot();
	int dev = dev_masked(K(TOUCH));
	struct rfs_event *e;
	pid_t *pid = mmap(NULL, PAGE, PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	IN_CHILD(if (unshare(CLONE_NEWPID)) {
			CHECK_EQ(errno, EINVAL);
			SKIP("no pid namespaces");
		 }
		 pid_t inner = t_fork();
		 if (!inner) {
			CHECK_EQ(getpid(), 1);
			reader(up("f"), 0, PAGE);
			_exit(T_PASS);
		 }
		 *pid = inner;
		 JOIN(inner));
	e = only(drain(dev), RFS_EVENT_TOUCH, id);
	CHECK_EQ(e->tgid, *pid);
	CHECK_EQ(e->tid, *pid);
}

TEST(event_names_cpu, 15)
{
	u64 id = hot();
	int dev = dev_masked(K(TOUCH));
	int cpu = sysconf(_SC_NPROCESSORS_ONLN) - 1;
	struct rfs_event *e;

	if (!cpu)
		SKIP("one CPU");
	IN_CHILD(t_pin(cpu); reader(up("f"), 0, PAGE));
	e = only(drain(dev), RFS_EVENT_TOUCH, id);
	CHECK_EQ(e->cpu, cpu);
}

TEST(event_close_comes_with_last_descriptor, 15)
{
	u64 id = hot();
	int dev = dev_masked(K(CLOSE)), go[2], done[2];
	char c = 0;
	pid_t pid;

	CHECK_OK(pipe(go));
	CHECK_OK(pipe(done));
	pid = t_fork();
	if (!pid) {
		int fd = xopen(up("f"), O_RDONLY), two = dup(fd);

		close(fd);
		CHECK_EQ(write(done[1], &c, 1), 1);
		CHECK_EQ(read(go[0], &c, 1), 1);
		close(two);
		_exit(T_PASS);
	}
	CHECK_EQ(read(done[0], &c, 1), 1);
	CHECK_EQ(drain(dev)->n, 0);
	CHECK_EQ(write(go[1], &c, 1), 1);
	JOIN(pid);
	only(drain(dev), RFS_EVENT_CLOSE, id);
}

TEST(event_close_comes_before_munmap, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(CLOSE) | K(MISS));
	struct evs *s;

	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 u8 *p = xmap(fd, 0, SIZE, PROT_READ, MAP_SHARED);
		 CHECK_OK(madvise(p, SIZE, MADV_RANDOM));
		 close(fd);
		 CHECK_BYTES(p + 9 * PAGE, SEED, 9 * PAGE, 8));
	s = drain(dev);
	CHECK_EQ(s->n, 2);
	CHECK_EQ(s->e[0].kind, RFS_EVENT_CLOSE);
	CHECK_EQ(s->e[0].file, id);
	CHECK_EQ(s->e[1].kind, RFS_EVENT_MISS);
	CHECK_EQ(s->e[1].file, id);
}

TEST(event_directory_opens_make_none, 15)
{
	int dev;

	cold();
	xmkdir(lo("dir"));
	dev = dev_masked(ALL);
	IN_CHILD(DIR *d = opendir(up("dir"));
		 CHECK(d && readdir(d));
		 closedir(d));
	CHECK_EQ(drain(dev)->n, 0);
}

/* Misses */

TEST(event_miss_read_exact, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	struct evs *s;

	IN_CHILD(reader(up("f"), 64 * KIB, 64 * KIB));
	s = drain(dev);
	is(only(s, RFS_EVENT_MISS, id), 64 * KIB, 64 * KIB, 0);
	CHECK_EQ(s->n, 1);
}

TEST(event_miss_read_whole_file, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));

	IN_CHILD(reader(up("f"), 0, SIZE));
	is(only(drain(dev), RFS_EVENT_MISS, id), 0, SIZE, 0);
}

TEST(event_miss_read_unaligned_names_its_pages, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	struct rfs_event *e;

	IN_CHILD(reader(up("f"), 5 * PAGE + 100, 2 * PAGE));
	e = only(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(e->offset / PAGE, 5);
	CHECK_EQ(PAGES(e->offset + e->length), 8);
}

TEST(event_miss_per_gap, 15)
{
	static u8 vec[NPAGES];
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	struct evs *s;

	load_page(2);
	load_page(3);
	load_page(8);
	CHECK_EQ(residency(lo("f"), vec), 3);
	IN_CHILD(reader(up("f"), 0, 16 * PAGE));
	s = pick(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(s->n, 3);
	is(&s->e[0], 0, 2 * PAGE, 0);
	is(&s->e[1], 4 * PAGE, 4 * PAGE, 0);
	is(&s->e[2], 9 * PAGE, 7 * PAGE, 0);
}

TEST(event_miss_of_first_page_only, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));

	for (u64 i = 1; i < NPAGES; i++)
		load_page(i);
	CHECK_EQ(resident(lo("f")), NPAGES - 1);
	IN_CHILD(reader(up("f"), 0, SIZE));
	is(only(drain(dev), RFS_EVENT_MISS, id), 0, PAGE, 0);
}

TEST(event_no_miss_when_warm, 15)
{
	int dev;

	hot();
	dev = dev_masked(K(MISS));
	IN_CHILD(reader(up("f"), 0, SIZE);
		 check_map(up("f"), SEED, SIZE));
	CHECK_EQ(drain(dev)->n, 0);
}

TEST(event_miss_clipped_to_file, 15)
{
	u64 id = cold(), end;
	int dev = dev_masked(K(MISS));
	struct rfs_event *e;

	CHECK_OK(truncate(lo("f"), 5000));
	drop(lo("f"));
	IN_CHILD(static char buf[NPAGES * LARGEST_PAGE];
		 CHECK_EQ(pread(xopen(up("f"), O_RDONLY), buf, SIZE, 0), 5000);
		 CHECK_EQ(pread(xopen(up("f"), O_RDONLY), buf, SIZE, SIZE), 0));
	e = only(drain(dev), RFS_EVENT_MISS, id);
	end = e->offset + e->length;
	CHECK_EQ(e->offset, 0);
	CHECK(end == 5000 || end == 2 * PAGE);
}

static void miss_by_splice(const char *opts)
{
	u64 id = cold(), sum = 0;
	int dev = dev_masked(K(MISS)), p[2];
	struct evs *s;

	CHECK_OK(mount(NULL, t_mnt, NULL, MS_REMOUNT | MS_RDONLY, opts));
	CHECK_OK(pipe(p));
	IN_CHILD(loff_t off = 8 * PAGE;
		 CHECK_EQ(splice(xopen(up("f"), O_RDONLY), &off, p[1], NULL,
				 4 * PAGE, 0), 4 * PAGE));
	s = pick(drain(dev), RFS_EVENT_MISS, id);
	CHECK(s->n >= 1);
	CHECK_EQ(s->e[0].offset, 8 * PAGE);
	for (int i = 0; i < s->n; i++)
		sum += s->e[i].length;
	CHECK_EQ(sum, 4 * PAGE);
}

TEST(event_miss_by_splice, 15)
{
	miss_by_splice("splice=pass");
}

TEST(event_miss_by_splice_that_copies, 15)
{
	miss_by_splice("splice=copy");
}

/* A process that maps the file and touches one byte of a page */
static void toucher(u64 page)
{
	int fd = xopen(up("f"), O_RDONLY);
	u8 *p = xmap(fd, 0, SIZE, PROT_READ, MAP_SHARED);

	close(fd);
	CHECK_OK(madvise(p, SIZE, MADV_RANDOM));
	CHECK_BYTES(p + page * PAGE, SEED, page * PAGE, 8);
}

TEST(event_miss_fault_exact, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	struct evs *s;

	IN_CHILD(toucher(5));
	s = drain(dev);
	is(only(s, RFS_EVENT_MISS, id), 5 * PAGE, PAGE, RFS_EV_MMAP);
	CHECK_EQ(s->n, 1);
	CHECK_EQ(resident(lo("f")), 1);
}

TEST(event_miss_fault_each_page, 15)
{
	static u8 seen[NPAGES];
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	struct evs *s;

	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 u8 *p = xmap(fd, 0, SIZE, PROT_READ, MAP_PRIVATE);
		 CHECK_OK(madvise(p, SIZE, MADV_RANDOM));
		 CHECK_BYTES(p, SEED, 0, SIZE));
	s = pick(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(total_count(s), NPAGES);
	for (int i = 0; i < s->n; i++) {
		CHECK_EQ(s->e[i].flags, RFS_EV_MMAP);
		for (u64 at = 0; at < s->e[i].length; at += PAGE)
			seen[(s->e[i].offset + at) / PAGE]++;
	}
	for (u64 i = 0; i < NPAGES; i++)
		CHECK_EQ(seen[i], 1);
}

TEST(event_miss_again_after_drop, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));

	IN_CHILD(toucher(5));
	only(drain(dev), RFS_EVENT_MISS, id);
	IN_CHILD(toucher(5));
	CHECK_EQ(drain(dev)->n, 0);
	drop(lo("f"));
	IN_CHILD(toucher(5));
	only(drain(dev), RFS_EVENT_MISS, id);
}

TEST(event_direct_read_makes_no_miss, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(OPEN) | K(MISS));
	struct evs *s;

	IN_CHILD(int fd = xopen(up("f"), O_RDONLY | O_DIRECT);
		 u8 *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		 CHECK_EQ(pread(fd, p, SIZE, 0), SIZE);
		 CHECK_BYTES(p, SEED, 0, SIZE));
	s = drain(dev);
	CHECK_EQ(s->n, 1);
	is(only(s, RFS_EVENT_OPEN, id), 0, SIZE, RFS_EV_DIRECT);
}

/* Such a read starts the I/O even if it returns nothing */
TEST(event_nowait_read_makes_miss, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));

	need_nowait();
	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 char buf[PAGE];
		 struct iovec v = { buf, PAGE };
		 ssize_t n = preadv2(fd, &v, 1, 4 * PAGE, RWF_NOWAIT);
		 if (n < 0)
			CHECK_EQ(errno, EAGAIN);
		 else
			CHECK_BYTES(buf, SEED, 4 * PAGE, n));
	is(only(drain(dev), RFS_EVENT_MISS, id), 4 * PAGE, PAGE, 0);
	warm(lo("f"));
	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 char buf[PAGE];
		 struct iovec v = { buf, PAGE };
		 CHECK_EQ(preadv2(fd, &v, 1, 4 * PAGE, RWF_NOWAIT), PAGE));
	CHECK_EQ(drain(dev)->n, 0);
}

/* Touches */

TEST(event_touch_by_read_exact, 15)
{
	u64 id = hot();
	int dev = dev_masked(K(TOUCH));
	struct evs *s;

	IN_CHILD(reader(up("f"), 3000, 10000));
	s = drain(dev);
	is(only(s, RFS_EVENT_TOUCH, id), 3000, 10000, 0);
	CHECK_EQ(s->n, 1);
}

TEST(event_touch_when_cold_too, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(TOUCH) | K(MISS));
	struct evs *s;

	IN_CHILD(reader(up("f"), 4 * PAGE, 4 * PAGE));
	s = drain(dev);
	is(only(s, RFS_EVENT_TOUCH, id), 4 * PAGE, 4 * PAGE, 0);
	is(only(s, RFS_EVENT_MISS, id), 4 * PAGE, 4 * PAGE, 0);
}

TEST(event_touch_clipped_to_file, 15)
{
	u64 id = hot();
	int dev = dev_masked(K(TOUCH));

	IN_CHILD(static char buf[NPAGES * LARGEST_PAGE];
		 CHECK_EQ(pread(xopen(up("f"), O_RDONLY), buf, SIZE,
				SIZE - 100), 100);
		 CHECK_EQ(pread(xopen(up("f"), O_RDONLY), buf, SIZE, SIZE), 0));
	is(only(drain(dev), RFS_EVENT_TOUCH, id), SIZE - 100, 100, 0);
}

TEST(event_touch_by_mmap, 15)
{
	u64 id = hot();
	int dev = dev_masked(K(TOUCH));
	struct rfs_event *e;

	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 u8 *p = xmap(fd, 0, SIZE, PROT_READ, MAP_SHARED);
		 CHECK_BYTES(p + 33 * PAGE, SEED, 33 * PAGE, 8));
	e = only(drain(dev), RFS_EVENT_TOUCH, id);
	CHECK_EQ(e->flags, RFS_EV_MMAP);
	CHECK_EQ(e->offset % PAGE, 0);
	CHECK_EQ(e->length % PAGE, 0);
	CHECK(e->offset <= 33 * PAGE && e->offset + e->length > 33 * PAGE);
	CHECK_LE(e->length, 2 * MIB);
	CHECK_LE(e->offset + e->length, SIZE);
}

static u64 large(void)
{
	mk_file(lo("f"), SEED, LARGE);
	ra_kb("4096");
	setup();
	drop(lo("f"));
	warm(lo("f"));
	return path_id(up("f"));
}

/* Marks the pages that were in one of these events */
static void touched(struct evs *s, u8 *seen)
{
	memset(seen, 0, LARGE / 4096);
	for (int i = 0; i < s->n; i++) {
		for (u64 at = s->e[i].offset / PAGE;
		     at < PAGES(s->e[i].offset + s->e[i].length); at++)
			seen[at] = 1;
	}
}

/* Reads 8 bytes of a mapped page, and checks that those are mapped which a TOUCH names */
static void touches_what_it_maps(int dev, u64 id, u64 size, u64 page)
{
	u64 *entry = mmap(NULL, PAGES(size) * sizeof(*entry), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	static u8 seen[LARGE / 4096];
	struct evs *s;

	IN_CHILD(int map = xopen("/proc/self/pagemap", O_RDONLY);
		 u8 *p = xmap(xopen(up("f"), O_RDONLY), 0, size, PROT_READ, MAP_SHARED);
		 CHECK_BYTES(p + page * PAGE, SEED, page * PAGE, 8);
		 CHECK_EQ(pread(map, entry, PAGES(size) * sizeof(*entry),
				(uintptr_t)p / PAGE * sizeof(*entry)),
			  PAGES(size) * sizeof(*entry)));
	s = pick(drain(dev), RFS_EVENT_TOUCH, id);
	touched(s, seen);
	for (u64 at = 0; at < PAGES(size); at++)
		CHECK_EQ(seen[at], entry[at] >> 63);
}

TEST(event_mapped_touch_is_what_is_mapped, 15)
{
	u64 id = hot();

	touches_what_it_maps(dev_masked(K(TOUCH)), id, SIZE, 1);
}

TEST(event_mapped_touch_is_what_is_mapped_of_large_folios, 30)
{
	u64 id = large();
	int dev = dev_masked(K(TOUCH));

	touches_what_it_maps(dev, id, LARGE, 1);
	/* in the middle of a folio, with pages of any size */
	touches_what_it_maps(dev, id, LARGE, PAGES(LARGE) * 7 / 16 + 4);
}

/* Checks that each page of the file was in a TOUCH */
static void all_touched(int dev, u64 id, u64 size)
{
	static u8 seen[LARGE / 4096];

	touched(pick(drain(dev), RFS_EVENT_TOUCH, id), seen);
	for (u64 i = 0; i < PAGES(size); i++)
		CHECK_EQ(seen[i], 1);
}

TEST(event_mapped_touch_names_every_page_read, 15)
{
	u64 id = hot();
	int dev = dev_masked(K(TOUCH));

	IN_CHILD(check_map(up("f"), SEED, SIZE));
	all_touched(dev, id, SIZE);
}

/* A fault brings in large folios, which are mapped with all their pages */
TEST(event_mapped_touch_names_what_is_read_ahead, 15)
{
	u64 id;
	int dev;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	drop(lo("f"));
	id = path_id(up("f"));
	dev = dev_masked(K(TOUCH));
	IN_CHILD(check_map(up("f"), SEED, SIZE));
	all_touched(dev, id, SIZE);
}

static void check_map_downwards(const char *path, u64 size)
{
	u8 *p = xmap(xopen(path, O_RDONLY), 0, size, PROT_READ, MAP_SHARED);

	for (u64 at = size; at; at -= PAGE)
		CHECK_BYTES(p + at - PAGE, SEED, at - PAGE, 8);
}

/* A miss brings in large folios, too */
TEST(event_mapped_touch_names_every_page_read_cold, 30)
{
	u64 id = large();
	int dev = dev_masked(K(TOUCH));

	drop(lo("f"));
	IN_CHILD(check_map(up("f"), SEED, LARGE));
	all_touched(dev, id, LARGE);
}

TEST(event_mapped_touch_names_every_page_read_cold_downwards, 30)
{
	u64 id = large();
	int dev = dev_masked(K(TOUCH));

	drop(lo("f"));
	IN_CHILD(check_map_downwards(up("f"), LARGE));
	all_touched(dev, id, LARGE);
}

/* A huge page is mapped as one, with no fault for the rest */
TEST(event_mapped_touch_names_huge_pages, 30)
{
	u64 id = large();
	int dev = dev_masked(K(TOUCH));

	drop(lo("f"));
	IN_CHILD(u8 *p = xmap(xopen(up("f"), O_RDONLY), 0, LARGE, PROT_READ, MAP_SHARED);
		 if (madvise(p, LARGE, MADV_HUGEPAGE))
			SKIP("no huge pages");
		 CHECK_BYTES(p, SEED, 0, LARGE));
	all_touched(dev, id, LARGE);
	IN_CHILD(check_map_downwards(up("f"), LARGE));
	all_touched(dev, id, LARGE);
}

/* Of a large folio, the pages before the one asked for are mapped as well */
TEST(event_mapped_touch_names_every_page_read_downwards, 30)
{
	u64 id = large();
	int dev = dev_masked(K(TOUCH));

	IN_CHILD(check_map_downwards(up("f"), LARGE));
	all_touched(dev, id, LARGE);
}

/* Whose events */

TEST(event_own_process_is_filtered, 15)
{
	int dev;

	cold();
	dev = dev_masked(ALL);
	reader(up("f"), 0, 64 * KIB);
	toucher(40);
	CHECK_EQ(drain(dev)->n, 0);
}

TEST(event_own_threads_are_filtered, 15)
{
	pthread_t t;
	pid_t tid;
	int dev;

	cold();
	dev = dev_masked(ALL);
	CHECK_EQ(pthread_create(&t, NULL, thread_reads, &tid), 0);
	CHECK_EQ(pthread_join(t, NULL), 0);
	CHECK_EQ(drain(dev)->n, 0);
}

TEST(event_lower_reads_make_none, 15)
{
	int dev;

	cold();
	dev = dev_masked(ALL);
	IN_CHILD(reader(lo("f"), 0, 64 * KIB);
		 check_map(lo("f"), SEED, SIZE));
	CHECK_EQ(drain(dev)->n, 0);
}

TEST(event_other_mount_is_not_heard, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	char *other = join("/mnt", "event_other");

	mkdir(other, 0755);
	defer_rmdir(other);
	must_mount_rfs(t_lower, other, NULL);
	IN_CHILD(reader(join("/mnt", "event_other/f"), 0, PAGE));
	CHECK_EQ(drain(dev)->n, 0);
	IN_CHILD(reader(up("f"), 8 * PAGE, PAGE));
	only(drain(dev), RFS_EVENT_MISS, id);
}

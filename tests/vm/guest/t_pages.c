// SPDX-License-Identifier: GPL-2.0
/* LOAD, EVICT and RESIDENT: exactly the pages asked for. */
#include "t.h"

#define SEED 0x9a9e5
#define NPAGES 513
#define SIZE ((NPAGES - 1) * PAGE + 100)

static struct rfs_load l;
static struct rfs_evict e;

/* Makes a cold file of that size in the mount; returns its id */
static u64 cold(u64 size, int *dev)
{
	u64 id;

	mk_file(lo("f"), SEED, size);
	setup();
	id = path_id(up("f"));
	drop(lo("f"));
	*dev = dev_open(t_mnt, O_NONBLOCK);
	return id;
}

/* Checks that the file's cached pages are [from, to), by mincore and RESIDENT */
static void only_cached(int dev, u64 id, u64 from, u64 to)
{
	static u8 vec[NPAGES], bits[NPAGES / 8 + 1];
	struct rfs_resident r = {
		.size = sizeof(r), .file = id, .length = SIZE,
		.bitmap = (u64)(unsigned long)bits, .bitmap_len = sizeof(bits),
	};

	residency(lo("f"), vec);
	memset(bits, 0, sizeof(bits));
	CHECK_OK(ioctl(dev, RFS_IOC_RESIDENT, &r));
	CHECK_EQ(r.pages, NPAGES);
	CHECK_EQ(r.cached, to - from);
	for (u64 i = 0; i < NPAGES; i++) {
		if (vec[i] != (i >= from && i < to) ||
		    (bits[i / 8] >> i % 8 & 1) != vec[i])
			t_fail(__FILE__, __LINE__,
			       "page %llu: mincore %d, RESIDENT %d, want [%llu, %llu)",
			       (unsigned long long)i, vec[i],
			       bits[i / 8] >> i % 8 & 1,
			       (unsigned long long)from,
			       (unsigned long long)to);
	}
}

TEST(load_brings_exactly_the_range, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	only_cached(dev, id, 0, 0);
	CHECK_OK(load(dev, &l, id, 16 * PAGE, 32 * PAGE, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, 32);
	CHECK_EQ(l.done, 32 * PAGE);
	CHECK_EQ(l.flags, RFS_LOAD_WAIT);
	only_cached(dev, id, 16, 48);
	check_path(up("f"), SEED, SIZE);
}

TEST(load_widens_to_whole_pages, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	CHECK_OK(load(dev, &l, id, 16 * PAGE + 4095, 2, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, 2);
	CHECK_EQ(l.done, 2);
	only_cached(dev, id, 16, 18);
}

TEST(load_without_waiting, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	CHECK_OK(load(dev, &l, id, 0, SIZE, 0));
	CHECK_EQ(l.done, SIZE);
	CHECK_EQ(l.loaded, NPAGES);
	for (int i = 0; i < 200 && resident(lo("f")) < NPAGES; i++)
		sleep_ms(10);
	only_cached(dev, id, 0, NPAGES);
	check_path(up("f"), SEED, SIZE);
}

TEST(load_partial_end_of_file, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	CHECK_OK(load(dev, &l, id, 2 * MIB, 50, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, 1);
	only_cached(dev, id, NPAGES - 1, NPAGES);
	check_map(up("f"), SEED, SIZE);
}

TEST(load_whole_file_and_beyond, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	CHECK_OK(load(dev, &l, id, 0, 1ull << 40, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, NPAGES);
	CHECK(l.done >= SIZE);
	CHECK(!(l.flags & RFS_LOAD_STOPPED));
	only_cached(dev, id, 0, NPAGES);
	check_map(up("f"), SEED, SIZE);
}

TEST(load_behind_the_end, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	CHECK_OK(load(dev, &l, id, SIZE + PAGE, MIB, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, 0);
	only_cached(dev, id, 0, 0);
}

TEST(load_of_cached_loads_nothing, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	warm(lo("f"));
	CHECK_OK(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, 0);
	CHECK_EQ(l.done, SIZE);
}

TEST(load_fills_holes, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	for (u64 i = 0; i < 64; i += 2)
		CHECK_OK(load(dev, &l, id, i * PAGE, PAGE, RFS_LOAD_WAIT));
	CHECK_EQ(cached(dev, id, 0, 64 * PAGE), 32);
	CHECK_OK(load(dev, &l, id, 0, 64 * PAGE, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, 32);
	only_cached(dev, id, 0, 64);
	check_path(up("f"), SEED, SIZE);
}

TEST(load_empty_file, 15)
{
	int dev;
	u64 id = cold(0, &dev);

	CHECK_OK(load(dev, &l, id, 0, MIB, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, 0);
}

TEST(load_makes_no_events, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	dev_mask(dev, K(OPEN) | K(CLOSE) | K(MISS) | K(TOUCH), 0);
	CHECK_OK(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT));
	CHECK_EQ(drain(dev)->n, 0);
	IN_CHILD(check_path(up("f"), SEED, SIZE));
	CHECK_EQ(pick(drain(dev), RFS_EVENT_MISS, 0)->n, 0);
}

TEST(load_64_mib, 30)
{
	int dev;
	u64 size = 64 * MIB, id = cold(size, &dev);

	CHECK_OK(load(dev, &l, id, 0, size, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, PAGES(size));
	CHECK_EQ(l.done, size);
	CHECK_EQ(resident(lo("f")), PAGES(size));
	check_map(up("f"), SEED, size);
}

TEST(load_of_unlinked_open_file, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);
	int fd = xopen(up("f"), O_RDONLY);

	CHECK_OK(unlink(lo("f")));
	CHECK_OK(load(dev, &l, id, 0, SIZE, RFS_LOAD_WAIT));
	CHECK_EQ(l.loaded, NPAGES);
	CHECK_EQ(cached(dev, id, 0, SIZE), NPAGES);
	check_fd(fd, SEED, SIZE);
}

TEST(load_large_is_right, 15)
{
	u64 size = 8 * MIB;
	int dev;
	u64 id = cold(size, &dev);

	/* The flag is a preference: without large folios the pages come small */
	CHECK_OK(load(dev, &l, id, 0, size, RFS_LOAD_LARGE | RFS_LOAD_WAIT));
	CHECK_EQ(resident(lo("f")), PAGES(size));
	CHECK_EQ(l.loaded, PAGES(size));
	check_map(up("f"), SEED, size);
}

/* Number of minor faults of the lower file's own mapping after a load */
static long faults_after(int dev, u64 id, u64 size, u32 flags)
{
	long n;

	drop(lo("f"));
	CHECK_OK(load(dev, &l, id, 0, size, flags | RFS_LOAD_WAIT));
	CHECK_EQ(resident(lo("f")), PAGES(size));
	check_map(lo("f"), SEED, MIB);
	n = minor_faults();
	check_map(lo("f"), SEED, size);
	return minor_faults() - n;
}

/* Does the lower file system make huge folios if a mapping asks for them? */
static bool lower_is_large(u64 size)
{
	u8 *p = xmap(xopen(lo("f"), O_RDONLY), 0, size, PROT_READ, MAP_SHARED);
	long n;

	drop(lo("f"));
	if (madvise(p, size, MADV_HUGEPAGE)) {
		CHECK_EQ(errno, EINVAL);
		return false;
	}
	CHECK_BYTES(p, SEED, 0, size);
	CHECK_OK(munmap(p, size));
	check_map(lo("f"), SEED, MIB);
	n = minor_faults();
	check_map(lo("f"), SEED, size);
	return minor_faults() - n < 64;
}

TEST(load_large_saves_faults, 20)
{
	struct rfs_hello h;
	u64 size = 8 * MIB;
	int dev;
	u64 id = cold(size, &dev);
	long small, large;

	get_hello(dev, &h);
	if (!(h.features & RFS_FEATURE_LARGE))
		SKIP("no large folios here");
	if (!lower_is_large(size))
		SKIP("the lower file system has no large folios");
	small = faults_after(dev, id, size, 0);
	large = faults_after(dev, id, size, RFS_LOAD_LARGE);
	printf("minor faults of 8 MiB: %ld after LOAD, %ld after LARGE\n",
	       small, large);
	CHECK(small >= 64);
	CHECK_LE(large, small / 2);
}

/* Eviction */

static u64 loaded(u64 size, int *dev)
{
	u64 id = cold(size, dev);

	CHECK_OK(load(*dev, &l, id, 0, size, RFS_LOAD_WAIT));
	CHECK_EQ(resident(lo("f")), PAGES(size));
	return id;
}

TEST(evict_whole_file, 15)
{
	int dev;
	u64 id = loaded(SIZE, &dev);

	CHECK_OK(evict(dev, &e, id, 0, SIZE, 0));
	CHECK_EQ(e.evicted, NPAGES);
	CHECK_EQ(e.kept, 0);
	only_cached(dev, id, 0, 0);
	check_path(up("f"), SEED, SIZE);
}

TEST(evict_beyond_the_end, 15)
{
	int dev;
	u64 id = loaded(SIZE, &dev);

	CHECK_OK(evict(dev, &e, id, SIZE + MIB, MIB, 0));
	CHECK_EQ(e.evicted, 0);
	CHECK_EQ(e.kept, 0);
	only_cached(dev, id, 0, NPAGES);
	CHECK_OK(evict(dev, &e, id, 0, 1ull << 50, 0));
	CHECK_EQ(e.evicted, NPAGES);
	CHECK_EQ(e.kept, 0);
}

TEST(evict_of_partial_pages, 15)
{
	static u8 vec[NPAGES];
	int dev;
	u64 id = loaded(SIZE, &dev);

	/* Of pages 0 to 3 only 1 and 2 are wholly inside */
	CHECK_OK(evict(dev, &e, id, 100, 3 * PAGE, 0));
	CHECK_EQ(e.evicted, 2);
	CHECK_EQ(e.kept, 0);
	CHECK_EQ(residency(lo("f"), vec), NPAGES - 2);
	CHECK(vec[0] && !vec[1] && !vec[2] && vec[3]);
	CHECK_OK(evict(dev, &e, id, 10 * PAGE + 1, PAGE, 0));
	CHECK_EQ(e.evicted, 0);
	CHECK(resident(lo("f")) == NPAGES - 2);
	check_map(up("f"), SEED, SIZE);
}

TEST(evict_last_page_when_range_reaches_it, 15)
{
	static u8 vec[NPAGES];
	int dev;
	u64 id = loaded(SIZE, &dev);

	CHECK_OK(evict(dev, &e, id, 2 * MIB, SIZE % PAGE - 1, 0));
	CHECK_EQ(e.evicted, 0);
	CHECK_OK(evict(dev, &e, id, 2 * MIB - PAGE, PAGE + SIZE % PAGE, 0));
	CHECK_EQ(e.evicted, 2);
	residency(lo("f"), vec);
	CHECK(!vec[NPAGES - 1] && !vec[NPAGES - 2] && vec[NPAGES - 3]);
}

TEST(evict_of_absent_pages, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);

	CHECK_OK(evict(dev, &e, id, 0, SIZE, 0));
	CHECK_EQ(e.evicted, 0);
	CHECK_EQ(e.kept, 0);
}

/* Children that map the file, touch all of it, and read it again when told to */

struct mappers {
	pid_t pid[4];
	int n, go[2], done[2];
};

static void mapper(const struct mappers *m, u64 len, bool write_private)
{
	int fd = xopen(up("f"), O_RDONLY);
	u8 *p = xmap(fd, 0, len, PROT_READ | (write_private ? PROT_WRITE : 0),
		     write_private ? MAP_PRIVATE : MAP_SHARED);
	char c = 0;

	close(fd);
	CHECK_BYTES(p, SEED, 0, len);
	if (write_private)
		pat_fill(p + 3 * PAGE, SEED + 1, 3 * PAGE, PAGE);
	CHECK_EQ(write(m->done[1], &c, 1), 1);
	CHECK_EQ(read(m->go[0], &c, 1), 1);
	CHECK_BYTES(p, SEED, 0, 3 * PAGE);
	CHECK_BYTES(p + 3 * PAGE, SEED + write_private, 3 * PAGE, PAGE);
	CHECK_BYTES(p + 4 * PAGE, SEED, 4 * PAGE, len - 4 * PAGE);
}

static void mappers_start(struct mappers *m, int n, u64 len, bool private)
{
	char c;

	m->n = n;
	CHECK_OK(pipe(m->go));
	CHECK_OK(pipe(m->done));
	for (int i = 0; i < n; i++) {
		m->pid[i] = t_fork();
		if (!m->pid[i]) {
			mapper(m, len, private);
			_exit(T_PASS);
		}
	}
	close(m->done[1]);
	for (int i = 0; i < n; i++)
		CHECK_EQ(read(m->done[0], &c, 1), 1);
}

static void mappers_end(struct mappers *m)
{
	CHECK_EQ(write(m->go[1], "1234", m->n), m->n);
	for (int i = 0; i < m->n; i++)
		JOIN(m->pid[i]);
}

TEST(evict_pages_mapped_by_four_processes, 20)
{
	struct mappers m;
	int dev;
	u64 id = loaded(SIZE, &dev);

	mappers_start(&m, 4, SIZE, false);
	CHECK_OK(evict(dev, &e, id, 0, SIZE, 0));
	CHECK_EQ(e.evicted, NPAGES);
	CHECK_EQ(e.kept, 0);
	only_cached(dev, id, 0, 0);
	mappers_end(&m);
	CHECK_EQ(resident(lo("f")), NPAGES);
}

TEST(evict_private_copies_survive, 20)
{
	struct mappers m;
	int dev;
	u64 id = loaded(SIZE, &dev);

	mappers_start(&m, 2, SIZE, true);
	CHECK_OK(evict(dev, &e, id, 0, SIZE, 0));
	CHECK_EQ(e.kept, 0);
	only_cached(dev, id, 0, 0);
	mappers_end(&m);
	check_path(lo("f"), SEED, SIZE);
}

TEST(evict_unmapped_leaves_mapped_pages, 20)
{
	struct mappers m;
	int dev;
	u64 size = 4 * MIB, id = loaded(size, &dev);

	mappers_start(&m, 1, 2 * MIB, false);
	CHECK_OK(evict(dev, &e, id, 0, size, RFS_EVICT_UNMAPPED));
	CHECK_EQ(e.evicted, 512);
	CHECK_EQ(e.kept, 512);
	CHECK_EQ(cached(dev, id, 0, 2 * MIB), 512);
	CHECK_EQ(cached(dev, id, 2 * MIB, 2 * MIB), 0);
	mappers_end(&m);
	CHECK_OK(evict(dev, &e, id, 0, size, RFS_EVICT_UNMAPPED));
	CHECK_EQ(e.evicted, 512);
	CHECK_EQ(e.kept, 0);
}

TEST(evict_mapped_range_only, 20)
{
	struct mappers m;
	int dev;
	u64 id = loaded(SIZE, &dev);

	mappers_start(&m, 2, SIZE, false);
	CHECK_OK(evict(dev, &e, id, 64 * PAGE, 64 * PAGE, 0));
	CHECK_EQ(e.evicted, 64);
	CHECK_EQ(cached(dev, id, 64 * PAGE, 64 * PAGE), 0);
	CHECK_EQ(cached(dev, id, 0, SIZE), NPAGES - 64);
	mappers_end(&m);
}

/* Touches all of it; returns how many faults that took */
static long touch_faults(u8 *p, u64 len)
{
	long n = minor_faults();

	CHECK_BYTES(p, SEED, 0, len);
	return minor_faults() - n;
}

static void evict_beside_lock(int flags)
{
	u64 size = 4 * MIB, locked = MIB + 3 * PAGE;
	int dev;
	u64 id = loaded(size, &dev);
	int fd = xopen(up("f"), O_RDONLY);
	u8 *p = xmap(fd, 0, size, PROT_READ, flags);

	CHECK_BYTES(p, SEED, 0, size);
	CHECK_OK(mlock(p, 4 * PAGE));
	CHECK_OK(mlock(p + 8 * PAGE, locked - 8 * PAGE));
	CHECK_OK(evict(dev, &e, id, 0, size, 0));
	CHECK_EQ(e.kept, PAGES(locked) - 4);
	CHECK_EQ(cached(dev, id, 0, 4 * PAGE), 4);
	CHECK_EQ(cached(dev, id, 4 * PAGE, 4 * PAGE), 0);
	CHECK_EQ(cached(dev, id, 8 * PAGE, size), PAGES(locked) - 8);
	CHECK_EQ(touch_faults(p, 4 * PAGE), 0);
	CHECK_OK(munlock(p, size));
	CHECK_OK(evict(dev, &e, id, 0, size, 0));
	CHECK_EQ(e.kept, 0);
	check_map(up("f"), SEED, size);
}

TEST(evict_keeps_locked_pages, 15)
{
	evict_beside_lock(MAP_SHARED);
}

TEST(evict_keeps_pages_locked_in_private_mappings, 15)
{
	evict_beside_lock(MAP_PRIVATE);
}

/* More locked ranges than EVICT finds at a time */
TEST(evict_keeps_each_of_many_locked_pages, 15)
{
	u64 n = 100;
	int dev;
	u64 id = loaded(SIZE, &dev);
	u8 *p = xmap(xopen(up("f"), O_RDONLY), 0, SIZE, PROT_READ, MAP_SHARED);

	CHECK_BYTES(p, SEED, 0, SIZE);
	for (u64 i = 0; i < n; i++)
		CHECK_OK(mlock(p + 2 * i * PAGE, PAGE));
	CHECK_OK(evict(dev, &e, id, 0, SIZE, 0));
	CHECK_EQ(e.kept, n);
	CHECK_EQ(e.evicted, NPAGES - n);
	for (u64 i = 0; i < n; i++)
		CHECK_EQ(cached(dev, id, 2 * i * PAGE, 2 * PAGE), 1);
}

TEST(evict_keeps_dirty_pages, 15)
{
	static char buf[LARGEST_PAGE];
	int dev;
	u64 id = loaded(SIZE, &dev), gone = 0;
	int fd = xopen(lo("f"), O_WRONLY);

	write_pat(fd, SEED + 1, 5 * PAGE, PAGE);
	/* A clean page may be busy for a moment, a dirty one stays */
	for (int i = 0; i < 5; i++) {
		CHECK_OK(evict(dev, &e, id, 0, SIZE, 0));
		gone += e.evicted;
		if (e.kept <= 1)
			break;
	}
	CHECK_EQ(e.kept, 1);
	CHECK_EQ(gone, NPAGES - 1);
	only_cached(dev, id, 5, 6);
	CHECK_OK(fsync(fd));
	CHECK_OK(evict(dev, &e, id, 0, SIZE, 0));
	CHECK_EQ(e.kept, 0);
	CHECK_EQ(e.evicted, 1);
	CHECK_EQ(pread(xopen(up("f"), O_RDONLY), buf, PAGE, 5 * PAGE), PAGE);
	CHECK_BYTES(buf, SEED + 1, 5 * PAGE, PAGE);
}

TEST(evict_of_large_folios, 15)
{
	u64 size = 4 * MIB;
	int dev;
	u64 id = cold(size, &dev);

	CHECK_OK(load(dev, &l, id, 0, size, RFS_LOAD_LARGE | RFS_LOAD_WAIT));
	CHECK_EQ(resident(lo("f")), PAGES(size));
	/* A range inside a folio goes with it, stays with it, or splits it */
	CHECK_OK(evict(dev, &e, id, 3 * PAGE, 2 * PAGE, 0));
	CHECK_EQ(cached(dev, id, 3 * PAGE, 2 * PAGE), e.kept);
	CHECK_OK(evict(dev, &e, id, 0, size, 0));
	CHECK_EQ(e.kept, 0);
	CHECK_EQ(resident(lo("f")), 0);
	check_map(up("f"), SEED, size);
}

/* Residency */

TEST(resident_of_parts, 15)
{
	int dev;
	u64 id = cold(SIZE, &dev);
	struct rfs_resident r = { .size = sizeof(r), .file = id };

	CHECK_OK(load(dev, &l, id, 8 * PAGE, 8 * PAGE, RFS_LOAD_WAIT));
	CHECK_EQ(cached(dev, id, 0, 8 * PAGE), 0);
	CHECK_EQ(cached(dev, id, 0, 8 * PAGE + 1), 1);
	CHECK_EQ(cached(dev, id, 9 * PAGE + 7, PAGE), 2);
	CHECK_EQ(cached(dev, id, 16 * PAGE, MIB), 0);
	r.offset = 9 * PAGE + 7;
	r.length = PAGE;
	CHECK_OK(ioctl(dev, RFS_IOC_RESIDENT, &r));
	CHECK_EQ(r.pages, 2);
	r.length = 1ull << 40;
	CHECK_OK(ioctl(dev, RFS_IOC_RESIDENT, &r));
	CHECK_EQ(r.pages, NPAGES - 9);
	r.offset = SIZE;
	CHECK_OK(ioctl(dev, RFS_IOC_RESIDENT, &r));
	CHECK_EQ(r.pages, 0);
	CHECK_EQ(r.cached, 0);
}

TEST(resident_as_mincore, 15)
{
	static u8 vec[NPAGES], bits[NPAGES / 8 + 1];
	int dev;
	u64 id = cold(SIZE, &dev), state = 5;
	struct rfs_resident r = {
		.size = sizeof(r), .file = id, .length = SIZE,
		.bitmap = (u64)(unsigned long)bits, .bitmap_len = sizeof(bits),
	};

	for (int i = 0; i < 60; i++)
		CHECK_OK(load(dev, &l, id, next_rand(&state) % SIZE,
			      next_rand(&state) % (4 * PAGE) + 1,
			      RFS_LOAD_WAIT));
	CHECK_OK(ioctl(dev, RFS_IOC_RESIDENT, &r));
	CHECK_EQ(residency(lo("f"), vec), r.cached);
	CHECK(r.cached > 60 && r.cached < NPAGES);
	for (u64 i = 0; i < NPAGES; i++)
		CHECK_EQ(bits[i / 8] >> i % 8 & 1, vec[i]);
}

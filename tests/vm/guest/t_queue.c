// SPDX-License-Identifier: GPL-2.0
/* The queue behind the device: mask, merging, progress, loss. */
#include "t.h"

#define SEED 0x9ee0e
#define SIZE (64 * PAGE)

static u64 cold_named(const char *name)
{
	mk_file(lo(name), SEED, SIZE);
	drop(lo(name));
	return path_id(up(name));
}

static u64 cold(void)
{
	ra_off();
	setup();
	return cold_named("f");
}

static void reader(const char *path, u64 off, u64 len)
{
	static char buf[4 * MIB];
	int fd = xopen(path, O_RDONLY);

	CHECK_EQ(pread(fd, buf, len, off), len);
	CHECK_BYTES(buf, SEED, off, len);
	close(fd);
}

/* The mask */

TEST(mask_nothing_before_it, 15)
{
	int dev;

	cold();
	dev = dev_open(t_mnt, O_NONBLOCK);
	IN_CHILD(reader(up("f"), 0, SIZE));
	CHECK_EQ(drain(dev)->n, 0);
}

static void one_kind(int kind, int want)
{
	u64 id = cold();
	int dev = dev_masked(1u << kind);
	struct evs *s;

	IN_CHILD(reader(up("f"), 0, 8 * PAGE));
	s = drain(dev);
	CHECK_EQ(s->n, want);
	CHECK_EQ(pick(s, kind, id)->n, want);
	dev_mask(dev, 0, 0);
	IN_CHILD(reader(up("f"), 8 * PAGE, 8 * PAGE));
	CHECK_EQ(drain(dev)->n, 0);
}

TEST(mask_open_only, 15)
{
	one_kind(RFS_EVENT_OPEN, 1);
}

TEST(mask_close_only, 15)
{
	one_kind(RFS_EVENT_CLOSE, 1);
}

TEST(mask_miss_only, 15)
{
	one_kind(RFS_EVENT_MISS, 1);
}

TEST(mask_touch_only, 15)
{
	one_kind(RFS_EVENT_TOUCH, 1);
}

static int mask(int dev, u32 kinds, u64 progress)
{
	struct rfs_mask m = {
		.size = sizeof(m), .kinds = kinds, .progress_bytes = progress,
	};

	return ioctl(dev, RFS_IOC_MASK, &m);
}

TEST(mask_progress_needs_bytes, 15)
{
	int dev;

	setup();
	dev = dev_open(t_mnt, 0);
	CHECK_ERR(mask(dev, K(PROGRESS), 0), EINVAL);
	CHECK_ERR(mask(dev, K(PROGRESS), 64 * KIB - 1), EINVAL);
	CHECK_OK(mask(dev, K(PROGRESS), 64 * KIB));
	CHECK_ERR(mask(dev, K(MISS), 64 * KIB), EINVAL);
	CHECK_OK(mask(dev, K(MISS), 0));
}

TEST(mask_refused_leaves_the_old_one, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));

	CHECK_ERR(mask(dev, 1u << 31, 0), EINVAL);
	IN_CHILD(reader(up("f"), 0, PAGE));
	only(drain(dev), RFS_EVENT_MISS, id);
}

/* Merging */

TEST(merge_neighbours, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	struct rfs_event *e;

	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 char buf[PAGE];
		 for (int i = 0; i < 5; i++)
			CHECK_EQ(read(fd, buf, PAGE), PAGE));
	e = only(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(e->offset, 0);
	CHECK_EQ(e->length, 5 * PAGE);
	CHECK_EQ(e->count, 5);
}

TEST(merge_backward_neighbours_or_not, 15)
{
	u64 id = cold(), sum = 0;
	int dev = dev_masked(K(MISS));
	struct evs *s;

	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 char buf[PAGE];
		 for (int i = 4; i >= 0; i--)
			CHECK_EQ(pread(fd, buf, PAGE, i * PAGE), PAGE));
	s = pick(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(total_count(s), 5);
	for (int i = 0; i < s->n; i++)
		sum += s->e[i].length;
	CHECK_EQ(sum, 5 * PAGE);
	CHECK_EQ(s->e[s->n - 1].offset, 0);
}

TEST(merge_overlapping_touches, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(TOUCH));
	struct rfs_event *e;

	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 char buf[1000];
		 for (int i = 0; i < 10; i++)
			CHECK_EQ(pread(fd, buf, 1000, i * 500), 1000));
	e = only(drain(dev), RFS_EVENT_TOUCH, id);
	CHECK_EQ(e->offset, 0);
	CHECK_EQ(e->length, 5500);
	CHECK_EQ(e->count, 10);
}

TEST(merge_not_over_a_gap, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	struct evs *s;

	IN_CHILD(reader(up("f"), 0, PAGE);
		 reader(up("f"), 2 * PAGE, PAGE));
	s = pick(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(s->n, 2);
	CHECK_EQ(s->e[0].offset, 0);
	CHECK_EQ(s->e[1].offset, 2 * PAGE);
}

TEST(merge_not_across_files, 15)
{
	u64 f = cold(), g = cold_named("g");
	int dev = dev_masked(K(MISS));
	struct evs *s;

	IN_CHILD(for (int i = 0; i < 3; i++) {
			reader(up("f"), i * PAGE, PAGE);
			reader(up("g"), i * PAGE, PAGE);
		 });
	s = drain(dev);
	CHECK_EQ(s->n, 6);
	CHECK_EQ(pick(s, RFS_EVENT_MISS, f)->n, 3);
	CHECK_EQ(pick(s, RFS_EVENT_MISS, g)->n, 3);
	for (int i = 0; i < 6; i++) {
		CHECK_EQ(s->e[i].count, 1);
		CHECK_EQ(s->e[i].offset, i / 2 * PAGE);
	}
}

TEST(merge_not_across_processes, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	struct evs *s;

	IN_CHILD(reader(up("f"), 0, PAGE));
	IN_CHILD(reader(up("f"), PAGE, PAGE));
	s = pick(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(s->n, 2);
	CHECK(s->e[0].tgid != s->e[1].tgid);
	CHECK_EQ(s->e[0].length, PAGE);
	CHECK_EQ(s->e[1].length, PAGE);
}

TEST(merge_not_reads_with_faults, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS));
	struct evs *s;

	IN_CHILD(int fd = xopen(up("f"), O_RDONLY);
		 u8 *p = xmap(fd, 0, SIZE, PROT_READ, MAP_SHARED);
		 CHECK_OK(madvise(p, SIZE, MADV_RANDOM));
		 reader(up("f"), 0, PAGE);
		 CHECK_BYTES(p + PAGE, SEED, PAGE, 8));
	s = pick(drain(dev), RFS_EVENT_MISS, id);
	CHECK_EQ(s->n, 2);
	CHECK_EQ(s->e[0].flags, 0);
	CHECK_EQ(s->e[1].flags, RFS_EV_MMAP);
}

TEST(merge_not_after_delivery, 15)
{
	u64 id = cold();
	int dev = dev_masked(K(MISS)), go[2], done[2];
	struct evs *a, *b;
	char c = 0;
	pid_t pid;

	CHECK_OK(pipe(go));
	CHECK_OK(pipe(done));
	pid = t_fork();
	if (!pid) {
		reader(up("f"), 0, PAGE);
		CHECK_EQ(write(done[1], &c, 1), 1);
		CHECK_EQ(read(go[0], &c, 1), 1);
		reader(up("f"), PAGE, PAGE);
		_exit(T_PASS);
	}
	CHECK_EQ(read(done[0], &c, 1), 1);
	a = drain(dev);
	CHECK_EQ(write(go[1], &c, 1), 1);
	JOIN(pid);
	b = drain(dev);
	CHECK_EQ(only(a, RFS_EVENT_MISS, id)->offset, 0);
	CHECK_EQ(only(b, RFS_EVENT_MISS, id)->offset, PAGE);
	CHECK_EQ(b->e[0].count, 1);
}

/* Progress */

#define BIG (8 * MIB)

static u64 big(bool is_warm, int *dev)
{
	u64 id;

	setup();
	mk_file(lo("b"), SEED, BIG);
	if (is_warm)
		warm(lo("b"));
	else
		drop(lo("b"));
	id = path_id(up("b"));
	*dev = dev_open(t_mnt, O_NONBLOCK);
	dev_mask(*dev, K(PROGRESS), MIB);
	return id;
}

static void progress_by_read(bool is_warm)
{
	int dev;
	u64 id = big(is_warm, &dev);
	struct evs *s, *p;

	IN_CHILD(int fd = xopen(up("b"), O_RDONLY);
		 static char buf[64 * 1024];
		 while (read(fd, buf, sizeof(buf)) > 0)
			;);
	s = drain(dev);
	p = pick(s, RFS_EVENT_PROGRESS, id);
	CHECK_EQ(p->n, 8);
	CHECK_EQ(s->n, 8);
	for (int i = 0; i < 8; i++) {
		CHECK_EQ(p->e[i].offset, (i + 1) * MIB);
		CHECK_EQ(p->e[i].length, MIB);
		CHECK_EQ(p->e[i].flags, 0);
		CHECK_EQ(p->e[i].count, 1);
	}
}

TEST(progress_by_read_cold, 20)
{
	progress_by_read(false);
}

TEST(progress_by_read_warm, 20)
{
	progress_by_read(true);
}

TEST(progress_by_one_large_read, 20)
{
	int dev;
	u64 id = big(true, &dev), sum = 0;
	struct evs *p;

	IN_CHILD(reader(up("b"), MIB, 4 * MIB));
	p = pick(drain(dev), RFS_EVENT_PROGRESS, id);
	CHECK(p->n >= 1 && p->n <= 4);
	for (int i = 0; i < p->n; i++)
		sum += p->e[i].length;
	CHECK_EQ(sum, 4 * MIB);
	CHECK_EQ(p->e[p->n - 1].offset, 5 * MIB);
}

TEST(progress_by_mapping, 20)
{
	int dev;
	u64 id = big(true, &dev), sum = 0;
	struct evs *p;

	IN_CHILD(check_map(up("b"), SEED, BIG));
	p = pick(drain(dev), RFS_EVENT_PROGRESS, id);
	CHECK(p->n >= 2 && p->n <= 8);
	for (int i = 0; i < p->n; i++) {
		CHECK_EQ(p->e[i].flags, RFS_EV_MMAP);
		CHECK_LE(p->e[i].offset, BIG);
		sum += p->e[i].length;
	}
	CHECK_LE(sum, BIG);
	CHECK(sum > BIG - 2 * MIB);
}

TEST(progress_is_per_process, 20)
{
	int dev;
	u64 id = big(true, &dev);
	struct rfs_event *e;
	pid_t pid;

	for (int i = 0; i < 3; i++)
		IN_CHILD(reader(up("b"), i * MIB, MIB / 2));
	CHECK_EQ(drain(dev)->n, 0);
	pid = t_fork();
	if (!pid) {
		reader(up("b"), MIB, MIB);
		_exit(T_PASS);
	}
	JOIN(pid);
	e = only(drain(dev), RFS_EVENT_PROGRESS, id);
	CHECK_EQ(e->tgid, pid);
	CHECK_EQ(e->offset, 2 * MIB);
	CHECK_EQ(e->length, MIB);
}

TEST(progress_is_per_file, 20)
{
	int dev;
	u64 id = big(true, &dev);

	mk_file(lo("c"), SEED, 2 * MIB);
	IN_CHILD(reader(up("b"), 0, MIB / 2);
		 reader(up("c"), 0, MIB / 2);
		 reader(up("b"), MIB / 2, MIB / 4);
		 reader(up("c"), MIB / 2, MIB / 4));
	CHECK_EQ(drain(dev)->n, 0);
	IN_CHILD(reader(up("b"), 0, MIB);
		 reader(up("c"), 0, MIB / 2));
	only(drain(dev), RFS_EVENT_PROGRESS, id);
}

/* Loss */

/* Makes n events that cannot merge: reads single bytes of two files in turn */
static void flood(u64 n)
{
	int fd[2] = { xopen(up("f"), O_RDONLY), xopen(up("g"), O_RDONLY) };
	char want[2], c = 0;

	CHECK_EQ(pread(xopen(lo("f"), O_RDONLY), want, 2, 0), 2);
	for (u64 i = 0; i < n; i++) {
		if (pread(fd[i & 1], &c, 1, i >> 1 & 1) != 1 ||
		    c != want[i >> 1 & 1])
			t_fail(__FILE__, __LINE__, "wrong byte in round %llu",
			       (unsigned long long)i);
	}
}

static int flood_setup(void)
{
	setup();
	cold_named("f");
	cold_named("g");
	warm(lo("f"));
	warm(lo("g"));
	return dev_masked(K(TOUCH));
}

/* Number of events for a flood: a fifth of most on a slow machine, because a debug kernel would take five minutes */
static u64 flood_size(u64 most)
{
	u64 t = now_ns();

	if (stretched(1) > 1)
		return most / 5;
	IN_CHILD(flood(5000));
	t = now_ns() - t;
	return t * (most / 5000) < 40000000000ull ? most : most / 5;
}

static void flooded(u64 want)
{
	int dev = flood_setup(), cpus = sysconf(_SC_NPROCESSORS_CONF);
	struct rfs_stats st0, st;
	struct rfs_hello h;
	struct evs *s;
	u64 n;

	get_hello(dev, &h);
	n = flood_size(want);
	drain(dev);
	get_stats(dev, &st0);
	CHECK_EQ(st0.queued, 0);
	IN_CHILD(flood(n));
	get_stats(dev, &st);
	CHECK_LE(st.queue_bytes, (u64)h.queue_bytes * cpus);
	CHECK_EQ(st.events - st0.events, n);
	s = drain(dev);
	CHECK_EQ(total_count(s), n);
	CHECK_EQ(pick(s, RFS_EVENT_TOUCH, 0)->n +
		 pick(s, RFS_EVENT_LOST, 0)->n, s->n);
	CHECK_EQ(total_count(pick(s, RFS_EVENT_LOST, 0)), st.lost - st0.lost);
	CHECK_EQ(st.merged - st0.merged, 0);
	printf("%llu events, %llu lost, %llu bytes of queues\n",
	       (unsigned long long)n, (unsigned long long)(st.lost - st0.lost),
	       (unsigned long long)st.queue_bytes);
	if (n > 100000)
		CHECK(st.lost > st0.lost);
	check_path(up("f"), SEED, SIZE);
	get_stats(dev, &st);
	CHECK_EQ(st.queued, 0);
}

TEST(flood, 60)
{
	flooded(50000);
}

TEST(flood_million, 150)
{
	flooded(1000000);
}

/* Floods CPU 0 until an event is lost; returns how many were made */
static u64 flood_until_lost(int dev)
{
	struct rfs_stats st;
	u64 n = 0;

	do {
		IN_CHILD(flood(10000));
		n += 10000;
		get_stats(dev, &st);
		CHECK(n < 2000000);
	} while (!st.lost);
	return n;
}

TEST(lost_stands_where_it_happened, 60)
{
	int dev = flood_setup();
	static struct rfs_event few[64];
	struct evs *s, *lost;
	u64 n = flood_until_lost(dev), got;
	int at = -1, marks = 0;

	/* Make room again: events from now on stand behind the loss */
	got = CHECK_OK(read(dev, few, sizeof(few))) / sizeof(few[0]);
	CHECK_EQ(got, 64);
	IN_CHILD(reader(up("f"), 8 * PAGE, PAGE));
	s = drain(dev);
	lost = pick(s, RFS_EVENT_LOST, 0);
	CHECK(lost->n >= 1);
	for (int i = 0; i < s->n; i++) {
		if (s->e[i].kind == RFS_EVENT_LOST)
			at = i;
		if (s->e[i].offset == 8 * PAGE) {
			CHECK(at >= 0);
			marks++;
		} else if (s->e[i].kind == RFS_EVENT_TOUCH) {
			CHECK(at < 0 || marks == 0);
		}
	}
	CHECK_EQ(marks, 1);
	CHECK_EQ(total_count(s) + got, n + 1);
}

TEST(queue_grows_and_shrinks, 60)
{
	int dev = flood_setup();
	struct rfs_stats a, b, c;

	get_stats(dev, &a);
	IN_CHILD(flood(8000));
	get_stats(dev, &b);
	CHECK(b.queue_bytes > a.queue_bytes);
	CHECK(b.queue_bytes >= b.queued * sizeof(struct rfs_event));
	CHECK_EQ(drain(dev)->n, 8000);
	get_stats(dev, &c);
	CHECK_LE(c.queue_bytes, b.queue_bytes / 2);
	CHECK_EQ(c.queued, 0);
	CHECK_EQ(c.delivered - a.delivered, 8000);
}

TEST(queue_keeps_order_of_a_cpu, 30)
{
	int dev = flood_setup();
	struct evs *s;

	IN_CHILD(flood(8000));
	s = drain(dev);
	CHECK_EQ(s->n, 8000);
	for (int i = 1; i < s->n; i++) {
		CHECK(s->e[i].time_ns >= s->e[i - 1].time_ns);
		CHECK(s->e[i].file != s->e[i - 1].file);
		CHECK_EQ(s->e[i].offset, i >> 1 & 1);
	}
}

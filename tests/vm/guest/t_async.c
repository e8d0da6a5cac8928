// SPDX-License-Identifier: GPL-2.0
/* Direct and asynchronous reads: O_DIRECT, native aio, io_uring. */
#include "t.h"
#include <linux/aio_abi.h>
#include <linux/io_uring.h>

#define SEED 0xa51c
#define SIZE (4 * MIB)
#define N 64
#define CHUNK (SIZE / N)

static void *aligned(size_t len)
{
	void *p = mmap(NULL, len, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

static int cold(int flags)
{
	mk_file(lo("f"), SEED, SIZE);
	setup();
	drop(lo("f"));
	return xopen(up("f"), flags);
}

TEST(direct_read_sync, 15)
{
	int fd = cold(O_RDONLY | O_DIRECT);
	u8 *p = aligned(SIZE);

	CHECK_EQ(read(fd, p, 64 * KIB), 64 * KIB);
	CHECK_EQ(pread(fd, p + 64 * KIB, SIZE - 64 * KIB, 64 * KIB),
		 SIZE - 64 * KIB);
	CHECK_BYTES(p, SEED, 0, SIZE);
	CHECK_EQ(pread(fd, p, PAGE, SIZE), 0);
	CHECK_EQ(resident(lo("f")), 0);
}

TEST(direct_read_tail_is_short, 15)
{
	u8 *p = aligned(8 * PAGE);
	int fd;

	mk_file(lo("f"), SEED, 3 * PAGE + 77);
	setup();
	drop(lo("f"));
	fd = xopen(up("f"), O_RDONLY | O_DIRECT);
	CHECK_EQ(pread(fd, p, 8 * PAGE, 0), 3 * PAGE + 77);
	CHECK_BYTES(p, SEED, 0, 3 * PAGE + 77);
}

TEST(direct_unaligned_as_lower, 15)
{
	int fd = cold(O_RDONLY | O_DIRECT);
	int low = xopen(lo("f"), O_RDONLY | O_DIRECT);
	u8 *p = aligned(2 * PAGE);
	ssize_t want = pread(low, p + 1, 100, 3);
	int err = errno;
	ssize_t got = pread(fd, p + 1, 100, 3);

	CHECK_EQ(got, want);
	if (want < 0)
		CHECK_EQ(errno, err);
	else
		CHECK_BYTES(p + 1, SEED, 3, got);
}

TEST(direct_by_fcntl, 15)
{
	int fd = cold(O_RDONLY);
	u8 *p = aligned(64 * KIB);

	CHECK_OK(fcntl(fd, F_SETFL, O_DIRECT));
	CHECK(fcntl(fd, F_GETFL) & O_DIRECT);
	CHECK_EQ(pread(fd, p, 64 * KIB, 0), 64 * KIB);
	CHECK_BYTES(p, SEED, 0, 64 * KIB);
	CHECK_EQ(resident(lo("f")), 0);
	CHECK_OK(fcntl(fd, F_SETFL, 0));
	check_fd(fd, SEED, SIZE);
	CHECK_EQ(resident(lo("f")), PAGES(SIZE));
}

TEST(direct_denied_on_open, 15)
{
	mk_file(lo("f"), SEED, SIZE);
	must_mount_rfs(t_lower, t_mnt, "odirect=deny");
	CHECK_ERR(open(up("f"), O_RDONLY | O_DIRECT), EINVAL);
	check_path(up("f"), SEED, SIZE);
}

TEST(direct_denied_on_fcntl, 15)
{
	int fd;

	mk_file(lo("f"), SEED, SIZE);
	must_mount_rfs(t_lower, t_mnt, "odirect=deny");
	fd = xopen(up("f"), O_RDONLY);
	CHECK_ERR(fcntl(fd, F_SETFL, O_DIRECT), EINVAL);
	CHECK_EQ(fcntl(fd, F_GETFL) & O_DIRECT, 0);
	check_fd(fd, SEED, SIZE);
}

/* Native aio */

static void aio_open(int n, aio_context_t *ctx)
{
	if (syscall(SYS_io_setup, n, ctx)) {
		CHECK_EQ(errno, ENOSYS);
		SKIP("no aio");
	}
}

static void aio_reads(int fd)
{
	u8 *p = aligned(SIZE);
	struct iocb cb[N], *cbs[N];
	struct io_event ev[N];
	aio_context_t ctx = 0;
	int done = 0;

	aio_open(N, &ctx);
	for (int i = 0; i < N; i++) {
		cb[i] = (struct iocb){
			.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd,
			.aio_buf = (u64)(unsigned long)(p + i * CHUNK),
			.aio_nbytes = CHUNK, .aio_offset = i * CHUNK,
			.aio_data = i,
		};
		cbs[i] = &cb[i];
	}
	CHECK_EQ(syscall(SYS_io_submit, ctx, N, cbs), N);
	while (done < N) {
		long n = CHECK_OK(syscall(SYS_io_getevents, ctx, 1, N, ev,
					  NULL));

		for (long i = 0; i < n; i++)
			CHECK_EQ(ev[i].res, CHUNK);
		done += n;
	}
	CHECK_BYTES(p, SEED, 0, SIZE);
	CHECK_OK(syscall(SYS_io_destroy, ctx));
}

TEST(aio_direct_64_in_flight, 20)
{
	aio_reads(cold(O_RDONLY | O_DIRECT));
}

TEST(aio_buffered, 20)
{
	aio_reads(cold(O_RDONLY));
}

TEST(aio_closed_while_in_flight, 20)
{
	int fd = cold(O_RDONLY | O_DIRECT);
	u8 *p = aligned(CHUNK);
	struct iocb cb = {
		.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd,
		.aio_buf = (u64)(unsigned long)p, .aio_nbytes = CHUNK,
	}, *cbs = &cb;
	aio_context_t ctx = 0;
	struct io_event ev;

	aio_open(1, &ctx);
	CHECK_EQ(syscall(SYS_io_submit, ctx, 1, &cbs), 1);
	CHECK_OK(close(fd));
	CHECK_EQ(syscall(SYS_io_getevents, ctx, 1, 1, &ev, NULL), 1);
	CHECK_EQ(ev.res, CHUNK);
	CHECK_BYTES(p, SEED, 0, CHUNK);
	CHECK_OK(syscall(SYS_io_destroy, ctx));
}

/* io_uring */

struct ring {
	int fd;
	u32 *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
};

static void ring_open(struct ring *r)
{
	struct io_uring_params p = { 0 };
	u8 *sq, *cq;

	r->fd = syscall(NR_io_uring_setup, N, &p);
	if (r->fd < 0) {
		CHECK_EQ(errno, ENOSYS);
		SKIP("no io_uring");
	}
	sq = xmap(r->fd, IORING_OFF_SQ_RING, p.sq_off.array + N * 4,
		  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE);
	cq = xmap(r->fd, IORING_OFF_CQ_RING,
		  p.cq_off.cqes + p.cq_entries * sizeof(*r->cqe),
		  PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE);
	r->sqe = xmap(r->fd, IORING_OFF_SQES, N * sizeof(*r->sqe),
		      PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE);
	r->sq_tail = (u32 *)(sq + p.sq_off.tail);
	r->sq_mask = (u32 *)(sq + p.sq_off.ring_mask);
	r->sq_array = (u32 *)(sq + p.sq_off.array);
	r->cq_head = (u32 *)(cq + p.cq_off.head);
	r->cq_tail = (u32 *)(cq + p.cq_off.tail);
	r->cq_mask = (u32 *)(cq + p.cq_off.ring_mask);
	r->cqe = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
}

/* Reads the whole file by N reads that are all in flight at once */
static void ring_reads(int fd, int flags)
{
	struct ring r;
	u8 *p = aligned(SIZE);
	u32 head, done = 0;
	u64 seen = 0;

	ring_open(&r);
	for (u32 i = 0; i < N; i++) {
		r.sqe[i] = (struct io_uring_sqe){
			.opcode = IORING_OP_READ, .fd = fd, .flags = flags,
			.addr = (u64)(unsigned long)(p + i * CHUNK),
			.len = CHUNK, .off = i * CHUNK, .user_data = i,
		};
		r.sq_array[i] = i;
	}
	__atomic_store_n(r.sq_tail, N, __ATOMIC_RELEASE);
	CHECK_EQ(syscall(NR_io_uring_enter, r.fd, N, N,
			 IORING_ENTER_GETEVENTS, NULL, 0), N);
	for (head = *r.cq_head;
	     head != __atomic_load_n(r.cq_tail, __ATOMIC_ACQUIRE); head++) {
		struct io_uring_cqe *c = &r.cqe[head & *r.cq_mask];

		CHECK_EQ(c->res, CHUNK);
		seen |= 1ull << c->user_data;
		done++;
	}
	CHECK_EQ(done, N);
	CHECK_EQ(seen, ~0ull);
	CHECK_BYTES(p, SEED, 0, SIZE);
	close(r.fd);
}

TEST(io_uring_buffered_cold, 20)
{
	ring_reads(cold(O_RDONLY), 0);
}

TEST(io_uring_buffered_warm, 20)
{
	int fd = cold(O_RDONLY);

	warm(lo("f"));
	ring_reads(fd, 0);
}

TEST(io_uring_buffered_by_workers, 20)
{
	ring_reads(cold(O_RDONLY), IOSQE_ASYNC);
}

/* Number of threads that io_uring has started for reads it could not complete inline */
static int workers(void)
{
	DIR *d = opendir("/proc/self/task");
	struct dirent *e;
	int n = 0;

	CHECK(d);
	while ((e = readdir(d))) {
		char path[300], comm[32] = "";

		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		if (e->d_name[0] != '.' && get_str(path, comm, sizeof(comm)) > 0)
			n += !strncmp(comm, "iou-wrk", 7);
	}
	closedir(d);
	return n;
}

static int workers_for(const char *path, int flags)
{
	int fds[2], n = -1;

	CHECK_OK(pipe(fds));
	IN_CHILD(ring_reads(xopen(path, O_RDONLY), flags);
		 n = workers();
		 CHECK_EQ(write(fds[1], &n, sizeof(n)), sizeof(n)));
	CHECK_EQ(read(fds[0], &n, sizeof(n)), sizeof(n));
	return n;
}

TEST(io_uring_cold_needs_no_workers, 30)
{
	close(cold(O_RDONLY));
	if (!workers_for(lo("f"), IOSQE_ASYNC))
		SKIP("workers are not threads of the process here");
	drop(lo("f"));
	if (workers_for(lo("f"), 0))
		SKIP("the lower file system needs workers itself");
	drop(lo("f"));
	CHECK_EQ(workers_for(up("f"), 0), 0);
}

TEST(io_uring_direct_cold, 20)
{
	ring_reads(cold(O_RDONLY | O_DIRECT), 0);
	CHECK_EQ(resident(lo("f")), 0);
}

/* The attempt that may not wait reports the misses, or the retry, or each a part */
TEST(io_uring_misses_every_page, 20)
{
	static u8 seen[MOST_PAGES(SIZE)];
	u64 id, absent = 0;
	struct evs *s;
	int dev, fd;

	ra_off();
	fd = cold(O_RDONLY);
	id = file_id(fd);
	dev = dev_masked(K(MISS));
	IN_CHILD(ring_reads(fd, 0));
	s = pick(drain(dev), RFS_EVENT_MISS, id);
	for (int i = 0; i < s->n; i++) {
		CHECK_EQ(s->e[i].flags, 0);
		CHECK_LE(s->e[i].offset + s->e[i].length, SIZE);
		for (u64 at = 0; at < s->e[i].length; at += PAGE)
			seen[(s->e[i].offset + at) / PAGE]++;
	}
	for (u64 i = 0; i < PAGES(SIZE); i++) {
		absent += !seen[i];
		CHECK_LE(seen[i], 2);
	}
	CHECK_EQ(absent, 0);
}

TEST(io_uring_closed_while_in_flight, 20)
{
	int fd = cold(O_RDONLY | O_DIRECT);
	u8 *p = aligned(CHUNK);
	struct ring r;

	ring_open(&r);
	r.sqe[0] = (struct io_uring_sqe){
		.opcode = IORING_OP_READ, .fd = fd, .len = CHUNK,
		.addr = (u64)(unsigned long)p,
	};
	r.sq_array[0] = 0;
	__atomic_store_n(r.sq_tail, 1, __ATOMIC_RELEASE);
	CHECK_EQ(syscall(NR_io_uring_enter, r.fd, 1, 0, 0, NULL, 0), 1);
	CHECK_OK(close(fd));
	CHECK_EQ(syscall(NR_io_uring_enter, r.fd, 0, 1, IORING_ENTER_GETEVENTS,
			 NULL, 0), 0);
	CHECK_EQ(r.cqe[0].res, CHUNK);
	CHECK_BYTES(p, SEED, 0, CHUNK);
	close(r.fd);
}

/* Direct reads that complete later are consumed as well, up to the end of the file */
TEST(io_uring_direct_reads_are_touches, 15)
{
	struct evs *all;
	u64 bytes = 0, id;
	int dev;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	id = path_id(up("f"));
	dev = dev_masked(K(TOUCH));
	IN_CHILD(ring_reads(xopen(up("f"), O_RDONLY | O_DIRECT), 0));
	all = pick(drain(dev), RFS_EVENT_TOUCH, id);
	for (int i = 0; i < all->n; i++)
		bytes += all->e[i].length;
	CHECK_EQ(bytes, SIZE);
}

/* Polling for the end of direct reads goes by the device's queues, which are not the mirror's */
TEST(io_uring_polled_reads_are_refused, 15)
{
	struct io_uring_params p = { .flags = IORING_SETUP_IOPOLL };
	struct io_uring_sqe *sqe;
	u32 *tail, *head, *array;
	u8 *sq, *cq;
	int fd;

	mk_file(lo("f"), SEED, SIZE);
	setup();
	fd = syscall(NR_io_uring_setup, 1, &p);
	if (fd < 0) {
		CHECK_EQ(errno, ENOSYS);
		SKIP("no io_uring");
	}
	sq = xmap(fd, IORING_OFF_SQ_RING, p.sq_off.array + 4, PROT_READ | PROT_WRITE, MAP_SHARED);
	cq = xmap(fd, IORING_OFF_CQ_RING, p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe),
		  PROT_READ | PROT_WRITE, MAP_SHARED);
	sqe = xmap(fd, IORING_OFF_SQES, sizeof(*sqe), PROT_READ | PROT_WRITE, MAP_SHARED);
	*sqe = (struct io_uring_sqe){
		.opcode = IORING_OP_READ, .fd = xopen(up("f"), O_RDONLY | O_DIRECT),
		.addr = (u64)(unsigned long)aligned(CHUNK), .len = CHUNK,
	};
	array = (u32 *)(sq + p.sq_off.array);
	*array = 0;
	tail = (u32 *)(sq + p.sq_off.tail);
	head = (u32 *)(cq + p.cq_off.head);
	__atomic_store_n(tail, 1, __ATOMIC_RELEASE);
	CHECK_EQ(syscall(NR_io_uring_enter, fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0), 1);
	CHECK_EQ(__atomic_load_n((u32 *)(cq + p.cq_off.tail), __ATOMIC_ACQUIRE), *head + 1);
	CHECK_EQ(((struct io_uring_cqe *)(cq + p.cq_off.cqes))->res, -EOPNOTSUPP);
}

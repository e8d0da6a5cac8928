// SPDX-License-Identifier: GPL-2.0
/*
 * The storm: everything at once, for RFS_STORM_SECONDS (60).
 *
 * Each phase takes a quarter of that time. In a phase, workers read by read(2)
 * and by mmap, change the lower tree, mount, and hold the device: its holder
 * reads events, loads, evicts, sends random commands to the device and to
 * files, and is killed every few moments. Between phases everything is unmounted
 * and the module is removed and inserted again.
 *
 * File N only ever holds pattern SEED + N, at any length. A reader may find
 * the end of the file, no file at all, or zeros behind an end that is just
 * moving, but never a byte of another file or of another offset.
 */
#include "t.h"
#include <pthread.h>

#define SEED		0x5704
#define FILES		8
#define FIRST_SHAKY	4	/* files from here on are truncated below */
#define SIZE		(2 * MIB)
#define PHASES		4
#define COMMANDS	100000ul

static struct {
	u32 stop;
	u64 reads, bytes, maps, faults, bus, renames, cuts, mounts, events;
	u64 loads, evicts, commands, kills, holders, modules;
} *sh;

#define COUNT(field, n) __atomic_fetch_add(&sh->field, n, __ATOMIC_RELAXED)

static bool stopped(void)
{
	return __atomic_load_n(&sh->stop, __ATOMIC_RELAXED);
}

static char *lower_name(u64 n)
{
	char name[16];

	snprintf(name, sizeof(name), "f%llu", (unsigned long long)n);
	return lo(name);
}

static char *upper_name(u64 n)
{
	char name[16];

	snprintf(name, sizeof(name), "f%llu", (unsigned long long)n);
	return up(name);
}

/* Checks the bytes of file n at off; in a shaky file zeros may replace what is cut */
static void right(u64 n, const u8 *p, u64 off, size_t len)
{
	u8 want[PAGE];

	for (size_t at = 0; at < len; at += PAGE) {
		size_t part = len - at < PAGE ? len - at : PAGE;

		pat_fill(want, SEED + n, off + at, part);
		if (!memcmp(want, p + at, part))
			continue;
		for (size_t i = 0; i < part; i++) {
			if (p[at + i] == want[i] ||
			    (n >= FIRST_SHAKY && !p[at + i]))
				continue;
			t_fail(__FILE__, __LINE__,
			       "file %llu, offset %llu: %#x, want %#x",
			       (unsigned long long)n,
			       (unsigned long long)(off + at + i), p[at + i],
			       want[i]);
		}
	}
}

/* May a reader get this error while names and lengths change? */
static bool fair(int err)
{
	return err == ENOENT || err == ESTALE;
}

static void reader(u64 state)
{
	static u8 buf[64 * 1024];

	while (!stopped()) {
		u64 n = next_rand(&state) % FILES;
		int fd = open(upper_name(n), O_RDONLY);

		if (fd < 0) {
			CHECK(fair(errno));
			continue;
		}
		for (int i = 0; i < 20; i++) {
			u64 off = next_rand(&state) % SIZE;
			size_t len = next_rand(&state) % sizeof(buf) + 1;
			ssize_t got = pread(fd, buf, len, off);

			CHECK(got >= 0);
			if (n < FIRST_SHAKY)
				CHECK_EQ(got, off + len < SIZE ? len :
					 SIZE - off);
			right(n, buf, off, got);
			COUNT(reads, 1);
			COUNT(bytes, got);
		}
		close(fd);
	}
}

static sigjmp_buf bus;

static void on_bus(int sig)
{
	(void)sig;
	siglongjmp(bus, 1);
}

/* Copies a page out of a mapping. Returns false if that raised SIGBUS */
static bool copy_page(u8 *to, const u8 *from)
{
	if (sigsetjmp(bus, 1))
		return false;
	memcpy(to, from, PAGE);
	return true;
}

static void mapper(u64 state)
{
	struct sigaction sa = { .sa_handler = on_bus };
	static u8 buf[LARGEST_PAGE];

	CHECK_OK(sigaction(SIGBUS, &sa, NULL));
	while (!stopped()) {
		u64 n = next_rand(&state) % FILES;
		int fd = open(upper_name(n), O_RDONLY);
		u8 *p;

		if (fd < 0) {
			CHECK(fair(errno));
			continue;
		}
		p = xmap(fd, 0, SIZE, PROT_READ,
			 next_rand(&state) % 2 ? MAP_SHARED : MAP_PRIVATE);
		close(fd);
		for (int i = 0; i < 40; i++) {
			u64 off = next_rand(&state) % (SIZE / PAGE) * PAGE;

			if (copy_page(buf, p + off)) {
				right(n, buf, off, PAGE);
				COUNT(faults, 1);
			} else {
				CHECK(n >= FIRST_SHAKY);
				COUNT(bus, 1);
			}
		}
		COUNT(maps, 1);
		CHECK_OK(munmap(p, SIZE));
	}
}

/* Changes below */

static void replace(u64 n)
{
	int fd = xopen(lo("tmp"), O_WRONLY | O_CREAT | O_TRUNC);

	write_pat(fd, SEED + n, 0, SIZE);
	close(fd);
	CHECK_OK(rename(lo("tmp"), lower_name(n)));
}

static void cut(u64 n, u64 *state)
{
	u64 size = next_rand(state) % SIZE;
	int fd = xopen(lower_name(n), O_WRONLY);

	CHECK_OK(ftruncate(fd, size));
	write_pat(fd, SEED + n, size, SIZE - size);
	close(fd);
	COUNT(cuts, 1);
}

static void changer(u64 state)
{
	while (!stopped()) {
		u64 n = next_rand(&state) % FILES;

		switch (next_rand(&state) % 5) {
		case 0:
			CHECK_OK(rename(lower_name(n), lo("away")));
			CHECK_OK(rename(lo("away"), lower_name(n)));
			COUNT(renames, 1);
			break;
		case 1:
			replace(n);
			COUNT(renames, 1);
			break;
		case 2:
			CHECK_OK(chmod(lower_name(n), 0644));
			CHECK_OK(rename(lower_name(n), lo("d/away")));
			CHECK_OK(rename(lo("d"), lo("e")));
			CHECK_OK(rename(lo("e/away"), lower_name(n)));
			CHECK_OK(rename(lo("e"), lo("d")));
			COUNT(renames, 1);
			break;
		case 3:
			put_str("/proc/sys/vm/drop_caches",
				next_rand(&state) % 2 ? "1" : "3");
			break;
		default:
			cut(FIRST_SHAKY + n % (FILES - FIRST_SHAKY), &state);
		}
	}
}

static void mounter(u64 state)
{
	char path[256];

	snprintf(path, sizeof(path), "%s.more", t_mnt);
	while (!stopped()) {
		bool busy = next_rand(&state) % 2;
		int fd = -1;

		CHECK_OK(mount(t_lower, path, "rfs", 0,
			       busy ? "odirect=deny" : NULL));
		if (busy)
			fd = open(join(path, "f1"), O_RDONLY);
		CHECK_OK(umount2(path, fd >= 0 ? MNT_DETACH : 0));
		if (fd >= 0)
			check_fd(fd, SEED + 1, SIZE);
		close(fd);
		COUNT(mounts, 1);
	}
}

/* The module can be neither removed while it is in use nor loaded twice */
static int insert_module(void)
{
	int fd = open("/rfs.ko", O_RDONLY | O_CLOEXEC), rc;

	if (fd < 0)
		return -1;
	rc = syscall(SYS_finit_module, fd, "", 0);
	close(fd);
	return rc;
}

static int remove_module(void)
{
	return syscall(SYS_delete_module, "rfs", O_NONBLOCK);
}

static void module_shaker(u64 state)
{
	(void)state;
	while (!stopped()) {
		if (!access("/rfs.ko", R_OK))
			CHECK_ERR(insert_module(), EEXIST);
		CHECK(remove_module() == -1);
		CHECK(errno == EWOULDBLOCK || errno == EBUSY);
		COUNT(modules, 1);
		sleep_ms(20);
	}
}

/* The holder of the device */

static int dev;
static u64 ids[FILES];
static int file_fd[FILES];

static void *drainer(void *arg)
{
	static char buf[256 * sizeof(struct rfs_event)];
	struct pollfd p = { .fd = dev, .events = POLLIN };

	(void)arg;
	while (!stopped()) {
		ssize_t n = read(dev, buf, sizeof(buf));

		if (n > 0)
			COUNT(events, n / sizeof(struct rfs_event));
		else
			poll(&p, 1, 20);
	}
	return NULL;
}

static void *pager(void *arg)
{
	u64 state = now_ns();
	struct rfs_load l;
	struct rfs_evict e;

	(void)arg;
	while (!stopped()) {
		u64 id = ids[next_rand(&state) % FILES];
		u64 off = next_rand(&state) % SIZE;
		u64 len = next_rand(&state) % SIZE + 1;

		if (next_rand(&state) % 2) {
			CHECK(!load(dev, &l, id, off, len,
				    next_rand(&state) % 2 * RFS_LOAD_WAIT |
				    next_rand(&state) % 4 / 3 * RFS_LOAD_LARGE) ||
			      errno == ESTALE || errno == EOPNOTSUPP ||
			      errno == EINTR);
			COUNT(loads, 1);
		} else {
			CHECK(!evict(dev, &e, id, off, len,
				     next_rand(&state) % 2) ||
			      errno == ESTALE);
			COUNT(evicts, 1);
		}
	}
	return NULL;
}

static const u32 sizes[] = {
	sizeof(struct rfs_hello), sizeof(struct rfs_mask),
	sizeof(struct rfs_lower_fd), sizeof(struct rfs_path),
	sizeof(struct rfs_load), sizeof(struct rfs_stop),
	sizeof(struct rfs_evict), sizeof(struct rfs_resident),
	sizeof(struct rfs_stats),
};

static const unsigned long numbers[] = {
	RFS_IOC_HELLO, RFS_IOC_MASK, RFS_IOC_LOWER_FD, RFS_IOC_PATH,
	RFS_IOC_LOAD, RFS_IOC_STOP, RFS_IOC_EVICT, RFS_IOC_RESIDENT,
	RFS_IOC_STATS,
};

/* Fills an argument with nonsense, or nearly right */
static unsigned long make_argument(u64 *arg, size_t words, u64 *state)
{
	static u8 room[512];
	u64 how = next_rand(state) % 8;
	u32 n = next_rand(state) % ARRAY_SIZE(numbers);

	for (size_t i = 0; i < words; i++)
		arg[i] = how < 2 ? next_rand(state) : 0;
	if (how == 0)
		return _IOWR(RFS_IOC_MAGIC, next_rand(state) % 32, u64[4]);
	/* size and flags, the file, then an offset or a buffer, and a length */
	arg[0] = sizes[n] | (how == 7 ? next_rand(state) << 32 : 0);
	if (numbers[n] == RFS_IOC_HELLO && how > 2)
		arg[0] |= (u64)RFS_VERSION_MAJOR << 32;
	if (numbers[n] == RFS_IOC_PATH && how > 2)
		arg[0] |= (u64)sizeof(room) << 32;
	if (how > 2)
		arg[1] = ids[next_rand(state) % FILES];
	if (how > 3)
		arg[2] = numbers[n] == RFS_IOC_PATH ?
			(u64)(unsigned long)room : next_rand(state) % SIZE;
	/* Ranges are short so that there are many: pager() has long ones */
	if (how > 3)
		arg[3] = next_rand(state) % (16 * PAGE);
	if (numbers[n] == RFS_IOC_RESIDENT && how > 4) {
		arg[4] = (u64)(unsigned long)room;
		arg[5] = sizeof(room);
	}
	/* A mask gets some kinds, as one without any would stop all events */
	if (numbers[n] == RFS_IOC_MASK)
		arg[0] |= (next_rand(state) % 64) << 32;
	return numbers[n];
}

static void thrower(u64 state)
{
	u64 arg[16];

	while (!stopped()) {
		unsigned long nr = make_argument(arg, 16, &state);
		bool on_file = next_rand(&state) % 8 == 0;
		int fd = on_file ? file_fd[next_rand(&state) % FILES] : dev;
		void *p = next_rand(&state) % 16 ? arg : bad_ptr();

		if (next_rand(&state) % 4 == 0 && on_file)
			nr = RFS_IOC_FILE;
		if (!ioctl(fd, nr, p) && nr == RFS_IOC_LOWER_FD && p == arg)
			/* the third word of the result begins with the descriptor */
			close((int)arg[2]);
		COUNT(commands, 1);
	}
}

static void holder(u64 state)
{
	pthread_t t;

	while ((dev = dev_try(t_mnt, O_NONBLOCK)) < 0 && !stopped()) {
		CHECK_EQ(errno, EBUSY);
		sleep_ms(5);
	}
	if (dev < 0)
		return;
	for (int i = 0; i < FILES; i++) {
		do {
			file_fd[i] = open(upper_name(i), O_RDONLY | O_CLOEXEC);
		} while (file_fd[i] < 0 && fair(errno) && !stopped());
		if (file_fd[i] < 0)
			return;
		ids[i] = file_id(file_fd[i]);
	}
	dev_mask(dev, K(OPEN) | K(CLOSE) | K(MISS) | K(TOUCH) | K(PROGRESS),
		 64 * KIB);
	COUNT(holders, 1);
	CHECK_EQ(pthread_create(&t, NULL, drainer, NULL), 0);
	CHECK_EQ(pthread_create(&t, NULL, pager, NULL), 0);
	thrower(state);
}

/* The phases */

static pid_t start(void (*worker)(u64), u64 state)
{
	pid_t pid = t_fork();
	cpu_set_t all;

	if (pid)
		return pid;
	memset(&all, 0xff, sizeof(all));
	CHECK_OK(sched_setaffinity(0, sizeof(all), &all));
	worker(state);
	_exit(T_PASS);
}

/* Runs holders one after the other and kills each */
static void kill_holders(u64 end, u64 commands, u64 *state)
{
	while (now_ns() < end && sh->commands < commands) {
		pid_t pid = start(holder, next_rand(state));
		u64 until = now_ns() + 500000000ull +
			    next_rand(state) % 2000000000ull;
		int st;

		while (now_ns() < until && !waitpid(pid, &st, WNOHANG))
			sleep_ms(10);
		/* A holder never ends by itself, unless it has found a fault */
		if (now_ns() < until)
			t_fail(__FILE__, __LINE__, "the holder ended: %#x", st);
		t_kill(pid);
		COUNT(kills, 1);
	}
}

static void phase(u64 seconds, u64 *state)
{
	static void (*const worker[])(u64) = {
		reader, reader, mapper, mapper, changer, mounter, module_shaker,
	};
	pid_t pid[ARRAY_SIZE(worker)];

	sh->stop = 0;
	setup();
	for (size_t i = 0; i < ARRAY_SIZE(worker); i++)
		pid[i] = start(worker[i], next_rand(state));
	kill_holders(now_ns() + seconds * 1000000000ull, ~0ull, state);
	__atomic_store_n(&sh->stop, 1, __ATOMIC_SEQ_CST);
	for (size_t i = 0; i < ARRAY_SIZE(worker); i++)
		JOIN(pid[i]);
	for (int i = 0; i < FILES; i++)
		check_path(upper_name(i), SEED + i, SIZE);
	do_umount(t_mnt);
}

/* A slow machine gets the rest of the commands done with less going on beside them */
static void rest_of_commands(u64 *state)
{
	pid_t pid;

	sh->stop = 0;
	setup();
	pid = start(reader, next_rand(state));
	kill_holders(now_ns() + 300000000000ull, COMMANDS, state);
	__atomic_store_n(&sh->stop, 1, __ATOMIC_SEQ_CST);
	JOIN(pid);
	do_umount(t_mnt);
}

/* With nothing mounted, the module can be removed and inserted again */
static void cycle_module(void)
{
	int rc;

	if (access("/rfs.ko", R_OK))
		return;
	for (int i = 0; i < 3; i++) {
		for (int try = 0; (rc = remove_module()) && try < 100; try++)
			sleep_ms(20);
		CHECK_OK(rc);
		CHECK_ERR(mount(t_lower, t_mnt, "rfs", 0, NULL), ENODEV);
		CHECK_OK(insert_module());
		COUNT(modules, 1);
	}
}

static void report(void)
{
	printf("storm: %llu reads of %llu MiB, %llu maps, %llu faults, %llu SIGBUS, %llu renames, %llu truncates, ",
	       (unsigned long long)sh->reads,
	       (unsigned long long)(sh->bytes / MIB),
	       (unsigned long long)sh->maps, (unsigned long long)sh->faults,
	       (unsigned long long)sh->bus, (unsigned long long)sh->renames,
	       (unsigned long long)sh->cuts);
	printf("%llu mounts, %llu records, %llu loads, %llu evictions, %llu commands, %llu readers killed, %llu module calls\n",
	       (unsigned long long)sh->mounts, (unsigned long long)sh->events,
	       (unsigned long long)sh->loads, (unsigned long long)sh->evicts,
	       (unsigned long long)sh->commands, (unsigned long long)sh->kills,
	       (unsigned long long)sh->modules);
}

TEST(storm, 400)
{
	const char *env = getenv("RFS_STORM_SECONDS");
	u64 seconds = env ? strtoull(env, NULL, 10) : 60;
	u64 state = now_ns();
	char more[256];

	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(sh != MAP_FAILED);
	snprintf(more, sizeof(more), "%s.more", t_mnt);
	CHECK(!mkdir(more, 0755) || errno == EEXIST);
	defer_rmdir(more);
	for (int i = 0; i < FILES; i++)
		mk_file(lower_name(i), SEED + i, SIZE);
	xmkdir(lo("d"));
	printf("storm: seed %llu\n", (unsigned long long)state);
	for (int i = 0; i < PHASES; i++) {
		phase(seconds / PHASES ? seconds / PHASES : 1, &state);
		cycle_module();
	}
	rest_of_commands(&state);
	cycle_module();
	report();
	CHECK(sh->reads && sh->maps && sh->faults && sh->renames && sh->cuts);
	CHECK(sh->mounts && sh->events && sh->loads && sh->evicts);
	CHECK(sh->commands >= COMMANDS);
}

// SPDX-License-Identifier: GPL-2.0
/* The device of a mount, its events and commands. */
#include "t.h"

/* N in dev=rfsN of the last mount on mnt, -1 if there is no mount */
int dev_num(const char *mnt)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char line[2048], point[512], type[64];
	int num = -1;

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		char *dash = strstr(line, " - ");
		char *dev = dash ? strstr(dash, "dev=rfs") : NULL;

		if (!dash || sscanf(line, "%*d %*d %*s %*s %511s", point) != 1 ||
		    sscanf(dash, " - %63s", type) != 1)
			continue;
		if (!strcmp(point, mnt) && !strcmp(type, "rfs") && dev)
			num = atoi(dev + strlen("dev=rfs"));
	}
	fclose(f);
	return num;
}

char *dev_path(const char *mnt)
{
	static char buf[64];
	int num = dev_num(mnt);

	CHECK(num >= 0);
	snprintf(buf, sizeof(buf), "/dev/rfs%d", num);
	return buf;
}

int dev_try(const char *mnt, int flags)
{
	return open(dev_path(mnt), flags | O_RDONLY | O_CLOEXEC);
}

int dev_open(const char *mnt, int flags)
{
	return CHECK_OK(dev_try(mnt, flags));
}

void dev_mask(int dev, u32 kinds, u64 progress)
{
	struct rfs_mask m = {
		.size = sizeof(m), .kinds = kinds, .progress_bytes = progress,
	};

	CHECK_OK(ioctl(dev, RFS_IOC_MASK, &m));
}

/* Opens the device of the test's mount without blocking, with a mask of these kinds */
int dev_masked(u32 kinds)
{
	int dev = dev_open(t_mnt, O_NONBLOCK);

	dev_mask(dev, kinds, 0);
	return dev;
}

u64 file_id(int fd)
{
	struct rfs_file_info f = { .size = sizeof(f) };

	CHECK_OK(ioctl(fd, RFS_IOC_FILE, &f));
	CHECK(f.file != 0);
	return f.file;
}

/* Opens the path and leaves it open, because the id lives that long; returns the id */
u64 path_id(const char *path)
{
	return file_id(xopen(path, O_RDONLY));
}

static void sane(const struct rfs_event *e, u64 now)
{
	CHECK_EQ(e->len, sizeof(*e));
	CHECK_EQ(e->version, RFS_EVENT_VERSION);
	CHECK(e->kind < __RFS_EVENT_MAX);
	CHECK_EQ(e->flags & ~(RFS_EV_MMAP | RFS_EV_DIRECT), 0);
	CHECK_EQ(e->reserved, 0);
	CHECK(e->count >= 1);
	CHECK(e->cpu < (u32)sysconf(_SC_NPROCESSORS_CONF));
	CHECK(e->time_ns <= now && e->time_ns + 600000000000ull > now);
	CHECK_EQ(e->file == 0, e->kind == RFS_EVENT_LOST);
}

static void push(struct evs *s, const struct rfs_event *e)
{
	if (s->n == s->cap) {
		s->cap = s->cap ? 2 * s->cap : 64;
		s->e = realloc(s->e, s->cap * sizeof(*e));
		CHECK(s->e);
	}
	s->e[s->n++] = *e;
}

/*
 * Reads all waiting records and checks each. The events of a child that has
 * been waited for are queued by then, so this does not wait.
 */
struct evs *drain(int dev)
{
	static char buf[4096 * sizeof(struct rfs_event)];
	struct evs *s = calloc(1, sizeof(*s));
	struct rfs_event e;
	ssize_t got;

	CHECK(s);
	while ((got = read(dev, buf, sizeof(buf))) > 0) {
		u64 now = now_ns();

		for (ssize_t at = 0; at < got; at += e.len) {
			CHECK(got - at >= (ssize_t)sizeof(e));
			memcpy(&e, buf + at, sizeof(e));
			sane(&e, now);
			push(s, &e);
		}
	}
	CHECK(got == 0 || errno == EAGAIN);
	return s;
}

/* The events of one kind, and of one file unless that is 0 */
struct evs *pick(const struct evs *s, int kind, u64 file)
{
	struct evs *r = calloc(1, sizeof(*r));

	CHECK(r);
	for (int i = 0; i < s->n; i++) {
		if (s->e[i].kind == kind && (!file || s->e[i].file == file))
			push(r, &s->e[i]);
	}
	return r;
}

/* The only event of that kind and file */
struct rfs_event *only(const struct evs *s, int kind, u64 file)
{
	struct evs *r = pick(s, kind, file);

	if (r->n != 1)
		t_fail(__FILE__, __LINE__, "%d events of kind %d, want 1", r->n,
		       kind);
	return r->e;
}

u64 total_count(const struct evs *s)
{
	u64 sum = 0;

	for (int i = 0; i < s->n; i++)
		sum += s->e[i].count;
	return sum;
}

void get_hello(int dev, struct rfs_hello *h)
{
	*h = (struct rfs_hello){
		.size = sizeof(*h), .major = RFS_VERSION_MAJOR,
		.minor = RFS_VERSION_MINOR,
	};
	CHECK_OK(ioctl(dev, RFS_IOC_HELLO, h));
}

void get_stats(int dev, struct rfs_stats *s)
{
	*s = (struct rfs_stats){ .size = sizeof(*s) };
	CHECK_OK(ioctl(dev, RFS_IOC_STATS, s));
}

int load(int dev, struct rfs_load *l, u64 file, u64 off, u64 len, u32 flags)
{
	*l = (struct rfs_load){
		.size = sizeof(*l), .flags = flags, .file = file,
		.offset = off, .length = len, .cookie = 1,
	};
	return ioctl(dev, RFS_IOC_LOAD, l);
}

int evict(int dev, struct rfs_evict *e, u64 file, u64 off, u64 len, u32 flags)
{
	*e = (struct rfs_evict){
		.size = sizeof(*e), .flags = flags, .file = file,
		.offset = off, .length = len,
	};
	return ioctl(dev, RFS_IOC_EVICT, e);
}

u64 cached(int dev, u64 file, u64 off, u64 len)
{
	struct rfs_resident r = {
		.size = sizeof(r), .file = file, .offset = off, .length = len,
	};

	CHECK_OK(ioctl(dev, RFS_IOC_RESIDENT, &r));
	CHECK(r.cached <= r.pages);
	return r.cached;
}

int get_path(int dev, u64 file, char *buf, u32 len)
{
	struct rfs_path p = {
		.size = sizeof(p), .buf_len = len, .file = file,
		.buf = (u64)(unsigned long)buf,
	};
	int rc = ioctl(dev, RFS_IOC_PATH, &p);

	if (!rc)
		CHECK_EQ(p.path_len, strlen(buf) + 1);
	return rc;
}

int lower_fd(int dev, u64 file, u32 flags)
{
	struct rfs_lower_fd l = {
		.size = sizeof(l), .flags = flags, .file = file,
	};

	return ioctl(dev, RFS_IOC_LOWER_FD, &l) ? -1 : l.fd;
}

// SPDX-License-Identifier: GPL-2.0
/*
 * Commands refuse what they do not know, with one test for each refusal.
 *
 * A table says where each command's fields are; the macros at the end make
 * tests of it: ioctl_COMMAND_WHAT.
 */
#include "t.h"
#include <stddef.h>

#define SEED 0x10c71
#define NONE (-1)

struct cmd {
	unsigned long nr;
	int size;		/* of the structure */
	int flags;		/* offsets, NONE where there is no such field */
	u32 known;		/* every known flag */
	int reserved, reserved_size;
	int file, offset, length;
	bool on_file;		/* on a file, not on the device */
};

#define FIELD(type, f) offsetof(struct type, f)

static const struct cmd hello = {
	RFS_IOC_HELLO, sizeof(struct rfs_hello), NONE, 0,
	FIELD(rfs_hello, reserved), 8, NONE, NONE, NONE, false,
};

static const struct cmd mask = {
	RFS_IOC_MASK, sizeof(struct rfs_mask), FIELD(rfs_mask, kinds), 0x3f,
	FIELD(rfs_mask, reserved), 8, NONE, NONE, NONE, false,
};

static const struct cmd lower_fd_ = {
	RFS_IOC_LOWER_FD, sizeof(struct rfs_lower_fd),
	FIELD(rfs_lower_fd, flags), O_DIRECT, FIELD(rfs_lower_fd, reserved), 4,
	FIELD(rfs_lower_fd, file), NONE, NONE, false,
};

static const struct cmd path = {
	RFS_IOC_PATH, sizeof(struct rfs_path), NONE, 0,
	FIELD(rfs_path, reserved), 4, FIELD(rfs_path, file), NONE, NONE, false,
};

static const struct cmd load_ = {
	RFS_IOC_LOAD, sizeof(struct rfs_load), FIELD(rfs_load, flags),
	RFS_LOAD_WAIT | RFS_LOAD_CHARGE | RFS_LOAD_LARGE,
	FIELD(rfs_load, reserved), 4, FIELD(rfs_load, file),
	FIELD(rfs_load, offset), FIELD(rfs_load, length), false,
};

static const struct cmd stop = {
	RFS_IOC_STOP, sizeof(struct rfs_stop), NONE, 0,
	FIELD(rfs_stop, reserved), 4, NONE, NONE, NONE, false,
};

static const struct cmd evict_ = {
	RFS_IOC_EVICT, sizeof(struct rfs_evict), FIELD(rfs_evict, flags),
	RFS_EVICT_UNMAPPED, NONE, 0, FIELD(rfs_evict, file), FIELD(rfs_evict, offset),
	FIELD(rfs_evict, length), false,
};

static const struct cmd resident_ = {
	RFS_IOC_RESIDENT, sizeof(struct rfs_resident),
	FIELD(rfs_resident, flags), 0, FIELD(rfs_resident, reserved), 4,
	FIELD(rfs_resident, file), FIELD(rfs_resident, offset),
	FIELD(rfs_resident, length), false,
};

static const struct cmd stats = {
	RFS_IOC_STATS, sizeof(struct rfs_stats), FIELD(rfs_stats, flags), 0, NONE,
	0, NONE, NONE, NONE, false,
};

static const struct cmd file_ = {
	RFS_IOC_FILE, sizeof(struct rfs_file_info), NONE, 0, NONE, 0, NONE,
	NONE, NONE, true,
};

/* An argument, with room for the longer one of a later version */
struct arg {
	u8 b[512];
};

static char path_buf[512];
static u8 bitmap[64];

static void put(struct arg *a, int at, int size, u64 v)
{
	CHECK(at != NONE);
	memcpy(a->b + at, &v, size);
}

/* An argument that the command accepts; returns the descriptor for it */
static int good(const struct cmd *c, struct arg *a)
{
	int fd, dev;

	memset(a, 0, sizeof(*a));
	mk_file(lo("f"), SEED, 64 * KIB);
	xmkdir(lo("d"));
	setup();
	fd = xopen(up("f"), O_RDONLY);
	dev = dev_open(t_mnt, O_NONBLOCK);
	put(a, 0, 4, c->size);
	if (c->file != NONE)
		put(a, c->file, 8, file_id(fd));
	if (c->length != NONE)
		put(a, c->length, 8, 64 * KIB);
	if (c == &hello)
		put(a, FIELD(rfs_hello, major), 2, RFS_VERSION_MAJOR);
	if (c == &path) {
		put(a, FIELD(rfs_path, buf), 8, (u64)(unsigned long)path_buf);
		put(a, FIELD(rfs_path, buf_len), 4, sizeof(path_buf));
	}
	if (c == &resident_) {
		put(a, FIELD(rfs_resident, bitmap), 8,
		    (u64)(unsigned long)bitmap);
		put(a, FIELD(rfs_resident, bitmap_len), 4, sizeof(bitmap));
	}
	return c->on_file ? fd : dev;
}

static void accepted(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	CHECK_EQ(ioctl(fd, c->nr, &a), 0);
}

static void size_short(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	put(&a, 0, 4, c->size - 1);
	CHECK_ERR(ioctl(fd, c->nr, &a), EINVAL);
	put(&a, 0, 4, 4);
	CHECK_ERR(ioctl(fd, c->nr, &a), EINVAL);
	put(&a, 0, 4, 0);
	CHECK_ERR(ioctl(fd, c->nr, &a), EINVAL);
	put(&a, 0, 4, c->size);
	CHECK_EQ(ioctl(fd, c->nr, &a), 0);
}

static void tail_unknown(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	put(&a, 0, 4, c->size + 8);
	a.b[c->size + 7] = 1;
	CHECK_ERR(ioctl(fd, c->nr, &a), E2BIG);
	put(&a, 0, 4, 1 << 30);
	CHECK_ERR(ioctl(fd, c->nr, &a), E2BIG);
}

static void tail_zero(const struct cmd *c)
{
	unsigned long longer = (c->nr & ~IOCSIZE_MASK) |
			       (c->size + 16ul) << IOCSIZE_SHIFT;
	struct arg a;
	int fd = good(c, &a);

	put(&a, 0, 4, c->size + 16);
	CHECK_EQ(ioctl(fd, c->nr, &a), 0);
	/* The number of a command contains the size its caller knows */
	CHECK_EQ(ioctl(fd, longer, &a), 0);
}

static void bad_pointer(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);
	u8 *p = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	CHECK_OK(munmap(p + PAGE, PAGE));
	CHECK_ERR(ioctl(fd, c->nr, NULL), EFAULT);
	CHECK_ERR(ioctl(fd, c->nr, bad_ptr()), EFAULT);
	/* Ends on an unmapped page */
	memcpy(p + PAGE - 8, a.b, 8);
	CHECK_ERR(ioctl(fd, c->nr, p + PAGE - 8), EFAULT);
	/* Can be read, but the result cannot be written */
	memcpy(p, a.b, sizeof(a));
	CHECK_OK(mprotect(p, PAGE, PROT_READ));
	if (_IOC_DIR(c->nr) & _IOC_READ)
		CHECK_ERR(ioctl(fd, c->nr, p), EFAULT);
	else
		CHECK_EQ(ioctl(fd, c->nr, p), 0);
}

static void flags_unknown(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	/* Bit 31 of LOAD is a result, never an argument */
	for (int bit = 0; bit < 32; bit++) {
		if (c->known >> bit & 1)
			continue;
		put(&a, c->flags, 4, 1u << bit);
		CHECK_ERR(ioctl(fd, c->nr, &a), EINVAL);
	}
	put(&a, c->flags, 4, 0);
	CHECK_EQ(ioctl(fd, c->nr, &a), 0);
}

static void reserved_set(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	for (int i = 0; i < 8 * c->reserved_size; i += 7) {
		put(&a, c->reserved, c->reserved_size, 1ull << i);
		CHECK_ERR(ioctl(fd, c->nr, &a), EINVAL);
	}
	put(&a, c->reserved, c->reserved_size, 0);
	CHECK_EQ(ioctl(fd, c->nr, &a), 0);
}

static void file_zero(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	put(&a, c->file, 8, 0);
	CHECK_ERR(ioctl(fd, c->nr, &a), ESTALE);
}

static void file_unknown(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	put(&a, c->file, 8, 1ull << 40);
	CHECK_ERR(ioctl(fd, c->nr, &a), ESTALE);
	put(&a, c->file, 8, ~0ull);
	CHECK_ERR(ioctl(fd, c->nr, &a), ESTALE);
}

static void length_zero(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	put(&a, c->length, 8, 0);
	CHECK_ERR(ioctl(fd, c->nr, &a), EINVAL);
}

static void range_overflows(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	put(&a, c->offset, 8, ~0ull - 100);
	put(&a, c->length, 8, PAGE);
	CHECK_ERR(ioctl(fd, c->nr, &a), EINVAL);
	put(&a, c->offset, 8, PAGE);
	put(&a, c->length, 8, ~0ull);
	CHECK_ERR(ioctl(fd, c->nr, &a), EINVAL);
}

static void on_directory(const struct cmd *c)
{
	struct arg a;
	int fd = good(c, &a);

	put(&a, c->file, 8, path_id(up("d")));
	CHECK_ERR(ioctl(fd, c->nr, &a), EISDIR);
}

#define REFUSES(name, cmd, what) \
	TEST(ioctl_##name##_##what, 10) { what(&cmd); }

#define ANY(name, cmd)				\
	REFUSES(name, cmd, accepted)		\
	REFUSES(name, cmd, size_short)		\
	REFUSES(name, cmd, tail_unknown)	\
	REFUSES(name, cmd, tail_zero)		\
	REFUSES(name, cmd, bad_pointer)

#define RANGE(name, cmd)			\
	REFUSES(name, cmd, length_zero)		\
	REFUSES(name, cmd, range_overflows)	\
	REFUSES(name, cmd, on_directory)

#define BY_FILE(name, cmd)			\
	REFUSES(name, cmd, file_zero)		\
	REFUSES(name, cmd, file_unknown)

ANY(hello, hello)
REFUSES(hello, hello, reserved_set)

ANY(mask, mask)
REFUSES(mask, mask, flags_unknown)
REFUSES(mask, mask, reserved_set)

ANY(lower_fd, lower_fd_)
REFUSES(lower_fd, lower_fd_, flags_unknown)
REFUSES(lower_fd, lower_fd_, reserved_set)
BY_FILE(lower_fd, lower_fd_)

ANY(path, path)
REFUSES(path, path, reserved_set)
BY_FILE(path, path)

ANY(load, load_)
REFUSES(load, load_, flags_unknown)
REFUSES(load, load_, reserved_set)
BY_FILE(load, load_)
RANGE(load, load_)

ANY(stop, stop)
REFUSES(stop, stop, reserved_set)

ANY(evict, evict_)
REFUSES(evict, evict_, flags_unknown)
BY_FILE(evict, evict_)
RANGE(evict, evict_)

ANY(resident, resident_)
REFUSES(resident, resident_, flags_unknown)
REFUSES(resident, resident_, reserved_set)
BY_FILE(resident, resident_)
RANGE(resident, resident_)

ANY(stats, stats)
REFUSES(stats, stats, flags_unknown)

ANY(file, file_)

TEST(ioctl_hello_other_major, 10)
{
	struct arg a;
	int dev = good(&hello, &a);

	put(&a, FIELD(rfs_hello, major), 2, RFS_VERSION_MAJOR + 1);
	CHECK_ERR(ioctl(dev, RFS_IOC_HELLO, &a), EPROTONOSUPPORT);
	put(&a, FIELD(rfs_hello, major), 2, 0);
	CHECK_ERR(ioctl(dev, RFS_IOC_HELLO, &a), EPROTONOSUPPORT);
}

TEST(ioctl_hello_takes_smaller_minor, 10)
{
	struct rfs_hello h = {
		.size = sizeof(h), .major = RFS_VERSION_MAJOR, .minor = 777,
	};
	int dev;

	setup();
	dev = dev_open(t_mnt, 0);
	CHECK_OK(ioctl(dev, RFS_IOC_HELLO, &h));
	CHECK_EQ(h.major, RFS_VERSION_MAJOR);
	CHECK_EQ(h.minor, RFS_VERSION_MINOR);
}

TEST(ioctl_unknown_command_on_device, 10)
{
	struct arg a = { { 0 } };
	int dev;

	setup();
	dev = dev_open(t_mnt, 0);
	put(&a, 0, 4, sizeof(a));
	CHECK_ERR(ioctl(dev, _IOWR(RFS_IOC_MAGIC, 0x3f, struct arg), &a),
		  ENOTTY);
	CHECK_ERR(ioctl(dev, _IOWR('x', 0x00, struct rfs_hello), &a), ENOTTY);
	CHECK_ERR(ioctl(dev, RFS_IOC_FILE, &a), ENOTTY);
	CHECK_ERR(ioctl(dev, 0, &a), ENOTTY);
}

TEST(ioctl_unknown_command_on_file, 10)
{
	struct arg a = { { 0 } };
	int fd;

	mk_file(lo("f"), SEED, PAGE);
	setup();
	fd = xopen(up("f"), O_RDONLY);
	put(&a, 0, 4, sizeof(struct rfs_stats));
	CHECK_ERR(ioctl(fd, RFS_IOC_STATS, &a), ENOTTY);
	CHECK_ERR(ioctl(fd, _IOWR(RFS_IOC_MAGIC, 0x3f, struct arg), &a),
		  ENOTTY);
	CHECK_ERR(ioctl(xopen(t_mnt, O_RDONLY), RFS_IOC_STATS, &a), ENOTTY);
}

TEST(ioctl_file_on_directory, 10)
{
	struct rfs_file_info f = { .size = sizeof(f) };

	setup();
	CHECK_OK(ioctl(xopen(t_mnt, O_RDONLY), RFS_IOC_FILE, &f));
	CHECK_EQ(f.device, dev_num(t_mnt));
	CHECK(f.file != 0);
}

TEST(ioctl_file_by_anybody, 10)
{
	mk_file(lo("f"), SEED, PAGE);
	CHECK_OK(chmod(lo("f"), 0644));
	setup();
	AS_USER(1000, 1000, CHECK(file_id(xopen(up("f"), O_RDONLY)) != 0));
}

TEST(ioctl_file_ids_differ, 10)
{
	u64 f, g, d;

	mk_file(lo("f"), SEED, PAGE);
	mk_file(lo("g"), SEED, PAGE);
	setup();
	f = path_id(up("f"));
	g = path_id(up("g"));
	d = path_id(t_mnt);
	CHECK(f != g && f != d && g != d);
	CHECK_EQ(path_id(up("f")), f);
	CHECK_OK(link(lo("f"), lo("h")));
	CHECK_EQ(path_id(up("h")), f);
}

TEST(ioctl_path_bad_buffer, 10)
{
	struct arg a;
	int dev = good(&path, &a);

	put(&a, FIELD(rfs_path, buf), 8, 8);
	CHECK_ERR(ioctl(dev, RFS_IOC_PATH, &a), EFAULT);
}

TEST(ioctl_resident_bad_bitmap, 10)
{
	struct arg a;
	int dev = good(&resident_, &a);

	put(&a, FIELD(rfs_resident, bitmap), 8, 8);
	CHECK_ERR(ioctl(dev, RFS_IOC_RESIDENT, &a), EFAULT);
}

TEST(ioctl_resident_short_bitmap, 10)
{
	struct arg a;
	int dev = good(&resident_, &a);

	put(&a, FIELD(rfs_resident, bitmap_len), 4, 1);
	CHECK_ERR(ioctl(dev, RFS_IOC_RESIDENT, &a), EMSGSIZE);
	put(&a, FIELD(rfs_resident, bitmap_len), 4, 2);
	CHECK_EQ(ioctl(dev, RFS_IOC_RESIDENT, &a), 0);
}

TEST(ioctl_load_charge_of_nobody, 10)
{
	struct arg a;
	int dev = good(&load_, &a);
	struct rfs_hello h;

	get_hello(dev, &h);
	put(&a, FIELD(rfs_load, flags), 4, RFS_LOAD_CHARGE);
	put(&a, FIELD(rfs_load, charge), 4, 0x3fffffff);
	CHECK_ERR(ioctl(dev, RFS_IOC_LOAD, &a),
		  h.features & RFS_FEATURE_CHARGE ? ESRCH : EOPNOTSUPP);
	put(&a, FIELD(rfs_load, flags), 4, 0);
	CHECK_ERR(ioctl(dev, RFS_IOC_LOAD, &a), EINVAL);
}

// SPDX-License-Identifier: GPL-2.0
/*
 * The test's own block device: a null_blk made through configfs that keeps its
 * data in memory, can be slow and can have bad sectors.
 */
#include "t.h"
#include <linux/fiemap.h>
#include <linux/fs.h>

#define NULLB "/sys/kernel/config/nullb"

static void attr(struct disk *d, const char *name, const char *value)
{
	put_str(join(d->cfg, name), value);
}

void mkfs_on(const char *dev)
{
	if (!strcmp(t_fs(), "xfs"))
		CHECK_EQ(t_run("mkfs.xfs", "-q", "-f", dev, NULL), 0);
	else
		CHECK_EQ(t_run("mkfs.ext4", "-q", "-F", "-b", "4096", "-E",
			       "lazy_itable_init=1,nodiscard", dev, NULL), 0);
}

static void load_module(const char *path)
{
	int fd = xopen(path, O_RDONLY);

	CHECK(!syscall(SYS_finit_module, fd, "", 0) || errno == EEXIST);
	close(fd);
}

/* Loads the modules of a file system, which are in the guest but not loaded at boot */
void need_fs(const char *fs)
{
	char list[4096], known[4096], line[64], *next = list, *one;

	snprintf(line, sizeof(line), "/modules/%s.list", fs);
	CHECK(get_str(line, list, sizeof(list)) >= 0);
	while ((one = strsep(&next, "\n")))
		if (*one)
			load_module(one);
	CHECK(get_str("/proc/filesystems", known, sizeof(known)) > 0);
	snprintf(line, sizeof(line), "\t%s\n", fs);
	if (!strstr(known, line))
		SKIP("no %s", fs);
}

/* The node is named after the directory, or after the index on older kernels */
static void find_node(struct disk *d)
{
	char index[16] = "";

	snprintf(d->dev, sizeof(d->dev), "/dev/%s", d->name);
	if (!access(d->dev, F_OK))
		return;
	CHECK(get_str(join(d->cfg, "index"), index, sizeof(index)) > 0);
	index[strcspn(index, "\n")] = 0;
	snprintf(d->dev, sizeof(d->dev), "/dev/nullb%s", index);
	CHECK_OK(access(d->dev, F_OK));
}

void disk_make(struct disk *d, const char *name, int mib)
{
	char size[16];

	if (absent(NULLB))
		SKIP("no null_blk in configfs");
	snprintf(d->name, sizeof(d->name), "%s", name);
	snprintf(d->cfg, sizeof(d->cfg), NULLB "/%s", name);
	snprintf(size, sizeof(size), "%d", mib);
	CHECK_OK(mkdir(d->cfg, 0755));
	defer_rmdir(d->cfg);
	attr(d, "memory_backed", "1");
	attr(d, "size", size);
	attr(d, "power", "1");
	defer_write(join(d->cfg, "power"), "0");
	find_node(d);
}

void disk_mkfs(struct disk *d)
{
	mkfs_on(d->dev);
}

void disk_mount(struct disk *d, const char *mnt)
{
	do_mount(d->dev, mnt, t_fs(), 0, NULL);
}

/* Mounts a new btrfs, on a disk of that name */
void mount_btrfs(const char *name, const char *mnt)
{
	struct disk d;

	need_fs("btrfs");
	disk_make(&d, name, 128);
	CHECK_EQ(t_run("mkfs.btrfs", "-q", d.dev, NULL), 0);
	kmsg_allow("BTRFS");
	do_mount(d.dev, mnt, "btrfs", 0, NULL);
}

/* Upper bound on a request to a slow disk: all kernels tested allow that much */
#define REQUEST_KIB 124

/*
 * Requests that it does at once. With one, the disk idles whenever a busy
 * machine is late to hear of the end of a request.
 */
#define DEPTH 4

static void number(const char *path, int n)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", n);
	put_str(path, text);
}

/*
 * Power cycles the disk (its data stays) and limits it to mbps MiB a second: it
 * does a few requests at a time, each as long as if all were as large as one may
 * be. The limit that null_blk has itself, "mbps", warns where two CPUs begin to
 * read at once: one starts the timer whose function runs on the other.
 */
void disk_slow(struct disk *d, int mbps)
{
	char queue[64];

	attr(d, "power", "0");
	attr(d, "irqmode", "2");
	number(join(d->cfg, "completion_nsec"),
	       DEPTH * (REQUEST_KIB * 1000000 / 1024 * 1000 / mbps));
	number(join(d->cfg, "hw_queue_depth"), DEPTH);
	attr(d, "power", "1");
	find_node(d);
	snprintf(queue, sizeof(queue), "/sys/block/%s/queue", strrchr(d->dev, '/') + 1);
	number(join(queue, "max_sectors_kb"), REQUEST_KIB);
}

/* Makes reads of [off, off + len) of the file fail; off is that of a page */
void disk_bad(struct disk *d, const char *path, u64 off, u64 len)
{
	char buf[sizeof(struct fiemap) + sizeof(struct fiemap_extent)] = "";
	struct fiemap *fm = (void *)buf;
	struct fiemap_extent *fe = fm->fm_extents;
	int fd = xopen(path, O_RDONLY);
	char range[64];
	u64 at;

	fm->fm_start = off;
	fm->fm_length = len;
	fm->fm_flags = FIEMAP_FLAG_SYNC;
	fm->fm_extent_count = 1;
	CHECK_OK(ioctl(fd, FS_IOC_FIEMAP, fm));
	CHECK_EQ(fm->fm_mapped_extents, 1);
	CHECK(fe->fe_logical <= off);
	CHECK(fe->fe_logical + fe->fe_length >= off + len);
	at = (fe->fe_physical + off - fe->fe_logical) / 512;
	snprintf(range, sizeof(range), "+%llu-%llu", (unsigned long long)at,
		 (unsigned long long)(at + len / 512 - 1));
	attr(d, "badblocks", range);
	close(fd);
	kmsg_allow("I/O error");
	kmsg_allow("EXT4-fs");
	kmsg_allow("XFS");
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: the commands of the device. Each handler gets its argument copied in,
 * checks every field it has, and leaves its answer in the same structure.
 */
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/uaccess.h>
#include "rfs.h"

#define RFS_KINDS (BIT(__RFS_EVENT_MAX) - 1)

union rfs_arg {
	u32 size;
	struct rfs_hello hello;
	struct rfs_mask mask;
	struct rfs_lower_fd lower_fd;
	struct rfs_path path;
	struct rfs_load load;
	struct rfs_stop stop;
	struct rfs_evict evict;
	struct rfs_resident resident;
	struct rfs_stats stats;
};

static int rfs_cmd_hello(struct rfs_dev *dev, union rfs_arg *arg)
{
	struct rfs_hello *hello = &arg->hello;

	if (hello->reserved)
		return -EINVAL;
	if (hello->major != RFS_VERSION_MAJOR)
		return -EPROTONOSUPPORT;
	hello->minor = min_t(u16, hello->minor, RFS_VERSION_MINOR);
	hello->device = dev->nr;
	hello->event_size = sizeof(struct rfs_event);
	hello->features = RFS_FEATURE_EVICT_MAPPED | rfs_load_features();
	hello->kinds = RFS_KINDS;
	hello->queue_bytes = RFS_QUEUE_PAGES * PAGE_SIZE;
	hello->lower_dev = new_encode_dev(rfs_sb(dev->sb)->lower.mnt->mnt_sb->s_dev);
	return 0;
}

static int rfs_cmd_mask(struct rfs_dev *dev, union rfs_arg *arg)
{
	const struct rfs_mask *mask = &arg->mask;
	bool progress = mask->kinds & BIT(RFS_EVENT_PROGRESS);

	if ((mask->kinds & ~RFS_KINDS) || mask->reserved)
		return -EINVAL;
	if (progress ? mask->progress_bytes < RFS_PROGRESS_MIN : mask->progress_bytes != 0)
		return -EINVAL;
	WRITE_ONCE(dev->progress_bytes, mask->progress_bytes);
	WRITE_ONCE(dev->kinds, mask->kinds & ~BIT(RFS_EVENT_LOST));
	return 0;
}

/* Returns the inode of a file id with a reference. */
static struct inode *rfs_cmd_file(struct rfs_dev *dev, u64 id)
{
	struct inode *inode = rfs_find_file(rfs_sb(dev->sb), id);

	return inode ? inode : ERR_PTR(-ESTALE);
}

/* The same for commands on data: a range of a regular file. */
static struct inode *rfs_cmd_range(struct rfs_dev *dev, u64 id, u64 offset, u64 length)
{
	struct inode *inode;

	if (!length || offset + length < offset || offset + length > LLONG_MAX)
		return ERR_PTR(-EINVAL);
	inode = rfs_cmd_file(dev, id);
	if (IS_ERR(inode) || S_ISREG(inode->i_mode))
		return inode;
	iput(inode);
	return ERR_PTR(-EISDIR);
}

static int rfs_cmd_lower_fd(struct rfs_dev *dev, union rfs_arg *arg)
{
	struct rfs_lower_fd *req = &arg->lower_fd;
	struct inode *inode;
	struct file *file;
	int fd;

	if ((req->flags & ~O_DIRECT) || req->reserved)
		return -EINVAL;
	inode = rfs_cmd_file(dev, req->file);
	if (IS_ERR(inode))
		return PTR_ERR(inode);
	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0)
		goto out;
	file = rfs_open_lower(inode, req->flags);
	if (IS_ERR(file)) {
		put_unused_fd(fd);
		fd = PTR_ERR(file);
		goto out;
	}
	fd_install(fd, file);
	req->fd = fd;
	fd = 0;
out:
	iput(inode);
	return fd;
}

static int rfs_copy_path(struct dentry *dentry, struct rfs_path *req)
{
	char *page = (char *)__get_free_page(GFP_KERNEL);
	char *path;
	int err = 0;
	u32 len;

	if (!page)
		return -ENOMEM;
	path = dentry_path_raw(dentry, page, PAGE_SIZE);
	if (IS_ERR(path)) {
		err = PTR_ERR(path);
		goto out;
	}
	len = strlen(path) + 1;
	req->path_len = len;
	if (len > req->buf_len)
		err = -ENAMETOOLONG;
	else if (copy_to_user(u64_to_user_ptr(req->buf), path, len))
		err = -EFAULT;
out:
	free_page((unsigned long)page);
	return err;
}

static int rfs_cmd_path(struct rfs_dev *dev, union rfs_arg *arg)
{
	struct rfs_path *req = &arg->path;
	struct dentry *dentry, *lower;
	struct inode *inode;
	int err;

	if (req->reserved)
		return -EINVAL;
	inode = rfs_cmd_file(dev, req->file);
	if (IS_ERR(inode))
		return PTR_ERR(inode);
	err = -ENOENT;
	dentry = d_find_alias(inode);
	if (!dentry)
		goto out;
	/* renamed or deleted below is as good as without a name */
	lower = rfs_lower_dentry(dentry);
	if (IS_ROOT(dentry) || (!d_unhashed(lower) && rfs_dentry_revalidate(dentry, 0) > 0))
		err = rfs_copy_path(dentry, req);
	dput(dentry);
out:
	iput(inode);
	return err;
}

static int rfs_cmd_load(struct rfs_dev *dev, union rfs_arg *arg)
{
	struct rfs_load *load = &arg->load;
	struct inode *inode;
	int err;

	if (load->flags & ~(RFS_LOAD_WAIT | RFS_LOAD_CHARGE | RFS_LOAD_LARGE))
		return -EINVAL;
	if (load->reserved || (load->charge && !(load->flags & RFS_LOAD_CHARGE)))
		return -EINVAL;
	load->done = 0;
	load->loaded = 0;
	inode = rfs_cmd_range(dev, load->file, load->offset, load->length);
	if (IS_ERR(inode))
		return PTR_ERR(inode);
	err = rfs_load(dev, inode, load);
	iput(inode);
	return err;
}

static int rfs_cmd_stop(struct rfs_dev *dev, union rfs_arg *arg)
{
	if (arg->stop.reserved)
		return -EINVAL;
	arg->stop.stopped = rfs_stop(dev, arg->stop.cookie);
	return 0;
}

static int rfs_cmd_evict(struct rfs_dev *dev, union rfs_arg *arg)
{
	struct rfs_evict *evict = &arg->evict;
	struct inode *inode;
	int err;

	if (evict->flags & ~RFS_EVICT_UNMAPPED)
		return -EINVAL;
	inode = rfs_cmd_range(dev, evict->file, evict->offset, evict->length);
	if (IS_ERR(inode))
		return PTR_ERR(inode);
	err = rfs_evict(dev, inode, evict);
	iput(inode);
	return err;
}

static int rfs_cmd_resident(struct rfs_dev *dev, union rfs_arg *arg)
{
	struct rfs_resident *res = &arg->resident;
	struct inode *inode;
	int err;

	if (res->flags || res->reserved || (res->bitmap_len && !res->bitmap))
		return -EINVAL;
	inode = rfs_cmd_range(dev, res->file, res->offset, res->length);
	if (IS_ERR(inode))
		return PTR_ERR(inode);
	err = rfs_resident(inode, res);
	iput(inode);
	return err;
}

static int rfs_cmd_stats(struct rfs_dev *dev, union rfs_arg *arg)
{
	struct rfs_stats *stats = &arg->stats;

	if (stats->flags)
		return -EINVAL;
	*stats = (struct rfs_stats) { .size = stats->size };
	rfs_queues_stats(dev, stats);
	stats->loads = atomic64_read(&dev->loads);
	stats->loaded = atomic64_read(&dev->loaded);
	stats->evicts = atomic64_read(&dev->evicts);
	stats->evicted = atomic64_read(&dev->evicted);
	stats->files = atomic64_read(&rfs_sb(dev->sb)->nr_files);
	return 0;
}

struct rfs_command {
	unsigned int cmd;
	size_t size;
	int (*run)(struct rfs_dev *dev, union rfs_arg *arg);
	/* the answer tells something even if there was an error */
	bool answer_always;
};

static const struct rfs_command rfs_commands[] = {
	{ RFS_IOC_HELLO, sizeof(struct rfs_hello), rfs_cmd_hello },
	{ RFS_IOC_MASK, sizeof(struct rfs_mask), rfs_cmd_mask },
	{ RFS_IOC_LOWER_FD, sizeof(struct rfs_lower_fd), rfs_cmd_lower_fd },
	{ RFS_IOC_PATH, sizeof(struct rfs_path), rfs_cmd_path, true },
	{ RFS_IOC_LOAD, sizeof(struct rfs_load), rfs_cmd_load, true },
	{ RFS_IOC_STOP, sizeof(struct rfs_stop), rfs_cmd_stop },
	{ RFS_IOC_EVICT, sizeof(struct rfs_evict), rfs_cmd_evict },
	{ RFS_IOC_RESIDENT, sizeof(struct rfs_resident), rfs_cmd_resident },
	{ RFS_IOC_STATS, sizeof(struct rfs_stats), rfs_cmd_stats },
};

/* a later version's structure is longer, and so its command has another size */
static const struct rfs_command *rfs_find_command(unsigned int cmd)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(rfs_commands); i++)
		if ((rfs_commands[i].cmd & ~IOCSIZE_MASK) == (cmd & ~IOCSIZE_MASK))
			return &rfs_commands[i];
	return NULL;
}

long rfs_dev_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	const struct rfs_command *command = rfs_find_command(cmd);
	void __user *uarg = (void __user *)arg;
	struct rfs_dev *dev = file->private_data;
	union rfs_arg karg;
	int err;

	if (!command)
		return -ENOTTY;
	err = rfs_get_arg(&karg, command->size, uarg);
	if (err)
		return err;
	/* holds off the umount */
	down_read(&dev->sb_lock);
	err = dev->sb ? command->run(dev, &karg) : -ENODEV;
	up_read(&dev->sb_lock);
	if ((_IOC_DIR(command->cmd) & _IOC_READ) && (!err || command->answer_always)) {
		int put = rfs_put_arg(uarg, &karg, command->size);

		err = err ? err : put;
	}
	return err;
}

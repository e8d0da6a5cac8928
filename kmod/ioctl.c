// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: the commands of the device. After its argument is copied in, each checks
 * every field and takes the references it needs of the mount, under a lock that
 * the umount waits for. It then runs without the lock, and leaves its result in
 * the same structure. So the owner of the device may wait as long as it likes,
 * for a disk that hangs or for its own memory: no other process waits for it.
 */
#include <linux/cred.h>
#include <linux/fcntl.h>
#include <linux/file.h>
#include <linux/path.h>
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

/* a command under way */
struct rfs_call {
	struct rfs_dev *dev;
	union rfs_arg arg;
	struct rfs_below below;		/* its target, if it is a command on data */
	struct vfsmount *mnt;		/* pins lower */
	struct inode *lower;		/* of the file it is on */
	struct file *file;		/* for the descriptor in the result */
	char *page;			/* for the path in the result */
};

static int rfs_take_hello(struct rfs_call *call)
{
	struct rfs_hello *hello = &call->arg.hello;
	struct rfs_dev *dev = call->dev;

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

static int rfs_take_mask(struct rfs_call *call)
{
	const struct rfs_mask *mask = &call->arg.mask;
	bool progress = mask->kinds & BIT(RFS_EVENT_PROGRESS);

	if ((mask->kinds & ~RFS_KINDS) || mask->reserved)
		return -EINVAL;
	if (progress ? mask->progress_bytes < RFS_PROGRESS_MIN : mask->progress_bytes != 0)
		return -EINVAL;
	WRITE_ONCE(call->dev->progress_bytes, mask->progress_bytes);
	WRITE_ONCE(call->dev->kinds, mask->kinds & ~BIT(RFS_EVENT_LOST));
	return 0;
}

/*
 * Returns the inode of a file id with a reference, or NULL. That reference may
 * be the last one, but not the last of the inode below: dropping a deleted file
 * takes a disk.
 */
static struct inode *rfs_take_inode(struct rfs_call *call, u64 id)
{
	struct rfs_sb *rs = rfs_sb(call->dev->sb);
	struct inode *inode = rfs_find_file(rs, id);

	if (!inode)
		return NULL;
	call->mnt = mntget(rs->lower.mnt);
	call->lower = rfs_lower_inode(inode);
	ihold(call->lower);
	return inode;
}

/*
 * Takes references to the file below the regular file of that id. From here on
 * no reference to the mount is held, so that it may go while the command waits
 * for a disk.
 */
static int rfs_take_file(struct rfs_call *call, u64 id)
{
	struct rfs_sb *rs = rfs_sb(call->dev->sb);
	struct inode *inode = rfs_take_inode(call, id);
	struct dentry *dentry;
	int err = -EISDIR;

	if (!inode)
		return -ESTALE;
	if (!S_ISREG(inode->i_mode))
		goto out;
	err = -ESTALE;
	dentry = d_find_any_alias(inode);
	if (!dentry)
		goto out;
	call->below.path = rfs_lower_path(dentry);
	/* opened by a handle just now, and not open yet */
	if (!call->below.path.dentry)
		goto out_dentry;
	path_get(&call->below.path);
	call->below.cred = get_cred(rs->cred);
	call->below.mapping = rfs_mapping(inode);
	err = 0;
out_dentry:
	dput(dentry);
out:
	iput(inode);
	return err;
}

/* The same for commands on data: a range of it. */
static int rfs_take_range(struct rfs_call *call, u64 id, u64 offset, u64 length)
{
	if (!length || offset + length < offset || offset + length > LLONG_MAX)
		return -EINVAL;
	return rfs_take_file(call, id);
}

static int rfs_take_lower_fd(struct rfs_call *call)
{
	const struct rfs_lower_fd *req = &call->arg.lower_fd;

	if ((req->flags & ~O_DIRECT) || req->reserved)
		return -EINVAL;
	return rfs_take_file(call, req->file);
}

static int rfs_run_lower_fd(struct rfs_call *call)
{
	struct rfs_lower_fd *req = &call->arg.lower_fd;
	int fd = get_unused_fd_flags(O_CLOEXEC);

	if (fd < 0)
		return fd;
	call->file = rfs_open_lower(&call->below, req->flags);
	if (IS_ERR(call->file)) {
		put_unused_fd(fd);
		return PTR_ERR(call->file);
	}
	req->fd = fd;
	return 0;
}

/*
 * Is this still the file's path, or was it or a folder above it renamed below?
 * A file that was opened by its handle may have none.
 */
static bool rfs_path_current(const struct dentry *dentry)
{
	for (; !IS_ROOT(dentry); dentry = dentry->d_parent)
		if (!rfs_dentry_current(dentry))
			return false;
	return dentry == dentry->d_sb->s_root;
}

static int rfs_take_path(struct rfs_call *call)
{
	struct rfs_path *req = &call->arg.path;
	struct dentry *dentry;
	struct inode *inode;
	char *path;
	int err = -ENOENT;

	if (req->reserved)
		return -EINVAL;
	inode = rfs_take_inode(call, req->file);
	if (!inode)
		return -ESTALE;
	dentry = d_find_alias(inode);
	/* renamed or deleted below counts as without a name */
	if (!dentry || !rfs_path_current(dentry))
		goto out;
	path = dentry_path_raw(dentry, call->page, PAGE_SIZE);
	err = PTR_ERR_OR_ZERO(path);
	if (err)
		goto out;
	req->path_len = call->page + PAGE_SIZE - path;
out:
	dput(dentry);
	iput(inode);
	return err;
}

static int rfs_run_path(struct rfs_call *call)
{
	const struct rfs_path *req = &call->arg.path;
	/* the path is built from its end */
	const char *path = call->page + PAGE_SIZE - req->path_len;

	if (req->path_len > req->buf_len)
		return -ENAMETOOLONG;
	return copy_to_user(u64_to_user_ptr(req->buf), path, req->path_len) ? -EFAULT : 0;
}

static int rfs_take_load(struct rfs_call *call)
{
	struct rfs_load *load = &call->arg.load;

	if (load->flags & ~(RFS_LOAD_WAIT | RFS_LOAD_CHARGE | RFS_LOAD_LARGE))
		return -EINVAL;
	if (load->reserved || (load->charge && !(load->flags & RFS_LOAD_CHARGE)))
		return -EINVAL;
	load->done = 0;
	load->loaded = 0;
	return rfs_take_range(call, load->file, load->offset, load->length);
}

static int rfs_run_load(struct rfs_call *call)
{
	return rfs_load(call->dev, &call->below, &call->arg.load);
}

static int rfs_take_stop(struct rfs_call *call)
{
	struct rfs_stop *stop = &call->arg.stop;

	if (stop->reserved)
		return -EINVAL;
	stop->stopped = rfs_stop(call->dev, stop->cookie);
	return 0;
}

static int rfs_take_evict(struct rfs_call *call)
{
	const struct rfs_evict *evict = &call->arg.evict;

	if (evict->flags & ~RFS_EVICT_UNMAPPED)
		return -EINVAL;
	return rfs_take_range(call, evict->file, evict->offset, evict->length);
}

static int rfs_run_evict(struct rfs_call *call)
{
	return rfs_evict(call->dev, &call->below, &call->arg.evict);
}

static int rfs_take_resident(struct rfs_call *call)
{
	const struct rfs_resident *res = &call->arg.resident;

	if (res->flags || res->reserved || (res->bitmap_len && !res->bitmap))
		return -EINVAL;
	return rfs_take_range(call, res->file, res->offset, res->length);
}

static int rfs_run_resident(struct rfs_call *call)
{
	return rfs_resident(call->dev, call->below.mapping, &call->arg.resident);
}

static int rfs_take_stats(struct rfs_call *call)
{
	struct rfs_stats *stats = &call->arg.stats;
	struct rfs_dev *dev = call->dev;

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
	/* checks the argument, takes references of the mount; under sb_lock: doesn't wait */
	int (*take)(struct rfs_call *call);
	/* the part that may wait for a disk or for user memory, or NULL */
	int (*run)(struct rfs_call *call);
	/* the result is copied out even after an error */
	bool answer_always;
	/* it needs a page, whose allocation may take a while */
	bool page;
};

#define RFS_COMMAND(nr, name, ...) { nr, sizeof(struct rfs_##name), rfs_take_##name, __VA_ARGS__ }

static const struct rfs_command rfs_commands[] = {
	RFS_COMMAND(RFS_IOC_HELLO, hello),
	RFS_COMMAND(RFS_IOC_MASK, mask),
	RFS_COMMAND(RFS_IOC_LOWER_FD, lower_fd, rfs_run_lower_fd),
	RFS_COMMAND(RFS_IOC_PATH, path, rfs_run_path, .answer_always = true, .page = true),
	RFS_COMMAND(RFS_IOC_LOAD, load, rfs_run_load, .answer_always = true),
	RFS_COMMAND(RFS_IOC_STOP, stop),
	RFS_COMMAND(RFS_IOC_EVICT, evict, rfs_run_evict),
	RFS_COMMAND(RFS_IOC_RESIDENT, resident, rfs_run_resident),
	RFS_COMMAND(RFS_IOC_STATS, stats),
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

static int rfs_call_run(struct rfs_call *call, const struct rfs_command *command)
{
	int err;

	if (command->page) {
		call->page = (char *)__get_free_page(GFP_KERNEL);
		if (!call->page)
			return -ENOMEM;
	}
	/* this holds off the umount, so nothing in here waits */
	down_read(&call->dev->sb_lock);
	err = call->dev->sb ? command->take(call) : -ENODEV;
	up_read(&call->dev->sb_lock);
	if (!err && command->run)
		err = command->run(call);
	return err;
}

/* Copies the result out; a descriptor is installed only once its number is copied. */
static int rfs_call_answer(struct rfs_call *call, const struct rfs_command *command,
			   void __user *uarg, int err)
{
	struct file *file = IS_ERR(call->file) ? NULL : call->file;
	int put = 0;

	if ((_IOC_DIR(command->cmd) & _IOC_READ) && (!err || command->answer_always))
		put = rfs_put_arg(uarg, &call->arg, command->size);
	err = err ? err : put;
	if (!file)
		return err;
	if (err) {
		put_unused_fd(call->arg.lower_fd.fd);
		fput(file);
	} else {
		fd_install(call->arg.lower_fd.fd, file);
	}
	return err;
}

static void rfs_call_end(struct rfs_call *call)
{
	free_page((unsigned long)call->page);
	if (call->below.cred) {
		path_put(&call->below.path);
		put_cred(call->below.cred);
	}
	iput(call->lower);
	mntput(call->mnt);
}

long rfs_dev_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	const struct rfs_command *command = rfs_find_command(cmd);
	struct rfs_call call = { .dev = file->private_data };
	void __user *uarg = (void __user *)arg;
	int err;

	if (!command)
		return -ENOTTY;
	err = rfs_get_arg(&call.arg, command->size, uarg);
	if (err)
		return err;
	err = rfs_call_run(&call, command);
	err = rfs_call_answer(&call, command, uarg, err);
	rfs_call_end(&call);
	return err;
}

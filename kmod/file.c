// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: open files. Each has a file of the lower file system behind it, opened
 * with the mounter's credentials, and passes everything on.
 *
 * Nothing else is done in the mounter's name, as overlayfs does look-ups and
 * reads: a file system or a server that gives each user something else does so
 * through a bind mount, and has to do so through the mirror.
 */
#include <linux/fadvise.h>
#include <linux/magic.h>
#include <linux/refcount.h>
#include <linux/splice.h>
#include <linux/uaccess.h>
#include <linux/uio.h>
#include <uapi/linux/fsverity.h>
#include "rfs.h"
#include "compat/ops.h"
#include "compat/splice.h"

static const struct file_operations *rfs_fops_for(const struct file *lower, bool deny);

/* flags that open(2) has already handled */
#define RFS_OPEN_DROPPED (O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC)

int rfs_open(struct inode *inode, struct file *file)
{
	struct rfs_sb *rs = rfs_sb(inode->i_sb);
	/* under overlayfs the file's own dentry is that of overlayfs */
	struct path lower_path = rfs_lower_path(file_dentry(file));
	bool deny = READ_ONCE(rs->odirect_deny);
	struct file *lower;

	if (deny && (file->f_flags & O_DIRECT))
		return -EINVAL;
	lower = rfs_open_backing(file, (file->f_flags & ~RFS_OPEN_DROPPED) | O_NOATIME,
				 &lower_path, rs->cred);
	if (IS_ERR(lower))
		return PTR_ERR(lower);
	/* some pseudo file systems implement only the old read method */
	if (S_ISREG(inode->i_mode) && !lower->f_op->read_iter) {
		fput(lower);
		return -EOPNOTSUPP;
	}
	file->private_data = lower;
	rfs_copy_attr(inode);
	rfs_set_mapping(inode, lower_path.dentry);
	if (!deny)
		file->f_mode |= lower->f_mode & FMODE_CAN_ODIRECT;
	if (!S_ISREG(inode->i_mode))
		return 0;
	file->f_op = rfs_fops_for(lower, deny);
	/*
	 * cachestat, readahead and sync_file_range go by the mapping. But mmap(2)
	 * takes a file with a mapping of tmpfs for one of tmpfs, and looks for
	 * seals where an inode of tmpfs would have them.
	 */
	if (lower->f_mapping->host->i_sb->s_magic != TMPFS_MAGIC)
		file->f_mapping = lower->f_mapping;
	file->f_mode |= lower->f_mode & (FMODE_NOWAIT | FMODE_BUF_RASYNC);
	rfs_note_open(inode, file, RFS_EVENT_OPEN);
	return 0;
}

int rfs_release(struct inode *inode, struct file *file)
{
	if (S_ISREG(inode->i_mode))
		rfs_note_open(inode, file, RFS_EVENT_CLOSE);
	fput(rfs_lower_file(file));
	return 0;
}

/* O_DIRECT and the like may have been changed by fcntl(2) since the open */
static void rfs_sync_flags(struct file *lower, unsigned int flags)
{
	const unsigned int settable = O_APPEND | O_NONBLOCK | O_NDELAY | O_DIRECT;

	if (likely(!((lower->f_flags ^ flags) & settable)))
		return;
	spin_lock(&lower->f_lock);
	lower->f_flags = (lower->f_flags & ~settable) | (flags & settable);
	spin_unlock(&lower->f_lock);
}

/*
 * A direct read may complete later: the lower file system gets a request of its
 * own, whose completion completes the original one.
 */
struct rfs_aio {
	struct kiocb below;
	struct kiocb *above;
	refcount_t refs;	/* one is the submitter's, one the completion's */
};

static struct kmem_cache *rfs_aio_cache;

static void rfs_aio_put(struct rfs_aio *aio)
{
	if (!refcount_dec_and_test(&aio->refs))
		return;
	fput(aio->below.ki_filp);
	kmem_cache_free(rfs_aio_cache, aio);
}

void rfs_aio_finish(struct kiocb *below, long ret)
{
	struct rfs_aio *aio = container_of(below, struct rfs_aio, below);
	struct kiocb *above = aio->above;

	above->ki_pos = below->ki_pos;
	rfs_aio_put(aio);
	rfs_complete(above, ret);
}

static ssize_t rfs_aio_read(struct kiocb *iocb, struct iov_iter *iter, struct file *lower)
{
	struct rfs_aio *aio = kmem_cache_zalloc(rfs_aio_cache, GFP_KERNEL);
	ssize_t ret;

	if (!aio)
		return -ENOMEM;
	aio->above = iocb;
	refcount_set(&aio->refs, 2);
	kiocb_clone(&aio->below, iocb, get_file(lower));
	aio->below.ki_complete = rfs_aio_done;
	ret = lower->f_op->read_iter(&aio->below, iter);
	if (ret != -EIOCBQUEUED) {
		/* no completion will come: put its reference, too */
		iocb->ki_pos = aio->below.ki_pos;
		rfs_aio_put(aio);
	}
	rfs_aio_put(aio);
	return ret;
}

static ssize_t rfs_read_lower(struct kiocb *iocb, struct iov_iter *iter, struct file *lower)
{
	struct kiocb below;
	ssize_t ret;

	/* everything else is synchronous */
	if ((iocb->ki_flags & IOCB_DIRECT) && !is_sync_kiocb(iocb))
		return rfs_aio_read(iocb, iter, lower);
	kiocb_clone(&below, iocb, lower);
	below.ki_complete = NULL;
	/* the absent page shall wake the caller when it arrives */
	if (iocb->ki_flags & IOCB_WAITQ)
		below.ki_waitq = iocb->ki_waitq;
	ret = lower->f_op->read_iter(&below, iter);
	iocb->ki_pos = below.ki_pos;
	return ret;
}

static ssize_t rfs_read_iter(struct kiocb *iocb, struct iov_iter *iter)
{
	struct file *file = iocb->ki_filp;
	struct file *lower = rfs_lower_file(file);
	struct inode *inode = file_inode(file);
	size_t len = iov_iter_count(iter);
	u32 kinds = rfs_wanted(inode);
	loff_t pos = iocb->ki_pos;
	ssize_t ret, done;

	if (!len)
		return 0;
	rfs_sync_flags(lower, file->f_flags);
	if ((kinds & BIT(RFS_EVENT_MISS)) && !(iocb->ki_flags & IOCB_DIRECT))
		rfs_note_read(inode, pos, len);
	ret = rfs_read_lower(iocb, iter, lower);
	/* what completes later counts from now on: no process is known there */
	done = ret == -EIOCBQUEUED ?
		min_t(loff_t, len, i_size_read(rfs_lower_inode(inode)) - pos) : ret;
	if (kinds && done > 0)
		rfs_note_done(inode, 0, kinds, pos, done);
	return ret;
}

static ssize_t rfs_splice_read(struct file *file, loff_t *ppos, struct pipe_inode_info *pipe,
			       size_t len, unsigned int flags)
{
	struct file *lower = rfs_lower_file(file);
	struct inode *inode = file_inode(file);
	u32 kinds = rfs_wanted(inode);
	loff_t pos = *ppos;
	ssize_t ret;

	/* as reads, which make the events */
	if (READ_ONCE(rfs_sb(inode->i_sb)->splice_copy))
		return rfs_copy_splice_read(file, ppos, pipe, len, flags);
	if (!lower->f_op->splice_read)
		return -EINVAL;
	rfs_sync_flags(lower, file->f_flags);
	if ((kinds & BIT(RFS_EVENT_MISS)) && !(file->f_flags & O_DIRECT))
		rfs_note_read(inode, pos, len);
	ret = lower->f_op->splice_read(lower, ppos, pipe, len, flags);
	if (kinds && ret > 0)
		rfs_note_done(inode, 0, kinds, pos, ret);
	return ret;
}

/* Only the lower file knows holes, and positions in a directory. */
loff_t rfs_llseek_lower(struct file *file, loff_t offset, int whence)
{
	struct inode *inode = file_inode(file);
	struct file *lower = rfs_lower_file(file);
	loff_t pos;

	/* the lower file's position is only lent */
	inode_lock(inode);
	lower->f_pos = file->f_pos;
	pos = vfs_llseek(lower, offset, whence);
	if (pos >= 0)
		file->f_pos = pos;
	inode_unlock(inode);
	return pos;
}

static loff_t rfs_llseek(struct file *file, loff_t offset, int whence)
{
	struct inode *inode = file_inode(file);

	/* only a server may know where the end is */
	if (whence == SEEK_SET || whence == SEEK_CUR)
		return generic_file_llseek_size(file, offset, whence, inode->i_sb->s_maxbytes,
						i_size_read(rfs_lower_inode(inode)));
	return rfs_llseek_lower(file, offset, whence);
}

static int rfs_fadvise(struct file *file, loff_t offset, loff_t len, int advice)
{
	return vfs_fadvise(rfs_lower_file(file), offset, len, advice);
}

/*
 * Nothing is ever dirty here, and syncing the lower file is up to its writers.
 * A file that can't be synced below, as on erofs, fails in the same way here.
 */
int rfs_fsync(struct file *file, loff_t start, loff_t end, int datasync)
{
	return rfs_lower_file(file)->f_op->fsync ? 0 : -EINVAL;
}

int rfs_flush(struct file *file, fl_owner_t id)
{
	struct file *lower = rfs_lower_file(file);

	return lower->f_op->flush ? lower->f_op->flush(lower, id) : 0;
}

static int rfs_refuse_direct(int flags)
{
	return flags & O_DIRECT ? -EINVAL : 0;
}

/* Copies an argument that begins with its size; what we don't know must be zero. */
int rfs_get_arg(void *karg, size_t ksize, const void __user *uarg)
{
	u32 usize;

	if (get_user(usize, (const u32 __user *)uarg))
		return -EFAULT;
	if (usize < ksize)
		return -EINVAL;
	if (usize > PAGE_SIZE)
		return -E2BIG;
	return copy_struct_from_user(karg, ksize, uarg, usize);
}

int rfs_put_arg(void __user *uarg, const void *karg, size_t ksize)
{
	return copy_to_user(uarg, karg, ksize) ? -EFAULT : 0;
}

/* ioctls that only query a file are passed to the lower file */
static bool rfs_ioctl_is_below(unsigned int cmd)
{
	switch (cmd) {
	case FS_IOC_GETFLAGS:
	case FS_IOC_FSGETXATTR:
	case FS_IOC_GETVERSION:
	case FS_IOC_MEASURE_VERITY:
		return true;
	default:
		return false;
	}
}

/* on old kernels each file system refuses these itself when read-only */
static bool rfs_ioctl_writes(unsigned int cmd)
{
	switch (cmd) {
	case FS_IOC_SETFLAGS:
	case FS_IOC_FSSETXATTR:
		return true;
	default:
		return false;
	}
}

static long rfs_ioctl_below(struct file *file, unsigned int cmd, unsigned long arg)
{
	struct file *lower = rfs_lower_file(file);

	if (!lower->f_op->unlocked_ioctl)
		return -ENOTTY;
	return lower->f_op->unlocked_ioctl(lower, cmd, arg);
}

long rfs_file_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	void __user *uarg = (void __user *)arg;
	struct inode *inode = file_inode(file);
	struct rfs_file_info info;
	int err;

	if (rfs_ioctl_writes(cmd))
		return rfs_lower_file(file)->f_op->unlocked_ioctl ? -EROFS : -ENOTTY;
	if (rfs_ioctl_is_below(cmd))
		return rfs_ioctl_below(file, cmd, arg);
	if ((cmd & ~IOCSIZE_MASK) != (RFS_IOC_FILE & ~IOCSIZE_MASK))
		return -ENOTTY;
	err = rfs_get_arg(&info, sizeof(info), uarg);
	if (err)
		return err;
	info.device = rfs_sb(inode->i_sb)->dev->nr;
	info.file = rfs_i(inode)->id;
	return rfs_put_arg(uarg, &info, sizeof(info));
}

const struct file_operations rfs_file_fops = {
	.open			= rfs_open,
	.release		= rfs_release,
	.read_iter		= rfs_read_iter,
	.splice_read		= rfs_splice_read,
	.llseek			= rfs_llseek,
	.mmap			= rfs_mmap,
	.get_unmapped_area	= thp_get_unmapped_area,
	.fadvise		= rfs_fadvise,
	.fsync			= rfs_fsync,
	.flush			= rfs_flush,
	.unlocked_ioctl		= rfs_file_ioctl,
	.compat_ioctl		= compat_ptr_ioctl,
	RFS_NO_LEASES
};

/* Variants of rfs_file_fops, by what an open file refuses and what the lower file can do. */
#define RFS_FOPS_DENY		BIT(0)
#define RFS_FOPS_RASYNC		BIT(1)
#define RFS_FOPS_DONTCACHE	BIT(2)

static struct file_operations rfs_fops[2 * RFS_FOPS_DONTCACHE] __ro_after_init;

static const struct file_operations *rfs_fops_for(const struct file *lower, bool deny)
{
	return &rfs_fops[(deny ? RFS_FOPS_DENY : 0) |
			 (rfs_fops_rasync(lower->f_op) ? RFS_FOPS_RASYNC : 0) |
			 (rfs_fops_dontcache(lower->f_op) ? RFS_FOPS_DONTCACHE : 0)];
}

static void __init rfs_fops_init(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(rfs_fops); i++) {
		rfs_fops[i] = rfs_file_fops;
		/* odirect=deny, also for a later fcntl(2) */
		if (i & RFS_FOPS_DENY)
			rfs_fops[i].check_flags = rfs_refuse_direct;
		if (i & RFS_FOPS_RASYNC)
			rfs_fops_set_rasync(&rfs_fops[i]);
		if (i & RFS_FOPS_DONTCACHE)
			rfs_fops_set_dontcache(&rfs_fops[i]);
	}
}

int __init rfs_files_init(void)
{
	rfs_fops_init();
	rfs_aio_cache = KMEM_CACHE(rfs_aio, SLAB_HWCACHE_ALIGN);
	return rfs_aio_cache ? 0 : -ENOMEM;
}

void rfs_files_exit(void)
{
	kmem_cache_destroy(rfs_aio_cache);
}

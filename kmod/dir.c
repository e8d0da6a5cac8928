// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: directories, the dentries that tie a name to the dentry below, and the
 * making of inodes, which a lookup does
 *
 * d_fsdata holds the lower dentry, d_time its sequence count at the time of
 * the lookup. The count changes whenever the lower dentry gets another name,
 * parent or inode, or loses its name: one comparison tells whether a cached
 * dentry still stands for what is below. Names that don't exist are not
 * cached, so that new files show at once.
 */
#include <linux/namei.h>
#include <linux/seqlock.h>
#include "rfs.h"
#include "compat/ops.h"

static const struct inode_operations rfs_dir_iops;
static const struct file_operations rfs_dir_fops;

static unsigned long rfs_lower_seq(const struct dentry *lower)
{
	return raw_read_seqcount(&lower->d_seq);
}

/* Takes a reference to the lower dentry that d_release puts. */
void rfs_dentry_bind(struct dentry *dentry, struct dentry *lower)
{
	dentry->d_time = rfs_lower_seq(lower);
	WRITE_ONCE(dentry->d_fsdata, dget(lower));
}

static bool rfs_dentry_current(const struct dentry *dentry, const struct dentry *lower)
{
	return !d_unhashed(lower) && rfs_lower_seq(lower) == dentry->d_time;
}

int rfs_dentry_revalidate(struct dentry *dentry, unsigned int flags)
{
	struct dentry *lower = rfs_lower_dentry(dentry);
	struct inode *dir;
	int ret;

	/* the root is what was mounted, whatever its name is now */
	if (IS_ROOT(dentry))
		return 1;
	if (!lower || !rfs_dentry_current(dentry, lower))
		return 0;
	if (likely(!(lower->d_flags & DCACHE_OP_REVALIDATE)))
		return 1;
	/* a network file system below, or another stacked one */
	if (flags & LOOKUP_RCU)
		return -ECHILD;
	dir = d_inode(READ_ONCE(lower->d_parent));
	ret = rfs_revalidate_lower(dir, lower, flags);
	if (!ret)
		d_invalidate(lower);
	return ret;
}

static void rfs_d_release(struct dentry *dentry)
{
	dput(dentry->d_fsdata);
}

const struct dentry_operations rfs_dentry_ops = {
	.d_revalidate	= rfs_d_revalidate,
	.d_release	= rfs_d_release,
	.d_real		= rfs_d_real,
};

/* Gives a new inode the operations of what it stands for. */
static int rfs_set_ops(struct inode *inode)
{
	switch (inode->i_mode & S_IFMT) {
	case S_IFREG:
		inode->i_op = &rfs_file_iops;
		inode->i_fop = &rfs_file_fops;
		return 0;
	case S_IFDIR:
		inode->i_op = &rfs_dir_iops;
		inode->i_fop = &rfs_dir_fops;
		return rfs_notify_watch(inode);
	case S_IFLNK:
		inode->i_op = &rfs_symlink_iops;
		return 0;
	default:
		inode->i_op = &rfs_special_iops;
		init_special_inode(inode, inode->i_mode, rfs_lower_inode(inode)->i_rdev);
		return 0;
	}
}

/* Returns the inode that stands for the lower one, with a reference. */
struct inode *rfs_iget(struct super_block *sb, struct dentry *lower)
{
	struct inode *inode = rfs_get_inode(sb, d_inode(lower));
	bool hashed = !d_is_dir(lower);
	int err;

	if (!inode)
		return ERR_PTR(-ENOMEM);
	if (IS_ERR(inode) || (hashed && !rfs_inode_is_new(inode)))
		return inode;
	rfs_set_mapping(inode, lower);
	err = rfs_init_inode(inode);
	if (!err)
		err = rfs_set_ops(inode);
	if (err) {
		if (hashed)
			iget_failed(inode);
		else
			iput(inode);
		return ERR_PTR(err);
	}
	if (hashed)
		unlock_new_inode(inode);
	return inode;
}

/*
 * A lower unlink or rename after our lookup has asked, but before the dentry
 * was hashed, finds nothing to forget. So who hashes looks once more:
 *
 *	lookup					lower unlink
 *	lower = lookup below
 *						drop the last link
 *						rfs_forget: no dentry
 *	d_add(dentry)
 *	lower is gone: d_drop(dentry)
 */
static struct dentry *rfs_add(struct dentry *dentry, struct dentry *lower, struct inode *inode)
{
	rfs_dentry_bind(dentry, lower);
	d_add(dentry, inode);
	if (unlikely(!rfs_dentry_current(dentry, lower) || !rfs_lower_inode(inode)->i_nlink))
		d_drop(dentry);
	return NULL;
}

static struct dentry *rfs_lookup(struct inode *dir, struct dentry *dentry, unsigned int flags)
{
	struct dentry *base = rfs_lower_dentry(dentry->d_parent);
	struct dentry *lower, *ret = NULL;
	struct inode *inode;

	lower = rfs_lookup_lower(&dentry->d_name, base);
	if (IS_ERR(lower))
		return lower;
	/* ours is the only reference, so a positive dentry stays one */
	if (d_is_negative(lower))
		goto out;
	/* nothing to mount on demand can be mirrored */
	if (lower->d_flags & (DCACHE_NEED_AUTOMOUNT | DCACHE_MANAGE_TRANSIT)) {
		ret = ERR_PTR(-EREMOTE);
		goto out;
	}
	inode = rfs_iget(dir->i_sb, lower);
	if (IS_ERR(inode))
		/* deleted in the meantime: as if it never was */
		ret = PTR_ERR(inode) == -ESTALE ? NULL : ERR_CAST(inode);
	else
		ret = rfs_add(dentry, lower, inode);
out:
	dput(lower);
	return ret;
}

static int rfs_iterate(struct file *file, struct dir_context *ctx)
{
	struct file *lower = rfs_lower_file(file);
	int err;

	/* iterate_dir() goes by the lower file's position */
	lower->f_pos = ctx->pos;
	err = iterate_dir(lower, ctx);
	ctx->pos = lower->f_pos;
	return err;
}

static const struct inode_operations rfs_dir_iops = {
	.lookup		= rfs_lookup,
	.permission	= rfs_permission,
	.getattr	= rfs_getattr,
	.listxattr	= rfs_listxattr,
	RFS_ACL_OPS
};

static const struct file_operations rfs_dir_fops = {
	.open		= rfs_open,
	.release	= rfs_release,
	.read		= generic_read_dir,
	.iterate_shared	= rfs_iterate,
	.llseek		= rfs_llseek_lower,
	.fsync		= rfs_fsync,
	.unlocked_ioctl	= rfs_file_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
};

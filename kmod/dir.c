// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: directories, the dentries that tie a name to the dentry below, and the
 * creation of inodes, which a lookup does
 *
 * d_fsdata holds the lower dentry, d_time its sequence count at a time when it
 * was seen to have the looked-up name. The count changes whenever the lower
 * dentry gets another name, parent or inode, or loses its name: one comparison
 * tells whether a cached dentry is still current. That is so for a name that
 * doesn't exist, too, where the kernel has a dentry for it below that can only
 * become a file's: a new file is visible at once.
 */
#include <linux/namei.h>
#include <linux/sched/signal.h>
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
void rfs_dentry_bind(struct dentry *dentry, struct dentry *lower, unsigned int seq)
{
	dentry->d_time = seq;
	WRITE_ONCE(dentry->d_fsdata, dget(lower));
}

/*
 * For what d_obtain_alias() returns: a new dentry, which others find from then
 * on, or one that has its lower dentry, or gets it from another caller.
 */
void rfs_dentry_bind_alias(struct dentry *dentry, struct dentry *lower)
{
	unsigned int seq = rfs_lower_seq(lower);

	/* not under our lock: taking a reference may take the lower dentry's */
	dget(lower);
	spin_lock(&dentry->d_lock);
	if (!dentry->d_fsdata) {
		dentry->d_time = seq;
		WRITE_ONCE(dentry->d_fsdata, lower);
		lower = NULL;
	}
	spin_unlock(&dentry->d_lock);
	dput(lower);
}

/* Does the lower dentry still have this name, as far as is known without asking a server? */
bool rfs_dentry_current(const struct dentry *dentry)
{
	const struct dentry *lower = rfs_lower_dentry(dentry);

	return lower && !d_unhashed(lower) && rfs_lower_seq(lower) == dentry->d_time;
}

/* The lower dentry may get another name and parent while its file system sleeps. */
static int rfs_revalidate_named(struct dentry *lower, unsigned int flags)
{
	struct dentry *parent = dget_parent(lower);
	struct name_snapshot name;
	int ret;

	take_dentry_name_snapshot(&name, lower);
	ret = rfs_revalidate_lower(d_inode(parent), &name.name, lower, flags);
	release_dentry_name_snapshot(&name);
	dput(parent);
	return ret;
}

int rfs_dentry_revalidate(struct dentry *dentry, unsigned int flags)
{
	struct dentry *lower = rfs_lower_dentry(dentry);
	int ret;

	/* the root is the mounted directory, whatever its name is now */
	if (IS_ROOT(dentry))
		return 1;
	if (!rfs_dentry_current(dentry))
		return 0;
	if (likely(!(lower->d_flags & DCACHE_OP_REVALIDATE)))
		return 1;
	/* a network file system below, or another stacked one */
	if (flags & LOOKUP_RCU)
		return -ECHILD;
	ret = rfs_revalidate_named(lower, flags);
	if (!ret)
		d_invalidate(lower);
	/* our name may belong to another dentry by now */
	if (ret > 0 && !rfs_dentry_current(dentry))
		return 0;
	return ret;
}

/*
 * A lower directory that is removed loses its negative dentries before, but not
 * those that we hold, which would keep it in memory.
 */
static void rfs_d_release(struct dentry *dentry)
{
	struct dentry *lower = dentry->d_fsdata;
	struct dentry *parent;

	if (lower && d_is_negative(lower)) {
		parent = dget_parent(lower);
		if (IS_DEADDIR(d_inode(parent)))
			d_drop(lower);
		dput(parent);
	}
	dput(lower);
}

const struct dentry_operations rfs_dentry_ops = {
	.d_revalidate	= rfs_d_revalidate,
	.d_release	= rfs_d_release,
	.d_real		= rfs_d_real,
};

/* Gives a new inode the operations of its type. */
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
 * was hashed, finds nothing to forget. So whichever hashes it checks again:
 *
 *	lookup					lower unlink
 *	lower = lookup below
 *						drop the last link
 *						rfs_forget: no dentry
 *	d_add(dentry)
 *	lower is gone: d_drop(dentry)
 */
static struct dentry *rfs_add(struct dentry *dentry, struct dentry *lower, unsigned int seq,
			      struct inode *inode)
{
	rfs_dentry_bind(dentry, lower, seq);
	d_add(dentry, inode);
	if (unlikely(!rfs_dentry_current(dentry) || !rfs_lower_inode(inode)->i_nlink))
		d_drop(dentry);
	return NULL;
}

static bool rfs_same_name(const struct dentry *lower, const struct dentry *base,
			  const struct qstr *name)
{
	if (unlikely(base->d_flags & DCACHE_OP_COMPARE))
		return !base->d_op->d_compare(lower, lower->d_name.len, lower->d_name.name, name);
	return lower->d_name.len == name->len &&
	       !memcmp(lower->d_name.name, name->name, name->len);
}

/* Is this the lower dentry's name? Returns the sequence count for which that is true. */
static bool rfs_is_named(struct dentry *lower, const struct dentry *base, const struct qstr *name,
			 unsigned int *seq)
{
	bool named;

	/* renames take this lock */
	spin_lock(&lower->d_lock);
	*seq = rfs_lower_seq(lower);
	named = lower->d_parent == base && rfs_same_name(lower, base, name);
	spin_unlock(&lower->d_lock);
	return named;
}

/*
 * Looks up the name below, and the sequence count at which it was found. A
 * rename after the lookup must not be taken for the state in which it was found:
 *
 *	lookup					lower rename
 *	lower = lookup below
 *						lower gets another name, and count
 *	d_time = the new count: would be
 *	taken for current forever
 */
static struct dentry *rfs_lookup_named(const struct qstr *name, struct dentry *base,
				       unsigned int *seq)
{
	struct dentry *lower, *last = NULL;
	unsigned int last_seq = 0;

	for (;;) {
		lower = rfs_lookup_one(name, base);
		if (IS_ERR(lower) || d_is_negative(lower) || rfs_is_named(lower, base, name, seq))
			break;
		/* found twice, unchanged in between: it has several names, as on vfat */
		if (lower == last && *seq == last_seq)
			break;
		dput(last);
		last = lower;
		last_seq = *seq;
		if (fatal_signal_pending(current)) {
			lower = ERR_PTR(-EINTR);
			break;
		}
	}
	dput(last);
	return lower;
}

/*
 * Does a new file of that name get this negative dentry? Not if a server may make
 * it, names are compared in a way of their own, or the file system wants to have no
 * such dentries, and may add another one.
 */
static bool rfs_becomes_new_file(const struct dentry *lower)
{
	return !(lower->d_flags & (DCACHE_OP_HASH | DCACHE_OP_COMPARE | DCACHE_OP_REVALIDATE |
				   DCACHE_OP_DELETE | DCACHE_DONTCACHE));
}

/* As rfs_add(), for a name that doesn't exist, if that can be relied on. */
static void rfs_add_absent(struct dentry *dentry, struct dentry *lower, struct dentry *base)
{
	unsigned int seq;

	if (!rfs_becomes_new_file(lower) || !rfs_is_named(lower, base, &dentry->d_name, &seq))
		return;
	rfs_dentry_bind(dentry, lower, seq);
	d_add(dentry, NULL);
	if (unlikely(!rfs_dentry_current(dentry) || d_is_positive(lower)))
		d_drop(dentry);
}

static struct dentry *rfs_lookup(struct inode *dir, struct dentry *dentry, unsigned int flags)
{
	struct dentry *base = rfs_lower_dentry(dentry->d_parent);
	struct dentry *lower, *ret = NULL;
	struct inode *inode;
	unsigned int seq;

	lower = rfs_lookup_named(&dentry->d_name, base, &seq);
	if (IS_ERR(lower))
		return lower;
	/* ours is the only reference, so a positive dentry stays one */
	if (d_is_negative(lower)) {
		rfs_add_absent(dentry, lower, base);
		goto out;
	}
	/* automount points can't be mirrored */
	if (lower->d_flags & (DCACHE_NEED_AUTOMOUNT | DCACHE_MANAGE_TRANSIT)) {
		ret = ERR_PTR(-EREMOTE);
		goto out;
	}
	inode = rfs_iget(dir->i_sb, lower);
	if (IS_ERR(inode))
		/* deleted in the meantime: as if it had never existed */
		ret = PTR_ERR(inode) == -ESTALE ? NULL : ERR_CAST(inode);
	else
		ret = rfs_add(dentry, lower, seq, inode);
out:
	dput(lower);
	return ret;
}

static int rfs_iterate(struct file *file, struct dir_context *ctx)
{
	struct file *lower = rfs_lower_file(file);
	int err;

	/* iterate_dir() uses the lower file's position */
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
	RFS_FILEATTR_OPS
};

static const struct file_operations rfs_dir_fops = {
	.open		= rfs_open,
	.release	= rfs_release,
	.read		= generic_read_dir,
	.iterate_shared	= rfs_iterate,
	.llseek		= rfs_llseek_lower,
	.fsync		= rfs_fsync,
	.flush		= rfs_flush,
	RFS_NO_LEASES
	.unlocked_ioctl	= rfs_file_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
};

// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: inodes. Each stands for one inode below and lives only as long as it is
 * used, so that no file that was deleted below is kept alive. A lookup creates
 * them: see dir.c.
 */
#include <linux/fs_stack.h>
#include <linux/posix_acl.h>
#include <linux/xattr.h>
#include "rfs.h"
#include "compat/ops.h"

/* the flags that mean the same on a read-only mirror */
#define RFS_COPIED_FLAGS (S_SYNC | S_NOATIME | S_APPEND | S_IMMUTABLE)

/* rfs can be stacked on rfs: each depth has locks of its own kind */
static struct lock_class_key rfs_lock_key[FILESYSTEM_MAX_STACK_DEPTH];
static struct lock_class_key rfs_dir_lock_key[FILESYSTEM_MAX_STACK_DEPTH];

static void rfs_annotate_lock(struct inode *inode)
{
	int depth = inode->i_sb->s_stack_depth - 1;

	if (WARN_ON_ONCE(depth < 0 || depth >= FILESYSTEM_MAX_STACK_DEPTH))
		return;
	if (S_ISDIR(inode->i_mode))
		lockdep_set_class(&inode->i_rwsem, &rfs_dir_lock_key[depth]);
	else
		lockdep_set_class(&inode->i_rwsem, &rfs_lock_key[depth]);
}

/* a mirror must not restore a permission that the lower mount takes away */
static bool rfs_is_nosuid(const struct super_block *sb)
{
	return rfs_sb(sb)->lower.mnt->mnt_flags & MNT_NOSUID;
}

/*
 * For code that reads the inode without calling getattr: exec, protected
 * symlinks. It takes no lock, so each value is stored once and is right from the
 * start. Flags that aren't copied must not be cleared: IMA keeps its own state
 * of the inode in one.
 */
void rfs_copy_attr(struct inode *inode)
{
	struct inode *lower = rfs_lower_inode(inode);
	umode_t mode = READ_ONCE(lower->i_mode);

	if (rfs_is_nosuid(inode->i_sb))
		mode &= ~(S_ISUID | S_ISGID);
	spin_lock(&inode->i_lock);
	WRITE_ONCE(inode->i_mode, mode);
	inode->i_uid = lower->i_uid;
	inode->i_gid = lower->i_gid;
	inode->i_rdev = lower->i_rdev;
	inode->i_blkbits = lower->i_blkbits;
	fsstack_copy_attr_times(inode, lower);
	inode_set_flags(inode, lower->i_flags & RFS_COPIED_FLAGS, RFS_COPIED_FLAGS);
	set_nlink(inode, lower->i_nlink);
	i_size_write(inode, i_size_read(lower));
	spin_unlock(&inode->i_lock);
}

/* With a stacked file system below, the page cache is that of its own lower file. */
void rfs_set_mapping(struct inode *inode, struct dentry *lower)
{
	WRITE_ONCE(rfs_i(inode)->mapping, d_real_inode(lower)->i_mapping);
}

static int rfs_test_inode(struct inode *inode, void *lower)
{
	return rfs_lower_inode(inode) == lower;
}

/* takes a reference to the lower inode that evict_inode puts */
static int rfs_set_inode(struct inode *inode, void *lower)
{
	rfs_i(inode)->lower = igrab(lower);
	return rfs_i(inode)->lower ? 0 : -ESTALE;
}

/* Gives a new inode all but its operations: an id, the attributes, its locks' class. */
int rfs_init_inode(struct inode *inode)
{
	struct rfs_sb *rs = rfs_sb(inode->i_sb);
	struct inode *lower = rfs_lower_inode(inode);
	u64 id = atomic64_inc_return(&rs->next_id);
	int err;

	inode->i_ino = lower->i_ino;
	inode->i_generation = lower->i_generation;
	rfs_copy_attr(inode);
	rfs_annotate_lock(inode);
#ifdef CONFIG_FS_POSIX_ACL
	inode->i_acl = ACL_DONT_CACHE;
	inode->i_default_acl = ACL_DONT_CACHE;
#endif
	err = xa_err(xa_store(&rs->files, id, inode, GFP_KERNEL));
	if (err)
		return err;
	rfs_i(inode)->id = id;
	return 0;
}

/*
 * A directory gets an inode for each dentry: when it is renamed below, the old
 * dentry goes and a new one comes, and the two must not be aliases. Everything
 * else is found again by its lower inode, so that hard links are one file.
 */
struct inode *rfs_get_inode(struct super_block *sb, struct inode *lower)
{
	struct inode *inode;

	if (!S_ISDIR(lower->i_mode))
		return iget5_locked(sb, (unsigned long)lower, rfs_test_inode, rfs_set_inode, lower);
	inode = new_inode(sb);
	if (inode && rfs_set_inode(inode, lower)) {
		iput(inode);
		return ERR_PTR(-ESTALE);
	}
	return inode;
}

/* Returns the inode with a reference, or NULL if no file has this id now. */
struct inode *rfs_find_file(struct rfs_sb *rs, u64 id)
{
	struct inode *inode;

	if (id != (unsigned long)id)
		return NULL;
	/* under the lock evict_inode can't have erased it, so it is still memory */
	xa_lock(&rs->files);
	inode = xa_load(&rs->files, id);
	if (inode)
		inode = igrab(inode);
	xa_unlock(&rs->files);
	return inode;
}

/*
 * The caller doesn't open the lower file, the mounter does: NFS must not leave
 * the check to that.
 */
int rfs_inode_permission(struct mnt_idmap *idmap, struct inode *inode, int mask)
{
	return rfs_permission_lower(idmap, rfs_lower_inode(inode), mask & ~MAY_OPEN);
}

/*
 * A file system below may have several device numbers, as btrfs has one for each
 * subvolume and overlayfs for each layer, and number the files of each anew. So
 * the mirror has as many: its own for that of its root, and for each other one
 * another, kept until the mount goes.
 */
static int rfs_map_dev(struct rfs_sb *rs, struct kstat *stat, dev_t own)
{
	void *found;
	dev_t dev;
	int err;

	if (likely(stat->dev == rs->root_dev)) {
		stat->dev = own;
		return 0;
	}
	found = xa_load(&rs->other_devs, stat->dev);
	if (!found) {
		err = get_anon_bdev(&dev);
		if (err)
			return err;
		found = xa_cmpxchg(&rs->other_devs, stat->dev, NULL, xa_mk_value(dev), GFP_KERNEL);
		if (found)
			free_anon_bdev(dev);
		else
			found = xa_mk_value(dev);
	}
	if (xa_is_err(found))
		return xa_err(found);
	stat->dev = xa_to_value(found);
	return 0;
}

void rfs_free_devs(struct rfs_sb *rs)
{
	unsigned long lower;
	void *dev;

	xa_for_each(&rs->other_devs, lower, dev)
		free_anon_bdev(xa_to_value(dev));
	xa_destroy(&rs->other_devs);
}

int rfs_inode_getattr(struct mnt_idmap *idmap, const struct path *path, struct kstat *stat,
		      u32 request_mask, unsigned int flags)
{
	struct inode *inode = d_inode(path->dentry);
	struct path lower = rfs_lower_path(path->dentry);
	int err = vfs_getattr_nosec(&lower, stat, request_mask, flags);

	if (!err)
		err = rfs_map_dev(rfs_sb(inode->i_sb), stat, inode->i_sb->s_dev);
	if (err)
		return err;
	rfs_map_ids(idmap, inode->i_sb, stat);
	if (i_size_read(inode) != stat->size) {
		spin_lock(&inode->i_lock);
		i_size_write(inode, stat->size);
		spin_unlock(&inode->i_lock);
	}
	if (READ_ONCE(rfs_sb(inode->i_sb)->odirect_deny))
		rfs_hide_dioalign(stat);
	return 0;
}

static const char *rfs_get_link(struct dentry *dentry, struct inode *inode,
				struct delayed_call *done)
{
	if (!dentry)
		return ERR_PTR(-ECHILD);
	if (rfs_sb(inode->i_sb)->lower.mnt->mnt_flags & MNT_NOSYMFOLLOW)
		return ERR_PTR(-ELOOP);
	return vfs_get_link(rfs_lower_dentry(dentry), done);
}

/* a symlink that is not followed may still be read */
static int rfs_readlink(struct dentry *dentry, char __user *buffer, int len)
{
	return vfs_readlink(rfs_lower_dentry(dentry), buffer, len);
}

ssize_t rfs_listxattr(struct dentry *dentry, char *list, size_t size)
{
	return vfs_listxattr(rfs_lower_dentry(dentry), list, size);
}

static int rfs_xattr_get(const struct xattr_handler *handler, struct dentry *dentry,
			 struct inode *inode, const char *name, void *buffer, size_t size)
{
	struct dentry *lower = rfs_lower_dentry(dentry);
	bool is_caps = !strcmp(name, XATTR_NAME_CAPS);

	if (is_caps && rfs_is_nosuid(dentry->d_sb))
		return -ENODATA;
	/*
	 * The VFS has asked for permission already, with the mount's id mapping,
	 * and will express the owner of capabilities in the caller's user namespace:
	 * neither may be done again below.
	 */
	if (is_caps || !strncmp(name, XATTR_USER_PREFIX, XATTR_USER_PREFIX_LEN))
		return __vfs_getxattr(lower, d_inode(lower), name, buffer, size);
	return rfs_getxattr_lower(lower, name, buffer, size);
}

/* the empty prefix matches all names */
static const struct xattr_handler rfs_xattr_handler = {
	.prefix	= "",
	.get	= rfs_xattr_get,
};

const struct xattr_handler *const rfs_xattr_handlers[] = {
	&rfs_xattr_handler,
	NULL
};

static int rfs_fiemap(struct inode *inode, struct fiemap_extent_info *info, u64 start, u64 len)
{
	struct inode *lower = rfs_lower_inode(inode);

	if (!lower->i_op->fiemap)
		return -EOPNOTSUPP;
	return lower->i_op->fiemap(lower, info, start, len);
}

const struct inode_operations rfs_file_iops = {
	.permission	= rfs_permission,
	.getattr	= rfs_getattr,
	.listxattr	= rfs_listxattr,
	.fiemap		= rfs_fiemap,
	RFS_ACL_OPS
	RFS_FILEATTR_OPS
};

const struct inode_operations rfs_symlink_iops = {
	.get_link	= rfs_get_link,
	.readlink	= rfs_readlink,
	.permission	= rfs_permission,
	.getattr	= rfs_getattr,
	.listxattr	= rfs_listxattr,
};

const struct inode_operations rfs_special_iops = {
	.permission	= rfs_permission,
	.getattr	= rfs_getattr,
	.listxattr	= rfs_listxattr,
	RFS_ACL_OPS
};

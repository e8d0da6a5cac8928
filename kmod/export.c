// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: file handles, by which NFS servers and open_by_handle_at(2) name files.
 * They are those of the lower file system.
 *
 * A handle may name any file of that, also one that isn't below LOWER. Whether
 * it is shows in its dentry, if that is connected with the root, and the handle
 * of a file alone doesn't lead to such a dentry. So where LOWER isn't all of its
 * file system, handles include the parent directory.
 */
#include <linux/exportfs.h>
#include "rfs.h"

/* how often a path is followed anew because a directory in it was renamed */
#define RFS_MOST_TRIES	8

static bool rfs_is_whole(const struct rfs_sb *rs)
{
	return rs->lower.dentry == rs->lower.mnt->mnt_sb->s_root;
}

static int rfs_encode_fh(struct inode *inode, u32 *fh, int *max_len, struct inode *parent)
{
	struct dentry *alias = NULL, *dir = NULL;
	int type;

	if (!parent && !S_ISDIR(inode->i_mode) && !rfs_is_whole(rfs_sb(inode->i_sb))) {
		alias = d_find_any_alias(inode);
		if (alias && !IS_ROOT(alias)) {
			dir = dget_parent(alias);
			parent = d_inode(dir);
		}
	}
	type = rfs_encode_lower_fh(rfs_lower_inode(inode), (struct fid *)fh, max_len,
				   parent ? rfs_lower_inode(parent) : NULL);
	dput(dir);
	dput(alias);
	return type;
}

static int rfs_is_below(void *context, struct dentry *lower)
{
	const struct rfs_sb *rs = context;

	return is_subdir(lower, rs->lower.dentry);
}

static int rfs_may_be_below(void *context, struct dentry *lower)
{
	return rfs_is_whole(context) || rfs_is_below(context, lower);
}

/* Returns the child of @base that is @lower, or above it; NULL if @lower isn't below @base. */
static struct dentry *rfs_child_towards(struct dentry *base, struct dentry *lower)
{
	struct dentry *parent, *child = dget(lower);

	for (;;) {
		parent = dget_parent(child);
		if (parent == base)
			break;
		dput(child);
		if (parent == child) {
			child = NULL;
			break;
		}
		child = parent;
	}
	dput(parent);
	return child;
}

/* Looks up the entry of @dir that leads to @lower; -EAGAIN if it is renamed meanwhile. */
static struct dentry *rfs_step_towards(struct dentry *dir, struct dentry *lower)
{
	struct dentry *next, *child = rfs_child_towards(rfs_lower_dentry(dir), lower);
	struct name_snapshot name;

	if (!child)
		return ERR_PTR(-ESTALE);
	take_dentry_name_snapshot(&name, child);
	next = rfs_lookup_one(&name.name, dir);
	release_dentry_name_snapshot(&name);
	if (!IS_ERR(next) && rfs_lower_dentry(next) != child) {
		dput(next);
		next = ERR_PTR(-EAGAIN);
	}
	dput(child);
	return next;
}

/* Follows the path of a lower directory: a directory here has no dentry without one. */
static struct dentry *rfs_find_dir(struct super_block *sb, struct dentry *lower)
{
	struct dentry *next, *dir = dget(sb->s_root);
	int tries = RFS_MOST_TRIES;

	while (rfs_lower_dentry(dir) != lower) {
		next = rfs_step_towards(dir, lower);
		dput(dir);
		if (next == ERR_PTR(-EAGAIN))
			next = tries-- ? dget(sb->s_root) : ERR_PTR(-ESTALE);
		if (IS_ERR(next))
			return next;
		dir = next;
	}
	return dir;
}

/* Other files may be used by a dentry without a name, as below. */
static struct dentry *rfs_find_alias(struct super_block *sb, struct dentry *lower)
{
	struct inode *inode = rfs_iget(sb, lower);
	struct dentry *dentry;

	if (IS_ERR(inode))
		return ERR_CAST(inode);
	dentry = d_obtain_alias(inode);
	if (!IS_ERR(dentry))
		rfs_dentry_bind_alias(dentry, lower);
	return dentry;
}

static struct dentry *rfs_fh_to_dentry(struct super_block *sb, struct fid *fid, int fh_len,
				       int fh_type)
{
	struct rfs_sb *rs = rfs_sb(sb);
	struct dentry *dentry, *lower;

	lower = exportfs_decode_fh(rs->lower.mnt, fid, fh_len, fh_type, rfs_may_be_below, rs);
	if (IS_ERR(lower))
		return lower;
	if (d_is_dir(lower))
		dentry = rfs_find_dir(sb, lower);
	else
		dentry = rfs_find_alias(sb, lower);
	dput(lower);
	return dentry;
}

static struct dentry *rfs_fh_to_parent(struct super_block *sb, struct fid *fid, int fh_len,
				       int fh_type)
{
	struct rfs_sb *rs = rfs_sb(sb);
	struct dentry *parent, *dentry, *lower;

	lower = exportfs_decode_fh(rs->lower.mnt, fid, fh_len, fh_type, rfs_is_below, rs);
	if (IS_ERR(lower))
		return lower;
	parent = dget_parent(lower);
	dentry = rfs_find_dir(sb, parent);
	dput(parent);
	dput(lower);
	return dentry;
}

static const struct export_operations rfs_export_ops = {
	.encode_fh	= rfs_encode_fh,
	.fh_to_dentry	= rfs_fh_to_dentry,
	.fh_to_parent	= rfs_fh_to_parent,
};

/* Handles that can't be decoded below can't be here. */
void rfs_export_init(struct super_block *sb, const struct super_block *lower)
{
	if (lower->s_export_op && lower->s_export_op->fh_to_dentry)
		sb->s_export_op = &rfs_export_ops;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: the super block, its options, and the birth and death of a mount
 */
#include <linux/cred.h>
#include <linux/fs_parser.h>
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/seq_file.h>
#include <linux/statfs.h>
#include "rfs.h"

static struct kmem_cache *rfs_inode_cache;

/* flags copied from below, so that the mirror is trusted no more: programs, devices, signatures */
#define RFS_COPIED_IFLAGS \
	(SB_I_NOEXEC | SB_I_NODEV | SB_I_IMA_UNVERIFIABLE_SIGNATURE | SB_I_UNTRUSTED_MOUNTER)

/* options as parsed, before there is a super block to hold them */
struct rfs_options {
	bool odirect_deny;
	bool odirect_given;
	bool splice_copy;
	bool splice_given;
};

enum { OPT_ODIRECT, OPT_SPLICE, OPT_DEV };
enum { ODIRECT_PASS, ODIRECT_DENY };
enum { SPLICE_PASS, SPLICE_COPY };

static const struct constant_table rfs_odirect_table[] = {
	{ "pass", ODIRECT_PASS },
	{ "deny", ODIRECT_DENY },
	{}
};

static const struct constant_table rfs_splice_table[] = {
	{ "pass", SPLICE_PASS },
	{ "copy", SPLICE_COPY },
	{}
};

static const struct fs_parameter_spec rfs_parameters[] = {
	fsparam_enum("odirect", OPT_ODIRECT, rfs_odirect_table),
	fsparam_enum("splice", OPT_SPLICE, rfs_splice_table),
	fsparam_string("dev", OPT_DEV),
	{}
};

static int rfs_parse_param(struct fs_context *fc, struct fs_parameter *param)
{
	struct rfs_options *opts = fc->fs_private;
	struct fs_parse_result result;
	int opt = fs_parse(fc, rfs_parameters, param, &result);

	if (opt < 0)
		return opt;
	switch (opt) {
	case OPT_ODIRECT:
		opts->odirect_deny = result.uint_32 == ODIRECT_DENY;
		opts->odirect_given = true;
		return 0;
	case OPT_SPLICE:
		opts->splice_copy = result.uint_32 == SPLICE_COPY;
		opts->splice_given = true;
		return 0;
	case OPT_DEV:
		/* mount(8) hands the options it sees back to a remount */
		if (fc->purpose == FS_CONTEXT_FOR_RECONFIGURE)
			return 0;
		return invalfc(fc, "dev= is chosen by the kernel, leave it out");
	}
	return -EINVAL;
}

static struct inode *rfs_alloc_inode(struct super_block *sb)
{
	struct rfs_inode *ri = rfs_alloc_inode_sb(sb, rfs_inode_cache, GFP_KERNEL);

	if (!ri)
		return NULL;
	ri->lower = NULL;
	ri->mapping = NULL;
	ri->id = 0;
	ri->mark = NULL;
	ri->progress = NULL;
	ri->last_mapped = 0;
	ri->pin = (struct rfs_pin) { .inode = &ri->vfs_inode };
	atomic64_inc(&rfs_sb(sb)->nr_files);
	return &ri->vfs_inode;
}

/* also called for inodes that lost the race to stand for a lower one, and are never evicted */
static void rfs_destroy_inode(struct inode *inode)
{
	atomic64_dec(&rfs_sb(inode->i_sb)->nr_files);
}

static void rfs_free_inode(struct inode *inode)
{
	kmem_cache_free(rfs_inode_cache, rfs_i(inode));
}

static void rfs_evict_inode(struct inode *inode)
{
	struct rfs_sb *rs = rfs_sb(inode->i_sb);
	struct rfs_inode *ri = rfs_i(inode);

	truncate_inode_pages_final(&inode->i_data);
	clear_inode(inode);
	if (ri->id)
		xa_erase(&rs->files, ri->id);
	rfs_notify_unwatch(inode);
	rfs_progress_free(ri);
	iput(ri->lower);
}

static int rfs_statfs(struct dentry *dentry, struct kstatfs *buf)
{
	struct path lower = rfs_lower_path(dentry);
	int err = vfs_statfs(&lower, buf);

	if (!err)
		buf->f_type = RFS_SUPER_MAGIC;
	return err;
}

static int rfs_show_options(struct seq_file *m, struct dentry *root)
{
	const struct rfs_sb *rs = rfs_sb(root->d_sb);

	if (rs->odirect_deny)
		seq_puts(m, ",odirect=deny");
	else
		seq_puts(m, ",odirect=pass");
	if (rs->splice_copy)
		seq_puts(m, ",splice=copy");
	seq_printf(m, ",dev=%s", rs->dev->name);
	return 0;
}

static const struct super_operations rfs_super_ops = {
	.alloc_inode	= rfs_alloc_inode,
	.destroy_inode	= rfs_destroy_inode,
	.free_inode	= rfs_free_inode,
	.evict_inode	= rfs_evict_inode,
	/* an inode without a user must not pin the one below */
	.drop_inode	= rfs_drop_unused_inode,
	.statfs		= rfs_statfs,
	.show_options	= rfs_show_options,
};

/* the private mount that everything below is reached through */
static int rfs_clone_lower(struct fs_context *fc, struct super_block *sb)
{
	struct rfs_sb *rs = rfs_sb(sb);
	struct vfsmount *mnt;
	struct path path;
	int err;

	if (!fc->source)
		return invalfc(fc, "no lower directory: mount -t rfs LOWER MNT");
	/* in the kernel an empty path is the working directory */
	if (!*fc->source)
		return -ENOENT;
	err = kern_path(fc->source, LOOKUP_FOLLOW | LOOKUP_DIRECTORY, &path);
	if (err) {
		errorfc(fc, "lower directory %s: error %d", fc->source, err);
		return err;
	}
	err = -EINVAL;
	if (rfs_mnt_is_idmapped(path.mnt)) {
		errorfc(fc, "%s is an idmapped mount, which can't be mirrored",
			fc->source);
		goto out_path;
	}
	/* its setuid files have no effect where they are, but would have one here */
	if (path.mnt->mnt_sb->s_user_ns != sb->s_user_ns) {
		errorfc(fc, "%s belongs to another user namespace, which can't be mirrored",
			fc->source);
		goto out_path;
	}
	sb->s_stack_depth = path.mnt->mnt_sb->s_stack_depth + 1;
	if (sb->s_stack_depth > FILESYSTEM_MAX_STACK_DEPTH) {
		errorfc(fc, "%s is already stacked %d deep, the kernel's limit",
			fc->source, path.mnt->mnt_sb->s_stack_depth);
		goto out_path;
	}
	mnt = clone_private_mount(&path);
	if (IS_ERR(mnt)) {
		err = PTR_ERR(mnt);
		errorfc(fc, "%s can't be mirrored: error %d", fc->source, err);
		goto out_path;
	}
	/*
	 * Nothing is written below, not even access times. MNT_NOATIME is not needed
	 * for that, and NFS wouldn't ask its server for access times.
	 */
	mnt->mnt_flags |= MNT_READONLY;
	rs->lower.mnt = mnt;
	rs->lower.dentry = dget(path.dentry);
	err = 0;
out_path:
	path_put(&path);
	return err;
}

static struct dentry *rfs_make_root(struct super_block *sb)
{
	struct dentry *lower = rfs_sb(sb)->lower.dentry;
	struct inode *inode = rfs_iget(sb, lower);
	struct dentry *root;

	if (IS_ERR(inode))
		return ERR_CAST(inode);
	root = d_make_root(inode);
	if (!root)
		return ERR_PTR(-ENOMEM);
	/* a root has no name to lose */
	rfs_dentry_bind(root, lower, 0);
	return root;
}

static int rfs_fill_super(struct super_block *sb, struct fs_context *fc)
{
	struct rfs_options *opts = fc->fs_private;
	struct rfs_sb *rs = rfs_sb(sb);
	struct super_block *lower_sb;
	struct dentry *root;
	struct kstat stat;
	int err;

	err = rfs_clone_lower(fc, sb);
	if (!err)
		err = vfs_getattr_nosec(&rs->lower, &stat, STATX_TYPE, AT_STATX_DONT_SYNC);
	if (err)
		return err;
	rs->root_dev = stat.dev;
	lower_sb = rs->lower.mnt->mnt_sb;
	rs->cred = get_cred(current_cred());
	rs->odirect_deny = opts->odirect_deny;
	rs->splice_copy = opts->splice_copy;

	sb->s_magic = RFS_SUPER_MAGIC;
	sb->s_flags |= SB_RDONLY | (lower_sb->s_flags & SB_POSIXACL);
	sb->s_iflags |= lower_sb->s_iflags & RFS_COPIED_IFLAGS;
	rfs_set_noidmap(sb, lower_sb);
	if (rs->lower.mnt->mnt_flags & MNT_NOEXEC)
		sb->s_iflags |= SB_I_NOEXEC;
	if (rs->lower.mnt->mnt_flags & MNT_NODEV)
		sb->s_iflags |= SB_I_NODEV;
	sb->s_maxbytes = lower_sb->s_maxbytes;
	sb->s_blocksize = lower_sb->s_blocksize;
	sb->s_blocksize_bits = lower_sb->s_blocksize_bits;
	sb->s_time_gran = lower_sb->s_time_gran;
	sb->s_op = &rfs_super_ops;
	sb->s_xattr = rfs_xattr_table(rfs_xattr_handlers);
	rfs_set_dentry_ops(sb, &rfs_dentry_ops);
	rfs_export_init(sb, lower_sb);

	rs->dev = rfs_dev_create(sb);
	if (IS_ERR(rs->dev)) {
		err = PTR_ERR(rs->dev);
		rs->dev = NULL;
		errorfc(fc, "no device: error %d", err);
		return err;
	}
	root = rfs_make_root(sb);
	if (IS_ERR(root))
		return PTR_ERR(root);
	sb->s_root = root;
	return 0;
}

/* also the end of a fill_super that failed half-way */
static void rfs_kill_sb(struct super_block *sb)
{
	struct rfs_sb *rs = rfs_sb(sb);

	if (rs) {
		if (rs->dev)
			rfs_dev_shutdown(rs->dev);
		/* applying a lower change takes references that mustn't be left */
		down_write(&rs->notify_lock);
		rs->going = true;
		up_write(&rs->notify_lock);
	}
	kill_anon_super(sb);
	if (!rs)
		return;
	/* a lower unlink may still be about to find out that we are gone */
	rfs_notify_flush();
	rfs_vm_free(rs);
	if (rs->dev)
		rfs_dev_put(rs->dev);
	if (rs->cred)
		put_cred(rs->cred);
	dput(rs->lower.dentry);
	if (rs->lower.mnt)
		kern_unmount(rs->lower.mnt);
	rfs_free_devs(rs);
	xa_destroy(&rs->files);
	kfree(rs);
}

static int rfs_get_tree(struct fs_context *fc)
{
	struct rfs_sb *rs = kzalloc(sizeof(*rs), GFP_KERNEL);
	int err;

	if (!rs)
		return -ENOMEM;
	xa_init(&rs->files);
	xa_init(&rs->other_devs);
	init_rwsem(&rs->notify_lock);
	mutex_init(&rs->vm_lock);
	fc->s_fs_info = rs;
	err = get_tree_nodev(fc, rfs_fill_super);
	/* still ours if no super block has taken it over */
	kfree(fc->s_fs_info);
	fc->s_fs_info = NULL;
	return err;
}

static int rfs_reconfigure(struct fs_context *fc)
{
	struct rfs_sb *rs = rfs_sb(fc->root->d_sb);
	const struct rfs_options *opts = fc->fs_private;

	if ((fc->sb_flags_mask & SB_RDONLY) && !(fc->sb_flags & SB_RDONLY)) {
		errorfc(fc, "read-only by nature, can't be remounted read-write");
		return -EROFS;
	}
	if (opts->odirect_given)
		WRITE_ONCE(rs->odirect_deny, opts->odirect_deny);
	if (opts->splice_given)
		WRITE_ONCE(rs->splice_copy, opts->splice_copy);
	return 0;
}

static void rfs_free_fc(struct fs_context *fc)
{
	kfree(fc->fs_private);
}

static const struct fs_context_operations rfs_context_ops = {
	.free		= rfs_free_fc,
	.parse_param	= rfs_parse_param,
	.get_tree	= rfs_get_tree,
	.reconfigure	= rfs_reconfigure,
};

static int rfs_init_fs_context(struct fs_context *fc)
{
	struct rfs_options *opts = kzalloc(sizeof(*opts), GFP_KERNEL);

	if (!opts)
		return -ENOMEM;
	fc->fs_private = opts;
	fc->ops = &rfs_context_ops;
	return 0;
}

struct file_system_type rfs_fs_type = {
	.owner			= THIS_MODULE,
	.name			= "rfs",
	.fs_flags		= RFS_FS_FLAGS,
	.init_fs_context	= rfs_init_fs_context,
	.parameters		= rfs_parameters,
	.kill_sb		= rfs_kill_sb,
};

static void rfs_inode_init_once(void *obj)
{
	struct rfs_inode *ri = obj;

	inode_init_once(&ri->vfs_inode);
}

int rfs_inode_cache_create(void)
{
	rfs_inode_cache = kmem_cache_create("rfs_inode", sizeof(struct rfs_inode), 0,
					    SLAB_RECLAIM_ACCOUNT | SLAB_ACCOUNT,
					    rfs_inode_init_once);
	return rfs_inode_cache ? 0 : -ENOMEM;
}

void rfs_inode_cache_destroy(void)
{
	/* inodes are freed after a grace period */
	rcu_barrier();
	kmem_cache_destroy(rfs_inode_cache);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: forgetting names that go away below
 *
 * A cached dentry pins the lower dentry and its inode. Unlinked below, a file
 * would keep its blocks until memory gets short. So each directory we have in
 * memory carries a mark on its lower directory, and a name that is deleted,
 * moved away or replaced there is forgotten here at once. Correctness doesn't
 * depend on it: d_revalidate checks every cached dentry anyway.
 */
#include <linux/fsnotify_backend.h>
#include <linux/sched/mm.h>
#include "rfs.h"

#define RFS_NOTIFY_MASK (FS_DELETE | FS_MOVED_FROM | FS_MOVED_TO)

struct rfs_mark {
	struct fsnotify_mark mark;
	struct rfs_sb *rs;
	u64 id;
};

static struct fsnotify_group *rfs_group;

/* The name is gone below: drop its dentry. */
static void rfs_forget(struct inode *dir, const struct qstr *name)
{
	struct dentry *parent = d_find_any_alias(dir);
	struct qstr this = QSTR_INIT(name->name, name->len);
	struct dentry *dentry;

	if (!parent)
		return;
	this.hash = full_name_hash(parent, name->name, name->len);
	dentry = d_lookup(parent, &this);
	if (dentry) {
		d_invalidate(dentry);
		dput(dentry);
	}
	dput(parent);
}

/*
 * Called under the lower directory's lock. rs is there, as kill_sb waits for
 * marks to go before it frees it; but inodes and dentries may be on their way
 * out, and the umount must not meet one that we hold:
 *
 *	lower unlink				umount
 *	down_read, not going
 *	inode by its id, dentry by its name	down_write: waits for us
 *	forget, put, up_read
 *						going = true, up_write
 *	down_read, going: nothing to do		evict what is left
 */
static int rfs_handle_event(struct fsnotify_mark *mark, u32 mask, struct inode *inode,
			    struct inode *dir, const struct qstr *name, u32 cookie)
{
	struct rfs_mark *rm = container_of(mark, struct rfs_mark, mark);
	struct inode *ours;

	if (!name)
		return 0;
	down_read(&rm->rs->notify_lock);
	ours = rm->rs->going ? NULL : rfs_find_file(rm->rs, rm->id);
	if (ours) {
		rfs_forget(ours, name);
		iput(ours);
	}
	up_read(&rm->rs->notify_lock);
	return 0;
}

static void rfs_free_mark(struct fsnotify_mark *mark)
{
	kfree(container_of(mark, struct rfs_mark, mark));
}

static void rfs_freeing_mark(struct fsnotify_mark *mark, struct fsnotify_group *group)
{
}

static const struct fsnotify_ops rfs_notify_ops = {
	.handle_inode_event	= rfs_handle_event,
	.freeing_mark		= rfs_freeing_mark,
	.free_mark		= rfs_free_mark,
};

int rfs_notify_watch(struct inode *dir)
{
	struct rfs_inode *ri = rfs_i(dir);
	struct rfs_mark *rm = kzalloc(sizeof(*rm), GFP_KERNEL);
	unsigned int nofs;
	int err;

	if (!rm)
		return -ENOMEM;
	fsnotify_init_mark(&rm->mark, rfs_group);
	rm->mark.mask = RFS_NOTIFY_MASK;
	rm->rs = rfs_sb(dir->i_sb);
	rm->id = ri->id;
	/* reclaim evicts inodes and takes the group's lock for it: stay out of it */
	nofs = memalloc_nofs_save();
	err = rfs_add_mark(&rm->mark, ri->lower);
	memalloc_nofs_restore(nofs);
	if (err)
		fsnotify_put_mark(&rm->mark);
	else
		ri->mark = &rm->mark;
	return err;
}

void rfs_notify_unwatch(struct inode *dir)
{
	struct rfs_inode *ri = rfs_i(dir);

	if (!ri->mark)
		return;
	fsnotify_destroy_mark(ri->mark, rfs_group);
	fsnotify_put_mark(ri->mark);
	ri->mark = NULL;
}

/* after this no event for a directory that is gone is being handled */
void rfs_notify_flush(void)
{
	fsnotify_wait_marks_destroyed();
}

int rfs_notify_init(void)
{
	rfs_group = rfs_alloc_group(&rfs_notify_ops);
	return PTR_ERR_OR_ZERO(rfs_group);
}

void rfs_notify_exit(void)
{
	fsnotify_put_group(rfs_group);
	fsnotify_wait_marks_destroyed();
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * rfs - the read-only routing file system: declarations shared by its files
 */
#ifndef _RFS_H
#define _RFS_H

#include <linux/atomic.h>
#include <linux/fs.h>
#include <linux/fs_context.h>
#include <linux/hrtimer.h>
#include <linux/kref.h>
#include <linux/mm.h>
#include <linux/mount.h>
#include <linux/pagemap.h>
#include <linux/refcount.h>
#include <linux/rwsem.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/xarray.h>
#include <uapi/linux/rfs.h>

/* upper bound on one CPU's queue, in pages, which may be of 64 KiB */
#define RFS_QUEUE_PAGES		(SZ_1M >> PAGE_SHIFT)
/*
 * Delay from the first event to waking a sleeping reader: by then the process
 * that missed waits for the disk, so the wake-up costs it nothing, and a burst
 * is one wake-up.
 */
#define RFS_WAKE_DELAY_NS	50000
/* bytes after which a load checks whether to stop */
#define RFS_LOAD_CHUNK		SZ_2M
/* lower bound on progress_bytes: finer beacons cost more than they are worth */
#define RFS_PROGRESS_MIN	SZ_64K

struct rfs_queue;
struct rfs_progress;

/*
 * The device of a mount. It outlives the mount while a process holds it open;
 * sb is NULL once the mount is gone.
 */
struct rfs_dev {
	struct kref kref;
	char name[16];
	u32 nr;

	/* read for each event; 0 while no events are wanted */
	u32 kinds;
	pid_t reader;
	u64 progress_bytes;
	struct rfs_queue __percpu *queues;

	wait_queue_head_t wait;
	atomic_t armed;			/* the reader wants to be woken */
	struct hrtimer wake;		/* wakes it when this fires */
	atomic_t opened;
	struct mem_cgroup *memcg;	/* of the opener, pays for the queues, or NULL */
	struct mutex read_lock;		/* one read(2) at a time, and next_cpu */
	unsigned int next_cpu;

	/* held for reading by commands while they look at sb, never while they wait */
	struct rw_semaphore sb_lock;
	struct super_block *sb;
	bool dead;

	spinlock_t jobs_lock;		/* guards jobs */
	struct list_head jobs;		/* loads in flight */

	atomic64_t loads;
	atomic64_t loaded;
	atomic64_t evicts;
	atomic64_t evicted;
};

/*
 * The target of a command: a file below, with the mounter's credentials. It
 * keeps the lower file system busy, but pins neither the mount nor its inodes.
 */
struct rfs_below {
	struct path path;
	const struct cred *cred;
	struct address_space *mapping;	/* the path pins it */
};

/* the private data of a super block of rfs */
struct rfs_sb {
	struct path lower;		/* private mount and its root */
	const struct cred *cred;	/* of the mounter */
	bool odirect_deny;
	bool splice_copy;
	struct rfs_dev *dev;

	struct xarray files;		/* file id -> inode, no reference */
	atomic64_t next_id;
	atomic64_t nr_files;

	dev_t root_dev;			/* as stat(2) of LOWER shows it */
	struct xarray other_devs;	/* others below -> those that stand for them */

	/*
	 * Held for reading while a lower change is applied, which takes
	 * references: none may be left when the mount goes.
	 */
	struct rw_semaphore notify_lock;
	bool going;

	struct mutex vm_lock;		/* adding to vms */
	struct rfs_vm *vms;
};

/* what vm_private_data leads to: see mmap.c */
struct rfs_pin {
	struct inode *inode;
	/* unused in the pin of an inode: */
	refcount_t vmas;
	struct file *file;		/* the lower one, which pins the mount */
};

struct rfs_inode {
	struct inode vfs_inode;
	struct inode *lower;
	struct address_space *mapping;	/* where the pages are, below all stacking */
	u64 id;
	struct fsnotify_mark *mark;	/* directories only */
	struct rfs_progress *progress;
	pgoff_t last_mapped;		/* where a mapping was last faulted on */
	struct rfs_pin pin;
};

static inline struct rfs_sb *rfs_sb(const struct super_block *sb)
{
	return sb->s_fs_info;
}

static inline struct rfs_inode *rfs_i(const struct inode *inode)
{
	return container_of(inode, struct rfs_inode, vfs_inode);
}

static inline struct inode *rfs_lower_inode(const struct inode *inode)
{
	return rfs_i(inode)->lower;
}

static inline struct address_space *rfs_mapping(const struct inode *inode)
{
	return READ_ONCE(rfs_i(inode)->mapping);
}

/*
 * The dentry below: set once before the dentry is hashed, put by d_release. Of
 * an alias without a name, it may not be set yet: see rfs_dentry_bind_alias().
 */
static inline struct dentry *rfs_lower_dentry(const struct dentry *dentry)
{
	return READ_ONCE(dentry->d_fsdata);
}

/* the path below, without a reference of its own */
static inline struct path rfs_lower_path(const struct dentry *dentry)
{
	return (struct path) {
		.mnt = rfs_sb(dentry->d_sb)->lower.mnt,
		.dentry = rfs_lower_dentry(dentry),
	};
}

static inline struct file *rfs_lower_file(const struct file *file)
{
	return file->private_data;
}

/*
 * The files, each above those it calls: check.sh ensures that none calls back.
 */

/* super.c */
extern struct file_system_type rfs_fs_type;
int rfs_inode_cache_create(void);
void rfs_inode_cache_destroy(void);

/* dev.c */
struct rfs_dev *rfs_dev_create(struct super_block *sb);
void rfs_dev_shutdown(struct rfs_dev *dev);
void rfs_dev_put(struct rfs_dev *dev);
char *rfs_dev_node(umode_t *mode);
int rfs_devs_init(void);
void rfs_devs_exit(void);

/* ioctl.c */
long rfs_dev_ioctl(struct file *file, unsigned int cmd, unsigned long arg);

/* export.c */
void rfs_export_init(struct super_block *sb, const struct super_block *lower);

/* dir.c */
extern const struct dentry_operations rfs_dentry_ops;
struct inode *rfs_iget(struct super_block *sb, struct dentry *lower);
int rfs_dentry_revalidate(struct dentry *dentry, unsigned int flags);
bool rfs_dentry_current(const struct dentry *dentry);
void rfs_dentry_bind(struct dentry *dentry, struct dentry *lower, unsigned int seq);
void rfs_dentry_bind_alias(struct dentry *dentry, struct dentry *lower);

/* file.c */
extern const struct file_operations rfs_file_fops;
int rfs_open(struct inode *inode, struct file *file);
int rfs_release(struct inode *inode, struct file *file);
loff_t rfs_llseek_lower(struct file *file, loff_t offset, int whence);
int rfs_fsync(struct file *file, loff_t start, loff_t end, int datasync);
int rfs_flush(struct file *file, fl_owner_t id);
long rfs_file_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
int rfs_get_arg(void *karg, size_t ksize, const void __user *uarg);
int rfs_put_arg(void __user *uarg, const void *karg, size_t ksize);
void rfs_aio_finish(struct kiocb *below, long ret);
int rfs_files_init(void);
void rfs_files_exit(void);

/* notify.c */
int rfs_notify_init(void);
void rfs_notify_exit(void);
int rfs_notify_watch(struct inode *dir);
void rfs_notify_unwatch(struct inode *dir);
void rfs_notify_flush(void);

/* inode.c */
extern const struct inode_operations rfs_file_iops;
extern const struct inode_operations rfs_symlink_iops;
extern const struct inode_operations rfs_special_iops;
extern const struct xattr_handler *const rfs_xattr_handlers[];
struct inode *rfs_get_inode(struct super_block *sb, struct inode *lower);
int rfs_init_inode(struct inode *inode);
void rfs_set_mapping(struct inode *inode, struct dentry *lower);
struct inode *rfs_find_file(struct rfs_sb *rs, u64 id);
void rfs_copy_attr(struct inode *inode);
int rfs_inode_permission(struct mnt_idmap *idmap, struct inode *inode, int mask);
void rfs_free_devs(struct rfs_sb *rs);
int rfs_inode_getattr(struct mnt_idmap *idmap, const struct path *path, struct kstat *stat,
		      u32 request_mask, unsigned int flags);
ssize_t rfs_listxattr(struct dentry *dentry, char *list, size_t size);

/* mmap.c */
vm_fault_t rfs_map_table(struct vm_fault *vmf, pgoff_t start, pgoff_t end);
int rfs_mmap(struct file *file, struct vm_area_struct *vma);
void rfs_vm_free(struct rfs_sb *rs);

/* miss.c */
u32 rfs_wanted(const struct inode *inode);
void rfs_note_open(struct inode *inode, struct file *file, u32 kind);
void rfs_note_read(struct inode *inode, loff_t pos, size_t len);
void rfs_note_done(struct inode *inode, u32 flags, u32 kinds, loff_t pos, u64 len);
void rfs_note_fault(struct inode *inode, pgoff_t index, u32 kinds);
void rfs_progress_free(struct rfs_inode *ri);

/* load.c */
u64 rfs_load_features(void);
int rfs_load(struct rfs_dev *dev, const struct rfs_below *below, struct rfs_load *load);
u64 rfs_stop(struct rfs_dev *dev, u64 cookie);

/* evict.c */
int rfs_evict(struct rfs_dev *dev, const struct rfs_below *below, struct rfs_evict *evict);

/* pages.c */
pgoff_t rfs_next_gap(struct address_space *mapping, pgoff_t index, pgoff_t last);
pgoff_t rfs_next_cached(struct address_space *mapping, pgoff_t index, pgoff_t last);
int rfs_interrupted(const struct rfs_dev *dev);
int rfs_count_cached(const struct rfs_dev *dev, struct address_space *mapping,
		     pgoff_t index, pgoff_t last, unsigned long *bitmap, u64 *cached);
bool rfs_page_range(struct inode *lower, u64 offset, u64 length, pgoff_t *first, pgoff_t *last);
struct file *rfs_open_lower(const struct rfs_below *below, int flags);
int rfs_resident(const struct rfs_dev *dev, struct address_space *mapping,
		 struct rfs_resident *res);

/* queue.c */
int rfs_queues_create(struct rfs_dev *dev);
void rfs_queues_destroy(struct rfs_dev *dev);
void rfs_queues_open(struct rfs_dev *dev);
void rfs_queues_close(struct rfs_dev *dev);
bool rfs_queues_waiting(struct rfs_dev *dev);
void rfs_queues_stats(struct rfs_dev *dev, struct rfs_stats *stats);
unsigned int rfs_queues_pop(struct rfs_dev *dev, struct rfs_event *ev, unsigned int n);
void rfs_queues_lost(struct rfs_dev *dev, const struct rfs_event *ev, unsigned int n);
void rfs_queue_event(struct rfs_dev *dev, struct rfs_event *ev);

#endif /* _RFS_H */

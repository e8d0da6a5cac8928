/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * rfs: everything that differs between the kernels from 5.10 on. The other
 * files are written against the newest and see the names given here.
 */
#ifndef _RFS_COMPAT_H
#define _RFS_COMPAT_H

#include <linux/version.h>
#if LINUX_VERSION_CODE < KERNEL_VERSION(5, 10, 0)
#error "rfs needs Linux 5.10 or newer"
#endif
#if LINUX_VERSION_CODE >= RFS_MISSED_SINCE || LINUX_VERSION_CODE < RFS_MISSED_UNTIL
#error "this kernel should have what compat/probe.sh did not find; VERBOSE=1 names it"
#endif

#include <linux/cred.h>
#include <linux/dcache.h>
#include <linux/exportfs.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/fs_stack.h>
#include <linux/fsnotify_backend.h>
#include <linux/hrtimer.h>
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/mount.h>
#include <linux/namei.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/xattr.h>
#ifdef HAVE_BACKING_MMAP
#include <linux/backing-file.h>
#endif

/*
 * 5.12, 6.3: the id mapping became an argument. It is that of a mount of rfs, and
 * none before 6.12, which allows them.
 */
#if defined(HAVE_MNT_IDMAP)
#define rfs_permission_lower(idmap, inode, mask) inode_permission(idmap, inode, mask)
#define rfs_getxattr_lower(d, name, buf, size) vfs_getxattr(&nop_mnt_idmap, d, name, buf, size)
#elif defined(HAVE_MNT_USERNS)
#define rfs_permission_lower(idmap, inode, mask) inode_permission(&init_user_ns, inode, mask)
#define rfs_getxattr_lower(d, name, buf, size) vfs_getxattr(&init_user_ns, d, name, buf, size)
#else
#define rfs_permission_lower(idmap, inode, mask) inode_permission(inode, mask)
#define rfs_getxattr_lower(d, name, buf, size) vfs_getxattr(d, name, buf, size)
#endif

struct mnt_idmap;

/* Shows owner and group as a mount with this id mapping does. */
static inline void rfs_map_ids(struct mnt_idmap *idmap, const struct super_block *sb,
			       struct kstat *stat)
{
#ifdef HAVE_MNT_IDMAP
	stat->uid = vfsuid_into_kuid(make_vfsuid(idmap, sb->s_user_ns, stat->uid));
	stat->gid = vfsgid_into_kgid(make_vfsgid(idmap, sb->s_user_ns, stat->gid));
#endif
}

/*
 * 6.12: of file systems of a type that can have id mappings, some may refuse them.
 * What is asked for permission is below, so that has to know of them.
 */
#if defined(HAVE_MNT_IDMAP) && defined(SB_I_NOIDMAP)
#define RFS_FS_FLAGS FS_ALLOW_IDMAP
static inline void rfs_set_noidmap(struct super_block *sb, const struct super_block *lower)
{
	if (!(lower->s_type->fs_flags & FS_ALLOW_IDMAP) || (lower->s_iflags & SB_I_NOIDMAP))
		sb->s_iflags |= SB_I_NOIDMAP;
}
#else
#define RFS_FS_FLAGS 0
static inline void rfs_set_noidmap(struct super_block *sb, const struct super_block *lower)
{
}
#endif

static inline bool rfs_mnt_is_idmapped(const struct vfsmount *mnt)
{
#if defined(HAVE_IDMAPPED_MNT)
	return is_idmapped_mnt(mnt);
#elif defined(HAVE_MNT_USERNS)
	/* 5.12 to 5.16 have such mounts, but no helper to test for one */
	return mnt_user_ns(mnt) != &init_user_ns;
#else
	return false;
#endif
}

/* 6.7: the table of xattr handlers is const all through */
#ifdef HAVE_XATTR_TABLE_CONST
#define rfs_xattr_table(table) (table)
#else
#define rfs_xattr_table(table) ((const struct xattr_handler **)(table))
#endif

/* 5.18: inodes are put on the shrinker's list of their super block */
#ifdef HAVE_ALLOC_INODE_SB
#define rfs_alloc_inode_sb(sb, cache, gfp) alloc_inode_sb(sb, cache, gfp)
#else
#define rfs_alloc_inode_sb(sb, cache, gfp) kmem_cache_alloc(cache, gfp)
#endif

/* 6.18: renamed */
#ifdef HAVE_INODE_JUST_DROP
#define rfs_drop_unused_inode inode_just_drop
#else
#define rfs_drop_unused_inode generic_delete_inode
#endif

/* 6.19: i_state is read through an accessor */
static inline bool rfs_inode_is_new(struct inode *inode)
{
#ifdef HAVE_INODE_STATE_READ
	return inode_state_read_once(inode) & I_NEW;
#else
	return inode->i_state & I_NEW;
#endif
}

/* 6.17: s_d_op is set by a function */
static inline void rfs_set_dentry_ops(struct super_block *sb, const struct dentry_operations *ops)
{
#ifdef HAVE_SET_DEFAULT_D_OP
	set_default_d_op(sb, ops);
#else
	sb->s_d_op = ops;
#endif
}

/* 6.16: lookups by name take a qstr */
static inline struct dentry *rfs_lookup_one(const struct qstr *name, struct dentry *base)
{
#ifdef HAVE_LOOKUP_NOPERM
	return lookup_noperm_unlocked(&QSTR_LEN(name->name, name->len), base);
#else
	return lookup_one_len_unlocked(name->name, base, name->len);
#endif
}

/* 6.6: flags say whether the handle has to lead back to the file */
static inline int rfs_encode_lower_fh(struct inode *lower, struct fid *fid, int *max_len,
				      struct inode *parent)
{
#ifdef HAVE_ENCODE_FH_FLAGS
	return exportfs_encode_inode_fh(lower, fid, max_len, parent, 0);
#else
	return exportfs_encode_inode_fh(lower, fid, max_len, parent);
#endif
}

/* 6.14: d_revalidate is given the parent and the name */
static inline int rfs_revalidate_lower(struct inode *dir, const struct qstr *name,
				       struct dentry *lower, unsigned int flags)
{
	if (!(lower->d_flags & DCACHE_OP_REVALIDATE))
		return 1;
#ifdef HAVE_D_REVALIDATE_NAME
	return lower->d_op->d_revalidate(dir, name, lower, flags);
#else
	return lower->d_op->d_revalidate(lower, flags);
#endif
}

/* 6.13: timers are set up in one step */
static inline void rfs_init_timer(struct hrtimer *timer,
				  enum hrtimer_restart (*fire)(struct hrtimer *timer))
{
#ifdef HAVE_HRTIMER_SETUP
	hrtimer_setup(timer, fire, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
#else
	hrtimer_init(timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL);
	timer->function = fire;
#endif
}

/*
 * 6.0: a group declares that an inode may have several of its marks, and that
 * its locks are also taken in reclaim (6.11: no need to). Before, each mark
 * declared the former.
 */
#ifndef FSNOTIFY_GROUP_NOFS
#define FSNOTIFY_GROUP_NOFS 0
#endif

static inline struct fsnotify_group *rfs_alloc_group(const struct fsnotify_ops *ops)
{
#ifdef HAVE_FSNOTIFY_GROUP_FLAGS
	return fsnotify_alloc_group(ops, FSNOTIFY_GROUP_DUPS | FSNOTIFY_GROUP_NOFS);
#else
	return fsnotify_alloc_group(ops);
#endif
}

static inline int rfs_add_mark(struct fsnotify_mark *mark, struct inode *inode)
{
#ifdef HAVE_FSNOTIFY_GROUP_FLAGS
	return fsnotify_add_inode_mark(mark, inode, 0);
#else
	return fsnotify_add_inode_mark(mark, inode, true);
#endif
}

#if !IS_ENABLED(CONFIG_EXPORTFS)
#error "this kernel lacks CONFIG_EXPORTFS, which CONFIG_FHANDLE brings"
#endif

/* a kernel with these helpers in its headers need not be built with them */
#if defined(HAVE_BACKING_OPEN_FILE) || defined(HAVE_BACKING_OPEN_PATH)
#ifndef CONFIG_FS_STACK
#error "this kernel lacks CONFIG_FS_STACK, which overlayfs or FUSE passthrough bring"
#endif
#endif

/*
 * Opening the lower file such that /proc/PID/maps shows the path in rfs:
 * 6.5 made backing files of the fake paths, later they took the user's file.
 * They are built where overlayfs or fuse's passthrough is configured.
 *
 * A directory is not mapped, and has to have its own path where that is what
 * f_path is: overlayfs takes the dentry that it finds there for one of its own.
 */
static inline struct file *rfs_open_backing(struct file *user, int flags,
					    const struct path *lower, const struct cred *cred)
{
#if defined(HAVE_BACKING_OPEN_FILE)
	return backing_file_open(user, flags, lower, cred);
#elif defined(HAVE_BACKING_OPEN_PATH)
	return d_is_dir(lower->dentry) ? dentry_open(lower, flags, cred) :
	       backing_file_open(&user->f_path, flags, lower, cred);
#elif defined(HAVE_OPEN_FAKE_PATH)
	return d_is_dir(lower->dentry) ? dentry_open(lower, flags, cred) :
	       open_with_fake_path(&user->f_path, flags, d_inode(lower->dentry), cred);
#else
#error "this kernel has neither open_with_fake_path nor backing_file_open"
#endif
}

/* 6.8: there is a helper for it, which from 7.x on carries the LSM hook */
static inline int rfs_mmap_lower(struct file *user, struct file *lower,
				 struct vm_area_struct *vma, const struct cred *cred)
{
#ifdef HAVE_BACKING_MMAP
	struct backing_file_ctx ctx = {
		.cred = cred,
#ifdef HAVE_BACKING_CTX_USER_FILE
		.user_file = user,
#endif
	};

	return backing_file_mmap(lower, vma, &ctx);
#else
	if (!lower->f_op->mmap)
		return -ENODEV;
#ifdef HAVE_VMA_SET_FILE
	vma_set_file(vma, lower);
	return call_mmap(lower, vma);
#else
	{
		int err;

		/* before 5.11 the caller puts the file it gave when this fails */
		vma->vm_file = get_file(lower);
		err = call_mmap(lower, vma);
		fput(err ? lower : user);
		return err;
	}
#endif
#endif
}

/*
 * 5.12: filemap_map_pages() finds the address from the page offset. Before, it
 * trusts vmf->address, and maps wrong pages if that isn't moved along.
 */
static inline void rfs_move_window(struct vm_fault *vmf, unsigned long address)
{
#ifndef HAVE_MAP_PAGES_RETURNS
	vmf->address = address;
#endif
}

/* 5.12: map_pages returns whether it has done anything */
static inline vm_fault_t rfs_call_map_pages(const struct vm_operations_struct *ops,
					    struct vm_fault *vmf, pgoff_t start, pgoff_t end)
{
#ifdef HAVE_MAP_PAGES_RETURNS
	return ops->map_pages(vmf, start, end);
#else
	ops->map_pages(vmf, start, end);
	return 0;
#endif
}

/* 5.16: completions have one result; the second was for USB gadgets */
static inline void rfs_complete(struct kiocb *iocb, long ret)
{
#ifdef HAVE_KI_COMPLETE_RET2
	iocb->ki_complete(iocb, ret, 0);
#else
	iocb->ki_complete(iocb, ret);
#endif
}

/* 5.15: the readahead state is part of the control */
#ifdef HAVE_READAHEAD_RA
#define RFS_DEFINE_READAHEAD(name, file, ra, mapping, index) \
	DEFINE_READAHEAD(name, file, ra, mapping, index)
#else
#define RFS_DEFINE_READAHEAD(name, file, ra, mapping, index) \
	DEFINE_READAHEAD(name, file, mapping, index)
#endif

/* 6.16: the readahead state says how large the folios should be */
static inline void rfs_set_ra_order(struct file_ra_state *ra, unsigned int order)
{
#ifdef HAVE_RA_ORDER
	ra->order = order;
#endif
}

/* Before, it took a folio of that order to say so. */
static inline unsigned int rfs_folio_order_for(unsigned int order)
{
#ifdef HAVE_RA_ORDER
	return 0;
#else
	return order;
#endif
}

/* 5.13: page cache is charged to the active memory cgroup if there is one */
#if defined(HAVE_ACTIVE_MEMCG_CACHE) && defined(CONFIG_MEMCG)
#define RFS_CAN_CHARGE 1
#define rfs_charge_begin(memcg) set_active_memcg(memcg)
#define rfs_charge_end(old) ((void)set_active_memcg(old))
#else
#define RFS_CAN_CHARGE 0
#define rfs_charge_begin(memcg) ((void)(memcg), (struct mem_cgroup *)NULL)
#define rfs_charge_end(old) ((void)(old))
#endif

/*
 * Pages and objects allocated with __GFP_ACCOUNT are charged to this memory
 * cgroup instead of the caller's. It is what set_active_memcg() does in a process,
 * which modules can't call before 6.1; nothing is queued in interrupts.
 */
static inline struct mem_cgroup *rfs_pay_begin(struct mem_cgroup *memcg)
{
#ifdef CONFIG_MEMCG
	swap(current->active_memcg, memcg);
#endif
	return memcg;
}

static inline void rfs_pay_end(struct mem_cgroup *old)
{
	rfs_pay_begin(old);
}

/* 5.16: folios, which may be large */
static inline pgoff_t rfs_folio_end(struct page *page, pgoff_t index)
{
#ifdef HAVE_FOLIO
	struct folio *folio = page_folio(page);

	return folio->index + folio_nr_pages(folio);
#else
	return index + 1;
#endif
}

/* 6.18: a folio is mapped whole; the range of pages that are mapped with this one */
static inline void rfs_mapped_with(struct address_space *mapping, pgoff_t index,
				   pgoff_t *first, pgoff_t *last)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 18, 0)
	struct folio *folio = filemap_get_folio(mapping, index);

	if (!IS_ERR(folio)) {
		*first = folio->index;
		*last = folio->index + folio_nr_pages(folio) - 1;
		folio_put(folio);
		return;
	}
#endif
	*first = index;
	*last = index;
}

/*
 * 5.16: the page that a fault returns may be a huge one, which is mapped as one if the
 * pages of its table, from @from to @to, are all there and the table is not
 */
static inline bool rfs_fills_table(struct vm_fault *vmf, pgoff_t from, pgoff_t to)
{
#ifdef HAVE_FOLIO
	if (vmf->page && pmd_none(*vmf->pmd)) {
		struct folio *folio = page_folio(vmf->page);

		return folio_test_pmd_mappable(folio) && folio->index == from &&
		       folio->index + folio_nr_pages(folio) - 1 == to;
	}
#endif
	return false;
}

/*
 * 7.0: the caller holds the mapping's invalidate_lock, so that no hole is punched
 * meanwhile; before that page_cache_ra_unbounded() takes it by itself,
 * and no header shows which of the two a kernel does.
 */
static inline void rfs_ra_unbounded(struct readahead_control *ractl, unsigned long nr)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0)
	filemap_invalidate_lock_shared(ractl->mapping);
	page_cache_ra_unbounded(ractl, nr, 0);
	filemap_invalidate_unlock_shared(ractl->mapping);
#else
	page_cache_ra_unbounded(ractl, nr, 0);
#endif
}

/* Returns 1 when the page has arrived, 0 if it failed, -EINTR if the caller is killed. */
static inline int rfs_page_arrives(struct page *page)
{
#ifdef HAVE_FOLIO
	struct folio *folio = page_folio(page);

	return folio_wait_locked_killable(folio) ?: folio_test_uptodate(folio);
#else
	return wait_on_page_locked_killable(page) ?: PageUptodate(page);
#endif
}

/*
 * Waits for a page in flight and returns it; NULL if there is none or it failed,
 * -EINTR if the caller is killed first. Unlike read_mapping_page() this doesn't
 * count as an access: after one of ours, the reader's only one would make the
 * page active, and the kernel would swap process memory in its place.
 */
static inline struct page *rfs_await_page(struct address_space *mapping, pgoff_t index)
{
	struct page *page = pagecache_get_page(mapping, index, 0, 0);
	int arrived;

	if (!page)
		return NULL;
	arrived = rfs_page_arrives(page);
	if (arrived > 0)
		return page;
	put_page(page);
	return arrived ? ERR_PTR(arrived) : NULL;
}

/* 6.3: an absent folio is an error pointer */
#ifdef HAVE_FOLIO
static inline struct folio *rfs_find_folio(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = filemap_get_folio(mapping, index);

	return IS_ERR(folio) ? NULL : folio;
}
#endif

#if defined(HAVE_FOLIO) && defined(HAVE_READAHEAD_RA) && defined(CONFIG_TRANSPARENT_HUGEPAGE)
#define RFS_CAN_LARGE 1
#else
#define RFS_CAN_LARGE 0
#endif

/* 6.1: statx returns the alignment that O_DIRECT requires */
static inline void rfs_hide_dioalign(struct kstat *stat)
{
#ifdef HAVE_STATX_DIOALIGN
	stat->dio_mem_align = 0;
	stat->dio_offset_align = 0;
#endif
}

/* 7.0: leases are refused where there is no operation for them; before, they were allowed there */
#ifdef HAVE_SIMPLE_NOSETLEASE
#define RFS_NO_LEASES .setlease = simple_nosetlease,
#else
#define RFS_NO_LEASES
#endif

/*
 * Flags of a buffered read that a file has to support: retrying when the page
 * has arrived instead of waiting (io_uring; 6.10 made it a flag of the
 * operations), and leaving nothing in the page cache (6.14).
 */
#ifndef FMODE_BUF_RASYNC
#define FMODE_BUF_RASYNC ((__force fmode_t)0)
#endif
#ifdef FOP_BUFFER_RASYNC
#define rfs_fops_rasync(fops) ((fops)->fop_flags & FOP_BUFFER_RASYNC)
#define rfs_fops_set_rasync(fops) ((fops)->fop_flags |= FOP_BUFFER_RASYNC)
#else
#define rfs_fops_rasync(fops) ((void)(fops), false)
#define rfs_fops_set_rasync(fops) ((void)(fops))
#endif
#ifdef FOP_DONTCACHE
#define rfs_fops_dontcache(fops) ((fops)->fop_flags & FOP_DONTCACHE)
#define rfs_fops_set_dontcache(fops) ((fops)->fop_flags |= FOP_DONTCACHE)
#else
#define rfs_fops_dontcache(fops) ((void)(fops), false)
#define rfs_fops_set_dontcache(fops) ((void)(fops))
#endif

/* 6.0: O_DIRECT is a mode of the file */
#ifndef FMODE_CAN_ODIRECT
#define FMODE_CAN_ODIRECT ((__force fmode_t)0)
#endif

#endif /* _RFS_COMPAT_H */

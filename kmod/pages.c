// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: the page cache of the lower file: what is there, bring it in, drop it
 */
#include <linux/bitmap.h>
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/fadvise.h>
#include <linux/file.h>
#include <linux/memcontrol.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>
#include "rfs.h"
#include "trace.h"

/* a walk over the page cache lets others run after so many steps */
#define RFS_WALK_STEPS 4096
/* RESIDENT's bitmap is copied out in pieces of a page */
#define RFS_BITMAP_BITS (PAGE_SIZE * 8)

/* a huge page, too: the largest folio that readahead makes */
#define RFS_CHUNK_PAGES (RFS_LOAD_CHUNK >> PAGE_SHIFT)

/*
 * Returns the first page in [index, last] that is not in the page cache, or
 * something behind last. A node of the tree that is full of pages is passed in
 * one step, so that the look costs next to nothing where all is cached.
 */
pgoff_t rfs_next_gap(struct address_space *mapping, pgoff_t index, pgoff_t last)
{
	XA_STATE(xas, &mapping->i_pages, index);
	unsigned int steps = 0;

	rcu_read_lock();
	while (index <= last) {
		struct xa_node *node;
		unsigned int shift = 0;
		void *entry;

		xas_set(&xas, index);
		entry = xas_load(&xas);
		if (xas_retry(&xas, entry))
			continue;
		if (!entry || xa_is_value(entry))
			break;
		node = xas.xa_node;
		if (node) {
			/* an entry in a higher node is a folio as large as its slots */
			shift = node->shift;
			if (!shift && READ_ONCE(node->count) == XA_CHUNK_SIZE &&
			    !READ_ONCE(node->nr_values))
				shift = XA_CHUNK_SHIFT;
		}
		index = ((index >> shift) + 1) << shift;
		if (!index) {
			/* the last page there can be */
			index = last + 1;
			break;
		}
		if (unlikely(++steps % RFS_WALK_STEPS == 0)) {
			rcu_read_unlock();
			cond_resched();
			rcu_read_lock();
		}
	}
	rcu_read_unlock();
	return index;
}

/* Returns the first page in [index, last] that is in the page cache, or last + 1. */
pgoff_t rfs_next_cached(struct address_space *mapping, pgoff_t index, pgoff_t last)
{
	XA_STATE(xas, &mapping->i_pages, index);
	unsigned int steps = 0;
	pgoff_t found = last + 1;
	void *entry;

	rcu_read_lock();
	xas_for_each(&xas, entry, last) {
		if (xas_retry(&xas, entry))
			continue;
		if (!xa_is_value(entry)) {
			found = max_t(pgoff_t, index, xas.xa_index);
			break;
		}
		if (unlikely(++steps % RFS_WALK_STEPS == 0)) {
			xas_pause(&xas);
			rcu_read_unlock();
			cond_resched();
			rcu_read_lock();
		}
	}
	rcu_read_unlock();
	return found;
}

/* Counts the cached pages of [index, last]; with a bitmap sets their bits from bit 0 on. */
static u64 rfs_count_cached(struct address_space *mapping, pgoff_t index, pgoff_t last,
			    unsigned long *bitmap)
{
	pgoff_t first = index;
	u64 cached = 0;

	while (index <= last) {
		pgoff_t from = rfs_next_cached(mapping, index, last);

		if (from > last)
			break;
		index = min(rfs_next_gap(mapping, from, last), last + 1);
		cached += index - from;
		if (bitmap)
			bitmap_set(bitmap, from - first, index - from);
	}
	return cached;
}

/* a range in whole pages within the file: widened, for what is brought in or counted */
static bool rfs_page_range(struct inode *lower, u64 offset, u64 length, pgoff_t *first,
			   pgoff_t *last)
{
	u64 size = i_size_read(lower);
	u64 end = min(offset + length, size);

	if (offset >= end)
		return false;
	*first = offset >> PAGE_SHIFT;
	*last = (end - 1) >> PAGE_SHIFT;
	return true;
}

/*
 * Returns the lower file, opened by its own path: it keeps the lower file
 * system busy, but not the mount.
 */
struct file *rfs_open_lower(struct inode *inode, int flags)
{
	struct rfs_sb *rs = rfs_sb(inode->i_sb);
	struct dentry *dentry = d_find_any_alias(inode);
	struct path path;
	struct file *file;

	if (!dentry)
		return ERR_PTR(-ESTALE);
	path = rfs_lower_path(dentry);
	file = dentry_open(&path, O_RDONLY | O_LARGEFILE | O_NOATIME | flags, rs->cred);
	dput(dentry);
	return file;
}

/* a load in flight */
struct rfs_job {
	struct list_head list;
	struct rfs_dev *dev;
	u64 cookie;
	bool stop;

	struct file *file;
	struct address_space *mapping;
	/*
	 * The file is one of the file system that has the pages, and that reads
	 * ahead. Else, as with overlayfs or tmpfs below, it is asked by fadvise
	 * and read from, which every file system understands.
	 */
	bool plain;
};

static void rfs_job_begin(struct rfs_job *job, struct rfs_dev *dev, u64 cookie)
{
	struct address_space *mapping = job->mapping;

	job->dev = dev;
	job->cookie = cookie;
	job->stop = false;
	job->plain = job->file->f_mapping == mapping && mapping->a_ops->readahead &&
		     !IS_DAX(mapping->host);
	spin_lock(&dev->jobs_lock);
	list_add(&job->list, &dev->jobs);
	spin_unlock(&dev->jobs_lock);
}

static void rfs_job_end(struct rfs_job *job)
{
	spin_lock(&job->dev->jobs_lock);
	list_del(&job->list);
	spin_unlock(&job->dev->jobs_lock);
}

static bool rfs_job_stopped(const struct rfs_job *job)
{
	return READ_ONCE(job->stop) || READ_ONCE(job->dev->dead) || signal_pending(current);
}

u64 rfs_stop(struct rfs_dev *dev, u64 cookie)
{
	struct rfs_job *job;
	u64 stopped = 0;

	spin_lock(&dev->jobs_lock);
	list_for_each_entry(job, &dev->jobs, list) {
		if (cookie && job->cookie != cookie)
			continue;
		WRITE_ONCE(job->stop, true);
		stopped++;
	}
	spin_unlock(&dev->jobs_lock);
	return stopped;
}

/* Waits for one page. Returns the index of the page behind its folio, or an error. */
static s64 rfs_wait_page(struct rfs_job *job, pgoff_t index)
{
	loff_t pos = (loff_t)index << PAGE_SHIFT;
	struct page *page;
	ssize_t got;
	s64 next;
	u8 byte;

	if (!job->plain) {
		got = kernel_read(job->file, &byte, 1, &pos);
		return got < 0 ? got : (s64)index + 1;
	}
	page = rfs_await_page(job->mapping, index);
	/* absent or failed: who reads it hears why */
	if (!page)
		page = read_mapping_page(job->mapping, index, job->file);
	if (IS_ERR(page))
		return PTR_ERR(page);
	next = rfs_folio_end(page, index);
	put_page(page);
	return next;
}

/* Waits until the pages of [index, last] are there. Returns the first error. */
static int rfs_wait_pages(struct rfs_job *job, pgoff_t index, pgoff_t last, pgoff_t *done)
{
	s64 next;

	while (index <= last) {
		/* truncated in the meantime */
		if ((loff_t)index << PAGE_SHIFT >= i_size_read(job->mapping->host))
			break;
		next = rfs_wait_page(job, index);
		if (next < 0)
			return next;
		index = next;
		*done = min(index, last + 1);
		cond_resched();
	}
	return 0;
}

/* fadvise does no more than a readahead window at a time, which is at least this */
#define RFS_ADVISE_STEP SZ_128K

static void rfs_advise(struct rfs_job *job, pgoff_t index, unsigned long nr)
{
	loff_t pos = (loff_t)index << PAGE_SHIFT;
	loff_t end = pos + ((loff_t)nr << PAGE_SHIFT);

	for (; pos < end; pos += RFS_ADVISE_STEP)
		vfs_fadvise(job->file, pos, min_t(loff_t, RFS_ADVISE_STEP, end - pos),
			    POSIX_FADV_WILLNEED);
}

#if RFS_CAN_LARGE

/* the kernel adds 2 to the order of what was touched */
#define RFS_TOUCHED_ORDER (ilog2(RFS_CHUNK_PAGES) - 2)

/* left there, it would make the next reader read ahead where we were exact */
static void rfs_clear_mark(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = rfs_find_folio(mapping, index);

	if (!folio)
		return;
	folio_clear_readahead(folio);
	folio_put(folio);
}

/*
 * Reads one whole aligned huge page ahead. Returns false if nothing came of it
 * and the pages have to be read in the ordinary way.
 *
 * Of the exported ways into readahead only page_cache_async_ra() makes large
 * folios: as large as the window allows, going by the size of the folio whose
 * touch has called for it, or by what the readahead state says of that. So it
 * is told that a folio of 512 KiB was touched at the end of a window that ends
 * where ours begins.
 */
static bool rfs_read_large(struct file *file, pgoff_t index, unsigned long nr)
{
	struct address_space *mapping = file->f_mapping;
	struct file_ra_state ra = {
		.start = index - RFS_CHUNK_PAGES,
		.size = RFS_CHUNK_PAGES,
		.async_size = RFS_CHUNK_PAGES,
		.ra_pages = RFS_CHUNK_PAGES,
	};
	RFS_DEFINE_READAHEAD(ractl, file, &ra, mapping, index - RFS_CHUNK_PAGES);
	struct folio *touched;

	if (nr != RFS_CHUNK_PAGES || (index & (RFS_CHUNK_PAGES - 1)))
		return false;
	if (!mapping_large_folio_support(mapping))
		return false;
	touched = folio_alloc(GFP_KERNEL | __GFP_NOWARN | __GFP_NORETRY, RFS_TOUCHED_ORDER);
	if (!touched)
		return false;
	rfs_set_ra_order(&ra, RFS_TOUCHED_ORDER);
	page_cache_async_ra(&ractl, touched, RFS_CHUNK_PAGES);
	folio_put(touched);
	rfs_clear_mark(mapping, index);
	return rfs_next_cached(mapping, index, index) == index;
}

#else

static bool rfs_read_large(struct file *file, pgoff_t index, unsigned long nr)
{
	return false;
}

#endif

/* Asks for the absent pages of [index, last]. Returns how many are there that weren't. */
static u64 rfs_read_ahead(struct rfs_job *job, pgoff_t index, pgoff_t last, bool large)
{
	struct address_space *mapping = job->mapping;
	unsigned long nr = last - index + 1;
	u64 before = rfs_count_cached(mapping, index, last, NULL);
	u64 after;
	RFS_DEFINE_READAHEAD(ractl, job->file, &job->file->f_ra, mapping, index);

	if (before == nr)
		return 0;
	if (!job->plain)
		rfs_advise(job, index, nr);
	else if (!large || before || !rfs_read_large(job->file, index, nr))
		rfs_ra_unbounded(&ractl, nr);
	after = rfs_count_cached(mapping, index, last, NULL);
	return after > before ? after - before : 0;
}

/* bytes from the offset on that were gone through when index is the next page */
static u64 rfs_bytes_done(const struct rfs_load *load, pgoff_t index, pgoff_t last)
{
	u64 pos = (u64)index << PAGE_SHIFT;

	if (index > last)
		return load->length;
	return pos > load->offset ? pos - load->offset : 0;
}

/*
 * Goes through the range a chunk at a time. With RFS_LOAD_WAIT one chunk is
 * waited for while the next is on its way.
 */
static int rfs_load_range(struct rfs_job *job, struct rfs_load *load, pgoff_t first, pgoff_t last)
{
	bool wait = load->flags & RFS_LOAD_WAIT;
	pgoff_t index = first, waited = first, end;
	int err = 0;

	while (index <= last) {
		if (rfs_job_stopped(job)) {
			load->flags |= RFS_LOAD_STOPPED;
			break;
		}
		/* chunks end where large folios do */
		end = min(last, index | (RFS_CHUNK_PAGES - 1));
		load->loaded += rfs_read_ahead(job, index, end, load->flags & RFS_LOAD_LARGE);
		if (wait && index > waited) {
			err = rfs_wait_pages(job, waited, index - 1, &waited);
			if (err)
				break;
		}
		index = end + 1;
		cond_resched();
	}
	if (wait && !err && index > waited)
		err = rfs_wait_pages(job, waited, index - 1, &waited);
	load->done = rfs_bytes_done(load, err ? waited : index, last);
	return err;
}

/* Returns the memory cgroup of a process with a reference. */
static struct mem_cgroup *rfs_memcg_of(pid_t nr)
{
	struct mem_cgroup *memcg = ERR_PTR(-ESRCH);
	struct task_struct *task;
	struct mm_struct *mm;
	struct pid *pid;

	if (!RFS_CAN_CHARGE)
		return ERR_PTR(-EOPNOTSUPP);
	pid = find_get_pid(nr);
	task = get_pid_task(pid, PIDTYPE_PID);
	put_pid(pid);
	if (!task)
		return memcg;
	/* whom one may charge is whom one may signal, more or less */
	if (!capable(CAP_SYS_ADMIN) && !uid_eq(task_uid(task), current_uid())) {
		memcg = ERR_PTR(-EPERM);
		goto out;
	}
	mm = get_task_mm(task);
	if (!mm)
		goto out;
	memcg = get_mem_cgroup_from_mm(mm);
	mmput(mm);
	if (!memcg)
		memcg = ERR_PTR(-EOPNOTSUPP);
out:
	put_task_struct(task);
	return memcg;
}

/* what RFS_IOC_HELLO tells of loading */
u64 rfs_load_features(void)
{
	return (RFS_CAN_CHARGE ? RFS_FEATURE_CHARGE : 0) |
	       (RFS_CAN_LARGE ? RFS_FEATURE_LARGE : 0);
}

int rfs_load(struct rfs_dev *dev, struct inode *inode, struct rfs_load *load)
{
	struct mem_cgroup *memcg = NULL, *old;
	struct rfs_job job = { .mapping = rfs_mapping(inode) };
	pgoff_t first, last;
	int err = 0;

	if (load->flags & RFS_LOAD_CHARGE) {
		memcg = rfs_memcg_of(load->charge);
		if (IS_ERR(memcg))
			return PTR_ERR(memcg);
	}
	atomic64_inc(&dev->loads);
	load->done = load->length;
	if (!rfs_page_range(job.mapping->host, load->offset, load->length, &first, &last))
		goto out_memcg;
	job.file = rfs_open_lower(inode, 0);
	if (IS_ERR(job.file)) {
		load->done = 0;
		err = PTR_ERR(job.file);
		goto out_memcg;
	}
	rfs_job_begin(&job, dev, load->cookie);
	old = rfs_charge_begin(memcg);
	err = rfs_load_range(&job, load, first, last);
	rfs_charge_end(old);
	rfs_job_end(&job);
	fput(job.file);
	atomic64_add(load->loaded, &dev->loaded);
	trace_rfs_load(load->file, load->offset, load->length, load->loaded, err);
out_memcg:
	if (memcg)
		mem_cgroup_put(memcg);
	return err;
}

/* Pages wholly within the range, and the file's last one if the range reaches it. */
static bool rfs_inner_range(struct inode *lower, u64 offset, u64 length, pgoff_t *first,
			    pgoff_t *last)
{
	u64 size = i_size_read(lower);
	u64 end = offset + length;
	pgoff_t from = DIV_ROUND_UP_ULL(offset, PAGE_SIZE);
	pgoff_t to = end >= size ? DIV_ROUND_UP_ULL(size, PAGE_SIZE) : end >> PAGE_SHIFT;

	if (from >= to)
		return false;
	*first = from;
	*last = to - 1;
	return true;
}

/*
 * Pages that sit in other CPUs' batches can't be dropped before a drain, which
 * isn't exported: fadvise does it when it fails on a page. It would write out
 * what is dirty, so it is shown one clean page. Returns false without one.
 */
static bool rfs_drain_batches(struct inode *inode, pgoff_t index, pgoff_t last)
{
	struct address_space *mapping = rfs_mapping(inode);
	struct file *file;

	for (;; index++) {
		index = rfs_next_cached(mapping, index, last);
		if (index > last)
			return false;
		if (!xa_get_mark(&mapping->i_pages, index, PAGECACHE_TAG_DIRTY) &&
		    !xa_get_mark(&mapping->i_pages, index, PAGECACHE_TAG_WRITEBACK))
			break;
	}
	file = rfs_open_lower(inode, 0);
	if (IS_ERR(file))
		return false;
	vfs_fadvise(file, (loff_t)index << PAGE_SHIFT, PAGE_SIZE, POSIX_FADV_DONTNEED);
	fput(file);
	return true;
}

int rfs_evict(struct rfs_dev *dev, struct inode *inode, struct rfs_evict *evict)
{
	struct address_space *mapping = rfs_mapping(inode);
	pgoff_t first, last;
	loff_t pos, len;
	u64 before, after;

	evict->evicted = 0;
	evict->kept = 0;
	atomic64_inc(&dev->evicts);
	if (!rfs_inner_range(mapping->host, evict->offset, evict->length, &first, &last))
		return 0;
	before = rfs_count_cached(mapping, first, last, NULL);
	if (!before)
		return 0;
	pos = (loff_t)first << PAGE_SHIFT;
	len = (loff_t)(last - first + 1) << PAGE_SHIFT;
	if (!(evict->flags & RFS_EVICT_UNMAPPED))
		unmap_mapping_range(mapping, pos, len, 0);
	invalidate_mapping_pages(mapping, first, last);
	after = rfs_count_cached(mapping, first, last, NULL);
	if (after && rfs_drain_batches(inode, first, last)) {
		invalidate_mapping_pages(mapping, first, last);
		after = rfs_count_cached(mapping, first, last, NULL);
	}
	evict->kept = after;
	evict->evicted = before > after ? before - after : 0;
	atomic64_add(evict->evicted, &dev->evicted);
	trace_rfs_evict(evict->file, evict->offset, evict->length, evict->evicted, 0);
	return 0;
}

int rfs_resident(struct inode *inode, struct rfs_resident *res)
{
	struct address_space *mapping = rfs_mapping(inode);
	u8 __user *out = u64_to_user_ptr(res->bitmap);
	unsigned long *bitmap = NULL;
	pgoff_t first, last, end;
	int err = 0;

	res->pages = 0;
	res->cached = 0;
	if (!rfs_page_range(mapping->host, res->offset, res->length, &first, &last))
		return 0;
	res->pages = last - first + 1;
	if (res->bitmap) {
		if (res->bitmap_len < DIV_ROUND_UP_ULL(res->pages, 8))
			return -EMSGSIZE;
		bitmap = (unsigned long *)get_zeroed_page(GFP_KERNEL);
		if (!bitmap)
			return -ENOMEM;
	}
	for (; first <= last && !err; first = end + 1) {
		end = min(last, (pgoff_t)(first + RFS_BITMAP_BITS - 1));
		res->cached += rfs_count_cached(mapping, first, end, bitmap);
		if (signal_pending(current))
			err = -EINTR;
		if (!bitmap)
			continue;
		if (copy_to_user(out, bitmap, DIV_ROUND_UP(end - first + 1, 8)))
			err = -EFAULT;
		out += RFS_BITMAP_BITS / 8;
		bitmap_zero(bitmap, RFS_BITMAP_BITS);
	}
	free_page((unsigned long)bitmap);
	return err;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: drop pages of the lower file, including those that processes map
 */
#include <linux/fadvise.h>
#include <linux/file.h>
#include <linux/interval_tree_generic.h>
#include <linux/xarray.h>
#include "rfs.h"
#include "trace.h"

/* how many pages are unmapped and dropped at a time; no folio is larger, even of pages of 64 KiB */
#define RFS_EVICT_PAGES (max_t(unsigned long, SZ_64M, PMD_SIZE) >> PAGE_SHIFT)
/* ranges found under the lock that unmapping them takes itself */
#define RFS_EVICT_SPANS 16

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

static unsigned long rfs_vma_first(struct vm_area_struct *vma)
{
	return vma->vm_pgoff;
}

static unsigned long rfs_vma_last(struct vm_area_struct *vma)
{
	return vma->vm_pgoff + vma_pages(vma) - 1;
}

/* the kernel's own look-ups in this tree aren't exported */
INTERVAL_TREE_DEFINE(struct vm_area_struct, shared.rb, unsigned long, shared.rb_subtree_last,
		     rfs_vma_first, rfs_vma_last, static inline, rfs_vma_tree)

struct rfs_span {
	pgoff_t first;
	pgoff_t last;
};

/*
 * Finds the first few parts of [*index, last] that no process has locked into
 * memory. Returns how many, and sets *index to where to continue.
 */
static unsigned int rfs_unlocked_spans(struct address_space *mapping, pgoff_t *index,
				       pgoff_t last, struct rfs_span *span)
{
	struct vm_area_struct *vma;
	pgoff_t next = *index;
	unsigned int n = 0;

	i_mmap_lock_read(mapping);
	for (vma = rfs_vma_tree_iter_first(&mapping->i_mmap, *index, last);
	     vma && next <= last && n < RFS_EVICT_SPANS;
	     vma = rfs_vma_tree_iter_next(vma, *index, last)) {
		if (!(READ_ONCE(vma->vm_flags) & VM_LOCKED) || rfs_vma_last(vma) < next)
			continue;
		if (rfs_vma_first(vma) > next)
			span[n++] = (struct rfs_span) { next, rfs_vma_first(vma) - 1 };
		next = rfs_vma_last(vma) + 1;
	}
	if (!vma && next <= last && n < RFS_EVICT_SPANS) {
		span[n++] = (struct rfs_span) { next, last };
		next = last + 1;
	}
	i_mmap_unlock_read(mapping);
	*index = next;
	return n;
}

static void rfs_unmap(struct address_space *mapping, pgoff_t first, pgoff_t last)
{
	unmap_mapping_range(mapping, (loff_t)first << PAGE_SHIFT,
			    (loff_t)(last - first + 1) << PAGE_SHIFT, 0);
}

/* Unmaps [index, last] except pages that a process has locked: mlock(2) is a promise. */
static void rfs_unmap_unlocked(struct address_space *mapping, pgoff_t index, pgoff_t last)
{
	struct rfs_span span[RFS_EVICT_SPANS];
	unsigned int i, n;

	while (index <= last) {
		n = rfs_unlocked_spans(mapping, &index, last, span);
		for (i = 0; i < n; i++)
			rfs_unmap(mapping, span[i].first, span[i].last);
		cond_resched();
	}
}

/* Drops the droppable pages of [index, last], mapped pages only if told to unmap them. */
static int rfs_drop(const struct rfs_dev *dev, struct address_space *mapping, pgoff_t index,
		    pgoff_t last, bool unmap)
{
	pgoff_t end;
	int err = 0;

	while (!err) {
		index = rfs_next_cached(mapping, index, last);
		if (index > last)
			break;
		end = min(last, index | (RFS_EVICT_PAGES - 1));
		if (unmap)
			rfs_unmap_unlocked(mapping, index, end);
		invalidate_mapping_pages(mapping, index, end);
		if (end == last)
			break;
		index = end + 1;
		cond_resched();
		err = rfs_interrupted(dev);
	}
	return err;
}

/* Returns the first clean page in [index, last], or an index beyond last. */
static pgoff_t rfs_next_clean(const struct rfs_dev *dev, struct address_space *mapping,
			      pgoff_t index, pgoff_t last)
{
	unsigned int steps = 0;

	for (; index <= last; index++) {
		index = rfs_next_cached(mapping, index, last);
		if (index > last)
			break;
		if (!xa_get_mark(&mapping->i_pages, index, PAGECACHE_TAG_DIRTY) &&
		    !xa_get_mark(&mapping->i_pages, index, PAGECACHE_TAG_WRITEBACK))
			break;
		if (++steps % RFS_EVICT_PAGES)
			continue;
		cond_resched();
		if (rfs_interrupted(dev))
			return last + 1;
	}
	return index;
}

/*
 * Pages that sit in other CPUs' batches can't be dropped before a drain, which
 * isn't exported: fadvise does it when it fails on a page. It would write out
 * dirty pages, so it is given one clean page. Returns false if there is none.
 */
static bool rfs_drain_batches(const struct rfs_dev *dev, const struct rfs_below *below,
			      pgoff_t index, pgoff_t last)
{
	struct file *file;

	index = rfs_next_clean(dev, below->mapping, index, last);
	if (index > last)
		return false;
	file = rfs_open_lower(below, 0);
	if (IS_ERR(file))
		return false;
	vfs_fadvise(file, (loff_t)index << PAGE_SHIFT, PAGE_SIZE, POSIX_FADV_DONTNEED);
	fput(file);
	return true;
}

static int rfs_evict_range(const struct rfs_dev *dev, const struct rfs_below *below,
			   struct rfs_evict *evict, pgoff_t first, pgoff_t last)
{
	struct address_space *mapping = below->mapping;
	u64 before = 0, after = 0;
	int err;

	err = rfs_count_cached(dev, mapping, first, last, NULL, &before);
	if (err || !before)
		return err;
	err = rfs_drop(dev, mapping, first, last, !(evict->flags & RFS_EVICT_UNMAPPED));
	if (!err)
		err = rfs_count_cached(dev, mapping, first, last, NULL, &after);
	if (!err && after && rfs_drain_batches(dev, below, first, last)) {
		err = rfs_drop(dev, mapping, first, last, false);
		after = 0;
		if (!err)
			err = rfs_count_cached(dev, mapping, first, last, NULL, &after);
	}
	if (err)
		return err;
	evict->kept = after;
	evict->evicted = before > after ? before - after : 0;
	return 0;
}

int rfs_evict(struct rfs_dev *dev, const struct rfs_below *below, struct rfs_evict *evict)
{
	pgoff_t first, last;
	int err;

	evict->evicted = 0;
	evict->kept = 0;
	atomic64_inc(&dev->evicts);
	if (!rfs_inner_range(below->mapping->host, evict->offset, evict->length, &first, &last))
		return 0;
	err = rfs_evict_range(dev, below, evict, first, last);
	atomic64_add(evict->evicted, &dev->evicted);
	trace_rfs_evict(evict->file, evict->offset, evict->length, evict->evicted, err);
	return err;
}

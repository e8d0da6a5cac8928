// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: which pages of the lower file are in the page cache
 */
#include <linux/bitmap.h>
#include <linux/cred.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include <linux/xarray.h>
#include "rfs.h"

/* steps after which a walk over the page cache yields the CPU */
#define RFS_WALK_STEPS 4096
/* RESIDENT's bitmap is copied out in pieces of a page */
#define RFS_BITMAP_BITS (PAGE_SIZE * 8)
/* steps after which a walk by gaps checks whether it is still wanted */
#define RFS_WALK_GAPS 256

/*
 * Returns the first page in [index, last] that is not in the page cache, or an
 * index beyond last. A node of the tree that is full of pages is skipped in one
 * step, so that the walk costs next to nothing where everything is cached: warm
 * reads of 1 MiB take 1.003 times as long as below, and 1.059 times by
 * xas_for_each(), which visits each page
 * (make vm-bench BENCH='--part "1 MiB reads, MISS wanted"').
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
			/* beyond the last possible page */
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

/*
 * Returns the first page in [index, last] that is in the page cache, or last + 1,
 * also if the caller is being killed.
 */
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
			if (fatal_signal_pending(current))
				break;
		}
	}
	rcu_read_unlock();
	return found;
}

/* Must a command's walk end, as its caller is being killed or its mount is gone? */
int rfs_interrupted(const struct rfs_dev *dev)
{
	if (READ_ONCE(dev->dead))
		return -ENODEV;
	return fatal_signal_pending(current) ? -EINTR : 0;
}

/*
 * Adds to *cached the cached pages of [index, last]; with a bitmap sets their
 * bits from bit 0 on. It takes steps for cached pages, none for absent ones:
 * files may be of any size.
 */
int rfs_count_cached(const struct rfs_dev *dev, struct address_space *mapping,
		     pgoff_t index, pgoff_t last, unsigned long *bitmap, u64 *cached)
{
	pgoff_t first = index;
	unsigned int gaps = 0;
	int err = 0;

	while (index <= last && !err) {
		pgoff_t from = rfs_next_cached(mapping, index, last);

		if (from > last)
			break;
		index = min(rfs_next_gap(mapping, from, last), last + 1);
		*cached += index - from;
		if (bitmap)
			bitmap_set(bitmap, from - first, index - from);
		if (++gaps % RFS_WALK_GAPS == 0) {
			cond_resched();
			err = rfs_interrupted(dev);
		}
	}
	/* the result of a walk that a signal ended is not valid */
	return err ? err : rfs_interrupted(dev);
}

/* a range in whole pages within the file: widened, for loading or counting */
bool rfs_page_range(struct inode *lower, u64 offset, u64 length, pgoff_t *first, pgoff_t *last)
{
	u64 size = i_size_read(lower);
	u64 end = min(offset + length, size);

	if (offset >= end)
		return false;
	*first = offset >> PAGE_SHIFT;
	*last = (end - 1) >> PAGE_SHIFT;
	return true;
}

/* Returns the lower file, opened by its own path. */
struct file *rfs_open_lower(const struct rfs_below *below, int flags)
{
	return dentry_open(&below->path, O_RDONLY | O_LARGEFILE | O_NOATIME | flags, below->cred);
}

/* Reports [first, last] page by page, a piece of the bitmap at a time. */
static int rfs_resident_bitmap(const struct rfs_dev *dev, struct address_space *mapping,
			       struct rfs_resident *res, pgoff_t first, pgoff_t last)
{
	u8 __user *out = u64_to_user_ptr(res->bitmap);
	unsigned long *bitmap;
	pgoff_t end;
	int err = 0;

	if (res->bitmap_len < DIV_ROUND_UP_ULL(res->pages, 8))
		return -EMSGSIZE;
	bitmap = (unsigned long *)__get_free_page(GFP_KERNEL);
	if (!bitmap)
		return -ENOMEM;
	for (; first <= last && !err; first = end + 1) {
		end = min(last, (pgoff_t)(first + RFS_BITMAP_BITS - 1));
		bitmap_zero(bitmap, RFS_BITMAP_BITS);
		err = rfs_count_cached(dev, mapping, first, end, bitmap, &res->cached);
		if (!err && copy_to_user(out, bitmap, DIV_ROUND_UP(end - first + 1, 8)))
			err = -EFAULT;
		if (!err && signal_pending(current) && end < last)
			err = -EINTR;
		out += RFS_BITMAP_BITS / 8;
		cond_resched();
	}
	free_page((unsigned long)bitmap);
	return err;
}

int rfs_resident(const struct rfs_dev *dev, struct address_space *mapping,
		 struct rfs_resident *res)
{
	pgoff_t first, last;

	res->pages = 0;
	res->cached = 0;
	if (!rfs_page_range(mapping->host, res->offset, res->length, &first, &last))
		return 0;
	res->pages = last - first + 1;
	if (res->bitmap)
		return rfs_resident_bitmap(dev, mapping, res, first, last);
	return rfs_count_cached(dev, mapping, first, last, NULL, &res->cached);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: bringing in large folios
 *
 * Of the exported ways into readahead only page_cache_async_ra() makes large
 * folios: as large as the window allows, going by the size of the folio whose
 * touch has called for it (from 6.16 on by ra->order). So it is told that a
 * folio of 512 KiB was touched at the end of a window that ends where ours
 * begins.
 */
#include "../rfs.h"

#if RFS_CAN_LARGE

#define RFS_HUGE_PAGES (RFS_LOAD_CHUNK >> PAGE_SHIFT)
/* the kernel adds 2 to the order of what was touched */
#define RFS_TOUCHED_ORDER (ilog2(RFS_HUGE_PAGES) - 2)

/* left there, it would make the next reader read ahead where we were exact */
static void rfs_clear_mark(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = filemap_get_folio(mapping, index);

	/* 6.3: absent is an error pointer */
	if (IS_ERR_OR_NULL(folio))
		return;
	folio_clear_readahead(folio);
	folio_put(folio);
}

/*
 * Reads one whole aligned huge page ahead. Returns false if nothing came of it
 * and the pages have to be read in the ordinary way.
 */
bool rfs_read_large(struct file *file, pgoff_t index, unsigned long nr)
{
	struct address_space *mapping = file->f_mapping;
	struct file_ra_state ra = {
		.start = index - RFS_HUGE_PAGES,
		.size = RFS_HUGE_PAGES,
		.async_size = RFS_HUGE_PAGES,
		.ra_pages = RFS_HUGE_PAGES,
#ifdef HAVE_RA_ORDER
		.order = RFS_TOUCHED_ORDER,
#endif
	};
	DEFINE_READAHEAD(ractl, file, &ra, mapping, index - RFS_HUGE_PAGES);
	struct folio *touched;

	if (nr != RFS_HUGE_PAGES || (index & (RFS_HUGE_PAGES - 1)))
		return false;
	if (!mapping_large_folio_support(mapping))
		return false;
	touched = folio_alloc(GFP_KERNEL | __GFP_NOWARN | __GFP_NORETRY, RFS_TOUCHED_ORDER);
	if (!touched)
		return false;
	page_cache_async_ra(&ractl, touched, RFS_HUGE_PAGES);
	folio_put(touched);
	rfs_clear_mark(mapping, index);
	return rfs_next_cached(mapping, index, index) == index;
}

#else

bool rfs_read_large(struct file *file, pgoff_t index, unsigned long nr)
{
	return false;
}

#endif

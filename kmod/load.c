// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: bring pages of the lower file in
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/fadvise.h>
#include <linux/file.h>
#include <linux/memcontrol.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>
#include "rfs.h"
#include "trace.h"

/* one huge page: the largest folio that readahead makes */
#define RFS_CHUNK_PAGES (RFS_LOAD_CHUNK >> PAGE_SHIFT)

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
	/* no readahead: a page that is read by itself brings no others along */
	if (job->plain)
		job->file->f_mode |= FMODE_RANDOM;
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

/*
 * Waits for one page, until it is there or the caller is killed. Returns the
 * index of the page after its folio, or an error.
 */
static s64 rfs_wait_page(struct rfs_job *job, pgoff_t index)
{
	loff_t pos = (loff_t)index << PAGE_SHIFT;
	struct page *page;
	ssize_t got;
	s64 next;
	u8 byte;

	if (job->plain) {
		page = rfs_await_page(job->mapping, index);
		if (IS_ERR(page))
			return PTR_ERR(page);
		if (page) {
			next = rfs_folio_end(page, index);
			put_page(page);
			return next;
		}
	}
	/* absent or failed: reading it returns the reason */
	got = kernel_read(job->file, &byte, 1, &pos);
	return got < 0 ? got : (s64)index + 1;
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

/* lower bound on the readahead window, the most that fadvise reads at a time */
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

/* a marker left behind would make the next reader read ahead where we were exact */
static void rfs_clear_mark(struct address_space *mapping, pgoff_t index)
{
	struct folio *folio = rfs_find_folio(mapping, index);

	if (!folio)
		return;
	folio_clear_readahead(folio);
	folio_put(folio);
}

/*
 * Reads one whole aligned huge page ahead. Returns false if that failed and the
 * pages have to be read in the ordinary way.
 *
 * Of the exported ways into readahead only page_cache_async_ra() makes large
 * folios: as large as the window allows, derived from the readahead state, or
 * before 6.16 from the size of the folio whose touch triggered it. So it is made
 * to believe that one of 512 KiB was touched at the end of a window that ends
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
	touched = folio_alloc(GFP_KERNEL | __GFP_NOWARN | __GFP_NORETRY,
			      rfs_folio_order_for(RFS_TOUCHED_ORDER));
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

/* Requests the absent pages of [index, last]. Returns how many of them are cached now. */
static u64 rfs_read_ahead(struct rfs_job *job, pgoff_t index, pgoff_t last, bool large)
{
	struct address_space *mapping = job->mapping;
	unsigned long nr = last - index + 1;
	u64 before = 0, after = 0;
	RFS_DEFINE_READAHEAD(ractl, job->file, &job->file->f_ra, mapping, index);

	if (rfs_count_cached(job->dev, mapping, index, last, NULL, &before) || before == nr)
		return 0;
	if (!job->plain)
		rfs_advise(job, index, nr);
	else if (!large || before || !rfs_read_large(job->file, index, nr))
		rfs_ra_unbounded(&ractl, nr);
	if (rfs_count_cached(job->dev, mapping, index, last, NULL, &after))
		return 0;
	return after > before ? after - before : 0;
}

/* how many bytes from the offset on are done when index is the next page */
static u64 rfs_bytes_done(const struct rfs_load *load, pgoff_t index, pgoff_t last)
{
	u64 pos = (u64)index << PAGE_SHIFT;

	if (index > last)
		return load->length;
	return pos > load->offset ? pos - load->offset : 0;
}

/*
 * Returns the last page of the chunk at index, or a page before index if the
 * file now ends there. Chunks end where large folios do, and with the file.
 */
static pgoff_t rfs_chunk_end(const struct rfs_job *job, pgoff_t index, pgoff_t last)
{
	loff_t size = i_size_read(job->mapping->host);
	pgoff_t end = min(last, index | (RFS_CHUNK_PAGES - 1));

	if ((loff_t)index << PAGE_SHIFT >= size)
		return index - 1;
	return min_t(pgoff_t, end, (size - 1) >> PAGE_SHIFT);
}

/*
 * Loads the range a chunk at a time. With RFS_LOAD_WAIT it waits for one chunk
 * while the next is in flight.
 */
static int rfs_load_range(struct rfs_job *job, struct rfs_load *load, pgoff_t first, pgoff_t last)
{
	bool wait = load->flags & RFS_LOAD_WAIT;
	pgoff_t index = first, waited = first, end;
	bool truncated = false;
	int err = 0;

	while (index <= last) {
		if (rfs_job_stopped(job)) {
			load->flags |= RFS_LOAD_STOPPED;
			break;
		}
		end = rfs_chunk_end(job, index, last);
		if (end + 1 == index) {
			/* truncated in the meantime: nothing is left to load */
			truncated = true;
			break;
		}
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
	load->done = truncated && !err ? load->length :
					 rfs_bytes_done(load, err ? waited : index, last);
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
	/* a process may charge those that it may signal, more or less */
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

/* the features of loading that RFS_IOC_HELLO returns */
u64 rfs_load_features(void)
{
	return (RFS_CAN_CHARGE ? RFS_FEATURE_CHARGE : 0) |
	       (RFS_CAN_LARGE ? RFS_FEATURE_LARGE : 0);
}

int rfs_load(struct rfs_dev *dev, const struct rfs_below *below, struct rfs_load *load)
{
	struct mem_cgroup *memcg = NULL, *old;
	struct rfs_job job = { .mapping = below->mapping };
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
	job.file = rfs_open_lower(below, 0);
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

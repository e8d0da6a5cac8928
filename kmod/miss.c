// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: which reads cause events, and of which processes
 */
#include <linux/fcntl.h>
#include <linux/ktime.h>
#include <linux/sched.h>
#include "rfs.h"

/* processes whose progress in a file is followed at the same time */
#define RFS_PROGRESS_SLOTS 16

/* how much each process has consumed of a file since its last beacon */
struct rfs_progress {
	spinlock_t lock;	/* guards all of it */
	unsigned int next;	/* the slot to reuse if none is free */
	struct rfs_progress_slot {
		pid_t tgid;
		u64 bytes;
		/*
		 * The range the last fault made accessible. map_pages skips a
		 * page here and there, whose fault must not count the pages
		 * after it again.
		 */
		u64 from;
		u64 to;
	} slot[RFS_PROGRESS_SLOTS];
};

/* The kinds of events wanted of the calling process, 0 for none. */
u32 rfs_wanted(const struct inode *inode)
{
	const struct rfs_dev *dev = rfs_sb(inode->i_sb)->dev;
	u32 kinds = READ_ONCE(dev->kinds);

	if (likely(!kinds))
		return 0;
	/* the reader's own reads are no events */
	return current->tgid == READ_ONCE(dev->reader) ? 0 : kinds;
}

static void rfs_emit(struct inode *inode, u8 kind, u32 flags, u64 offset, u64 length)
{
	struct rfs_event ev = {
		.len = sizeof(ev),
		.version = RFS_EVENT_VERSION,
		.kind = kind,
		.flags = flags,
		.file = rfs_i(inode)->id,
		.offset = offset,
		.length = length,
		.time_ns = ktime_get_ns(),
		.count = 1,
		.tgid = current->tgid,
		.tid = current->pid,
		.cpu = raw_smp_processor_id(),
	};

	rfs_queue_event(rfs_sb(inode->i_sb)->dev, &ev);
}

void rfs_note_open(struct inode *inode, struct file *file, u32 kind)
{
	if (rfs_wanted(inode) & BIT(kind))
		rfs_emit(inode, kind, file->f_flags & O_DIRECT ? RFS_EV_DIRECT : 0, 0,
			 i_size_read(rfs_lower_inode(inode)));
}

/* A read of [pos, pos+len) begins: report each gap in the page cache there. */
void rfs_note_read(struct inode *inode, loff_t pos, size_t len)
{
	struct address_space *mapping = rfs_mapping(inode);
	loff_t size = i_size_read(mapping->host);
	loff_t from, to, end;
	pgoff_t index, last, gap_end;

	/* DAX has no page cache to miss */
	if (pos >= size || IS_DAX(mapping->host))
		return;
	end = len < size - pos ? pos + len : size;
	last = (end - 1) >> PAGE_SHIFT;
	index = rfs_next_gap(mapping, pos >> PAGE_SHIFT, last);
	while (index <= last) {
		gap_end = rfs_next_cached(mapping, index, last);
		from = max(pos, (loff_t)index << PAGE_SHIFT);
		to = gap_end > last ? end : min(end, (loff_t)gap_end << PAGE_SHIFT);
		rfs_emit(inode, RFS_EVENT_MISS, 0, from, to - from);
		if (gap_end > last)
			return;
		/* a read of 2 GiB may have half a million gaps */
		cond_resched();
		index = rfs_next_gap(mapping, gap_end, last);
	}
}

static struct rfs_progress *rfs_progress_get(struct rfs_inode *ri)
{
	struct rfs_progress *p = READ_ONCE(ri->progress);
	struct rfs_progress *other;

	if (p)
		return p;
	/* faults get here holding locks that forbid waiting */
	p = kzalloc(sizeof(*p), GFP_NOWAIT | __GFP_NOWARN);
	if (!p)
		return NULL;
	spin_lock_init(&p->lock);
	other = cmpxchg(&ri->progress, NULL, p);
	if (!other)
		return p;
	kfree(p);
	return other;
}

void rfs_progress_free(struct rfs_inode *ri)
{
	kfree(ri->progress);
	ri->progress = NULL;
}

static struct rfs_progress_slot *rfs_progress_slot(struct rfs_progress *p, pid_t tgid)
{
	unsigned int i, empty = RFS_PROGRESS_SLOTS;

	for (i = 0; i < RFS_PROGRESS_SLOTS; i++) {
		if (p->slot[i].tgid == tgid)
			return &p->slot[i];
		if (!p->slot[i].tgid && empty == RFS_PROGRESS_SLOTS)
			empty = i;
	}
	if (empty == RFS_PROGRESS_SLOTS)
		empty = p->next++ % RFS_PROGRESS_SLOTS;
	p->slot[empty] = (struct rfs_progress_slot) { .tgid = tgid };
	return &p->slot[empty];
}

/* How much of [from, to) this process's faults have not counted yet. */
static u64 rfs_progress_new(struct rfs_progress_slot *slot, u64 from, u64 to)
{
	if (from >= slot->from && from < slot->to) {
		from = slot->to;
		slot->to = max(slot->to, to);
	} else {
		slot->from = from;
		slot->to = to;
	}
	return to > from ? to - from : 0;
}

/* Adds to what the caller has consumed; returns the length of a due beacon, or 0. */
static u64 rfs_progress_add(struct inode *inode, u32 flags, u64 pos, u64 len)
{
	u64 step = READ_ONCE(rfs_sb(inode->i_sb)->dev->progress_bytes);
	struct rfs_progress *p = rfs_progress_get(rfs_i(inode));
	struct rfs_progress_slot *slot;
	u64 due = 0;

	if (!p || !step)
		return 0;
	spin_lock(&p->lock);
	slot = rfs_progress_slot(p, current->tgid);
	slot->bytes += flags & RFS_EV_MMAP ? rfs_progress_new(slot, pos, pos + len) : len;
	if (slot->bytes >= step) {
		due = slot->bytes;
		slot->bytes = 0;
	}
	spin_unlock(&p->lock);
	return due;
}

/* [pos, pos+len) was consumed, hit or miss. */
void rfs_note_done(struct inode *inode, u32 flags, u32 kinds, loff_t pos, u64 len)
{
	u64 due;

	if (kinds & BIT(RFS_EVENT_TOUCH))
		rfs_emit(inode, RFS_EVENT_TOUCH, flags, pos, len);
	if (!(kinds & BIT(RFS_EVENT_PROGRESS)))
		return;
	due = rfs_progress_add(inode, flags, pos, len);
	if (due)
		rfs_emit(inode, RFS_EVENT_PROGRESS, flags, pos + len, due);
}

/* A fault that map_pages could not answer, at page index. */
void rfs_note_fault(struct inode *inode, pgoff_t index, u32 kinds)
{
	struct address_space *mapping = rfs_mapping(inode);
	loff_t size = i_size_read(mapping->host);
	loff_t pos = (loff_t)index << PAGE_SHIFT;
	u64 len;

	if (pos >= size)
		return;
	len = min_t(u64, PAGE_SIZE, size - pos);
	if ((kinds & BIT(RFS_EVENT_MISS)) && !IS_DAX(mapping->host) &&
	    rfs_next_gap(mapping, index, index) == index)
		rfs_emit(inode, RFS_EVENT_MISS, RFS_EV_MMAP, pos, len);
	rfs_note_done(inode, RFS_EV_MMAP, kinds, pos, len);
}

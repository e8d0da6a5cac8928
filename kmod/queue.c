// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: the event queues, one per CPU
 *
 * A queue is a list of pages full of records, which grows while the reader does
 * not read, up to RFS_QUEUE_PAGES. Events that don't fit are counted, and the
 * count enters the stream as soon as there is room or the queue has run empty.
 * Events are queued under mmap locks and in RCU sections: nothing here waits.
 *
 *	producer			reader
 *	queue the event			armed = 1
 *	smp_mb				smp_mb
 *	armed? start the timer		all queues empty? then sleep
 *	timer: wake
 */
#include <linux/list.h>
#include <linux/percpu.h>
#include "rfs.h"

/* all tracepoints are created here, in the lowest of the files that use one */
#define CREATE_TRACE_POINTS
#include "trace.h"

struct rfs_chunk {
	struct list_head list;
	u32 first;		/* not yet read */
	u32 used;
	struct rfs_event ev[];
};

#define RFS_CHUNK_EVENTS ((PAGE_SIZE - sizeof(struct rfs_chunk)) / sizeof(struct rfs_event))

struct rfs_queue {
	spinlock_t lock;	/* guards all of it */
	bool open;		/* the device is open */
	u32 cpu;
	u32 chunks;
	u64 waiting;
	struct list_head list;
	u64 lost;		/* not yet reported */

	u64 events;
	u64 merged;
	u64 delivered;
	u64 lost_total;
};

static struct rfs_chunk *rfs_last_chunk(struct rfs_queue *q)
{
	return list_empty(&q->list) ? NULL : list_last_entry(&q->list, struct rfs_chunk, list);
}

/* The opener of the device pays for an event's memory, not the process that caused it. */
static struct rfs_chunk *rfs_alloc_chunk(struct rfs_dev *dev)
{
	struct mem_cgroup *old = rfs_pay_begin(dev->memcg);
	void *page = (void *)__get_free_page(GFP_NOWAIT | __GFP_NOWARN | __GFP_ACCOUNT);

	rfs_pay_end(old);
	return page;
}

/* room for one record at the end, or NULL */
static struct rfs_event *rfs_slot(struct rfs_dev *dev, struct rfs_queue *q)
{
	struct rfs_chunk *chunk = rfs_last_chunk(q);

	if (!chunk || chunk->used == RFS_CHUNK_EVENTS) {
		if (q->chunks >= RFS_QUEUE_PAGES)
			return NULL;
		chunk = rfs_alloc_chunk(dev);
		if (!chunk)
			return NULL;
		chunk->first = 0;
		chunk->used = 0;
		list_add_tail(&chunk->list, &q->list);
		q->chunks++;
	}
	q->waiting++;
	return &chunk->ev[chunk->used++];
}

static void rfs_free_chunk(struct rfs_queue *q, struct rfs_chunk *chunk)
{
	list_del(&chunk->list);
	q->chunks--;
	free_page((unsigned long)chunk);
}

static void rfs_make_lost(struct rfs_queue *q, struct rfs_event *ev, u64 time_ns)
{
	*ev = (struct rfs_event) {
		.len = sizeof(*ev),
		.version = RFS_EVENT_VERSION,
		.kind = RFS_EVENT_LOST,
		.time_ns = time_ns,
		.count = q->lost,
		.cpu = q->cpu,
	};
	q->lost = 0;
}

/* merges a miss or touch into the last waiting record if it touches that */
static bool rfs_merge(struct rfs_queue *q, const struct rfs_event *ev)
{
	struct rfs_chunk *chunk = rfs_last_chunk(q);
	struct rfs_event *last;
	u64 end;

	if (ev->kind != RFS_EVENT_MISS && ev->kind != RFS_EVENT_TOUCH)
		return false;
	if (q->lost || !chunk || chunk->first == chunk->used)
		return false;
	last = &chunk->ev[chunk->used - 1];
	if (last->kind != ev->kind || last->file != ev->file || last->tgid != ev->tgid ||
	    last->flags != ev->flags)
		return false;
	if (ev->offset > last->offset + last->length || last->offset > ev->offset + ev->length)
		return false;
	end = max(last->offset + last->length, ev->offset + ev->length);
	last->offset = min(last->offset, ev->offset);
	last->length = end - last->offset;
	last->count += ev->count;
	return true;
}

static bool rfs_push(struct rfs_dev *dev, struct rfs_queue *q, const struct rfs_event *ev)
{
	struct rfs_event *slot;

	q->events++;
	if (rfs_merge(q, ev)) {
		q->merged++;
		trace_rfs_event_merged(ev);
		return true;
	}
	if (q->lost) {
		slot = rfs_slot(dev, q);
		if (slot)
			rfs_make_lost(q, slot, ev->time_ns);
	}
	slot = q->lost ? NULL : rfs_slot(dev, q);
	if (!slot) {
		q->lost++;
		q->lost_total++;
		trace_rfs_event_lost(ev);
		return false;
	}
	*slot = *ev;
	trace_rfs_event_queued(ev);
	return true;
}

void rfs_queue_event(struct rfs_dev *dev, struct rfs_event *ev)
{
	struct rfs_queue *q = raw_cpu_ptr(dev->queues);
	bool open;

	spin_lock(&q->lock);
	/* closing the device empties the queue under the same lock */
	open = q->open;
	if (open)
		rfs_push(dev, q, ev);
	spin_unlock(&q->lock);
	if (!open)
		return;
	/* pairs with rfs_queues_waiting()'s callers: see above */
	smp_mb();
	if (atomic_read(&dev->armed) && atomic_xchg(&dev->armed, 0))
		hrtimer_start(&dev->wake, RFS_WAKE_DELAY_NS, HRTIMER_MODE_REL);
}

static unsigned int rfs_pop(struct rfs_queue *q, struct rfs_event *ev, unsigned int n)
{
	struct rfs_chunk *chunk;
	unsigned int got = 0;

	spin_lock(&q->lock);
	while (got < n && q->waiting) {
		chunk = list_first_entry(&q->list, struct rfs_chunk, list);
		ev[got] = chunk->ev[chunk->first++];
		q->waiting--;
		if (ev[got].kind != RFS_EVENT_LOST)
			q->delivered++;
		got++;
		if (chunk->first < chunk->used)
			continue;
		if (list_is_singular(&q->list)) {
			/* the last page stays for the next event */
			chunk->first = 0;
			chunk->used = 0;
		} else {
			rfs_free_chunk(q, chunk);
		}
	}
	if (got < n && q->lost)
		rfs_make_lost(q, &ev[got++], ktime_get_ns());
	spin_unlock(&q->lock);
	return got;
}

/* Takes up to n records, from the CPUs in turn. Under dev->read_lock. */
unsigned int rfs_queues_pop(struct rfs_dev *dev, struct rfs_event *ev, unsigned int n)
{
	unsigned int i, got = 0;

	for (i = 0; i < nr_cpu_ids && got < n; i++) {
		unsigned int cpu = dev->next_cpu++ % nr_cpu_ids;

		if (cpu_possible(cpu))
			got += rfs_pop(per_cpu_ptr(dev->queues, cpu), ev + got, n - got);
	}
	return got;
}

/* The reader's buffer was bad: count its records as lost, so that LOST reports them. */
void rfs_queues_lost(struct rfs_dev *dev, const struct rfs_event *ev, unsigned int n)
{
	unsigned int i;

	for (i = 0; i < n; i++) {
		struct rfs_queue *q = per_cpu_ptr(dev->queues, ev[i].cpu);

		spin_lock(&q->lock);
		q->lost += ev[i].count;
		if (ev[i].kind != RFS_EVENT_LOST) {
			q->lost_total += ev[i].count;
			q->delivered--;
		}
		spin_unlock(&q->lock);
	}
}

bool rfs_queues_waiting(struct rfs_dev *dev)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct rfs_queue *q = per_cpu_ptr(dev->queues, cpu);

		if (READ_ONCE(q->waiting) || READ_ONCE(q->lost))
			return true;
	}
	return false;
}

void rfs_queues_stats(struct rfs_dev *dev, struct rfs_stats *stats)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct rfs_queue *q = per_cpu_ptr(dev->queues, cpu);

		spin_lock(&q->lock);
		stats->events += q->events;
		stats->merged += q->merged;
		stats->delivered += q->delivered;
		stats->lost += q->lost_total;
		stats->queued += q->waiting;
		stats->queue_bytes += (u64)q->chunks * PAGE_SIZE;
		spin_unlock(&q->lock);
	}
}

void rfs_queues_open(struct rfs_dev *dev)
{
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct rfs_queue *q = per_cpu_ptr(dev->queues, cpu);

		spin_lock(&q->lock);
		q->open = true;
		spin_unlock(&q->lock);
	}
}

void rfs_queues_close(struct rfs_dev *dev)
{
	struct rfs_chunk *chunk, *next;
	unsigned int cpu;

	for_each_possible_cpu(cpu) {
		struct rfs_queue *q = per_cpu_ptr(dev->queues, cpu);

		spin_lock(&q->lock);
		q->open = false;
		list_for_each_entry_safe(chunk, next, &q->list, list)
			rfs_free_chunk(q, chunk);
		q->waiting = 0;
		q->lost = 0;
		spin_unlock(&q->lock);
	}
}

int rfs_queues_create(struct rfs_dev *dev)
{
	unsigned int cpu;

	dev->queues = alloc_percpu(struct rfs_queue);
	if (!dev->queues)
		return -ENOMEM;
	for_each_possible_cpu(cpu) {
		struct rfs_queue *q = per_cpu_ptr(dev->queues, cpu);

		spin_lock_init(&q->lock);
		INIT_LIST_HEAD(&q->list);
		q->cpu = cpu;
	}
	return 0;
}

void rfs_queues_destroy(struct rfs_dev *dev)
{
	rfs_queues_close(dev);
	free_percpu(dev->queues);
}

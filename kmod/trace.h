/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * rfs: tracepoints, one for each step of an event and one for each command
 * that changes the page cache
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM rfs

#if !defined(_RFS_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _RFS_TRACE_H

#include <linux/tracepoint.h>
#include <uapi/linux/rfs.h>

DECLARE_EVENT_CLASS(rfs_event,
	TP_PROTO(const struct rfs_event *ev),
	TP_ARGS(ev),
	TP_STRUCT__entry(
		__field(u64, file)
		__field(u64, offset)
		__field(u64, length)
		__field(u32, flags)
		__field(u32, tgid)
		__field(u8, kind)
	),
	TP_fast_assign(
		__entry->file = ev->file;
		__entry->offset = ev->offset;
		__entry->length = ev->length;
		__entry->flags = ev->flags;
		__entry->tgid = ev->tgid;
		__entry->kind = ev->kind;
	),
	TP_printk("kind=%u file=%llu offset=%llu length=%llu flags=%x tgid=%u",
		  __entry->kind, __entry->file, __entry->offset, __entry->length,
		  __entry->flags, __entry->tgid)
);

DEFINE_EVENT(rfs_event, rfs_event_queued, TP_PROTO(const struct rfs_event *ev), TP_ARGS(ev));
DEFINE_EVENT(rfs_event, rfs_event_merged, TP_PROTO(const struct rfs_event *ev), TP_ARGS(ev));
DEFINE_EVENT(rfs_event, rfs_event_lost, TP_PROTO(const struct rfs_event *ev), TP_ARGS(ev));
DEFINE_EVENT(rfs_event, rfs_event_delivered, TP_PROTO(const struct rfs_event *ev), TP_ARGS(ev));

DECLARE_EVENT_CLASS(rfs_range,
	TP_PROTO(u64 file, u64 offset, u64 length, u64 pages, int err),
	TP_ARGS(file, offset, length, pages, err),
	TP_STRUCT__entry(
		__field(u64, file)
		__field(u64, offset)
		__field(u64, length)
		__field(u64, pages)
		__field(int, err)
	),
	TP_fast_assign(
		__entry->file = file;
		__entry->offset = offset;
		__entry->length = length;
		__entry->pages = pages;
		__entry->err = err;
	),
	TP_printk("file=%llu offset=%llu length=%llu pages=%llu err=%d",
		  __entry->file, __entry->offset, __entry->length, __entry->pages, __entry->err)
);

DEFINE_EVENT(rfs_range, rfs_load,
	     TP_PROTO(u64 file, u64 offset, u64 length, u64 pages, int err),
	     TP_ARGS(file, offset, length, pages, err));
DEFINE_EVENT(rfs_range, rfs_evict,
	     TP_PROTO(u64 file, u64 offset, u64 length, u64 pages, int err),
	     TP_ARGS(file, offset, length, pages, err));

#endif /* _RFS_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>

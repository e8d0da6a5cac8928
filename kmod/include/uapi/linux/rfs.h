/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * rfs - the protocol between the routing file system and user space
 *
 * One mount, one device
 * ---------------------
 * "mount -t rfs LOWER MNT" creates a character device /dev/rfsN that lives as
 * long as the file system. Its name is in the mount's options (dev=rfsN), and
 * RFS_IOC_FILE returns N for any file of the mount. The device is for one
 * reader at a time: a second open fails with EBUSY. Opening it takes
 * CAP_SYS_ADMIN or membership in the group that owns the node; its reader
 * can read every file below the mount, so grant access with care.
 *
 * The kernel never waits for the reader. Without a reader, or with one that is
 * slow or has been killed, the mount is a plain read-only mirror.
 *
 * Events
 * ------
 * read(2) returns as many whole struct rfs_event as fit, taken from the
 * per-CPU queues in turn. It fails with EMSGSIZE if the buffer is too small for
 * one. If no record waits, it fails with EAGAIN under O_NONBLOCK and sleeps
 * otherwise. poll(2) returns POLLIN while records wait, POLLHUP once the file
 * system is gone; read(2) then delivers the remaining records and afterwards
 * returns 0. A reader walks a batch by ev.len and
 * skips kinds and versions it doesn't know.
 *
 * Nothing is queued until RFS_IOC_MASK has named the wanted kinds. Events of
 * the process that opened the device are never queued.
 *
 *   OPEN      a file was opened. flags: RFS_EV_DIRECT. length: its size.
 *   CLOSE     the last descriptor of that open was closed. Its mappings may
 *             outlive it and still cause events.
 *   MISS      read: the pages of [offset, offset+length) were absent when the
 *             read began, one record for each gap.
 *             fault: the page at offset was absent. flags: RFS_EV_MMAP.
 *             Direct reads cause no MISS. A read that may not wait causes one,
 *             as the kernel starts the I/O even if it returns EAGAIN.
 *   TOUCH     [offset, offset+length) was read, hit or miss; through a mapping
 *             (RFS_EV_MMAP) it is the range the fault may have made accessible:
 *             at most what the kernel maps at once, 64 KiB or a large folio.
 *   PROGRESS  a process has consumed another progress_bytes of a file, hit or
 *             miss; offset is its present position, length what it consumed
 *             since its last beacon. flags: RFS_EV_MMAP.
 *   LOST      count events did not fit into a queue and are gone; the record
 *             stands where they are missing in the stream of its CPU. Always
 *             on.
 *
 * A MISS or TOUCH that touches or overlaps the record before it on that CPU,
 * of the same kind, file, process and flags, is merged into it while it
 * waits; count is the number of merged events. The sum of all counts, LOST
 * included, is the number of events that happened. Records of different CPUs
 * are in no order; time_ns is CLOCK_MONOTONIC. Closing the device drops the
 * waiting records and resets the mask.
 *
 * File ids
 * --------
 * A file id names a file of this mount as long as the kernel keeps its inode:
 * at least while it is open or mapped. An id is never reused within a mount.
 * Commands on an id that is gone fail with ESTALE: open the path again and
 * ask with RFS_IOC_FILE. Ids are not inode numbers.
 *
 * Commands
 * --------
 * Every argument begins with size, the sizeof of the structure the caller was
 * built with. Shorter than the first version is EINVAL; longer is accepted as
 * long as the part this kernel does not know is zero, else E2BIG. The size that
 * is encoded in a command's number is ignored. Unknown flags and kinds and
 * nonzero reserved fields are EINVAL, as is a range that is empty or ends
 * beyond 2^63 - 1. An unknown command is ENOTTY. A data command or LOWER_FD on
 * anything but a regular file is EISDIR. After the umount every command is
 * ENODEV; during it, one that walks pages may be. No command holds up the
 * umount. Commands are added, never redefined.
 *
 *   HELLO     agree on a version: both sides use the smaller minor; another
 *             major is EPROTONOSUPPORT. Returns features and limits.
 *   MASK      which events, and how often PROGRESS.
 *   LOWER_FD  a new O_RDONLY descriptor of the regular file in the lower file
 *             system, opened with the mounter's credentials. It does not pin
 *             the mount.
 *   PATH      the path within the mount, NUL terminated; ENAMETOOLONG if the
 *             buffer is short; ENOENT if the file no longer has a name, or has
 *             not been looked up since it or a folder above it was renamed.
 *   LOAD      bring [offset, offset+length) into the page cache. Pages are
 *             allocated by the caller's memory policy. Stops on a pending
 *             signal, at RFS_IOC_STOP and at umount; the call then succeeds
 *             with RFS_LOAD_STOPPED set, and done says how far it got. Ends at
 *             the file's current end.
 *   STOP      stop the loads in flight with the given cookie (0: all).
 *   EVICT     drop the clean pages of the range, including those that
 *             processes map; private copies and pages locked into memory
 *             (mlock) stay.
 *   RESIDENT  how much of the range is cached, and on request which pages.
 *   STATS     counters since the mount.
 *   FILE      on any file of the mount, not on the device, by any user: its
 *             file id and the number N of the device.
 *
 * Versions
 * --------
 * 1.0  the first.
 */
#ifndef _UAPI_LINUX_RFS_H
#define _UAPI_LINUX_RFS_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define RFS_VERSION_MAJOR	1
#define RFS_VERSION_MINOR	0

/* "rfsm" */
#define RFS_SUPER_MAGIC		0x7266736d

/* rfs_event.kind; 1 << kind is its bit in rfs_mask.kinds */
#define RFS_EVENT_LOST		0
#define RFS_EVENT_OPEN		1
#define RFS_EVENT_CLOSE		2
#define RFS_EVENT_MISS		3
#define RFS_EVENT_TOUCH		4
#define RFS_EVENT_PROGRESS	5
#define __RFS_EVENT_MAX		6

/* rfs_event.flags */
#define RFS_EV_MMAP		(1u << 0)	/* a page fault, not a read */
#define RFS_EV_DIRECT		(1u << 1)	/* opened with O_DIRECT */

#define RFS_EVENT_VERSION	1

/**
 * struct rfs_event - one record of the stream
 * @len: bytes to the next record, a multiple of 8
 * @version: RFS_EVENT_VERSION
 * @kind: RFS_EVENT_*
 * @flags: RFS_EV_*
 * @file: file id, 0 for LOST
 * @offset: in bytes
 * @length: in bytes
 * @time_ns: CLOCK_MONOTONIC of the first of the merged events
 * @count: events merged into this record, or lost
 * @tgid: process, its number in the initial pid namespace
 * @tid: thread, likewise
 * @cpu: on which it happened
 * @reserved: 0
 */
struct rfs_event {
	__u16 len;
	__u8 version;
	__u8 kind;
	__u32 flags;
	__u64 file;
	__u64 offset;
	__u64 length;
	__u64 time_ns;
	__u64 count;
	__u32 tgid;
	__u32 tid;
	__u32 cpu;
	__u32 reserved;
};

/* rfs_hello.features */
#define RFS_FEATURE_CHARGE	(1ull << 0)	/* RFS_LOAD_CHARGE works */
#define RFS_FEATURE_LARGE	(1ull << 1)	/* RFS_LOAD_LARGE works where the lower can */
#define RFS_FEATURE_EVICT_MAPPED (1ull << 2)	/* EVICT reaches mapped pages */

/**
 * struct rfs_hello - RFS_IOC_HELLO
 * @size: of this structure
 * @major: in: the caller's RFS_VERSION_MAJOR; out: the kernel's
 * @minor: in: the caller's RFS_VERSION_MINOR; out: the smaller of both
 * @device: out: N of /dev/rfsN
 * @features: out: RFS_FEATURE_*
 * @kinds: out: the kinds that RFS_IOC_MASK takes
 * @event_size: out: bytes of one record
 * @queue_bytes: out: upper bound on one CPU's queue
 * @lower_dev: out: device number of the lower file system, as in st_dev
 * @reserved: 0
 */
struct rfs_hello {
	__u32 size;
	__u16 major;
	__u16 minor;
	__u32 device;
	__u32 event_size;
	__u64 features;
	__u32 kinds;
	__u32 queue_bytes;
	__u64 lower_dev;
	__u64 reserved;
};

/**
 * struct rfs_mask - RFS_IOC_MASK
 * @size: of this structure
 * @kinds: 1 << RFS_EVENT_*; LOST is always on
 * @progress_bytes: bytes from one beacon to the next, at least 64 KiB; required
 *		    with PROGRESS, 0 without
 * @reserved: 0
 */
struct rfs_mask {
	__u32 size;
	__u32 kinds;
	__u64 progress_bytes;
	__u64 reserved;
};

/**
 * struct rfs_lower_fd - RFS_IOC_LOWER_FD
 * @size: of this structure
 * @flags: 0 or O_DIRECT; O_CLOEXEC is implied
 * @file: file id
 * @fd: out: the descriptor
 * @reserved: 0
 */
struct rfs_lower_fd {
	__u32 size;
	__u32 flags;
	__u64 file;
	__s32 fd;
	__u32 reserved;
};

/**
 * struct rfs_path - RFS_IOC_PATH
 * @size: of this structure
 * @buf_len: bytes at @buf
 * @file: file id
 * @buf: char *, where the path goes
 * @path_len: out: bytes of the path, its NUL included
 * @reserved: 0
 */
struct rfs_path {
	__u32 size;
	__u32 buf_len;
	__u64 file;
	__aligned_u64 buf;
	__u32 path_len;
	__u32 reserved;
};

/* rfs_load.flags */
#define RFS_LOAD_WAIT		(1u << 0)	/* wait for the data; return I/O errors */
#define RFS_LOAD_CHARGE		(1u << 1)	/* charge the memory cgroup of process @charge */
#define RFS_LOAD_LARGE		(1u << 2)	/* prefer large folios to the exact range */
#define RFS_LOAD_STOPPED	(1u << 31)	/* out: stopped before the end */

/**
 * struct rfs_load - RFS_IOC_LOAD
 * @size: of this structure
 * @flags: RFS_LOAD_*
 * @file: file id
 * @offset: of the range; the range is widened to whole pages and clipped to
 *	    the file
 * @length: of the range, not 0
 * @cookie: names this load for RFS_IOC_STOP
 * @charge: with RFS_LOAD_CHARGE: a process id in the caller's pid namespace
 * @reserved: 0
 * @done: out: bytes processed, from @offset on
 * @loaded: out: pages that were absent before
 */
struct rfs_load {
	__u32 size;
	__u32 flags;
	__u64 file;
	__u64 offset;
	__u64 length;
	__u64 cookie;
	__s32 charge;
	__u32 reserved;
	__u64 done;
	__u64 loaded;
};

/**
 * struct rfs_stop - RFS_IOC_STOP
 * @size: of this structure
 * @reserved: 0
 * @cookie: of the loads to stop, 0 for all
 * @stopped: out: how many loads were asked to stop
 */
struct rfs_stop {
	__u32 size;
	__u32 reserved;
	__u64 cookie;
	__u64 stopped;
};

/* rfs_evict.flags */
#define RFS_EVICT_UNMAPPED	(1u << 0)	/* leave pages that processes map */

/**
 * struct rfs_evict - RFS_IOC_EVICT
 * @size: of this structure
 * @flags: RFS_EVICT_*
 * @file: file id
 * @offset: of the range; only pages wholly inside it are dropped, except the
 *	    file's last page, which is dropped when the range reaches the end
 * @length: of the range, not 0; may reach beyond the end
 * @evicted: out: pages dropped
 * @kept: out: pages of the range that are still cached: dirty, busy, locked
 *	  into memory, or shared with a large folio that reaches outside
 */
struct rfs_evict {
	__u32 size;
	__u32 flags;
	__u64 file;
	__u64 offset;
	__u64 length;
	__u64 evicted;
	__u64 kept;
};

/**
 * struct rfs_resident - RFS_IOC_RESIDENT
 * @size: of this structure
 * @flags: 0
 * @file: file id
 * @offset: of the range, widened to whole pages and clipped to the file
 * @length: of the range, not 0; may reach beyond the end
 * @bitmap: __u8 *, or 0: bit i%8 of byte i/8 is page i of the range
 * @bitmap_len: bytes at @bitmap; EMSGSIZE if the range has more pages
 * @reserved: 0
 * @pages: out: pages of the clipped range
 * @cached: out: how many of them are in the page cache
 */
struct rfs_resident {
	__u32 size;
	__u32 flags;
	__u64 file;
	__u64 offset;
	__u64 length;
	__aligned_u64 bitmap;
	__u32 bitmap_len;
	__u32 reserved;
	__u64 pages;
	__u64 cached;
};

/**
 * struct rfs_stats - RFS_IOC_STATS, counters since the mount
 * @size: of this structure
 * @flags: 0
 * @events: events that happened while they were wanted
 * @merged: of these, merged into a waiting record
 * @delivered: records that read(2) has returned, LOST not counted
 * @lost: events that did not fit into a queue
 * @queued: records waiting now
 * @queue_bytes: memory that all queues hold now
 * @loads: LOAD commands
 * @loaded: pages that they brought in
 * @evicts: EVICT commands
 * @evicted: pages that they dropped
 * @files: inodes of this mount in memory now
 */
struct rfs_stats {
	__u32 size;
	__u32 flags;
	__u64 events;
	__u64 merged;
	__u64 delivered;
	__u64 lost;
	__u64 queued;
	__u64 queue_bytes;
	__u64 loads;
	__u64 loaded;
	__u64 evicts;
	__u64 evicted;
	__u64 files;
};

/**
 * struct rfs_file_info - RFS_IOC_FILE, on a file of the mount
 * @size: of this structure
 * @device: out: N of /dev/rfsN
 * @file: out: file id
 */
struct rfs_file_info {
	__u32 size;
	__u32 device;
	__u64 file;
};

#define RFS_IOC_MAGIC		0xbf

#define RFS_IOC_HELLO		_IOWR(RFS_IOC_MAGIC, 0x00, struct rfs_hello)
#define RFS_IOC_MASK		_IOW(RFS_IOC_MAGIC, 0x01, struct rfs_mask)
#define RFS_IOC_LOWER_FD	_IOWR(RFS_IOC_MAGIC, 0x02, struct rfs_lower_fd)
#define RFS_IOC_PATH		_IOWR(RFS_IOC_MAGIC, 0x03, struct rfs_path)
#define RFS_IOC_LOAD		_IOWR(RFS_IOC_MAGIC, 0x04, struct rfs_load)
#define RFS_IOC_STOP		_IOWR(RFS_IOC_MAGIC, 0x05, struct rfs_stop)
#define RFS_IOC_EVICT		_IOWR(RFS_IOC_MAGIC, 0x06, struct rfs_evict)
#define RFS_IOC_RESIDENT	_IOWR(RFS_IOC_MAGIC, 0x07, struct rfs_resident)
#define RFS_IOC_STATS		_IOWR(RFS_IOC_MAGIC, 0x08, struct rfs_stats)
#define RFS_IOC_FILE		_IOWR(RFS_IOC_MAGIC, 0x10, struct rfs_file_info)

#endif /* _UAPI_LINUX_RFS_H */

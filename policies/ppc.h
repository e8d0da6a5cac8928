/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * ppc - the contract between a cache policy and the runtime that hosts it
 *
 * A policy is a shared library that receives page-cache misses and decides
 * what to load and what to drop. It exports one symbol, ppc_policy, and links
 * with no library of PPC: this header is all it needs.
 *
 *	#include "ppc.h"
 *
 *	static const struct ppc_host *the_host;
 *
 *	static int start(const struct ppc_host *host, const struct ppc_setting *settings,
 *			 struct ppc_sink *sink, void **self)
 *	{
 *		the_host = host;
 *		return 0;
 *	}
 *
 *	static int ahead(void *self, const struct ppc_event *event, struct ppc_sink *sink)
 *	{
 *		if (!event || event->kind != PPC_EVENT_MISS)
 *			return 0;
 *		return ppc_load(the_host, sink, event->file, event->offset + event->length,
 *				8 << 20, event->tgid);
 *	}
 *
 *	PPC_POLICY(.name = "ahead", .init = start, .prefetch = ahead);
 *
 *	cc -shared -fPIC -o ahead.so ahead.c
 *
 * policies/shift/shift.c is one with settings and state; policies/README.md
 * describes how to write one from an empty folder, in C or in Rust.
 *
 * The life of a policy
 * --------------------
 * A worker, a process that hosts this one policy, opens the library, copies
 * ppc_policy and checks it. From then on it uses only its copy. It calls
 *
 *	init		once. Settings are read, an instance is created.
 *	prefetch	on each event, and with event NULL after wake().
 *	evict		while memory is over the threshold: on each event before
 *			prefetch, and at intervals with event NULL.
 *	configure	whenever a setting of the running policy changes.
 *	exit		once, if init succeeded. Afterwards neither host nor policy
 *			calls the other. A killed worker does not call it, so
 *			correctness must not depend on it.
 *
 * init, prefetch and evict name I/Os: ranges of files to load, to drop, or to
 * stop loading. The op of an I/O says which, whatever callback names it.
 *
 * The library is never unloaded: a policy is swapped by ending its worker, or
 * by loading another beside it. Some hosts run several instances of one
 * library in one process, so state belongs in the instance; a policy that
 * keeps it in static variables, like the one above, runs once per process.
 *
 * Without prefetch, the kernel reads ahead as usual; without evict, the kernel
 * reclaims as usual; without init, there is no instance (self is NULL) and
 * settings are refused; without exit, there is nothing to clean up; without
 * configure, changing a setting takes a new registration. A policy without any
 * callback is the kernel's own page cache.
 *
 * Threads and time
 * ----------------
 * All callbacks of an instance are called from one thread and never
 * concurrently. A policy may have its own threads; it joins them in exit.
 * Host services are for the thread and the duration of a callback; log, now and
 * wake may be called from any thread between the start of init and the return
 * of exit.
 *
 * A callback has a deadline, deadline_ns in struct ppc_host; init and exit,
 * which may look at every file, have ten times as long. Readers never wait for
 * a callback, but one that exceeds its deadline counts as hung: the worker is
 * killed and its mount falls back to the kernel's own caching. So a callback
 * does no I/O that the host could do for it, and leaves long work to a thread.
 *
 * Advice
 * ------
 * What a policy names is advice. The host checks every range against the file
 * before it acts and clips it to the file's end; it skips anything but regular
 * files of the mount. Of the I/Os of one callback, drops and cancels come
 * before loads, to make room for them.
 *
 * PPC_OP_LOAD adds to the waiting loads. The host loads less while readers
 * need the bandwidth, and nothing while memory is over the threshold; it
 * abandons a load that has waited too long for memory. Asking for cached
 * ranges costs little.
 *
 * With PPC_IO_REPLACE a load replaces older loads of the same tgid, whose
 * reader has moved on: those that wait for the same file, and when all threads
 * of the loader are busy, all of them, even those in progress. So a policy may
 * ask for everything from here to the end, and ask again from further on at the
 * next event. Without a tgid there is no older load to replace, and the load is
 * added like any other.
 *
 * PPC_OP_DROP takes a range out of the cache and cancels its waiting loads.
 * PPC_OP_CANCEL does only the latter. Pages that stay because processes map
 * them are left to the kernel, which reclaims them when it needs memory; they
 * no longer count as used. Because the kernel reclaims mapped and used pages
 * last, a policy that leaves many to it loads with PPC_IO_HOLD, and keeps only
 * a part of the available memory ahead of its readers.
 *
 * Memory
 * ------
 * Nothing is returned through allocated memory. Lists are handed over item by
 * item to a sink that belongs to the host and is valid until the callback
 * returns. Events, settings and entries belong to the host, likewise until the
 * callback returns. Strings are NUL terminated bytes; paths are relative to the
 * root of the mount, without a slash at the beginning or end; "" is the root.
 *
 * Errors
 * ------
 * Callbacks and services return 0 (or what their description says) or a
 * negative errno. If init fails, the policy is refused, and its last log line
 * is the reason given. If prefetch or evict fails, the failure is logged and
 * counted, its sink is discarded, and the next event comes as usual; but
 * -ENOSPC from either only repeats the result of add(), and the sink counts. A
 * policy refuses unknown settings with -EINVAL, so that a typo is noticed.
 * Nothing may unwind or longjmp out of a callback.
 *
 * Versions
 * --------
 * Structures grow at their end only, fields keep their meaning, and reserved
 * fields are zero. Each begins with struct_size, the sizeof of its author:
 * PPC_INIT sets it. The receiver uses the fields that both sides know and takes
 * the rest as zero, which always means as before. An I/O that is longer than
 * the host knows is refused unless the rest is zero, because the host could not
 * do what it asks for. A host runs policies of its own abi_version and of all
 * earlier ones, and refuses newer ones with an explanation; so a policy may
 * call every service of the header that it was built with.
 *
 * 1  the first.
 * 2  report(), struct ppc_report; ppc_memory.group.
 */
#ifndef PPC_H
#define PPC_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PPC_ABI_VERSION		2

/* Fills a structure's struct_size; the other fields are zero or follow. */
#define PPC_INIT(type)		((uint32_t)sizeof(type))

#if defined(__GNUC__) || defined(__clang__)
#define PPC_EXPORT		__attribute__((visibility("default")))
#else
#define PPC_EXPORT
#endif

/* ppc_event.kind; 1 << kind is its bit in what want() takes. Numbers as in rfs.h. */
#define PPC_EVENT_LOST		0u	/* count events could not be delivered */
#define PPC_EVENT_OPEN		1u	/* a file of length bytes was opened */
#define PPC_EVENT_CLOSE		2u	/* the last descriptor of an open is closed */
#define PPC_EVENT_MISS		3u	/* the range was read and was not cached */
#define PPC_EVENT_TOUCH		4u	/* the range was read, cached or not */
#define PPC_EVENT_PROGRESS	5u	/* a process is at offset, length bytes on */

/*
 * Added to those bits: TOUCH and PROGRESS are needed from the next OPEN on. A
 * mount on which they cost programs that read other files leaves them out until
 * then, and again once its files have not been read or opened for a while.
 */
#define PPC_WANT_FROM_OPEN	(1u << 31)

/* ppc_event.flags */
#define PPC_EV_MMAP		(1u << 0)	/* a page fault, not a read */
#define PPC_EV_DIRECT		(1u << 1)	/* opened with O_DIRECT */

/**
 * struct ppc_event - what a reader did
 * @struct_size: of this structure
 * @kind: PPC_EVENT_*; skip those you do not know
 * @flags: PPC_EV_*
 * @tgid: process, its number in the initial pid namespace
 * @file: file id, 0 for LOST
 * @offset: in bytes
 * @length: in bytes
 * @time_ns: when, on the clock of now()
 * @count: how many events were merged into this one, or lost
 * @tid: thread, likewise
 * @cpu: on which it happened
 */
struct ppc_event {
	uint32_t struct_size;
	uint32_t kind;
	uint32_t flags;
	uint32_t tgid;
	uint64_t file;
	uint64_t offset;
	uint64_t length;
	uint64_t time_ns;
	uint64_t count;
	uint32_t tid;
	uint32_t cpu;
};

/* ppc_io.op; 0 is none, so that a forgotten op is noticed */
#define PPC_OP_LOAD		1u	/* bring the range into the cache */
#define PPC_OP_DROP		2u	/* take it out, and load no more of it */
#define PPC_OP_CANCEL		3u	/* load no more of it; what is cached stays */

/* ppc_io.flags; each belongs to the named op, and is refused with another */
#define PPC_IO_REPLACE		(1u << 0)	/* LOAD: replace older loads of tgid */
#define PPC_IO_HOLD		(1u << 1)	/* LOAD: and have the kernel take older cache first */
#define PPC_IO_NEAR		(1u << 2)	/* LOAD: into the memory nearest to xpu */
#define PPC_IO_LARGE		(1u << 3)	/* LOAD: large folios rather than the exact range */
#define PPC_IO_UNMAPPED		(1u << 4)	/* DROP: leave pages that processes map */

/**
 * struct ppc_io - a range, and what to do with it
 * @struct_size: of this structure, at least through @length
 * @op: PPC_OP_*
 * @flags: PPC_IO_*
 * @priority: of a load: higher ones first, equal ones in their order; 0 is usual;
 *	      below 0 the range is loaded in the background: a small piece at a
 *	      time, while nothing else is loaded. While a worker has ranges of a
 *	      higher priority to load, each other worker that loads from the same
 *	      device has one load at a time
 * @file: file id, from an event or from open_file()
 * @offset: in bytes
 * @length: in bytes, not 0; beyond the end of the file means to its end, and
 *	    offset + length is at most INT64_MAX
 * @xpu: an accelerator, read with PPC_IO_NEAR only. Without that flag the host
 *	 uses the accelerator that tgid works on, if known.
 * @tgid: of a load: the process that will read it, whose memory cgroup may be
 *	  charged; 0 if no particular one
 */
struct ppc_io {
	uint32_t struct_size;
	uint32_t op;
	uint32_t flags;
	int32_t priority;
	uint64_t file;
	uint64_t offset;
	uint64_t length;
	uint32_t xpu;
	uint32_t tgid;
};

/**
 * struct ppc_setting - one of the settings that the policy was registered with
 * @key: NULL ends the array
 * @value: data, never a command
 */
struct ppc_setting {
	const char *key;
	const char *value;
};

/**
 * struct ppc_file - what identifies a file
 * @struct_size: of this structure, set by the caller
 * @reserved: 0
 * @size: in bytes
 * @device: of the lower file system, as in st_dev
 * @inode: number there
 * @mtime_ns: last change of its contents, in ns since 1970
 */
struct ppc_file {
	uint32_t struct_size;
	uint32_t reserved;
	uint64_t size;
	uint64_t device;
	uint64_t inode;
	int64_t mtime_ns;
};

/* ppc_entry.type */
#define PPC_ENTRY_FILE		1u
#define PPC_ENTRY_DIRECTORY	2u

/**
 * struct ppc_entry - one entry of a directory
 * @struct_size: of this structure
 * @type: PPC_ENTRY_*; nothing else is listed
 * @size: of a file in bytes
 * @path: from the root of the mount
 */
struct ppc_entry {
	uint32_t struct_size;
	uint32_t type;
	uint64_t size;
	const char *path;
};

/* flags of list() */
#define PPC_LIST_RECURSIVE	(1u << 0)	/* include subdirectories */

/**
 * struct ppc_memory - how much the page cache may take
 * @struct_size: of this structure, set by the caller
 * @reserved: 0
 * @limit: bytes, by the tightest limit that applies
 * @used: bytes of it that are in use; of the page cache only pages that readers
 *	  and policies of this mount have brought in, as the kernel drops the rest
 *	  at no cost
 * @threshold: bytes in use from which on evict is called
 * @available: bytes that can be loaded before that
 * @group: whose limit it is: the inode number of the memory control group's
 *	   directory; 0: the machine's, or not known. Since version 2.
 */
struct ppc_memory {
	uint32_t struct_size;
	uint32_t reserved;
	uint64_t limit;
	uint64_t used;
	uint64_t threshold;
	uint64_t available;
	uint64_t group;
};

/**
 * struct ppc_report - what became of a load, when it is over
 * @struct_size: of this structure, through @whole_ns
 * @reserved: 0
 * @service: whose load it was, in UTF-8; up to 255 bytes, not empty
 * @asked: bytes that were asked for ahead of readers, each once; not those that
 *	   were taken back before they came
 * @used: of these, read after they had come
 * @late: of these, missed by a reader anyway: they came too late, or were
 *	  gone again
 * @unread: of these, never read. @used, @late and @unread are no more than @asked.
 * @own: bytes that readers missed and that were not asked for
 * @waiting_ns: time from when the load began until its first reader came
 * @loading_ns: time during which something was being loaded
 * @held_ns: time during which all that fits was loaded, and the rest waited for
 *	     readers to read, or for memory
 * @reading_ns: time during which all was loaded, and readers read
 * @resting_ns: time during which all was loaded, and none read
 * @whole_ns: from the beginning to the end. The five phases are parts of it that
 *	      do not overlap: they add up to it, but for rounding.
 */
struct ppc_report {
	uint32_t struct_size;
	uint32_t reserved;
	const char *service;
	uint64_t asked;
	uint64_t used;
	uint64_t late;
	uint64_t unread;
	uint64_t own;
	uint64_t waiting_ns;
	uint64_t loading_ns;
	uint64_t held_ns;
	uint64_t reading_ns;
	uint64_t resting_ns;
	uint64_t whole_ns;
};

/* Where a callback puts its I/Os. It belongs to the host. */
struct ppc_sink;

/* level of log() */
#define PPC_LOG_ERROR		1u	/* the requested action failed */
#define PPC_LOG_WARN		2u	/* abnormal, but the policy continues */
#define PPC_LOG_INFO		3u	/* once per lifetime, not once per event */
#define PPC_LOG_DEBUG		4u

/* ppc_host.features, ppc_policy.needs */
#define PPC_FEATURE_OPEN	(1ull << 0)	/* OPEN and CLOSE events */
#define PPC_FEATURE_TOUCH	(1ull << 1)	/* TOUCH events */
#define PPC_FEATURE_PROGRESS	(1ull << 2)	/* PROGRESS events */
#define PPC_FEATURE_EVICT_MAPPED (1ull << 3)	/* drops pages that processes map */
#define PPC_FEATURE_AFFINITY	(1ull << 4)	/* PPC_IO_NEAR decides on the memory */
#define PPC_FEATURE_CHARGE	(1ull << 5)	/* ppc_io.tgid decides which cgroup pays */

/**
 * struct ppc_host - what the host does for a policy
 * @struct_size: of this structure
 * @abi_version: of the host, never older than the policy's
 * @features: PPC_FEATURE_* that this mount has
 * @deadline_ns: how long a callback may take; 0 if there is no limit
 * @ctx: the first argument of all services
 * @log: logs a line of UTF-8, without a newline. From any thread.
 * @add: puts an I/O into the sink of this callback. Fields that a shorter one
 *	 lacks are taken as 0. -EINVAL: a structure that ends before @length does,
 *	 an unknown op, a flag that is unknown or belongs to another op, a length
 *	 of 0, a range beyond INT64_MAX, an xpu beyond 65535. -E2BIG: a longer
 *	 structure whose rest is not zero. -ENOSPC: the sink is full, and what it
 *	 holds will be done.
 * @open_file: the id of the file at a path; no event needs to have named it.
 *	       It is valid until close_file() or exit. For a start, a path that ends
 *	       with a slash is a directory; to LOAD it is to list it, and its TOUCH
 *	       says that it was listed.
 * @close_file: gives back what open_file() gave. Loads of the file that still
 *		wait may be left out: close it when they are done, or let exit do so.
 * @file_info: size and identity of a file
 * @file_path: writes path and NUL to buf and returns the length of the path.
 *	       -ENAMETOOLONG: they do not fit into size. -ENOENT: it has none.
 * @list: calls visit for each entry of a directory, in byte order of their
 *	  paths. A nonzero result of visit ends the list and is returned.
 *	  -ENOTDIR, -ENOENT.
 * @read: copies up to size bytes of a file at offset to buf; returns how many,
 *	  0 at the end. Causes no event. For headers and indices, not for weights.
 * @resident: how many bytes of the range are cached. At least one page counts
 *	      for itself.
 * @memory: the state of memory now
 * @process_xpu: the accelerator a process works on; they are numbered from 0.
 *		 -ENOENT: none is known yet.
 * @now: CLOCK_MONOTONIC in ns. From any thread.
 * @want: selects the events from now on: a mask of 1 << PPC_EVENT_*, perhaps with
 *	  PPC_WANT_FROM_OPEN, with PROGRESS one event per progress_bytes. Default:
 *	  MISS. LOST always comes with any other. -EOPNOTSUPP: a kind that this
 *	  mount does not have, and nothing changed.
 * @wake: has prefetch called with event NULL, not before after_ns from now. The
 *	  latest call counts. From any thread.
 * @report: tells what became of a load; the host adds it up, by service, for its
 *	    users. Since version 2. -EINVAL: a structure that is shorter, no
 *	    service, a service that is too long, parts that are more than the whole.
 *	    -E2BIG: a longer structure whose rest is not zero.
 */
struct ppc_host {
	uint32_t struct_size;
	uint32_t abi_version;
	uint64_t features;
	uint64_t deadline_ns;
	void *ctx;
	void (*log)(void *ctx, uint32_t level, const char *message);
	int (*add)(void *ctx, struct ppc_sink *sink, const struct ppc_io *io);
	int (*open_file)(void *ctx, const char *path, uint64_t *file);
	int (*close_file)(void *ctx, uint64_t file);
	int (*file_info)(void *ctx, uint64_t file, struct ppc_file *info);
	int64_t (*file_path)(void *ctx, uint64_t file, char *buf, uint64_t size);
	int (*list)(void *ctx, const char *path, uint32_t flags,
		    int (*visit)(void *arg, const struct ppc_entry *entry), void *arg);
	int64_t (*read)(void *ctx, uint64_t file, uint64_t offset, void *buf, uint64_t size);
	int (*resident)(void *ctx, uint64_t file, uint64_t offset, uint64_t length,
			uint64_t *cached);
	int (*memory)(void *ctx, struct ppc_memory *memory);
	int (*process_xpu)(void *ctx, uint32_t tgid);
	uint64_t (*now)(void *ctx);
	int (*want)(void *ctx, uint32_t kinds, uint64_t progress_bytes);
	int (*wake)(void *ctx, uint64_t after_ns);
	int (*report)(void *ctx, const struct ppc_report *report);
};

/**
 * struct ppc_policy - what a policy exports, under the name ppc_policy
 * @struct_size: of this structure
 * @abi_version: PPC_ABI_VERSION
 * @name: short, of a-z, 0-9 and -; required
 * @version: of the policy, or NULL
 * @description: a line for users, or NULL
 * @needs: PPC_FEATURE_* that it cannot work without: a mount that lacks one
 *	   refuses the policy
 * @init: settings end with a NULL key; host is valid until exit has returned;
 *	  *self is NULL, and its value on return is passed to the other callbacks
 * @exit: self is gone afterwards; an error is logged
 * @prefetch: event NULL: after wake()
 * @evict: event NULL: at an interval
 * @configure: sets one setting of the running instance
 *
 * Those from init on are callbacks; any may be NULL.
 */
struct ppc_policy {
	uint32_t struct_size;
	uint32_t abi_version;
	const char *name;
	const char *version;
	const char *description;
	uint64_t needs;
	int (*init)(const struct ppc_host *host, const struct ppc_setting *settings,
		    struct ppc_sink *sink, void **self);
	int (*exit)(void *self);
	int (*prefetch)(void *self, const struct ppc_event *event, struct ppc_sink *sink);
	int (*evict)(void *self, const struct ppc_event *event, struct ppc_sink *sink);
	int (*configure)(void *self, const char *key, const char *value);
};

/* Size of struct ppc_policy in version 1; a host refuses shorter ones. */
#define PPC_POLICY_SIZE_V1	80u

extern PPC_EXPORT const struct ppc_policy ppc_policy;

/*
 * PPC_POLICY - registers the policy of this library, once in it
 *
 *	PPC_POLICY(.name = "shift", .version = "1", .prefetch = shift_prefetch);
 *
 * Size and version are filled in. C++ before 20 has no designated initializers:
 * there the fields follow in their order, from the name on.
 *
 *	PPC_POLICY("shift", "1", nullptr, 0, nullptr, nullptr, shift_prefetch, nullptr, nullptr);
 */
#if defined(__cplusplus) && __cplusplus < 202002L
#define PPC_POLICY(...) \
	const struct ppc_policy ppc_policy = { \
		PPC_INIT(struct ppc_policy), PPC_ABI_VERSION, __VA_ARGS__ \
	}
#else
#define PPC_POLICY(...) \
	const struct ppc_policy ppc_policy = { \
		.struct_size = PPC_INIT(struct ppc_policy), \
		.abi_version = PPC_ABI_VERSION, \
		__VA_ARGS__ \
	}
#endif

/**
 * ppc_load() - names a range to load, without flags
 * @host: what init was given
 * @sink: of the running callback
 * @file: its id
 * @offset: in bytes
 * @length: in bytes
 * @tgid: the process that will read it; 0 if no particular one
 *
 * An I/O with flags or a priority is a struct ppc_io for host->add().
 *
 * Return: what add() says.
 */
static inline int ppc_load(const struct ppc_host *host, struct ppc_sink *sink, uint64_t file,
			   uint64_t offset, uint64_t length, uint32_t tgid)
{
	const struct ppc_io io = {
		PPC_INIT(struct ppc_io), PPC_OP_LOAD, 0, 0, file, offset, length, 0, tgid
	};

	return host->add(host->ctx, sink, &io);
}

/**
 * ppc_drop() - names a range to drop, without flags
 * @host: what init was given
 * @sink: of the running callback
 * @file: its id
 * @offset: in bytes
 * @length: in bytes
 *
 * Return: what add() says.
 */
static inline int ppc_drop(const struct ppc_host *host, struct ppc_sink *sink, uint64_t file,
			   uint64_t offset, uint64_t length)
{
	const struct ppc_io io = {
		PPC_INIT(struct ppc_io), PPC_OP_DROP, 0, 0, file, offset, length, 0, 0
	};

	return host->add(host->ctx, sink, &io);
}

/**
 * ppc_parse_bytes() - reads a number of bytes, such as a setting's value
 * @text: "4096", "128K", "64M" or "1G", by powers of 1024, and nothing else
 * @bytes: receives the number; unchanged on error
 *
 * Return: 0, or -EINVAL: @text is something else, or does not fit.
 */
static inline int ppc_parse_bytes(const char *text, uint64_t *bytes)
{
	uint64_t number = 0;
	int shift = 0;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	for (; *text >= '0' && *text <= '9'; text++) {
		const uint64_t digit = (uint64_t)(*text - '0');

		if (number > (UINT64_MAX - digit) / 10)
			return -EINVAL;
		number = number * 10 + digit;
	}
	if (*text == 'K')
		shift = 10;
	else if (*text == 'M')
		shift = 20;
	else if (*text == 'G')
		shift = 30;
	if (shift)
		text++;
	if (*text || number > UINT64_MAX >> shift)
		return -EINVAL;
	*bytes = number << shift;
	return 0;
}

/* An array of -1 elements does not compile, in any C or C++. */
#define PPC_ASSERT_SIZE(type, bytes) \
	typedef char ppc_sizeof_##type[sizeof(struct type) == (bytes) ? 1 : -1]
PPC_ASSERT_SIZE(ppc_event, 64);
PPC_ASSERT_SIZE(ppc_io, 48);
PPC_ASSERT_SIZE(ppc_setting, 16);
PPC_ASSERT_SIZE(ppc_file, 40);
PPC_ASSERT_SIZE(ppc_entry, 24);
PPC_ASSERT_SIZE(ppc_memory, 48);
PPC_ASSERT_SIZE(ppc_report, 104);
PPC_ASSERT_SIZE(ppc_host, 152);
PPC_ASSERT_SIZE(ppc_policy, PPC_POLICY_SIZE_V1);
#undef PPC_ASSERT_SIZE

#ifdef __cplusplus
}
#endif

#endif /* PPC_H */

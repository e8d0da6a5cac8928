/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * probe - reports the events that it receives, and loads and drops what its settings say
 *
 * Settings, all of them numbers except for the paths:
 *	ahead=BYTES	load this many bytes behind each miss
 *	behind=BYTES	evict: drop this many bytes in front of each miss, or at an interval of the last one
 *	xpu=N		aim loads at this accelerator
*	kinds=MASK	receive these kinds, 1 << PPC_EVENT_*
 *	progress=BYTES	distance between two beacons
 *	load=PATH	load all of this file at the start
 *	log=0		do not log each event
 *	record=PATH	write each event into this file, too
 * Settings with numbers may change.
 *
 * An event is a line: event KIND OFFSET LENGTH COUNT TGID mmap|read PATH
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ppc.h"

#define PATH_MAX	4096

struct probe {
	const struct ppc_host *host;
	uint64_t ahead;
	uint64_t behind;
	uint64_t xpu;
	uint64_t kinds;
	uint64_t progress;
	uint64_t log;
	int record;
	uint64_t last_file;
	uint64_t last_offset;
};

static const char *const kinds[] = { "LOST", "OPEN", "CLOSE", "MISS", "TOUCH", "PROGRESS" };

static uint64_t *number(struct probe *probe, const char *key)
{
	static const struct {
		const char *key;
		size_t at;
	} table[] = {
		{ "ahead", offsetof(struct probe, ahead) },
		{ "behind", offsetof(struct probe, behind) },
		{ "xpu", offsetof(struct probe, xpu) },
		{ "kinds", offsetof(struct probe, kinds) },
		{ "progress", offsetof(struct probe, progress) },
		{ "log", offsetof(struct probe, log) },
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		if (!strcmp(table[i].key, key))
			return (uint64_t *)((char *)probe + table[i].at);
	}
	return NULL;
}

static int refuse(const struct probe *probe, const char *key)
{
	char line[256];

	snprintf(line, sizeof(line), "probe does not know the setting %s", key);
	probe->host->log(probe->host->ctx, PPC_LOG_ERROR, line);
	return -EINVAL;
}

static int probe_configure(void *self, const char *key, const char *value)
{
	struct probe *probe = self;
	uint64_t *at = number(probe, key);
	char *end;

	if (!at)
		return refuse(probe, key);
	*at = strtoull(value, &end, 0);
	if (*end || !*value)
		return refuse(probe, key);
	if (at == &probe->kinds || at == &probe->progress)
		return probe->host->want(probe->host->ctx, probe->kinds, probe->progress);
	return 0;
}

/* Loads a range for a process, in place of the loads planned for it. */
static int load(const struct probe *probe, struct ppc_sink *sink, uint64_t file, uint64_t offset,
		uint64_t length, uint32_t tgid)
{
	struct ppc_io io = {
		.struct_size = PPC_INIT(struct ppc_io),
		.op = PPC_OP_LOAD,
		.flags = PPC_IO_REPLACE,
		.file = file,
		.offset = offset,
		.length = length,
		.tgid = tgid,
	};

	if (probe->xpu != UINT64_MAX) {
		io.flags |= PPC_IO_NEAR;
		io.xpu = (uint32_t)probe->xpu;
	}
	return probe->host->add(probe->host->ctx, sink, &io);
}

static int load_file(struct probe *probe, const char *path, struct ppc_sink *sink)
{
	const struct ppc_host *host = probe->host;
	uint64_t file;
	int err = host->open_file(host->ctx, path, &file);

	if (err)
		return err;
	return load(probe, sink, file, 0, INT64_MAX, 0);
}

static int setting(struct probe *probe, const struct ppc_setting *setting)
{
	if (!strcmp(setting->key, "load"))
		return 0; /* when all the others are known */
	if (!strcmp(setting->key, "record")) {
		probe->record = open(setting->value, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
		return probe->record < 0 ? -errno : 0;
	}
	return probe_configure(probe, setting->key, setting->value);
}

static int probe_init(const struct ppc_host *host, const struct ppc_setting *settings,
		      struct ppc_sink *sink, void **self)
{
	struct probe *probe = malloc(sizeof(*probe));
	int err = 0;

	if (!probe)
		return -ENOMEM;
	*probe = (struct probe){
		.host = host, .xpu = UINT64_MAX, .kinds = 1u << PPC_EVENT_MISS, .log = 1, .record = -1,
	};
	for (const struct ppc_setting *each = settings; each->key && !err; each++)
		err = setting(probe, each);
	for (const struct ppc_setting *each = settings; each->key && !err; each++) {
		if (!strcmp(each->key, "load"))
			err = load_file(probe, each->value, sink);
	}
	if (err) {
		free(probe);
		return err;
	}
	*self = probe;
	return 0;
}

static int probe_exit(void *self)
{
	struct probe *probe = self;

	if (probe->record >= 0)
		close(probe->record);
	free(probe);
	return 0;
}

static void tell(const struct probe *probe, const struct ppc_event *event)
{
	const struct ppc_host *host = probe->host;
	const char *kind = event->kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[event->kind] : "UNKNOWN";
	const char *way = event->flags & PPC_EV_MMAP ? "mmap" : "read";
	char path[PATH_MAX], line[PATH_MAX + 160];
	int length;

	if (!probe->log && probe->record < 0)
		return;
	if (!event->file || host->file_path(host->ctx, event->file, path, sizeof(path)) < 0)
		strcpy(path, "?");
	length = snprintf(line, sizeof(line) - 1,
			  "event %s %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu32 " %s %s", kind,
			  event->offset, event->length, event->count, event->tgid, way, path);
	if (probe->log)
		host->log(host->ctx, PPC_LOG_INFO, line);
	line[length++] = '\n';
	if (probe->record >= 0 && write(probe->record, line, length) != length)
		host->log(host->ctx, PPC_LOG_ERROR, "the record cannot be written");
}

static int probe_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	struct probe *probe = self;

	if (!event)
		return 0;
	tell(probe, event);
	if (event->kind != PPC_EVENT_MISS)
		return 0;
	probe->last_file = event->file;
	probe->last_offset = event->offset;
	if (!probe->ahead)
		return 0;
	return load(probe, sink, event->file, event->offset + event->length, probe->ahead, event->tgid);
}

static int probe_evict(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	struct probe *probe = self;
	uint64_t length;

	if (event && event->kind == PPC_EVENT_MISS) {
		probe->last_file = event->file;
		probe->last_offset = event->offset;
	}
	length = probe->behind < probe->last_offset ? probe->behind : probe->last_offset;
	if (!probe->last_file || !length)
		return 0;
	return ppc_drop(probe->host, sink, probe->last_file, probe->last_offset - length, length);
}

PPC_POLICY(
	.name = "probe",
	.version = "1",
	.description = "Reports its events, and loads and drops as its settings say",
	.init = probe_init,
	.exit = probe_exit,
	.prefetch = probe_prefetch,
	.evict = probe_evict,
	.configure = probe_configure,
);

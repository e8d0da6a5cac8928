/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * beyond - names files that do not exist or that it must not open, and invalid ranges
 *
 * Setting: paths=A:B of files that no policy may open. Whatever the host accepts and should have refused at
 * once is logged, in lines that begin with "taken:".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ppc.h"

static struct beyond {
	const struct ppc_host *host;
	char paths[1024];
} the_beyond;

static void taken(const char *what)
{
	char line[256];

	snprintf(line, sizeof(line), "taken: %s", what);
	the_beyond.host->log(the_beyond.host->ctx, PPC_LOG_ERROR, line);
}

static int beyond_init(const struct ppc_host *host, const struct ppc_setting *settings,
		       struct ppc_sink *sink, void **self)
{
	(void)sink;
	the_beyond.host = host;
	for (; settings->key; settings++) {
		if (strcmp(settings->key, "paths") != 0)
			return -EINVAL;
		snprintf(the_beyond.paths, sizeof(the_beyond.paths), "%s", settings->value);
	}
	*self = &the_beyond;
	return 0;
}

static void open_all(void)
{
	char paths[sizeof(the_beyond.paths)], *rest = NULL;
	uint64_t file;

	strcpy(paths, the_beyond.paths);
	for (char *path = strtok_r(paths, ":", &rest); path; path = strtok_r(NULL, ":", &rest)) {
		if (!the_beyond.host->open_file(the_beyond.host->ctx, path, &file))
			taken(path);
	}
	if (!the_beyond.host->open_file(the_beyond.host->ctx, "", &file))
		taken("the root as a file");
}

#define WHOLE PPC_INIT(struct ppc_io)

/* Requests that add() itself has to refuse. */
static void add_nonsense(uint64_t file, struct ppc_sink *sink)
{
	static const struct {
		const char *what;
		uint64_t offset, length;
		uint32_t op, flags, size;
	} cases[] = {
		{ "a length of 0", 0, 0, PPC_OP_LOAD, 0, WHOLE },
		{ "an end beyond INT64_MAX", INT64_MAX, 1, PPC_OP_LOAD, 0, WHOLE },
		{ "an end beyond UINT64_MAX", UINT64_MAX - 10, 4096, PPC_OP_LOAD, 0, WHOLE },
		{ "a length of UINT64_MAX", 4096, UINT64_MAX, PPC_OP_LOAD, 0, WHOLE },
		{ "no op", 0, 4096, 0, 0, WHOLE },
		{ "an op that does not exist", 0, 4096, 99, 0, WHOLE },
		{ "a flag that does not exist", 0, 4096, PPC_OP_LOAD, 1u << 31, WHOLE },
		{ "a flag of another op", 0, 4096, PPC_OP_DROP, PPC_IO_HOLD, WHOLE },
		{ "a cancel with a flag", 0, 4096, PPC_OP_CANCEL, PPC_IO_UNMAPPED, WHOLE },
		{ "one without a length", 0, 4096, PPC_OP_LOAD, 0, offsetof(struct ppc_io, length) },
		{ "one without a size", 0, 4096, PPC_OP_LOAD, 0, 0 },
		{ "one of 4 GiB", 0, 4096, PPC_OP_LOAD, 0, UINT32_MAX },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ppc_io io = {
			.struct_size = cases[i].size,
			.op = cases[i].op,
			.flags = cases[i].flags,
			.file = file,
			.offset = cases[i].offset,
			.length = cases[i].length,
		};

		if (!the_beyond.host->add(the_beyond.host->ctx, sink, &io))
			taken(cases[i].what);
	}
}

/* Requests that only the file shows to be wrong: the host may accept them, and has to leave them out. */
static void add_nowhere(uint64_t file, struct ppc_sink *sink)
{
	static const struct {
		uint64_t file, offset, length;
		uint32_t flags, xpu, tgid;
	} cases[] = {
		{ 0, 1ull << 40, 4096, 0, 0, 0 },
		{ 0, INT64_MAX - 4096, 4096, 0, 0, 0 },
		{ UINT64_MAX, 0, 4096, 0, 0, 0 },
		{ 0xdeadbeef, 0, INT64_MAX, 0, 0, 0 },
		{ 0, 0, 4096, PPC_IO_NEAR, 1000, 0 },
		{ 0, 0, 4096, PPC_IO_REPLACE, 0, 0x7fffffff },
		{ 0, 0, 4096, PPC_IO_REPLACE, 0, 0 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ppc_io io = {
			.struct_size = PPC_INIT(struct ppc_io),
			.op = PPC_OP_LOAD,
			.flags = cases[i].flags,
			.file = cases[i].file ? cases[i].file : file,
			.offset = cases[i].offset,
			.length = cases[i].length,
			.xpu = cases[i].xpu,
			.priority = i % 2 ? INT32_MAX : INT32_MIN,
			.tgid = cases[i].tgid,
		};

		the_beyond.host->add(the_beyond.host->ctx, sink, &io);
	}
}

static int beyond_advise(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	(void)self;
	if (!event || event->kind != PPC_EVENT_MISS)
		return 0;
	open_all();
	add_nonsense(event->file, sink);
	add_nowhere(event->file, sink);
	return 0;
}

PPC_POLICY(
	.name = "test-beyond",
	.description = "Names what is not there, not its business or no range at all",
	.init = beyond_init,
	.prefetch = beyond_advise,
	.evict = beyond_advise,
);

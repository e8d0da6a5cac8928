/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * beyond - names what is not there, not its business or no range at all
 *
 * Setting: paths=A:B of what no policy may open. What the host should have refused at once and took is
 * said in the log, in lines that begin with "taken:".
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

/* What add() itself has to refuse. */
static void add_nonsense(uint64_t file, struct ppc_sink *sink)
{
	static const struct {
		const char *what;
		uint64_t offset, length;
		uint32_t flags;
	} cases[] = {
		{ "a length of 0", 0, 0, 0 },
		{ "an end beyond INT64_MAX", INT64_MAX, 1, 0 },
		{ "an end beyond UINT64_MAX", UINT64_MAX - 10, 4096, 0 },
		{ "a length of UINT64_MAX", 4096, UINT64_MAX, 0 },
		{ "flags that do not exist", 0, 4096, 1u << 31 },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ppc_io io = {
			.struct_size = PPC_INIT(struct ppc_io),
			.flags = cases[i].flags,
			.file = file,
			.offset = cases[i].offset,
			.length = cases[i].length,
			.xpu = PPC_XPU_NONE,
		};

		if (!the_beyond.host->add(the_beyond.host->ctx, sink, &io))
			taken(cases[i].what);
	}
}

/* What only a look at the file tells: the host may take it, and has to leave it out. */
static void add_nowhere(uint64_t file, struct ppc_sink *sink)
{
	static const struct {
		uint64_t file, offset, length;
		int32_t xpu;
		uint32_t tgid;
	} cases[] = {
		{ 0, 1ull << 40, 4096, PPC_XPU_NONE, 0 },
		{ 0, INT64_MAX - 4096, 4096, PPC_XPU_NONE, 0 },
		{ UINT64_MAX, 0, 4096, PPC_XPU_NONE, 0 },
		{ 0xdeadbeef, 0, INT64_MAX, PPC_XPU_NONE, 0 },
		{ 0, 0, 4096, 1000, 0 },
		{ 0, 0, 4096, PPC_XPU_NONE, 0x7fffffff },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ppc_io io = {
			.struct_size = PPC_INIT(struct ppc_io),
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

const struct ppc_policy ppc_policy = {
	.struct_size = PPC_INIT(struct ppc_policy),
	.abi_version = PPC_ABI_VERSION,
	.name = "test-beyond",
	.description = "Names what is not there, not its business or no range at all",
	.init = beyond_init,
	.prefetch = beyond_advise,
	.evict = beyond_advise,
};

/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * frozen - a policy as it was built when version 1 was the only one
 *
 * Its header is a copy that is never changed. It uses everything that version 1 has: if a newer host calls it
 * differently, or lays out its structures differently, the policy notices, or its test does.
 */
#include "ppc-v1.h"

/* Bytes that it loads behind each miss. */
#define AHEAD	65536

static const struct ppc_host *the_host;

static int frozen_init(const struct ppc_host *host, const struct ppc_setting *settings,
		       struct ppc_sink *sink, void **self)
{
	struct ppc_memory memory = { .struct_size = PPC_INIT(struct ppc_memory) };

	(void)sink;
	if (settings && settings->key)
		return -EINVAL;
	if (host->struct_size < sizeof(struct ppc_host) || host->abi_version < PPC_ABI_VERSION)
		return -EPROTO;
	if (host->memory(host->ctx, &memory) || !memory.limit)
		return -EPROTO;
	the_host = host;
	*self = &the_host;
	return host->want(host->ctx, 1u << PPC_EVENT_MISS, 0);
}

static int frozen_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	struct ppc_io io = {
		.struct_size = PPC_INIT(struct ppc_io),
		.op = PPC_OP_LOAD,
		.flags = PPC_IO_REPLACE,
		.length = AHEAD,
	};
	struct ppc_file info = { .struct_size = PPC_INIT(struct ppc_file) };

	if (self != &the_host || !event || event->struct_size < sizeof(*event))
		return -EPROTO;
	if (event->kind != PPC_EVENT_MISS)
		return 0;
	if (the_host->file_info(the_host->ctx, event->file, &info) || !info.size)
		return -EPROTO;
	io.file = event->file;
	io.offset = event->offset + event->length;
	io.tgid = event->tgid;
	return the_host->add(the_host->ctx, sink, &io);
}

PPC_POLICY(
	.name = "frozen",
	.version = "1",
	.init = frozen_init,
	.prefetch = frozen_prefetch,
);

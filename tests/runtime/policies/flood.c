/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* flood - names ten million ranges at each event */
#include "ppc.h"

#define RANGES 10000000

static struct flood {
	const struct ppc_host *host;
} the_flood;

static int flood_init(const struct ppc_host *host, const struct ppc_setting *settings,
		      struct ppc_sink *sink, void **self)
{
	(void)settings;
	(void)sink;
	the_flood.host = host;
	*self = &the_flood;
	return 0;
}

static int flood_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	struct flood *flood = self;
	struct ppc_io io = {
		.struct_size = PPC_INIT(struct ppc_io),
		.xpu = PPC_XPU_NONE,
		.length = 1,
	};

	if (!event || event->kind != PPC_EVENT_MISS)
		return 0;
	io.file = event->file;
	/* What add() says is not heard: that is the point. */
	for (unsigned int i = 0; i < RANGES; i++) {
		io.offset = i;
		flood->host->add(flood->host->ctx, sink, &io);
	}
	return 0;
}

const struct ppc_policy ppc_policy = {
	.struct_size = PPC_INIT(struct ppc_policy),
	.abi_version = PPC_ABI_VERSION,
	.name = "test-flood",
	.description = "Names ten million ranges at each event",
	.init = flood_init,
	.prefetch = flood_prefetch,
};

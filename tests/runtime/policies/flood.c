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
	if (!event || event->kind != PPC_EVENT_MISS)
		return 0;
	/* Ignoring the result of add() is the point. */
	for (unsigned int i = 0; i < RANGES; i++)
		ppc_load(flood->host, sink, event->file, i, 1, 0);
	return 0;
}

PPC_POLICY(
	.name = "test-flood",
	.description = "Names ten million ranges at each event",
	.init = flood_init,
	.prefetch = flood_prefetch,
);

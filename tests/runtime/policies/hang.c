/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* hang - never returns from its first event */
#include "ppc.h"

static int hang_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	(void)self;
	(void)sink;
	for (volatile int spin = 1; event && spin;)
		;
	return 0;
}

PPC_POLICY(
	.name = "test-hang",
	.description = "Never returns from its first event",
	.prefetch = hang_prefetch,
);

/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* segv - writes to nowhere at its first event */
#include "ppc.h"

static int segv_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	/* Not a constant, or the compiler would see the fault. */
	int *volatile nowhere = (int *)8;

	(void)self;
	(void)sink;
	if (event)
		*nowhere = 1;
	return 0;
}

PPC_POLICY(
	.name = "test-segv",
	.description = "Writes to nowhere at its first event",
	.prefetch = segv_prefetch,
);

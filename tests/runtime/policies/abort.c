/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* abort - aborts at its first event */
#include <stdlib.h>

#include "ppc.h"

static int abort_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	(void)self;
	(void)sink;
	if (event)
		abort();
	return 0;
}

PPC_POLICY(
	.name = "test-abort",
	.description = "Aborts at its first event",
	.prefetch = abort_prefetch,
);

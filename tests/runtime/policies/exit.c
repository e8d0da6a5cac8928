/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* exit - ends its process at its first event, as if all were well */
#include <stdlib.h>

#include "ppc.h"

static int exit_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	(void)self;
	(void)sink;
	if (event)
		exit(3);
	return 0;
}

PPC_POLICY(
	.name = "test-exit",
	.description = "Ends its process at its first event, as if all were well",
	.prefetch = exit_prefetch,
);

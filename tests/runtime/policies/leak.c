/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* leak - takes a GiB at its first event and never gives it back */
#include <stdlib.h>
#include <string.h>

#include "ppc.h"

#define MIBS 1024

/* Keeps the compiler from seeing that the memory is unused. */
static char *volatile keep;

static int leak_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	(void)self;
	(void)sink;
	for (int i = 0; event && i < MIBS; i++) {
		char *leaked = malloc(1 << 20);

		/* Most programs do no better when there is no memory left. */
		if (!leaked)
			abort();
		memset(leaked, i + 1, 1 << 20);
		keep = leaked;
	}
	return 0;
}

PPC_POLICY(
	.name = "test-leak",
	.description = "Takes a GiB at its first event and never gives it back",
	.prefetch = leak_prefetch,
);

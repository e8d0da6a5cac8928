/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* closes_fds - closes every descriptor of its process at its first event */
#include <unistd.h>

#include "ppc.h"

static int closes_fds_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	(void)self;
	(void)sink;
	for (int fd = 0; event && fd < 1024; fd++)
		close(fd);
	return 0;
}

PPC_POLICY(
	.name = "test-closes-fds",
	.description = "Closes every descriptor of its process at its first event",
	.prefetch = closes_fds_prefetch,
);

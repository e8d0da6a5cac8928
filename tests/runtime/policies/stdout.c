/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* stdout - writes a lot to its standard output and error at each event */
#include <unistd.h>

#include "ppc.h"

/* About a MiB. */
#define LINES 16000

static void say(int fd)
{
	static const char line[] = "output without reason, over and over again, until the disk is full\n";

	for (int i = 0; i < LINES; i++) {
		if (write(fd, line, sizeof(line) - 1) < 0)
			return;
	}
}

static int stdout_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	(void)self;
	(void)sink;
	if (event) {
		say(STDOUT_FILENO);
		say(STDERR_FILENO);
	}
	return 0;
}

PPC_POLICY(
	.name = "test-stdout",
	.description = "Writes a lot to its standard output and error at each event",
	.prefetch = stdout_prefetch,
);

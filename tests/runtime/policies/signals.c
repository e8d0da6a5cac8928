/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* signals - hangs, and blocks and ignores every signal that allows it */
#define _GNU_SOURCE
#include <signal.h>
#include <unistd.h>

#include "ppc.h"

static int signals_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	sigset_t all;

	(void)self;
	(void)sink;
	if (!event)
		return 0;
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_IGN);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	for (;;)
		pause();
}

PPC_POLICY(
	.name = "test-signals",
	.description = "Hangs, and blocks or ignores all signals that it can",
	.prefetch = signals_prefetch,
);

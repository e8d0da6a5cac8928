/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* thread_segv - has its own thread that crashes a moment after the start */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

#include "ppc.h"

static void *crash(void *unused)
{
	struct timespec moment = { .tv_nsec = 200000000 };
	/* Not a constant, or the compiler would see the fault. */
	int *volatile nowhere = (int *)8;

	nanosleep(&moment, NULL);
	*nowhere = 1;
	return unused;
}

static int thread_segv_init(const struct ppc_host *host, const struct ppc_setting *settings,
			    struct ppc_sink *sink, void **self)
{
	pthread_t thread;

	(void)host;
	(void)settings;
	(void)sink;
	(void)self;
	return -pthread_create(&thread, NULL, crash, NULL);
}

PPC_POLICY(
	.name = "test-thread-segv",
	.description = "Has its own thread that crashes a moment after the start",
	.init = thread_segv_init,
);

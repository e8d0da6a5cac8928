/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* init_fail - refuses to start, with a reason */
#include <errno.h>

#include "ppc.h"

static int init_fail_init(const struct ppc_host *host, const struct ppc_setting *settings,
			  struct ppc_sink *sink, void **self)
{
	(void)settings;
	(void)sink;
	(void)self;
	host->log(host->ctx, PPC_LOG_ERROR, "no template for the phase of the moon");
	return -EINVAL;
}

PPC_POLICY(
	.name = "test-init-fail",
	.description = "Says why it will not start",
	.init = init_fail_init,
);

/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* newer - was built for a host that does not exist yet */
#include "ppc.h"
const struct ppc_policy ppc_policy = {
	.struct_size = PPC_INIT(struct ppc_policy),
	.abi_version = 99,
	.name = "test-newer",
	.description = "Was built for a host that is not there yet",
};

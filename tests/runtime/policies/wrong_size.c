/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* wrong_size - has a size smaller than that of any policy ever */
#include "ppc.h"

const struct ppc_policy ppc_policy = {
	.struct_size = 8,
	.abi_version = PPC_ABI_VERSION,
	.name = "test-wrong-size",
	.description = "Says that it is shorter than any policy ever was",
};

// SPDX-License-Identifier: GPL-2.0
/* The Rust side of the protocol against the module, where the guest has it. */
#include "t.h"

TEST(rust_smoke, 60)
{
	if (absent("/bin/rfs-smoke"))
		SKIP("rfs-smoke was not brought along: make guest-programs");
	mk_file(lo("f"), 1, MIB);
	setup();
	CHECK_EQ(t_run("/bin/rfs-smoke", up("f"), NULL), 0);
}

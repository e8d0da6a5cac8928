// SPDX-License-Identifier: GPL-2.0
/* Templates on NFS, which two nodes share: a client each, in this guest, where the server is as well. */
#include "t.h"

#define SIZE	(4 * MIB)
/* How much longer a command may take without the server: a second to learn that, and some to start and to end */
#define LONGER	(4ULL * 1000 * 1000 * 1000)

static const char *store[2];

/* Starts a command on a node, whose store is below its own mount */
static int start_on(int node, const char *record, const char *program, const char *argument)
{
	char at[128], name[16];

	snprintf(at, sizeof(at), "store=%s/store", store[node]);
	snprintf(name, sizeof(name), "node=n%d", node);
	return t_run("/usr/bin/ppcctl", "run", "--set", "start=job", "--set", at, "--set", name, "--set", record,
		     "--", program, argument, NULL);
}

/* Whether a start that reads nothing itself brings the file in */
static bool comes(int node, const char *path)
{
	drop(path);
	CHECK_EQ(start_on(node, "record=never", "sleep", "1"), 0);
	return resident(path) == SIZE / PAGE;
}

TEST(rust_shares_templates_by_nfs, 240)
{
	char *served = strdup(lo("served")), *file = strdup(lo("f"));
	u64 begun, usual;
	int node;

	if (absent("/usr/bin/ppcctl"))
		SKIP("ppcctl was not brought along: make guest-root");
	xmkdir(served);
	mk_file(file, 1, SIZE);
	for (node = 0; node < 2; node++) {
		store[node] = strdup(lo(node ? "two" : "one"));
		xmkdir(store[node]);
	}
	serve_nfs(served, store[0], "hard", false);
	/* With caches of its own, as on another node */
	do_mount("127.0.0.1:/", store[1], "nfs4", 0,
		 "vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1,hard,nosharecache");

	drop(file);
	CHECK_EQ(start_on(0, "record=auto", "cat", file), 0);
	if (absent(join(served, "store/job/n0.maio")))
		SKIP("starts are not recorded before Linux 6.12");
	begun = now_ns();
	CHECK(comes(1, file));
	usual = now_ns() - begun;

	/* Neither a node that has a record nor one that has none waits for long, and both have run the command */
	nfs_gone(true);
	for (node = 0; node < 2; node++) {
		begun = now_ns();
		CHECK(!comes(node, file));
		CHECK(now_ns() - begun < usual + stretched(LONGER));
		begun = now_ns();
		CHECK_EQ(start_on(node, "record=auto", "cat", file), 0);
		CHECK(now_ns() - begun < usual + stretched(LONGER));
	}

	/* The client takes seconds to look again */
	nfs_gone(false);
	xmkdir(join(store[1], "back"));
	CHECK(comes(1, file));
}

// SPDX-License-Identifier: GPL-2.0
/*
 * fsx of others, which writes, cuts, maps and reads one file and checks each byte that it reads, while the pages of
 * that file are loaded and dropped through its mirror: `make suites` brings the program along.
 */
#include "t.h"

#define FSX "/bin/fsx"
#define LARGEST (256 * KIB)

static const char config[] =
	"flen = 262144\n"
	"[weights]\n"
	"close_open = 1\nmapread = 10\nmapwrite = 10\nread = 10\nwrite = 10\ntruncate = 5\nfsync = 1\n"
	"posix_fallocate = 2\npunch_hole = 2\nsendfile = 5\nposix_fadvise = 2\ncopy_file_range = 5\n";

static struct {
	u32 stop;
	u64 rounds, loaded, evicted;
} *sh;

static void load_and_drop(u64 id)
{
	int dev = dev_open(t_mnt, 0);
	struct rfs_evict evicted;
	struct rfs_load loaded;
	u64 seed = 1;

	while (!__atomic_load_n(&sh->stop, __ATOMIC_RELAXED)) {
		u64 off = next_rand(&seed) % LARGEST, len = 1 + next_rand(&seed) % LARGEST;

		CHECK_OK(evict(dev, &evicted, id, off, len, seed & 64 ? RFS_EVICT_UNMAPPED : 0));
		sh->evicted += evicted.evicted;
		CHECK_OK(load(dev, &loaded, id, off, len, seed & 128 ? RFS_LOAD_WAIT : 0));
		sh->loaded += loaded.loaded;
		sh->rounds++;
	}
}

TEST(storm_fsx, 900)
{
	pid_t pid;
	int fd;

	if (absent(FSX))
		SKIP("no fsx");
	sh = xmap(-1, 0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
	put_str("/tmp/fsx.toml", config);
	mk_blank(lo("f"), LARGEST);
	setup();
	/* keeps the file's number */
	fd = xopen(up("f"), O_RDONLY);
	pid = t_fork();
	if (!pid) {
		load_and_drop(file_id(fd));
		_exit(T_PASS);
	}
	CHECK_EQ(t_run(FSX, "-f", "/tmp/fsx.toml", "-P", "/tmp", "-S", "7", "-N", "20000", lo("f"), NULL), 0);
	__atomic_store_n(&sh->stop, 1, __ATOMIC_RELAXED);
	JOIN(pid);
	printf("%llu rounds, %llu loaded, %llu dropped\n", (unsigned long long)sh->rounds,
	       (unsigned long long)sh->loaded, (unsigned long long)sh->evicted);
	CHECK(sh->rounds > 100 && sh->loaded && sh->evicted);
	unlink("/tmp/fsx.toml");
}

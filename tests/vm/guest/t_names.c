// SPDX-License-Identifier: GPL-2.0
/*
 * Names of which a server is asked each time: the file system below sleeps while the mirror looks one up, and
 * meanwhile the name, the directory and the entry may change.
 */
#include "t.h"

/* Few, so that a name which is looked up is often one that changes */
#define FILES 2
#define DIRS 2
#define LOOKERS 3
/* Longer than what an entry has room for, so that it is allocated, and freed once the file has another name */
#define LENGTH 200
#define TREE "tree"
#define NFS "nfs"
/* How many requests a client may have under way, and how many it may by default */
#define SLOTS "/sys/module/nfs/parameters/max_session_slots"
#define DEFAULT_SLOTS "64"

/* Each file keeps its number, by which its size is known, and has one of two names in one of the directories */
struct place {
	int dir, variant;
};

static char *name_of(int file, int variant)
{
	static char names[FILES][2][LENGTH + 1];
	char *name = names[file][variant];

	memset(name, 'a' + variant, LENGTH);
	name[0] = '0' + file;
	return name;
}

static char *place(const char *root, int file, int dir, int variant)
{
	char folder[8];

	snprintf(folder, sizeof(folder), "d%d", dir);
	return join(join(root, folder), name_of(file, variant));
}

static int size_of(int file)
{
	return 1000 + file;
}

static void mk_places(struct place *at)
{
	char folder[16];

	xmkdir(lo(TREE));
	for (int i = 0; i < DIRS; i++) {
		snprintf(folder, sizeof(folder), TREE "/d%d", i);
		xmkdir(lo(folder));
	}
	for (int i = 0; i < FILES; i++) {
		at[i] = (struct place){ i % DIRS, 0 };
		mk_file(place(lo(TREE), i, at[i].dir, 0), i, size_of(i));
	}
}

/* Opens the directories of a tree, so that no others have to be looked up again */
static void open_dirs(const char *root, int *dirs)
{
	char folder[8];

	for (int i = 0; i < DIRS; i++) {
		snprintf(folder, sizeof(folder), "d%d", i);
		dirs[i] = xopen(join(root, folder), O_PATH | O_DIRECTORY);
	}
}

/* Looks names up until the pipe is closed: what is found is that file */
static void look_up(const char *root, u64 state, int stop)
{
	int dirs[DIRS];
	struct stat st;
	char c;

	open_dirs(root, dirs);
	while (read(stop, &c, 1) < 0) {
		int file = next_rand(&state) % FILES;

		if (fstatat(dirs[next_rand(&state) % DIRS], name_of(file, next_rand(&state) % 2), &st, 0))
			CHECK(errno == ENOENT || errno == ESTALE);
		else
			CHECK_EQ(st.st_size, size_of(file));
	}
}

/* Moves a file; with luck, one whose name is being looked up */
static void move_on(const int *dirs, struct place *at, int file, u64 *state)
{
	struct place to = { next_rand(state) % DIRS, next_rand(state) % 2 };

	CHECK_OK(renameat(dirs[at->dir], name_of(file, at->variant), dirs[to.dir], name_of(file, to.variant)));
	*at = to;
}

/* Moves a file through a directory that is new, and gone afterwards */
static void pass_through(const char *root, const struct place *at, int file)
{
	const char *away = place(root, file, at->dir, at->variant), *there = place(root, file, DIRS, 0);
	char folder[8];

	snprintf(folder, sizeof(folder), "d%d", DIRS);
	xmkdir(join(root, folder));
	CHECK_OK(rename(away, there));
	CHECK_OK(rename(there, away));
	CHECK_OK(rmdir(join(root, folder)));
}

static int storm(struct place *at, u64 seconds)
{
	u64 state = now_ns(), until = now_ns() + seconds * 1000000000ull;
	int rounds = 0, near[DIRS], far[DIRS];

	open_dirs(lo(NFS), near);
	open_dirs(lo(TREE), far);
	printf("seed %llu\n", (unsigned long long)state);
	for (; now_ns() < until; rounds++) {
		int file = next_rand(&state) % FILES;

		/* mostly by the client whose entries are in use, sometimes behind its back */
		move_on(next_rand(&state) % 4 ? near : far, &at[file], file, &state);
		if (next_rand(&state) % 8 == 0)
			pass_through(lo(NFS), &at[file], file);
	}
	for (int i = 0; i < DIRS; i++) {
		close(near[i]);
		close(far[i]);
	}
	return rounds;
}

/* Only the last name of each file is there */
static void check_places(const char *root, const struct place *at)
{
	for (int file = 0; file < FILES; file++)
		for (int dir = 0; dir < DIRS; dir++)
			for (int variant = 0; variant < 2; variant++)
				CHECK_EQ(!absent(place(root, file, dir, variant)),
					 dir == at[file].dir && variant == at[file].variant);
}

static void rename_storm(u64 seconds)
{
	struct place at[FILES];
	pid_t pid[LOOKERS];
	int stop[2];

	mk_places(at);
	xmkdir(lo(NFS));
	need_fs("nfsd");
	need_fs("nfs4");
	/* With one, each look-up waits for the others, and puts the name into its request only then */
	defer_write(SLOTS, DEFAULT_SLOTS);
	put_str(SLOTS, "1");
	serve_nfs(lo(TREE), lo(NFS), "actimeo=0,lookupcache=none", false);
	must_mount_rfs(lo(NFS), t_mnt, NULL);
	CHECK_OK(pipe2(stop, O_NONBLOCK));
	for (int i = 0; i < LOOKERS; i++) {
		pid[i] = t_fork();
		if (!pid[i]) {
			close(stop[1]);
			look_up(t_mnt, i, stop[0]);
			_exit(T_PASS);
		}
	}
	printf("%d renames\n", storm(at, seconds));
	close(stop[1]);
	for (int i = 0; i < LOOKERS; i++)
		JOIN(pid[i]);
	check_places(t_mnt, at);
	do_umount(t_mnt);
	do_umount(lo(NFS));
}

TEST(nfs_names_change_while_they_are_looked_up, 60)
{
	rename_storm(10);
}

TEST(storm_nfs_names, 300)
{
	rename_storm(120);
}

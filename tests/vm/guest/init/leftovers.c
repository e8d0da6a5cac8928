// SPDX-License-Identifier: GPL-2.0
/* What a test may leave behind: processes, mounts, files. The next test must not find any of it. */
#define _GNU_SOURCE
#include "init.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_MOUNTS 64
#define PF_KTHREAD 0x00200000

/* Whether a process is alive and not a kernel thread; also returns its name. */
static bool user_process(const char *pid, char *name)
{
	char path[64], stat[LINE];
	char *close_paren;
	char state;
	unsigned int flags;
	ssize_t len;
	int fd;

	snprintf(path, sizeof(path), "/proc/%.20s/stat", pid);
	fd = open(path, O_RDONLY);
	if (fd < 0)
		return false;
	len = read(fd, stat, sizeof(stat) - 1);
	close(fd);
	if (len <= 0)
		return false;
	stat[len] = 0;
	close_paren = strrchr(stat, ')');
	if (!close_paren || sscanf(close_paren + 2, "%c %*d %*d %*d %*d %*d %u", &state, &flags) != 2)
		return false;
	*close_paren = 0;
	snprintf(name, 64, "%.63s", strchr(stat, '(') + 1);
	return !(flags & PF_KTHREAD) && state != 'Z' && state != 'X';
}

/* Reaps dead processes and kills the others. Returns how many are left alive, and the name of one. */
static int kill_strays(char *name, bool kill_them)
{
	DIR *proc = opendir("/proc");
	struct dirent *entry;
	char found[64];
	int left = 0;

	while (waitpid(-1, NULL, WNOHANG) > 0)
		;
	while (proc && (entry = readdir(proc))) {
		int pid = atoi(entry->d_name);

		if (pid <= 1 || !user_process(entry->d_name, found))
			continue;
		strcpy(name, found);
		left++;
		if (kill_them)
			kill(pid, SIGKILL);
	}
	if (proc)
		closedir(proc);
	return left;
}

/* Waits a moment for a test's processes to be gone, then kills them. Returns false if it had to kill any. */
bool clear_processes(long grace_ms, char *message)
{
	long limit = now_ms() + grace_ms;
	char name[64];

	while (kill_strays(name, false)) {
		if (now_ms() > limit) {
			snprintf(message, LINE, "left a process behind: %s", name);
			kill_strays(name, true);
			limit = now_ms() + grace_ms;
			while (kill_strays(name, false) && now_ms() < limit)
				usleep(5000);
			return false;
		}
		usleep(2000);
	}
	return true;
}

/* Lists the mount points, newest last, without the kernel's own trees. */
static int list_mounts(char mounts[][256])
{
	FILE *file = fopen("/proc/self/mountinfo", "r");
	static char line[4096];
	char where[256];
	int count = 0;

	while (file && fgets(line, sizeof(line), file) && count < MAX_MOUNTS) {
		if (sscanf(line, "%*d %*d %*s %*s %255s", where) != 1)
			continue;
		/* debugfs mounts tracing by itself when it is accessed. */
		if (strncmp(where, "/sys/", 5) && strncmp(where, "/proc/", 6))
			strcpy(mounts[count++], where);
	}
	if (file)
		fclose(file);
	return count;
}

int count_mounts(void)
{
	static char mounts[MAX_MOUNTS][256];

	return list_mounts(mounts);
}

/* Undoes the mounts that a test left. Returns false if there were any. */
bool clear_mounts(int baseline, char *message)
{
	static char mounts[MAX_MOUNTS][256];
	int count = list_mounts(mounts);

	if (count <= baseline)
		return true;
	snprintf(message, LINE, "left a mount behind: %s", mounts[count - 1]);
	while (count-- > baseline)
		umount2(mounts[count], MNT_DETACH);
	return false;
}

static int remove_one(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
	(void)stat;
	(void)type;
	if (ftw->level > 0)
		remove(path);
	return 0;
}

void clear_files(const char *folder)
{
	nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

// SPDX-License-Identifier: GPL-2.0
/*
 * An NFS server for tests: the kernel's own, for one directory and this machine alone. What rpc.mountd answers when the
 * server asks who may mount what gets the answer beforehand. A process takes the place of nfsdcld, which remembers
 * clients: without it, the server would wait for those of the past, for at least ten seconds.
 */
#include "t.h"
#include <linux/nfsd/cld.h>

#define CONTROL	"/proc/fs/nfsd"
#define PIPES	"/tmp/rpc_pipefs"
#define CACHES	"/proc/net/rpc"
/* IFF_LOOPBACK, and IFF_UP */
#define LOOPBACK "/sys/class/net/lo/flags"
#define SECOND_CPU "/sys/devices/system/cpu/cpu1/online"
/* Far in the future, as caches expire */
#define NEVER	"2147483647"
/* From the kernel's uapi/linux/nfsd/export.h: any port, no waiting for the disk, any path, a number of its own */
#define FLAGS	(0x2 | 0x10 | 0x400 | 0x2000)
/* Root there is not root here */
#define SQUASH	0x4

/* Without the network, the server is gone: clients wait for it, and continue once it is back */
void nfs_gone(bool gone)
{
	/* Before the file system is unmounted, which would wait as well */
	if (gone)
		defer_write(LOOPBACK, "0x9");
	put_str(LOOPBACK, gone ? "0x8" : "0x9");
}

/* Tells the server an answer before it asks */
static void tell(const char *cache, const char *format, const char *dir)
{
	char path[64], line[512];

	snprintf(path, sizeof(path), CACHES "/%s/channel", cache);
	snprintf(line, sizeof(line), format, dir);
	put_str(path, line);
}

/* Answers that there have been no clients, and that each new one is remembered */
static void remember_clients(void)
{
	struct pollfd pipe = { .events = POLLIN };
	struct cld_msg_v2 said;
	ssize_t n;

	while ((pipe.fd = open(PIPES "/nfsd/cld", O_RDWR | O_CLOEXEC)) < 0)
		sleep_ms(5);
	/* A read does not wait */
	while (poll(&pipe, 1, -1) > 0 && pipe.revents & POLLIN) {
		n = CHECK_OK(read(pipe.fd, &said, sizeof(said)));
		said.cm_status = 0;
		if (said.cm_cmd == Cld_GetVersion)
			said.cm_u.cm_version = CLD_UPCALL_VERSION;
		CHECK_EQ(write(pipe.fd, &said, n), n);
	}
}

static void start_server(const char *dir, int flags)
{
	char export[64];

	CHECK_OK(mkdir(PIPES, 0755));
	defer_rmdir(PIPES);
	do_mount("rpc_pipefs", PIPES, "rpc_pipefs", 0, NULL);
	if (!t_fork()) {
		remember_clients();
		_exit(T_PASS);
	}
	do_mount("nfsd", CONTROL, "nfsd", 0, NULL);
	/* Newer versions only: older ones need more services */
	put_str(CONTROL "/versions", "-2 -3 +4 +4.1 +4.2\n");
	put_str(CONTROL "/portlist", "tcp 2049\n");
	defer_write(CONTROL "/threads", "0\n");
	put_str(CONTROL "/threads", "2\n");
	snprintf(export, sizeof(export), "this %%s " NEVER " %d 65534 65534 0\n", flags);
	tell("auth.unix.ip", "nfsd 127.0.0.1 " NEVER " this\n", NULL);
	tell("nfsd.export", export, dir);
	/* The directory with number 0 is the root */
	tell("nfsd.fh", "this 1 \\x00000000 " NEVER " %s\n", dir);
}

/* Mounts a directory by NFS, where root may do no more than others if it is squashed; @opts are more options */
void serve_nfs(const char *dir, const char *mnt, const char *opts, bool squash)
{
	int second = open(SECOND_CPU, O_WRONLY);
	char all[256];

	need_fs("nfsd");
	need_fs("nfs4");
	/* Client and server take several times as long to answer each other between processors; not all can be stopped */
	if (second >= 0) {
		close(second);
		defer_write(SECOND_CPU, "1");
		put_str(SECOND_CPU, "0");
	}
	nfs_gone(false);
	kmsg_allow("NFSD");
	start_server(dir, squash ? FLAGS | SQUASH : FLAGS);
	snprintf(all, sizeof(all), "vers=4.2,addr=127.0.0.1,clientaddr=127.0.0.1,%s", opts);
	do_mount("127.0.0.1:/", mnt, "nfs4", 0, all);
}

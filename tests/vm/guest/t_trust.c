// SPDX-License-Identifier: GPL-2.0
/* What the kernel reads from an inode without calling the file system: which programs run as root, what IMA keeps. */
#include "t.h"
#include <elf.h>

#define SEED 0x7257

/* Calls geteuid(), then exit() with 1 if the id is root's */
static const u8 code[] = {
	0xb8, 107, 0, 0, 0, 0x0f, 0x05, 0x31, 0xff, 0x85, 0xc0, 0x75, 0x02,
	0xff, 0xc7, 0xb8, 60, 0, 0, 0, 0x0f, 0x05,
};

static void put_program(const char *path)
{
	struct {
		Elf64_Ehdr e;
		Elf64_Phdr p;
		u8 code[sizeof(code)];
	} x = {
		.e = {
			.e_ident = { ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64,
				     ELFDATA2LSB, EV_CURRENT },
			.e_type = ET_EXEC, .e_machine = EM_X86_64, .e_version = EV_CURRENT,
			.e_entry = 0x400000 + sizeof(x.e) + sizeof(x.p),
			.e_phoff = sizeof(x.e), .e_ehsize = sizeof(x.e),
			.e_phentsize = sizeof(x.p), .e_phnum = 1,
		},
		.p = {
			.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_vaddr = 0x400000,
			.p_filesz = sizeof(x), .p_memsz = sizeof(x), .p_align = PAGE,
		},
	};
	int fd = xopen(path, O_WRONLY | O_CREAT);

	memcpy(x.code, code, sizeof(code));
	CHECK_EQ(write(fd, &x, sizeof(x)), sizeof(x));
	CHECK_OK(fchmod(fd, 04755));
	close(fd);
}

static int exec_status(const char *path)
{
	char *argv[] = { (char *)path, NULL };
	pid_t pid = vfork();
	int st;

	if (!pid) {
		execv(path, argv);
		_exit(127);
	}
	CHECK_EQ(waitpid(pid, &st, 0), pid);
	CHECK(WIFEXITED(st));
	return WEXITSTATUS(st);
}

TEST(setuid_below_nosuid_is_never_root, 60)
{
	static char path[192];
	int stop[2];
	pid_t pid;

	put_program(lo("x"));
	do_mount(t_lower, t_lower, NULL, MS_BIND, NULL);
	setup();
	snprintf(path, sizeof(path), "%s", up("x"));
	AS_USER(1000, 1000, CHECK_EQ(exec_status(path), 1));
	do_umount(t_mnt);
	CHECK_OK(mount(NULL, t_lower, NULL, MS_REMOUNT | MS_BIND | MS_NOSUID, NULL));
	must_mount_rfs(t_lower, t_mnt, NULL);
	CHECK_OK(pipe2(stop, O_NONBLOCK));
	pid = t_fork();
	if (!pid) {
		char c;

		/* each open copies the attributes from below */
		t_pin(1);
		close(stop[1]);
		while (read(stop[0], &c, 1) < 0)
			close(xopen(path, O_RDONLY));
		_exit(T_PASS);
	}
	AS_USER(1000, 1000,
		for (int i = 0; i < 3000; i++)
			CHECK_EQ(exec_status(path), 0));
	close(stop[1]);
	JOIN(pid);
}

/* The slab caches with IMA's object for each inode it knows, by the names in old and in new kernels */
static const char *const ima_caches[] = { "iint_cache", "ima_iint_cache" };

/* Number of these objects; -1 if there is no IMA */
static long ima_inodes(void)
{
	char line[512], name[64], path[96];
	long n, found = -1;
	FILE *f;

	/* free objects that a processor keeps at hand count as in use */
	for (size_t i = 0; i < ARRAY_SIZE(ima_caches); i++) {
		snprintf(path, sizeof(path), "/sys/kernel/slab/%s/shrink", ima_caches[i]);
		if (!absent(path))
			put_str(path, "1");
	}
	f = fopen("/proc/slabinfo", "re");
	CHECK(f);
	while (fgets(line, sizeof(line), f))
		for (size_t i = 0; i < ARRAY_SIZE(ima_caches); i++)
			if (sscanf(line, "%63s %ld", name, &n) == 2 && !strcmp(name, ima_caches[i]))
				found = n;
	fclose(f);
	return found;
}

static char *numbered(char *(*at)(const char *name), int i)
{
	char name[16];

	snprintf(name, sizeof(name), "g%d", i);
	return at(name);
}

static long ima_measured(void)
{
	char buf[32] = "";

	CHECK(get_str("/sys/kernel/security/ima/runtime_measurements_count", buf,
		      sizeof(buf)) > 0);
	return atol(buf);
}

/* The policy covers only files of an owner that no other file has, because it stays until the reboot */
TEST(ima_forgets_inodes_that_are_gone, 30)
{
	static const char policy[] = "measure func=FILE_CHECK mask=MAY_READ fowner=54321\n";
	long before;
	int fd;

	mk_file(lo("f"), SEED, PAGE);
	CHECK_OK(chown(lo("f"), 54321, 0));
	setup();
	if (absent("/sys/kernel/security") || ima_inodes() < 0)
		SKIP("no IMA");
	do_mount("securityfs", "/sys/kernel/security", "securityfs", 0, NULL);
	fd = open("/sys/kernel/security/ima/policy", O_WRONLY);
	if (fd < 0) {
		CHECK(errno == ENOENT || errno == EACCES || errno == EBUSY);
		SKIP("IMA has its policy already");
	}
	CHECK_EQ(write(fd, policy, sizeof(policy) - 1), sizeof(policy) - 1);
	close(fd);
	before = ima_measured();
	close(xopen(up("f"), O_RDONLY));
	CHECK_EQ(ima_measured(), before + 1);
	before = ima_inodes();
	/* all exist at once, or one inode would reuse the address of another and be taken for it */
	for (int i = 0; i < 300; i++) {
		mk_file(numbered(lo, i), SEED, PAGE);
		CHECK_OK(chown(numbered(lo, i), 54321, 0));
		for (int again = 0; again < 3; again++)
			close(xopen(numbered(up, i), O_RDONLY));
	}
	for (int i = 0; i < 300; i++) {
		CHECK_OK(unlink(numbered(lo, i)));
		CHECK(absent(numbered(up, i)));
	}
	/* inodes are freed after a grace period */
	for (int i = 0; i < 100 && ima_inodes() > before + 100; i++)
		sleep_ms(20);
	CHECK_LE(ima_inodes(), before + 100);
}

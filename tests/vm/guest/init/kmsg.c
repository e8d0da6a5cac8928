// SPDX-License-Identifier: GPL-2.0
/* The kernel log: which lines in it fail the running test. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MAX_ALLOWED 16

static int kmsg_fd = -1;

/* Any of these words in the kernel log fails the running test. */
static const char *const alarms[] = {
	"WARNING:", "BUG:", "KASAN", "UBSAN", "possible circular locking", "possible recursive", "INFO: task",
	"suspicious RCU", "Bad rss-counter", "Busy inodes", "kmemleak:", "general protection", "Oops", "ODEBUG",
	"sleeping function", "nable to handle", "lockdep", "inconsistent lock state", "detected stall", "Bad page",
	"irq-safe", "workqueue lockup", "refcount_t:", "list_add corruption", "list_del corruption",
};

/* Log lines that the running test has announced. */
static char allowed[MAX_ALLOWED][128];
static int allowed_count;

/* Follows the log from here on: no test causes what the kernel logs while it boots. */
void open_kmsg(void)
{
	kmsg_fd = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (kmsg_fd < 0)
		fatal("/dev/kmsg: %s", strerror(errno));
	lseek(kmsg_fd, 0, SEEK_END);
}

void forget_allowed(void)
{
	allowed_count = 0;
}

void allow_kmsg(const char *words)
{
	if (allowed_count < MAX_ALLOWED)
		snprintf(allowed[allowed_count++], sizeof(allowed[0]), "%s", words);
}

static bool is_allowed(const char *line)
{
	for (int i = 0; i < allowed_count; i++)
		if (strstr(line, allowed[i]))
			return true;
	return false;
}

/* Reads the new part of the kernel log. Returns false, and the line, if there is an alarm in it. */
bool scan_kmsg(char *message)
{
	static char record[16384];
	bool clean = true;
	ssize_t len;

	for (;;) {
		char *text, *end;

		len = read(kmsg_fd, record, sizeof(record) - 1);
		if (len < 0 && errno == EPIPE)
			continue; /* the ring buffer overtook this reader: continue with the rest */
		if (len <= 0)
			return clean;
		record[len] = 0;
		text = strchr(record, ';');
		text = text ? text + 1 : record;
		end = strchr(text, '\n');
		if (end)
			*end = 0;
		for (size_t i = 0; clean && i < sizeof(alarms) / sizeof(alarms[0]); i++) {
			if (strstr(text, alarms[i]) && !is_allowed(text)) {
				snprintf(message, LINE, "kernel log: %.900s", text);
				clean = false;
			}
		}
	}
}

/* Prints the kernel log to the console, to explain a failed test. */
void show_kmsg(void)
{
	char *const dmesg[] = { "/bin/busybox", "sh", "-c", "/bin/busybox dmesg | /bin/busybox tail -n 150", NULL };

	run_program(dmesg);
}

// SPDX-License-Identifier: GPL-2.0
/* The two serial ports: the console for people, and the one that the host reads. */
#define _GNU_SOURCE
#include "init.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/reboot.h>
#include <termios.h>
#include <unistd.h>

static int report_fd = -1;

int report_port(void)
{
	return report_fd;
}

void open_ports(void)
{
	struct termios raw;
	int console;

	console = open("/dev/console", O_RDWR);
	if (console >= 0) {
		dup2(console, STDIN_FILENO);
		dup2(console, STDOUT_FILENO);
		dup2(console, STDERR_FILENO);
	}
	report_fd = open("/dev/ttyS1", O_WRONLY | O_NOCTTY | O_CLOEXEC);
	if (report_fd < 0)
		report_fd = STDOUT_FILENO;
	if (tcgetattr(report_fd, &raw) == 0) {
		cfmakeraw(&raw);
		cfsetspeed(&raw, B115200);
		tcsetattr(report_fd, TCSANOW, &raw);
	}
}

void report(const char *format, ...)
{
	char line[2 * LINE];
	va_list args;
	int len;

	va_start(args, format);
	len = vsnprintf(line, sizeof(line) - 1, format, args);
	va_end(args);
	if (len > (int)sizeof(line) - 2)
		len = sizeof(line) - 2;
	line[len++] = '\n';
	if (write(report_fd, line, len) != len)
		perror("report");
}

void power_off(void)
{
	report("DONE");
	tcdrain(report_fd);
	tcdrain(STDOUT_FILENO);
	reboot(RB_POWER_OFF);
	for (;;)
		pause();
}

void fatal(const char *format, ...)
{
	char text[LINE];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	fprintf(stderr, "init: %s\n", text);
	report("FATAL %s", text);
	power_off();
}

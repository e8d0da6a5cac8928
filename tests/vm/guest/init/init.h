/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of PID 1 share. */
#ifndef INIT_H
#define INIT_H

#include <stdbool.h>
#include <sys/types.h>

#define LINE 1024
/* How long a process may take to exit after it was asked to, in ms. */
#define GRACE_MS 1000

/* port.c */
void open_ports(void);
int report_port(void);
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));
void power_off(void) __attribute__((noreturn));
void fatal(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* host.c */
long now_ms(void);
int write_file(const char *path, const char *text);
int run_program(char *const argv[]);

/* kmsg.c */
void open_kmsg(void);
void allow_kmsg(const char *words);
void forget_allowed(void);
bool scan_kmsg(char *message);
void show_kmsg(void);

/* leftovers.c: each returns false, with a message, if a test left something behind. */
bool clear_processes(long grace_ms, char *message);
int count_mounts(void);
bool clear_mounts(int baseline, char *message);
void clear_files(const char *folder);

#endif

/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * shift - load a segment to the right of each miss, drop one to its left
 *
 * The smallest policy that does both, and a complete policy in C that needs only
 * ppc.h and the C library. Setting: length=BYTES of the segment, such as 8M.
 */
#include <stdlib.h>
#include <string.h>

#include "ppc.h"

#define DEFAULT_LENGTH	(8ull << 20)

struct shift {
	const struct ppc_host *host;
	uint64_t length;
};

static int refuse(const struct shift *shift, const char *why)
{
	shift->host->log(shift->host->ctx, PPC_LOG_ERROR, why);
	return -EINVAL;
}

static int shift_configure(void *self, const char *key, const char *value)
{
	struct shift *shift = self;
	uint64_t length;

	if (strcmp(key, "length") != 0)
		return refuse(shift, "unknown setting; there is: length=BYTES");
	if (ppc_parse_bytes(value, &length) || !length || length > INT64_MAX / 4)
		return refuse(shift, "length: not a number of bytes such as 65536 or 8M");
	shift->length = length;
	return 0;
}

static int shift_init(const struct ppc_host *host, const struct ppc_setting *settings,
		      struct ppc_sink *sink, void **self)
{
	struct shift *shift = malloc(sizeof(*shift));
	int err = 0;

	(void)sink; /* nothing to load before the first miss */
	if (!shift)
		return -ENOMEM;
	shift->host = host;
	shift->length = DEFAULT_LENGTH;
	for (; settings->key && !err; settings++)
		err = shift_configure(shift, settings->key, settings->value);
	if (err) {
		free(shift);
		return err;
	}
	*self = shift;
	return 0;
}

static int shift_exit(void *self)
{
	free(self);
	return 0;
}

static int shift_prefetch(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	const struct shift *shift = self;
	struct ppc_io io = {
		.struct_size = PPC_INIT(struct ppc_io),
		.op = PPC_OP_LOAD,
		/* A reader at this place no longer waits for an older segment. */
		.flags = PPC_IO_REPLACE,
		.length = shift->length,
	};

	if (!event || event->kind != PPC_EVENT_MISS)
		return 0;
	io.file = event->file;
	io.offset = event->offset + event->length;
	io.tgid = event->tgid;
	return shift->host->add(shift->host->ctx, sink, &io);
}

static int shift_evict(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	const struct shift *shift = self;
	uint64_t length;

	/* Between events, and at the start of a file, nothing is to the left. */
	if (!event || event->kind != PPC_EVENT_MISS || !event->offset)
		return 0;
	length = event->offset < shift->length ? event->offset : shift->length;
	return ppc_drop(shift->host, sink, event->file, event->offset - length, length);
}

PPC_POLICY(
	.name = "shift",
	.version = "1",
	.description = "Loads a segment to the right of each miss, drops one to its left",
	.init = shift_init,
	.exit = shift_exit,
	.prefetch = shift_prefetch,
	.evict = shift_evict,
	.configure = shift_configure,
);

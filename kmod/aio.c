// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: direct reads that are answered later. The lower file system gets a
 * request of its own; when it is done, so is the one it stands for.
 */
#include <linux/refcount.h>
#include <linux/uio.h>
#include "rfs.h"
#include "compat/ops.h"

struct rfs_aio {
	struct kiocb below;
	struct kiocb *above;
	refcount_t refs;	/* one is the submitter's, one the completion's */
};

static struct kmem_cache *rfs_aio_cache;

static void rfs_aio_put(struct rfs_aio *aio)
{
	if (!refcount_dec_and_test(&aio->refs))
		return;
	fput(aio->below.ki_filp);
	kmem_cache_free(rfs_aio_cache, aio);
}

void rfs_aio_finish(struct kiocb *below, long ret)
{
	struct rfs_aio *aio = container_of(below, struct rfs_aio, below);
	struct kiocb *above = aio->above;

	above->ki_pos = below->ki_pos;
	rfs_aio_put(aio);
	rfs_complete(above, ret);
}

ssize_t rfs_aio_read(struct kiocb *iocb, struct iov_iter *iter, struct file *lower)
{
	struct rfs_aio *aio = kmem_cache_zalloc(rfs_aio_cache, GFP_KERNEL);
	ssize_t ret;

	if (!aio)
		return -ENOMEM;
	aio->above = iocb;
	refcount_set(&aio->refs, 2);
	kiocb_clone(&aio->below, iocb, get_file(lower));
	aio->below.ki_complete = rfs_aio_done;
	ret = lower->f_op->read_iter(&aio->below, iter);
	if (ret != -EIOCBQUEUED) {
		/* no completion will come: put its reference, too */
		iocb->ki_pos = aio->below.ki_pos;
		rfs_aio_put(aio);
	}
	rfs_aio_put(aio);
	return ret;
}

int rfs_aio_init(void)
{
	rfs_aio_cache = KMEM_CACHE(rfs_aio, SLAB_HWCACHE_ALIGN);
	return rfs_aio_cache ? 0 : -ENOMEM;
}

void rfs_aio_exit(void)
{
	kmem_cache_destroy(rfs_aio_cache);
}

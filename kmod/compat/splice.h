/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * rfs: copy_splice_read(), which kernels before 6.5 do not have: it fills a pipe
 * with copies of what read(2) would return
 */
#ifndef _RFS_COMPAT_SPLICE_H
#define _RFS_COMPAT_SPLICE_H

#include <linux/splice.h>

#ifdef HAVE_COPY_SPLICE_READ
#define rfs_copy_splice_read copy_splice_read
#else
#include <linux/bvec.h>
#include <linux/pipe_fs_i.h>
#include <linux/uio.h>

static void rfs_put_spd_page(struct splice_pipe_desc *spd, unsigned int i)
{
	put_page(spd->pages[i]);
}

/* Returns how many pages were allocated, each with its place in @bvec and @partial. */
static unsigned int rfs_alloc_copies(struct page **pages, struct bio_vec *bvec,
				     struct partial_page *partial, unsigned int nr, size_t len)
{
	unsigned int i;

	for (i = 0; i < nr; i++) {
		pages[i] = alloc_page(GFP_USER);
		if (!pages[i])
			break;
		bvec[i].bv_page = pages[i];
		bvec[i].bv_offset = 0;
		bvec[i].bv_len = min_t(size_t, PAGE_SIZE, len - i * PAGE_SIZE);
		partial[i] = (struct partial_page) { .len = bvec[i].bv_len };
	}
	return i;
}

static ssize_t rfs_read_copies(struct file *in, loff_t *ppos, struct bio_vec *bvec,
			       unsigned int nr, size_t len)
{
	struct iov_iter iter;
	struct kiocb iocb;
	ssize_t ret;

	iov_iter_bvec(&iter, READ, bvec, nr, len);
	init_sync_kiocb(&iocb, in);
	iocb.ki_pos = *ppos;
	ret = in->f_op->read_iter(&iocb, &iter);
	if (ret > 0)
		*ppos = iocb.ki_pos;
	/* as upstream: callers don't expect a fault */
	return ret == -EFAULT ? -EAGAIN : ret;
}

/* The caller has locked the pipe, so what has room stays so. */
static ssize_t rfs_copy_splice_read(struct file *in, loff_t *ppos, struct pipe_inode_info *pipe,
				    size_t len, unsigned int flags)
{
	unsigned int room = pipe->max_usage - min(pipe->max_usage,
						  pipe_occupancy(pipe->head, pipe->tail));
	unsigned int keep, nr = min_t(size_t, DIV_ROUND_UP(len, PAGE_SIZE), room);
	struct splice_pipe_desc spd = {
		.ops = &nosteal_pipe_buf_ops,
		.spd_release = rfs_put_spd_page,
	};
	struct bio_vec *bvec;
	ssize_t ret = -ENOMEM;

	if (!nr)
		return -EAGAIN;
	bvec = kcalloc(nr, sizeof(*bvec), GFP_KERNEL);
	spd.pages = kcalloc(nr, sizeof(*spd.pages), GFP_KERNEL);
	spd.partial = kcalloc(nr, sizeof(*spd.partial), GFP_KERNEL);
	if (!bvec || !spd.pages || !spd.partial)
		goto out;
	nr = rfs_alloc_copies(spd.pages, bvec, spd.partial, nr, len);
	if (!nr)
		goto out;
	len = min_t(size_t, len, nr * PAGE_SIZE);
	ret = rfs_read_copies(in, ppos, bvec, nr, len);
	keep = ret > 0 ? DIV_ROUND_UP(ret, PAGE_SIZE) : 0;
	while (nr > keep)
		put_page(spd.pages[--nr]);
	if (!nr)
		goto out;
	spd.partial[nr - 1].len = ret - (nr - 1) * PAGE_SIZE;
	spd.nr_pages = nr;
	spd.nr_pages_max = nr;
	ret = splice_to_pipe(pipe, &spd);
out:
	kfree(spd.partial);
	kfree(spd.pages);
	kfree(bvec);
	return ret;
}
#endif

#endif /* _RFS_COMPAT_SPLICE_H */

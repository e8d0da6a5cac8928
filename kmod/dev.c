// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: the character device of a mount: its life, and reading events
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/idr.h>
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include "rfs.h"
#include "trace.h"

/* records that one turn of read(2) takes from the queues */
#define RFS_BATCH (PAGE_SIZE / sizeof(struct rfs_event))

static DEFINE_IDA(rfs_dev_numbers);

static void rfs_dev_free(struct kref *kref)
{
	struct rfs_dev *dev = container_of(kref, struct rfs_dev, kref);

	/* nothing is queued without files, and those are gone with the mount */
	hrtimer_cancel(&dev->wake);
	ida_free(&rfs_dev_numbers, dev->nr);
	rfs_queues_destroy(dev);
	kfree(dev);
}

void rfs_dev_put(struct rfs_dev *dev)
{
	kref_put(&dev->kref, rfs_dev_free);
}

static bool rfs_dev_may_open(const struct inode *inode)
{
	/* the group first: a failed capability check is a line in the audit log */
	return in_group_p(inode->i_gid) || capable(CAP_SYS_ADMIN);
}

static int rfs_dev_open(struct inode *inode, struct file *file)
{
	/* misc_open() holds off misc_deregister(), so the mount's reference is there */
	struct rfs_dev *dev = container_of(file->private_data, struct rfs_dev, misc);

	if (!rfs_dev_may_open(inode))
		return -EPERM;
	if (atomic_cmpxchg(&dev->opened, 0, 1))
		return -EBUSY;
	kref_get(&dev->kref);
	file->private_data = dev;
	WRITE_ONCE(dev->reader, current->tgid);
	dev->memcg = get_mem_cgroup_from_mm(current->mm);
	rfs_queues_open(dev);
	return stream_open(inode, file);
}

static int rfs_dev_release(struct inode *inode, struct file *file)
{
	struct rfs_dev *dev = file->private_data;

	WRITE_ONCE(dev->kinds, 0);
	rfs_queues_close(dev);
	if (dev->memcg)
		mem_cgroup_put(dev->memcg);
	dev->memcg = NULL;
	atomic_set_release(&dev->opened, 0);
	rfs_dev_put(dev);
	return 0;
}

/* Is there something to deliver? If not, the next event wakes us. See queue.c. */
static bool rfs_dev_ready(struct rfs_dev *dev)
{
	atomic_set(&dev->armed, 1);
	/* pairs with the one in rfs_queue_event() */
	smp_mb();
	return READ_ONCE(dev->dead) || rfs_queues_waiting(dev);
}

/* Copies the waiting records; returns bytes, 0 if none waits. */
static ssize_t rfs_dev_drain(struct rfs_dev *dev, char __user *buf, size_t count)
{
	struct rfs_event *ev = (void *)__get_free_page(GFP_KERNEL);
	size_t room = count / sizeof(*ev);
	size_t done = 0;
	unsigned int i, n;

	if (!ev)
		return -ENOMEM;
	while (done < room) {
		n = rfs_queues_pop(dev, ev, min_t(size_t, room - done, RFS_BATCH));
		if (!n)
			break;
		if (copy_to_user(buf + done * sizeof(*ev), ev, n * sizeof(*ev))) {
			rfs_queues_lost(dev, ev, n);
			break;
		}
		for (i = 0; i < n; i++)
			trace_rfs_event_delivered(&ev[i]);
		done += n;
	}
	free_page((unsigned long)ev);
	/* nothing delivered though records wait: the buffer was bad */
	if (!done && rfs_queues_waiting(dev))
		return -EFAULT;
	return done * sizeof(*ev);
}

static ssize_t rfs_dev_read(struct file *file, char __user *buf, size_t count, loff_t *ppos)
{
	struct rfs_dev *dev = file->private_data;
	ssize_t ret;

	if (count < sizeof(struct rfs_event))
		return -EMSGSIZE;
	for (;;) {
		bool dead = READ_ONCE(dev->dead);

		if (mutex_lock_interruptible(&dev->read_lock))
			return -ERESTARTSYS;
		ret = rfs_dev_drain(dev, buf, count);
		mutex_unlock(&dev->read_lock);
		if (ret || dead)
			return ret;
		if (file->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(dev->wait, rfs_dev_ready(dev)))
			return -ERESTARTSYS;
	}
}

static __poll_t rfs_dev_poll(struct file *file, poll_table *wait)
{
	struct rfs_dev *dev = file->private_data;
	__poll_t mask = 0;

	poll_wait(file, &dev->wait, wait);
	if (rfs_dev_ready(dev) && rfs_queues_waiting(dev))
		mask |= EPOLLIN | EPOLLRDNORM;
	if (READ_ONCE(dev->dead))
		mask |= EPOLLHUP;
	return mask;
}

static const struct file_operations rfs_dev_fops = {
	.owner		= THIS_MODULE,
	.open		= rfs_dev_open,
	.release	= rfs_dev_release,
	.read		= rfs_dev_read,
	.poll		= rfs_dev_poll,
	.unlocked_ioctl	= rfs_dev_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
};

static enum hrtimer_restart rfs_dev_wake(struct hrtimer *timer)
{
	struct rfs_dev *dev = container_of(timer, struct rfs_dev, wake);

	wake_up_interruptible_poll(&dev->wait, EPOLLIN | EPOLLRDNORM);
	return HRTIMER_NORESTART;
}

/* Returns the device with one reference, the mount's. */
struct rfs_dev *rfs_dev_create(struct super_block *sb)
{
	struct rfs_dev *dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	int err;

	if (!dev)
		return ERR_PTR(-ENOMEM);
	kref_init(&dev->kref);
	init_waitqueue_head(&dev->wait);
	rfs_init_timer(&dev->wake, rfs_dev_wake);
	mutex_init(&dev->read_lock);
	init_rwsem(&dev->sb_lock);
	spin_lock_init(&dev->jobs_lock);
	INIT_LIST_HEAD(&dev->jobs);
	dev->sb = sb;
	err = rfs_queues_create(dev);
	if (err)
		goto out_free;
	err = ida_alloc(&rfs_dev_numbers, GFP_KERNEL);
	if (err < 0)
		goto out_queues;
	dev->nr = err;
	snprintf(dev->name, sizeof(dev->name), "rfs%d", dev->nr);
	dev->misc.minor = MISC_DYNAMIC_MINOR;
	dev->misc.name = dev->name;
	dev->misc.fops = &rfs_dev_fops;
	dev->misc.mode = 0660;
	err = misc_register(&dev->misc);
	if (err)
		goto out_number;
	return dev;

out_number:
	ida_free(&rfs_dev_numbers, dev->nr);
out_queues:
	rfs_queues_destroy(dev);
out_free:
	kfree(dev);
	return ERR_PTR(err);
}

/*
 * The mount is going: the device cannot be opened any more, its reader is
 * woken, and when this returns no command holds or can get a reference to the
 * super block. A running command goes on with the file below until it checks
 * dead.
 */
void rfs_dev_shutdown(struct rfs_dev *dev)
{
	WRITE_ONCE(dev->kinds, 0);
	WRITE_ONCE(dev->dead, true);
	wake_up_interruptible_poll(&dev->wait, EPOLLHUP | EPOLLIN);
	misc_deregister(&dev->misc);
	/* commands hold it only while they look up a file */
	down_write(&dev->sb_lock);
	dev->sb = NULL;
	up_write(&dev->sb_lock);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs: the character device of a mount: its life, and reading events
 */
#include <linux/capability.h>
#include <linux/cdev.h>
#include <linux/cred.h>
#include <linux/device.h>
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/poll.h>
#include <linux/sched/signal.h>
#include "rfs.h"
#include "compat/ops.h"
#include "trace.h"

/* records that one turn of read(2) takes from the queues */
#define RFS_BATCH (PAGE_SIZE / sizeof(struct rfs_event))

/* one mount each: as many as a major number has minor ones */
#define RFS_MAX_DEVS BIT(MINORBITS)

static dev_t rfs_first_dev;
static struct cdev *rfs_cdev;

/*
 * The devices that can be opened, by their numbers. A number whose mount is gone
 * is not used again before the last file of its device is closed.
 */
static DEFINE_XARRAY_ALLOC(rfs_devs);

static void rfs_dev_free(struct kref *kref)
{
	struct rfs_dev *dev = container_of(kref, struct rfs_dev, kref);

	/* nothing is queued without files, and those are gone with the mount */
	hrtimer_cancel(&dev->wake);
	xa_erase(&rfs_devs, dev->nr);
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

/* Returns the device with a reference, or NULL once its mount is gone. */
static struct rfs_dev *rfs_dev_get(unsigned int nr)
{
	struct rfs_dev *dev;

	xa_lock(&rfs_devs);
	dev = xa_load(&rfs_devs, nr);
	if (dev)
		kref_get(&dev->kref);
	xa_unlock(&rfs_devs);
	return dev;
}

static int rfs_dev_open(struct inode *inode, struct file *file)
{
	struct rfs_dev *dev;

	if (!rfs_dev_may_open(inode))
		return -EPERM;
	dev = rfs_dev_get(iminor(inode));
	if (!dev)
		return -ENODEV;
	if (atomic_cmpxchg(&dev->opened, 0, 1)) {
		rfs_dev_put(dev);
		return -EBUSY;
	}
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

char *rfs_dev_node(umode_t *mode)
{
	if (mode)
		*mode = 0660;
	return NULL;
}

static struct class rfs_class = {
	.name		= "rfs",
	.devnode	= rfs_devnode,
};

static enum hrtimer_restart rfs_dev_wake(struct hrtimer *timer)
{
	struct rfs_dev *dev = container_of(timer, struct rfs_dev, wake);

	wake_up_interruptible_poll(&dev->wait, EPOLLIN | EPOLLRDNORM);
	return HRTIMER_NORESTART;
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
	/* keeps the number */
	xa_store(&rfs_devs, dev->nr, NULL, GFP_KERNEL);
	device_destroy(&rfs_class, rfs_first_dev + dev->nr);
	/* commands hold it only while they look up a file */
	down_write(&dev->sb_lock);
	dev->sb = NULL;
	up_write(&dev->sb_lock);
}

/* Returns the device with one reference, the mount's. */
struct rfs_dev *rfs_dev_create(struct super_block *sb)
{
	struct rfs_dev *dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	struct device *node;
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
	err = xa_alloc(&rfs_devs, &dev->nr, NULL, XA_LIMIT(0, RFS_MAX_DEVS - 1), GFP_KERNEL);
	if (err)
		goto out_queues;
	snprintf(dev->name, sizeof(dev->name), "rfs%u", dev->nr);
	/* the number is reserved, so this takes no memory */
	xa_store(&rfs_devs, dev->nr, dev, GFP_KERNEL);
	node = device_create(&rfs_class, NULL, rfs_first_dev + dev->nr, NULL, "%s", dev->name);
	if (!IS_ERR(node))
		return dev;
	/* a node that is not ours may have led to it by now */
	rfs_dev_shutdown(dev);
	rfs_dev_put(dev);
	return ERR_CAST(node);

out_queues:
	rfs_queues_destroy(dev);
out_free:
	kfree(dev);
	return ERR_PTR(err);
}

int __init rfs_devs_init(void)
{
	int err;

	err = alloc_chrdev_region(&rfs_first_dev, 0, RFS_MAX_DEVS, "rfs");
	if (err)
		return err;
	err = class_register(&rfs_class);
	if (err)
		goto out_region;
	err = -ENOMEM;
	rfs_cdev = cdev_alloc();
	if (!rfs_cdev)
		goto out_class;
	rfs_cdev->owner = THIS_MODULE;
	rfs_cdev->ops = &rfs_dev_fops;
	err = cdev_add(rfs_cdev, rfs_first_dev, RFS_MAX_DEVS);
	if (err)
		goto out_cdev;
	return 0;

out_cdev:
	kobject_put(&rfs_cdev->kobj);
out_class:
	class_unregister(&rfs_class);
out_region:
	unregister_chrdev_region(rfs_first_dev, RFS_MAX_DEVS);
	return err;
}

void rfs_devs_exit(void)
{
	cdev_del(rfs_cdev);
	class_unregister(&rfs_class);
	unregister_chrdev_region(rfs_first_dev, RFS_MAX_DEVS);
}

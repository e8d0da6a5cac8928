// SPDX-License-Identifier: GPL-2.0-only
/*
 * rfs - the read-only routing file system: it mirrors a directory at the lower
 * file system's own speed and reports page-cache misses to user space.
 */
#include <linux/module.h>
#include "rfs.h"

static int __init rfs_init(void)
{
	int err;

	err = rfs_inode_cache_create();
	if (err)
		return err;
	err = rfs_files_init();
	if (err)
		goto out_inodes;
	err = rfs_notify_init();
	if (err)
		goto out_files;
	err = rfs_devs_init();
	if (err)
		goto out_notify;
	err = register_filesystem(&rfs_fs_type);
	if (err)
		goto out_devs;
	return 0;

out_devs:
	rfs_devs_exit();
out_notify:
	rfs_notify_exit();
out_files:
	rfs_files_exit();
out_inodes:
	rfs_inode_cache_destroy();
	return err;
}

static void __exit rfs_exit(void)
{
	unregister_filesystem(&rfs_fs_type);
	rfs_devs_exit();
	rfs_notify_exit();
	rfs_files_exit();
	rfs_inode_cache_destroy();
}

module_init(rfs_init);
module_exit(rfs_exit);
MODULE_DESCRIPTION("Read-only routing file system that reports page-cache misses");
MODULE_AUTHOR("The PPC authors");
MODULE_LICENSE("GPL");
MODULE_ALIAS_FS("rfs");

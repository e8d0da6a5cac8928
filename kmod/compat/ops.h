/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * rfs: the operations whose arguments changed, as thin wrappers around the
 * functions that do the work
 */
#ifndef _RFS_COMPAT_OPS_H
#define _RFS_COMPAT_OPS_H

#include <linux/device.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#if defined(HAVE_FILE_KATTR) || defined(HAVE_FILEATTR)
#include <linux/fileattr.h>
#endif
#include "../rfs.h"

/* 5.12, 6.3: the id mapping became an argument */
#if defined(HAVE_MNT_IDMAP)
static inline int rfs_permission(struct mnt_idmap *idmap, struct inode *inode, int mask)
{
	return rfs_inode_permission(idmap, inode, mask);
}

static inline int rfs_getattr(struct mnt_idmap *idmap, const struct path *path,
			      struct kstat *stat, u32 mask, unsigned int flags)
{
	return rfs_inode_getattr(idmap, path, stat, mask, flags);
}
#elif defined(HAVE_MNT_USERNS)
static inline int rfs_permission(struct user_namespace *ns, struct inode *inode, int mask)
{
	return rfs_inode_permission(NULL, inode, mask);
}

static inline int rfs_getattr(struct user_namespace *ns, const struct path *path,
			      struct kstat *stat, u32 mask, unsigned int flags)
{
	return rfs_inode_getattr(NULL, path, stat, mask, flags);
}
#else
static inline int rfs_permission(struct inode *inode, int mask)
{
	return rfs_inode_permission(NULL, inode, mask);
}

static inline int rfs_getattr(const struct path *path, struct kstat *stat, u32 mask,
			      unsigned int flags)
{
	return rfs_inode_getattr(NULL, path, stat, mask, flags);
}
#endif

/*
 * 6.2: ACLs have their own operation; before, they are xattrs like
 * others, and the handler for all names passes them on.
 */
#ifdef HAVE_VFS_GET_ACL
static inline struct posix_acl *rfs_get_acl(struct mnt_idmap *idmap, struct dentry *dentry,
					    int type)
{
	return vfs_get_acl(&nop_mnt_idmap, rfs_lower_dentry(dentry), posix_acl_xattr_name(type));
}

#define RFS_ACL_OPS .get_acl = rfs_get_acl,
#else
#define RFS_ACL_OPS
#endif

/* 5.13: flags of files, as lsattr(1) shows them, got an operation; 6.17 renamed its argument */
#if defined(HAVE_FILE_KATTR) || defined(HAVE_FILEATTR)
#ifdef HAVE_FILE_KATTR
static inline int rfs_fileattr_get(struct dentry *dentry, struct file_kattr *attr)
#else
static inline int rfs_fileattr_get(struct dentry *dentry, struct fileattr *attr)
#endif
{
	return vfs_fileattr_get(rfs_lower_dentry(dentry), attr);
}

#define RFS_FILEATTR_OPS .fileattr_get = rfs_fileattr_get,
#else
#define RFS_FILEATTR_OPS
#endif

/* 6.14: d_revalidate is given the parent and the name */
#ifdef HAVE_D_REVALIDATE_NAME
static inline int rfs_d_revalidate(struct inode *dir, const struct qstr *name,
				   struct dentry *dentry, unsigned int flags)
{
	return rfs_dentry_revalidate(dentry, flags);
}
#else
#define rfs_d_revalidate rfs_dentry_revalidate
#endif

/*
 * d_real returns the dentry that has the data: 6.5 made its argument a type.
 * With the fake paths before 6.5, file_dentry() of a lower file must find the
 * lower dentry by it.
 */
#ifdef HAVE_D_REAL_TYPE
static inline struct dentry *rfs_d_real(struct dentry *dentry, enum d_real_type type)
{
	struct dentry *lower = rfs_lower_dentry(dentry);

	return lower ? d_real(lower, type) : dentry;
}
#else
static inline struct dentry *rfs_d_real(struct dentry *dentry, const struct inode *inode)
{
	struct dentry *lower = rfs_lower_dentry(dentry);

	if (!lower || (inode && d_inode(dentry) == inode))
		return dentry;
	return d_real(lower, inode);
}
#endif

/* 5.12: map_pages returns whether it has done anything */
#ifdef HAVE_MAP_PAGES_RETURNS
#define rfs_map_pages rfs_map_table
#else
static inline void rfs_map_pages(struct vm_fault *vmf, pgoff_t start, pgoff_t end)
{
	rfs_map_table(vmf, start, end);
}
#endif

/* 6.2: the device whose node it is, is const */
#ifdef HAVE_DEVNODE_CONST
static inline char *rfs_devnode(const struct device *device, umode_t *mode)
#else
static inline char *rfs_devnode(struct device *device, umode_t *mode)
#endif
{
	return rfs_dev_node(mode);
}

/* 5.16: completions have one result; the second was for USB gadgets */
#ifdef HAVE_KI_COMPLETE_RET2
static inline void rfs_aio_done(struct kiocb *below, long ret, long ret2)
{
	rfs_aio_finish(below, ret);
}
#else
#define rfs_aio_done rfs_aio_finish
#endif

#endif /* _RFS_COMPAT_OPS_H */

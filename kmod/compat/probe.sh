#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# probe.sh SRCTREE: print -DHAVE_X for what the kernel in SRCTREE offers, found
# by looking into its headers: distributions backport, so version numbers would
# lie. compat/ is the one reader of HAVE_*.
include=$1/include/linux

have() { # NAME PATTERN HEADER...
	name=$1 pattern=$2
	shift 2
	for header; do
		if grep -qsE "$pattern" "$include/$header"; then
			echo "-DHAVE_$name"
			return
		fi
	done
}

have ACTIVE_MEMCG_CACHE	'filemap_add_folio\('			pagemap.h
have ALLOC_INODE_SB	'alloc_inode_sb\('			fs.h
have BACKING_CTX_USER_FILE 'struct file \*user_file;'		backing-file.h
have BACKING_MMAP	'backing_file_mmap\('			backing-file.h
have BACKING_OPEN_FILE	'backing_file_open\(const struct file'	fs.h backing-file.h
have BACKING_OPEN_PATH	'backing_file_open\(const struct path'	fs.h backing-file.h
have D_REAL_TYPE	'enum d_real_type'			dcache.h
have D_REVALIDATE_NAME	'd_revalidate\)\(struct inode'		dcache.h
have FILELOCK		'generic_setlease'			filelock.h
have FOLIO		'struct folio \{'			mm_types.h
have FSNOTIFY_GROUP_FLAGS 'const struct fsnotify_ops \*ops,$'	fsnotify_backend.h
have HRTIMER_SETUP	'hrtimer_setup\('			hrtimer.h
have IDMAPPED_MNT	'is_idmapped_mnt\('			fs.h
have INODE_JUST_DROP	'inode_just_drop\('			fs.h
have INODE_STATE_READ	'inode_state_read_once\('		fs.h
have KI_COMPLETE_RET2	'ki_complete\)\(.*long ret2\)'		fs.h
have LOOKUP_NOPERM	'lookup_noperm_unlocked\('		namei.h
have MAP_PAGES_RETURNS	'vm_fault_t filemap_map_pages'		mm.h
have MNT_IDMAP		'inode_permission\(struct mnt_idmap'	fs.h
have MNT_USERNS		'inode_permission\(struct user_namespace' fs.h
have OPEN_FAKE_PATH	'open_with_fake_path\('			fs.h
have RA_ORDER		'unsigned (short|int) order;'		fs.h
have READAHEAD_RA	'define DEFINE_READAHEAD\(ractl, f, r'	pagemap.h
have SET_DEFAULT_D_OP	'set_default_d_op\('			dcache.h
have STATX_DIOALIGN	'dio_mem_align'				stat.h
have VFS_GET_ACL	'vfs_get_acl\('				posix_acl.h
have VMA_SET_FILE	'vma_set_file\('			mm.h
have XATTR_TABLE_CONST	'xattr_handler.*\*[[:space:]]*const \*s_xattr' fs.h fs/super_types.h

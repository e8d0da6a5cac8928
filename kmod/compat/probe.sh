#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-only
#
# probe.sh SRCTREE: print -DHAVE_X for each facility of the kernel in SRCTREE,
# found in its headers: distributions backport, so version numbers would lie.
# Only compat/ reads HAVE_*.
#
# Taking "not found" for "not there" may build a wrong module: one that mirrors
# idmapped mounts, say. So each line names the version since which every kernel
# has the facility ("<V": all kernels before V have it). If a new enough kernel
# lacks it, it has moved within the headers, and compat.h refuses to build, by
# RFS_MISSED_SINCE and RFS_MISSED_UNTIL, the oldest and the newest of such
# versions. "-" is for facilities that do not matter, or without which a wrong
# guess does not compile. VERBOSE=1 names what was not found.
include=$1/include/linux
since=16777215
until=0

code() { # VERSION, as KERNEL_VERSION() has it
	major=${1%%.*}
	echo $((major * 65536 + ${1#*.} * 256))
}

missed() { # NAME SINCE
	[ -z "${VERBOSE:-}" ] || echo "probe.sh: $1 ($2) not found in $include" >&2
	case $2 in
	-) ;;
	'<'*)
		number=$(code "${2#<}")
		[ "$number" -le "$until" ] || until=$number ;;
	*)
		number=$(code "$2")
		[ "$number" -ge "$since" ] || since=$number ;;
	esac
}

have() { # NAME SINCE PATTERN HEADER...
	name=$1 version=$2 pattern=$3
	shift 3
	for header; do
		if grep -qsE "$pattern" "$include/$header"; then
			echo "-DHAVE_$name"
			return
		fi
	done
	missed "$name" "$version"
}

have ACTIVE_MEMCG_CACHE	5.16	'filemap_add_folio\('			pagemap.h
have ALLOC_INODE_SB	5.18	'alloc_inode_sb\('			fs.h
have BACKING_CTX_USER_FILE -	'struct file \*user_file;'		backing-file.h
have BACKING_MMAP	6.8	'backing_file_mmap\('			backing-file.h
have BACKING_OPEN_FILE	-	'backing_file_open\(const struct file'	fs.h backing-file.h
have BACKING_OPEN_PATH	-	'backing_file_open\(const struct path'	fs.h backing-file.h
have COPY_SPLICE_READ	6.5	'copy_splice_read\('			fs.h
have D_REAL_TYPE	-	'enum d_real_type'			dcache.h
have D_REVALIDATE_NAME	-	'd_revalidate\)\(struct inode'		dcache.h
have DEVNODE_CONST	-	'devnode\)\(const struct device'	device/class.h
have ENCODE_FH_FLAGS	-	'int flags\);$'				exportfs.h
have FILEATTR		5.13	'vfs_fileattr_get\('			fileattr.h
have FILE_KATTR		-	'struct file_kattr \{'			fileattr.h
have FOLIO		5.16	'struct folio \{'			mm_types.h
have FSNOTIFY_GROUP_FLAGS -	'const struct fsnotify_ops \*ops,$'	fsnotify_backend.h
have HRTIMER_SETUP	-	'hrtimer_setup\('			hrtimer.h
have IDMAPPED_MNT	5.17	'is_idmapped_mnt\('			fs.h mnt_idmapping.h
have INODE_JUST_DROP	-	'inode_just_drop\('			fs.h
have INODE_STATE_READ	-	'inode_state_read_once\('		fs.h
have KI_COMPLETE_RET2	-	'ki_complete\)\(.*long ret2\)'		fs.h
have LOOKUP_NOPERM	-	'lookup_noperm_unlocked\('		namei.h
have MAP_PAGES_RETURNS	-	'vm_fault_t filemap_map_pages'		mm.h
have MNT_IDMAP		-	'inode_permission\(struct mnt_idmap'	fs.h
have MNT_USERNS		-	'inode_permission\(struct user_namespace' fs.h
have OPEN_FAKE_PATH	-	'open_with_fake_path\('			fs.h
have RA_ORDER		-	'unsigned (short|int) order;'		fs.h
have READAHEAD_RA	-	'define DEFINE_READAHEAD\(ractl, f, r'	pagemap.h
have SET_DEFAULT_D_OP	-	'set_default_d_op\('			dcache.h
have SIMPLE_NOSETLEASE	'<7.0'	'simple_nosetlease\('			fs.h filelock.h
have STATX_DIOALIGN	6.1	'dio_mem_align'				stat.h
have VFS_GET_ACL	6.2	'vfs_get_acl\('				posix_acl.h
have VMA_SET_FILE	5.11	'vma_set_file\('			mm.h
have XATTR_TABLE_CONST	-	'xattr_handler.*\*[[:space:]]*const \*s_xattr' fs.h fs/super_types.h

echo "-DRFS_MISSED_SINCE=$since -DRFS_MISSED_UNTIL=$until"

//! Converts attributes of a lower file for FUSE. Pure.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo};

/// The attributes as the kernel wants them.
pub(super) fn attributes(id: u64, metadata: &Metadata) -> FileAttr {
    let changed = time(metadata.ctime(), metadata.ctime_nsec());
    FileAttr {
        ino: INodeNo(id),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: changed,
        crtime: UNIX_EPOCH,
        kind: kind(metadata.file_type()),
        perm: u16::try_from(metadata.mode() & 0o7777).unwrap_or(0),
        nlink: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
        uid: metadata.uid(),
        gid: metadata.gid(),
        // The kernel's 32 bits are the lower ones of the library's 64.
        rdev: u32::try_from(metadata.rdev() & u64::from(u32::MAX)).unwrap_or(0),
        blksize: u32::try_from(metadata.blksize()).unwrap_or(4096),
        flags: 0,
    }
}

fn kind(kind: std::fs::FileType) -> FileType {
    if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else if kind.is_fifo() {
        FileType::NamedPipe
    } else if kind.is_socket() {
        FileType::Socket
    } else if kind.is_char_device() {
        FileType::CharDevice
    } else if kind.is_block_device() {
        FileType::BlockDevice
    } else {
        FileType::RegularFile
    }
}

fn time(seconds: i64, ns: i64) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let part = Duration::from_nanos(u64::try_from(ns).unwrap_or(0));
    let since = if seconds < 0 {
        UNIX_EPOCH.checked_sub(whole)
    } else {
        UNIX_EPOCH.checked_add(whole)
    };
    since
        .and_then(|since| since.checked_add(part))
        .unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_converted() {
        assert_eq!(time(0, 5), UNIX_EPOCH + Duration::from_nanos(5));
        let before = UNIX_EPOCH - Duration::from_millis(1500);
        assert_eq!(time(-2, 500_000_000), before);
    }

    #[test]
    fn a_device_is_a_device() {
        let metadata = std::fs::metadata("/dev/null").expect("it is everywhere");
        let attributes = attributes(5, &metadata);
        assert_eq!(attributes.kind, FileType::CharDevice);
        assert_eq!(u64::from(attributes.rdev), metadata.rdev());
        assert_eq!(u32::from(attributes.perm), metadata.mode() & 0o7777);
    }
}

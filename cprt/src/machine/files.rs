//! The files of a mount by their paths, without ever leaving it.
//!
//! Paths come from policies. They are looked up only below the mount's root: no "..", no absolute link,
//! no other file system mounted within. The kind of file is checked before opening, as opening a FIFO
//! or a device has effects.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, OpenHow, ResolveFlag, fcntl, openat2};
use nix::sys::statfs::{
    CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, DEVPTS_SUPER_MAGIC, FsType,
    HUGETLBFS_MAGIC, PROC_SUPER_MAGIC, SECURITYFS_MAGIC, SYSFS_MAGIC, TMPFS_MAGIC, TRACEFS_MAGIC,
    fstatfs,
};
use ppc::{Entry, FileInfo};

use crate::backend::Fault;
use crate::machine::mappings::Identity;

/// File systems without storage whose files look like others', by the numbers that statfs has for them.
const MADE_UP: [FsType; 10] = [
    CGROUP_SUPER_MAGIC,
    CGROUP2_SUPER_MAGIC,
    DEBUGFS_MAGIC,
    DEVPTS_SUPER_MAGIC,
    HUGETLBFS_MAGIC,
    PROC_SUPER_MAGIC,
    SECURITYFS_MAGIC,
    SYSFS_MAGIC,
    TMPFS_MAGIC,
    TRACEFS_MAGIC,
];

/// Whether reads from such a file system come from a disk or over a network.
pub(crate) fn is_of_storage(kind: FsType) -> bool {
    !MADE_UP.contains(&kind)
}

/// The file, if it is one of storage; our reads leave its access time unchanged.
pub(crate) fn of_storage(file: File) -> Result<File, Fault> {
    let kind = fstatfs(&file).map_err(io::Error::from)?;
    if !is_of_storage(kind.filesystem_type()) {
        return Err(Fault::NoFile);
    }
    keep_access_time(&file);
    Ok(file)
}

/// Our reads leave the file's access time unchanged. Only its owner and root may do this; other users change it.
pub(crate) fn keep_access_time(file: &File) {
    let _ = fcntl(file.as_fd(), FcntlArg::F_SETFL(OFlag::O_NOATIME));
}

/// A directory's tree.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    within: ResolveFlag,
}

/// Where paths may lead: only below the root.
const BENEATH: ResolveFlag = ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_MAGICLINKS);

impl Tree {
    pub(crate) fn open(root: &Path) -> io::Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = nix::fcntl::open(root, flags, nix::sys::stat::Mode::empty())?;
        Ok(Self {
            root,
            within: BENEATH.union(ResolveFlag::RESOLVE_NO_XDEV),
        })
    }

    /// Everything below this root directory, by the kernel's own paths, which have no links in them.
    pub(crate) fn of_root(root: &Path) -> io::Result<Self> {
        Ok(Self {
            within: BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS),
            ..Self::open(root)?
        })
    }

    /// The identity of the file at a path, without opening it.
    pub(crate) fn identity(&self, path: &Path) -> Result<Identity, Fault> {
        let found = File::from(self.find(path, OFlag::O_PATH)?);
        Ok(Identity::of(&found.metadata()?))
    }

    pub(crate) fn root(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }

    /// Opens a regular file for reading.
    pub(crate) fn file(&self, path: &Path) -> Result<File, Fault> {
        let found = File::from(self.find(path, OFlag::O_PATH)?);
        let kind = found.metadata()?.file_type();
        if !kind.is_file() || kind.is_fifo() {
            return Err(Fault::NoFile);
        }
        // Opens the same file, even if another one is at its path by now.
        Ok(File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?)
    }

    /// Opens a directory for listing.
    pub(crate) fn folder(&self, path: &Path) -> Result<File, Fault> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        Ok(File::from(self.find(path, flags)?))
    }

    /// The entries of a directory; links are followed.
    pub(crate) fn list(&self, path: &Path, recursive: bool) -> Result<Vec<Entry>, Fault> {
        let mut entries = Vec::new();
        let mut todo = vec![path.to_owned()];
        while let Some(directory) = todo.pop() {
            let fd = self.find(&directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY)?;
            let names = std::fs::read_dir(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
            for name in names {
                let name = name?;
                let path = directory.join(name.file_name());
                let is_link = name.file_type()?.is_symlink();
                let Some(entry) = self.entry(path)? else {
                    continue;
                };
                // Not through links: they may lead in circles.
                if recursive && entry.size.is_none() && !is_link {
                    todo.push(entry.path.clone());
                }
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// All regular files and directories with their metadata, the root first; not through
    /// links, and not into other file systems. Files that are gone meanwhile are left out.
    pub(crate) fn walk(&self, mut each: impl FnMut(PathBuf, BorrowedFd<'_>, &Metadata)) {
        let mut todo = vec![PathBuf::new()];
        while let Some(directory) = todo.pop() {
            let Ok(fd) = self.find(&directory, OFlag::O_RDONLY | OFlag::O_DIRECTORY) else {
                continue;
            };
            let names = std::fs::read_dir(format!("/proc/self/fd/{}", fd.as_raw_fd()));
            let fd = File::from(fd);
            let Ok(metadata) = fd.metadata() else {
                continue;
            };
            each(directory.clone(), fd.as_fd(), &metadata);
            for name in names.into_iter().flatten().flatten() {
                let path = directory.join(name.file_name());
                match name.file_type() {
                    Ok(kind) if kind.is_dir() => todo.push(path),
                    Ok(kind) if kind.is_file() => {
                        let found = self.find(&path, OFlag::O_PATH).map(File::from);
                        let Ok(found) = found else {
                            continue;
                        };
                        if let Ok(metadata) = found.metadata() {
                            each(path, found.as_fd(), &metadata);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// `None` for an entry that is neither file nor directory, or leads out of the tree, or is gone.
    fn entry(&self, path: PathBuf) -> Result<Option<Entry>, Fault> {
        let Ok(found) = self.find(&path, OFlag::O_PATH) else {
            return Ok(None);
        };
        let metadata = File::from(found).metadata()?;
        let size = metadata.is_file().then_some(metadata.len());
        Ok((size.is_some() || metadata.is_dir()).then_some(Entry { path, size }))
    }

    fn find(&self, path: &Path, flags: OFlag) -> Result<OwnedFd, Fault> {
        let path = if path.as_os_str().is_empty() {
            Path::new(".")
        } else {
            path
        };
        if path.as_os_str().as_bytes().contains(&0) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL).into());
        }
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC)
            .resolve(self.within);
        let error = match openat2(self.root(), path, how) {
            Ok(fd) => return Ok(fd),
            // A path that leads outside counts as missing.
            Err(nix::errno::Errno::EXDEV) => libc::ENOENT,
            Err(error) => error as i32,
        };
        Err(io::Error::from_raw_os_error(error).into())
    }
}

/// Size, identity and last change of a regular file.
pub(crate) fn info(file: &File) -> Result<FileInfo, Fault> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Fault::NoFile);
    }
    let seconds = metadata.mtime().saturating_mul(1_000_000_000);
    Ok(FileInfo {
        size: metadata.len(),
        device: metadata.dev(),
        inode: metadata.ino(),
        mtime_ns: seconds.saturating_add(metadata.mtime_nsec()),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree(name: &str) -> (PathBuf, Tree) {
        let root = std::env::temp_dir().join(format!("cprt-files-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("sub/deeper")).expect("directories");
        std::fs::write(root.join("sub/a"), b"four").expect("a file");
        std::fs::write(root.join("sub/deeper/b"), b"").expect("a file");
        symlink("sub/a", root.join("link")).expect("a link");
        symlink("/etc/passwd", root.join("outside")).expect("a link");
        symlink("../..", root.join("sub/up")).expect("a link");
        symlink(".", root.join("sub/circle")).expect("a link");
        nix::unistd::mkfifo(&root.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
        let tree = Tree::open(&root).expect("the tree");
        (root, tree)
    }

    #[test]
    fn paths_outside_the_tree_are_not_found() {
        let (root, tree) = tree("outside");
        for path in ["outside", "/etc/passwd", "../x", "sub/up/x", "nowhere"] {
            let fault = tree.file(Path::new(path)).expect_err(path);
            assert!(
                matches!(fault.errno(), libc::ENOENT | libc::EINVAL),
                "{path}: {fault}"
            );
        }
        std::fs::remove_dir_all(root).expect("to clean up");
    }

    #[test]
    fn only_regular_files_are_opened() {
        let (root, tree) = tree("regular");
        for path in ["fifo", "sub", "", "."] {
            assert!(
                matches!(tree.file(Path::new(path)), Err(Fault::NoFile)),
                "{path}"
            );
        }
        let file = tree.file(Path::new("link")).expect("a link to a file");
        assert_eq!(info(&file).expect("its info").size, 4);
        std::fs::remove_dir_all(root).expect("to clean up");
    }

    #[test]
    fn a_walk_finds_files_and_directories_and_no_links() {
        let (root, tree) = tree("walk");
        let mut all = Vec::new();
        tree.walk(|path, _, metadata| all.push((path.display().to_string(), metadata.is_dir())));
        assert_eq!(all[0], (String::new(), true));
        all.sort();
        let expected = [
            ("", true),
            ("sub", true),
            ("sub/a", false),
            ("sub/deeper", true),
            ("sub/deeper/b", false),
        ];
        assert_eq!(
            all,
            expected.map(|(path, folder)| (path.to_owned(), folder))
        );
        std::fs::remove_dir_all(root).expect("to clean up");
    }

    #[test]
    fn a_listing_ends_and_names_files_and_directories_only() {
        let (root, tree) = tree("list");
        let mut all: Vec<_> = tree
            .list(Path::new(""), true)
            .expect("a list")
            .into_iter()
            .map(|entry| (entry.path.display().to_string(), entry.size))
            .collect();
        all.sort();
        let expected = [
            ("link", Some(4)),
            ("sub", None),
            ("sub/a", Some(4)),
            ("sub/circle", None),
            ("sub/deeper", None),
            ("sub/deeper/b", Some(0)),
        ];
        assert_eq!(all, expected.map(|(path, size)| (path.to_owned(), size)));
        assert_eq!(
            tree.list(Path::new("sub/a"), false)
                .expect_err("a file")
                .errno(),
            libc::ENOTDIR
        );
        std::fs::remove_dir_all(root).expect("to clean up");
    }
}

//! The files of a model: MAIO's numbers, the host's ids, and the files' identities.

use std::collections::{BTreeSet, HashMap};
use std::io;

use ppc::{FileId, FileInfo, Host};

use crate::models::{Folders, below, join, own};
use crate::peers::FileKey;
use crate::predict::{Library, indexed};
use crate::template::{HEADER, Identity, MAX_FILES, header_hash, is_folder};

/// The known files, in the order in which they became known, by their paths from the model's folder.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    root: String,
    /// The links in that folder, by device and inode of their targets: events name the targets.
    links: HashMap<(u64, u64), String>,
    paths: Vec<String>,
    numbers: HashMap<String, u32>,
    by_id: HashMap<FileId, Option<u32>>,
    open: Vec<Option<FileId>>,
}

impl FileTable {
    /// A table of these paths, the first of them number 0.
    pub(crate) fn new(paths: impl IntoIterator<Item = String>) -> Self {
        let mut files = Self::default();
        for path in paths {
            files.add(path);
        }
        files
    }

    /// A table for a model in this folder of the mount.
    pub(crate) fn below(root: &str, paths: impl IntoIterator<Item = String>) -> Self {
        Self {
            root: root.to_owned(),
            ..Self::new(paths)
        }
    }

    /// The folder that the paths are from.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// The number of a file by its path; an unknown file gets one.
    pub(crate) fn named(&mut self, path: String) -> Option<u32> {
        match self.numbers.get(&path) {
            Some(&known) => Some(known),
            None => self.add(path),
        }
    }

    fn add(&mut self, path: String) -> Option<u32> {
        let number = u32::try_from(self.paths.len()).ok()?;
        if self.paths.len() >= MAX_FILES {
            // No model has more files.
            return None;
        }
        self.numbers.insert(path.clone(), number);
        self.paths.push(path);
        self.open.push(None);
        Some(number)
    }

    /// The number of a file that an event names; an unknown file gets one.
    pub(crate) fn number(&mut self, host: &Host<'_>, id: FileId) -> Option<u32> {
        if let Some(&known) = self.by_id.get(&id) {
            return known;
        }
        let path = host
            .path(id)
            .ok()
            .and_then(|path| path.into_os_string().into_string().ok());
        let path = path.and_then(|path| match below(&self.root, &path) {
            Some(path) => Some(path.to_owned()),
            None => self.linked(host, id),
        });
        let number = path.and_then(|path| self.named(path));
        if self.by_id.len() >= 2 * MAX_FILES {
            // The ids are looked up once more.
            self.by_id.clear();
        }
        self.by_id.insert(id, number);
        number
    }

    /// The path in the model's folder of a link that leads to this file.
    fn linked(&mut self, host: &Host<'_>, id: FileId) -> Option<String> {
        let info = host.info(id).ok()?;
        let key = (info.device, info.inode);
        if !self.links.contains_key(&key) {
            for (path, size) in files_below(host, &self.root) {
                // Another size is another file.
                if size == info.size
                    && let Some(info) = info_of(host, &join(&self.root, &path))
                {
                    self.links.insert((info.device, info.inode), path);
                }
            }
        }
        self.links.get(&key).cloned()
    }

    /// The host's id of a file.
    pub(crate) fn id(&mut self, host: &Host<'_>, number: u32) -> Option<FileId> {
        let at = usize::try_from(number).ok()?;
        if let Some(known) = self.open.get(at)? {
            return Some(*known);
        }
        let id = host.open(join(&self.root, &self.paths[at])).ok()?;
        self.open[at] = Some(id);
        self.by_id.insert(id, Some(number));
        Some(id)
    }

    pub(crate) fn path(&self, number: u32) -> Option<&str> {
        self.paths
            .get(usize::try_from(number).ok()?)
            .map(String::as_str)
    }

    /// Closes the files that were opened.
    pub(crate) fn close(&mut self, host: &Host<'_>) {
        for id in self.open.iter_mut().filter_map(Option::take) {
            // Closing fails only if the file is gone already.
            let _ = host.close(id);
        }
        self.by_id.clear();
        self.links.clear();
    }

    /// The identity of a file on this node.
    pub(crate) fn key(&mut self, host: &Host<'_>, number: u32) -> Option<FileKey> {
        let info = host.info(self.id(host, number)?).ok()?;
        Some(FileKey {
            device: info.device,
            inode: info.inode,
            mtime_ns: info.mtime_ns,
        })
    }

    /// The present identity of a file, with a hash of its beginning if `header` is set.
    pub(crate) fn identity(
        &mut self,
        host: &Host<'_>,
        number: u32,
        header: bool,
    ) -> Option<Identity> {
        let path = self.path(number)?;
        if is_folder(path) {
            return Some(Identity::folder(path.to_owned()));
        }
        let id = self.id(host, number)?;
        let FileInfo {
            size,
            inode,
            mtime_ns,
            ..
        } = host.info(id).ok()?;
        let header = if header {
            beginning(host, id, HEADER).map_or(0, |bytes| header_hash(&bytes))
        } else {
            0
        };
        Some(Identity {
            path: self.path(number)?.to_owned(),
            size,
            mtime_ns,
            inode,
            header,
        })
    }
}

fn beginning(host: &Host<'_>, id: FileId, most: usize) -> ppc::Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let mut length = 0;
    while length < bytes.len() {
        let at = u64::try_from(length).unwrap_or(u64::MAX);
        match host.read(id, at, &mut bytes[length..])? {
            0 => break,
            more => length += more,
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Size and identity of the mount's file at this path.
pub(crate) fn info_of(host: &Host<'_>, path: &str) -> Option<FileInfo> {
    let id = host.open(path).ok()?;
    let info = host.info(id).ok();
    // It was only opened for this.
    let _ = host.close(id);
    info
}

/// All files below a folder, by their paths from there.
pub(crate) fn files_below(host: &Host<'_>, root: &str) -> Vec<(String, u64)> {
    let entries = host.list(root, true).unwrap_or_default();
    let file = |entry: ppc::Entry| {
        let path = entry.path.into_os_string().into_string().ok()?;
        Some((below(root, &path)?.to_owned(), entry.size?))
    };
    entries.into_iter().filter_map(file).collect()
}

/// A model's files, to predict from their headers what will be read.
pub(crate) struct HostLibrary<'a, 'b> {
    pub(crate) host: &'a Host<'b>,
    /// Its folder,
    pub(crate) root: &'a str,
    /// and the name of its weights, where that has others.
    pub(crate) family: Option<&'a str>,
}

impl Library for HostLibrary<'_, '_> {
    fn files(&self) -> Vec<(String, u64)> {
        own(files_below(self.host, self.root), self.family, self)
    }

    fn read(&self, path: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let failed = |error: ppc::Error| io::Error::from_raw_os_error(error.errno());
        let id = self.host.open(join(self.root, path)).map_err(failed)?;
        let read = self.host.read(id, offset, buf).map_err(failed);
        // It was only opened for this.
        let _ = self.host.close(id);
        read
    }
}

impl Folders for HostLibrary<'_, '_> {
    fn list(&self, folder: &str) -> Vec<(String, Option<u64>)> {
        let folder = join(self.root, folder);
        let entries = self.host.list(&folder, false).unwrap_or_default();
        let entry = |entry: ppc::Entry| {
            let name = entry.path.file_name()?.to_str()?;
            Some((name.to_owned(), entry.size))
        };
        entries.into_iter().filter_map(entry).collect()
    }

    fn index(&self, path: &str, size: u64) -> Option<BTreeSet<String>> {
        indexed(self, path, size)
    }
}

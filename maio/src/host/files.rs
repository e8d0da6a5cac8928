//! The files of a model: by number as MAIO counts them, by id as the host does, and as what they are.

use std::collections::HashMap;
use std::io;

use ppc::{FileId, FileInfo, Host};

use crate::peers::FileKey;
use crate::predict::Library;
use crate::template::{HEADER, Identity, MAX_FILES, header_hash};

/// Those that are known, in the order in which they came to be.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    paths: Vec<String>,
    numbers: HashMap<String, u32>,
    by_id: HashMap<FileId, Option<u32>>,
    open: Vec<Option<FileId>>,
}

impl FileTable {
    /// These, the first of them number 0.
    pub(crate) fn new(paths: impl IntoIterator<Item = String>) -> Self {
        let mut files = Self::default();
        for path in paths {
            files.add(path);
        }
        files
    }

    /// The number of a file by its path; one that is not known yet gets one.
    pub(crate) fn named(&mut self, path: String) -> Option<u32> {
        match self.numbers.get(&path) {
            Some(&known) => Some(known),
            None => self.add(path),
        }
    }

    fn add(&mut self, path: String) -> Option<u32> {
        let number = u32::try_from(self.paths.len()).ok()?;
        if self.paths.len() >= MAX_FILES {
            // Nobody's model has so many.
            return None;
        }
        self.numbers.insert(path.clone(), number);
        self.paths.push(path);
        self.open.push(None);
        Some(number)
    }

    /// The number of a file that an event names; one that is not known yet gets one.
    pub(crate) fn number(&mut self, host: &Host<'_>, id: FileId) -> Option<u32> {
        if let Some(&known) = self.by_id.get(&id) {
            return known;
        }
        let path = host
            .path(id)
            .ok()
            .and_then(|path| path.into_os_string().into_string().ok());
        let number = path.and_then(|path| self.named(path));
        if self.by_id.len() >= 2 * MAX_FILES {
            // They are looked up once more.
            self.by_id.clear();
        }
        self.by_id.insert(id, number);
        number
    }

    /// What the host calls a file.
    pub(crate) fn id(&mut self, host: &Host<'_>, number: u32) -> Option<FileId> {
        let at = usize::try_from(number).ok()?;
        if let Some(known) = self.open.get(at)? {
            return Some(*known);
        }
        let id = host.open(&self.paths[at]).ok()?;
        self.open[at] = Some(id);
        self.by_id.insert(id, Some(number));
        Some(id)
    }

    pub(crate) fn path(&self, number: u32) -> Option<&str> {
        self.paths
            .get(usize::try_from(number).ok()?)
            .map(String::as_str)
    }

    /// Gives back what was opened.
    pub(crate) fn close(&mut self, host: &Host<'_>) {
        for id in self.open.iter_mut().filter_map(Option::take) {
            // It can only be gone already.
            let _ = host.close(id);
        }
        self.by_id.clear();
    }

    /// What a file is on this node.
    pub(crate) fn key(&mut self, host: &Host<'_>, number: u32) -> Option<FileKey> {
        let info = host.info(self.id(host, number)?).ok()?;
        Some(FileKey {
            device: info.device,
            inode: info.inode,
            mtime_ns: info.mtime_ns,
        })
    }

    /// What a file is now, its beginning read as well if that is wanted.
    pub(crate) fn identity(
        &mut self,
        host: &Host<'_>,
        number: u32,
        header: bool,
    ) -> Option<Identity> {
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

/// The host's files, to say from their headers what will be read.
pub(crate) struct HostLibrary<'a, 'b> {
    pub(crate) host: &'a Host<'b>,
}

impl Library for HostLibrary<'_, '_> {
    fn files(&self) -> Vec<(String, u64)> {
        let entries = self.host.list("", true).unwrap_or_default();
        let file = |entry: ppc::Entry| {
            let path = entry.path.into_os_string().into_string().ok()?;
            Some((path, entry.size?))
        };
        entries.into_iter().filter_map(file).collect()
    }

    fn read(&self, path: &str, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let failed = |error: ppc::Error| io::Error::from_raw_os_error(error.errno());
        let id = self.host.open(path).map_err(failed)?;
        let read = self.host.read(id, offset, buf).map_err(failed);
        // It was only opened for this.
        let _ = self.host.close(id);
        read
    }
}

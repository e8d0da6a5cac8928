//! Which model of a mount a file belongs to, as its host names it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ppc::{FileId, Host};

use crate::host::{HostLibrary, files_below, info_of};
use crate::models::{Folders as _, ModelKey, Revisions, join, model_of, repository, snapshot};
use crate::template::MAX_FILES;

/// Upper bound on the length of a revision's name.
const LONGEST: usize = 128;

/// A file of several revisions of a repository.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) repository: String,
    /// Its path in each revision.
    paths: BTreeMap<String, String>,
}

/// Which model a file belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Nothing,
    Model(ModelKey),
    Shared(Arc<Shared>),
}

/// The routes of files, valid as long as files keep their numbers.
#[derive(Debug, Default)]
pub(super) struct Routes {
    known: HashMap<FileId, Route>,
    revisions: Revisions,
    /// The revision that a process loads, by repository and process.
    loaded: HashMap<(String, u32), ModelKey>,
}

impl Routes {
    pub(super) fn of(&mut self, host: &Host<'_>, file: FileId) -> Route {
        if let Some(known) = self.known.get(&file) {
            return known.clone();
        }
        if self.known.len() >= 2 * MAX_FILES {
            self.known.clear();
        }
        let route = find(host, file).unwrap_or(Route::Nothing);
        self.known.insert(file, route.clone());
        route
    }

    pub(super) fn forget(&mut self) {
        self.known.clear();
        self.loaded.clear();
        self.revisions = Revisions::default();
    }

    /// The revision that a process reads this file of. The files it opens narrow that down; if several are left it is
    /// the one that is `loading`, or the one that the repository's branch names.
    pub(super) fn narrow(
        &mut self,
        host: &Host<'_>,
        shared: &Shared,
        process: u32,
        opens: bool,
        loading: Option<&str>,
    ) -> Option<ModelKey> {
        let reader = (shared.repository.clone(), process);
        let known = self.loaded.get(&reader);
        if let Some(known) = known.filter(|_| !opens) {
            return Some(known.clone());
        }
        let these: BTreeSet<String> = shared.paths.keys().cloned().collect();
        let loading = loading.filter(|it| these.contains(*it)).map(str::to_owned);
        let preferred = loading.or_else(|| reference(host, &shared.repository));
        let revision =
            self.revisions
                .narrow(&shared.repository, process, &these, preferred.as_deref())?;
        let key = model_of(shared.paths.get(&revision)?, &mount(host))?;
        self.loaded.insert(reader, key.clone());
        Some(key)
    }
}

/// The revision that a repository's branch names.
pub(super) fn reference(host: &Host<'_>, repository: &str) -> Option<String> {
    let id = host.open(join(repository, "refs/main")).ok()?;
    let mut name = [0; LONGEST];
    let read = host.read(id, 0, &mut name).ok();
    // It was only opened for this.
    let _ = host.close(id);
    let name = std::str::from_utf8(&name[..read?]).ok()?.trim();
    (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
}

const fn mount<'a, 'b>(host: &'a Host<'b>) -> HostLibrary<'a, 'b> {
    HostLibrary {
        host,
        root: "",
        family: None,
    }
}

fn find(host: &Host<'_>, file: FileId) -> Option<Route> {
    let path = host.path(file).ok()?.into_os_string().into_string().ok()?;
    let mount = mount(host);
    let Some(repository) = repository(&path, &mount) else {
        return model_of(&path, &mount).map(Route::Model);
    };
    let info = host.info(file).ok()?;
    let key = (info.device, info.inode);
    let mut paths = BTreeMap::new();
    for (revision, size) in mount.list(&join(repository, "snapshots")) {
        if size.is_some() {
            continue;
        }
        let folder = snapshot(repository, &revision);
        // Another size is another file.
        let alike = files_below(host, &folder)
            .into_iter()
            .filter(|(_, size)| *size == info.size);
        let found = alike
            .map(|(path, _)| join(&folder, &path))
            .find(|path| info_of(host, path).is_some_and(|it| (it.device, it.inode) == key));
        if let Some(path) = found {
            paths.insert(revision, path);
        }
    }
    let repository = repository.to_owned();
    Some(Route::Shared(Arc::new(Shared { repository, paths })))
}

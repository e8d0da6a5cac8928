//! What other nodes of a fleet have recorded: `ROOT/.fleet/SERVICE/NAME.maio`.
//!
//! A program that has a network keeps that folder, as its own user; MAIO only reads it, and the program only reads
//! the rest of the store. So nothing that comes by the network replaces a template of this node.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::SystemTime;

use super::trust::why_not;
use super::{Store, StoredFile, TemplateError, checked, names, nodes, valid_name};

/// Unlike the name of a service.
const FOLDER: &str = ".fleet";
/// Mode bits by which others than the owner of a folder make entries in it.
const BY_OTHERS: u32 = 0o022;

/// A template that is kept, without a look into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// The service.
    pub service: String,
    /// The node.
    pub node: String,
    /// The size of the template's file, in bytes.
    pub bytes: u64,
    /// When it was saved.
    pub modified: SystemTime,
}

impl Store {
    /// The store of the fleet's templates in this one, for the program that keeps it.
    #[must_use]
    pub fn fleet(&self) -> Self {
        Self::at(self.fleet_path())
    }

    /// The path of that folder, which need not exist.
    #[must_use]
    pub fn fleet_path(&self) -> PathBuf {
        self.root.join(FOLDER)
    }

    /// All that this store itself has, the fleet's not included, without reading or checking it.
    ///
    /// # Errors
    /// Of reading the directories. A root that does not exist is empty.
    pub fn stamps(&self) -> Result<Vec<Stamp>, TemplateError> {
        let mut stamps = Vec::new();
        for service in names(&self.root)?.filter(|name| valid_name(name)) {
            let kept = nodes(&self.root.join(&service))?.into_iter();
            stamps.extend(kept.map(|kept| Stamp {
                service: service.clone(),
                node: kept.node,
                bytes: kept.bytes,
                modified: kept.modified,
            }));
        }
        Ok(stamps)
    }

    /// The fleet's folder, if it can be believed: only the store's owner could have made it, or a trusted user owns it.
    /// Its own owner is then trusted with what is in it.
    pub(super) fn fleet_folder(&self) -> Option<PathBuf> {
        let folder = self.root.join(FOLDER);
        let found = folder.symlink_metadata().ok()?;
        let store = fs::metadata(&self.root).ok()?;
        let this_user = nix::unistd::geteuid().as_raw();
        let maker = if store.mode() & BY_OTHERS == 0 {
            store.uid()
        } else {
            found.uid()
        };
        let believed = [0, this_user, store.uid()];
        let sound = found.is_dir() && why_not(maker, found.mode(), believed).is_none();
        sound.then_some(folder)
    }

    /// The nodes that have a template of a service, and the names of the fleet's.
    pub(super) fn nodes(&self, service: &str) -> Result<Vec<StoredFile>, TemplateError> {
        let mut found = nodes(&self.root.join(checked(service)?))?;
        if let Some(fleet) = self.fleet_folder() {
            // It may be for another user's eyes.
            let of_fleet = nodes(&fleet.join(service)).unwrap_or_default();
            let own: BTreeSet<_> = found.iter().map(|kept| kept.node.clone()).collect();
            let new = of_fleet
                .into_iter()
                .filter(|kept| !own.contains(&kept.node));
            found.extend(new);
        }
        Ok(found)
    }

    /// The services that have templates, the fleet's included.
    pub(super) fn services(&self) -> Result<BTreeSet<String>, TemplateError> {
        let mut services: BTreeSet<_> = names(&self.root)?.collect();
        let fleet = self.fleet_folder().and_then(|fleet| names(&fleet).ok());
        services.extend(fleet.into_iter().flatten());
        services.retain(|name| valid_name(name));
        Ok(services)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    use std::time::Duration;

    use test_support::Folder;

    use super::*;
    use crate::template::Template;
    use crate::template::samples::small;

    fn of(node: &str) -> Template {
        Template {
            node: node.to_owned(),
            ..small()
        }
    }

    fn found(store: &Store) -> Vec<String> {
        let others = store.load_others("qwen", "here", None).expect("to load");
        others.map(|it| it.node).collect()
    }

    fn mode(path: &std::path::Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }

    #[test]
    fn the_fleets_templates_are_other_nodes_and_never_replace_ones_own() {
        let folder = Folder::new("maio-fleet-own");
        let store = Store::at(folder.path());
        let hour_ago = SystemTime::now() - Duration::from_hours(1);
        store.save(&of("here")).expect("to save");
        store
            .fleet()
            .save_copy(&of("fleet-1"), hour_ago)
            .expect("to save");
        store
            .fleet()
            .save_copy(&of("fleet-2"), SystemTime::now())
            .expect("to save");
        store
            .fleet()
            .save(&Template {
                loads: 0,
                ..of("here")
            })
            .expect("to save");
        assert_eq!(found(&store), ["fleet-2", "fleet-1"], "the newest first");
        let own = store.load("qwen", "here").expect("to load");
        assert_eq!(own.expect("a template").loads, small().loads);
        let one = store.load("qwen", "fleet-1").expect("to load");
        assert_eq!(one, Some(of("fleet-1")));
        let listed = store.list().expect("to list").into_iter().map(|it| it.node);
        assert_eq!(listed.collect::<Vec<_>>(), ["fleet-1", "fleet-2", "here"]);
        let stamps = store
            .stamps()
            .expect("to list")
            .into_iter()
            .map(|it| it.node);
        assert_eq!(stamps.collect::<Vec<_>>(), ["here"], "not the fleet's");
        assert_eq!(store.fleet().stamps().expect("to list").len(), 3);
        assert_eq!(store.remove("qwen", None).expect("to remove"), 1);
    }

    #[test]
    fn a_service_may_be_the_fleets_alone() {
        let folder = Folder::new("maio-fleet-alone");
        let store = Store::at(folder.path());
        store.fleet().save(&of("fleet-1")).expect("to save");
        assert_eq!(found(&store), ["fleet-1"]);
        assert_eq!(store.list().expect("to list").len(), 1);
    }

    #[test]
    fn a_fleet_that_anyone_could_have_made_is_not_believed() {
        let folder = Folder::new("maio-fleet-made");
        let store = Store::at(folder.path());
        store.fleet().save(&of("fleet-1")).expect("to save");
        let fleet = folder.path().join(FOLDER);
        assert_eq!(found(&store).len(), 1);
        mode(&fleet, 0o777);
        assert!(found(&store).is_empty(), "anyone may write there");
        mode(&fleet, 0o755);
        fs::rename(&fleet, folder.path().join("moved")).expect("it is ours");
        symlink("moved", &fleet).expect("it is ours");
        assert!(found(&store).is_empty(), "a link");
    }

    #[test]
    fn the_fleets_owner_is_trusted_if_the_stores_owner_has_let_it_in() {
        if !nix::unistd::geteuid().is_root() {
            return test_support::skip("only root may have others let go of files");
        }
        let folder = Folder::new("maio-fleet-owner");
        let store = Store::at(folder.path());
        store.fleet().save(&of("fleet-1")).expect("to save");
        let fleet = folder.path().join(FOLDER);
        let user = Some(nix::unistd::Uid::from_raw(4711));
        for path in [
            &fleet,
            &fleet.join("qwen"),
            &fleet.join("qwen/fleet-1.maio"),
        ] {
            nix::unistd::chown(path, user, None).expect("it is ours");
        }
        mode(folder.path(), 0o755);
        assert_eq!(
            found(&store).len(),
            1,
            "only root could have made the folder"
        );
        mode(folder.path(), 0o775);
        assert!(found(&store).is_empty(), "its user may have made it");
    }
}

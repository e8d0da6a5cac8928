//! The directory of templates on this node.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use maio::template::{Stamp, Store, Template};

use crate::error::{Result, StoreError};
use crate::known::Known;
use crate::slot::Place;

/// Where a node keeps what is known; unlike the name of a service.
const KNOWN: &str = ".known.json";
/// Upper bound on the bytes of that file.
const MOST: u64 = 64 << 20;

/// What a round needs of the directory; simulations have another one.
pub trait Local {
    /// The templates of the store itself, without a look into them.
    ///
    /// # Errors
    /// They cannot be listed.
    fn own(&self) -> Result<Vec<Stamp>>;

    /// One of those; `None` if it cannot be used.
    fn read_own(&self, service: &str, node: &str) -> Option<Template>;

    /// The places of the templates in the fleet's folder.
    ///
    /// # Errors
    /// They cannot be listed.
    fn held(&self) -> Result<Vec<Place>>;

    /// One of those; `None` if it cannot be used.
    fn read_held(&self, place: &Place) -> Option<Template>;

    /// Keeps a template in the fleet's folder, as saved at that time, in seconds since 1970.
    ///
    /// # Errors
    /// It cannot be written.
    fn hold(&self, place: &Place, template: Template, saved_s: u64) -> Result<()>;

    /// Removes one from there.
    ///
    /// # Errors
    /// It cannot be removed.
    fn drop(&self, place: &Place) -> Result<()>;

    /// Keeps what is known for the next process.
    ///
    /// # Errors
    /// It cannot be written.
    fn remember(&self, known: &Known) -> Result<()>;
}

/// A directory of the file system.
#[derive(Debug)]
pub struct Disk {
    own: Store,
    fleet: Store,
    folder: PathBuf,
}

impl Disk {
    /// The store in this directory, which need not exist.
    #[must_use]
    pub fn at(root: &Path) -> Self {
        let own = Store::at(root);
        Self {
            fleet: own.fleet(),
            folder: own.fleet_path(),
            own,
        }
    }

    /// What an earlier process has remembered; nothing if that cannot be read, as all can be fetched again.
    #[must_use]
    pub fn known(&self) -> Known {
        let mut text = Vec::new();
        let read = fs::File::open(self.folder.join(KNOWN))
            .and_then(|file| file.take(MOST).read_to_end(&mut text));
        let known = read.ok().and_then(|_| serde_json::from_slice(&text).ok());
        known.unwrap_or_default()
    }

    /// Makes the fleet's folder, and checks that it can be written to.
    ///
    /// # Errors
    /// It cannot.
    pub fn prepare(&self) -> Result<()> {
        fs::create_dir_all(&self.folder).map_err(StoreError::io(&self.folder))?;
        self.remember(&self.known())
    }
}

impl Local for Disk {
    fn own(&self) -> Result<Vec<Stamp>> {
        Ok(self.own.stamps()?)
    }

    fn read_own(&self, service: &str, node: &str) -> Option<Template> {
        self.own.load(service, node).ok().flatten()
    }

    fn held(&self) -> Result<Vec<Place>> {
        let places = self.fleet.stamps()?.into_iter().map(|stamp| Place {
            service: stamp.service,
            slot: stamp.node,
        });
        Ok(places.filter(Place::is_valid).collect())
    }

    fn read_held(&self, place: &Place) -> Option<Template> {
        self.fleet.load(&place.service, &place.slot).ok().flatten()
    }

    fn hold(&self, place: &Place, template: Template, saved_s: u64) -> Result<()> {
        let template = Template {
            service: place.service.clone(),
            node: place.slot.clone(),
            ..template
        };
        let saved = UNIX_EPOCH.checked_add(Duration::from_secs(saved_s));
        self.fleet
            .save_copy(&template, saved.unwrap_or_else(SystemTime::now))?;
        Ok(())
    }

    fn drop(&self, place: &Place) -> Result<()> {
        self.fleet.remove(&place.service, Some(&place.slot))?;
        Ok(())
    }

    fn remember(&self, known: &Known) -> Result<()> {
        let path = self.folder.join(KNOWN);
        let partial = self.folder.join(format!("{KNOWN}.partial"));
        let text = serde_json::to_vec(known).map_err(io::Error::other);
        let written = text.and_then(|text| fs::write(&partial, text));
        written
            .and_then(|()| fs::rename(&partial, &path))
            .map_err(StoreError::io(&path))
    }
}

//! The mount that a directory is in, and the mounts within the directory, from `mountinfo`.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use super::field;
use crate::doctor::facts::Place;
use cprt::machine::mountinfo::{self, Mount};

/// All visible mounts, in the order in which they were made.
#[derive(Debug, Default)]
pub(super) struct Mounts(Vec<Mount>);

pub(super) fn place(mount: &Mount) -> Place {
    Place {
        kind: mount.kind.clone(),
        source: mount.source.display().to_string(),
        point: mount.point.clone(),
        options: mount.options.clone(),
    }
}

/// The directory whose files a mount shows, if it shows another directory's.
fn below(mount: &Mount) -> Option<PathBuf> {
    match mount.kind.as_str() {
        "rfs" | "fuse.cprt" => Some(mount.source.clone()),
        // The topmost layer: the one that is written to, if the mount is writable.
        "overlay" => {
            let lower = || mount.option("lowerdir")?.split(':').next();
            mount.option("upperdir").or_else(lower).map(PathBuf::from)
        }
        _ => None,
    }
}

impl Mounts {
    pub(super) fn read(proc: &Path) -> Self {
        Self(mountinfo::read(proc).unwrap_or_default())
    }

    /// The mount of a directory, by the ID that the kernel reports, or else by the paths.
    pub(super) fn of(&self, proc: &Path, directory: &Path) -> Option<&Mount> {
        let told = id(proc, directory);
        let told = told.and_then(|id| self.0.iter().find(|mount| mount.id == id));
        told.or_else(|| nearest(&self.0, directory))
    }

    /// The visible mounts below a directory that is in the mount `here`.
    pub(super) fn within(&self, here: &Mount, directory: &Path) -> Vec<PathBuf> {
        let mut found: Vec<_> = self
            .0
            .iter()
            .filter(|mount| mount.point != directory && mount.point.starts_with(directory))
            // The others are hidden by mounts over them.
            .filter(|mount| self.is_on(mount, here))
            .map(|mount| mount.point.clone())
            .collect();
        found.sort();
        found.dedup();
        found
    }

    fn is_on(&self, mount: &Mount, here: &Mount) -> bool {
        let mut at = mount;
        // A list that changes while it is read may have cycles.
        for _ in 0..self.0.len() {
            if at.parent == here.id {
                return true;
            }
            match self.0.iter().find(|mount| mount.id == at.parent) {
                Some(parent) => at = parent,
                None => return false,
            }
        }
        false
    }

    /// The mount with the device, below mounts that show other directories' files.
    pub(super) fn base<'m>(&'m self, mount: &'m Mount) -> &'m Mount {
        let mut at = mount;
        while let Some(below) = below(at) {
            // A mount shows only what was mounted before it.
            let before = self.0.iter().take_while(|other| other.id != at.id);
            let before: Vec<_> = before.cloned().collect();
            let Some(next) = nearest(&before, &below) else {
                break;
            };
            match self.0.iter().find(|mount| mount.id == next.id) {
                Some(next) => at = next,
                None => break,
            }
        }
        at
    }
}

/// The deepest of the mounts above a path; of several at one place, the last.
fn nearest<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.components().count())
}

/// The kernel's ID of the mount.
fn id(proc: &Path, directory: &Path) -> Option<u64> {
    let file = File::open(directory).ok()?;
    let info = proc.join(format!("self/fdinfo/{}", file.as_raw_fd()));
    field(&fs::read_to_string(info).ok()?, "mnt_id")?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 0:40 / /srv rw,relatime - btrfs /dev/nvme0n1 rw,subvol=/srv
31 30 0:41 / /srv/models/disk rw - tmpfs tmpfs rw
32 31 8:17 / /srv/models/disk/deep rw - xfs /dev/sdb1 rw
33 30 0:42 / /srv/models/with\\040blank rw - nfs4 host:/with\\040blank rw
34 22 0:43 / /merged rw - overlay overlay rw,lowerdir=/srv/models:/b,workdir=/w
35 22 0:44 / /mnt ro - rfs /merged ro,dev=rfs0
36 30 0:45 / /srv/over ro - rfs /srv/over ro,dev=rfs1
37 30 0:46 / /srv/hidden rw - tmpfs tmpfs rw
38 30 0:47 / /srv/hidden ro - xfs /dev/sdc ro
39 37 0:48 / /srv/hidden/x ro - tmpfs tmpfs ro
garbage
40 22 8 / /odd rw - ext4
";

    fn of<'m>(mounts: &'m Mounts, path: &str) -> &'m Mount {
        let nowhere = Path::new("/nowhere");
        mounts
            .of(nowhere, Path::new(path))
            .expect("at least the root")
    }

    #[test]
    fn the_deepest_mount_counts_and_the_last_of_these() {
        let mounts = Mounts(mountinfo::parse(TEXT));
        for (path, id) in [
            ("/home", 22),
            ("/srvx", 22),
            ("/srv/models", 30),
            ("/srv/models/disk/deep/x", 32),
            ("/srv/hidden", 38),
        ] {
            assert_eq!(of(&mounts, path).id, id, "{path}");
        }
        let place = place(of(&mounts, "/srv/models/with blank"));
        assert_eq!(
            (place.kind.as_str(), place.source.as_str()),
            ("nfs4", "host:/with blank")
        );
    }

    #[test]
    fn visible_mounts_below_a_directory_are_found() {
        let mounts = Mounts(mountinfo::parse(TEXT));
        let within = |path| mounts.within(of(&mounts, path), Path::new(path));
        assert_eq!(
            within("/srv/models"),
            [
                "/srv/models/disk",
                "/srv/models/disk/deep",
                "/srv/models/with blank"
            ]
            .map(PathBuf::from)
        );
        assert!(within("/srv/models/disk/deep").is_empty());
        assert!(within("/srv/hidden").is_empty());
    }

    #[test]
    fn below_what_is_stacked_is_a_device() {
        let mounts = Mounts(mountinfo::parse(TEXT));
        for (path, id) in [("/mnt", 30), ("/merged", 30), ("/srv/over", 30), ("/", 22)] {
            assert_eq!(mounts.base(of(&mounts, path)).id, id, "{path}");
        }
    }

    #[test]
    fn mount_id_of_the_current_directory_matches_the_kernel() {
        let here = std::env::current_dir().expect("a directory");
        let proc = Path::new("/proc");
        let mounts = Mounts::read(proc);
        let told = id(proc, &here).expect("the kernel tells");
        assert_eq!(mounts.of(proc, &here).map(|mount| mount.id), Some(told));
    }
}

//! The file system that the directory is on.

use super::{degrades, word};
use crate::doctor::facts::{Facts, Place};
use crate::doctor::finding::{Finding, Group, Severity};
use cprt::control::kind::BackendKind;
use cprt::machine::mountinfo;

/// File system types whose files are on another machine.
const NETWORK: [&str; 21] = [
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "weka", "wekafs",
];

/// FUSE subtypes, without the prefix `fuse.`, whose files are on another machine.
const NETWORK_FUSE: [&str; 16] = [
    "alluxio-fuse",
    "blobfuse",
    "blobfuse2",
    "ceph-fuse",
    "cvmfs2",
    "dfuse",
    "gcsfuse",
    "glusterfs",
    "goofys",
    "juicefs",
    "JuiceFS",
    "mount-s3",
    "rclone",
    "s3fs",
    "seaweedfs",
    "sshfs",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Disk,
    Memory,
    Network,
    Pseudo,
    Rfs,
    Mirror,
    Overlay,
    Fuse,
    /// It has its own cache.
    Own,
}

fn sort(kind: &str) -> Sort {
    match kind {
        "rfs" => Sort::Rfs,
        "fuse.cprt" => Sort::Mirror,
        "overlay" => Sort::Overlay,
        kind if mountinfo::is_in_memory(kind) => Sort::Memory,
        "zfs" => Sort::Own,
        kind if NETWORK.contains(&kind) => Sort::Network,
        kind if mountinfo::is_made_up(kind) => Sort::Pseudo,
        kind => match kind.strip_prefix("fuse.") {
            Some(name) if NETWORK_FUSE.contains(&name) => Sort::Network,
            Some(_) => Sort::Fuse,
            None if kind == "fuse" => Sort::Fuse,
            None => Sort::Disk,
        },
    }
}

pub(super) fn examine(facts: &Facts) -> Vec<Finding> {
    let Some(place) = &facts.place else {
        let text = "/proc is not mounted, or hidden: the file system and most of what follows cannot \
                    be found out";
        let finding = finding(Severity::Warning, "file-system-unknown", text);
        return vec![finding.remedy("Mount it: 'mount -t proc proc /proc'")];
    };
    let sort = sort(&place.kind);
    let mut findings = vec![of_sort(facts, place, sort)];
    findings.extend(direct(facts, sort));
    findings.extend(dax(place));
    findings
}

fn finding(severity: Severity, code: &'static str, text: impl Into<String>) -> Finding {
    Finding::new(Group::FileSystem, severity, code, text)
}

fn of_sort(facts: &Facts, place: &Place, sort: Sort) -> Finding {
    let at = format!(
        "{} of {} at {}",
        place.kind,
        place.source,
        place.point.display()
    );
    match sort {
        Sort::Disk => finding(Severity::Ok, "file-system", at),
        Sort::Rfs => finding(
            Severity::Ok,
            "file-system-rfs",
            format!("rfs shows {} at {}", place.source, place.point.display()),
        ),
        Sort::Mirror => finding(
            Severity::Note,
            "file-system-mirror",
            format!("This is already a FUSE mirror, of {}", place.source),
        )
        .remedy(format!("Name {} to find out more", place.source)),
        Sort::Memory => finding(
            Severity::Note,
            "file-system-memory",
            format!("{at}: the files are in memory already, so there is nothing to load ahead"),
        ),
        Sort::Network => network(&at, &word(&facts.directory)),
        Sort::Pseudo => finding(
            Severity::Problem,
            "file-system-pseudo",
            format!("{at}: its files are generated when they are read, and never cached"),
        )
        .remedy("Name the directory of a model"),
        Sort::Overlay => finding(
            Severity::Note,
            "file-system-overlay",
            format!("{at}: the files and their page cache belong to a layer below"),
        )
        .remedy("Name the layer's directory if it is visible, or keep models in a volume"),
        Sort::Fuse => finding(
            Severity::Warning,
            "file-system-fuse",
            format!(
                "{at}: a program answers each read, and loads are only as fast as that program"
            ),
        )
        .remedy("Name the directory from which the program takes the files, if there is one"),
        Sort::Own => finding(
            Severity::Warning,
            "file-system-own-cache",
            format!("{at}: it has its own cache besides the page cache, which PPC cannot control"),
        )
        .remedy("Keep models on ext4 or xfs, or try 'zfs set primarycache=metadata' for them"),
    }
}

fn network(at: &str, directory: &str) -> Finding {
    let text = format!(
        "{at}: the files are on another machine; changing them there drops their pages from the cache here"
    );
    finding(Severity::Warning, "file-system-network", text).remedy(format!(
        "Copy the files to a local disk if there is room, such as with 'cp -a {directory} /var/tmp', or \
         mount with several connections (NFS: nconnect=8)"
    ))
}

/// fuse reads with `O_DIRECT` from below, as everything would otherwise be cached twice.
fn direct(facts: &Facts, sort: Sort) -> Option<Finding> {
    let severity = degrades(facts, BackendKind::Fuse);
    match facts.files.direct? {
        true => Some(finding(
            Severity::Ok,
            "o-direct",
            "Files open with O_DIRECT; readers that use it bypass the page cache, and PPC",
        )),
        // In memory, both are the same pages.
        false if sort == Sort::Memory => None,
        false => Some(
            finding(
                severity,
                "o-direct-missing",
                "Files do not open with O_DIRECT, so files read through plain fuse are cached twice",
            )
            .remedy("Use a backend other than fuse, or another file system"),
        ),
    }
}

fn dax(place: &Place) -> Option<Finding> {
    let mut options = place.options.split(',');
    let dax = options.any(|option| ["dax", "dax=always"].contains(&option));
    dax.then(|| {
        finding(
            Severity::Warning,
            "file-system-dax",
            "Files are mapped from persistent memory (DAX) and not cached: there is nothing to load",
        )
        .remedy("Mount with dax=never if its memory is slower than the machine's own")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_types_are_classified() {
        for (kind, expected) in [
            ("ext4", Sort::Disk),
            ("fuseblk", Sort::Disk),
            ("nfs4", Sort::Network),
            ("fuse.sshfs", Sort::Network),
            ("fuse.bindfs", Sort::Fuse),
            ("fuse", Sort::Fuse),
            ("fuse.cprt", Sort::Mirror),
            ("sysfs", Sort::Pseudo),
            ("tmpfs", Sort::Memory),
            ("zfs", Sort::Own),
        ] {
            assert_eq!(sort(kind), expected, "{kind}");
        }
    }
}

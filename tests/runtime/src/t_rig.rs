//! The rig itself: the programs and libraries that it brings run, load, and are where they belong.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use ppc::LoadError;

use crate::case::Case;
use crate::cgroup::{Group, Version};
use crate::daemon::{policy, test_policy};
use crate::files::{MIB, set_readahead};
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome, Stop, ensure, ensure_eq};
use crate::reader::{Job, Service};
use crate::sys::open_policy;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_rig_policies_open", 20, policies_open),
    Case::new(
        "cprt_rig_policies_are_roots_alone",
        20,
        policies_are_roots_alone,
    ),
    Case::new(
        "cprt_rig_readers_read_through_rfs",
        30,
        readers_read_through_rfs,
    ),
    Case::new("cprt_rig_cgroups_count", 30, || cgroups_count(Version::V2)),
    Case::new("cprt_rig_cgroups_count_cgroup1", 30, || {
        cgroups_count(Version::V1)
    }),
    Case::new("cprt_rig_disks_spoil", 30, disks_spoil),
];

/// Like the daemon, this program needs the libraries that it is linked with, and opens others.
fn policies_open() -> Outcome {
    for name in ["null", "eager", "precache", "readahead", "shift"] {
        let table = open_policy(&policy(name)).of(name)?;
        ensure_eq!(table.name(), name, "the name of {name}.so");
    }
    for name in ["probe", "frozen"] {
        let table = open_policy(&test_policy(name)).of(name)?;
        ensure_eq!(table.name(), name, "the name of {name}.so");
    }
    match open_policy(&test_policy("newer")) {
        Err(LoadError::Newer { policy: 99, .. }) => {}
        other => return Err(Stop::fail(format_args!("newer.so: {other:?}"))),
    }
    match open_policy(&test_policy("wrong_size")) {
        Err(LoadError::Damaged { size: 8, .. }) => Ok(()),
        other => Err(Stop::fail(format_args!("wrong_size.so: {other:?}"))),
    }
}

fn policies_are_roots_alone() -> Outcome {
    for name in ["null", "eager", "precache", "readahead", "shift"] {
        for part in policy(name).ancestors() {
            let metadata = part.symlink_metadata().of(part.display())?;
            let mode = metadata.permissions().mode();
            ensure_eq!(metadata.uid(), 0, "owner of {}", part.display());
            ensure_eq!(
                mode & 0o022,
                0,
                "others' rights to {} ({mode:o})",
                part.display()
            );
        }
    }
    let count = fs::read_dir("/usr/lib/ppc/test")?.count();
    ensure!(count >= 17, "{count} test policies");
    ensure!(
        Path::new("/usr/lib/ppc/test/panic.so").exists(),
        "no panic.so"
    );
    Ok(())
}

fn readers_read_through_rfs() -> Outcome {
    set_readahead("0")?;
    let mount = Mount::new()?;
    let file = mount.file("dir/f", 3, 3 * MIB + 5)?;
    let read = Job::new(&mount, &file).run()?;
    ensure_eq!((read.bytes, read.times), (file.size, 1), "what was read");
    ensure_eq!(file.cached()?, 3 * MIB + 4096, "what is cached after it");
    ensure_eq!(
        file.nodes()?.iter().sum::<usize>(),
        769,
        "pages on all nodes"
    );

    file.make_cold()?;
    Job::new(&mount, &file).mmap().range(MIB..MIB + 8).run()?;
    ensure_eq!(file.cached()?, 4096, "what is cached after one page fault");
    // A wrong byte must not go unnoticed.
    let mut other = file.clone();
    other.seed = 4;
    ensure!(
        Job::new(&mount, &other).run().is_err(),
        "a wrong seed is right"
    );
    mount.unmount()
}

fn cgroups_count(version: Version) -> Outcome {
    let group = Group::new(version, "rig")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 3, 4 * MIB)?;
    let service = Service::start(8 * MIB, group.procs())?;
    let anon = group.anon()?;
    ensure!(anon >= 8 * MIB, "{anon} bytes of anonymous memory");
    ensure_eq!(group.members()?.len(), 1, "members");
    Job::new(&mount, &file).within(group.procs()).run()?;
    let cache = group.cache()?;
    ensure!(cache >= 4 * MIB, "{cache} bytes of page cache");
    ensure!(
        group.current()? >= anon + cache - MIB,
        "{}",
        group.current()?
    );
    ensure_eq!(group.oom_kills()?, 0, "OOM kills");
    ensure_eq!(service.finish()?, 0, "faults on what was there already");
    Ok(())
}

fn disks_spoil() -> Outcome {
    let mut disk = crate::disk::Disk::new("rig")?;
    let file = crate::files::Pattern::make(&disk.path.join("f"), 3, 4 * MIB)?;
    disk.slow(100)?;
    let before = disk.bytes_read()?;
    Job::lower(&file).run()?;
    let read = disk.bytes_read()? - before;
    ensure!(read >= file.size, "{read} bytes read");
    file.make_cold()?;
    disk.spoil(&file.lower, MIB..MIB + 4096)?;
    ensure!(Job::lower(&file).run().is_err(), "bad sectors read well");
    Ok(())
}

//! The file system and the devices below it.

use super::*;

/// Expects a finding on this type of file system.
fn on(kind: &str, code: &str, severity: Severity, parts: &[&str]) {
    let mut facts = fine();
    facts.place = Some(place(kind));
    names(&facts, code, severity, parts);
}

#[test]
fn a_network_file_system() {
    for kind in ["nfs4", "cifs", "fuse.sshfs", "ceph"] {
        let parts = [kind, "another machine", "cp -a /srv/models/llama"];
        on(kind, "file-system-network", Severity::Warning, &parts);
    }
}

#[test]
fn file_systems_that_are_no_disk() {
    for (kind, code, severity) in [
        ("overlay", "file-system-overlay", Severity::Note),
        ("tmpfs", "file-system-memory", Severity::Note),
        ("fuse.cprt", "file-system-mirror", Severity::Note),
        ("rfs", "file-system-rfs", Severity::Ok),
        ("fuse.bindfs", "file-system-fuse", Severity::Warning),
        ("zfs", "file-system-own-cache", Severity::Warning),
        ("proc", "file-system-pseudo", Severity::Problem),
    ] {
        on(kind, code, severity, &[]);
    }
}

#[test]
fn mounts_that_cannot_be_seen() {
    let mut facts = fine();
    facts.place = None;
    names(&facts, "file-system-unknown", Severity::Warning, &["/proc"]);
}

#[test]
fn files_in_persistent_memory() {
    for (options, dax) in [("rw,dax=always", true), ("rw,dax=never", false)] {
        let mut facts = fine();
        facts.place = Some(Place {
            options: options.to_owned(),
            ..place("xfs")
        });
        assert_eq!(has(&facts, "file-system-dax"), dax, "{options}");
    }
}

#[test]
fn missing_o_direct_is_a_note_or_with_fuse_a_warning() {
    let mut facts = fine();
    facts.files.direct = Some(false);
    names(&facts, "o-direct-missing", Severity::Note, &[]);
    facts.candidates = candidates(&[BackendKind::Fuse]);
    names(&facts, "o-direct-missing", Severity::Warning, &["twice"]);
    facts.place = Some(place("tmpfs"));
    assert!(!has(&facts, "o-direct-missing"));
}

#[test]
fn a_small_readahead() {
    let mut facts = fine();
    let path = PathBuf::from("/sys/block/nvme0n1/queue/read_ahead_kb");
    facts.device.readahead = Some((path.clone(), 128));
    let parts = [
        "128 KiB",
        "echo 8192 > /sys/block/nvme0n1/queue/read_ahead_kb",
    ];
    names(&facts, "readahead-small", Severity::Warning, &parts);
    facts.device.readahead = Some((path, 1024));
    assert!(!has(&facts, "readahead-small"));
    facts.device.readahead = None;
    assert!(!has(&facts, "readahead-small"));
}

#[test]
fn unknown_device_is_reported_as_a_note() {
    let mut facts = fine();
    facts.device = Device::default();
    names(&facts, "device-unknown", Severity::Note, &[]);
}

#[test]
fn devices_that_are_made_of_others() {
    let mut facts = fine();
    let made = |name: &str, of: &str| Layer {
        name: name.to_owned(),
        made: Some(of.to_owned()),
        // The schedulers of devices made of others do not matter.
        scheduler: Some("bfq".to_owned()),
        rotational: Some(true),
        direct: None,
    };
    facts.device.layers = vec![made("dm-0", "dm LVM"), made("md0", "md raid0"), disk()];
    let parts = ["The directory is on dm-0 (dm LVM), made of md0 (md raid0), nvme0n1"];
    names(&facts, "device", Severity::Ok, &parts);
    assert_eq!(Diagnosis::of(&facts).severity, Severity::Ok);
}

#[test]
fn a_loop_device_that_caches() {
    let mut facts = fine();
    facts.device.layers = vec![Layer {
        name: "loop3".to_owned(),
        made: Some("loop".to_owned()),
        direct: Some(false),
        ..Layer::default()
    }];
    let parts = ["losetup --direct-io=on /dev/loop3"];
    names(&facts, "loop-cached-twice", Severity::Warning, &parts);
}

#[test]
fn a_scheduler_for_slow_disks() {
    let mut facts = fine();
    facts.device.layers[0].scheduler = Some("bfq".to_owned());
    let parts = ["bfq", "echo none > /sys/block/nvme0n1/queue/scheduler"];
    names(&facts, "scheduler-slow", Severity::Warning, &parts);
    facts.device.layers[0].rotational = Some(true);
    assert!(!has(&facts, "scheduler-slow"));
}

#[test]
fn a_disk_that_turns() {
    let mut facts = fine();
    facts.device.layers[0].rotational = Some(true);
    let parts = ["nvme0n1", "queue/rotational"];
    names(&facts, "device-rotational", Severity::Note, &parts);
}

//! What a mirror shows, and what it refuses.

use crate::sys::{testing, xattr};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;

use super::*;

/// The attributes that have to be the same in the mirror as below.
fn stat(path: &Path) -> [i64; 13] {
    let it = path.symlink_metadata().expect("its attributes");
    let of = |value: u64| value.cast_signed();
    [
        of(it.ino()),
        it.mode().into(),
        of(it.nlink()),
        it.uid().into(),
        it.gid().into(),
        of(it.rdev()),
        of(it.size()),
        of(it.blocks()),
        of(it.blksize()),
        it.mtime(),
        it.mtime_nsec(),
        it.ctime(),
        it.ctime_nsec(),
    ]
}

fn names(directory: &Path) -> BTreeMap<std::ffi::OsString, (u64, bool)> {
    use std::os::unix::fs::DirEntryExt as _;

    let entries = std::fs::read_dir(directory).expect("to list it");
    let entries = entries.map(|entry| {
        let entry = entry.expect("an entry");
        let is_link = entry.file_type().expect("its type").is_symlink();
        (entry.file_name(), (entry.ino(), is_link))
    });
    entries.collect()
}

fn furnish(ground: &Ground) {
    let at = |name| ground.lower.join(name);
    ground.file("model", 3_000_001);
    ground.file("empty", 0);
    std::fs::create_dir_all(at("sub/deeper")).expect("directories");
    ground.file("sub/deeper/weights", 70_000);
    std::fs::hard_link(at("model"), at("sub/again")).expect("a link");
    symlink("sub/again", at("link")).expect("a link");
    symlink("nowhere", at("dangling")).expect("a link");
    nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a fifo");
    let secret = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(at("sub/deeper/weights"), secret).expect("a mode");
}

const ALL: [&str; 10] = [
    "",
    "model",
    "empty",
    "sub",
    "sub/again",
    "sub/deeper",
    "sub/deeper/weights",
    "link",
    "dangling",
    "fifo",
];

#[test]
fn test_mirror_matches_the_lower_directory() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    furnish(&ground);
    for options in modes() {
        let _mirror = ground.mount(&options);
        // Twice: first from the server, then from the kernel's memory.
        for name in ALL.iter().chain(&ALL) {
            let (below, above) = (ground.lower.join(name), ground.at.join(name));
            assert_eq!(stat(&above), stat(&below), "{name}");
            if below.is_dir() && !below.is_symlink() {
                assert_eq!(names(&above), names(&below), "{name}");
            } else if below.is_symlink() {
                let target = std::fs::read_link(&below).expect("a link");
                assert_eq!(std::fs::read_link(&above).expect("a link"), target);
            } else if *name != "fifo" {
                let same =
                    std::fs::read(&above).expect("above") == std::fs::read(&below).expect("below");
                assert!(same, "{name}");
            }
        }
        assert!(
            std::fs::read(ground.at.join("link"))
                .expect("by a link")
                .len()
                > 3_000_000
        );
        let missing = File::open(ground.at.join("nowhere")).expect_err("nothing");
        assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    }
}

#[test]
fn test_extended_attributes_and_the_file_system_are_the_lower_ones() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 10);
    let set = |name, value: &[u8]| xattr::setxattr(&ground.lower.join("a"), name, value);
    set("user.origin", b"somewhere").expect("an attribute");
    set("trusted.secret", b"1").expect("an attribute");
    let mirror = ground.mount(&plain());
    let above = ground.at.join("a");
    let mut value = [0; 64];
    let length = xattr::getxattr(&above, OsStr::new("user.origin"), &mut value);
    assert_eq!(&value[..length.expect("an attribute")], b"somewhere");
    let length = xattr::listxattr(&above, &mut value).expect("names");
    let mut names: Vec<_> = value[..length].split_inclusive(|&byte| byte == 0).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"trusted.secret\0"[..], &b"user.origin\0"[..]]);
    let short = xattr::getxattr(&above, OsStr::new("user.origin"), &mut value[..3]);
    let short = short.expect_err("too short");
    assert_eq!(short.raw_os_error(), Some(libc::ERANGE));
    let none = xattr::getxattr(&above, OsStr::new("user.none"), &mut value).expect_err("none");
    assert_eq!(none.raw_os_error(), Some(libc::ENODATA));
    let stat = |path: &Path| {
        let stat = nix::sys::statvfs::statvfs(path).expect("statvfs");
        (
            stat.blocks(),
            stat.files(),
            stat.fragment_size(),
            stat.name_max(),
        )
    };
    assert_eq!(stat(&ground.at), stat(&ground.lower));
    drop(mirror);
}

#[test]
fn test_everything_that_writes_is_refused() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    furnish(&ground);
    let _mirror = ground.mount(&plain());
    // The mirror refuses changes even if the mount is writable.
    let remounted = Command::new("mount")
        .args(["-i", "-o", "remount,rw"])
        .arg(&ground.at)
        .status()
        .is_ok_and(|status| status.success());
    assert!(remounted, "writable");
    let at = |name: &str| ground.at.join(name);
    let mode = std::fs::Permissions::from_mode(0o777);
    let tried: [(&str, io::Result<()>); 12] = [
        (
            "write",
            OpenOptions::new().write(true).open(at("model")).map(drop),
        ),
        (
            "append",
            OpenOptions::new().append(true).open(at("model")).map(drop),
        ),
        (
            "truncate",
            OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(at("model"))
                .map(drop),
        ),
        ("create", File::create(at("new")).map(drop)),
        ("mkdir", std::fs::create_dir(at("new"))),
        ("rmdir", std::fs::remove_dir(at("sub/deeper"))),
        ("unlink", std::fs::remove_file(at("model"))),
        ("rename", std::fs::rename(at("model"), at("new"))),
        ("link", std::fs::hard_link(at("model"), at("new"))),
        ("symlink", symlink("model", at("new"))),
        ("chmod", std::fs::set_permissions(at("model"), mode)),
        (
            "mkfifo",
            nix::unistd::mkfifo(&at("new"), nix::sys::stat::Mode::S_IRWXU).map_err(Into::into),
        ),
    ];
    for (call, result) in tried {
        let error = result.expect_err(call);
        assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{call}");
    }
}

#[test]
fn test_an_ioctl_is_none_of_its() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 10);
    let _mirror = ground.mount(&plain());
    let file = File::open(ground.at.join("a")).expect("a file");
    let error = testing::window_size(file.as_raw_fd()).expect_err("not a terminal");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
}

#[test]
fn test_a_large_directory_is_listed_whole_and_from_anywhere() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    for n in 0..5000 {
        File::create(ground.lower.join(format!("shard-{n:05}"))).expect("a file");
    }
    let _mirror = ground.mount(&plain());
    assert_eq!(names(&ground.at), names(&ground.lower));
    // Positions stay valid while files are added.
    let directory = File::open(&ground.at).expect("the directory");
    let mut all = Vec::new();
    loop {
        let some = testing::names(&directory).expect("names");
        if some.is_empty() {
            break;
        }
        all.extend(some);
    }
    assert_eq!(all.len(), 5002);
    File::create(ground.lower.join("new")).expect("a file");
    for at in [2500, 17, 4998] {
        let (_, position) = &all[at];
        nix::unistd::lseek(&directory, *position, nix::unistd::Whence::SeekSet).expect("to seek");
        let some = testing::names(&directory).expect("names");
        assert_eq!(some.first(), all.get(at + 1), "{at}");
    }
    nix::unistd::lseek(&directory, 0, nix::unistd::Whence::SeekSet).expect("to seek");
    let mut again = 0;
    loop {
        match testing::names(&directory).expect("names").len() {
            0 => break,
            some => again += some,
        }
    }
    assert_eq!(again, 5003, "read from the beginning, it has its real size");
}

#[test]
fn test_modes_hold_for_others() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    furnish(&ground);
    for options in modes() {
        let _mirror = ground.mount(&options);
        let may = |name: &str| {
            let mut cat = Command::new("cat");
            cat.arg(ground.at.join(name)).uid(65534).gid(65534);
            cat.stdout(Stdio::null()).stderr(Stdio::null());
            cat.status().expect("cat").success()
        };
        assert!(may("model"));
        assert!(!may("sub/deeper/weights"), "mode 0600 of root");
    }
}

/// The ACL of a file that every user but one may read.
fn deny(user: u32) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries: [(u16, u16, u32); 5] = [
        (0x01, 6, NONE), // its owner
        (0x02, 0, user),
        (0x04, 4, NONE), // its group
        (0x10, 4, NONE), // the mask
        (0x20, 4, NONE), // others
    ];
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(may.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn test_lists_of_who_may_read_hold_as_below() {
    const DENIED: u32 = 65534;
    const OTHER: u32 = 65533;

    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 10_000);
    std::fs::create_dir(ground.lower.join("sub")).expect("a directory");
    ground.file("sub/b", 10_000);
    let sub = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(ground.lower.join("sub"), sub).expect("a mode");
    for name in ["a", "sub"] {
        let name = ground.lower.join(name);
        let mut list = deny(DENIED);
        if name.is_dir() {
            // Looking up names in a directory takes permission to execute.
            for at in [4, 20, 28, 36] {
                list[at + 2] |= 1;
            }
        }
        if let Err(error) = xattr::setxattr(&name, "system.posix_acl_access", &list) {
            return skip(&format!("no lists of who may read: {error}"));
        }
    }
    let may = |directory: &Path, name: &str, user: u32| {
        let mut cat = Command::new("cat");
        cat.arg(directory.join(name)).uid(user).gid(user);
        cat.stdout(Stdio::null()).stderr(Stdio::null());
        cat.status().expect("cat").success()
    };
    for options in modes() {
        let mirror = ground.mount(&options);
        for name in ["a", "sub/b"] {
            let of = |user| (may(&ground.lower, name, user), may(&ground.at, name, user));
            // Once before and once after another user has read it.
            assert_eq!(of(DENIED), (false, false), "{name} by {:?}", mirror.mode());
            assert_eq!(of(OTHER), (true, true), "{name} by {:?}", mirror.mode());
            assert_eq!(of(DENIED), (false, false), "{name} by {:?}", mirror.mode());
        }
        let list = xattr::getxattr(
            &ground.at.join("a"),
            OsStr::new("system.posix_acl_access"),
            &mut [0; 256],
        );
        assert_eq!(list.expect("it is shown"), deny(DENIED).len());
    }
}

#[test]
fn test_mirror_shows_changes_to_lower_files() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let (below, above) = (ground.lower.join("a"), ground.at.join("a"));
    let wait = || std::thread::sleep(std::time::Duration::from_millis(1100));
    for options in modes() {
        ground.file("a", 50_000);
        let mirror = ground.mount(&options);
        let held = File::open(&above).expect("a file");
        assert_eq!(std::fs::read(&above).expect("to read").len(), 50_000);
        // Changed in place, with the same length.
        let changed = pattern(50_000, 2);
        std::fs::write(&below, &changed).expect("to change it");
        wait();
        assert!(
            std::fs::read(&above).expect("to read") == changed,
            "in place"
        );
        let mut whole = Vec::new();
        (&held).read_to_end(&mut whole).expect("to read");
        assert!(whole == changed, "in place, held open");
        // Replaced by another file with the same times.
        let other = pattern(60_000, 3);
        std::fs::write(ground.lower.join("b"), &other).expect("a file");
        let times = std::fs::metadata(&below)
            .expect("its times")
            .modified()
            .expect("mtime");
        let file = OpenOptions::new()
            .write(true)
            .open(ground.lower.join("b"))
            .expect("a file");
        file.set_modified(times).expect("to set its time");
        std::fs::rename(ground.lower.join("b"), &below).expect("to replace it");
        wait();
        assert!(std::fs::read(&above).expect("to read") == other, "replaced");
        assert_eq!(stat(&above), stat(&below));
        assert_eq!(
            held.metadata().expect("held").len(),
            50_000,
            "held is the old one"
        );
        std::fs::remove_file(&below).expect("to remove it");
        wait();
        assert!(!above.exists());
        drop(held);
        drop(mirror);
    }
}

#[test]
fn test_mirror_can_be_mounted_over_its_lower() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    furnish(&ground);
    let before: Vec<_> = ALL
        .iter()
        .map(|name| stat(&ground.lower.join(name)))
        .collect();
    for options in modes() {
        let device = ground.lower.metadata().expect("the directory").dev();
        let mirror = Mirror::mount(&ground.lower, &ground.lower, &options, None);
        let mirror = mirror.expect("to mount");
        assert_ne!(ground.lower.metadata().expect("the mirror").dev(), device);
        let after: Vec<_> = ALL
            .iter()
            .map(|name| stat(&ground.lower.join(name)))
            .collect();
        assert_eq!(before, after);
        let whole = std::fs::read(ground.lower.join("model")).expect("to read");
        assert!(whole == pattern(3_000_001, 1));
        let id = stat(&ground.lower.join("sub/deeper/weights"))[0].cast_unsigned();
        let path = mirror.core().path(id).expect("its path");
        assert_eq!(path, Path::new("sub/deeper/weights"));
        drop(mirror);
        assert_eq!(
            ground.lower.metadata().expect("the directory").dev(),
            device
        );
    }
}

#[test]
fn test_a_deleted_file_is_not_held() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 1 << 20);
    let _mirror = ground.mount(&MirrorOptions::default());
    std::fs::read(ground.at.join("a")).expect("to read");
    std::fs::remove_file(ground.lower.join("a")).expect("to remove it");
    let top = ground.lower.join("a");
    let held = || {
        let held = std::fs::read_dir("/proc/self/fd").expect("our descriptors");
        let held = held.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
        // The name of a deleted file is followed by a note.
        let mut held = held.filter(|path| {
            path.as_os_str()
                .as_bytes()
                .starts_with(top.as_os_str().as_bytes())
        });
        held.next()
    };
    // The kernel reports the close a moment later.
    let since = std::time::Instant::now();
    while let Some(held) = held() {
        assert!(
            since.elapsed() < std::time::Duration::from_secs(10),
            "{held:?}"
        );
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let nonblocking = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(ground.at.join("a"));
    assert!(nonblocking.is_err());
}

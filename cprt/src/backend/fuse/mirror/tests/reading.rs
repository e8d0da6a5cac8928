//! Reads through mirrors: what is cached where, and what happens once the server has ended.

use crate::sys::testing::Mapped;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use nix::unistd::Whence;

use super::*;

const MIB: usize = 1 << 20;

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().copied().map(u64::from).sum()
}

#[test]
fn test_read_pages_are_cached_in_one_layer_only() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 8 * MIB + 123);
    let (below, above) = (ground.lower.join("a"), ground.at.join("a"));
    let all = (8 * MIB as u64) / 4096 + 1;
    let mirror = ground.mount(&plain());
    assert!(std::fs::read(&above).expect("to read") == bytes);
    assert_eq!(pages(&below), 0, "plain");
    assert!(all_but_few(pages(&above), all), "opening it drops nothing");
    drop(mirror);
    let mirror = ground.mount(&MirrorOptions::default());
    if mirror.mode() != Mode::Passthrough {
        return skip_part("this kernel has no passthrough");
    }
    assert!(std::fs::read(&above).expect("to read") == bytes);
    assert_eq!(pages(&above), 0, "passthrough");
    assert!(all_but_few(pages(&below), all));
}

#[test]
fn test_reading_leaves_the_time_of_access_below() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", MIB);
    let (below, above) = (ground.lower.join("a"), ground.at.join("a"));
    let long_ago = std::time::UNIX_EPOCH + Duration::from_hours(262_968);
    let accessed = || below.metadata().expect("it").accessed().expect("a time");
    let set = || {
        let times = std::fs::FileTimes::new().set_accessed(long_ago);
        let file = std::fs::OpenOptions::new().write(true).open(&below);
        file.expect("a file").set_times(times).expect("to set it");
        uncache(&below);
    };
    set();
    std::fs::read(&below).expect("to read");
    if accessed() == long_ago {
        return skip("this file system keeps no times of access");
    }
    let mirror = ground.mount(&plain());
    set();
    assert!(std::fs::read(&above).expect("to read") == bytes);
    assert_eq!(accessed(), long_ago, "plain");
    drop(mirror);
    let mirror = ground.mount(&MirrorOptions::default());
    if mirror.mode() == Mode::Passthrough {
        // The kernel opens the lower file itself, without O_NOATIME, as the table of backends says. If that changes,
        // the table has to change as well.
        set();
        assert!(std::fs::read(&above).expect("to read") == bytes);
        assert_ne!(accessed(), long_ago, "passed through");
    }
}

#[test]
fn test_holes_are_where_they_are_below() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", MIB);
    let below = ground.lower.join("a");
    let file = std::fs::OpenOptions::new().write(true).open(&below);
    let file = file.expect("a file");
    file.set_len(8 * MIB as u64).expect("a hole");
    file.write_all_at(&[7; 4096], 4 * MIB as u64)
        .expect("an island");
    file.sync_all().expect("on the disk");
    let sought = |path: &Path| {
        let (data, hole) = (Whence::SeekData, Whence::SeekHole);
        let file = File::open(path).expect("a file");
        let seek = |at: usize, whence| {
            let at = i64::try_from(at).expect("small");
            nix::unistd::lseek(&file, at, whence).map_err(|error| error as i32)
        };
        [
            seek(0, hole),
            seek(MIB, data),
            seek(4 * MIB, hole),
            seek(5 * MIB, data),
            seek(5 * MIB, hole),
            seek(9 * MIB, hole),
        ]
    };
    let expected = sought(&below);
    assert_eq!(expected[3], Err(libc::ENXIO), "{expected:?}");
    for options in modes() {
        let mirror = ground.mount(&options);
        assert_eq!(
            sought(&ground.at.join("a")),
            expected,
            "{:?}",
            mirror.mode()
        );
    }
}

#[test]
fn test_nowait_reads_are_refused_by_the_mirror() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 4096);
    let at_once = |path: &Path| {
        let file = File::open(path).expect("a file");
        std::fs::read(path).expect("to have it cached");
        crate::sys::testing::read_now(&file).map_err(|error| error.raw_os_error())
    };
    assert_eq!(at_once(&ground.lower.join("a")), Ok(1), "as below");
    for options in modes() {
        let mirror = ground.mount(&options);
        let above = at_once(&ground.at.join("a"));
        assert_eq!(above, Err(Some(libc::EOPNOTSUPP)), "{:?}", mirror.mode());
    }
}

#[test]
fn test_a_mapping_reads_the_same() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 5 * MIB + 777);
    for options in modes() {
        let _mirror = ground.mount(&options);
        let above = ground.at.join("a");
        let mut helper = Helper::start(Helper::command("map", &ground.lower, &above));
        assert_eq!(helper.hear(), sum(&bytes).to_string());
        drop(helper.child.stdin.take());
        let resident = helper.hear().parse().expect("a number");
        assert!(
            all_but_few(resident, (5 * MIB as u64) / 4096 + 1),
            "{resident}"
        );
    }
}

#[test]
fn test_buffered_and_direct_reads_match_the_lower_file() {
    use std::os::unix::fs::OpenOptionsExt as _;

    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 3 * MIB + 5);
    let above = ground.at.join("a");
    for options in modes() {
        let _mirror = ground.mount(&options);
        let file = File::open(&above).expect("a file");
        for (offset, length) in [
            (0, 1),
            (4095, 2),
            (MIB - 1, MIB),
            (3 * MIB, 100),
            (4 * MIB, 9),
        ] {
            let mut got = vec![0; length];
            let read = file.read_at(&mut got, offset as u64).expect("to read");
            let end = bytes.len().min(offset + length).max(offset);
            let expected = bytes.get(offset..end).unwrap_or_default();
            assert_eq!(&got[..read], expected, "{offset}");
        }
        let direct = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(&above)
            .expect("past the cache");
        let lower = lower::Lower::open_path(&above).expect("to open it");
        let mut scratch = lower::Scratch::default();
        let got = lower.read(&mut scratch, 8192, 70_000).expect("to read");
        assert!(got == &bytes[8192..78_192]);
        drop(direct);
    }
}

/// Checks that a read on a dead mount fails with the right error, and at once.
fn fails_at_once(what: &str, tried: impl FnOnce() -> io::Result<usize>) {
    let since = Instant::now();
    let error = tried().expect_err(what);
    assert!(
        matches!(
            error.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::EIO)
        ),
        "{what}: {error}"
    );
    // A read that the mount does not fail would never end.
    assert!(since.elapsed() < Duration::from_secs(10), "{what}");
}

#[test]
fn test_a_killed_plain_mirror_fails_at_once_and_can_be_mounted_again() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 16 * MIB);
    let above = ground.at.join("a");
    let (mut helper, _) = Helper::serve("plain", &ground);
    let held = File::open(&above).expect("a file");
    held.read_at(&mut [0; 4096], 0).expect("to read");
    helper.kill();
    fails_at_once("a read", || held.read_at(&mut [0; 4096], 12 * MIB as u64));
    fails_at_once("an open", || File::open(&above).map(|_| 0));
    let mirror = ground.mount(&plain());
    assert!(std::fs::read(&above).expect("to read") == bytes);
    drop(held);
    drop(mirror);
    assert!(!above.exists(), "no part of either is left");
}

#[test]
fn test_a_reader_that_waits_is_let_go_when_the_server_is_killed() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 4 * MIB);
    let above = ground.at.join("a");
    let (mut helper, _) = Helper::serve("plain", &ground);
    let held = File::open(&above).expect("a file");
    let pid = nix::unistd::Pid::from_raw(helper.child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::SIGSTOP).expect("to stop it");
    while !helper.is_stopped() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let reader = std::thread::spawn(move || held.read_at(&mut [0; 4096], 0));
    std::thread::sleep(Duration::from_millis(100));
    assert!(
        !reader.is_finished(),
        "it waits for a server that is stopped"
    );
    helper.kill();
    fails_at_once("the read", || reader.join().expect("the reader"));
}

#[test]
fn test_by_passthrough_readers_do_not_notice_that_the_server_is_killed() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    let bytes = ground.file("a", 16 * MIB);
    let above = ground.at.join("a");
    let (mut helper, mode) = Helper::serve("passthrough", &ground);
    if mode != "Passthrough" {
        return skip("this kernel has no passthrough");
    }
    let held = File::open(&above).expect("a file");
    let map = Mapped::new(&held).expect("to map it");
    helper.kill();
    let mut got = vec![0; bytes.len()];
    held.read_exact_at(&mut got, 0).expect("to read");
    assert!(got == bytes, "what is open is read on");
    uncache(&ground.lower.join("a"));
    assert!(map.bytes() == bytes, "and so is what is mapped");
    let (_again, _) = Helper::serve("passthrough", &ground);
    assert!(std::fs::read(&above).expect("to read") == bytes);
}

#[test]
fn test_unprivileged_mirror_is_plain_and_reports_why() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    // Root of a user namespace of its own may mount, and do nothing else.
    let inside = Helper::command("passthrough", &ground.lower, &ground.at);
    let mut command = Command::new("unshare");
    command.args(["-Urm", "--"]).arg(inside.get_program());
    command.args(inside.get_args());
    for (name, value) in inside.get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let probe = Command::new("unshare").args(["-Urm", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        return skip("there are no user namespaces here");
    }
    let mode = Helper::start(command).hear();
    assert!(mode.contains("CAP_SYS_ADMIN"), "{mode}");
}

#[test]
fn test_an_ordinary_user_mounts_by_the_helper() {
    use std::os::unix::process::CommandExt as _;

    if Command::new("fusermount3").arg("-V").output().is_err() {
        return skip("fusermount3 is not installed");
    }
    if !can_mount() {
        return;
    }
    // fusermount3 opens the device as its caller's user.
    if let Err(error) = test_support::own_fuse_device() {
        return skip(&format!(
            "/dev/fuse is for root, and cannot be shown to others: {error}"
        ));
    }
    let ground = Ground::new();
    let bytes = ground.file("a", MIB);
    std::os::unix::fs::chown(&ground.at, Some(65534), Some(65534)).expect("its own place");
    let start = || {
        let mut command = Helper::command("passthrough", &ground.lower, &ground.at);
        command.uid(65534).gid(65534);
        let mut helper = Helper::start(command);
        let mode = helper.hear();
        assert!(mode.contains("CAP_SYS_ADMIN"), "{mode}");
        helper
    };
    // The next mirror cleans up what a killed one leaves.
    start().kill();
    let mut helper = start();
    let mut cat = Command::new("cat");
    cat.arg(ground.at.join("a")).uid(65534).gid(65534);
    let output = cat.output().expect("cat");
    assert!(output.stdout == bytes);
    drop(helper.child.stdin.take());
    helper.child.wait().expect("it to end");
    assert!(!ground.at.join("a").exists(), "it has unmounted");
}

//! `warm`, `drop` and `verify` on files of this machine, and on a device that is written beneath its file system.

mod common;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Ran, ppcctl, run};
use maio::Extent;
use maio::template::{Group, Identity, Store, Template, TemplateKind, this_node};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use test_support::{Folder, TRUSTED, own_view, skip, undisturbed};

const MIB: usize = 1 << 20;
/// The user that owns nothing.
const NOBODY: u32 = 65534;

/// A model of two files on storage: the folder for temporary files may be in memory.
fn model(name: &str) -> Folder {
    let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
    folder.write("config.json", "{}");
    folder.write("sub/model.safetensors", content(8 * MIB));
    written(folder.path());
    folder
}

/// Bytes of which no two pages are alike.
fn content(size: usize) -> Vec<u8> {
    let words = (0_u64..).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
    words.flatten().take(size).collect()
}

/// Has everything below a folder written to its device.
fn written(folder: &Path) {
    let folder = File::open(folder).expect("a folder");
    nix::unistd::syncfs(&folder).expect("to write");
}

fn path(folder: &Folder) -> &str {
    folder.path().to_str().expect("plain")
}

/// Runs a command with `--json`; returns its exit status and what it printed.
fn told(arguments: &[&str]) -> (Option<i32>, Value) {
    let ran = Ran::of(ppcctl().args(arguments).arg("--json"));
    let value = serde_json::from_str(&ran.out);
    (
        ran.code,
        value.unwrap_or_else(|error| panic!("{error}: {ran:?}")),
    )
}

fn number(of: &Value, key: &str) -> u64 {
    of[key].as_u64().unwrap_or_else(|| panic!("{key}: {of}"))
}

#[test]
fn warm_caches_all_and_drop_nothing() {
    let model = model("residency-warm");
    let all = 8 * MIB as u64 + 2;
    let attempt = || {
        let (code, dropped) = told(&["drop", path(&model)]);
        assert_eq!(code, Some(0), "{dropped}");
        assert_eq!(number(&dropped, "cached_bytes"), 0);
        let (code, warm) = told(&["warm", path(&model)]);
        assert_eq!(code, Some(0), "{warm}");
        assert_eq!(warm["order"], "headers");
        assert_eq!((number(&warm, "files"), number(&warm, "bytes")), (2, all));
        // The files' headers have been read for their order.
        assert!(number(&warm, "cached_before_bytes") <= MIB as u64, "{warm}");
        assert_eq!(number(&warm, "cached_bytes"), all, "{warm}");
        let (code, dropped) = told(&["drop", path(&model)]);
        assert_eq!(code, Some(0), "{dropped}");
        number(&dropped, "cached_before_bytes")
    };
    assert_eq!(undisturbed(attempt, |&cached| cached == all), all);
    let ran = run(&["warm", "--limit", "1M", path(&model)]);
    assert!(
        ran.done()
            .contains("of 1 MiB in 2 files; 7 MiB is beyond --limit"),
        "{ran:?}"
    );
    assert_eq!(run(&["warm", "--quiet", path(&model)]).done(), "");
    // The kernel has fewer than that; a guest with two moves files between them.
    let nowhere = run(&["warm", "--node", "65535", path(&model)]);
    nowhere.failed(2, &["there is no such node", "/sys/devices/system/node"]);
}

#[test]
fn warm_follows_the_template_or_loads_all_files() {
    let model = model("residency-template");
    model.write("notes.txt", content(MIB));
    let store = model.path().join("store");
    let store = store.to_str().expect("plain");
    let warm = |id: &str| {
        let folder = model.path().join("sub");
        let folder = folder.to_str().expect("plain");
        run(&["warm", "--store", store, "--service-id", id, folder])
    };
    let none = warm("unknown");
    assert_eq!(none.code, Some(0), "{none:?}");
    assert!(
        none.err.contains("no template of unknown: all files"),
        "{none:?}"
    );

    // A template with the second half of one file, and no part of the other.
    let sub = model.path().join("sub");
    model.write("sub/other.bin", content(MIB));
    let identity = Identity::read(&sub, "model.safetensors").expect("it is there");
    let half = 4 * MIB as u64;
    let extent = Extent::of_bytes(0, &(half..2 * half)).expect("pages");
    let template = Template {
        kind: TemplateKind::Model,
        service: "known".to_owned(),
        node: this_node(),
        made_s: 0,
        loads: 1,
        files: vec![identity],
        groups: vec![Group::new(0, None, &[extent]).expect("a group")],
    };
    Store::at(store).save(&template).expect("to save");
    let ran = warm("known");
    assert!(
        ran.done()
            .contains("of 4 MiB in 1 files, by the service's template"),
        "{ran:?}"
    );
    let elsewhere = model.path().join("store");
    let elsewhere = elsewhere.to_str().expect("plain");
    let ran = run(&["warm", "--store", store, "--service-id", "known", elsewhere]);
    assert!(
        ran.err
            .contains("none of these files is in the template of known"),
        "{ran:?}"
    );
}

#[test]
fn mapped_or_locked_pages_stay_and_are_reported() {
    let model = model("residency-mapped");
    let file = model.path().join("sub/model.safetensors");
    let script = "import mmap, sys, ctypes\n\
                  f = open(sys.argv[1], 'rb')\n\
                  m = mmap.mmap(f.fileno(), 4 << 20, prot=mmap.PROT_READ)\n\
                  v = memoryview(m)\n\
                  s = sum(v[::4096])\n\
                  c = ctypes.CDLL(None, use_errno=True)\n\
                  c.mmap.restype = ctypes.c_void_p\n\
                  c.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]\n\
                  a = c.mmap(None, 1 << 20, 1, 1, f.fileno(), 0)\n\
                  c.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]\n\
                  print(c.mlock(a, 1 << 20), flush=True)\n\
                  sys.stdin.read()\n";
    let child = Command::new("python3")
        .args(["-c", script])
        .arg(&file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        return skip("there is no python3 to map a file");
    };
    let mut locked = [0];
    let out = child.stdout.as_mut().expect("a pipe");
    out.read_exact(&mut locked).expect("its answer");
    let (code, dropped) = told(&["drop", path(&model)]);
    let text = run(&["drop", path(&model)]);
    drop(child.stdin.take());
    child.wait().expect("it ends");
    assert_eq!(code, Some(12), "{dropped}");
    let stays = &dropped["staying"][0];
    let mapped = number(stays, "mapped");
    assert!((1..=4 * MIB as u64).contains(&mapped), "{stays}");
    assert_eq!(mapped, number(stays, "after"), "{stays}");
    assert_eq!(stays["processes"][0], child.id());
    if &locked == b"0" {
        assert_eq!(number(stays, "locked"), MIB as u64, "{stays}");
    }
    assert!(text.err.contains(&format!("by {}", child.id())), "{text:?}");
    let (code, dropped) = told(&["drop", path(&model)]);
    assert_eq!(code, Some(0), "{dropped}");
}

#[test]
fn dirty_pages_stay_and_are_reported() {
    let model = model("residency-dirty");
    // Where the device writes faster than pages are dropped, nothing stays.
    for _ in 0..20 {
        model.write("new", content(2 * MIB));
        let (code, dropped) = told(&["drop", path(&model)]);
        let dirty = dropped["staying"][0]["dirty"].as_u64();
        let stays = dirty.is_some_and(|bytes| bytes > 0);
        let stays_clean = dropped["staying"][0].is_object() && !stays;
        assert!(!stays_clean, "it has been written since: {dropped}");
        assert_eq!(code, Some(if stays { 12 } else { 0 }), "{dropped}");
    }
    written(model.path());
    assert_eq!(told(&["drop", path(&model)]).0, Some(0));
}

#[test]
fn dangling_missing_and_pseudo_files_are_reported() {
    let model = model("residency-unreadable");
    symlink("nowhere", model.path().join("link")).expect("a link");
    for command in ["warm", "drop", "verify"] {
        let ran = run(&[command, path(&model)]);
        let code = if command == "verify" { 14 } else { 1 };
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.err.contains("link: a dangling link"), "{ran:?}");
        let none = run(&[command, "/nowhere"]);
        none.failed(1, &["/nowhere", "No such file"]);
        let made_up = run(&[command, "/proc/version"]);
        made_up.failed(2, &["/proc/version is on a file system without storage"]);
    }
}

#[test]
fn non_owner_can_warm_but_verify_reports_not_told() {
    if !geteuid().is_root() {
        return skip("other users are for root; run it as root");
    }
    let model = model("residency-nobody");
    let open = fs::Permissions::from_mode(0o755);
    fs::set_permissions(model.path(), open).expect("ours");
    let as_nobody = |arguments: &[&str]| {
        let mut command = ppcctl();
        command
            .args(arguments)
            .arg("--json")
            .uid(NOBODY)
            .gid(NOBODY);
        Ran::of(&mut command)
    };
    assert_eq!(told(&["drop", path(&model)]).0, Some(0));
    let warm = as_nobody(&["warm", path(&model)]);
    if warm.out.is_empty() {
        return skip("another user does not reach the folder of the tests");
    }
    assert_eq!(warm.code, Some(0), "{warm:?}");
    let verify = as_nobody(&["verify", path(&model)]);
    assert_eq!(verify.code, Some(14), "{verify:?}");
    assert!(verify.out.contains("not-told"), "{verify:?}");
    let (_, dropped) = told(&["drop", path(&model)]);
    assert!(
        number(&dropped, "cached_before_bytes") > 7 * MIB as u64,
        "{dropped}"
    );
}

#[test]
fn warm_stopped_by_a_signal_reports_cached_bytes() {
    let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), "residency-signal");
    let file = folder.write("weights", content(64 * MIB));
    // Slow enough to be interrupted.
    let config = folder.write("cprt.toml", "[loader]\nbandwidth = \"4M\"\n");
    written(folder.path());
    assert_eq!(told(&["drop", path(&folder)]).0, Some(0));
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let child = ppcctl()
            .arg("--config")
            .arg(&config)
            .args(["--json", "warm"])
            .arg(&file)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it was built");
        sleep(Duration::from_secs(1));
        let since = Instant::now();
        let pid = i32::try_from(child.id()).expect("a number");
        kill(Pid::from_raw(pid), signal).expect("ours");
        let output = child.wait_with_output().expect("it ends");
        assert!(since.elapsed() < Duration::from_secs(5), "{output:?}");
        assert_eq!(output.status.code(), Some(code));
        let warm: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(warm["interrupted"], true);
        let cached = number(&warm, "cached_bytes");
        assert!((1..64 * MIB as u64).contains(&cached), "{warm}");
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut digits = String::new();
    for byte in Sha256::digest(bytes) {
        write!(digits, "{byte:02x}").expect("a string");
    }
    digits
}

#[test]
fn hashes_of_lists_and_of_names_are_checked() {
    let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), "residency-hub");
    let (good, bad) = (content(5 * MIB + 7), content(3 * MIB));
    let blobs = "models--o--m/blobs";
    folder.write(&format!("{blobs}/{}", hex(&good)), &good);
    let mut changed = bad.clone();
    changed[2 * MIB + 5] ^= 1;
    folder.write(&format!("{blobs}/{}", hex(&bad)), changed);
    folder.write(&format!("{blobs}/{}", &hex(b"")[..40]), "small");
    let snapshot = folder.path().join("models--o--m/snapshots/1");
    fs::create_dir_all(&snapshot).expect("a folder");
    for (name, bytes) in [("good", &good), ("bad", &bad)] {
        let target = format!("../../blobs/{}", hex(bytes));
        symlink(target, snapshot.join(name)).expect("a link");
    }
    written(folder.path());
    let (code, told_of) = told(&["verify", snapshot.to_str().expect("plain")]);
    assert_eq!(code, Some(13), "{told_of}");
    assert_eq!(number(&told_of, "hashed_files"), 2);
    let damaged = told_of["damaged"].as_array().expect("a list");
    assert_eq!(damaged.len(), 1, "{told_of}");
    assert!(
        damaged[0]["path"]
            .as_str()
            .is_some_and(|path| path.ends_with("/bad"))
    );
    assert_eq!(damaged[0]["hash_right"], false);
    let good_one = snapshot.join("good");
    let ran = run(&["verify", good_one.to_str().expect("plain")]);
    assert!(ran.done().contains("nothing is wrong"), "{ran:?}");

    let list = format!("{}  snapshots/1/good\n{}  gone\n", hex(&good), hex(b""));
    let list = folder.write("models--o--m/SHA256SUMS", list);
    let list = list.to_str().expect("plain");
    let (code, told_of) = told(&[
        "verify",
        "--hashes",
        list,
        snapshot.to_str().expect("plain"),
    ]);
    assert_eq!(code, Some(13), "what is missing is elsewhere: {told_of}");
    fs::remove_file(snapshot.join("bad")).expect("ours");
    let hub = folder.path().join("models--o--m");
    fs::remove_file(hub.join("blobs").join(hex(&bad))).expect("ours");
    let ran = run(&["verify", "--hashes", list, hub.to_str().expect("plain")]);
    assert_eq!(ran.code, Some(14), "{ran:?}");
    assert!(ran.out.contains("gone: listed, but missing"), "{ran:?}");
    fs::write(list, "nonsense\n").expect("ours");
    run(&["verify", "--hashes", list, path(&folder)]).failed(1, &["SHA256SUMS:1: neither"]);
}

/// A memory cgroup with a limit, which is removed in the end.
struct Tight {
    folder: PathBuf,
}

impl Tight {
    fn new(name: &str, limit: u64) -> Result<Self, String> {
        if !geteuid().is_root() {
            return Err("memory cgroups are for root; run it as root".to_owned());
        }
        let root = Path::new("/sys/fs/cgroup");
        let old = root.join("memory");
        let (root, knob) = if old.join("memory.limit_in_bytes").exists() {
            (old.as_path(), "memory.limit_in_bytes")
        } else {
            (root, "memory.max")
        };
        let folder = root.join(format!("{name}-{}", std::process::id()));
        let unusable = |error: std::io::Error| format!("no memory cgroup can be made: {error}");
        fs::create_dir(&folder).map_err(unusable)?;
        let group = Self { folder };
        fs::write(group.folder.join(knob), limit.to_string()).map_err(unusable)?;
        Ok(group)
    }

    /// Runs ppcctl in it.
    fn run(&self, arguments: &[&str]) -> Ran {
        let enter = "echo $$ > \"$1\"; shift; exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", enter, "sh"]);
        command.arg(self.folder.join("cgroup.procs"));
        command.arg(ppcctl().get_program()).args(arguments);
        Ran::of(&mut command)
    }

    /// How often its memory reached the limit, so that the kernel had to reclaim some.
    fn times_full(&self) -> u64 {
        let read = |name| fs::read_to_string(self.folder.join(name));
        let number = |text: &str| text.trim().parse().expect("a number");
        if let Ok(count) = read("memory.failcnt") {
            return number(&count);
        }
        let events = read("memory.events").expect("a memory cgroup");
        let full = events.lines().find_map(|line| line.strip_prefix("max "));
        number(full.expect("the count"))
    }
}

impl Drop for Tight {
    fn drop(&mut self) {
        // A process that has ended leaves its group a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn loads_end_with_the_memory_of_the_cgroup() {
    const LIMIT: u64 = 64 << 20;
    let group = match Tight::new("ppcctl-warm", LIMIT) {
        Ok(group) => group,
        Err(why) => return skip(&why),
    };
    let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), "residency-memory");
    folder.write("weights", content(128 * MIB));
    written(folder.path());
    assert_eq!(told(&["drop", path(&folder)]).0, Some(0));
    let ran = group.run(&["--json", "warm", path(&folder)]);
    let warm: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(ran.code, Some(12), "{ran:?}");
    assert_eq!(warm["lacked_memory"], true, "{warm}");
    assert_eq!(number(&warm, "memory_limit"), LIMIT);
    assert!(number(&warm, "loaded_bytes") < LIMIT, "{warm}");
    let cached = number(&warm, "cached_bytes");
    assert!((LIMIT / 2..LIMIT).contains(&cached), "{warm}");
    assert_eq!(group.times_full(), 0, "the kernel reclaims nothing: {warm}");
    assert_eq!(told(&["drop", path(&folder)]).0, Some(0));
    let limit = (LIMIT / 2).to_string();
    let ran = group.run(&["warm", "--limit", &limit, path(&folder)]);
    assert!(ran.done().contains("32 MiB loaded"), "{ran:?}");
}

/// A file system on a loop device, unmounted and detached in the end. Only this thread and its children see the mount.
struct Disk {
    image: PathBuf,
    device: String,
    at: PathBuf,
    _folder: Folder,
}

impl Disk {
    /// By the program that makes the file system, with its arguments, and with options for the mount.
    fn new(name: &str, make: &[&str], options: &str) -> Result<Self, String> {
        if !geteuid().is_root() {
            return Err("mounting is for root".to_owned());
        }
        let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        own_view(folder.path()).map_err(|error| error.to_string())?;
        let image = Path::new(TRUSTED).join("image");
        let file = File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(128 << 20).map_err(|error| error.to_string())?;
        done(Command::new(make[0]).args(&make[1..]).arg(&image))?;
        let device = done(
            Command::new("losetup")
                .args(["--find", "--show"])
                .arg(&image),
        )?;
        let at = Path::new(TRUSTED).join("mounted");
        fs::create_dir(&at).map_err(|error| error.to_string())?;
        let disk = Self {
            image,
            device,
            at,
            _folder: folder,
        };
        let mut mount = Command::new("mount");
        mount.args(["-o", options]).arg(&disk.device);
        done(mount.arg(&disk.at))?;
        Ok(disk)
    }

    /// Changes a byte of the image: of the device, beneath the file system. The bytes around it say where it is.
    fn damage(&self, around: &[u8], at: usize) {
        let image = File::options().read(true).write(true).open(&self.image);
        let image = image.expect("ours");
        let mut all = Vec::new();
        (&image).read_to_end(&mut all).expect("to read");
        let found = all.windows(around.len()).position(|it| it == around);
        let place = found.expect("it is on the device") + at;
        image
            .write_all_at(&[!all[place]], place as u64)
            .expect("to write");
        image.sync_all().expect("to write");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.at).status();
        let _ = Command::new("losetup")
            .arg("--detach")
            .arg(&self.device)
            .status();
    }
}

fn done(command: &mut Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn a_device_that_was_written_beneath_its_file_system_is_found() {
    let make = ["mkfs.ext4", "-q", "-F", "-b", "4096"];
    let disk = match Disk::new("residency-disk", &make, "rw") {
        Ok(disk) => disk,
        Err(why) => return skip(&why),
    };
    let (bytes, page, start) = (content(6 * MIB), 4096, 3 * MIB);
    let file = disk.at.join("model.safetensors");
    let at = disk.at.to_str().expect("plain");
    let list = disk.at.join("SUMS");
    fs::write(&list, format!("{}  model.safetensors\n", hex(&bytes))).expect("to write");
    let list = list.to_str().expect("plain");
    fs::write(disk.at.join("other"), content(100)).expect("to write");

    let attempt = || {
        fs::write(&file, &bytes).expect("to write");
        written(&disk.at);
        assert_eq!(told(&["drop", at]).0, Some(0));
        assert_eq!(told(&["warm", at]).0, Some(0));
        let good = told(&["verify", at]);
        // The 1000th byte of a page, and the page that follows it.
        disk.damage(&bytes[start..start + page], 1000);
        disk.damage(&bytes[start + page..start + 2 * page], 0);
        (
            good,
            told(&["verify", at]),
            run(&["verify", "--hashes", list, at]),
        )
    };
    // A damaged page that the machine reclaims is read again, and then the cache agrees with the device.
    let is_found = |(_, (_, bad), ran): &(_, (_, Value), Ran)| {
        bad["damaged"][0]["differs"]["pages"] == 2 && ran.out.contains("the right contents")
    };
    let ((code, good), (bad_code, bad), ran) = undisturbed(attempt, is_found);
    assert_eq!(code, Some(0), "{good}");
    assert!(number(&good, "compared_bytes") > 5 * MIB as u64, "{good}");
    assert_eq!(bad_code, Some(13), "{bad}");
    let damaged = bad["damaged"].as_array().expect("a list");
    assert_eq!(damaged.len(), 1, "{bad}");
    let differs = &damaged[0]["differs"];
    assert_eq!(number(differs, "offset"), (start + 1000) as u64, "{bad}");
    assert_eq!(number(differs, "length"), (2 * page - 1000) as u64, "{bad}");
    assert_eq!(
        (number(differs, "extents"), number(differs, "pages")),
        (1, 2)
    );
    // The cache still has what was written, and the hash proves it.
    assert_eq!(ran.code, Some(13), "{ran:?}");
    assert!(
        ran.out.contains("the page cache has the right contents"),
        "{ran:?}"
    );

    is_told_by_its_hash(at, list);
}

/// Read again, the cache agrees with the damaged device; only the hash tells.
fn is_told_by_its_hash(at: &str, list: &str) {
    assert_eq!(told(&["drop", at]).0, Some(0));
    assert_eq!(told(&["warm", at]).0, Some(0));
    assert_eq!(told(&["verify", at]).0, Some(0));
    let ran = run(&["verify", "--hashes", list, at]);
    assert_eq!(ran.code, Some(13), "{ran:?}");
    assert!(
        ran.out.contains("its SHA-256 differs from the known hash"),
        "{ran:?}"
    );
}

#[test]
fn a_file_system_that_answers_from_memory_is_not_believed() {
    let make = ["mkfs.btrfs", "-q"];
    let disk = match Disk::new("residency-packed", &make, "compress-force=zstd") {
        Ok(disk) => disk,
        Err(why) => return skip(&why),
    };
    let bytes = vec![b'a'; 4 * MIB];
    let file = disk.at.join("packed");
    fs::write(&file, &bytes).expect("to write");
    written(&disk.at);
    let at = disk.at.to_str().expect("plain");
    assert_eq!(told(&["warm", at]).0, Some(0));
    // Read by O_DIRECT, compressed files come from the page cache.
    let (code, told_of) = told(&["verify", at]);
    assert_eq!(code, Some(14), "{told_of}");
    assert_eq!(told_of["unchecked"][0]["why"], "from-memory");
    assert_eq!(number(&told_of, "compared_bytes"), 0);
    let list = disk.at.join("SUMS");
    fs::write(&list, format!("{}  packed\n", hex(&bytes))).expect("to write");
    let (file, list) = (file.to_str().expect("plain"), list.to_str().expect("plain"));
    let ran = run(&["verify", "--hashes", list, file]);
    assert!(ran.done().contains("nothing is wrong"), "{ran:?}");
}

//! Tests with children of this process, on the machine's file system. A test that the kernel or this process's rights
//! do not allow says why and is skipped.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::*;
use crate::machine::files::is_of_storage;
use crate::sys::testing::skip;

const MIB: u64 = 1 << 20;
/// How long to wait for anything, on a machine with much else to do.
const LATEST: Duration = Duration::from_secs(20);

/// A directory that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("cprt-start-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(&root).expect("a directory");
        Self(root.canonicalize().expect("it is there"))
    }

    fn file(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, vec![7; 1 << 20]).expect("to write");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A start of this process's children; `None` where that is not possible, after saying why.
fn start() -> Option<Start> {
    let kind = nix::sys::statfs::statfs(&std::env::temp_dir()).expect("a file system");
    if !is_of_storage(kind.filesystem_type()) {
        skip("the directory for temporary files is in memory");
        return None;
    }
    match Start::of_children(std::process::id()) {
        Ok(start) => Some(start),
        Err(error) => {
            skip(&crate::error::chain(&error));
            None
        }
    }
}

fn load(start: &Start, path: &Path, length: u64) -> Result<Loaded, Fault> {
    let file = start.open(path).expect("a number");
    let span = Span {
        file,
        offset: 0,
        length,
    };
    start.load(span, How::default())
}

fn cat(path: &Path) -> Command {
    let mut cat = Command::new("cat");
    cat.arg(path).stdout(Stdio::null());
    cat
}

/// The number of bytes touched of each file, by path, once each of these files has as many as given or time is up.
fn touched(start: &Start, of: &[(&Path, u64)]) -> HashMap<PathBuf, u64> {
    let until = Instant::now() + LATEST;
    let (mut all, mut events) = (HashMap::new(), Vec::new());
    let there = |all: &HashMap<PathBuf, u64>| {
        of.iter()
            .all(|&(path, least)| all.get(path).is_some_and(|&it| it >= least))
    };
    while !there(&all) && Instant::now() < until {
        start.events(&mut events).expect("events");
        for event in events.drain(..).filter(|event| event.kind == Kind::Touch) {
            let path = Path::new("/").join(start.path(event.file).expect("a path"));
            *all.entry(path).or_default() += event.length;
        }
    }
    all
}

#[test]
fn children_and_theirs_are_heard_and_no_others() {
    let Some(start) = start() else { return };
    drop(start);
    let folder = Folder::new("heard");
    let [by_child, by_theirs, by_others] =
        ["child", "theirs", "others"].map(|name| folder.file(name));
    // This shell exists before the start, so its children do not belong to the start.
    let script = format!("read line; cat '{}' > /dev/null", by_others.display());
    let other = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .spawn();
    let mut other = other.expect("a shell");
    let start = Start::of_children(std::process::id()).expect("once more");
    start.want(Kind::Touch.into(), 0).expect("to hear");
    let mut input = other.stdin.take().expect("its input");
    input.write_all(b"go\n").expect("to write");
    assert!(other.wait().expect("its end").success());
    assert!(cat(&by_child).status().expect("cat").success());
    let script = format!("cat '{}' > /dev/null; true", by_theirs.display());
    let shell = Command::new("sh").args(["-c", &script]).status();
    assert!(shell.expect("a shell").success());
    let all = touched(&start, &[(&by_child, MIB), (&by_theirs, MIB)]);
    assert!(
        all.get(&by_child) >= Some(&MIB) && all.get(&by_theirs) >= Some(&MIB),
        "{all:?}"
    );
    assert_eq!(all.get(&by_others), None);
}

#[test]
fn a_process_that_is_there_already_is_followed_until_it_ends() {
    let Some(start) = start() else { return };
    drop(start);
    let start = match Start::standby() {
        Ok(start) => start,
        Err(error) => return skip(&crate::error::chain(&error)),
    };
    let folder = Folder::new("followed");
    let [open, later] = ["open", "later"].map(|name| folder.file(name));
    let script = format!(
        "read line; cat '{}' > /dev/null; read line",
        later.display()
    );
    let shell = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .spawn();
    let mut shell = shell.expect("a shell");
    start.follow(shell.id()).expect("it is there");
    assert!(
        cat(&open).status().expect("cat").success(),
        "which is not its child"
    );
    let mut input = shell.stdin.take().expect("its input");
    input.write_all(b"go\n").expect("to write");
    let program = std::fs::canonicalize("/bin/sh").expect("a shell");
    let all = touched(&start, &[(&later, MIB), (&program, 1)]);
    assert!(all.get(&later) >= Some(&MIB), "{all:?}");
    assert!(all.get(&program) >= Some(&1), "what it had before: {all:?}");
    assert_eq!(all.get(&open), None);
    let mut events = Vec::new();
    assert_eq!(start.events(&mut events).expect("events"), Flow::On);
    drop(input);
    shell.wait().expect("its end");
    let until = Instant::now() + LATEST;
    while start.events(&mut events).expect("events") == Flow::On {
        assert!(Instant::now() < until, "it has ended: {events:?}");
        // The end is not told before these have been taken.
        events.clear();
    }
}

#[test]
fn reads_are_not_reported_once_no_kind_is_wanted() {
    let Some(start) = start() else { return };
    let folder = Folder::new("wanted");
    let file = folder.file("file");
    start.want(Kind::Touch.into(), 0).expect("to hear");
    start.want(Kinds::default(), 0).expect("to hear no more");
    assert!(cat(&file).status().expect("cat").success());
    let mut events = Vec::new();
    start.interrupt();
    start.events(&mut events).expect("events");
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn observed_mount_can_be_unmounted_after_the_end() {
    let Some(start) = start() else { return };
    let folder = Folder::new("unmounted");
    let mount = |from: &Path| {
        let flags = nix::mount::MsFlags::MS_BIND;
        let nothing = None::<&str>;
        nix::mount::mount(Some(from), &folder.0, nothing, flags, nothing)
    };
    if let Err(error) = mount(&folder.0) {
        return skip(&format!("mounting: {error}"));
    }
    let file = folder.file("file");
    start.want(Kind::Touch.into(), 0).expect("to hear");
    assert!(cat(&file).status().expect("cat").success());
    let unmount = || nix::mount::umount(&folder.0);
    assert_eq!(
        unmount(),
        Err(nix::errno::Errno::EBUSY),
        "it waits for the report"
    );
    start.end();
    // Other tests that receive opens keep the mount busy, too, until they end.
    let until = Instant::now() + LATEST;
    while unmount().is_err() {
        assert!(Instant::now() < until, "it is kept");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn directories_that_are_listed_are_heard_once_and_not_those_of_others() {
    let Some(start) = start() else { return };
    let [listed, other] = ["listed", "unlisted"].map(Folder::new);
    listed.file("file");
    start.want(Kind::Touch.into(), 0).expect("to hear");
    let _ = std::fs::read_dir(&other.0).expect("to list").count();
    // An interpreter looks at a directory again and again.
    let mut list = Command::new("ls");
    list.args(["-l".as_ref(), listed.0.as_os_str(), listed.0.as_os_str()]);
    assert!(list.stdout(Stdio::null()).status().expect("ls").success());
    let all = touched(&start, &[(&listed.0, 1)]);
    assert_eq!(all.get(&listed.0), Some(&FOLDER), "{all:?}");
    assert_eq!(all.get(&other.0), None);
    let named = start.open(&listed.0.join("")).expect("a number");
    let path = start.path(named).expect("its path");
    assert!(is_folder(&path), "{}", path.display());
}

#[test]
fn a_directory_is_loaded_with_all_that_is_in_it_and_nothing_in_it_is_opened() {
    let Some(start) = start() else { return };
    let folder = Folder::new("names");
    folder.file("file");
    std::os::unix::fs::symlink("nowhere", folder.0.join("link")).expect("a link");
    // Opened, it would hold the load up.
    nix::unistd::mkfifo(&folder.0.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let load = |path: &Path| load(&start, path, FOLDER);
    let loaded = load(&folder.0.join("")).expect("it loads");
    assert_eq!((loaded.done, loaded.fresh), (FOLDER, 0));
    std::os::unix::fs::symlink(".", folder.0.join("circle")).expect("a link");
    for path in [
        folder.0.join("circle/"),
        folder.0.join("file/"),
        folder.0.join("nothing/"),
        PathBuf::from("/proc/"),
        PathBuf::from("/sys/kernel/"),
        PathBuf::from("/dev/"),
        PathBuf::from("../../etc/"),
    ] {
        assert!(load(&path).is_err(), "{}", path.display());
    }
}

#[test]
fn only_regular_files_of_file_systems_with_storage_are_loaded() {
    let Some(start) = start() else { return };
    let folder = Folder::new("loaded");
    let real = folder.file("real");
    std::os::unix::fs::symlink(&real, folder.0.join("link")).expect("a link");
    nix::unistd::mkfifo(&folder.0.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("a FIFO");
    let load = |path: &Path| load(&start, path, MIB);
    assert_eq!(load(&real).expect("it loads").done, MIB);
    for path in [
        folder.0.join("link"),
        folder.0.join("fifo"),
        folder.0.join("nothing"),
        folder.0.clone(),
        PathBuf::from("/proc/kmsg"),
        PathBuf::from("/proc/self/maps"),
        PathBuf::from("/dev/zero"),
        PathBuf::from("/sys/kernel/mm/transparent_hugepage/enabled"),
        PathBuf::from("../../etc/passwd"),
    ] {
        assert!(load(&path).is_err(), "{}", path.display());
    }
}

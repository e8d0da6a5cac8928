//! Compares mirrors on this host with the bare directory.
//!
//! The tests mount, so they take root, and say so where they cannot. What must not happen in the
//! process that serves, or has to be killed, runs in a second process of this test's program
//! (`helper`).

use crate::sys::cache::cachestat;
use crate::sys::testing::Mapped;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::*;
use crate::sys::testing::{all_but_few, lets_go, skip, skip_part};

mod reading;
mod showing;

static NAMES: AtomicU64 = AtomicU64::new(0);

/// Whether this process can mount FUSE here, and the kernel has what these tests check by.
pub(crate) fn can_mount() -> bool {
    let directory = std::env::temp_dir();
    // Unshares only a thread that ends at once.
    let may_mount = || {
        let own = nix::sched::CloneFlags::CLONE_NEWNS;
        std::thread::spawn(move || nix::sched::unshare(own).is_ok())
            .join()
            .unwrap_or(false)
    };
    let looks = || {
        let this = File::open(std::env::current_exe().expect("this")).expect("it");
        let looked = cachestat(&this, &(0..0));
        !looked.is_err_and(|error| error.raw_os_error() == Some(libc::ENOSYS))
    };
    let needs = [
        (
            nix::unistd::geteuid().is_root() && may_mount(),
            "mounting takes root",
        ),
        (File::open("/dev/fuse").is_ok(), "there is no /dev/fuse"),
        (
            looks(),
            "this kernel has no cachestat, which came with Linux 6.5",
        ),
        (
            lets_go(&directory),
            "the directory for temporary files keeps all pages",
        ),
    ];
    let lacking = needs.into_iter().find(|(there, _)| !there);
    if let Some((_, why)) = lacking {
        skip(why);
    }
    lacking.is_none()
}

/// A lower directory and a directory to mount it at, both removed at the end.
pub(crate) struct Ground {
    pub(crate) lower: PathBuf,
    pub(crate) at: PathBuf,
}

impl Ground {
    pub(crate) fn new() -> Self {
        let number = NAMES.fetch_add(1, Relaxed);
        let name = format!("cprt-mirror-{}-{number}", std::process::id());
        let top = std::env::temp_dir().join(name);
        let ground = Self {
            lower: top.join("lower"),
            at: top.join("at"),
        };
        std::fs::create_dir_all(&ground.lower).expect("a directory");
        std::fs::create_dir_all(&ground.at).expect("a directory");
        ground
    }

    /// Makes a file of `length` bytes that is on the disk and not cached.
    pub(crate) fn file(&self, name: &str, length: usize) -> Vec<u8> {
        let bytes = pattern(length, 1);
        let path = self.lower.join(name);
        std::fs::write(&path, &bytes).expect("a file");
        uncache(&path);
        bytes
    }

    pub(crate) fn mount(&self, options: &MirrorOptions) -> Mirror {
        Mirror::mount(&self.lower, &self.at, options, None).expect("to mount")
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        for path in [&self.at, &self.lower] {
            let _ = mounting::clear_dead(path);
        }
        if let Some(top) = self.lower.parent() {
            let _ = std::fs::remove_dir_all(top);
        }
    }
}

pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        bytes.extend_from_slice(&(state >> 11).to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Writes a file out to the disk and drops its pages.
pub(crate) fn uncache(path: &Path) {
    let file = File::open(path).expect("a file");
    file.sync_all().expect("to write it out");
    let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
    nix::fcntl::posix_fadvise(&file, 0, 0, advice).expect("to drop its pages");
}

/// The number of cached pages of a file.
pub(crate) fn pages(path: &Path) -> u64 {
    let file = File::open(path).expect("a file");
    cachestat(&file, &(0..0)).expect("cachestat")
}

pub(crate) fn plain() -> MirrorOptions {
    MirrorOptions {
        passthrough: false,
        ..MirrorOptions::default()
    }
}

/// Both modes, as far as this kernel has them.
fn modes() -> Vec<MirrorOptions> {
    vec![MirrorOptions::default(), plain()]
}

/// A second process of this program, as one of the helpers below.
pub(crate) struct Helper {
    child: Child,
    pub(crate) said: BufReader<std::process::ChildStdout>,
}

impl Helper {
    fn command(what: &str, lower: &Path, at: &Path) -> Command {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .args([
                "--exact",
                "backend::fuse::mirror::tests::helper",
                "--ignored",
                "--nocapture",
            ])
            .env("CPRT_HELPER", what)
            .env("CPRT_LOWER", lower)
            .env("CPRT_AT", at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("a helper");
        let said = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, said }
    }

    /// Starts a helper that serves a mirror; returns also the mirror's mode.
    fn serve(what: &str, ground: &Ground) -> (Self, String) {
        let mut helper = Self::start(Self::command(what, &ground.lower, &ground.at));
        let mode = helper.hear();
        (helper, mode)
    }

    /// Starts a helper that maps a file and prints the sum of its bytes.
    pub(crate) fn mapping(path: &Path) -> Self {
        Self::start(Self::command("map", path, path))
    }

    /// The next line of the helper, without those of the test harness.
    pub(crate) fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.said.read_line(&mut line).expect("to hear the helper");
            assert!(read > 0, "the helper has ended");
            if let Some((_, word)) = line.split_once("HELPER ") {
                return word.trim().to_owned();
            }
        }
    }

    /// Whether all of its threads are stopped.
    fn is_stopped(&self) -> bool {
        let tasks = format!("/proc/{}/task", self.child.id());
        let mut tasks = std::fs::read_dir(tasks).expect("its threads");
        tasks.all(|task| {
            let path = task.expect("a thread").path().join("status");
            std::fs::read_to_string(path).is_ok_and(|text| text.contains("State:\tT"))
        })
    }

    fn kill(&mut self) {
        self.child.kill().expect("to kill it");
        self.child.wait().expect("it to end");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What other processes do for the tests.
#[test]
#[ignore = "only as a helper of others"]
fn helper() {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let (Some(lower), Some(at)) = (variable("CPRT_LOWER"), variable("CPRT_AT")) else {
        return;
    };
    let what = std::env::var("CPRT_HELPER").expect("what to do");
    match what.as_str() {
        "plain" | "passthrough" => {
            let options = if what == "plain" {
                plain()
            } else {
                MirrorOptions::default()
            };
            let mirror = Mirror::mount(&lower, &at, &options, None).expect("to mount");
            println!("HELPER {:?}", mirror.mode());
            let _ = std::io::stdin().read(&mut [0]);
        }
        "map" => {
            let file = File::open(&at).expect("a file");
            let map = Mapped::new(&file);
            let map = map.expect("to map it");
            let sum: u64 = map.bytes().iter().copied().map(u64::from).sum();
            println!("HELPER {sum}");
            // The file stays mapped until it is unmapped explicitly.
            let _ = std::io::stdin().read(&mut [0]);
            println!("HELPER {}", map.resident().expect("mincore"));
        }
        other => panic!("no such helper: {other}"),
    }
}

#[test]
fn plain_mode_states_its_reason() {
    let never = || -> io::Result<()> { panic!("not to be asked") };
    let refused = |errno| move || Err(io::Error::from_raw_os_error(errno));
    assert_eq!(mode(true, true, || Ok(())), Mode::Passthrough);
    for (got, word) in [
        (mode(false, true, never), "off in the settings"),
        (mode(true, false, never), "6.9"),
        (mode(true, true, refused(libc::EPERM)), "CAP_SYS_ADMIN"),
        (mode(true, true, refused(libc::ELOOP)), "refuses"),
    ] {
        assert!(
            matches!(&got, Mode::Plain(why) if why.contains(word)),
            "{got:?}"
        );
    }
}

/// A listener that only counts.
#[derive(Default)]
struct Ear {
    opened: AtomicU64,
    closed: AtomicU64,
    missed: AtomicU64,
    ended: AtomicU64,
}

impl Listener for Ear {
    fn opened(&self, _: u64, _: u64, _: u32, _: bool) {
        self.opened.fetch_add(1, Relaxed);
    }

    fn closed(&self, _: u64, _: u32) {
        self.closed.fetch_add(1, Relaxed);
    }

    fn missed(&self, _: u64, _: u64, length: u64, _: u32, _: bool) {
        self.missed.fetch_add(length, Relaxed);
    }

    fn dropped(&self, _: u64) {}

    fn ended(&self) {
        self.ended.fetch_add(1, Relaxed);
    }
}

#[test]
fn test_a_listener_hears_opens_misses_and_the_end() {
    if !can_mount() {
        return;
    }
    let ground = Ground::new();
    ground.file("a", 1 << 20);
    for (options, misses) in [(MirrorOptions::default(), false), (plain(), true)] {
        let ear = Arc::new(Ear::default());
        let listener = Arc::clone(&ear) as Arc<dyn Listener>;
        let mirror = Mirror::mount(&ground.lower, &ground.at, &options, Some(listener));
        let mirror = mirror.expect("to mount");
        let through = mirror.mode() == Mode::Passthrough;
        std::fs::read(ground.at.join("a")).expect("to read");
        mirror.unmount();
        assert_eq!(ear.opened.load(Relaxed), 1);
        // Another test may have copied this mount into its own namespace for a while.
        assert!(mirror.core().ended(std::time::Duration::from_secs(20)));
        assert_eq!(ear.ended.load(Relaxed), 1);
        let missed = ear.missed.load(Relaxed);
        if through {
            assert_eq!(missed, 0, "data came to us");
        } else {
            assert!(missed >= 1 << 20, "{missed}");
        }
        if !misses && !through {
            skip_part(&format!("no passthrough: {:?}", mirror.mode()));
        }
        assert!(
            std::fs::read_dir(&ground.at)
                .expect("the bare place")
                .next()
                .is_none()
        );
    }
}

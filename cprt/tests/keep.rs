//! Sets of files that a real daemon keeps: what the page cache has of them, even if the daemon dies.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use cprt::control::client::Client;
use cprt::control::keep::{KeepSet, KeepState, KeepStatus};
use cprt::residency::{Cache, find};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::{Folder, drop_cached, holds, right, same};

/// How long to wait for anything, on a machine with much else to do.
const LATEST: Duration = Duration::from_mins(1);
/// The size of each file.
const SIZE: u64 = 2 << 20;

/// A daemon of one's own, and files on storage.
struct Ground {
    /// A folder for the socket, whose path has to be short.
    place: Folder,
    folder: Folder,
    config: PathBuf,
    daemon: Child,
}

impl Ground {
    fn new(name: &str, config: impl Fn(&Path) -> String) -> Self {
        let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        for file in ["m/1", "m/2", "n/1"] {
            let bytes = vec![7; usize::try_from(SIZE).expect("small")];
            drop_cached(&folder.write(file, bytes)).expect("to drop it");
        }
        let place = Folder::new(name);
        let own = format!(
            "socket = '{0}/s'\nstate = '{0}/state.json'\nlearnt = '{0}/learnt.json'\nkept = '{0}/kept.json'\n\
             [memory]\nthreshold = 100\npressure = 100\n{1}",
            place.path().display(),
            config(folder.path())
        );
        let config = place.write("cprt.toml", own);
        let daemon = start(&config);
        Self {
            place,
            folder,
            config,
            daemon,
        }
    }

    fn client(&self) -> Client {
        Client::new(self.place.path().join("s"))
    }

    fn signal(&self, signal: Signal) {
        let daemon = Pid::from_raw(self.daemon.id().try_into().expect("a process"));
        kill(daemon, signal).expect("it is there");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn set(&self, path: &str) -> KeepSet {
        KeepSet {
            paths: vec![self.path(path)],
            ..KeepSet::default()
        }
    }

    fn cached(&self, path: &str) -> u64 {
        let found = find(&[self.path(path)]).expect("it is there").files;
        let cache = Cache::new().expect("a cache");
        let cached = found.iter().map(|file| {
            let opened = file.open().expect("ours");
            cache.resident(&opened, &(0..file.size)).expect("ours")
        });
        cached.sum()
    }

    /// Waits until a set is in this state.
    fn wait(&self, name: &str, state: KeepState) -> Result<KeepStatus, String> {
        let until = Instant::now() + LATEST;
        loop {
            let kept = self
                .client()
                .status(None)
                .map(|it| it.kept)
                .unwrap_or_default();
            if let Some(set) = kept.iter().find(|it| it.name == name && it.state == state) {
                return Ok(set.clone());
            }
            if Instant::now() > until {
                return Err(format!("{name} is not {state}: {kept:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.signal(Signal::SIGTERM);
        let _ = self.daemon.wait();
    }
}

fn start(config: &Path) -> Child {
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_cprtd"));
    daemon
        .arg("--config")
        .arg(config)
        .spawn()
        .expect("it was built")
}

#[test]
fn kept_set_survives_a_killed_daemon_until_removed() {
    let attempt = || -> Result<(), String> {
        let mut ground = Ground::new("keep-outlives", |_| String::new());
        let until = Instant::now() + LATEST;
        while ground.client().keep("x", &ground.set("m")).is_err() {
            holds!(Instant::now() < until, "the daemon does not come");
            std::thread::sleep(Duration::from_millis(20));
        }
        let status = ground.wait("x", KeepState::Kept)?;
        same!((status.files, status.cached_bytes), (2, 2 * SIZE));
        same!((ground.cached("m"), ground.cached("n")), (2 * SIZE, 0));

        ground.signal(Signal::SIGKILL);
        ground.daemon.wait().expect("it is ours");
        // What is lost meanwhile comes back with the next daemon.
        drop_cached(&ground.path("m/2")).expect("to drop it");
        ground.daemon = start(&ground.config);
        let status = ground.wait("x", KeepState::Kept)?;
        holds!(status.loaded_bytes >= SIZE, "{status:?}");
        same!(ground.cached("m"), 2 * SIZE);

        // A file that comes later is found when the set is added again.
        ground.folder.write("m/3", vec![1; 1 << 20]);
        ground.client().rm_keep("x", false).expect("a set");
        same!(ground.cached("m/1"), SIZE, "it may go, and need not");
        let again = ground.client().keep("x", &ground.set("m"));
        same!(again.expect("a set").state, KeepState::Finding);
        same!(ground.wait("x", KeepState::Kept)?.files, 3);
        let removed = ground.client().rm_keep("x", true).expect("a set");
        same!(
            ground.cached("m/1") + ground.cached("m/2"),
            0,
            "{removed:?}"
        );
        holds!(removed.dropped_bytes >= Some(2 * SIZE), "{removed:?}");
        Ok(())
    };
    right(attempt);
}

#[test]
fn a_reload_brings_the_sets_of_the_configuration() {
    let attempt = || -> Result<(), String> {
        let ground = Ground::new("keep-reload", |folder| {
            format!(
                "[keep.n]\npaths = ['{}/n']\nbudget = '1 MiB'\n",
                folder.display()
            )
        });
        let status = ground.wait("n", KeepState::Kept)?;
        same!((status.configured, status.cached_bytes), (true, 1 << 20));
        let refused = ground
            .client()
            .rm_keep("n", false)
            .expect_err("the configuration's");
        holds!(
            refused.to_string().contains("[keep.n] of /etc/cprt.toml"),
            "{refused}"
        );
        let text = fs::read_to_string(&ground.config).expect("ours");
        fs::write(&ground.config, text.replace("1 MiB", "2 MiB")).expect("ours");
        ground.signal(Signal::SIGHUP);
        let until = Instant::now() + LATEST;
        while ground.wait("n", KeepState::Kept)?.cached_bytes < SIZE {
            holds!(Instant::now() < until, "no reload");
            std::thread::sleep(Duration::from_millis(20));
        }
        same!(ground.cached("n"), SIZE);
        Ok(())
    };
    right(attempt);
}

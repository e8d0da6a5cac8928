//! Sets on real files: what the page cache has of them. The memory is a file that a test writes.

use std::fs::{self, File};
use std::path::Path;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use test_support::{Folder, Held, holds, right, same};

use super::*;
use crate::residency::{Cache, find};

const MIB: u64 = 1 << 20;
/// The size of each file.
const SIZE: u64 = 4 * MIB;
/// How long an attempt waits for anything.
const LATEST: Duration = Duration::from_secs(30);

/// Files on storage, and memory as a test wants it.
struct Ground {
    folder: Folder,
    config: Config,
}

impl Ground {
    fn new(name: &str) -> Self {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp");
        fs::create_dir_all(&target).expect("a folder");
        let ground = Self {
            folder: Folder::within(&target, name),
            config: Config::default(),
        };
        fs::create_dir_all(ground.path("proc")).expect("ours");
        ground.memory(100 << 10, 90 << 10);
        for file in ["a/1", "a/2", "b/1"] {
            let bytes = vec![7; usize::try_from(SIZE).expect("small")];
            let path = ground.folder.write(file, bytes);
            File::open(&path)
                .and_then(|it| it.sync_all())
                .expect("to write");
            ground.make_cold(file);
        }
        ground
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Has the machine this much memory, in MiB, and this much available, a half of what is used being cache.
    fn memory(&self, total: u64, available: u64) {
        let cache = (total - available).max(1 << 10);
        let text = format!(
            "MemTotal: {} kB\nMemFree: 0 kB\nMemAvailable: {} kB\nActive(file): {} kB\nInactive(file): 0 kB\n\
             Dirty: 0 kB\nWriteback: 0 kB\nHugetlb: 0 kB\n",
            total << 10,
            available << 10,
            cache << 10
        );
        fs::write(self.path("proc/meminfo"), text).expect("ours");
    }

    fn start(&self) -> KeptSets {
        let mut config = self.config.clone();
        config.kept = self.path("kept.json");
        config.memory.pressure = 100;
        let roots = Roots {
            proc: self.path("proc"),
            cgroup: self.path("cgroup"),
            kubelet: self.path("kubelet"),
            drivers: self.path("drivers"),
        };
        KeptSets::start_in(&config, roots).expect("a thread")
    }

    fn set(&self, path: &str, priority: i32) -> KeepSet {
        KeepSet {
            paths: vec![self.path(path)],
            priority,
            ..KeepSet::default()
        }
    }

    fn cached(&self, path: &str) -> u64 {
        let file = File::open(self.path(path)).expect("it is there");
        Cache::new()
            .expect("a cache")
            .resident(&file, &(0..SIZE))
            .expect("ours")
    }

    /// Has the machine reclaim nothing of the first bytes of a file: what it reclaims is a loss as well.
    fn hold(&self, path: &str, length: u64) -> Held {
        let file = File::open(self.path(path)).expect("it is there");
        Held::new(&file, 0..length).expect("to hold it")
    }

    /// As another program would.
    fn make_cold(&self, path: &str) {
        let file = File::open(self.path(path)).expect("it is there");
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("a file");
    }
}

fn wait_for(what: &str, kept: &KeptSets, is_so: impl Fn() -> bool) -> Result<(), String> {
    let until = Instant::now() + LATEST;
    while !is_so() {
        if Instant::now() > until {
            return Err(format!("{what} does not come: {:?}", kept.status()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn of(kept: &KeptSets, name: &str) -> KeepStatus {
    let mut all = kept.status().into_iter();
    all.find(|it| it.name == name).expect("it is a set")
}

fn wait(kept: &KeptSets, name: &str, state: KeepState) -> Result<KeepStatus, String> {
    wait_for(&state.to_string(), kept, || of(kept, name).state == state)?;
    Ok(of(kept, name))
}

#[test]
fn kept_set_is_cached_reloaded_and_dropped_on_removal() {
    let attempt = || -> Result<(), String> {
        let ground = Ground::new("cprt-keep-back");
        same!((ground.cached("a/1"), ground.cached("a/2")), (0, 0));
        let kept = ground.start();
        holds!(kept.status().is_empty());
        let first = kept.keep("x", ground.set("a", 0)).expect("a set");
        same!(first.state, KeepState::Finding);
        let status = wait(&kept, "x", KeepState::Kept)?;
        same!((status.files, status.wanted_bytes), (2, 2 * SIZE));
        same!(status.cached_bytes, 2 * SIZE);
        holds!(status.loaded_bytes >= 2 * SIZE, "{status:?}");
        same!((ground.cached("a/1"), ground.cached("a/2")), (SIZE, SIZE));
        same!(ground.cached("b/1"), 0);
        let held = ground.hold("a/1", SIZE);
        // Another program drops a file: the first time it is loaded again at once, and not the second time.
        for (loaded, state) in [(3, KeepState::Kept), (3, KeepState::Waiting)] {
            ground.make_cold("a/2");
            wait_for("the loss", &kept, || {
                of(&kept, "x").reclaimed_bytes >= (loaded - 2) * SIZE
                    && of(&kept, "x").state == state
            })?;
            if state == KeepState::Kept {
                same!(ground.cached("a/2"), SIZE);
                continue;
            }
            let reason = of(&kept, "x").reason.expect("a reason");
            holds!(
                reason.starts_with("4 MiB of it were reclaimed soon after"),
                "{reason}"
            );
        }
        held.release();
        let removed = kept.remove("x", true).expect("it is there");
        same!(removed.dropped_bytes, Some(SIZE), "the other file was lost");
        same!((ground.cached("a/1"), removed.cached_bytes), (0, 0));
        holds!(kept.status().is_empty());
        let refused = kept.remove("x", true).expect_err("it is gone").to_string();
        holds!(refused.contains("'ppcctl keep ls'"), "{refused}");
        kept.end();
        Ok(())
    };
    right(attempt);
}

#[test]
fn low_priority_set_yields_under_pressure_and_returns() {
    let attempt = || -> Result<(), String> {
        let ground = Ground::new("cprt-keep-pressure");
        let kept = ground.start();
        kept.keep("low", ground.set("a", -1)).expect("a set");
        kept.keep("high", ground.set("b", 1)).expect("a set");
        wait(&kept, "low", KeepState::Kept)?;
        wait(&kept, "high", KeepState::Kept)?;
        let names: Vec<_> = kept.status().into_iter().map(|it| it.name).collect();
        same!(names, ["high", "low"]);
        let held = [ground.hold("a/1", 2 * MIB), ground.hold("b/1", SIZE)];
        // Processes take all but 25 MiB of 100 MiB: 80 are the threshold, 75 the line.
        ground.memory(100, 31);
        wait_for("the release", &kept, || of(&kept, "low").released_bytes > 0)?;
        let status = wait(&kept, "low", KeepState::Short)?;
        holds!(
            status
                .reason
                .is_some_and(|why| why.contains("free memory") || why.contains("free some"))
        );
        // 69 MiB and 12 of ours are 6 above the line.
        same!(ground.cached("a/2"), 0, "the tail");
        same!(
            ground.cached("a/1"),
            2 * MIB,
            "and a part of what is before it"
        );
        same!(ground.cached("b/1"), SIZE);
        same!(of(&kept, "low").released_bytes, 6 * MIB);
        same!(of(&kept, "high").state, KeepState::Kept);
        ground.memory(100 << 10, 90 << 10);
        let status = wait(&kept, "low", KeepState::Kept)?;
        same!(ground.cached("a/2"), SIZE, "{status:?}");
        same!(status.reclaimed_bytes, 0, "we released it ourselves");
        held.into_iter().for_each(Held::release);
        kept.end();
        Ok(())
    };
    right(attempt);
}

#[test]
fn a_budget_holds_and_files_of_two_sets_are_kept_once() {
    let attempt = || -> Result<(), String> {
        let ground = Ground::new("cprt-keep-budget");
        let kept = ground.start();
        let budget = KeepSet {
            budget: Some(SIZE + MIB),
            ..ground.set("a", 3)
        };
        kept.keep("x", budget).expect("a set");
        kept.keep("y", ground.set("a/2", 0)).expect("a set");
        let status = wait(&kept, "x", KeepState::Kept)?;
        same!(
            (status.wanted_bytes, status.whole_bytes),
            (SIZE + MIB, 2 * SIZE)
        );
        let status = wait(&kept, "y", KeepState::Kept)?;
        same!(
            (status.wanted_bytes, status.whole_bytes),
            (SIZE - MIB, SIZE)
        );
        // What the other set keeps stays.
        let removed = kept.remove("y", true).expect("a set");
        same!(removed.dropped_bytes, Some(SIZE - MIB));
        same!((ground.cached("a/1"), ground.cached("a/2")), (SIZE, MIB));
        kept.end();
        Ok(())
    };
    right(attempt);
}

#[test]
fn parts_are_kept_and_nothing_else() {
    let attempt = || -> Result<(), String> {
        let ground = Ground::new("cprt-keep-parts");
        let kept = ground.start();
        let parts = KeepSet {
            paths: vec![ground.path("a/1"), ground.path("gone"), ground.path("b/1")],
            parts: vec![(2, MIB, MIB), (1, 0, MIB), (0, 3 * MIB, 9 * MIB)],
            ..KeepSet::default()
        };
        kept.keep("x", parts).expect("a set");
        let status = wait(&kept, "x", KeepState::Kept)?;
        same!(status.wanted_bytes, 2 * MIB);
        holds!(
            status.incomplete && status.left_out[0].contains("gone"),
            "{status:?}"
        );
        let there = find(&[ground.path("b/1")]).expect("a file").files;
        let cache = Cache::new().expect("a cache");
        let cached = cache.cached(&there[0], &(0..SIZE)).expect("ours");
        same!(cached.within(&(MIB..2 * MIB)), MIB);
        kept.end();
        Ok(())
    };
    right(attempt);
}

#[test]
fn sets_are_saved_and_those_of_the_configuration_are_its_own() {
    let attempt = || -> Result<(), String> {
        let mut ground = Ground::new("cprt-keep-saved");
        let kept = ground.start();
        kept.keep("x", ground.set("a", 2)).expect("a set");
        kept.keep("y", ground.set("b", 0)).expect("a set");
        kept.remove("y", false).expect("a set");
        // As if the daemon had been killed: nothing is written at its end.
        std::mem::forget(kept);
        ground.make_cold("a/1");
        let text = format!(
            "[keep.z]\npaths = ['{}']\nbudget = '1 MiB'\n",
            ground.path("b").display()
        );
        ground.config = text.parse().expect("a set");
        let kept = ground.start();
        let status = wait(&kept, "x", KeepState::Kept)?;
        same!((status.priority, status.configured), (2, false));
        let status = wait(&kept, "z", KeepState::Kept)?;
        same!((status.wanted_bytes, status.configured), (MIB, true));
        same!(kept.status().len(), 2);
        for refused in [
            kept.remove("z", false)
                .expect_err("the configuration's")
                .to_string(),
            kept.keep("z", ground.set("a", 0))
                .expect_err("likewise")
                .to_string(),
        ] {
            holds!(refused.contains("[keep.z] of /etc/cprt.toml"), "{refused}");
        }
        kept.apply(&Config::default());
        wait_for("a reload", &kept, || kept.status().len() == 1)?;
        kept.end();
        Ok(())
    };
    right(attempt);
}

#[test]
fn sets_that_cannot_be_kept_report_why() {
    let attempt = || -> Result<(), String> {
        let ground = Ground::new("cprt-keep-failed");
        let kept = ground.start();
        kept.keep("x", ground.set("none", 0)).expect("a set");
        let status = wait(&kept, "x", KeepState::Failed)?;
        holds!(
            status
                .reason
                .is_some_and(|why| why.contains("none: No such file"))
        );
        let memory = KeepSet {
            paths: vec!["/proc/self/status".into()],
            ..KeepSet::default()
        };
        kept.keep("y", memory).expect("a set");
        let status = wait(&kept, "y", KeepState::Failed)?;
        holds!(status.left_out[0].contains("without storage"), "{status:?}");
        let relative = KeepSet {
            paths: vec!["m".into()],
            ..KeepSet::default()
        };
        let refused = kept
            .keep("z", relative)
            .expect_err("no such set")
            .to_string();
        holds!(refused.contains("must begin with a slash"), "{refused}");
        kept.end();
        Ok(())
    };
    right(attempt);
}

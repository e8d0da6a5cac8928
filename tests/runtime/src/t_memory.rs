//! A service's anonymous memory never pays for what is loaded for the service.

use std::fs;

use crate::case::Case;
use crate::cgroup::{Group, Version};
use crate::daemon::{Daemon, policy};
use crate::disk::swap_on;
use crate::files::{MIB, Pattern};
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome, ensure, ensure_eq, wait_until};
use crate::procfs;
use crate::reader::{Job, Service};

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_memory_of_the_service", 120, || {
        of_the_service(Version::V2)
    }),
    Case::new("cprt_memory_of_the_service_cgroup1", 120, || {
        of_the_service(Version::V1)
    }),
    Case::new("cprt_memory_is_not_swapped", 120, || {
        is_not_swapped(Version::V2)
    }),
    Case::new("cprt_memory_is_not_swapped_cgroup1", 120, || {
        is_not_swapped(Version::V1)
    }),
    Case::new("cprt_memory_threshold_holds", 90, || {
        threshold_holds(Version::V2)
    }),
    Case::new("cprt_memory_threshold_holds_cgroup1", 90, || {
        threshold_holds(Version::V1)
    }),
];

const ANON: u64 = 200 * MIB;
const FILES: u64 = 256 * MIB;

/// A group with room for the service's own memory and half of what the policy wants to load.
struct Tight {
    group: Group,
    mount: Mount,
    files: Vec<Pattern>,
}

/// What a service paid while readers in its group read all files.
#[derive(Debug)]
struct Paid {
    swapped_kib: u64,
    faults: i64,
}

impl Tight {
    fn new(version: Version) -> Outcome<Self> {
        let group = Group::new(version, "service")?;
        let mount = Mount::new()?;
        let files = vec![
            mount.file("a", 1, FILES / 2)?,
            mount.file("b", 2, FILES / 2)?,
        ];
        group.limit(ANON + FILES / 2)?;
        Ok(Self {
            group,
            mount,
            files,
        })
    }

    fn run(&self, what: &str) -> Outcome<Paid> {
        for file in &self.files {
            file.make_cold()?;
        }
        let service = Service::start(ANON, self.group.procs())?;
        let readers = self
            .files
            .iter()
            .map(|file| {
                Job::new(&self.mount, file)
                    .within(self.group.procs())
                    .start()
            })
            .collect::<Outcome<Vec<_>>>()?;
        let mut slowest: f64 = 0.0;
        for reader in readers {
            slowest = slowest.max(reader.finish()?.ms);
        }
        let swapped_kib = procfs::swapped_kib(service.pid())?;
        let (anon, cache) = (self.group.anon()?, self.group.cache()?);
        let faults = service.finish()?;
        println!(
            "{what}: {slowest:.0} ms; anon {} MiB and {swapped_kib} KiB swapped, cache {} MiB; {faults} \
             faults to have all of it back",
            anon / MIB,
            cache / MIB
        );
        ensure!(
            anon + swapped_kib * 1024 >= ANON,
            "{anon} bytes of anonymous memory"
        );
        ensure_eq!(self.group.oom_kills()?, 0, "OOM kills");
        Ok(Paid {
            swapped_kib,
            faults,
        })
    }

    /// The same with a policy that loads everything.
    fn run_eager(&self) -> Outcome<Paid> {
        let daemon = Daemon::start()?;
        // Without `--cgroup`, the runtime finds the first reader's group.
        daemon.register(&self.mount, &policy("eager"), &[])?;
        let paid = self.run("with eager")?;
        let stats = daemon.stats(&self.mount)?;
        println!("{} MiB loaded", stats.loaded_bytes / MIB);
        ensure!(
            stats.loaded_bytes > 16 * MIB,
            "hardly anything loaded: {stats:?}"
        );
        let limit = ANON + FILES / 2;
        ensure_eq!(stats.memory_limit, limit, "the reported limit");
        daemon.stop()?;
        Ok(paid)
    }
}

/// Without swap, where the kernel might kill a process instead.
fn of_the_service(version: Version) -> Outcome {
    let paid = Tight::new(version)?.run_eager()?;
    ensure_eq!(paid.faults, 0, "the service's page faults afterwards");
    Ok(())
}

/// With swap, no more of the memory is swapped out than by the kernel alone.
fn is_not_swapped(version: Version) -> Outcome {
    let _lists = Lists::take()?;
    swap_on()?;
    let tight = Tight::new(version)?;
    let native = tight.run("without a policy")?;
    let eager = tight.run_eager()?;
    ensure!(
        eager.swapped_kib <= native.swapped_kib + 1024 && eager.faults <= native.faults + 256,
        "the service paid {eager:?}, without a policy {native:?}"
    );
    Ok(())
}

/// Makes the kernel reclaim by two lists until it is dropped.
///
/// Generations of pages (`CONFIG_LRU_GEN_ENABLED`) weigh processes against files by which pages come
/// back: with a policy that never evicts, like this one, they have let the service pay anything from
/// nothing to 84 MiB, whatever the runtime does.
struct Lists(Option<String>);

impl Lists {
    const GENERATIONS: &str = "/sys/kernel/mm/lru_gen/enabled";

    fn take() -> Outcome<Self> {
        let enabled = fs::read_to_string(Self::GENERATIONS).unwrap_or_default();
        if matches!(enabled.trim(), "" | "0x0000") {
            return Ok(Self(None));
        }
        fs::write(Self::GENERATIONS, "0").of(Self::GENERATIONS)?;
        Ok(Self(Some(enabled.trim().to_owned())))
    }
}

impl Drop for Lists {
    fn drop(&mut self) {
        if let Some(enabled) = &self.0 {
            // A failure does no harm: the machine is this test's own.
            let _ = fs::write(Self::GENERATIONS, enabled);
        }
    }
}

/// Loading stops at the threshold, even without a reader.
fn threshold_holds(version: Version) -> Outcome {
    let group = Group::new(version, "threshold")?;
    let mount = Mount::new()?;
    let file = mount.file("f", 1, FILES)?;
    let limit = FILES / 2;
    group.limit(limit)?;
    let daemon = Daemon::with("[memory]\nthreshold = 60\n")?;
    let path = group
        .path
        .to_str()
        .ok_or("no text")
        .of("the group's path")?
        .to_owned();
    daemon.register(&mount, &policy("eager"), &["--cgroup", &path])?;
    Job::new(&mount, &file).range(0..8).run()?;
    let mut last = 0;
    wait_until(30, "loads to end", || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        let now = file.cached()?;
        let settled = now == last && now > limit / 3;
        last = now;
        Ok(settled.then_some(()))
    })?;
    let most = limit * 60 / 100;
    println!(
        "{} MiB loaded, the threshold is at {} MiB",
        last / MIB,
        most / MIB
    );
    // Each thread may have a chunk in flight when the threshold is reached.
    ensure!(
        group.current()? <= most + 24 * MIB,
        "{} bytes in use",
        group.current()?
    );
    ensure!(last >= most / 2, "only {last} bytes loaded");
    let stats = daemon.stats(&mount)?;
    ensure_eq!(stats.memory_limit, limit, "the reported limit");
    daemon.stop()
}

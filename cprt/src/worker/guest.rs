//! Has the reader's memory cgroup pay where the kernel charges the process that reads: the worker is a guest in the
//! reader's cgroup while it loads.
//!
//! It stays only as long as there is something to load: systemd kills all processes in the cgroup of a unit that stops,
//! a container runtime freezes them, and a cgroup has to be empty before it can be removed. So the worker leaves soon
//! after the last load, and at once when it is alone there.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::machine::memory;
use crate::worker::messages::{Note, Outbox};

/// How long it stays after the last load: the next one is likely to follow.
const LINGER: Duration = Duration::from_millis(500);
/// How often a thread checks whether it is to leave.
const LOOK: Duration = Duration::from_millis(50);

/// A worker and the cgroup that pays for it.
pub(crate) struct Guest {
    shared: Arc<GuestShared>,
}

struct GuestShared {
    /// The worker's own cgroup; `None` if that is not visible here: then it stays there.
    home: Option<PathBuf>,
    outbox: Arc<Outbox>,
    is_idle: Box<dyn Fn() -> bool + Send + Sync>,
    state: Mutex<GuestState>,
}

#[derive(Debug, Default)]
struct GuestState {
    /// The cgroup that is to pay.
    host: Option<PathBuf>,
    /// The cgroup that the worker has entered; a thread has it leave.
    inside: Option<PathBuf>,
    /// The worker could not enter.
    refused: bool,
}

impl Guest {
    /// A guest with this cgroup as its home; `is_idle` says whether there is nothing to load.
    pub(crate) fn new(
        home: Option<PathBuf>,
        outbox: Arc<Outbox>,
        is_idle: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            shared: Arc::new(GuestShared {
                home,
                outbox,
                is_idle: Box::new(is_idle),
                state: Mutex::default(),
            }),
        }
    }

    /// Sets the cgroup that pays from now on.
    pub(crate) fn pays(&self, host: Option<PathBuf>) {
        let mut state = self.shared.lock();
        state.refused &= state.host == host;
        state.host = host;
    }

    /// Enters the cgroup that pays, as loads are about to begin.
    pub(crate) fn enter(&self) {
        let mut state = self.shared.lock();
        let Some(host) = state.host.clone() else {
            return;
        };
        let is_home = self.shared.home.as_ref().is_none_or(|home| *home == host);
        if is_home || state.refused || state.inside.is_some() || is_frozen(&host) {
            return;
        }
        // Reported first, so that a signal that ends the worker there is not taken for the policy's fault.
        self.shared.say(Some(&host));
        if let Err(error) = memory::join(&host, 0) {
            state.refused = true;
            self.shared.say(None);
            let error = crate::error::chain(&error);
            // Only root may move processes between cgroups.
            let level = if nix::unistd::geteuid().is_root() {
                log::Level::Warn
            } else {
                log::Level::Info
            };
            return log::log!(level, "The worker stays in its own cgroup: {error}");
        }
        state.inside = Some(host);
        drop(state);
        let shared = Arc::clone(&self.shared);
        let watch = std::thread::Builder::new()
            .name("guest".into())
            .stack_size(128 << 10)
            .spawn(move || shared.watch());
        if watch.is_err() {
            // Without the thread, it would never leave.
            self.shared.leave();
        }
    }
}

impl GuestShared {
    fn lock(&self) -> MutexGuard<'_, GuestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, host: Option<&Path>) {
        let host = host.map(Path::to_owned);
        self.outbox.say(&Note::Guest { host });
    }

    /// Has it leave in time.
    fn watch(&self) {
        let mut idle_since = None;
        loop {
            std::thread::sleep(LOOK);
            let Some(host) = self.lock().inside.clone() else {
                return;
            };
            if (self.is_idle)() {
                idle_since.get_or_insert_with(Instant::now);
            } else {
                idle_since = None;
            }
            let lingers = idle_since.is_none_or(|since| since.elapsed() < LINGER);
            if !lingers || is_alone(&host) {
                return self.leave();
            }
        }
    }

    fn leave(&self) {
        let mut state = self.lock();
        let Some(home) = &self.home else { return };
        if let Err(error) = memory::join(home, 0) {
            let error = crate::error::chain(&error);
            log::warn!("The worker cannot go back to its own cgroup: {error}");
            // If it cannot leave, it must not enter again.
            state.refused = true;
        }
        state.inside = None;
        self.say(None);
    }
}

/// Whether this process is the only one in the cgroup.
fn is_alone(cgroup: &Path) -> bool {
    let own = std::process::id();
    let members = std::fs::read_to_string(cgroup.join("cgroup.procs"));
    members.is_ok_and(|text| {
        let mut members = text.lines().filter_map(|line| line.parse::<u32>().ok());
        members.all(|member| member == own)
    })
}

/// Whether the cgroup is frozen, as that of a paused container.
pub(crate) fn is_frozen(cgroup: &Path) -> bool {
    let events = std::fs::read_to_string(cgroup.join("cgroup.events"));
    events.is_ok_and(|text| text.lines().any(|line| line == "frozen 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frozen_or_alone_cgroup_is_detected_from_its_files() {
        let folder = test_support::Folder::new("guest");
        assert!(!is_frozen(folder.path()) && !is_alone(folder.path()));
        folder.write("cgroup.events", "populated 1\nfrozen 1\n");
        folder.write("cgroup.procs", format!("{}\n", std::process::id()));
        assert!(is_frozen(folder.path()) && is_alone(folder.path()));
        folder.write("cgroup.events", "populated 1\nfrozen 0\n");
        folder.write("cgroup.procs", format!("1\n{}\n", std::process::id()));
        assert!(!is_frozen(folder.path()) && !is_alone(folder.path()));
    }

    #[test]
    fn a_guest_is_there_while_it_loads() {
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

        let folder = test_support::Folder::new("guest-loads");
        let procs = |name: &str| folder.write(&format!("{name}/cgroup.procs"), "");
        let (home, host) = (procs("home"), procs("host"));
        std::fs::write(&host, "1\n").expect("a reader");
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("a socket");
        let idle = Arc::new(AtomicBool::new(false));
        let of_guest = Arc::clone(&idle);
        let at = |file: &Path| file.parent().map(Path::to_owned);
        let outbox = Arc::new(Outbox::new(ours));
        let guest = Guest::new(at(&home), outbox, move || of_guest.load(Relaxed));
        let text = |file: &Path| std::fs::read_to_string(file).expect("a file");
        guest.enter();
        assert_eq!(text(&host), "1\n", "no reader is known yet");
        guest.pays(at(&home));
        guest.enter();
        assert_eq!(text(&home), "", "it is there");
        guest.pays(at(&host));
        guest.enter();
        // These are ordinary files: 0, which stands for the caller, is at their beginning.
        assert_eq!(text(&host), "0\n");
        std::fs::write(&host, "1\n0\n").expect("a reader");
        std::thread::sleep(LINGER + LOOK * 4);
        assert_eq!(text(&home), "", "there is something to load");
        idle.store(true, Relaxed);
        let until = Instant::now() + Duration::from_secs(20);
        while text(&home) != "0" {
            assert!(Instant::now() < until, "it does not leave");
            std::thread::sleep(LOOK);
        }
    }
}

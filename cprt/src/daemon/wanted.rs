//! Registers the configured policies whenever their mounts appear.
//!
//! A thread waits for changes to the list of mounts. For each path of the configuration it compares the mount that is
//! there with the one that it handled last, by the kernel's list alone. Only where they differ is there work, and a
//! thread for that path does it: looking at a directory takes as long as its server wants.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::registry::{RegistrationRequest, Registry, in_thread, tell};
use super::site::Site;
use crate::control::config::ConfiguredPolicy;
use crate::machine::mountinfo::{self, MountChanges};
use crate::{Error, Result};

/// How long after a failure changes elsewhere are no reason to try again.
const PAUSE: Duration = Duration::from_secs(30);

/// How long to wait before asking a silent file system again.
const SILENCE: Duration = Duration::from_secs(2);

/// A file system does not answer.
struct Silent;

/// A path of the configuration.
struct Wanted {
    path: PathBuf,
    policy: ConfiguredPolicy,
    state: Mutex<WantedState>,
}

#[derive(Debug, Default)]
struct WantedState {
    /// A thread is working on it.
    busy: bool,
    /// There has been another change meanwhile.
    again: bool,
    attended: Attended,
}

/// What has been done for a path. Pure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Attended {
    /// The path without links, and the mount that it was in.
    place: Option<(PathBuf, Option<u64>)>,
    /// When the registration failed, if it did.
    failed: Option<Instant>,
}

impl Attended {
    /// Whether there is something to do, given the mount that is at a path now.
    fn is_due(&self, now: Instant, mount_of: impl Fn(&PathBuf) -> Option<u64>) -> bool {
        let Some((path, mount)) = &self.place else {
            return true;
        };
        let is_same = mount_of(path) == *mount;
        !is_same
            || self
                .failed
                .is_some_and(|then| now.duration_since(then) >= PAUSE)
    }
}

/// Registers the policies of the configuration, and has the registry forget mounts that are gone. Returns only on an
/// error.
pub(crate) fn follow(registry: &Arc<Registry>) -> Result<()> {
    let mut changes = MountChanges::watch()?;
    let named = registry.config().mount.iter();
    let wanted: Vec<_> = named
        .map(|(path, policy)| {
            Arc::new(Wanted {
                path: path.clone(),
                policy: policy.clone(),
                state: Mutex::default(),
            })
        })
        .collect();
    loop {
        registry.forget_unmounted();
        for one in &wanted {
            look(registry, one);
        }
        changes.wait().map_err(|source| Error::System {
            doing: "Waiting for mounts",
            source,
        })?;
    }
}

/// Checks one path after a change to the list of mounts.
fn look(registry: &Arc<Registry>, one: &Arc<Wanted>) {
    {
        let mut state = one.state();
        if state.busy {
            state.again = true;
            return;
        }
        if !state
            .attended
            .is_due(Instant::now(), |path| mountinfo::id_around(path))
        {
            return;
        }
        state.busy = true;
    }
    let (registry, one) = (Arc::clone(registry), Arc::clone(one));
    in_thread("mount", move || {
        loop {
            let outcome = one.attend(&registry);
            let silent = matches!(&outcome, Err(Silent));
            {
                let mut state = one.state();
                if let Ok(Some(attended)) = outcome {
                    state.attended = attended;
                }
                if !std::mem::take(&mut state.again) && !silent {
                    state.busy = false;
                    return;
                }
            }
            if silent {
                // The list of mounts does not change when it answers again.
                std::thread::sleep(SILENCE);
            }
        }
    });
}

impl Wanted {
    fn state(&self) -> MutexGuard<'_, WantedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers the policy, unless this mount has had it already: what ppcctl registers or removes later stays so.
    /// `None` if there is nothing to do, or nothing mounted yet.
    fn attend(&self, registry: &Arc<Registry>) -> Result<Option<Attended>, Silent> {
        let fuse = registry.config().fuse;
        let site = match Site::of(&self.path, self.policy.backend, fuse) {
            Ok(site) => site,
            Err(Error::System { source, .. }) if source.kind() == io::ErrorKind::TimedOut => {
                return Err(Silent);
            }
            Err(_) => return Ok(None),
        };
        let place = Some((site.path.clone(), site.number));
        let before = self.state().attended.clone();
        let is_new = before.place != place;
        let tries_again = before.failed.is_some_and(|then| then.elapsed() >= PAUSE);
        if !is_new && !tries_again {
            return Ok(None);
        }
        let mut failed = None;
        if !registry.has_policy(&site) {
            let done = registry.register(RegistrationRequest {
                mount: self.path.clone(),
                library: self.policy.policy.clone(),
                settings: self.policy.settings.clone(),
                cgroup: self.policy.cgroup.clone(),
                backend: self.policy.backend,
            });
            tell(&self.path, done.as_ref().map(drop));
            failed = done.is_err().then(Instant::now);
        }
        Ok(Some(Attended { place, failed }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_something_to_do_for_another_mount_only() {
        let now = Instant::now();
        let attended = Attended {
            place: Some(("/m".into(), Some(7))),
            failed: None,
        };
        assert!(Attended::default().is_due(now, |_| None));
        assert!(!attended.is_due(now, |_| Some(7)));
        assert!(attended.is_due(now, |_| Some(8)), "it is mounted again");
        assert!(attended.is_due(now, |_| None), "it is gone");
        let failed = Attended {
            failed: Some(now),
            ..attended
        };
        assert!(!failed.is_due(now + PAUSE / 2, |_| Some(7)));
        assert!(failed.is_due(now + PAUSE, |_| Some(7)));
        assert!(failed.is_due(now, |_| Some(8)));
    }
}

//! Receives what the keeper of a mount's policy reports, for the log and the registry.

use std::path::PathBuf;
use std::sync::Weak;

use super::{Registry, Slot};
use crate::control::loads::LoadTotals;
use crate::worker::keeper::Owner;

/// Receives what the keeper of a slot reports.
pub(super) struct SlotOwner {
    pub(super) registry: Weak<Registry>,
    pub(super) slot: Weak<Slot>,
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) library: PathBuf,
}

impl Owner for SlotOwner {
    fn log(&self, policy: &str, level: u32, message: &str) {
        let severity = match level {
            0 | 1 => log::Level::Error,
            2 => log::Level::Warn,
            3 => log::Level::Info,
            _ => log::Level::Debug,
        };
        log::log!(
            severity,
            "Policy {policy} on {}: {message}",
            self.path.display()
        );
    }

    fn printed(&self, line: &str) {
        let (library, path) = (self.library.display(), self.path.display());
        log::info!("{library} on {path} prints: {line}");
    }

    fn failed(&self, policy: &str, fault: &str, never: Option<&str>) {
        let path = self.path.display();
        match never {
            None => log::error!("Policy {policy} on {path} failed: {fault}; starting it again"),
            Some(reason) => log::error!(
                "Policy {policy} on {path} failed: {fault}; {reason}, so the mount stays native until a \
                 policy is registered"
            ),
        }
    }

    fn reported(&self, load: &LoadTotals) {
        if let Some(registry) = self.registry.upgrade() {
            registry.reported(load);
        }
    }

    fn unmounted(&self) {
        if let Some(registry) = self.registry.upgrade()
            && let Some(slot) = self.slot.upgrade()
        {
            registry.forget(&slot, self.number);
        }
    }
}

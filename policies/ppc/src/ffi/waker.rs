//! The two services for a policy's own threads, disabled when their host is gone.

use std::ffi::CString;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ppc_host;
use crate::{Error, Level, Result};

/// The part of a host that other threads may use.
struct Door(*const ppc_host);

// SAFETY: the host lets any thread call log and wake, and nothing else is called through it.
unsafe impl Send for Door {}

/// Wakes a policy from its own threads: the next [`prefetch`](crate::Prefetch::prefetch) may use
/// their results. After the policy's exit it does nothing.
#[derive(Clone)]
pub struct Waker(Arc<Mutex<Option<Door>>>);

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker").finish_non_exhaustive()
    }
}

impl Waker {
    pub(super) fn new(host: *const ppc_host) -> Self {
        Self(Arc::new(Mutex::new(Some(Door(host)))))
    }

    /// Waits for the threads inside, and keeps out all others from then on.
    pub(super) fn shut(&self) {
        *self.door() = None;
    }

    /// Has prefetch called without an event, not before this time has passed.
    ///
    /// # Errors
    ///
    /// The policy has exited (`ESHUTDOWN`), or the host has no timer.
    pub fn wake(&self, after: Duration) -> Result<()> {
        let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
        match &*self.door() {
            None => Err(Error::Errno(libc::ESHUTDOWN)),
            Some(Door(host)) => {
                // SAFETY: the host is valid until exit returns, and that shuts the door before.
                let rc = unsafe { ((**host).wake)((**host).ctx, after) };
                super::guest::check("wake", rc.into()).map(drop)
            }
        }
    }

    /// Logs a line; after the policy's exit it is lost.
    pub fn log(&self, level: Level, message: impl fmt::Display) {
        let line = line(&message);
        if let Some(Door(host)) = &*self.door() {
            // SAFETY: as in wake(); the string outlives the call.
            unsafe { ((**host).log)((**host).ctx, level as u32, line.as_ptr()) }
        }
    }

    fn door(&self) -> MutexGuard<'_, Option<Door>> {
        // A panic inside leaves the door as it was.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line for C: characters that C cannot represent become blanks.
pub(super) fn line(message: &dyn fmt::Display) -> CString {
    CString::new(message.to_string().replace(['\0', '\n'], " ")).unwrap_or_default()
}

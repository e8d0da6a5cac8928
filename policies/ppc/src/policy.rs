//! What a policy is, in Rust.

use std::ffi::CStr;

use crate::{Error, Event, Features, Host, Plan, Result, Settings};

/// Which of its callbacks a policy has. One that it has not is left to the kernel, which is not the
/// same as one that names nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Hooks {
    /// [`Policy::prefetch`]; without it the kernel reads ahead.
    pub prefetch: bool,
    /// [`Policy::evict`]; without it the kernel reclaims.
    pub evict: bool,
    /// [`Policy::configure`]; without it settings change by registering anew.
    pub configure: bool,
}

/// A cache policy. `ppc.h` tells its life; [`export_policy!`](crate::export_policy) makes a library
/// of it.
///
/// All callbacks come from one thread. One that panics has failed, and so has every later one: the
/// instance may be broken.
pub trait Policy: Sized + 'static {
    /// Of a-z, 0-9 and -.
    const NAME: &'static CStr;
    /// Of the policy, not of the contract.
    const VERSION: &'static CStr;
    /// A line for people.
    const DESCRIPTION: &'static CStr;
    /// What a mount must have for the policy to make sense.
    const NEEDS: Features = Features(0);
    /// Which of the callbacks below are to be called.
    const HOOKS: Hooks;

    /// Makes an instance; what `plan` gets is loaded. Settings that are not taken out are refused.
    ///
    /// # Errors
    ///
    /// The policy is not registered; the host logs the error.
    fn init(host: &Host<'_>, settings: &mut Settings, plan: &mut Plan<'_>) -> Result<Self>;

    /// On each event, or with `None` after [`Host::wake`]: what to load.
    ///
    /// # Errors
    ///
    /// The plan of this event is dropped; the next event comes as usual.
    fn prefetch(
        &mut self,
        host: &Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> Result<()> {
        let _ = (host, event, plan);
        Err(Error::Errno(libc::ENOSYS))
    }

    /// While memory is over the threshold, on each event and with `None` at intervals: what to drop.
    ///
    /// # Errors
    ///
    /// The plan of this call is dropped.
    fn evict(&mut self, host: &Host<'_>, event: Option<&Event>, plan: &mut Plan<'_>) -> Result<()> {
        let _ = (host, event, plan);
        Err(Error::Errno(libc::ENOSYS))
    }

    /// A setting changes. What is not taken out is refused.
    ///
    /// # Errors
    ///
    /// Nothing changes.
    fn configure(&mut self, host: &Host<'_>, settings: &mut Settings) -> Result<()> {
        let _ = (host, settings);
        Err(Error::Errno(libc::ENOSYS))
    }

    /// The end, unless the worker is killed.
    ///
    /// # Errors
    ///
    /// They are logged.
    fn exit(self, host: &Host<'_>) -> Result<()> {
        let _ = host;
        Ok(())
    }
}

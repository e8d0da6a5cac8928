//! What a policy is, in Rust.

use std::ffi::CStr;

use crate::{Event, Features, Host, Plan, Result, Settings};

/// A cache policy. `ppc.h` tells its life; [`export_policy!`](crate::export_policy) makes a library
/// of it.
///
/// Which callbacks it has besides follows from which of [`Prefetch`], [`Evict`] and [`Configure`] it
/// implements. One that it lacks is left to the kernel, which is not the same as one that names
/// nothing.
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

    /// Makes an instance, and may name I/Os already. Settings that are not taken out are refused.
    ///
    /// # Errors
    ///
    /// The policy is not registered; the host logs the error.
    fn init(host: &Host<'_>, settings: &mut Settings, plan: &mut Plan<'_>) -> Result<Self>;

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

/// A policy that loads; without it the kernel reads ahead.
pub trait Prefetch: Policy {
    /// On each event, or with `None` after [`Host::wake`].
    ///
    /// # Errors
    ///
    /// The plan of this event is forgotten; the next event comes as usual.
    fn prefetch(
        &mut self,
        host: &Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> Result<()>;
}

/// A policy that drops; without it the kernel reclaims.
pub trait Evict: Policy {
    /// While memory is over the threshold, on each event and with `None` at intervals.
    ///
    /// # Errors
    ///
    /// The plan of this call is forgotten.
    fn evict(&mut self, host: &Host<'_>, event: Option<&Event>, plan: &mut Plan<'_>) -> Result<()>;
}

/// A policy whose settings change while it runs; without it they change by registering anew.
pub trait Configure: Policy {
    /// A setting changes. What is not taken out is refused.
    ///
    /// # Errors
    ///
    /// Nothing changes.
    fn configure(&mut self, host: &Host<'_>, settings: &mut Settings) -> Result<()>;
}

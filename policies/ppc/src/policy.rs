//! The traits that a policy implements.

use std::ffi::CStr;

use crate::{Event, Features, Host, Plan, Result, Settings};

/// A cache policy. `ppc.h` describes its life; [`export_policy!`](crate::export_policy) makes a library
/// of it.
///
/// Its other callbacks follow from which of [`Prefetch`], [`Evict`] and [`Configure`] it
/// implements. The work of a missing callback is left to the kernel, unlike that of a callback that
/// names nothing.
///
/// All callbacks come from one thread. After one that panics, every later callback fails as well: the
/// instance may be broken.
pub trait Policy: Sized + 'static {
    /// Short, of a-z, 0-9 and -.
    const NAME: &'static CStr;
    /// Of the policy, not of the contract.
    const VERSION: &'static CStr;
    /// A line for users.
    const DESCRIPTION: &'static CStr;
    /// What a mount must have for the policy to make sense.
    const NEEDS: Features = Features(0);

    /// Creates an instance, and may already name I/Os. Settings that it does not take out are refused.
    ///
    /// # Errors
    ///
    /// The policy is not registered; the host logs the error.
    fn init(host: &Host<'_>, settings: &mut Settings, plan: &mut Plan<'_>) -> Result<Self>;

    /// Ends the instance. A killed worker does not call it.
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
    /// The plan of this event is discarded; the next event comes as usual.
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
    /// The plan of this call is discarded.
    fn evict(&mut self, host: &Host<'_>, event: Option<&Event>, plan: &mut Plan<'_>) -> Result<()>;
}

/// A policy whose settings change while it runs; without this, changing one takes a new registration.
pub trait Configure: Policy {
    /// A setting changes. A setting that it does not take out is refused.
    ///
    /// # Errors
    ///
    /// Nothing changes.
    fn configure(&mut self, host: &Host<'_>, settings: &mut Settings) -> Result<()>;
}

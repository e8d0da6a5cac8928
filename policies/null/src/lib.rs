//! The smallest policy: it decides nothing.
//!
//! It leaves reading ahead and reclaiming to the kernel, because it implements none of [`ppc::Prefetch`],
//! [`ppc::Evict`] and [`ppc::Configure`]. `../README.md` describes how to write a policy that decides.

use std::ffi::CStr;

use ppc::{Host, Plan, Policy, Result, Settings};

/// The policy, which has no state.
#[derive(Debug)]
pub struct Null;

impl Policy for Null {
    const NAME: &'static CStr = c"null";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Leaves everything to the kernel";

    fn init(_: &Host<'_>, _: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
        Ok(Self)
    }
}

ppc::export_policy!(Null);

#[cfg(test)]
mod tests {
    use ppc::testing::FakeHost;
    use ppc::{Event, Kind, LoadError};

    use super::*;

    #[test]
    fn null_policy_leaves_everything_to_the_kernel() {
        let host = FakeHost::new().file("model", 1 << 20);
        let (mut null, at_init) = host.start::<Null>(&[]).expect("it starts");
        assert_eq!(at_init, []);
        let miss = Event::new(Kind::Miss, host.id("model"), 0, 4096);
        assert!(null.prefetch(Some(&miss)).expect("no callback").is_none());
        assert!(null.evict(None).expect("no callback").is_none());
        null.exit().expect("it ends");
        assert_eq!(host.logs(), []);
    }

    #[test]
    fn null_policy_rejects_settings() {
        let refused = FakeHost::new().start::<Null>(&[("a", "b")]);
        assert!(matches!(refused, Err(LoadError::Init(_))));
    }
}

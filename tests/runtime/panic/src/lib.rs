//! Panics at its first event.

use std::ffi::CStr;

use ppc::{Event, Hooks, Host, Plan, Policy, Result, Settings};

/// Has nothing to lose.
#[derive(Debug)]
pub struct Panic;

impl Policy for Panic {
    const NAME: &'static CStr = c"test-panic";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Panics at its first event";
    const HOOKS: Hooks = Hooks {
        prefetch: true,
        evict: false,
        configure: false,
    };

    fn init(_: &Host<'_>, _: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
        Ok(Self)
    }

    fn prefetch(&mut self, _: &Host<'_>, event: Option<&Event>, _: &mut Plan<'_>) -> Result<()> {
        assert!(event.is_none(), "out of patience");
        Ok(())
    }
}

ppc::export_policy!(Panic);

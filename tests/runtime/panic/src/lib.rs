//! Panics at its first event.

use std::ffi::CStr;

use ppc::{Event, Host, Plan, Policy, Prefetch, Result, Settings};

/// A policy without state.
#[derive(Debug)]
pub struct Panic;

impl Policy for Panic {
    const NAME: &'static CStr = c"test-panic";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Panics at its first event";

    fn init(_: &Host<'_>, _: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
        Ok(Self)
    }
}

impl Prefetch for Panic {
    fn prefetch(&mut self, _: &Host<'_>, event: Option<&Event>, _: &mut Plan<'_>) -> Result<()> {
        assert!(event.is_none(), "out of patience");
        Ok(())
    }
}

ppc::export_policy!(Panic);

//! DAMON, a part of the kernel that watches what is accessed, where it pages out what is not.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Roots, number, read};
use crate::doctor::facts::PagingOut;

pub(super) fn of(roots: &Roots) -> Option<PagingOut> {
    schemes(roots).or_else(|| module(roots))
}

/// The scheme that pages out earliest.
fn schemes(roots: &Roots) -> Option<PagingOut> {
    let daemons = folders(&roots.sys.join("kernel/mm/damon/admin/kdamonds"));
    let running = daemons.filter(|daemon| read(&daemon.join("state")).as_deref() == Some("on"));
    let found = running.filter_map(|daemon| {
        let contexts = folders(&daemon.join("contexts"));
        let after = contexts.flat_map(|context| {
            let schemes = folders(&context.join("schemes"));
            schemes.filter_map(move |scheme| after(&context, &scheme))
        });
        let switch = (daemon.join("state"), "off");
        after.min().map(|after| PagingOut { after, switch })
    });
    found.min_by_key(|found| found.after)
}

/// After how many seconds a scheme pages out: ages are numbers of intervals.
fn after(context: &Path, scheme: &Path) -> Option<u64> {
    if read(&scheme.join("action"))? != "pageout" {
        return None;
    }
    let interval: u64 = number(&context.join("monitoring_attrs/intervals/aggr_us"))?;
    let age: u64 = number(&scheme.join("access_pattern/age/min"))?;
    Some(interval.saturating_mul(age) / 1_000_000)
}

/// The kernel's own scheme, which has parameters of a module.
fn module(roots: &Roots) -> Option<PagingOut> {
    let parameters = roots.sys.join("module/damon_reclaim/parameters");
    let enabled = parameters.join("enabled");
    if read(&enabled)? != "Y" {
        return None;
    }
    let age: u64 = number(&parameters.join("min_age"))?;
    Some(PagingOut {
        after: age / 1_000_000,
        switch: (enabled, "N"),
    })
}

fn folders(of: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
}

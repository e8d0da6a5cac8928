//! Round after round.

use std::time::Duration;

use crate::error::Result;
use crate::local::Local;
use crate::pace::Pace;
use crate::round::{Node, Report};

/// What is printed about a round.
#[derive(Debug)]
pub struct Told {
    /// What it has done.
    pub result: Result<Report>,
    /// Whether the one before had failed.
    pub failed_before: bool,
    /// How long it is until the next one.
    pub wait: Duration,
}

/// Has a node make rounds, one after the other, at the times of its pace. `now_s` is the time in seconds since 1970.
pub async fn rounds<L: Local>(
    node: &mut Node<L>,
    mut pace: Pace,
    now_s: impl Fn() -> u64,
    mut tell: impl FnMut(Told),
) {
    let mut wait = pace.first(node.dice());
    loop {
        tokio::time::sleep(wait).await;
        let failed_before = pace.has_failed();
        let result = node.round(now_s()).await;
        wait = pace.after(result.is_ok(), node.dice());
        tell(Told {
            result,
            failed_before,
            wait,
        });
    }
}

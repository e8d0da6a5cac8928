//! What a machine does to tests that look at the page cache.

use std::fs;

/// File pages that this machine has taken back so far. Some do so by themselves, within seconds and with
/// memory free: between two looks at which this is another, a file that was cached need not be.
#[must_use]
pub fn pages_taken_back() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix("pgsteal_file "));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}

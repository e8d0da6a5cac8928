//! Pages that the machine reclaims while tests check the page cache.

use std::fs;

/// Number of file pages that this machine has reclaimed so far. Some machines reclaim pages within seconds,
/// even with free memory: if this number changes between two checks, a cached file may be gone.
#[must_use]
pub fn pages_taken_back() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    // Some kernels count what they reclaim; all count what is read again after that.
    let number = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse::<u64>().ok())
    };
    let numbers = ["pgsteal_file ", "workingset_refault_file "].map(number);
    numbers.into_iter().flatten().sum()
}

/// The result of the first attempt that is right, or during which the machine reclaimed no page; the last attempt's
/// if it reclaims pages all the time.
pub fn undisturbed<T>(mut attempt: impl FnMut() -> T, is_right: impl Fn(&T) -> bool) -> T {
    const MORE: usize = 19;

    for _ in 0..MORE {
        let before = pages_taken_back();
        let outcome = attempt();
        if is_right(&outcome) || pages_taken_back() == before {
            return outcome;
        }
    }
    attempt()
}

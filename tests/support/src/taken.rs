//! What a machine does to tests that look at the page cache.

use std::fs;

/// File pages that this machine has taken back so far. Some do so by themselves, within seconds and with
/// memory free: between two looks at which this is another, a file that was cached need not be.
#[must_use]
pub fn pages_taken_back() -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    // Some count what they take; all count what is read again of it.
    let number = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.trim().parse::<u64>().ok())
    };
    let numbers = ["pgsteal_file ", "workingset_refault_file "].map(number);
    numbers.into_iter().flatten().sum()
}

/// What an attempt comes to: the first that is right, or during which the machine took nothing back; the last if it
/// does all the time.
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

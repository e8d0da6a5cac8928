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

/// Makes attempts that end with what is wrong until one is right; panics if one during which the machine reclaimed no
/// page is not.
///
/// # Panics
///
/// Something is wrong that no reclaim explains.
pub fn right(attempt: impl FnMut() -> Result<(), String>) {
    undisturbed(attempt, Result::is_ok).unwrap_or_else(|why| panic!("{why}"));
}

/// Ends an attempt unless both are the same.
#[macro_export]
macro_rules! same {
    ($one:expr, $other:expr $(, $($why:tt)+)?) => {{
        let (one, other) = (&$one, &$other);
        if one != other {
            let why = String::new() $(+ &format!($($why)+))?;
            return Err(format!("line {}: {one:?} and not {other:?} {why}", line!()));
        }
    }};
}

/// Ends an attempt unless this holds.
#[macro_export]
macro_rules! holds {
    ($what:expr $(, $($why:tt)+)?) => {
        if !$what {
            let why = String::new() $(+ &format!($($why)+))?;
            return Err(format!("line {}: {} {why}", line!(), stringify!($what)));
        }
    };
}

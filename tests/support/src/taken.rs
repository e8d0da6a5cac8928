//! Pages that the machine reclaims while tests check the page cache.

use std::fmt::Debug;
use std::fs;
use std::path::Path;

use crate::skip::flaky;

/// The controls of DAMON, a part of the kernel that watches what is accessed.
const DAMON: &str = "/sys/kernel/mm/damon/admin/kdamonds";

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
    numbers.into_iter().flatten().sum::<u64>() + bytes_paged_out(Path::new(DAMON))
}

/// What schemes of DAMON have paged out. They take pages that were not accessed for some time from all memory, a few
/// of a new file among them, and no counter of `/proc/vmstat` has these.
fn bytes_paged_out(damon: &Path) -> u64 {
    let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let mut bytes = 0;
    for daemon in folders(damon) {
        let state = daemon.join("state");
        // This order makes the kernel write the current numbers down; it returns when it has done so.
        if read(&state).trim() != "on" || fs::write(&state, "update_schemes_stats").is_err() {
            continue;
        }
        let contexts = folders(&daemon.join("contexts"));
        let schemes = contexts.flat_map(|context| folders(&context.join("schemes")));
        let schemes = schemes.filter(|scheme| read(&scheme.join("action")).trim() == "pageout");
        let applied = schemes.map(|scheme| read(&scheme.join("stats/sz_applied")));
        bytes += applied
            .filter_map(|text| text.trim().parse::<u64>().ok())
            .sum::<u64>();
    }
    bytes
}

fn folders(of: &Path) -> impl Iterator<Item = std::path::PathBuf> + use<> {
    let entries = fs::read_dir(of).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
}

/// The result of the first attempt that is right, or during which the machine reclaimed no page; the last attempt's
/// if it reclaims pages all the time. A test that is right later than at its first attempt is reported as flaky: a
/// machine that always reclaims pages would hide any fault of the product otherwise.
pub fn undisturbed<T: Debug>(mut attempt: impl FnMut() -> T, is_right: impl Fn(&T) -> bool) -> T {
    const MOST: usize = 20;

    let mut first = String::new();
    for tried in 1.. {
        let before = pages_taken_back();
        let outcome = attempt();
        if is_right(&outcome) {
            if tried > 1 {
                flaky(&format!(
                    "right at attempt {tried} only, while the machine reclaims pages; at first: {first}"
                ));
            }
            return outcome;
        }
        if tried == MOST || pages_taken_back() == before {
            return outcome;
        }
        if tried == 1 {
            first = short(&outcome);
        }
    }
    unreachable!("the last attempt has returned")
}

/// The outcome of an attempt in a line.
fn short(outcome: &impl Debug) -> String {
    const MOST: usize = 600;

    let text = format!("{outcome:?}");
    text.chars().take(MOST).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Folder;

    #[test]
    fn bytes_applied_by_pageout_schemes_are_counted() {
        let damon = Folder::new("damon");
        let scheme = "0/contexts/0/schemes";
        for (number, action) in ["pageout", "stat", "pageout"].iter().enumerate() {
            damon.write(&format!("{scheme}/{number}/action"), format!("{action}\n"));
            damon.write(&format!("{scheme}/{number}/stats/sz_applied"), "4096\n");
        }
        damon.write("0/state", "on\n");
        assert_eq!(bytes_paged_out(damon.path()), 2 * 4096);
        damon.write("0/state", "off\n");
        assert_eq!(bytes_paged_out(damon.path()), 0);
        assert_eq!(bytes_paged_out(&damon.path().join("none")), 0);
    }
}

//! Waiting for what another process does.

use std::time::{Duration, Instant};

/// How long to wait for anything, on a machine with much else to do.
pub const LATEST: Duration = Duration::from_mins(1);
/// How often to look.
const AGAIN: Duration = Duration::from_millis(10);

/// Looks again and again until there is something, and returns it.
///
/// # Panics
///
/// There is nothing after [`LATEST`].
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + LATEST;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < until, "{what} does not come");
        std::thread::sleep(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_a_value_that_appears_late() {
        let mut looks = 0;
        let found = wait_for("the third look", || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found, 3);
    }
}

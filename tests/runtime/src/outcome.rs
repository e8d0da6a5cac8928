//! How a test ends, and how it waits.

use std::error::Error;
use std::fmt::Display;
use std::panic::Location;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// What every step of a test returns.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Why a test ends early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// It has nothing to test here.
    Skip(String),
    /// Something is not as it should be.
    Fail(String),
}

impl Stop {
    #[track_caller]
    pub(crate) fn fail(words: impl Display) -> Self {
        let at = Location::caller();
        let file = at.file().rsplit('/').next().unwrap_or_default();
        Self::Fail(format!("{file}:{}: {words}", at.line()))
    }
}

/// Turns any error into a failure, with its causes and the line of the `?` that met it.
impl<E: Error> From<E> for Stop {
    #[track_caller]
    fn from(error: E) -> Self {
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            words = format!("{words}: {error}");
            cause = error.source();
        }
        Self::fail(words)
    }
}

/// Adds to an error what it was about.
pub(crate) trait For<T> {
    /// Puts `what` before the error's own words.
    fn of(self, what: impl Display) -> Outcome<T>;
}

impl<T, E: Display> For<T> for Result<T, E> {
    #[track_caller]
    fn of(self, what: impl Display) -> Outcome<T> {
        match self {
            Ok(value) => Ok(value),
            Err(error) => Err(Stop::fail(format_args!("{what}: {error}"))),
        }
    }
}

/// Fails the test with a message.
macro_rules! fail {
    ($($words:tt)+) => {
        return Err($crate::outcome::Stop::fail(format_args!($($words)+)))
    };
}

/// Fails the test unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        let holds: bool = $condition;
        if !holds {
            $crate::outcome::fail!($($words)+);
        }
    };
}

/// Fails the test unless both are the same.
macro_rules! ensure_eq {
    ($left:expr, $right:expr, $($words:tt)+) => {
        match (&$left, &$right) {
            (left, right) if left != right => $crate::outcome::fail!(
                "{}: {left:?}, not {right:?}", format_args!($($words)+)
            ),
            _ => {}
        }
    };
}

/// Skips the test, as it has nothing to test here.
macro_rules! skip {
    ($($words:tt)+) => {
        return Err($crate::outcome::Stop::Skip(format!($($words)+)))
    };
}

pub(crate) use {ensure, ensure_eq, fail, skip};

/// Whether the running kernel is this or a later one.
pub(crate) fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(a)), Some(Ok(b))) => (a, b) >= (major, minor),
        _ => false,
    }
}

/// Factor on every time limit: how much slower a kernel with all checkers on is.
pub(crate) fn factor() -> f64 {
    std::env::var("RFS_FACTOR")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(1.0)
}

/// This many seconds, scaled for this kernel.
pub(crate) fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into()).mul_f64(factor())
}

/// This many milliseconds, scaled for this kernel.
pub(crate) fn millis(millis: u32) -> Duration {
    Duration::from_millis(millis.into()).mul_f64(factor())
}

/// Polls until there is an answer, for at most this many seconds.
#[track_caller]
pub(crate) fn wait_until<T>(
    limit_s: u32,
    what: &str,
    mut ask: impl FnMut() -> Outcome<Option<T>>,
) -> Outcome<T> {
    let end = Instant::now() + seconds(limit_s);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() > end {
            return Err(Stop::fail(format_args!(
                "waited {limit_s} s (times {}) for {what}",
                factor()
            )));
        }
        sleep(Duration::from_millis(10));
    }
}

/// The median of some measurements.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(vec![]).is_nan());
    }

    #[test]
    fn failure_message_has_location_and_cause() {
        fn parse() -> Outcome<u8> {
            Ok("x".parse::<u8>()?)
        }
        let Err(Stop::Fail(words)) = parse() else {
            panic!("x is not a number");
        };
        assert!(words.starts_with("outcome.rs:"), "{words}");
        assert!(words.ends_with("invalid digit found in string"), "{words}");
    }
}

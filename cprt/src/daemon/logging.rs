//! The daemon's log: lines on standard error, for a terminal or the journal.
//!
//! error: what was asked for did not happen. warn: something is wrong, but work continues. info: once
//! in the life of a mount, worker or start, never once per event. debug helps to find a fault, and
//! needs `CPRT_LOG=debug`.

use std::io::Write as _;

struct Stderr {
    /// The journal takes a severity as a prefix, and adds our name itself.
    journal: bool,
}

/// Sends all log lines to standard error.
pub fn to_stderr() {
    let level = match std::env::var("CPRT_LOG").as_deref() {
        Ok("error") => log::LevelFilter::Error,
        Ok("warn") => log::LevelFilter::Warn,
        Ok("debug") => log::LevelFilter::Debug,
        _ => log::LevelFilter::Info,
    };
    let journal = std::env::var_os("JOURNAL_STREAM").is_some();
    // It only fails if a logger is set already; that one stays.
    if log::set_boxed_logger(Box::new(Stderr { journal })).is_ok() {
        log::set_max_level(level);
    }
}

impl log::Log for Stderr {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::max_level()
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let line = line(self.journal, record.level(), &record.args().to_string());
            // If the log cannot be written, that cannot be logged either.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
    }

    fn flush(&self) {}
}

fn line(journal: bool, level: log::Level, message: &str) -> String {
    let (number, name) = match level {
        log::Level::Error => (3, "error"),
        log::Level::Warn => (4, "warning"),
        log::Level::Info => (6, "info"),
        log::Level::Debug | log::Level::Trace => (7, "debug"),
    };
    if journal {
        format!("<{number}>{message}\n")
    } else {
        format!("cprtd: {name}: {message}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_suit_their_reader() {
        assert_eq!(line(true, log::Level::Warn, "x"), "<4>x\n");
        assert_eq!(line(false, log::Level::Error, "x"), "cprtd: error: x\n");
    }
}

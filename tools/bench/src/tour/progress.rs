//! Shows progress: a line with seconds on a terminal, one line for each load elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The escape sequence that returns to the beginning of the line and erases it.
const CLEAR: &str = "\r\x1b[K";
const TICK: Duration = Duration::from_millis(500);

/// A line of progress, which is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    what: String,
    ticker: Option<(Sender<()>, JoinHandle<()>)>,
    ended: bool,
}

impl Progress {
    pub(super) fn begin(what: &str) -> Self {
        let what = format!("  {what:<22}");
        let ticker = io::stderr().is_terminal().then(|| {
            let (sender, ended) = channel();
            let (what, began) = (what.clone(), Instant::now());
            let ticker = std::thread::spawn(move || {
                while ended.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    let passed = began.elapsed().as_secs();
                    let _ = write!(io::stderr(), "{CLEAR}{what} {passed:>6} s ...");
                }
                let _ = write!(io::stderr(), "{CLEAR}");
            });
            (sender, ticker)
        });
        if ticker.is_none() {
            eprint!("{what} ");
        }
        Self {
            what,
            ticker,
            ended: false,
        }
    }

    /// Ends the line with a result.
    pub(super) fn end(mut self, result: &str) {
        let what = if self.stop() { self.what.as_str() } else { "" };
        eprintln!("{what} {result}");
        self.ended = true;
    }

    /// Stops the ticker; returns whether it has erased the line.
    fn stop(&mut self) -> bool {
        let Some((sender, ticker)) = self.ticker.take() else {
            return false;
        };
        drop(sender);
        let _ = ticker.join();
        true
    }
}

impl Drop for Progress {
    /// Without a result, ends an unfinished line.
    fn drop(&mut self) {
        if !std::mem::take(&mut self.ended) && !self.stop() {
            eprintln!();
        }
    }
}

//! That something goes on: a line with seconds on a terminal, one line for each load elsewhere.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Back to the beginning of the line, and away with it.
const CLEAR: &str = "\r\x1b[K";
const TICK: Duration = Duration::from_millis(500);

/// It is gone when this is.
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

    /// It has come to that.
    pub(super) fn end(mut self, result: &str) {
        let what = if self.stop() { self.what.as_str() } else { "" };
        eprintln!("{what} {result}");
        self.ended = true;
    }

    /// Ends the line; whether it has to be written anew.
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
    /// Nothing has come of it, if it has not ended before.
    fn drop(&mut self) {
        if !std::mem::take(&mut self.ended) && !self.stop() {
            eprintln!();
        }
    }
}

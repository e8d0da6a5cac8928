//! Copies what a policy writes to its standard output and error into the log, within limits.

use std::io::{BufRead as _, BufReader, PipeReader, Read as _};
use std::time::{Duration, Instant};

use crate::{Error, Result};

/// Upper bound on lines in a second; further ones are counted.
const LINES: u32 = 20;
/// Upper bound on bytes of a line; the next line has the rest.
const LENGTH: u64 = 1024;

/// Receives the lines.
pub(crate) type LineSink = Box<dyn FnMut(String) + Send>;

/// Starts a thread that reads until the last writing end is closed.
pub(crate) fn listen(output: PipeReader, mut log: LineSink) -> Result<()> {
    std::thread::Builder::new()
        .name("output".into())
        .stack_size(128 << 10)
        .spawn(move || read(output, &mut *log))
        .map(drop)
        .map_err(|source| Error::System {
            doing: "Starting a thread",
            source,
        })
}

fn read(output: impl std::io::Read, log: &mut dyn FnMut(String)) {
    let mut output = BufReader::with_capacity(4096, output);
    let mut window = (Instant::now(), 0);
    let mut left_out = 0_u64;
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut output).take(LENGTH).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        if window.0.elapsed() >= Duration::from_secs(1) {
            window = (Instant::now(), 0);
        }
        window.1 += 1;
        if window.1 > LINES {
            left_out += 1;
            continue;
        }
        if left_out > 0 {
            log(format!("skipped {} lines", std::mem::take(&mut left_out)));
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        if !text.is_empty() {
            log(text.to_owned());
        }
    }
    if left_out > 0 {
        log(format!("skipped {left_out} lines"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let mut text = "word\n".repeat(1000).into_bytes();
        text.extend(b"\n\xff");
        let mut lines = Vec::new();
        read(&*text, &mut |line| lines.push(line));
        assert_eq!(lines.len(), LINES as usize + 1);
        assert_eq!(lines[0], "word");
        assert!(lines[LINES as usize].starts_with("skipped "));
    }

    #[test]
    fn long_lines_are_pieces() {
        let mut lines = Vec::new();
        read("x".repeat(3000).as_bytes(), &mut |line| {
            lines.push(line.len());
        });
        assert_eq!(lines, [1024, 1024, 952]);
    }
}

//! Loads a user's model: by the user's command, or a reader that reads every byte of it.
//!
//! Both start as a process of this program, [`load`], so that they are the same with and without MAIO.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use super::files::Files;
use crate::error::{Failure, Result, file, system};
use crate::sys::Mapped;
use crate::{signals, sys};

/// What the reader prints before the sum of everything it has read.
pub(super) const SUM: &str = "sum of all bytes: ";

/// Loads the model, or executes the command that does.
pub(crate) fn load(model: &Path, command: Option<&str>) -> Result<()> {
    sys::end_with_parent();
    signals::give_back();
    match command {
        Some(text) => {
            let text = text.replace("{}", &quote(&model.to_string_lossy()));
            let mut shell = Command::new("/bin/sh");
            let error = shell.args(["-c", &text]).env("MODEL", model).exec();
            Err(system("Starting a shell")(error))
        }
        None => read(model),
    }
}

/// Maps every file, as readers of safetensors do, and reads all of it; mappings are kept until the end.
fn read(model: &Path) -> Result<()> {
    let mut mapped = Vec::new();
    let mut sum = 0_u64;
    let files = Files::below(model)?;
    for (path, size) in files.paths.iter().zip(&files.sizes) {
        if *size == 0 {
            continue;
        }
        let map = File::open(path).and_then(|file| Mapped::new(&file));
        let map = map.map_err(file("Mapping", path))?;
        sum = sum.rotate_left(1).wrapping_add(add_up(map.bytes()));
        mapped.push(map);
    }
    println!("{SUM}{sum:016x}");
    Ok(())
}

/// Adds up all bytes at the speed of memory.
fn add_up(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let rest = rest.iter().map(|byte| u64::from(*byte));
    words.chain(rest).fold(0, u64::wrapping_add)
}

/// Quotes a text as one word of a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The last lines that a command printed, to show why it failed.
pub(super) fn last_words(log: &str) -> String {
    const LINES: usize = 15;
    let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = lines
        .get(lines.len().saturating_sub(LINES)..)
        .unwrap_or_default();
    last.iter().flat_map(|line| ["\n    ", line]).collect()
}

/// The failure of the loader, with its last lines.
pub(super) fn failed(how: &str, log: &str) -> Failure {
    let words = last_words(log);
    let words = if words.is_empty() {
        "\n    nothing".to_owned()
    } else {
        words
    };
    Failure::Said(format!("The loader {how}. Its last lines:{words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_tell_bytes_and_places_in_memory_do_not_matter() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(add_up(&bytes[..19]), add_up(&bytes.clone()[..19]));
        assert_ne!(add_up(&bytes[..19]), add_up(&bytes[1..20]));
        assert_eq!(add_up(&[1, 0, 0, 0, 0, 0, 0, 0, 2]), 3);
    }

    #[test]
    fn folders_are_words_for_a_shell() {
        let text = format!("printf %s {}", quote("it's a $HOME"));
        let output = Command::new("/bin/sh").args(["-c", &text]).output();
        assert_eq!(output.expect("a shell").stdout, b"it's a $HOME");
    }

    #[test]
    fn last_15_lines_of_a_log_are_quoted() {
        let lines: Vec<String> = (0..40).map(|n| format!("line {n}\n")).collect();
        let log = lines.join("\n");
        let words = last_words(&log);
        assert!(
            words.starts_with("\n    line 25") && words.ends_with("line 39"),
            "{words}"
        );
        assert!(failed("ended", "").to_string().ends_with("nothing"));
    }
}

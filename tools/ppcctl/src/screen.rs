//! Output for people: tables, and numbers with their units.
//!
//! Foreign text, such as paths and logs of policies, may hold anything, so control characters are
//! escaped before it reaches a terminal.

use std::io::{self, Write as _};
use std::time::Duration;

use cprt::control::config::{Bytes, TimeSpan};
use serde::Serialize;

use crate::failure::{Failure, Result};

/// Prints and flushes, so that the output can be followed through a pipe.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}

/// Prints one line of JSON.
pub(crate) fn print_json(what: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(what).map_err(|error| Failure::Output(error.into()))?;
    print(&(text + "\n"))
}

/// Writes a remark to standard error. A failure to write it is ignored.
pub(crate) fn remark(text: &str) {
    let _ = writeln!(io::stderr(), "ppcctl: {text}");
}

/// Escapes what a terminal would act on, line breaks included.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        // Control characters, and those that change the direction of text.
        if c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            plain.extend(c.escape_default());
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Columns as wide as their widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: &'static [usize],
    indent: usize,
}

impl Table {
    /// A table with a row of headings.
    pub(crate) fn new(headings: &[&str]) -> Self {
        let mut table = Self::default();
        table.row(headings.iter().copied());
        table
    }

    /// Aligns these columns to the right, for numbers.
    pub(crate) fn right(mut self, columns: &'static [usize]) -> Self {
        self.right = columns;
        self
    }

    /// Puts this many blanks before each row.
    pub(crate) fn indent(mut self, blanks: usize) -> Self {
        self.indent = blanks;
        self
    }

    pub(crate) fn row<T: AsRef<str>>(&mut self, cells: impl IntoIterator<Item = T>) {
        let cells = cells.into_iter().map(|cell| plain(cell.as_ref()));
        self.rows.push(cells.collect());
    }

    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (column, cell) in row.iter().enumerate() {
                let blanks = " ".repeat(widths[column] - cell.chars().count());
                if self.right.contains(&column) {
                    line += &(blanks + cell);
                } else {
                    line += &(cell.clone() + &blanks);
                }
                line += "  ";
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }
}

/// The number with a comma every three digits.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The number with the unit that its description begins with.
pub(crate) fn quantity(description: &str, n: u64) -> String {
    let per_second = if description.starts_with("bytes per second") {
        "/s"
    } else {
        ""
    };
    match description.split(' ').next() {
        Some("bytes") => format!("{}{per_second}", Bytes(n)),
        Some("ns") => TimeSpan(Duration::from_nanos(n)).to_string(),
        Some("ms") => TimeSpan(Duration::from_millis(n)).to_string(),
        _ => count(n),
    }
}

/// A duration in its two largest units.
pub(crate) fn age(seconds: u64) -> String {
    const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)];
    let at = UNITS.iter().position(|&(_, size)| seconds >= size);
    let at = at.unwrap_or(UNITS.len() - 1);
    let (unit, size) = UNITS[at];
    let whole = format!("{} {unit}", seconds / size);
    match UNITS.get(at + 1) {
        Some(&(small, part)) if seconds % size >= part => {
            format!("{whole} {} {small}", seconds % size / part)
        }
        _ => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_as_wide_as_their_cells() {
        let mut table = Table::new(&["NAME", "N", "MEANING"]).right(&[1]).indent(2);
        table.row(["événements", "1,000", "many"]);
        table.row(["a\tb", "1", ""]);
        assert_eq!(
            table.render(),
            "  NAME            N  MEANING\n  événements  1,000  many\n  a\\tb            1\n"
        );
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            plain("a\x1b[31mb\r\n\u{9b}c\u{202e}d é"),
            "a\\u{1b}[31mb\\r\\n\\u{9b}c\\u{202e}d é"
        );
    }

    #[test]
    fn numbers_have_the_unit_of_their_description() {
        for (description, n, expected) in [
            ("events that the backend reported", 1_234_567, "1,234,567"),
            ("bytes that were dropped", 3 << 20, "3 MiB"),
            ("bytes per second that are loaded", 1 << 30, "1 GiB/s"),
            ("ns that it took", 1_500_000, "1.5 ms"),
            ("ms of CPU time", 2_500, "2.5 s"),
            ("", 7, "7"),
        ] {
            assert_eq!(quantity(description, n), expected);
        }
        for (n, expected) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (100_000, "100,000"),
        ] {
            assert_eq!(count(n), expected);
        }
    }

    #[test]
    fn ages_have_two_units() {
        for (seconds, expected) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (61, "1 min 1 s"),
            (3_601, "1 h"),
            (7_384, "2 h 3 min"),
            (86_400, "1 d"),
            (200_000, "2 d 7 h"),
        ] {
            assert_eq!(age(seconds), expected);
        }
    }
}

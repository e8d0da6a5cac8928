//! Kubelet's eviction thresholds, as its configuration has them.
//!
//! The file is YAML, or JSON. Two of its keys are read, by a parser of just what people and installers write
//! there: a mapping in lines or in braces, with or without quotes, and comments. What it does not
//! understand counts as not being there, and then the default of kubelet counts.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::control::guard::Amount;

/// What kubelet wants to be available unless its configuration says otherwise.
const DEFAULT: Amount = Amount::Bytes(100 << 20);

/// A longer file is not a configuration of kubelet.
const LONGEST: u64 = 1 << 20;

const SIGNAL: &str = "memory.available";

/// With less memory available, kubelet evicts pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Eviction {
    /// In bytes.
    pub below: u64,
    /// Where that comes from.
    pub origin: EvictionOrigin,
}

/// Where kubelet's threshold comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EvictionOrigin {
    /// `memory.kubelet` of our configuration.
    Setting,
    /// `evictionHard` of kubelet's.
    Hard,
    /// `evictionSoft` of kubelet's.
    Soft,
    /// Neither: it is kubelet's default.
    Default,
}

impl std::fmt::Display for EvictionOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Setting => "memory.kubelet in /etc/cprt.toml",
            Self::Hard => "evictionHard in kubelet's configuration",
            Self::Soft => "evictionSoft in kubelet's configuration",
            Self::Default => "kubelet's default",
        })
    }
}

/// The thresholds, by where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Thresholds(Vec<(EvictionOrigin, Amount)>);

impl Thresholds {
    pub(super) fn set(amount: Amount) -> Self {
        Self(vec![(EvictionOrigin::Setting, amount)])
    }

    pub(super) fn default_ones() -> Self {
        Self(vec![(EvictionOrigin::Default, DEFAULT)])
    }

    /// Those of a configuration, and what is wrong with it.
    ///
    /// A soft threshold counts like a hard one: below it, kubelet evicts after a while. Where
    /// `evictionHard` is given without memory, kubelet has no threshold for it, or the default one if
    /// `mergeDefaultEvictionSettings` is set; the default is the careful reading of both.
    pub(super) fn of(text: &str) -> (Self, Vec<String>) {
        let mut found = Vec::new();
        let mut problems = Vec::new();
        for (origin, section) in [
            (EvictionOrigin::Hard, "evictionHard"),
            (EvictionOrigin::Soft, "evictionSoft"),
        ] {
            match value(text, section).map(|text| text.parse()) {
                Some(Ok(amount)) => found.push((origin, amount)),
                Some(Err(problem)) => problems.push(format!("{section}: {SIGNAL}: {problem}")),
                None => {}
            }
        }
        if found
            .iter()
            .all(|(origin, _)| *origin != EvictionOrigin::Hard)
        {
            found.push((EvictionOrigin::Default, DEFAULT));
        }
        (Self(found), problems)
    }

    /// The one that counts, where all memory is `total`.
    pub(super) fn highest(&self, total: u64) -> Option<Eviction> {
        let bytes = |&(origin, amount): &(_, Amount)| {
            // Kubelet takes a threshold of all memory for none, as of nothing.
            let below = match amount {
                Amount::Part(10_000) => 0,
                amount => amount.of(total),
            };
            Eviction { below, origin }
        };
        // Among equals, the first, which the message names.
        let all = self.0.iter().rev().map(bytes);
        all.max_by_key(|it| it.below).filter(|it| it.below > 0)
    }
}

/// The text of the configuration.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    let file = File::open(path)?;
    // A FIFO there would never end, and nothing else but a file is a configuration.
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The value of `memory.available` in this section.
fn value(text: &str, section: &str) -> Option<String> {
    if text.trim_start().starts_with('{') {
        let json: serde_json::Value = serde_json::from_str(text).ok()?;
        return Some(json.get(section)?.get(SIGNAL)?.as_str()?.to_owned());
    }
    let mut lines = text.lines().map(without_comment);
    let rest = loop {
        let line = lines.next()?;
        // Other sections may have a key of the same name.
        if let Some((key, rest)) = entry(line)
            && !line.starts_with(' ')
            && key == section
        {
            break rest;
        }
    };
    if let Some(flow) = rest.strip_prefix('{') {
        return in_braces(flow, lines);
    }
    in_lines(lines)
}

/// Looks among the lines below a key, until the first that is not indented.
fn in_lines<'t>(lines: impl Iterator<Item = &'t str>) -> Option<String> {
    let mut depth = None;
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let indent = line.len() - line.trim_start_matches(' ').len();
        if indent == 0 {
            return None;
        }
        // Deeper lines belong to another key.
        if indent == *depth.get_or_insert(indent)
            && let Some((SIGNAL, text)) = entry(line)
        {
            return scalar(text);
        }
    }
    None
}

/// Looks in what may be several lines, up to the brace.
fn in_braces<'t>(first: &'t str, more: impl Iterator<Item = &'t str>) -> Option<String> {
    let mut flow = String::new();
    for line in std::iter::once(first).chain(more) {
        let (line, closed) = match line.split_once('}') {
            Some((line, _)) => (line, true),
            None => (line, false),
        };
        flow.push_str(line);
        flow.push(' ');
        if closed {
            let mut entries = flow.split(',').filter_map(entry);
            return entries.find_map(|(key, text)| (key == SIGNAL).then(|| scalar(text))?);
        }
    }
    None
}

/// Key and value of `key: value`, the key without its quotes.
fn entry(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let quote = line.chars().next().filter(|c| matches!(c, '"' | '\''));
    let (key, rest) = match quote {
        Some(quote) => {
            let (key, rest) = line[1..].split_once(quote)?;
            (key, rest.trim_start().strip_prefix(':')?)
        }
        // A colon within a word does not end a key.
        None => match line.split_once(": ") {
            Some((key, rest)) => (key.trim_end(), rest),
            None => (line.strip_suffix(':')?, ""),
        },
    };
    Some((key, rest.trim()))
}

/// A value without its quotes; `None` if there is none.
fn scalar(text: &str) -> Option<String> {
    let text = text.trim();
    let bare = ['"', '\'']
        .into_iter()
        .find_map(|quote| text.strip_prefix(quote)?.strip_suffix(quote))
        .unwrap_or(text);
    let null = text == "~" || text == "null" || bare.is_empty();
    (!null).then(|| bare.to_owned())
}

/// A line up to its comment: a `#` after a blank that is not within quotes.
fn without_comment(line: &str) -> &str {
    let mut open = None;
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        match open {
            Some(quote) if c == quote => open = None,
            None if c == '#' && before.is_whitespace() => return &line[..at],
            // An apostrophe within a word is not a quote.
            None if matches!(c, '"' | '\'') && " \t{,:".contains(before) => open = Some(c),
            _ => {}
        }
        before = c;
    }
    line
}

#[cfg(test)]
#[path = "kubelet_tests.rs"]
mod tests;

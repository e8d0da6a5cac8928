//! What will be loaded for the next start, in order, and the position at which each file comes first. Pure.

use std::collections::HashMap;

use maio::template::{Template, TemplateError};
use maio::{Extent, NextStart, PAGE, next_start};
use serde::Serialize;

use super::kind::FileKind;

/// Everything that will be loaded for the next start.
#[derive(Debug)]
pub(super) struct Timeline {
    /// The ranges, in order.
    pub(super) ranges: Vec<TimedRange>,
    /// The files, in the order in which they are first needed.
    pub(super) files: Vec<TimedFile>,
    /// Number of remembered starts.
    pub(super) starts: usize,
    /// Number of bytes expected.
    pub(super) bytes: u64,
}

/// What is loaded of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct TimedFile {
    pub(super) path: String,
    pub(super) kind: FileKind,
    pub(super) bytes: u64,
    pub(super) ranges: usize,
    /// Share of all bytes that comes before its first range, in percent.
    pub(super) first: f64,
    /// The same for its last range.
    pub(super) last: f64,
    /// The numbers of the last starts that read the file; 1 is the newest.
    pub(super) starts: Vec<usize>,
    /// Its place in the template.
    #[serde(skip)]
    pub(super) number: usize,
}

/// One range to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimedRange {
    /// Its place in [`Timeline::files`].
    pub(super) file: usize,
    pub(super) offset: u64,
    pub(super) length: u64,
    /// Number of bytes that come before it.
    pub(super) before: u64,
}

impl Timeline {
    pub(super) fn of(template: &Template) -> Result<Self, TemplateError> {
        let NextStart { starts, ahead } = next_start(template)?;
        let mut ranges = Vec::with_capacity(ahead.len());
        let mut numbers = Vec::new();
        let mut places = HashMap::new();
        let mut bytes = 0;
        for extent in &ahead {
            let number = usize::try_from(extent.file).unwrap_or(usize::MAX);
            let Some(identity) = template.files.get(number) else {
                return Err(TemplateError::Inconsistent("a range belongs to no file"));
            };
            let file = *places.entry(number).or_insert_with(|| {
                numbers.push(number);
                numbers.len() - 1
            });
            let length = bytes_of(extent, identity.size);
            ranges.push(TimedRange {
                file,
                offset: extent.offset(),
                length,
                before: bytes,
            });
            bytes += length;
        }
        let readers = readers(&starts);
        let mut files: Vec<_> = numbers
            .into_iter()
            .map(|number| TimedFile::new(template, number, &readers))
            .collect();
        for range in &ranges {
            files[range.file].add(range, bytes);
        }
        Ok(Self {
            ranges,
            files,
            starts: starts.len(),
            bytes,
        })
    }

    pub(super) fn percent(&self, range: &TimedRange) -> f64 {
        percent(range.before, self.bytes)
    }
}

impl TimedFile {
    fn new(template: &Template, number: usize, readers: &HashMap<u32, Vec<usize>>) -> Self {
        let path = &template.files[number].path;
        let starts = u32::try_from(number).ok();
        let starts = starts.and_then(|number| readers.get(&number).cloned());
        Self {
            path: format!("/{path}"),
            kind: FileKind::of(path),
            bytes: 0,
            ranges: 0,
            first: 0.0,
            last: 0.0,
            starts: starts.unwrap_or_default(),
            number,
        }
    }

    fn add(&mut self, range: &TimedRange, all: u64) {
        self.last = percent(range.before, all);
        if self.ranges == 0 {
            self.first = self.last;
        }
        self.bytes += range.length;
        self.ranges += 1;
    }
}

/// For each file, the numbers of the starts that read it, counted from 1.
fn readers(starts: &[Vec<Extent>]) -> HashMap<u32, Vec<usize>> {
    let mut readers: HashMap<u32, Vec<usize>> = HashMap::new();
    for (start, number) in starts.iter().zip(1..) {
        for extent in start {
            let of_file = readers.entry(extent.file).or_default();
            if of_file.last() != Some(&number) {
                of_file.push(number);
            }
        }
    }
    readers
}

/// Number of bytes of an extent in a file of this size: the last page of a file ends where the file does.
pub(super) fn bytes_of(extent: &Extent, size: u64) -> u64 {
    let end = u64::from(extent.end()).saturating_mul(PAGE).min(size);
    end.saturating_sub(extent.offset())
}

#[expect(
    clippy::cast_precision_loss,
    reason = "for people, with one digit after the point"
)]
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        100.0
    } else {
        part as f64 / whole as f64 * 100.0
    }
}

#[cfg(test)]
pub(super) mod tests {
    use maio::template::{Group, Identity, TemplateKind};

    use super::*;

    pub(in crate::start) fn template(
        files: &[(&str, u64)],
        starts: &[&[(u32, u32, u32)]],
    ) -> Template {
        let identity = |&(path, size): &(&str, u64)| Identity {
            path: path.to_owned(),
            size,
            mtime_ns: 1,
            inode: 2,
            header: 0,
        };
        let group = |(ranges, number): (&&[(u32, u32, u32)], u32)| {
            let extent = |&(file, first, pages): &(u32, u32, u32)| Extent { file, first, pages };
            let extents: Vec<_> = ranges.iter().map(extent).collect();
            Group::new(number, None, &extents).expect("a group")
        };
        Template {
            kind: TemplateKind::Start,
            service: "start-x".to_owned(),
            node: "n".to_owned(),
            made_s: 1,
            loads: 1,
            files: files.iter().map(identity).collect(),
            groups: starts.iter().zip(0..).map(group).collect(),
        }
    }

    #[test]
    fn files_come_where_they_are_needed_first() {
        let files = [
            ("srv/m.gguf", 300 * PAGE),
            ("usr/bin/x", 2 * PAGE - 96),
            ("usr/lib/old.so", PAGE),
        ];
        let newest = [(1, 0, 2), (0, 0, 100), (0, 200, 100)];
        let older = [(1, 0, 2), (2, 0, 1)];
        let timeline = Timeline::of(&template(&files, &[&newest, &older])).expect("a start");
        let all = 2 * PAGE - 96 + 200 * PAGE + PAGE;
        assert_eq!((timeline.bytes, timeline.starts), (all, 2));
        let seen: Vec<_> = timeline
            .files
            .iter()
            .map(|file| {
                (
                    file.path.as_str(),
                    file.bytes,
                    file.ranges,
                    &file.starts[..],
                )
            })
            .collect();
        let expected = [
            ("/usr/bin/x", 2 * PAGE - 96, 1, &[1, 2][..]),
            ("/srv/m.gguf", 200 * PAGE, 2, &[1]),
            ("/usr/lib/old.so", PAGE, 1, &[2]),
        ];
        assert_eq!(seen, expected);
        let positions: Vec<_> = timeline
            .files
            .iter()
            .map(|file| (file.first.round(), file.last.round()))
            .collect();
        assert_eq!(positions, [(0.0, 0.0), (1.0, 50.0), (100.0, 100.0)]);
        assert_eq!(timeline.ranges.len(), 4);
        assert_eq!(timeline.ranges[2].offset, 200 * PAGE);
    }

    #[test]
    fn a_models_template_has_no_timeline() {
        let mut of_model = template(&[("a", PAGE)], &[&[(0, 0, 1)]]);
        of_model.kind = TemplateKind::Model;
        let error = Timeline::of(&of_model).expect_err("a model");
        assert!(error.to_string().contains("not marked as that of a start"));
    }

    #[test]
    fn empty_timeline_counts_as_100_percent() {
        let timeline = Timeline::of(&template(&[], &[])).expect("an empty one");
        assert_eq!((timeline.bytes, timeline.files.len()), (0, 0));
        assert!((percent(0, 0) - 100.0).abs() < 0.1);
    }
}

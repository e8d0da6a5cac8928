//! Shows a timeline to people and to programs. Pure but for what it prints.

use cprt::control::config::Bytes;
use maio::template::Template;
use serde::Serialize;

use super::kind::FileKind;
use super::timeline::{TimedFile, Timeline};
use crate::failure::Result;
use crate::screen::{Table, count, plain, print, print_json};
use crate::template::age;

/// Number of files shown without `--all`: the largest ones.
const FILES: usize = 24;

#[derive(Debug, Serialize)]
struct Shown<'a> {
    name: &'a str,
    node: &'a str,
    /// In seconds since 1970.
    made: u64,
    /// Number of remembered starts.
    starts: usize,
    expected: u64,
    files: &'a [TimedFile],
    /// Path, and offset and length in bytes, in order.
    ranges: Vec<(&'a str, u64, u64)>,
}

pub(crate) fn show(json: bool, template: &Template, all: bool) -> Result<()> {
    let timeline = Timeline::of(template)?;
    if json {
        let ranges = timeline.ranges.iter();
        let ranges = ranges.map(|it| (timeline.files[it.file].path.as_str(), it.offset, it.length));
        return print_json(&Shown {
            name: &template.service,
            node: &template.node,
            made: template.made_s,
            starts: timeline.starts,
            expected: timeline.bytes,
            files: &timeline.files,
            ranges: ranges.collect(),
        });
    }
    let mut text = format!(
        "start     {}\nnode      {}\nrecorded  {} ago; starts remembered: {}\n\
         expected  {} of {} files in {} ranges\n\n",
        plain(&template.service),
        plain(&template.node),
        age(template.made_s),
        timeline.starts,
        Bytes(timeline.bytes),
        count(timeline.files.len() as u64),
        count(timeline.ranges.len() as u64),
    );
    text += &of_kinds(&timeline.files);
    text.push('\n');
    text += &if all {
        of_ranges(&timeline)
    } else {
        of_files(&timeline.files, FILES)
    };
    print(&text)
}

fn at(percent: f64) -> String {
    format!("{percent:.1} %")
}

/// The numbers of the last starts that read the file, the newest being 1.
fn starts(file: &TimedFile) -> String {
    let numbers: Vec<_> = file.starts.iter().map(ToString::to_string).collect();
    numbers.join(",")
}

/// A table of the kinds of files, in the order in which the first file of each is needed.
fn of_kinds(files: &[TimedFile]) -> String {
    let mut kinds: Vec<(FileKind, u64, u64, f64, f64)> = Vec::new();
    for file in files {
        match kinds.iter_mut().find(|it| it.0 == file.kind) {
            Some((_, files, bytes, _, last)) => {
                *files += 1;
                *bytes += file.bytes;
                *last = last.max(file.last);
            }
            None => kinds.push((file.kind, 1, file.bytes, file.first, file.last)),
        }
    }
    let mut table = Table::new(&["FROM", "TO", "KIND", "FILES", "READ"]).right(&[0, 1, 3, 4]);
    for (kind, files, bytes, first, last) in kinds {
        table.row([
            at(first),
            at(last),
            kind.name().to_owned(),
            count(files),
            Bytes(bytes).to_string(),
        ]);
    }
    table.render()
}

/// A table of the largest files, in the order in which they are first needed, and the sum of the others.
fn of_files(files: &[TimedFile], most: usize) -> String {
    let mut by_size: Vec<_> = (0..files.len()).collect();
    by_size.sort_by_key(|&place| std::cmp::Reverse(files[place].bytes));
    let others = by_size.split_off(by_size.len().min(most));
    let mut shown = by_size;
    shown.sort_unstable();
    let headings = ["AT", "READ", "RANGES", "STARTS", "FILE"];
    let mut table = Table::new(&headings).right(&[0, 1, 2]);
    for place in shown {
        let file = &files[place];
        table.row([
            at(file.first),
            Bytes(file.bytes).to_string(),
            count(file.ranges as u64),
            starts(file),
            file.path.clone(),
        ]);
    }
    let mut text = table.render();
    if !others.is_empty() {
        let bytes = others.iter().map(|&place| files[place].bytes).sum();
        let others = count(others.len() as u64);
        let bytes = Bytes(bytes);
        text = format!(
            "{text}\nNot shown: {others} smaller files, {bytes} together; --all shows every range\n"
        );
    }
    text
}

fn of_ranges(timeline: &Timeline) -> String {
    let headings = ["AT", "OFFSET", "LENGTH", "STARTS", "FILE"];
    let mut table = Table::new(&headings).right(&[0, 1, 2]);
    for range in &timeline.ranges {
        let file = &timeline.files[range.file];
        table.row([
            at(timeline.percent(range)),
            range.offset.to_string(),
            range.length.to_string(),
            starts(file),
            file.path.clone(),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::super::timeline::tests::template;
    use super::*;
    use maio::PAGE;

    fn timeline() -> Timeline {
        let files = [
            ("usr/bin/x", 16 * PAGE),
            ("usr/lib/a.so", 16 * PAGE),
            ("usr/lib/b.so", 16 * PAGE),
            ("srv/w.gguf", 2048 * PAGE),
        ];
        let start = [
            (0, 0, 16),
            (1, 0, 8),
            (3, 0, 1024),
            (2, 0, 16),
            (3, 1024, 1024),
        ];
        Timeline::of(&template(&files, &[&start, &start])).expect("a start")
    }

    #[test]
    fn kinds_come_in_order_with_where_they_begin_and_end() {
        let text = of_kinds(&timeline().files);
        let words = |line: &str| line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        let expected = [
            "FROM TO KIND FILES READ",
            "0.0 % 0.0 % programs 1 64 KiB",
            "0.8 % 50.2 % shared objects 2 96 KiB",
            "1.1 % 51.0 % weights 1 8 MiB",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_largest_files_are_shown_in_order_and_the_others_counted() {
        let timeline = timeline();
        let text = of_files(&timeline.files, 2);
        let paths: Vec<_> = text
            .lines()
            .filter_map(|it| it.split(' ').next_back())
            .collect();
        assert_eq!(paths[1..3], ["/usr/bin/x", "/srv/w.gguf"], "{text}");
        assert!(
            text.contains("Not shown: 2 smaller files, 96 KiB together"),
            "{text}"
        );
        assert!(text.contains("1,2"), "which starts: {text}");
        let all = of_files(&timeline.files, 4);
        assert!(!all.contains("Not shown"), "{all}");
        assert_eq!(of_ranges(&timeline).lines().count(), 6);
    }
}

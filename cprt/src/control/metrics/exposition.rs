//! Lines of text, in either format, independent of what is measured.

use std::collections::HashSet;
use std::fmt::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use super::Format;

/// A metric with all its series.
#[derive(Debug)]
pub(super) struct Family {
    /// Without `_total` or `_info`.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The base unit, in which the name ends; empty if there is none.
    pub(super) unit: &'static str,
    pub(super) labels: &'static [&'static str],
    /// A sentence without a full stop, for people.
    pub(super) help: &'static str,
}

/// What its values mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It only grows, until what it counts starts over.
    Counter,
    /// It is what it is now.
    Gauge,
    /// Its labels are what it says; its value is 1.
    Info,
    /// How many there were, and their sum.
    Summary,
}

impl Kind {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Info => "info",
            Self::Summary => "summary",
        }
    }

    /// What the names of its series end in.
    const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Summary => "",
        }
    }
}

impl Family {
    /// Its name in queries.
    pub(super) fn shown(&self) -> String {
        format!("{}{}", self.name, self.kind.suffix())
    }
}

/// A value, exact in decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Whole(u64),
    Nanoseconds(u64),
}

impl Value {
    pub(super) const fn micros(us: u64) -> Self {
        Self::Nanoseconds(us.saturating_mul(1_000))
    }

    pub(super) const fn millis(ms: u64) -> Self {
        Self::Nanoseconds(ms.saturating_mul(1_000_000))
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Nanoseconds(ns) => {
                let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
                f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
            }
        }
    }
}

/// The text, as it is written.
#[derive(Debug)]
pub(super) struct Exposition {
    format: Format,
    text: String,
}

impl Exposition {
    pub(super) fn new(format: Format) -> Self {
        Self {
            format,
            text: String::new(),
        }
    }

    /// The series of a counter, a gauge or an info: the values of its labels, in their order, and the series' own.
    pub(super) fn family<const N: usize>(
        &mut self,
        family: &Family,
        series: impl IntoIterator<Item = ([String; N], Value)>,
    ) {
        let series = series.into_iter();
        self.lines(
            family,
            series.map(|(labels, value)| (labels, vec![(family.kind.suffix(), value)])),
        );
    }

    /// The series of a summary: how many, and their sum.
    pub(super) fn summary<const N: usize>(
        &mut self,
        family: &Family,
        series: impl IntoIterator<Item = ([String; N], u64, Value)>,
    ) {
        let series = series.into_iter().map(|(labels, count, sum)| {
            let lines = vec![("_count", Value::Whole(count)), ("_sum", sum)];
            (labels, lines)
        });
        self.lines(family, series);
    }

    fn lines<const N: usize>(
        &mut self,
        family: &Family,
        series: impl Iterator<Item = ([String; N], Vec<(&'static str, Value)>)>,
    ) {
        let mut seen = HashSet::new();
        for (values, lines) in series {
            let labels = labels(family.labels, &values);
            // A collector refuses the whole text if a series comes twice: of mounts over each other, the first counts.
            if seen.contains(&labels) {
                continue;
            }
            if seen.is_empty() {
                self.head(family);
            }
            for (suffix, value) in lines {
                // Writing to a String never fails, here and below.
                let _ = writeln!(self.text, "{}{suffix}{labels} {value}", family.name);
            }
            seen.insert(labels);
        }
    }

    fn head(&mut self, family: &Family) {
        let Family {
            name, unit, help, ..
        } = *family;
        let is_open = self.format == Format::OpenMetrics;
        // The older format knows series only, and no info.
        let (suffix, kind) = match family.kind {
            kind if is_open => ("", kind),
            Kind::Info => (Kind::Info.suffix(), Kind::Gauge),
            kind => (kind.suffix(), kind),
        };
        let kind = kind.name();
        let _ = writeln!(self.text, "# HELP {name}{suffix} {help}.");
        let _ = writeln!(self.text, "# TYPE {name}{suffix} {kind}");
        if is_open && !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
    }

    /// The whole text.
    pub(super) fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text += "# EOF\n";
        }
        self.text
    }
}

fn labels(names: &[&str], values: &[String]) -> String {
    let pairs = names.iter().zip(values);
    let pairs = pairs.map(|(name, value)| format!("{name}=\"{}\"", escaped(value)));
    let pairs: Vec<_> = pairs.collect();
    if pairs.is_empty() {
        String::new()
    } else {
        format!("{{{}}}", pairs.join(","))
    }
}

fn escaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for c in value.chars() {
        match c {
            '\\' => text += "\\\\",
            '"' => text += "\\\"",
            '\n' => text += "\\n",
            // Formats allow these; tools that split lines by any control character do not.
            c if c.is_control() => text.extend(c.escape_default().flat_map(doubled)),
            c => text.push(c),
        }
    }
    text
}

fn doubled(c: char) -> impl Iterator<Item = char> {
    std::iter::repeat_n(c, if c == '\\' { 2 } else { 1 })
}

/// A path as a label: bytes that are not UTF-8 become `\xNN`, so that different paths stay different.
pub(super) fn of_path(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        text += chunk.valid();
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    const READS: Family = Family {
        name: "t_read_bytes",
        kind: Kind::Counter,
        unit: "bytes",
        labels: &["path"],
        help: "Bytes read",
    };

    fn text(format: Format, paths: &[&str]) -> String {
        let mut to = Exposition::new(format);
        let series = paths
            .iter()
            .zip(1..)
            .map(|(path, n)| ([(*path).to_owned()], Value::Whole(n)));
        to.family(&READS, series);
        to.end()
    }

    #[test]
    fn formats_differ_in_the_names_of_counters_and_in_the_end() {
        assert_eq!(
            text(Format::OpenMetrics, &["/a"]),
            "# HELP t_read_bytes Bytes read.\n# TYPE t_read_bytes counter\n# UNIT t_read_bytes bytes\n\
             t_read_bytes_total{path=\"/a\"} 1\n# EOF\n"
        );
        assert_eq!(
            text(Format::Prometheus, &["/a"]),
            "# HELP t_read_bytes_total Bytes read.\n# TYPE t_read_bytes_total counter\n\
             t_read_bytes_total{path=\"/a\"} 1\n"
        );
        assert_eq!(text(Format::OpenMetrics, &[]), "# EOF\n");
    }

    #[test]
    fn duplicate_series_is_written_once() {
        let text = text(Format::Prometheus, &["/a", "/b", "/a"]);
        assert_eq!(text.matches("t_read_bytes_total{").count(), 2, "{text}");
        assert_eq!(text.matches("# TYPE").count(), 1, "{text}");
    }

    #[test]
    fn labels_hold_anything() {
        for (value, expected) in [
            ("a\"b", "a\\\"b"),
            ("a\\b", "a\\\\b"),
            ("a\nb", "a\\nb"),
            ("a\tb\r", "a\\\\tb\\\\r"),
            ("a\u{1b}", "a\\\\u{1b}"),
            ("é", "é"),
        ] {
            assert_eq!(escaped(value), expected);
        }
        let path = Path::new(OsStr::from_bytes(b"/a\xffb\xc3"));
        assert_eq!(of_path(path), "/a\\xffb\\xc3");
    }

    #[test]
    fn seconds_are_exact() {
        for (ns, text) in [
            (0, "0"),
            (1, "0.000000001"),
            (1_500_000_000, "1.5"),
            (10_000_000_000, "10"),
            (u64::MAX, "18446744073.709551615"),
        ] {
            assert_eq!(Value::Nanoseconds(ns).to_string(), text);
        }
        assert_eq!(Value::millis(20).to_string(), "0.02");
        assert_eq!(Value::micros(7).to_string(), "0.000007");
    }
}

//! A strict reader of what collectors of metrics read. Collectors forgive much; a test does not.

use std::collections::{BTreeMap, BTreeSet};

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// As in a query.
    pub name: String,
    /// By their names.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// The series of a text in the format of Prometheus or, if `open`, of `OpenMetrics`.
///
/// # Errors
///
/// The text breaks a rule of the format, or leaves out what the format would allow to be left out: help and type.
pub fn metrics(text: &str, open: bool) -> Result<Vec<Sample>, String> {
    let text = if open {
        text.strip_suffix("# EOF\n")
            .ok_or("it does not end in # EOF")?
    } else {
        text
    };
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("its last line does not end".to_owned());
    }
    let mut reader = Reader {
        open,
        ..Reader::default()
    };
    for (line, number) in text.lines().zip(1..) {
        reader
            .line(line)
            .map_err(|problem| format!("line {number}, {line:?}: {problem}"))?;
    }
    reader.end_family()?;
    Ok(reader.samples)
}

#[derive(Debug, Default)]
struct Reader {
    open: bool,
    /// The family that lines belong to, and its metadata by their words.
    family: String,
    about: BTreeMap<String, String>,
    /// Its series begin after its metadata.
    has_series: bool,
    families: BTreeSet<String>,
    series: BTreeSet<String>,
    samples: Vec<Sample>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Result<(), String> {
        match line.strip_prefix("# ") {
            Some(about) => self.about(about),
            None => self.sample(line),
        }
    }

    fn about(&mut self, about: &str) -> Result<(), String> {
        let mut parts = about.splitn(3, ' ');
        let (Some(word), Some(name), Some(text)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err("no metadata".to_owned());
        };
        if name != self.family {
            self.end_family()?;
            if !is_name(name) {
                return Err("no name".to_owned());
            }
            if !self.families.insert(name.to_owned()) {
                return Err("the family is in two pieces".to_owned());
            }
            name.clone_into(&mut self.family);
            self.about.clear();
            self.has_series = false;
        }
        if self.has_series {
            return Err("metadata after series".to_owned());
        }
        match word {
            "HELP" if !text.is_empty() => unescaped(text, self.open).map(drop)?,
            "TYPE" if ["counter", "gauge", "summary"].contains(&text) => {}
            "TYPE" if self.open && text == "info" => {}
            "UNIT" if self.open && name.ends_with(&format!("_{text}")) => {}
            _ => return Err("metadata that does not fit".to_owned()),
        }
        match self.about.insert(word.to_owned(), text.to_owned()) {
            None => Ok(()),
            Some(_) => Err("twice".to_owned()),
        }
    }

    fn end_family(&self) -> Result<(), String> {
        let has = |word| self.about.contains_key(word);
        let is_whole = self.has_series && has("TYPE") && has("HELP");
        if self.family.is_empty() || is_whole {
            Ok(())
        } else {
            Err(format!("{} lacks help, type or series", self.family))
        }
    }

    fn sample(&mut self, line: &str) -> Result<(), String> {
        let end = line.find(['{', ' ']).ok_or("no value")?;
        let (name, rest) = line.split_at(end);
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (BTreeMap::new(), rest),
        };
        let value = value.strip_prefix(' ').ok_or("no blank before the value")?;
        let number: f64 = value.parse().map_err(|_| "no number")?;
        if !number.is_finite() || number < 0.0 {
            return Err("not a number that is counted".to_owned());
        }
        let kind = self.about.get("TYPE").map_or("", String::as_str);
        let suffix = name.strip_prefix(&self.family).unwrap_or("of another");
        let fits = match kind {
            "counter" if self.open => suffix == "_total",
            "counter" => suffix.is_empty() && name.ends_with("_total"),
            "gauge" => suffix.is_empty(),
            "info" => suffix == "_info" && value == "1",
            "summary" => ["_sum", "_count"].contains(&suffix),
            _ => false,
        };
        if !fits {
            return Err(format!("no {kind} of {}", self.family));
        }
        if !self.series.insert(format!("{name}{labels:?}")) {
            return Err("the series comes twice".to_owned());
        }
        self.has_series = true;
        self.samples.push(Sample {
            name: name.to_owned(),
            labels,
            value: number,
        });
        Ok(())
    }
}

/// The labels after the opening bracket, and what follows the closing one.
fn labels(mut rest: &str) -> Result<(BTreeMap<String, String>, &str), String> {
    let mut labels = BTreeMap::new();
    loop {
        let (name, value) = rest.split_once("=\"").ok_or("no label")?;
        if !is_name(name) || name.contains(':') || name.starts_with("__") {
            return Err(format!("{name:?} names no label"));
        }
        let mut is_escaped = false;
        let end = value.find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        let end = end.ok_or("a label without an end")?;
        let text = unescaped(&value[..end], true)?;
        if labels.insert(name.to_owned(), text).is_some() {
            return Err(format!("{name} comes twice"));
        }
        rest = &value[end + 1..];
        match rest.split_at_checked(1) {
            Some(("}", after)) => return Ok((labels, after)),
            Some((",", more)) => rest = more,
            _ => return Err("labels without an end".to_owned()),
        }
    }
}

fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(is_letter) && text.chars().all(|c| is_letter(c) || c.is_ascii_digit())
}

fn unescaped(text: &str, quotes: bool) -> Result<String, String> {
    let mut plain = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => plain.push('\n'),
                Some('\\') => plain.push('\\'),
                Some('"') if quotes => plain.push('"'),
                _ => return Err("an escape that there is not".to_owned()),
            },
            '"' if quotes => return Err("a quotation mark".to_owned()),
            c => plain.push(c),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_text_is_read() {
        let text = "# HELP a_bytes A.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                    a_bytes_total{x=\"1\\\"\\\\\\n\",y=\"\"} 2.5\na_bytes_total{x=\"2\"} 0\n\
                    # HELP b B.\n# TYPE b info\nb_info 1\n# EOF\n";
        let samples = metrics(text, true).expect("good");
        assert_eq!(samples.len(), 3);
        assert_eq!(samples[0].labels["x"], "1\"\\\n");
        assert_eq!(
            (samples[0].name.as_str(), samples[0].value),
            ("a_bytes_total", 2.5)
        );
        assert!(metrics(text, false).is_err());
        let text = "# HELP a_total A.\n# TYPE a_total counter\na_total 1\n";
        assert_eq!(metrics(text, false).expect("good").len(), 1);
    }

    #[test]
    fn bad_text_is_not() {
        const HEAD: &str = "# HELP a A.\n# TYPE a gauge\n";
        for (lines, why) in [
            ("a 1\na 1\n", "twice"),
            ("a{x=\"1\",x=\"2\"} 1\n", "twice"),
            ("b 1\n", "no gauge of a"),
            ("a_total 1\n", "no gauge of a"),
            ("a one\n", "no number"),
            ("a -1\n", "not a number"),
            ("a NaN\n", "not a number"),
            ("a{x=\"1\\t\"} 1\n", "an escape"),
            ("a{x=\"1} 1\n", "without an end"),
            ("a{x=\"1\" y=\"2\"} 1\n", "without an end"),
            ("a{1=\"1\"} 1\n", "names no label"),
            ("\na 1\n", "no value"),
            ("a 1", "does not end"),
            ("", "lacks"),
            ("a 1\n# HELP a A.\n", "after series"),
            ("# UNIT a bytes\na 1\n", "does not fit"),
            (
                "a 1\n# HELP b B.\n# TYPE b gauge\nb 1\n# HELP a A.\n",
                "two pieces",
            ),
        ] {
            let problem = metrics(&format!("{HEAD}{lines}"), false).expect_err(lines);
            assert!(problem.contains(why), "{lines:?}: {problem}");
        }
        assert!(metrics("a 1\n", false).is_err(), "no metadata");
    }
}

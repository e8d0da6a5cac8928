//! A diagnosis as text, group by group.

use super::diagnosis::Diagnosis;
use super::finding::{Finding, Group, Severity};
use cprt::control::config::Bytes;

use crate::screen::plain;

/// Width of a line, in columns.
const WIDTH: usize = 100;
/// Columns before a sentence, which hold its severity.
const MARGIN: usize = 11;

pub(crate) fn diagnosis(of: &Diagnosis) -> String {
    let mut text = heading(of);
    let mut group: Option<Group> = None;
    for finding in &of.findings {
        if group.replace(finding.group) != Some(finding.group) {
            text.extend(["\n", finding.group.title(), "\n"]);
        }
        text += &one(finding);
    }
    text
}

fn heading(of: &Diagnosis) -> String {
    let directory = plain(&of.directory.display().to_string());
    let backend = of.backend.unwrap_or("no backend");
    let number = |severity, one: &str, many: &str| {
        let findings = of.findings.iter();
        match findings.filter(|it| it.severity == severity).count() {
            0 => None,
            1 => Some(format!("1 {one}")),
            n => Some(format!("{n} {many}")),
        }
    };
    let numbers = [
        number(Severity::Problem, "problem", "problems"),
        number(Severity::Warning, "warning", "warnings"),
    ];
    let numbers: Vec<_> = numbers.into_iter().flatten().collect();
    let sum = if numbers.is_empty() {
        "no problems".to_owned()
    } else {
        numbers.join(", ")
    };
    format!("{directory}: {backend}, {}; {sum}\n", Bytes(of.bytes))
}

fn one(finding: &Finding) -> String {
    let severity = match finding.severity {
        // In capitals, to stand out.
        Severity::Problem => "PROBLEM",
        severity => severity.name(),
    };
    let mut text = wrap(&format!("  {severity:<9}"), &finding.text);
    if let Some(remedy) = &finding.remedy {
        text += &wrap(&format!("{:>MARGIN$}", "-> "), remedy);
    }
    text
}

/// Wraps a sentence, the first line after `lead`. A word longer than a line, such as a path, stays whole.
fn wrap(lead: &str, sentence: &str) -> String {
    let sentence = plain(sentence);
    let mut text = lead.to_owned();
    let mut column = MARGIN;
    for word in sentence.split(' ') {
        let length = word.chars().count();
        if column > MARGIN && column + 1 + length > WIDTH {
            text.push('\n');
            text += &" ".repeat(MARGIN);
            column = MARGIN;
        } else if column > MARGIN {
            text.push(' ');
            column += 1;
        }
        text += word;
        column += length;
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(group: Group, severity: Severity, text: &str, remedy: Option<&str>) -> Finding {
        Finding {
            group,
            code: "code",
            severity,
            text: text.to_owned(),
            remedy: remedy.map(str::to_owned),
        }
    }

    fn of(findings: Vec<Finding>) -> Diagnosis {
        Diagnosis {
            directory: "/srv/m\x1b".into(),
            backend: Some("observe"),
            bytes: 3 << 30,
            severity: Severity::Ok,
            findings,
        }
    }

    #[test]
    fn findings_are_grouped() {
        let long = "word ".repeat(20);
        let path = format!("/{}", "p".repeat(95));
        let findings = vec![
            finding(Group::Backend, Severity::Ok, "observe would be used", None),
            finding(Group::Files, Severity::Note, "a\nb", Some("Mend it")),
            finding(Group::Files, Severity::Problem, long.trim_end(), None),
            finding(Group::Kernel, Severity::Warning, "It is old", Some(&path)),
        ];
        let expected = format!(
            "\
/srv/m\\u{{1b}}: observe, 3 GiB; 1 problem, 1 warning

Backend
  ok       observe would be used

Files
  note     a\\nb
        -> Mend it
  PROBLEM  {}
           word word

Kernel
  warning  It is old
        -> {path}
",
            "word ".repeat(18).trim_end()
        );
        assert_eq!(diagnosis(&of(findings)), expected);
    }

    #[test]
    fn heading_counts_problems_or_reports_none() {
        let mut of = of(vec![finding(Group::Backend, Severity::Note, "x", None)]);
        let text = diagnosis(&of);
        assert!(
            text.starts_with("/srv/m\\u{1b}: observe, 3 GiB; no problems\n"),
            "{text}"
        );
        of.backend = None;
        of.findings[0].severity = Severity::Problem;
        let text = diagnosis(&of);
        assert!(text.contains(": no backend, 3 GiB; 1 problem\n"), "{text}");
    }
}

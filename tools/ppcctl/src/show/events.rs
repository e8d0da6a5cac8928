//! Events as they arrive: the filter, and a line for each event.

use cprt::control::protocol::EventLine;

use crate::args::Events;
use crate::screen::{count, plain};

/// The heading above the lines.
pub(crate) const HEADING: &str =
    "        TIME  KIND      PROCESS   THREAD  CPU           OFFSET         LENGTH  HOW     FILE\n";

/// Whether the event passes the filter.
pub(crate) fn wanted(filter: &Events, event: &EventLine) -> bool {
    let kind = filter.kind.is_empty() || filter.kind.iter().any(|kind| kind.is(&event.kind));
    // Lost events have no process and no file, and so pass any filter on these.
    let is_lost = event.kind == "LOST";
    let process = filter
        .process
        .is_none_or(|process| process == event.process);
    let path = event.path.as_ref().map(|path| path.to_string_lossy());
    let file = filter
        .file
        .as_ref()
        .is_none_or(|pattern| path.is_some_and(|path| pattern.matches(&path)));
    kind && (is_lost || (process && file))
}

/// Formats an event in columns of fixed width, as later events are not known yet.
pub(crate) fn line(event: &EventLine) -> String {
    let file = match (&event.path, event.kind.as_str()) {
        (_, "LOST") => format!("{} events were lost", count(event.count)),
        (Some(path), _) => plain(&path.display().to_string()),
        (None, _) => format!("#{}", event.file),
    };
    let how = match (event.mmap, event.direct) {
        (true, _) => "mmap",
        (false, true) => "direct",
        (false, false) => "",
    };
    let times = match event.count {
        0 | 1 => String::new(),
        _ if event.kind == "LOST" => String::new(),
        n => format!(" ({} merged)", count(n)),
    };
    format!(
        "{:>5}.{:06}  {:<8}  {:>7}  {:>7}  {:>3}  {:>15}  {:>13}  {how:<6}  {file}{times}\n",
        event.time_ns / 1_000_000_000,
        event.time_ns / 1_000 % 1_000_000,
        plain(&event.kind),
        event.process,
        event.thread,
        event.cpu,
        count(event.offset),
        count(event.length),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::EventKind;

    fn event(kind: &str, path: &str) -> EventLine {
        EventLine {
            kind: kind.into(),
            path: Some(path.into()),
            file: 7,
            offset: 1_048_576,
            length: 4_096,
            time_ns: 12_345_678_999,
            count: 1,
            process: 10,
            thread: 11,
            cpu: 3,
            mmap: false,
            direct: false,
        }
    }

    fn filter() -> Events {
        Events {
            mount: "/mnt".into(),
            kind: vec![],
            process: None,
            file: None,
            count: None,
        }
    }

    #[test]
    fn lines_stand_below_their_headings() {
        let line = line(&event("MISS", "a/b"));
        assert_eq!(
            line,
            "   12.345678  MISS           10       11    3        1,048,576          4,096          a/b\n"
        );
        for (heading, cell) in [
            ("TIME", "678"),
            ("PROCESS", "10"),
            ("CPU", "3"),
            ("OFFSET", "576"),
            ("LENGTH", "096"),
        ] {
            let end = |text: &str, part: &str| text.find(part).map(|at| at + part.len());
            assert_eq!(
                end(HEADING, heading),
                end(&line, &format!("{cell} ")).map(|at| at - 1)
            );
        }
        assert_eq!(HEADING.find("FILE"), line.find("a/b"));
    }

    #[test]
    fn lines_tell_how_and_how_many() {
        let mut mapped = event("MISS", "a");
        mapped.mmap = true;
        mapped.count = 1_234;
        assert!(line(&mapped).ends_with("mmap    a (1,234 merged)\n"));
        let mut gone = event("CLOSE", "");
        gone.path = None;
        assert!(line(&gone).ends_with("  #7\n"));
        let mut lost = event("LOST", "");
        lost.count = 5;
        assert!(line(&lost).ends_with("  5 events were lost\n"));
    }

    #[test]
    fn filters_let_through_what_they_say() {
        let miss = event("MISS", "models/a.gguf");
        assert!(wanted(&filter(), &miss));
        let by = |kind: &[EventKind], process, file: Option<&str>| Events {
            kind: kind.to_vec(),
            process,
            file: file.map(|text| text.parse().expect("a pattern")),
            ..filter()
        };
        assert!(wanted(
            &by(
                &[EventKind::Open, EventKind::Miss],
                Some(10),
                Some("*.gguf")
            ),
            &miss
        ));
        assert!(!wanted(&by(&[EventKind::Open], None, None), &miss));
        assert!(!wanted(&by(&[], Some(11), None), &miss));
        assert!(!wanted(&by(&[], None, Some("*.bin")), &miss));
        let mut gone = miss;
        gone.path = None;
        assert!(!wanted(&by(&[], None, Some("*")), &gone));
    }

    #[test]
    fn losses_pass_all_but_the_kind() {
        let mut lost = event("LOST", "");
        lost.path = None;
        lost.process = 0;
        let mut filter = filter();
        filter.process = Some(7);
        filter.file = "x".parse().ok();
        assert!(wanted(&filter, &lost));
        filter.kind = vec![EventKind::Miss];
        assert!(!wanted(&filter, &lost));
    }
}

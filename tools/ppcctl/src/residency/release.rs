//! Drops files from the page cache.

use std::path::PathBuf;

use cprt::control::config::Bytes;
use cprt::residency::{Cache, LeftOut, Released};
use serde::Serialize;

use super::{files, is_failure, shown, tell_left_out};
use crate::args::Release;
use crate::exit::Exit;
use crate::failure::Result;
use crate::screen::{count, print, print_json, remark};

/// Upper bound on processes that are named.
const MOST_NAMED: usize = 8;

/// What became of it.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    files: usize,
    cached_before_bytes: u64,
    cached_bytes: u64,
    /// Files that are still cached.
    staying: Vec<Staying>,
    /// Files of which the kernel does not tell this user what is cached; their pages were dropped nevertheless.
    untold: Vec<PathBuf>,
    failed: Vec<Failed>,
    left_out: Vec<LeftOut>,
}

/// A file that is still cached, at least in part.
#[derive(Debug, Serialize)]
struct Staying {
    path: PathBuf,
    #[serde(flatten)]
    released: Released,
}

/// A file that could not be dropped.
#[derive(Debug, Serialize)]
struct Failed {
    path: PathBuf,
    why: String,
}

pub(crate) fn release(json: bool, wanted: &Release) -> Result<Exit> {
    let found = files(&wanted.paths)?;
    let cache = Cache::new()?;
    let mut outcome = Outcome {
        files: found.files.len(),
        left_out: found.left_out,
        ..Outcome::default()
    };
    for file in &found.files {
        let path = file.path.clone();
        match cache.release(file) {
            Ok(released) => outcome.add(path, released),
            Err(error) => outcome.failed.push(Failed {
                path,
                why: error.to_string(),
            }),
        }
    }
    if json {
        print_json(&outcome)?;
    } else {
        tell_left_out(&outcome.left_out, wanted.quiet);
        for line in outcome.remarks() {
            remark(&line);
        }
        if !wanted.quiet {
            print(&outcome.text())?;
        }
    }
    Ok(outcome.exit())
}

impl Outcome {
    fn add(&mut self, path: PathBuf, released: Released) {
        let (Some(before), Some(after)) = (released.before, released.after) else {
            return self.untold.push(path);
        };
        self.cached_before_bytes += before;
        self.cached_bytes += after;
        if after > 0 {
            self.staying.push(Staying { path, released });
        }
    }

    fn exit(&self) -> Exit {
        if !self.failed.is_empty() || is_failure(&self.left_out) {
            Exit::Failed
        } else if self.cached_bytes > 0 {
            Exit::Partly
        } else if !self.untold.is_empty() {
            Exit::Unchecked
        } else {
            Exit::Done
        }
    }

    fn remarks(&self) -> Vec<String> {
        let failed = self.failed.iter();
        let failed = failed.map(|it| format!("{}: {}", shown(&it.path), it.why));
        let staying = self.staying.iter().map(|it| {
            let cached = Bytes(it.released.after.unwrap_or(0));
            let why = reasons(&it.released).join("; ");
            format!("{}: {cached} still cached: {why}", shown(&it.path))
        });
        let mut lines: Vec<_> = failed.chain(staying).collect();
        if !self.untold.is_empty() {
            lines.push(format!(
                "of {} files, the kernel shows only the owner and root what is cached: whether pages stay is unknown",
                count(self.untold.len() as u64)
            ));
        }
        lines
    }

    fn text(&self) -> String {
        format!(
            "{} dropped, {} still cached, of {} files\n",
            Bytes(self.cached_before_bytes.saturating_sub(self.cached_bytes)),
            Bytes(self.cached_bytes),
            count(self.files as u64)
        )
    }
}

/// Why pages of a file stay, with what can be done.
fn reasons(released: &Released) -> Vec<String> {
    let mut reasons = Vec::new();
    if released.dirty > 0 {
        let dirty = Bytes(released.dirty);
        reasons.push(format!(
            "{dirty} is not yet written to disk ('sync' writes it)"
        ));
    }
    if released.mapped > 0 {
        let mut named: Vec<_> = released.processes.iter().take(MOST_NAMED).collect();
        named.sort();
        let mut named: Vec<_> = named.into_iter().map(ToString::to_string).collect();
        if released.processes.len() > named.len() {
            named.push("others".to_owned());
        }
        let (mapped, named) = (Bytes(released.mapped), named.join(", "));
        reasons.push(if released.locked > 0 {
            let locked = Bytes(released.locked);
            format!("{mapped} is mapped, {locked} of it locked into memory, by {named}")
        } else {
            format!("{mapped} is mapped by {named}")
        });
    }
    if released.stay_unexplained() > 0 {
        let of_it = if released.dirty + released.mapped > 0 {
            "the rest is"
        } else {
            "it is"
        };
        reasons.push(format!(
            "{of_it} being read, or mapped by a process that this user does not see (try as root)"
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stays(dirty: u64, mapped: u64, locked: u64) -> Released {
        Released {
            before: Some(16 << 20),
            after: Some(4 << 20),
            dirty,
            mapped,
            locked,
            processes: vec![70, 7],
        }
    }

    #[test]
    fn the_status_is_that_of_the_worst() {
        let mut outcome = Outcome::default();
        outcome.add(
            "/a".into(),
            Released {
                before: Some(5),
                after: Some(0),
                ..Released::default()
            },
        );
        assert_eq!(outcome.exit(), Exit::Done);
        outcome.add("/b".into(), Released::default());
        assert_eq!(outcome.exit(), Exit::Unchecked);
        outcome.add("/c".into(), stays(0, 0, 0));
        assert_eq!(outcome.exit(), Exit::Partly);
        assert!(outcome.text().ends_with("still cached, of 0 files\n"));
        assert_eq!(outcome.remarks().len(), 2);
        outcome.failed.push(Failed {
            path: "/d".into(),
            why: "gone".into(),
        });
        assert_eq!(outcome.exit(), Exit::Failed);
    }

    #[test]
    fn release_explains_why_pages_stay_cached() {
        let told = |released| reasons(&released).join("; ");
        assert_eq!(
            told(stays(1 << 20, 3 << 20, 0)),
            "1 MiB is not yet written to disk ('sync' writes it); 3 MiB is mapped by 7, 70"
        );
        assert_eq!(
            told(stays(0, 4 << 20, 1 << 20)),
            "4 MiB is mapped, 1 MiB of it locked into memory, by 7, 70"
        );
        assert!(told(stays(0, 1 << 20, 0)).contains("; the rest is being read"));
        assert!(told(stays(0, 0, 0)).starts_with("it is being read"));
    }
}

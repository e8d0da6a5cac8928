//! Checks whether the files of a start are still the ones that were read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

use cprt::control::config::Bytes;
use maio::template::{Identity, Sameness, Template};
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};
use serde::Serialize;

use super::timeline::{Timeline, percent};
use crate::exit::Exit;
use crate::failure::Result;
use crate::screen::{count, plain, print, print_json};

/// The state of a file since it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Fate {
    /// It is the file that was read, or a copy of it.
    Right,
    Changed,
    Gone,
    /// Its path leads to something other than a file, or contains a link, which starts do not follow.
    NoFile,
    Unreadable,
}

impl Fate {
    /// Whether a replay can load the file.
    pub(super) const fn is_there(self) -> bool {
        matches!(self, Self::Right | Self::Changed)
    }

    pub(super) const fn matter(self) -> &'static str {
        match self {
            Self::Right => "the same",
            Self::Changed => "changed since the template was made",
            Self::Gone => "gone",
            Self::NoFile => "no longer a regular file, or reached by a link",
            Self::Unreadable => "cannot be read",
        }
    }

    fn of(then: &Identity, now: io::Result<Identity>) -> Self {
        match now {
            Ok(now) if then.same(&now) == Sameness::Changed => Self::Changed,
            Ok(_) => Self::Right,
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => Self::Gone,
                Some(libc::ELOOP | libc::EISDIR) => Self::NoFile,
                _ => Self::Unreadable,
            },
        }
    }
}

/// The states and current sizes of the files that the next start is expected to read, in the order of the timeline.
pub(super) fn look(template: &Template, timeline: &Timeline) -> Vec<(Fate, u64)> {
    let one = |number: usize| {
        let then = &template.files[number];
        let now = identity(&then.path);
        let size = now.as_ref().map_or(0, |now| now.size);
        (Fate::of(then, now), size)
    };
    let files = timeline.files.iter();
    files.map(|file| one(file.number)).collect()
}

/// The identity of a file, opened as the runtime would, by a path without links. Nothing is read from it.
fn identity(path: &str) -> io::Result<Identity> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let found = File::from(openat2(AT_FDCWD, format!("/{path}").as_str(), how)?);
    let metadata = found.metadata()?;
    if path.ends_with('/') {
        return Ok(Identity::folder(path.to_owned()));
    }
    if !metadata.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let seconds = metadata.mtime().saturating_mul(1_000_000_000);
    Ok(Identity {
        path: path.to_owned(),
        size: metadata.len(),
        mtime_ns: seconds.saturating_add(metadata.mtime_nsec()),
        inode: metadata.ino(),
        header: 0,
    })
}

/// The result of verifying a start.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct StartVerdict<'a> {
    name: &'a str,
    node: &'a str,
    /// Whether all expected files are right.
    right: bool,
    files: usize,
    expected_bytes: u64,
    right_bytes: u64,
    /// The files that are not right, by path.
    wrong: BTreeMap<&'a str, Fate>,
}

impl<'a> StartVerdict<'a> {
    fn of(template: &'a Template, timeline: &'a Timeline, fates: &[(Fate, u64)]) -> Self {
        let mut verdict = Self {
            name: &template.service,
            node: &template.node,
            right: true,
            files: timeline.files.len(),
            expected_bytes: timeline.bytes,
            right_bytes: 0,
            wrong: BTreeMap::new(),
        };
        for (file, &(fate, _)) in timeline.files.iter().zip(fates) {
            if fate == Fate::Right {
                verdict.right_bytes += file.bytes;
            } else {
                verdict.right = false;
                verdict.wrong.insert(&file.path, fate);
            }
        }
        verdict
    }

    fn text(&self) -> String {
        let wrong = self.wrong.iter();
        let mut lines: Vec<_> = wrong
            .map(|(path, fate)| format!("{}: {}", plain(path), fate.matter()))
            .collect();
        let what_now = match self.wrong.len() as u64 {
            0 => String::new(),
            n => format!(
                "; {} files differ, and the next start records them again",
                count(n)
            ),
        };
        lines.push(format!(
            "The start {} on {}: {:.1} % of {} in {} files is unchanged{what_now}",
            plain(self.name),
            plain(self.node),
            percent(self.right_bytes, self.expected_bytes),
            Bytes(self.expected_bytes),
            count(self.files as u64)
        ));
        lines.join("\n") + "\n"
    }
}

pub(crate) fn verify(json: bool, template: &Template) -> Result<Exit> {
    let timeline = Timeline::of(template)?;
    let fates = look(template, &timeline);
    let verdict = StartVerdict::of(template, &timeline, &fates);
    if json {
        print_json(&verdict)?;
    } else {
        print(&verdict.text())?;
    }
    Ok(if verdict.right {
        Exit::Done
    } else {
        Exit::Failed
    })
}

#[cfg(test)]
mod tests {
    use maio::PAGE;

    use super::super::timeline::tests::template;
    use super::*;

    #[test]
    fn file_fate_follows_from_identity_or_error() {
        let then = &template(&[("a", 100)], &[]).files[0];
        let now = |size| Identity {
            size,
            ..then.clone()
        };
        assert_eq!(Fate::of(then, Ok(now(100))), Fate::Right);
        let copied = Identity {
            inode: 77,
            ..now(100)
        };
        assert_eq!(Fate::of(then, Ok(copied)), Fate::Right);
        assert_eq!(Fate::of(then, Ok(now(101))), Fate::Changed);
        for (errno, fate) in [
            (libc::ENOENT, Fate::Gone),
            (libc::ENOTDIR, Fate::Gone),
            (libc::ELOOP, Fate::NoFile),
            (libc::EISDIR, Fate::NoFile),
            (libc::EACCES, Fate::Unreadable),
        ] {
            let error = Err(io::Error::from_raw_os_error(errno));
            assert_eq!(Fate::of(then, error), fate, "{errno}");
        }
    }

    #[test]
    fn verdict_reports_unchanged_share_by_bytes() {
        let files = [("a", 4 * PAGE), ("b", 12 * PAGE)];
        let template = template(&files, &[&[(0, 0, 4), (1, 0, 12)]]);
        let timeline = Timeline::of(&template).expect("a start");
        let all = StartVerdict::of(&template, &timeline, &[(Fate::Right, 1), (Fate::Right, 1)]);
        assert!(all.right);
        assert_eq!(
            all.text(),
            "The start start-x on n: 100.0 % of 64 KiB in 2 files is unchanged\n"
        );
        let some = StartVerdict::of(&template, &timeline, &[(Fate::Gone, 0), (Fate::Right, 1)]);
        let text = some.text();
        assert!(text.starts_with("/a: gone\n"), "{text}");
        assert!(text.contains("75.0 % of 64 KiB in 2 files"), "{text}");
        assert!(text.contains("1 files differ"), "{text}");
    }

    #[test]
    fn links_and_pipes_are_no_files() {
        let folder = std::env::temp_dir().join(format!("ppcctl-{}-verify", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let folder = folder.canonicalize().expect("it is there");
        std::fs::write(folder.join("file"), "abc").expect("a file");
        std::os::unix::fs::symlink("file", folder.join("link")).expect("a link");
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(&folder.join("pipe"), mode).expect("a pipe");
        let of = |name: &str| {
            let path = folder.join(name);
            let path = path.to_str().expect("plain");
            identity(path.trim_start_matches('/'))
        };
        assert_eq!(of("file").expect("a file").size, 3);
        let then = &template(&[("a", 100)], &[]).files[0];
        for (name, fate) in [
            ("link", Fate::NoFile),
            ("pipe", Fate::NoFile),
            ("none", Fate::Gone),
            ("file/below", Fate::Gone),
        ] {
            assert_eq!(Fate::of(then, of(name)), fate, "{name}");
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}

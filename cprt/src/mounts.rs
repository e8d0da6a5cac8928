//! Where rfs is mounted, as the kernel lists it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Error, Result};

const LIST: &str = "/proc/self/mountinfo";

/// A mount of rfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) path: PathBuf,
    pub(crate) lower: PathBuf,
    /// N of `/dev/rfsN`.
    pub(crate) device: u32,
}

/// All mounts of rfs that we see, in order of their paths; of those on top of each other, the top.
pub(crate) fn all() -> Result<Vec<Found>> {
    let text = std::fs::read(LIST).map_err(|source| Error::Read {
        path: LIST.into(),
        source,
    })?;
    Ok(parse(&text))
}

/// The one at a path.
pub(crate) fn at(path: &Path) -> Result<Option<Found>> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    Ok(all()?.into_iter().find(|found| found.path == real))
}

/// The one that a directory is in.
pub(crate) fn of(directory: &Path) -> Option<Found> {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.dev());
    let real = directory.canonicalize().ok()?;
    let mine = device(&real)?;
    let around = |found: &Found| real.starts_with(&found.path) && device(&found.path) == Some(mine);
    all().ok()?.into_iter().rfind(around)
}

/// The number of whatever is mounted at a path, which is another one for every mount.
pub(crate) fn number_at(path: &Path) -> Option<u64> {
    let text = std::fs::read(LIST).ok()?;
    text.split(|&byte| byte == b'\n').rev().find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let number = fields.next()?;
        let place = fields.nth(3)?;
        (unescape(place) == path).then(|| std::str::from_utf8(number).ok()?.parse().ok())?
    })
}

fn parse(text: &[u8]) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let Some((path, mount)) = parse_line(line) else {
            continue;
        };
        // What is mounted later on the same place hides the earlier.
        found.retain(|earlier| earlier.path != path);
        found.extend(mount.map(|(lower, device)| Found {
            path,
            lower,
            device,
        }));
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// A line's mount point and, if it is of the whole of an rfs, the rest:
/// `36 35 0:50 / /mnt ro,relatime shared:1 - rfs /lower ro,odirect=pass,dev=rfs0`
fn parse_line(line: &[u8]) -> Option<(PathBuf, Option<(PathBuf, u32)>)> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let dash = fields.iter().position(|&field| field == b"-")?;
    let path = unescape(fields.get(4)?);
    let [kind, source, options] = fields.get(dash + 1..dash + 4)? else {
        return None;
    };
    // A bind mount of a part of it has another root.
    let is_whole = *kind == b"rfs" && *fields.get(3)? == b"/";
    let device = options
        .split(|&byte| byte == b',')
        .find_map(|option| option.strip_prefix(b"dev=rfs"))
        .and_then(|number| std::str::from_utf8(number).ok()?.parse().ok());
    let rest = device
        .filter(|_| is_whole)
        .map(|device| (unescape(source), device));
    Some((path, rest))
}

/// Blanks, newlines and backslashes are octal there.
pub(crate) fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal = tail.first_chunk::<3>().filter(|_| *first == b'\\');
        let byte = octal.and_then(|digits| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        });
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Tells of changes to the list.
#[derive(Debug)]
pub(crate) struct Changes {
    list: File,
}

impl Changes {
    pub(crate) fn watch() -> Result<Self> {
        let list = File::open(LIST).map_err(|source| Error::Read {
            path: LIST.into(),
            source,
        })?;
        Ok(Self { list })
    }

    /// Sleeps until something is mounted or unmounted anywhere.
    pub(crate) fn wait(&mut self) -> std::io::Result<()> {
        let mut fds = [PollFd::new(self.list.as_fd(), PollFlags::POLLPRI)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        // Nothing is told again before a read.
        let mut some = [0; 64];
        self.list.read(&mut some).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
36 22 0:50 / /models ro,relatime shared:5 master:2 - rfs /data/models ro,odirect=pass,dev=rfs3
37 22 0:51 / /mnt/with\\040blank\\134 ro,relatime - rfs /lo\\040wer ro,odirect=deny,dev=rfs12
38 22 0:50 /sub /bind ro,relatime - rfs /data/models ro,odirect=pass,dev=rfs3
39 22 0:52 / /hidden ro,relatime - rfs /a ro,odirect=pass,dev=rfs4
40 39 0:53 / /hidden rw,relatime - tmpfs tmpfs rw
41 22 0:54 / /twice ro,relatime - rfs /a ro,odirect=pass,dev=rfs5
42 41 0:55 / /twice ro,relatime - rfs /b ro,odirect=pass,dev=rfs6
garbage
43 22 0:56 / /odd ro - rfs
44 22 0:56 / /none ro - rfs /x ro,dev=rfsx
";

    #[test]
    fn whole_and_visible_mounts_are_found() {
        let found: Vec<_> = parse(TEXT)
            .into_iter()
            .map(|found| {
                let Found {
                    path,
                    lower,
                    device,
                } = found;
                (
                    path.display().to_string(),
                    lower.display().to_string(),
                    device,
                )
            })
            .collect();
        let expected = [
            ("/mnt/with blank\\", "/lo wer", 12),
            ("/models", "/data/models", 3),
            ("/twice", "/b", 6),
        ];
        assert_eq!(
            found,
            expected.map(|(path, lower, device)| (path.to_owned(), lower.to_owned(), device))
        );
    }

    #[test]
    fn this_machines_list_parses() {
        all().expect("the list");
        assert_eq!(at(Path::new("/nowhere/at/all")).expect("the list"), None);
    }
}

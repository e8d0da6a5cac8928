//! Mounts, as the kernel lists them in `mountinfo`: the one place that reads that file.
//!
//! [`Mount`] is a line of it. The functions below answer the runtime's questions: which mounts
//! of rfs there are, and whether a directory is still in the same mount.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{Error, Result};

const LIST: &str = "/proc/self/mountinfo";

/// The kind of our mirrors.
pub(crate) const MIRROR: &str = "fuse.cprt";

/// Kinds of file systems that generate their files when they are read.
const MADE_UP: [&str; 18] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// Kinds of file systems that keep their files only in memory.
const IN_MEMORY: [&str; 5] = ["devtmpfs", "hugetlbfs", "ramfs", "rootfs", "tmpfs"];

/// Whether a kind of file system generates its files when they are read, as `proc` does.
#[must_use]
pub fn is_made_up(kind: &str) -> bool {
    MADE_UP.contains(&kind)
}

/// Whether a kind of file system keeps its files only in memory.
#[must_use]
pub fn is_in_memory(kind: &str) -> bool {
    IN_MEMORY.contains(&kind)
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number, unique to each mount.
    pub id: u64,
    /// The number of the mount that this one is in.
    pub parent: u64,
    /// The major part of the file system's device number; 0 where there is no block device.
    pub major: u32,
    /// The minor part.
    pub minor: u32,
    /// The directory of the file system that shows at `point`.
    pub root: PathBuf,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The kind of file system, as `ext4`.
    pub kind: String,
    /// What is mounted: a device, a directory or a name.
    pub source: PathBuf,
    /// The options of the file system, separated by commas.
    pub options: String,
}

impl Mount {
    /// The value of an option of the file system, as of `dev` in `dev=rfs0`.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut options = self.options.split(',');
        options.find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

/// The mounts that the owner of this `/proc` sees, in the order in which they were made.
///
/// # Errors
///
/// The list cannot be read.
pub fn read(proc: &Path) -> io::Result<Vec<Mount>> {
    std::fs::read(proc.join("self/mountinfo")).map(|text| parse(&text))
}

/// The mounts of a list; malformed lines are left out.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<Mount> {
    let lines = text.split(|&byte| byte == b'\n');
    lines.filter_map(parse_line).collect()
}

/// `36 35 8:1 /root /mnt ro,relatime shared:1 - ext4 /dev/sda1 rw,errors=continue`
fn parse_line(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let text = |at: usize| std::str::from_utf8(fields.get(at)?).ok();
    let dash = fields.iter().position(|&field| field == b"-")?;
    let (major, minor) = text(2)?.split_once(':')?;
    Some(Mount {
        id: text(0)?.parse().ok()?,
        parent: text(1)?.parse().ok()?,
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        root: unescape(fields.get(3)?),
        point: unescape(fields.get(4)?),
        kind: text(dash + 1)?.to_owned(),
        source: unescape(fields.get(dash + 2)?),
        options: unescape(fields.get(dash + 3)?).display().to_string(),
    })
}

/// Blanks, newlines and backslashes are octal there.
fn unescape(field: &[u8]) -> PathBuf {
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

fn list() -> Result<Vec<Mount>> {
    read(Path::new("/proc")).map_err(|source| Error::Read {
        path: LIST.into(),
        source,
    })
}

/// The topmost mount at a path.
fn top<'m>(mounts: &'m [Mount], point: &Path) -> Option<&'m Mount> {
    mounts.iter().rfind(|mount| mount.point == point)
}

/// The mount that a path is in.
fn deepest<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    let of_path = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    // The deepest, and of several at one place the topmost, which comes last.
    of_path.max_by_key(|mount| mount.point.components().count())
}

/// Our paths to the file or directory at a path in `theirs`; several, as something may be mounted over the first. Pure.
pub(crate) fn elsewhere(theirs: &[Mount], path: &Path, ours: &[Mount]) -> Vec<PathBuf> {
    let Some(mount) = deepest(theirs, path) else {
        return Vec::new();
    };
    let Ok(within) = path.strip_prefix(&mount.point) else {
        return Vec::new();
    };
    let real = mount.root.join(within);
    let same = |it: &&Mount| (it.major, it.minor) == (mount.major, mount.minor);
    let place = |it: &Mount| {
        let within = real.strip_prefix(&it.root).ok()?;
        Some(it.point.join(within).components().collect())
    };
    ours.iter().filter(same).filter_map(place).collect()
}

/// Identifies the image of a container's root directory by its mounts: the layers of an overlayfs except the first,
/// which may be the container's own. Pure.
pub(crate) fn image(mounts: &[Mount]) -> String {
    let Some(root) = top(mounts, Path::new("/")) else {
        return String::new();
    };
    let layers = lower_layers(root);
    let own = usize::from(layers.len() > 1);
    [&[root.kind.as_str()], &layers[own..]].concat().join(":")
}

/// The layers below a container's root directory, the topmost first, as paths of the host; none if it is not an
/// overlayfs, or if they were mounted from within another directory, by paths from there. Pure.
pub(crate) fn layers(mounts: &[Mount]) -> Vec<PathBuf> {
    let root = top(mounts, Path::new("/")).filter(|root| root.kind == "overlay");
    let layers = root.map(lower_layers).unwrap_or_default();
    if layers.iter().all(|it| it.starts_with('/')) {
        layers.into_iter().map(PathBuf::from).collect()
    } else {
        Vec::new()
    }
}

fn lower_layers(overlay: &Mount) -> Vec<&str> {
    let layers = overlay.options.split(',').filter_map(|option| {
        let rest = option.strip_prefix("lowerdir")?;
        rest.strip_prefix("+=").or_else(|| rest.strip_prefix('='))
    });
    layers.flat_map(|it| it.split(':')).collect()
}

/// The topmost mount at a path, as the kernel lists it now.
pub(crate) fn mounted_at(point: &Path) -> Option<Mount> {
    let mounts = list().ok()?;
    top(&mounts, point).cloned()
}

/// A mount of rfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RfsMount {
    pub(crate) path: PathBuf,
    pub(crate) lower: PathBuf,
    /// N of `/dev/rfsN`.
    pub(crate) device: u32,
}

impl RfsMount {
    /// A bind mount of a part of an rfs is not one: it has another root.
    fn from_mount(mount: &Mount) -> Option<Self> {
        let is_whole = mount.kind == "rfs" && mount.root == Path::new("/");
        let device = mount.option("dev")?.strip_prefix("rfs")?.parse().ok()?;
        is_whole.then(|| Self {
            path: mount.point.clone(),
            lower: mount.source.clone(),
            device,
        })
    }
}

/// All mounts of rfs that we see, in order of their paths; of several at one path, the topmost.
pub(crate) fn all_rfs() -> Result<Vec<RfsMount>> {
    Ok(visible_rfs(&list()?))
}

fn visible_rfs(mounts: &[Mount]) -> Vec<RfsMount> {
    let is_top = |mount: &&Mount| top(mounts, &mount.point).is_some_and(|top| top.id == mount.id);
    let visible = mounts.iter().filter(is_top);
    let mut found: Vec<_> = visible.filter_map(RfsMount::from_mount).collect();
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The mount of rfs at a path.
pub(crate) fn rfs_at(path: &Path) -> Result<Option<RfsMount>> {
    rfs_exactly_at(&path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

/// The same for a path without links, without looking at the path itself.
pub(crate) fn rfs_exactly_at(real: &Path) -> Result<Option<RfsMount>> {
    Ok(all_rfs()?.into_iter().find(|found| found.path == real))
}

/// The mount of rfs that a directory is in.
pub(crate) fn rfs_of(directory: &Path) -> Option<RfsMount> {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|metadata| metadata.dev());
    let real = directory.canonicalize().ok()?;
    let mine = device(&real)?;
    let around =
        |found: &RfsMount| real.starts_with(&found.path) && device(&found.path) == Some(mine);
    all_rfs().ok()?.into_iter().rfind(around)
}

/// The mount that a path is in, by the text of the path alone: a file system whose server does not answer
/// holds up any process that looks at it. The path is absolute and without links. Our own mirrors are ignored,
/// in favour of what they cover.
fn around<'m>(mounts: &'m [Mount], path: &Path) -> Option<&'m Mount> {
    let inner = |of: &Mount| {
        let leads = |mount: &&Mount| mount.parent == of.id && mount.id != of.id;
        let on_the_way = mounts.iter().filter(leads);
        // A lookup from above enters the mount that is highest; at one point, the last one is on top.
        on_the_way
            .filter(|mount| path.starts_with(&mount.point) && mount.point.starts_with(&of.point))
            .filter(|mount| mount.kind != MIRROR)
            .min_by_key(|mount| mount.point.components().count())
    };
    let ids: HashSet<u64> = mounts.iter().map(|mount| mount.id).collect();
    // The root's parent is a mount that we do not see, or itself, for an initial file system in memory.
    let is_root = |mount: &&Mount| {
        let has_parent = mount.parent != mount.id && ids.contains(&mount.parent);
        mount.point == Path::new("/") && !has_parent
    };
    let mut found = mounts.iter().find(is_root)?;
    // There are no more steps than mounts.
    for _ in 0..mounts.len() {
        match inner(found) {
            Some(next) => found = next,
            None => break,
        }
    }
    Some(found)
}

/// The number of the mount that a path is in, ignoring our own mirrors.
pub(crate) fn id_around(path: &Path) -> Option<u64> {
    let mounts = list().ok()?;
    around(&mounts, path).map(|mount| mount.id)
}

/// The number of the topmost mount at a path.
pub(crate) fn id_at(path: &Path) -> Option<u64> {
    mounted_at(path).map(|mount| mount.id)
}

/// Reports changes to the list.
#[derive(Debug)]
pub(crate) struct MountChanges {
    list: File,
}

impl MountChanges {
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
        // The next change is reported only after a read.
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
        let found: Vec<_> = visible_rfs(&parse(TEXT))
            .into_iter()
            .map(|found| {
                let RfsMount {
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
    fn container_paths_and_layers_are_found_on_the_host() {
        let theirs = parse(
            b"1 0 0:60 / / rw - overlay overlay rw,lowerdir=/l/own:/l/b:/l/a,upperdir=/u\n\
              2 1 254:0 /srv/models /models ro - ext4 /dev/vda rw\n\
              3 1 0:7 / /models/cache rw - tmpfs tmpfs rw\n",
        );
        let ours = parse(
            b"1 0 254:0 / / rw - ext4 /dev/vda rw\n\
              2 1 254:0 /srv/models/a /mnt ro - ext4 /dev/vda rw\n\
              3 1 0:60 / /var/lib/merged rw - overlay overlay rw\n",
        );
        let places = |path| elsewhere(&theirs, Path::new(path), &ours);
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(places("/models/a/x"), paths(&["/srv/models/a/x", "/mnt/x"]));
        assert_eq!(places("/models/b"), paths(&["/srv/models/b"]));
        assert_eq!(places("/models/cache/x"), paths(&[]));
        assert_eq!(places("/usr/bin"), paths(&["/var/lib/merged/usr/bin"]));
        assert_eq!(image(&theirs), "overlay:/l/b:/l/a");
        assert_eq!(image(&ours), "ext4");
        assert_eq!(layers(&theirs), paths(&["/l/own", "/l/b", "/l/a"]));
        assert!(layers(&ours).is_empty());
        let within = parse(b"1 0 0:60 / / rw - overlay o rw,lowerdir=2/fs:1/fs,upperdir=3/fs\n");
        assert!(layers(&within).is_empty());
        let one = parse(b"1 0 0:60 / / rw - overlay o rw,lowerdir+=/l/a,upperdir=/u\n");
        assert_eq!(image(&one), "overlay:/l/a");
    }

    #[test]
    fn mountinfo_of_this_machine_is_parsed() {
        all_rfs().expect("the list");
        assert_eq!(
            rfs_at(Path::new("/nowhere/at/all")).expect("the list"),
            None
        );
    }

    #[test]
    fn a_line_is_read_whole() {
        let line = b"36 35 0:50 /sub /with\\040blank ro,relatime shared:1 master:2 - fuse.cprt /a\\134b ro,x=1";
        let [mount] = &parse(line)[..] else {
            panic!("one line, one mount");
        };
        assert_eq!((mount.id, mount.parent, mount.minor), (36, 35, 50));
        assert_eq!(mount.root, Path::new("/sub"));
        assert_eq!(mount.point, Path::new("/with blank"));
        assert_eq!(mount.kind, "fuse.cprt");
        assert_eq!(mount.source, Path::new("/a\\b"));
        assert_eq!((mount.option("x"), mount.option("y")), (Some("1"), None));
        for length in 0..line.len() {
            // A line that is cut off is not a mount, or has shorter options.
            assert!(parse(&line[..length]).len() <= 1);
        }
    }

    #[test]
    fn the_mount_on_top_counts() {
        let mounts = parse(TEXT);
        let kind = |at| top(&mounts, Path::new(at)).map(|mount| mount.kind.as_str());
        assert_eq!(kind("/hidden"), Some("tmpfs"));
        assert_eq!(kind("/nowhere"), None);
    }

    #[test]
    fn a_path_is_in_the_mount_that_the_way_to_it_ends_in() {
        let text = b"\
22 1 8:1 / / rw - ext4 /dev/sda1 rw
30 22 0:50 / /srv/models rw - tmpfs a rw
31 22 0:51 / /srv rw - tmpfs b rw
32 31 0:52 / /srv/models rw - tmpfs c rw
33 32 0:53 / /srv/models rw - tmpfs d rw
34 33 0:54 / /srv/models ro - fuse.cprt e ro
35 22 0:55 / /srvx rw - tmpfs f rw
";
        let mounts = parse(text);
        let id = |path: &str| around(&mounts, Path::new(path)).map(|mount| mount.id);
        assert_eq!(id("/"), Some(22));
        assert_eq!(id("/srv"), Some(31), "the one below is hidden");
        assert_eq!(id("/srv/other"), Some(31));
        assert_eq!(id("/srv/models"), Some(33), "a mirror is not what it shows");
        assert_eq!(id("/srv/models/m/f"), Some(33));
        assert_eq!(id("/srvx/m"), Some(35), "words, not letters");
        assert_eq!(around(&[], Path::new("/")), None);
        let own_parent =
            parse(b"1 1 0:2 / / rw - rootfs rootfs rw\n40 1 0:50 / /m rw - tmpfs a rw\n");
        let id = |path: &str| around(&own_parent, Path::new(path)).map(|mount| mount.id);
        assert_eq!((id("/m/f"), id("/x")), (Some(40), Some(1)));
        assert!(id_around(Path::new("/")).is_some(), "of this machine");
    }

    #[test]
    fn octal_escapes() {
        for (text, path) in [
            ("/a\\040b\\134c", "/a b\\c"),
            ("/a\\", "/a\\"),
            ("/a\\04", "/a\\04"),
            ("/a\\999", "/a\\999"),
            ("/a\\777", "/a\\777"),
        ] {
            assert_eq!(unescape(text.as_bytes()), Path::new(path));
        }
    }
}

//! What `/proc` says about a process that has executed a program.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::Mode;

use super::containers::ContainerFacts;
use crate::control::start_name::{start_name, start_name_in};
use crate::machine::image_name;
use crate::machine::mappings::Identity;
use crate::machine::model::{self, Surroundings};
use crate::machine::mountinfo::{self, Mount};
use crate::machine::reach::{self, Reach};

/// Upper bound on bytes read of a command line or an environment.
const LONGEST: u64 = 128 << 10;
/// Where CRI-O keeps what it knows of a container while that runs.
const CRIO: &str = "/run/containers/storage/overlay-containers";
/// Upper bound on ancestors of a process that are looked at.
const ANCESTORS: usize = 64;

/// A process that has executed a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) life: Life,
    /// The path of the program as it was executed, without following links.
    pub(super) program: String,
    pub(super) arguments: Vec<OsString>,
    pub(super) cgroup: String,
    /// Identifies the image of its container; `None` if its root directory is ours.
    pub(super) image: Option<String>,
    /// What its runtime says of its container, if the process has yet to execute the program.
    pub(super) container: Option<Box<ContainerFacts>>,
}

impl Facts {
    /// The name of its start, if the settings give none.
    pub(super) fn start_name(&self) -> String {
        let arguments: Vec<_> = self.words().collect();
        match &self.image {
            Some(image) => start_name_in(image, &self.program, &arguments),
            None => start_name(&self.program, &arguments),
        }
    }

    /// The name of the image of its container.
    pub(super) fn image_name(&self) -> Option<String> {
        let said = self.container.as_ref().and_then(|it| it.image.clone());
        said.or_else(|| image_name::image_name(&self.cgroup))
    }

    /// The layers of its container's root directory, on the host.
    pub(super) fn layers(&self) -> Vec<PathBuf> {
        mountinfo::layers(&mounts_of(self.life.process))
    }

    /// The arguments as text.
    pub(super) fn words(&self) -> impl Iterator<Item = String> {
        let words = self.arguments.iter();
        words.map(|word| word.to_string_lossy().into_owned())
    }
}

/// A process; its start time distinguishes it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    pub(super) process: u32,
    started: u64,
}

impl Life {
    pub(super) fn of(process: u32) -> Option<Self> {
        let started = stat(process)?.started;
        Some(Self { process, started })
    }

    #[cfg(test)]
    pub(super) const fn at(process: u32, started: u64) -> Self {
        Self { process, started }
    }

    /// Whether it still runs.
    pub(super) fn is_there(self) -> bool {
        stat(self.process).is_some_and(|it| it.started == self.started && !it.is_dead)
    }
}

fn folder(process: u32) -> PathBuf {
    Path::new("/proc").join(process.to_string())
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(LONGEST).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Reads the facts of a process; `None` if it has gone.
pub(super) fn of(process: u32, executed: &Path) -> Option<Facts> {
    let folder = folder(process);
    let life = Life::of(process)?;
    let here = folder.join("cwd").read_link().ok()?;
    let program = std::path::absolute(here.join(executed)).ok()?;
    let words = words(&read(&folder.join("cmdline"))?);
    let is_itself = || {
        let really = folder.join("exe").metadata().ok()?;
        Some(inside(process, &program)? == Identity::of(&really))
    };
    // For a script, the kernel executes the interpreter and makes its command line.
    let is_script = is_itself() == Some(false);
    let cgroup = String::from_utf8(read(&folder.join("cgroup"))?).ok()?;
    Some(Facts {
        life,
        arguments: arguments(executed.as_os_str(), is_script, words),
        program: program.to_string_lossy().into_owned(),
        cgroup: own_cgroup(&cgroup).to_owned(),
        image: image(process),
        container: None,
    })
}

/// The facts of a container's first process, which waits to execute the container's program; `None` if it has gone, or
/// the program is not there.
pub(super) fn of_container(container: Box<ContainerFacts>) -> Option<Facts> {
    let process = container.process.or_else(|| first_process(&container.id))?;
    let life = Life::of(process)?;
    let (program, arguments) = container.arguments.split_first()?;
    let here = folder(process).join("cwd").read_link().ok()?;
    let program = if program.contains('/') {
        std::path::absolute(here.join(program)).ok()?
    } else {
        let path = container.environment.iter();
        let path = path.filter_map(|it| it.strip_prefix("PATH=")).next_back()?;
        let mut places = path.split(':').map(|it| Path::new(it).join(program));
        places.find(|it| it.is_absolute() && inside(process, it).is_some())?
    };
    let cgroup = String::from_utf8(read(&folder(process).join("cgroup"))?).ok()?;
    Some(Facts {
        life,
        program: program.to_string_lossy().into_owned(),
        arguments: arguments.iter().map(OsString::from).collect(),
        cgroup: own_cgroup(&cgroup).to_owned(),
        image: image(process),
        container: Some(container),
    })
}

/// The first process of a container of CRI-O, which does not name it to plugins.
fn first_process(container: &str) -> Option<u32> {
    let is_plain = container.bytes().all(|it| it.is_ascii_alphanumeric());
    let folder = Path::new(CRIO).join(container);
    let file = is_plain.then(|| folder.join("userdata/pidfile"))?;
    String::from_utf8(read(&file)?).ok()?.trim().parse().ok()
}

/// Identifies the image of the container that a process is in.
fn image(process: u32) -> Option<String> {
    (!shares(process, "root")).then(|| mountinfo::image(&mounts_of(process)))
}

/// The mounts that a process sees.
fn mounts_of(process: u32) -> Vec<Mount> {
    let list = folder(process).join("mountinfo");
    mountinfo::parse(&fs::read(list).unwrap_or_default())
}

/// The file at a path as a process sees it, following links in its view.
fn inside(process: u32, path: &Path) -> Option<Identity> {
    let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    let root = nix::fcntl::open(&folder(process).join("root"), flags, Mode::empty()).ok()?;
    let how = OpenHow::new()
        .flags(flags)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    let found = File::from(openat2(root, path, how).ok()?);
    Some(Identity::of(&found.metadata().ok()?))
}

/// What each running process may have been started as: its program, and for an interpreter also its script.
pub(super) fn of_all() -> Vec<Facts> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut all = Vec::new();
    for process in processes {
        let Some(words) = read(&folder(process).join("cmdline")).map(|text| words(&text)) else {
            continue;
        };
        let is_path = |word: &&OsString| word.as_bytes().starts_with(b"/");
        let program = words.first().filter(is_path).map(PathBuf::from);
        let program = program.or_else(|| folder(process).join("exe").read_link().ok());
        let script = words
            .iter()
            .take(3)
            .skip(1)
            .find(is_path)
            .map(PathBuf::from);
        let names = [program, script.filter(|it| it.is_file())];
        all.extend(
            names
                .into_iter()
                .flatten()
                .filter_map(|it| of(process, &it)),
        );
    }
    all
}

fn words(text: &[u8]) -> Vec<OsString> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    let words = text.split(|&byte| byte == 0);
    words
        .map(|word| OsString::from_vec(word.to_vec()))
        .collect()
}

/// A program's arguments: the words of its command line after its name. A script's command line has its interpreter,
/// perhaps one argument of the interpreter, the script and the script's arguments.
fn arguments(executed: &OsStr, is_script: bool, words: Vec<OsString>) -> Vec<OsString> {
    let of_script = || {
        words
            .iter()
            .take(3)
            .skip(1)
            .position(|word| word == executed)
    };
    let before = match is_script.then(of_script).flatten() {
        Some(place) => place + 2,
        None => 1,
    };
    words.into_iter().skip(before).collect()
}

/// The cgroup in the unified hierarchy, or in systemd's own where there are several.
fn own_cgroup(text: &str) -> &str {
    let path = |start: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| {
            line.strip_prefix(start)
                .filter(|path| path.starts_with('/'))
        })
    };
    let of_systemd = text
        .lines()
        .find_map(|line| line.split_once(":name=systemd:"));
    let one = path("0::").filter(|path| *path != "/");
    one.or(of_systemd.map(|(_, path)| path)).unwrap_or("/")
}

/// The numbers of `/proc/PID/stat` that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    is_dead: bool,
    parent: u32,
    /// Since boot, in ticks.
    started: u64,
}

fn stat(process: u32) -> Option<Stat> {
    parse_stat(&String::from_utf8_lossy(&read(
        &folder(process).join("stat"),
    )?))
}

/// The name, which comes second and in brackets, may itself contain brackets and blanks.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut words = rest.split_ascii_whitespace();
    let is_dead = matches!(words.next()?, "Z" | "X");
    let parent = words.next()?.parse().ok()?;
    let started = words.nth(17)?.parse().ok()?;
    Some(Stat {
        is_dead,
        parent,
        started,
    })
}

/// Whether another worker follows it already: an ancestor's start is under way, or an ancestor is `ppcctl`.
pub(super) fn is_attended(process: u32, under_way: &[u32]) -> bool {
    under_way.contains(&process)
        || ancestors(process).any(|one| under_way.contains(&one) || is_ppcctl(one))
}

/// The ancestors of a process, up to init.
pub(super) fn ancestors(process: u32) -> impl Iterator<Item = u32> {
    let parent = |one: &u32| stat(*one).map(|it| it.parent).filter(|&it| it > 1);
    std::iter::successors(parent(&process), parent).take(ANCESTORS)
}

fn is_ppcctl(process: u32) -> bool {
    let program = folder(process).join("exe").read_link();
    program.is_ok_and(|program| program.file_name() == Some(OsStr::new("ppcctl")))
}

/// Whether a process shares this with us: its `root` directory, its mounts (`ns/mnt`).
fn shares(process: u32, name: &str) -> bool {
    let identity = |path: PathBuf| path.metadata().ok().map(|found| Identity::of(&found));
    let own = identity(Path::new("/proc/self").join(name));
    own.is_some() && identity(folder(process).join(name)) == own
}

/// The directory of the model that a process is to load, widened to include what its links lead to.
pub(super) fn model_of(facts: &Facts, said: Option<&Path>) -> Option<PathBuf> {
    let named = match said {
        Some(said) => said.to_owned(),
        None => named_model(facts)?,
    };
    let real = named.canonicalize().ok().filter(|it| it.is_dir())?;
    Some(match reach::of(&real) {
        Reach::Wider(wider) => wider,
        Reach::Itself | Reach::TooFar(_) => real,
    })
}

fn named_model(facts: &Facts) -> Option<PathBuf> {
    let process = facts.life.process;
    let folder = folder(process);
    let here = folder.join("cwd").read_link().ok()?;
    let environment = match &facts.container {
        // Its process has that of the runtime until it executes the program.
        Some(container) => container.environment.iter().map(OsString::from).collect(),
        None => words(&read(&folder.join("environ")).unwrap_or_default()),
    };
    let is_ours = shares(process, "root") && shares(process, "ns/mnt");
    let theirs = (!is_ours).then(|| mounts_of(process));
    // For a container: where we see the path, through one of its volumes or its root directory.
    let ours = |text: &OsStr| {
        let theirs = theirs.as_deref()?;
        let path = Path::new(text);
        path.is_absolute()
            .then(|| in_our_view(process, theirs, path))?
            .map(PathBuf::into_os_string)
    };
    let variable = |name: &str| {
        environment.iter().find_map(|one| {
            let value = one.as_bytes().strip_prefix(name.as_bytes())?;
            let value = OsStr::from_bytes(value.strip_prefix(b"=")?);
            Some(ours(value).unwrap_or_else(|| value.to_owned()))
        })
    };
    let arguments = facts.arguments.iter().map(|argument| {
        let bytes = argument.as_bytes();
        let sign = bytes.iter().position(|&byte| byte == b'=');
        let at = sign
            .filter(|_| bytes.starts_with(b"-"))
            .map_or(0, |it| it + 1);
        let value = ours(OsStr::from_bytes(&bytes[at..]));
        value.map_or_else(
            || argument.clone(),
            |value| OsString::from_vec([&bytes[..at], value.as_bytes()].concat()),
        )
    });
    let arguments: Vec<_> = arguments.collect();
    let here = ours(here.as_os_str()).map_or(here, PathBuf::from);
    let around = Surroundings {
        here: &here,
        variable: &variable,
    };
    let found = model::named(&arguments, &around)?;
    // For a container, a path that we cannot find in our view may name another model here.
    let is_theirs = theirs.is_none() || arguments.iter().any(|it| !facts.arguments.contains(it));
    is_theirs.then_some(found)
}

/// Our path to the file that a process has at a path.
fn in_our_view(process: u32, theirs: &[Mount], path: &Path) -> Option<PathBuf> {
    let there = inside(process, path)?;
    let ours = mountinfo::read(Path::new("/proc")).ok()?;
    let is_it = |place: &PathBuf| {
        let found = place.metadata().ok();
        found.is_some_and(|found| Identity::of(&found) == there)
    };
    let mut places = mountinfo::elsewhere(theirs, path, &ours).into_iter();
    places.find(is_it)
}

/// Bytes that a process has read so far, and those of files that it has in memory by mappings.
pub(super) fn bytes_read(process: u32) -> Option<u64> {
    let number = |file: &str, key: &str| {
        let text = fs::read_to_string(folder(process).join(file)).ok()?;
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
        value.split_ascii_whitespace().next()?.parse::<u64>().ok()
    };
    let mapped = number("status", "RssFile").unwrap_or(0) << 10;
    Some(number("io", "rchar")?.saturating_add(mapped))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(executed: &str, is_script: bool, line: &str) -> String {
        let words = words(line.replace(' ', "\0").as_bytes());
        let rest = arguments(OsStr::new(executed), is_script, words);
        let rest: Vec<_> = rest.iter().map(|it| it.to_string_lossy()).collect();
        rest.join(" ")
    }

    #[test]
    fn arguments_omit_the_program_and_its_interpreter() {
        assert_eq!(
            told("/usr/bin/python3", false, "python3 a.py --x "),
            "a.py --x"
        );
        assert_eq!(told("/bin/true", false, "true"), "");
        // The program's own name is an argument like any other.
        assert_eq!(told("/bin/a", false, "a /bin/a b"), "/bin/a b");
        let line = "/venv/bin/python3 /venv/bin/vllm serve /srv/m";
        assert_eq!(told("/venv/bin/vllm", true, line), "serve /srv/m");
        assert_eq!(told("./x.sh", true, "/bin/sh -e ./x.sh 1 2"), "1 2");
        // A process may have overwritten its command line, which is then taken as it is.
        assert_eq!(told("./x.sh", true, "server: ready"), "ready");
        assert_eq!(told("/bin/a", false, ""), "");
    }

    #[test]
    fn cgroups_of_either_version() {
        for (text, expected) in [
            ("0::/system.slice/a.service\n", "/system.slice/a.service"),
            (
                "5:memory:/x\n1:name=systemd:/user.slice/b.scope\n0::/\n",
                "/user.slice/b.scope",
            ),
            ("0::/\n", "/"),
            ("", "/"),
        ] {
            assert_eq!(own_cgroup(text), expected, "{text}");
        }
    }

    #[test]
    fn a_process_may_call_itself_anything() {
        let numbers = "1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 777 9";
        let stat = parse_stat(&format!("12 (a) R 5 (b)) S 42 {numbers}")).expect("a stat");
        assert_eq!((stat.parent, stat.started, stat.is_dead), (42, 777, false));
        assert_eq!(parse_stat("12 (a"), None);
    }

    #[test]
    fn own_process_facts_are_read_correctly() {
        let own = std::process::id();
        let program = std::env::current_exe().expect("a program");
        let facts = of(own, &program).expect("it is there");
        let arguments: Vec<_> = std::env::args_os().skip(1).collect();
        assert_eq!(
            (facts.program, facts.arguments),
            (program.display().to_string(), arguments)
        );
        assert!(facts.life.is_there() && shares(own, "root") && shares(own, "ns/mnt"));
        assert_eq!(facts.image, None);
        assert!(!is_attended(own, &[]) && is_attended(own, &[std::os::unix::process::parent_id()]));
        assert!(bytes_read(own).is_none_or(|bytes| bytes > 0));
        let later = Life {
            started: facts.life.started + 1,
            ..facts.life
        };
        assert!(!later.is_there());
    }
}

//! `mount -t rfs`: mounts a directory with the best backend for cache policies on this machine.
//!
//! ```text
//! command line ─ options ─ choice of a backend ─┬─ module: mount(2)            ─┐
//!                                               ├─ observe: a read-only bind   ─┼─ hold, if there is
//!                                               └─ fuse: mounted by the worker ─┘  something to hold
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cprt::backend::select::{self, Candidate, Verdict};
use cprt::control::kind::BackendKind;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

mod hold;
mod options;

use hold::Task;
use options::{Line, Odirect, Options, Splice};

const HELP: &str = "\
Mounts a directory read-only, with the best backend for cache policies on this machine.

Usage: mount -t rfs LOWER MNT [-o OPTIONS]
       mount.rfs LOWER MNT [-sfnv] [-o OPTIONS]

LOWER and MNT may be the same directory. Options, besides those of all file systems:

  backend=auto|module|observe|fuse   the backend; auto takes the first that works
  odirect=pass|deny                  whether readers may bypass the page cache; deny requires the module
  splice=pass|copy                   whether splice and sendfile hand out pages of the page cache, or
                                     copies; copy requires the module
  passthrough=yes|no                 for fuse: whether the kernel may read the files itself
  policy=NAME                        the policy while it is mounted: a name in /usr/lib/ppc or a
                                     path without commas
  service-id=ID, set.KEY=VALUE       settings of the policy

Without policy=, 'ppcctl reg-policy' gives a mount of the module its policy.

Exit status: 0 mounted, 1 invalid command line, 2 system error, 32 not mounted.";

/// Why the directory was not mounted.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error("{}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("{doing}")]
    System {
        doing: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Runtime(cprt::Error),
    #[error("{0}")]
    Refused(String),
}

impl Failure {
    /// The exit status, as documented by `mount`.
    fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 1,
            Self::System { .. } | Self::Runtime(_) => 2,
            Self::Directory { .. } | Self::Refused(_) => 32,
        }
    }
}

fn main() -> ExitCode {
    let words: Result<Vec<_>, _> = std::env::args_os()
        .skip(1)
        .map(std::ffi::OsString::into_string)
        .collect();
    let done = match &words {
        Ok(words) => called_with(words),
        Err(word) => Err(Failure::Usage(format!("{} is not UTF-8", word.display()))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("mount.rfs: {}", cprt::error::chain(&failure));
            ExitCode::from(failure.code())
        }
    }
}

fn called_with(words: &[String]) -> Result<(), Failure> {
    let texts: Vec<_> = words.iter().map(String::as_str).collect();
    match texts[..] {
        // Only this program calls itself with these three; the second word makes process listings
        // show the mount.
        ["worker", _] => cprt::worker::process::run().map_err(Failure::Runtime),
        [hold::ARGUMENT, _] => hold::run().map_err(|source| Failure::System {
            doing: "Holding the mount",
            source,
        }),
        ["topology"] => cprt::machine::topology::Topology::detect()
            .map(|topology| print!("{topology}"))
            .map_err(Failure::Runtime),
        ["-h" | "--help"] => {
            println!("{HELP}");
            Ok(())
        }
        ["-V" | "--version"] => {
            println!("mount.rfs {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        _ => run(words),
    }
}

fn run(words: &[String]) -> Result<(), Failure> {
    let line = options::line(words)
        .map_err(|problem| Failure::Usage(format!("{problem}; 'mount.rfs --help' has more")))?;
    let lower = directory(&line.lower)?;
    let at = directory(&line.at)?;
    if line.options.remount {
        return remount(&line, &at);
    }
    let (kind, why) = choose(&line, &lower)?;
    let library = library(&line, kind)?;
    if line.fake {
        return Ok(());
    }
    match kind {
        BackendKind::Module => module(&line, &lower, &at)?,
        BackendKind::Observe => bind(&line, &lower, &at)?,
        // The worker mounts it.
        BackendKind::Fuse => {}
    }
    if let Some(library) = library {
        let task = Task {
            kind,
            lower,
            at: at.clone(),
            library,
            settings: line.options.settings.clone(),
            passthrough: line.options.passthrough,
        };
        if let Err(failure) = hold::start(&task) {
            if kind != BackendKind::Fuse {
                let _ = umount2(&at, MntFlags::MNT_DETACH);
            }
            return Err(failure);
        }
    }
    println!(
        "mount.rfs: {} on {} by {kind}{why}",
        line.lower.display(),
        at.display()
    );
    Ok(())
}

/// The directory's real path.
fn directory(given: &Path) -> Result<PathBuf, Failure> {
    let failed = |source| Failure::Directory {
        path: given.to_owned(),
        source,
    };
    let real = match given.canonicalize() {
        Ok(real) => real,
        // A mirror whose process was killed: its mount point leads nowhere, so it is reused.
        Err(error) if error.raw_os_error() == Some(nix::libc::ENOTCONN) => {
            return Ok(given.to_owned());
        }
        Err(error) => return Err(failed(error)),
    };
    match std::fs::metadata(&real) {
        Ok(metadata) if !metadata.is_dir() => Err(failed(io::ErrorKind::NotADirectory.into())),
        _ => Ok(real),
    }
}

/// The backend, and a text to append to a line with why it is not a better one.
fn choose(line: &Line, lower: &Path) -> Result<(BackendKind, String), Failure> {
    if line
        .options
        .backend
        .is_none_or(|kind| kind == BackendKind::Module)
    {
        select::load_module();
    }
    let candidates = select::candidates(lower);
    let wanted = |one: &&Candidate| line.options.backend.is_none_or(|kind| kind == one.kind);
    let mut reasons = Vec::new();
    for Candidate { kind, verdict } in candidates.iter().filter(wanted) {
        match verdict {
            Verdict::Usable { .. } => {
                if let Some(option) = requires_module(&line.options)
                    && *kind != BackendKind::Module
                {
                    reasons.push(format!("not {kind}: {option} requires the module"));
                    continue;
                }
                let why: String = reasons.iter().flat_map(|reason| [", ", reason]).collect();
                return Ok((*kind, why));
            }
            Verdict::Unusable { why, remedy } => {
                let remedy = remedy.as_ref().map(|remedy| format!(" ({remedy})"));
                reasons.push(format!("not {kind}: {why}{}", remedy.unwrap_or_default()));
            }
        }
    }
    Err(Failure::Refused(format!(
        "no backend works here: {}",
        reasons.join("; ")
    )))
}

/// The option that no other backend has: only the module sees open flags and serves `splice` itself.
fn requires_module(options: &Options) -> Option<&'static str> {
    match (options.odirect, options.splice) {
        (Odirect::Deny, _) => Some("odirect=deny"),
        (_, Splice::Copy) => Some("splice=copy"),
        (Odirect::Pass, Splice::Pass) => None,
    }
}

/// The policy to hold. A backend that serves files needs one in any case.
fn library(line: &Line, kind: BackendKind) -> Result<Option<PathBuf>, Failure> {
    let given = match (&line.options.policy, kind) {
        (Some(policy), _) => policy.clone(),
        (None, BackendKind::Fuse) => "null".into(),
        (None, _) => return Ok(None),
    };
    cprt::daemon::policies::look_up(&given)
        .map(Some)
        .map_err(|problem| Failure::Refused(problem.to_string()))
}

fn module(line: &Line, lower: &Path, at: &Path) -> Result<(), Failure> {
    let odirect = match line.options.odirect {
        Odirect::Pass => "odirect=pass",
        Odirect::Deny => "odirect=deny",
    };
    // A module that is older than the option need not know its default.
    let splice = match line.options.splice {
        Splice::Pass => "",
        Splice::Copy => ",splice=copy",
    };
    let data = format!("{odirect}{splice}");
    let flags = line.options.flags;
    mount(Some(lower), at, Some("rfs"), flags, Some(data.as_str())).map_err(failed("Mounting rfs"))
}

fn bind(line: &Line, lower: &Path, at: &Path) -> Result<(), Failure> {
    let nothing = None::<&str>;
    mount(Some(lower), at, nothing, MsFlags::MS_BIND, nothing)
        .map_err(failed("Binding the directory"))?;
    // A bind mount takes its own flags only in a second call.
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | line.options.flags;
    mount(nothing, at, nothing, flags, nothing).map_err(|error| {
        let _ = umount2(at, MntFlags::MNT_DETACH);
        failed("Making the bind mount read-only")(error)
    })
}

fn remount(line: &Line, at: &Path) -> Result<(), Failure> {
    let nothing = None::<&str>;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | line.options.flags;
    if line.fake {
        return Ok(());
    }
    // Only the flags of the mount change: everything else is fixed when it is mounted.
    mount(nothing, at, nothing, flags, nothing).map_err(failed("Remounting"))
}

fn failed(doing: &'static str) -> impl Fn(nix::Error) -> Failure {
    move |error| match error {
        nix::Error::EPERM => Failure::Refused(format!("{doing}: only root may do this")),
        error => Failure::System {
            doing,
            source: error.into(),
        },
    }
}

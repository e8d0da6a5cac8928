//! Finds the best backend for a directory on this machine, and says why no better one works.
//!
//! The order is: `module`, which sees and does most and costs readers nothing; `observe`, which needs
//! rights but leaves the mount as it is; `fuse`, for ordinary users. What can be found out only by
//! trying is tried and then undone.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::backend::{beneath, fuse, observe};
use crate::control::kind::BackendKind;
use crate::machine::{mountinfo, probe};
use crate::sys;

/// A backend, and whether it works here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The kind of backend.
    pub kind: BackendKind,
    /// Whether it works here.
    pub verdict: Verdict,
}

/// Whether a backend works here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It works.
    Usable {
        /// What it cannot do here, a sentence each.
        limits: Vec<String>,
    },
    /// It does not.
    Unusable {
        /// Why, as a phrase.
        why: String,
        /// What to change, as a phrase that begins with a verb.
        remedy: Option<String>,
    },
}

impl Verdict {
    /// Whether the backend works here.
    #[must_use]
    pub const fn is_usable(&self) -> bool {
        matches!(self, Self::Usable { .. })
    }

    fn no(why: impl Into<String>, remedy: &str) -> Self {
        Self::Unusable {
            why: why.into(),
            remedy: (!remedy.is_empty()).then(|| remedy.to_owned()),
        }
    }
}

/// All backends, the best first. Take the first usable one.
#[must_use]
pub fn candidates(directory: &Path) -> Vec<Candidate> {
    best_first(directory).collect()
}

/// Has the kernel load the module, if it is installed and not loaded, for someone who may mount.
pub fn load_module() {
    sys::load_file_system(c"rfs");
}

/// As [`candidates`], but judges each backend only when the iterator reaches it: trying takes time.
pub fn best_first(directory: &Path) -> impl Iterator<Item = Candidate> {
    BackendKind::ALL.into_iter().map(|kind| Candidate {
        kind,
        verdict: judge(kind, directory),
    })
}

/// Whether this backend works for the directory.
pub(crate) fn judge(kind: BackendKind, directory: &Path) -> Verdict {
    match kind {
        BackendKind::Module => module(directory),
        BackendKind::Observe => observe(),
        BackendKind::Fuse => fuse(has_namespaces() || has_helper()),
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn module(directory: &Path) -> Verdict {
    let limits = Vec::new();
    if mountinfo::rfs_of(directory).is_some() {
        return if is_root() {
            Verdict::Usable { limits }
        } else {
            Verdict::no(
                "only root may open the devices of rfs mounts",
                "run as root",
            )
        };
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !probe::lists_file_system(&known, "rfs") {
        return Verdict::no(
            "the module rfs is not loaded",
            "install rfs-dkms, or 'make install', and load it: 'modprobe rfs'",
        );
    }
    if is_root() {
        Verdict::Usable { limits }
    } else {
        Verdict::no("only root may mount rfs", "run as root")
    }
}

fn observe() -> Verdict {
    match observe::probe() {
        Ok(limits) => Verdict::Usable { limits },
        Err(error) => {
            let remedy = if is_root() {
                "give it CAP_SYS_ADMIN: 'docker run --cap-add SYS_ADMIN'"
            } else {
                "run as root"
            };
            Verdict::no(lower_first(&crate::error::chain(&error)), remedy)
        }
    }
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_ascii_lowercase());
    first.into_iter().chain(letters).collect()
}

/// As [`judge`], for a daemon, whose mounts are visible to all: it needs no namespaces, and its unit may forbid them.
pub(crate) fn judge_for_all(kind: BackendKind, directory: &Path) -> Verdict {
    match kind {
        BackendKind::Fuse => fuse(may_mount() || has_helper()),
        BackendKind::Module | BackendKind::Observe => judge(kind, directory),
    }
}

/// Whether we may mount in the current namespaces.
fn may_mount() -> bool {
    let status = std::fs::read_to_string("/proc/self/status");
    status.is_ok_and(|text| has_sys_admin(&text))
}

/// Whether `CAP_SYS_ADMIN` is effective, by the text of `/proc/self/status`.
fn has_sys_admin(status: &str) -> bool {
    const SYS_ADMIN: u32 = 21;
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = line.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    set.is_some_and(|set| set >> SYS_ADMIN & 1 == 1)
}

/// `may`: whether we may mount the mirror.
fn fuse(may: bool) -> Verdict {
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Verdict::no(
                "there is no /dev/fuse",
                "load it: 'modprobe fuse'; in a container: 'docker run --device /dev/fuse'",
            );
        }
        Err(error) => {
            return Verdict::no(
                format!("/dev/fuse does not open: {error}"),
                "give the container the device: 'docker run --device /dev/fuse'",
            );
        }
    }
    if may {
        let limits = fuse::limits().collect();
        return Verdict::Usable { limits };
    }
    if is_root() {
        return Verdict::no(
            "root may not mount here",
            "give the container CAP_SYS_ADMIN, or allow user namespaces",
        );
    }
    Verdict::no(
        "ordinary users cannot mount FUSE here: there are no user namespaces and no fusermount3",
        "install fuse3, or allow user namespaces",
    )
}

/// Whether we may create a mount namespace, with a user namespace if needed. Many kinds of security
/// policies forbid it, so it is tried.
fn has_namespaces() -> bool {
    let try_it = |arguments: &[&str]| {
        let tried = Command::new("unshare")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        tried.is_ok_and(|status| status.success())
    };
    let of_user = ["--user", "--map-root-user", "--mount", "true"];
    (is_root() && try_it(&["--mount", "true"])) || try_it(&of_user)
}

pub(crate) fn has_helper() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    probe::find_program("fusermount3", std::env::split_paths(&path)).is_some()
}

/// What each backend can and cannot do, as the Markdown table in `cprt/README.md`.
#[must_use]
pub fn table() -> String {
    use ppc::Features as F;

    let all = F::OPEN | F::TOUCH | F::PROGRESS | F::EVICT_MAPPED | F::AFFINITY | F::CHARGE;
    let columns = [
        ("module", all),
        (
            "observe, fuse passed through",
            observe::features(true, true),
        ),
        ("the same before 6.12", observe::features(false, true)),
        ("fuse by itself", fuse::features()),
    ];
    let rows = [
        ("reports misses", F(0)),
        ("reports opens and closes", F::OPEN),
        ("reports reads that the cache answers", F::TOUCH),
        ("reports how far readers are", F::PROGRESS),
        ("drops pages that several processes map", F::EVICT_MAPPED),
        ("places pages near an accelerator", F::AFFINITY),
        ("charges the reader's memory cgroup", F::CHARGE),
    ];
    let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
    let heads = std::iter::once("").chain(columns.iter().map(|(name, _)| *name));
    let mut text = line(heads.collect()) + &"|---".repeat(columns.len() + 1) + "|\n";
    for (what, feature) in rows {
        let marks = columns
            .iter()
            .map(|(_, has)| if has.contain(feature) { "yes" } else { "no" });
        text += &line(std::iter::once(what).chain(marks).collect());
    }
    let lists = [
        ("observe", observe::limits(false, None, true)),
        (
            "fuse passed through, besides",
            beneath::limits().map(str::to_owned).collect(),
        ),
        ("fuse by itself", fuse::limits().collect()),
    ];
    for (name, limits) in lists {
        let sentences = limits.join("; ");
        text.extend(["\n**", name, "**: ", &sentences, ".\n"]);
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn cap_sys_admin_is_parsed_from_the_process_status() {
        let status = |set: &str| format!("Name:\tx\nCapPrm:\t0\nCapEff:\t{set}\nCapBnd:\t0\n");
        assert!(super::has_sys_admin(&status("000001ffffffffff")));
        assert!(super::has_sys_admin(&status("0000000000200000")));
        assert!(!super::has_sys_admin(&status("000001ffffdfffff")));
        assert!(!super::has_sys_admin("Name:\tx\n"));
    }

    use super::*;

    #[test]
    fn every_backend_is_judged_with_reason_and_remedy() {
        let candidates = candidates(Path::new("/"));
        let kinds: Vec<_> = candidates.iter().map(|candidate| candidate.kind).collect();
        assert_eq!(kinds, BackendKind::ALL);
        for Candidate { kind, verdict } in candidates {
            if let Verdict::Unusable { why, remedy } = verdict {
                assert!(!why.is_empty() && remedy.is_some(), "{kind}");
            }
        }
    }

    #[test]
    fn readme_backend_table_is_up_to_date() {
        let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
        let readme = std::fs::read_to_string(readme).expect("the README");
        let (_, rest) = readme
            .split_once("<!-- backends -->\n")
            .expect("a beginning");
        let (text, _) = rest.split_once("<!-- /backends -->").expect("an end");
        assert_eq!(text, table(), "'ppcctl generate' writes it to backends.md");
    }

    #[test]
    fn phrases_begin_small() {
        assert_eq!(lower_first("Écrire"), "Écrire");
        assert_eq!(lower_first("Reading x"), "reading x");
        assert_eq!(lower_first(""), "");
    }
}

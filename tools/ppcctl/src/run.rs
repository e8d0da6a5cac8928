//! `ppcctl run`: a command, and a policy for the directory that it reads from.
//!
//! ```text
//! best backend ─ session (worker) ─ command ─ wait: its end, signals to pass on, progress ─ summary
//! ```
//!
//! The command comes first. Whatever goes wrong in ppcctl, the command runs, unless the user named
//! something that is not available: a directory, a policy, a backend or the command itself.

use std::ffi::OsString;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cprt::backend::select::{self, Candidate, Verdict};
use cprt::control::config::{Bytes, Config};
use cprt::control::kind::BackendKind;
use cprt::control::protocol::Settings;
use cprt::control::stats::Stats;
use cprt::machine::model::{self, Surroundings};
use cprt::machine::reach::{self, Reach};
use cprt::session::namespace::{self, User};
use cprt::session::{Log, Options, Session};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use crate::args::{Common, Run};
use crate::failure::{Failure, Result};
use crate::screen::{plain, remark};
use crate::setting;

pub(crate) mod progress;
mod sessions;
mod signals;
mod start;

use progress::Progress;
use sessions::Sessions;
use signals::{Heard, Signals};
pub(crate) use start::{start_name_of, start_name_of_service};

/// Exit statuses: the same as those of `timeout` and other programs that run commands.
const OURS: u8 = 125;
const NOT_RUNNABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// How often progress is shown.
const TICK: Duration = Duration::from_millis(500);
/// How often to check whether the model's turn to be loaded has come.
const SOON: Duration = Duration::from_millis(20);
/// How long a command runs before progress is shown.
const PATIENCE: Duration = Duration::from_secs(1);

/// What was done, as `--json` prints it.
#[derive(Debug, Serialize)]
struct Summary {
    /// `None` for a start.
    directory: Option<PathBuf>,
    /// The name of the start, if it is one.
    start: Option<String>,
    backend: Option<String>,
    policy: Option<String>,
    version: Option<String>,
    /// What the backend cannot do.
    limits: Vec<String>,
    /// Better backends, and why they were not used.
    passed_over: Vec<(String, String)>,
    seconds: f64,
    /// Exit status of the command, as a shell reports it.
    exit: i32,
    /// Page faults for which the command and its children waited for the device.
    major_faults: i64,
    /// Why the policy ended before the command.
    fault: Option<String>,
    stats: Option<Stats>,
    /// Statistics of what the command reads besides its model, if the model has its own policy.
    start_stats: Option<Stats>,
}

/// Runs the command and exits as it did. `at_end` is called once the policies have ended.
pub(crate) fn run(common: &Common, wanted: &Run, at_end: impl FnOnce()) -> ExitCode {
    try_run(common, wanted, at_end).unwrap_or_else(|failure| failed(&failure))
}

/// Reports the failure; the exit status is one that commands do not have.
pub(crate) fn failed(failure: &Failure) -> ExitCode {
    remark(&failure.chain());
    ExitCode::from(OURS)
}

/// Executes the command, in the process that was started for this, with the signals that ppcctl has
/// blocked and the user that ppcctl has changed set back.
pub(crate) fn become_command(user: Option<&[u32]>, words: &[OsString]) -> ExitCode {
    let [program, arguments @ ..] = words else {
        return ExitCode::from(OURS);
    };
    if let Some(&[uid, gid]) = user
        && let Err(error) = namespace::become_user(User { uid, gid })
    {
        remark(&format!("Becoming user {uid} again: {error}"));
        return ExitCode::from(OURS);
    }
    signals::give_back();
    let source = Command::new(program).args(arguments).exec();
    let code = match source.kind() {
        io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_RUNNABLE,
    };
    let program = PathBuf::from(program);
    remark(&Failure::Command { program, source }.chain());
    ExitCode::from(code)
}

fn try_run(common: &Common, wanted: &Run, at_end: impl FnOnce()) -> Result<ExitCode> {
    let real = wanted.directory.as_deref().map(directory).transpose()?;
    let real = real.or_else(|| named_model(wanted));
    let real = real.map(|real| reaching(real, wanted.quiet));
    let config = common.limits()?;
    let options = real.as_deref().map(|real| options(wanted, real, &config));
    let options = options.transpose()?;
    let options_of_start = start::options(wanted, real.as_deref(), &config)?;
    // Before any thread starts, as threads inherit the signal mask.
    let signals = Signals::take()?;
    let mut sessions = if is_out_of_memory(wanted) {
        Sessions::default()
    } else {
        Sessions::begin(wanted, options.as_ref(), options_of_start.as_ref())?
    };
    let (began, faults) = (Instant::now(), major_faults());
    let mut child = match spawn(sessions.user(), &wanted.command) {
        Ok(child) => child,
        Err(failure) => {
            let _ = sessions.end();
            return Err(failure);
        }
    };
    let shows = !wanted.quiet && !common.json && io::stderr().is_terminal();
    let status = wait(&mut child, &signals, &mut sessions, shows)?;
    // Before the policies end: their workers have page faults, too, by which they load.
    let major_faults = major_faults() - faults;
    let start = options_of_start.and_then(|it| it.settings.get("start").cloned());
    let summary = Summary {
        start,
        major_faults,
        ..summary(real, sessions, began.elapsed(), status)
    };
    at_end();
    if common.json {
        let text =
            serde_json::to_string(&summary).map_err(|error| Failure::Output(error.into()))?;
        // Standard output is the command's.
        let _ = writeln!(io::stderr(), "{text}");
    } else {
        if let Some(fault) = &summary.fault {
            remark(&format!(
                "the policy failed, and the command continued without it: {fault}"
            ));
        }
        if let (false, Some(text)) = (wanted.quiet, progress::summary(&summary)) {
            remark(&text);
        }
    }
    Ok(pass_on(status))
}

/// Whether memory is too scarce for a policy beside the command; if so, this has printed a line.
fn is_out_of_memory(wanted: &Run) -> bool {
    let asked = wanted.backend.0.is_some();
    let Some(limit) = sessions::little_memory().filter(|_| !asked) else {
        return false;
    };
    let (limit, least) = (Bytes(limit), Bytes(sessions::LEAST_MEMORY));
    let text = format!(
        "the command runs without a policy, because its memory is limited to {limit}; --backend overrides the minimum \
         of {least}"
    );
    log_line(wanted.quiet, &text);
    true
}

/// The directory's real path.
fn directory(given: &Path) -> Result<PathBuf> {
    let failed = |source| Failure::At {
        path: given.to_owned(),
        source,
    };
    let real = given.canonicalize().map_err(failed)?;
    // Whether it can be listed is left to its readers.
    if real.is_dir() {
        Ok(real)
    } else {
        Err(failed(io::ErrorKind::NotADirectory.into()))
    }
}

/// The model that the command's arguments name, if the policy is one that handles models.
fn named_model(wanted: &Run) -> Option<PathBuf> {
    // A start that is named by hand, or recorded again, includes its model.
    let whole = |key: &str| matches!(key, "start" | "record");
    let is_whole = wanted.settings.iter().any(|setting| whole(&setting.key));
    let looks = start::is_maio(&wanted.policy) && !is_whole;
    let arguments = wanted.command.get(1..).filter(|_| looks)?;
    let around = Surroundings {
        here: Path::new(""),
        variable: &|name| std::env::var_os(name),
    };
    let real = directory(&model::named(arguments, &around)?).ok()?;
    log_line(wanted.quiet, &format!("the model is in {}", real.display()));
    Some(real)
}

/// The directory, widened to include what its links lead to: without that, no read of a model in a download cache
/// would be reported.
fn reaching(directory: PathBuf, quiet: bool) -> PathBuf {
    match reach::of(&directory) {
        Reach::Itself => directory,
        Reach::Wider(wider) => {
            let text = format!(
                "using {}, which includes the targets of links",
                wider.display()
            );
            log_line(quiet, &text);
            wider
        }
        Reach::TooFar(folder) => {
            let text = format!(
                "links in {} lead to {}, where reads are not reported: name a directory that contains both",
                directory.display(),
                folder.display()
            );
            log_line(quiet, &text);
            directory
        }
    }
}

fn options(wanted: &Run, directory: &Path, config: &Config) -> Result<Options> {
    let mut settings = setting::with_service(wanted.settings.clone(), &wanted.service)?;
    if start::is_maio(&wanted.policy) {
        // The command is a child of this process: other services' readers are none of its.
        let process = std::process::id().to_string();
        settings.entry("process".to_owned()).or_insert(process);
    }
    options_with(wanted, directory, settings, config)
}

fn options_with(
    wanted: &Run,
    directory: &Path,
    settings: Settings,
    config: &Config,
) -> Result<Options> {
    let cgroup = wanted.cgroup.as_deref().map(setting::full).transpose()?;
    let library = setting::library(&wanted.policy)?;
    // A worker would report a missing library too, but without a backend none is started.
    if let Err(source) = library.metadata() {
        return Err(Failure::At {
            path: library,
            source,
        });
    }
    Ok(Options {
        directory: directory.to_owned(),
        library,
        settings,
        cgroup,
        config: config.clone(),
    })
}

fn log_line(quiet: bool, text: &str) {
    if !quiet {
        remark(&plain(text));
    }
}

/// The backends to try for a directory, in order.
struct Backends<'a> {
    /// The first that is usable, as far as is known without trying it.
    first: Option<BackendKind>,
    candidates: Box<dyn Iterator<Item = Candidate> + 'a>,
}

/// Looks for the best backend. `None` if there is none; the reason has then been printed.
fn backends<'a>(wanted: &Run, options: &'a Options) -> Option<Backends<'a>> {
    let asked = wanted.backend.0;
    let is_asked = move |one: &Candidate| asked.is_none_or(|kind| kind == one.kind);
    let mut candidates = select::best_first(&options.directory).filter(is_asked);
    // Those after the first usable one are tried if it fails.
    let mut judged = Vec::new();
    while !judged.last().is_some_and(is_usable)
        && let Some(candidate) = candidates.next()
    {
        judged.push(candidate);
    }
    let first = judged.iter().find(|one| is_usable(one));
    let first = first.map(|one| one.kind);
    if asked.is_none() && first.is_none() {
        log_line(wanted.quiet, &native(&judged));
        return None;
    }
    let candidates = Box::new(judged.into_iter().chain(candidates));
    Some(Backends { first, candidates })
}

/// A session on the first backend that works. `None` if none does; the reason has then been printed.
fn start(wanted: &Run, options: &Options, backends: Backends<'_>) -> Result<Option<Session>> {
    let log = policy_log(wanted.quiet);
    or_none(wanted, Session::start(options, backends.candidates, &log))
}

/// `None` if only the backends failed and the user named none; the reason has then been printed.
fn or_none(wanted: &Run, started: cprt::Result<Session>) -> Result<Option<Session>> {
    match started {
        Ok(session) => Ok(Some(session)),
        Err(error) if wanted.backend.0.is_none() && Failure::is_of_backends(&error) => {
            let why = cprt::error::chain(&error);
            let text = format!("the command runs without a policy. {why}");
            log_line(wanted.quiet, &text);
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Prints what policies log.
pub(crate) fn policy_log(quiet: bool) -> Log {
    Arc::new(move |level: u32, text: &str| {
        // What policies log when all is well is for the daemon's log.
        if level <= 2 {
            log_line(quiet && level == 2, &format!("policy: {text}"));
        }
    })
}

fn is_usable(candidate: &Candidate) -> bool {
    candidate.verdict.is_usable()
}

/// Why the command runs without a policy, in one line.
fn native(candidates: &[Candidate]) -> String {
    let reasons = candidates.iter().filter_map(|one| match &one.verdict {
        Verdict::Unusable { why, .. } => Some(format!("{}: {why}", one.kind)),
        Verdict::Usable { .. } => None,
    });
    let reasons: Vec<_> = reasons.collect();
    format!(
        "the command runs without a policy, because no backend is available ({})",
        reasons.join("; ")
    )
}

/// Starts `ppcctl become`, which executes the command: some of its preparation has to happen in its own process.
fn spawn(user: Option<User>, words: &[OsString]) -> Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("become");
    if let Some(User { uid, gid }) = user {
        command.args(["--user", &uid.to_string(), &gid.to_string()]);
    }
    if let Ok(here) = std::env::current_dir() {
        // Entered again by its path, so that a mount over it is seen.
        command.current_dir(here);
    }
    let started = command.arg("--").args(words).spawn();
    started.map_err(|source| Failure::System {
        doing: "Starting a process",
        source,
    })
}

/// Waits for the command, and shows the policy's progress if that is wanted and there is a session.
fn wait(
    child: &mut Child,
    signals: &Signals,
    sessions: &mut Sessions,
    shows: bool,
) -> Result<ExitStatus> {
    let began = Instant::now();
    let mut progress = Progress::default();
    let status = loop {
        let waits = sessions.go_on();
        let told_of = sessions.first().filter(|_| shows);
        let tick = if waits {
            Some(SOON)
        } else {
            told_of.map(|_| TICK)
        };
        match signals.hear(tick)? {
            Heard::PassOn(signal) => signals::send(child.id(), signal),
            Heard::Child => {
                let failed = |source| Failure::System {
                    doing: "Waiting for the command",
                    source,
                };
                if let Some(status) = child.try_wait().map_err(failed)? {
                    break status;
                }
            }
            Heard::Nothing => {}
        }
        if let Some(session) = told_of
            && began.elapsed() > PATIENCE
            && let Some(stats) = session.stats()
        {
            progress.show(&stats);
        }
    };
    progress.clear();
    Ok(status)
}

fn summary(
    directory: Option<PathBuf>,
    sessions: Sessions,
    took: Duration,
    status: ExitStatus,
) -> Summary {
    let mut summary = Summary {
        directory,
        start: None,
        backend: None,
        policy: None,
        version: None,
        limits: Vec::new(),
        passed_over: Vec::new(),
        seconds: took.as_secs_f64(),
        exit: as_shell(status),
        major_faults: 0,
        fault: None,
        stats: None,
        start_stats: sessions.second().and_then(Session::stats),
    };
    if let Some(session) = sessions.first() {
        summary.backend = Some(session.kind.to_string());
        summary.policy = Some(session.policy.0.clone());
        summary.version = Some(session.policy.1.clone());
        summary.limits.clone_from(&session.limits);
        let over = session.passed_over.iter();
        summary.passed_over = over
            .map(|(kind, why)| (kind.to_string(), why.clone()))
            .collect();
        summary.stats = session.stats();
    }
    summary.fault = sessions.end();
    summary
}

/// Those of all children of this process that it has waited for, and of theirs.
fn major_faults() -> i64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| usage.major_page_faults())
}

fn as_shell(status: ExitStatus) -> i32 {
    let by_signal = || 128 + status.signal().unwrap_or_default();
    status.code().unwrap_or_else(by_signal)
}

/// Ends as the command did, by the same signal if it was one, so that our parent process sees no difference.
fn pass_on(status: ExitStatus) -> ExitCode {
    if let Some(signal) = status.signal() {
        signals::end_by(signal);
    }
    ExitCode::from(u8::try_from(as_shell(status)).unwrap_or(OURS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_follow_shell_conventions() {
        assert_eq!(as_shell(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(as_shell(ExitStatus::from_raw(15)), 143);
    }

    #[test]
    fn without_a_backend_each_is_explained() {
        let candidates = BackendKind::ALL.map(|kind| Candidate {
            kind,
            verdict: Verdict::Unusable {
                why: "of the weather".into(),
                remedy: None,
            },
        });
        let text = native(&candidates);
        for name in ["module: of the weather", "observe: ", "fuse: "] {
            assert!(text.contains(name), "{text}");
        }
    }

    #[test]
    fn a_directory_is_there_and_is_one() {
        assert_eq!(
            directory(Path::new("/usr/../tmp")).expect("it is"),
            Path::new("/tmp")
        );
        let error = directory(Path::new("/nowhere/at/all")).expect_err("it is not");
        assert_eq!(
            error.chain(),
            "/nowhere/at/all: No such file or directory (os error 2)"
        );
        assert!(directory(Path::new("/proc/self/status")).is_err());
    }
}

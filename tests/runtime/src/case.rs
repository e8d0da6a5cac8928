//! A test, the process that it runs in, and the cleanup after it.
//!
//! The body runs in its own process, with an alarm. Its parent adopts and ends the processes that the
//! body leaves behind, and removes what it may have made, found by path: mounts, cgroups, disks, folders.
//! So a body may stop at any line and need not clean up.

use std::fmt::Write as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::{env, fs};

use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Pid, alarm};

use crate::outcome::{Outcome, Stop, ensure, factor, wait_until};
use crate::way::Way;
use crate::{cgroup, disk, files, mount, procfs};

/// How many seconds longer than a body its parent may take, to end processes and undo mounts.
const CLEANUP_S: u32 = 15;
const SKIPPED: u8 = 77;
/// Lines of each log shown after a failure.
const LOG_LINES: usize = 60;

/// A test.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    seconds: u32,
    body: fn() -> Outcome,
    way: Way,
}

impl Case {
    /// The time limit of the body in seconds, times [`factor`].
    pub(crate) const fn new(name: &'static str, seconds: u32, body: fn() -> Outcome) -> Self {
        Self {
            name,
            seconds,
            body,
            way: Way::Module,
        }
    }

    /// The same test on another way, under its own name.
    pub(crate) fn on(&self, way: Way) -> Self {
        let (kind, rest) = self.name.split_once('_').unwrap_or(("", self.name));
        // There are few names, and they last as long as the program.
        let name = Box::leak(format!("{kind}_on_{}_{rest}", way.name()).into_boxed_str());
        Self { name, way, ..*self }
    }

    /// Its line in the output of `--list`, from which the rig learns of it.
    pub(crate) fn line(&self) -> String {
        format!("{} {}", self.name, self.seconds + CLEANUP_S)
    }

    /// The folder for the test's own files: configuration, socket, logs.
    fn scratch(&self) -> PathBuf {
        Path::new("/tmp/cprt").join(self.name)
    }

    /// Runs it and clears up.
    pub(crate) fn run(&self) -> ExitCode {
        let verdict = self.prepare().and_then(|readahead| {
            let verdict = self.run_body();
            let cleared = self.clear(&readahead);
            // The body's verdict takes precedence.
            verdict.and_then(|code| cleared.map(|()| code))
        });
        match verdict {
            Ok(code) => ExitCode::from(code),
            Err(Stop::Skip(why) | Stop::Fail(why)) => {
                eprintln!("{}: {why}", self.name);
                ExitCode::FAILURE
            }
        }
    }

    fn prepare(&self) -> Outcome<String> {
        umask(Mode::from_bits_truncate(0o022));
        prctl::set_child_subreaper(true)?;
        for folder in [mount::lower_of(self.name), mount::point_of(self.name)] {
            fs::create_dir_all(folder)?;
        }
        fs::create_dir_all("/tmp/cprt")?;
        files::private_dir(&self.scratch())?;
        files::readahead()
    }

    /// The exit status to end with.
    fn run_body(&self) -> Outcome<u8> {
        let mut body = Command::new(env::current_exe()?)
            .args(["--body", self.name])
            .env("CPRT_SCRATCH", self.scratch())
            .envs([self.way.variable()])
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()?;
        let status = body.wait()?;
        if let Some(signal) = status.signal() {
            self.show_logs();
            let name = Signal::try_from(signal).map_or("?", Signal::as_str);
            eprintln!("{}: killed by signal {signal} ({name})", self.name);
            return Ok(1);
        }
        Ok(status
            .code()
            .and_then(|code| code.try_into().ok())
            .unwrap_or(1))
    }

    /// Runs the test itself, in the child.
    pub(crate) fn run_as_body(&self) -> ExitCode {
        // One second more, because an alarm of 0 is none.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "seconds"
        )]
        alarm::set((f64::from(self.seconds) * factor()) as u32 + 1);
        let verdict = catch_unwind(self.body)
            .unwrap_or_else(|_| Err(Stop::Fail("panicked; see above".to_owned())));
        match verdict {
            Ok(()) => ExitCode::SUCCESS,
            Err(Stop::Skip(why)) => {
                eprintln!("{}: skipped: {why}", self.name);
                ExitCode::from(SKIPPED)
            }
            Err(Stop::Fail(why)) => {
                self.show_logs();
                eprintln!("{}: {why}", self.name);
                ExitCode::FAILURE
            }
        }
    }

    /// Shows the ends of the logs in the scratch folder, to explain a failure.
    fn show_logs(&self) {
        let mut shown = String::new();
        for entry in fs::read_dir(self.scratch()).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "log") {
                continue;
            }
            let bytes = fs::read(&path).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            let lines: Vec<&str> = text.lines().collect();
            let _ = writeln!(shown, "--- {}", path.display());
            for line in &lines[lines.len().saturating_sub(LOG_LINES)..] {
                let _ = writeln!(shown, "    {line}");
            }
        }
        eprint!("{shown}");
    }

    /// Clears everything, even if a step fails; returns the first failure.
    fn clear(&self, readahead: &str) -> Outcome {
        let mut outcome = end_children();
        let mut then = |step: Outcome| {
            if outcome.is_ok() {
                outcome = step;
            }
        };
        then(files::set_readahead(readahead));
        // Pages that a cgroup pays for are dropped more easily while their file system is mounted.
        then(cgroup::clear());
        then(mount::clear(self.name));
        then(disk::clear());
        for folder in [
            mount::lower_of(self.name),
            mount::point_of(self.name),
            self.scratch(),
        ] {
            then(fs::remove_dir_all(folder).map_err(Stop::from));
        }
        outcome
    }
}

/// The scratch folder of the running test.
pub(crate) fn scratch() -> PathBuf {
    env::var_os("CPRT_SCRATCH").map_or_else(|| "/tmp/cprt/none".into(), PathBuf::from)
}

/// Kills the processes that the body left, and their descendants, until none is left.
fn end_children() -> Outcome {
    let me = std::process::id();
    wait_until(10, "the test's processes to end", || {
        let left = procfs::descendants(me)?;
        for &pid in &left {
            let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL);
        }
        procfs::reap();
        Ok(left.is_empty().then_some(()))
    })?;
    ensure!(procfs::descendants(me)?.is_empty(), "processes are left");
    Ok(())
}

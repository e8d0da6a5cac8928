//! A test's own cprtd, and ppcctl to talk to it.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use cprt::control::protocol::{EventLine, MountState, MountStats, MountStatus, Status};
use cprt::control::stats::Stats;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;

use crate::case::scratch;
use crate::files::tail;
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome, Stop, ensure, ensure_eq, wait_until};
use crate::procfs;
use crate::way::{self, Way};

const CPRTD: &str = "/usr/sbin/cprtd";
const PPCCTL: &str = "/usr/bin/ppcctl";

/// Exit statuses of ppcctl.
pub(crate) const FAILED: i32 = 1;
pub(crate) const USAGE: i32 = 2;
pub(crate) const NOTHING_THERE: i32 = 3;
pub(crate) const REFUSED: i32 = 4;

/// A policy of this source tree.
pub(crate) fn policy(name: &str) -> PathBuf {
    Path::new("/usr/lib/ppc").join(format!("{name}.so"))
}

/// A policy of these tests.
pub(crate) fn test_policy(name: &str) -> PathBuf {
    Path::new("/usr/lib/ppc/test").join(format!("{name}.so"))
}

/// A running daemon. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    folder: PathBuf,
}

/// How a run of ppcctl ended.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: i32,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Daemon {
    /// Starts a daemon with the default configuration: a test may wait longer on a slow kernel, but the
    /// daemon's deadlines are the defaults.
    pub(crate) fn start() -> Outcome<Self> {
        Self::with("")
    }

    /// Starts a daemon with these lines in its configuration; they begin with a table or are empty.
    pub(crate) fn with(configuration: &str) -> Outcome<Self> {
        let folder = scratch();
        let text = format!(
            "socket = \"{0}/control.sock\"\nstate = \"{0}/state.json\"\n\n{configuration}\n{1}",
            folder.display(),
            Way::now().configuration()
        );
        fs::write(folder.join("cprt.toml"), text)?;
        Self::again()
    }

    /// Starts a daemon with the configuration and the state of the one before it.
    pub(crate) fn again() -> Outcome<Self> {
        let mut new = Self::spawn()?;
        wait_until(10, "cprtd to listen", || {
            if let Some(status) = new.child.try_wait()? {
                return Err(Stop::fail(format_args!(
                    "cprtd ended: {status}; {}",
                    new.log()?
                )));
            }
            Ok((new.run(&["status"])?.code == 0).then_some(()))
        })?;
        Ok(new)
    }

    fn spawn() -> Outcome<Self> {
        let folder = scratch();
        let log = File::options()
            .create(true)
            .append(true)
            .open(folder.join("cprtd.log"))?;
        let child = Command::new(CPRTD)
            .arg("--config")
            .arg(folder.join("cprt.toml"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .of(CPRTD)?;
        Ok(Self { child, folder })
    }

    /// Starts a daemon that is expected to end at once; returns its exit status and its log.
    pub(crate) fn fails(configuration: &str) -> Outcome<(ExitStatus, String)> {
        fs::write(scratch().join("cprt.toml"), configuration)?;
        let mut new = Self::spawn()?;
        let status = wait_until(10, "cprtd to refuse", || Ok(new.child.try_wait()?))?;
        Ok((status, new.log()?))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("control.sock")
    }

    /// The last MiB of what it and its workers have logged.
    pub(crate) fn log(&self) -> Outcome<String> {
        tail(&self.folder.join("cprtd.log"))
    }

    /// Size of the whole log in bytes.
    pub(crate) fn log_size(&self) -> Outcome<u64> {
        Ok(self.folder.join("cprtd.log").metadata()?.len())
    }

    /// Runs ppcctl with --json.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome<Answer> {
        let output = Command::new(PPCCTL)
            .arg("--socket")
            .arg(self.socket())
            .arg("--json")
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .of(PPCCTL)?;
        let code = output.status.code();
        Ok(Answer {
            code: code.unwrap_or_else(|| -output.status.signal().unwrap_or_default()),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
            errors: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    /// Runs ppcctl, which has to succeed, and parses its output.
    #[track_caller]
    fn ask<T: DeserializeOwned>(&self, arguments: &[&str]) -> Outcome<T> {
        let answer = self.run(arguments)?;
        if answer.code != 0 {
            return Err(Stop::fail(format_args!("ppcctl {arguments:?}: {answer:?}")));
        }
        serde_json::from_str(&answer.output).of(format_args!("ppcctl {arguments:?}: {answer:?}"))
    }

    /// Runs `reg-policy` and returns its answer.
    pub(crate) fn try_register(
        &self,
        mount: &Path,
        library: &Path,
        settings: &[&str],
    ) -> Outcome<Answer> {
        let (mount, library) = (text(mount)?, text(library)?);
        let mut arguments = vec!["reg-policy", mount, library];
        arguments.extend(Way::now().words());
        arguments.extend(settings);
        self.run(&arguments)
    }

    /// Registers a policy for a mount; settings are `key=value`, or `--cgroup` and a path.
    #[track_caller]
    pub(crate) fn register(
        &self,
        mount: &Mount,
        library: &Path,
        settings: &[&str],
    ) -> Outcome<MountStatus> {
        let answer = self.try_register(&mount.path, library, settings)?;
        ensure_eq!(
            answer.code,
            0,
            "registering {}: {answer:?}",
            library.display()
        );
        let status: MountStatus = serde_json::from_str(&answer.output).of(&answer.output)?;
        ensure_eq!(
            status.state,
            MountState::Running,
            "the state after registering"
        );
        way::settle(&mount.path)?;
        Ok(status)
    }

    pub(crate) fn unregister(&self, mount: &Mount) -> Outcome<MountStatus> {
        self.ask(&["rm-policy", text(&mount.path)?])
    }

    pub(crate) fn set(&self, mount: &Mount, setting: &str) -> Outcome<MountStatus> {
        self.ask(&["set", text(&mount.path)?, setting])
    }

    /// The daemon's whole status.
    pub(crate) fn all(&self) -> Outcome<Status> {
        self.ask(&["status"])
    }

    /// The status of a mount.
    pub(crate) fn status(&self, mount: &Mount) -> Outcome<MountStatus> {
        let status: Status = self.ask(&["status", text(&mount.path)?])?;
        let mut mounts = status.mounts.into_iter();
        match (mounts.next(), mounts.next()) {
            (Some(one), None) if one.path == mount.path => Ok(one),
            other => Err(Stop::fail(format_args!("status of one mount: {other:?}"))),
        }
    }

    /// Waits until a mount's status satisfies the condition.
    #[track_caller]
    pub(crate) fn wait_for(
        &self,
        mount: &Mount,
        limit_s: u32,
        what: &str,
        mut is_so: impl FnMut(&MountStatus) -> bool,
    ) -> Outcome<MountStatus> {
        let mut last = String::new();
        let found = wait_until(limit_s, what, || {
            let status = self.status(mount)?;
            last = format!("{status:?}");
            Ok(is_so(&status).then_some(status))
        });
        match found {
            Err(Stop::Fail(mut words)) => {
                let _ = write!(words, "; last: {last}");
                Err(Stop::Fail(words))
            }
            other => other,
        }
    }

    /// The counters of a mount's worker.
    pub(crate) fn stats(&self, mount: &Mount) -> Outcome<Stats> {
        let found: Vec<MountStats> = self.ask(&["stats", text(&mount.path)?])?;
        ensure_eq!(found.len(), 1, "stats of one mount");
        Ok(found
            .into_iter()
            .map(|one| one.stats)
            .next()
            .unwrap_or_default())
    }

    /// Starts to listen for events of this kind, until `count` of them have come.
    pub(crate) fn listen(&self, mount: &Mount, kind: &str, count: usize) -> Outcome<Listener> {
        let child = Command::new(PPCCTL)
            .arg("--socket")
            .arg(self.socket())
            .args([
                "--json",
                "events",
                text(&mount.path)?,
                "--kind",
                kind,
                "--count",
            ])
            .arg(count.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Listener { child })
    }

    /// The worker of a mount that has one.
    #[track_caller]
    pub(crate) fn worker(&self, mount: &Mount) -> Outcome<u32> {
        let status = self.status(mount)?;
        let worker = status.policy.as_ref().and_then(|policy| policy.worker);
        worker.ok_or_else(|| Stop::fail(format_args!("no worker: {status:?}")))
    }

    /// The processes that it has started and that still run.
    pub(crate) fn workers(&self) -> Outcome<Vec<u32>> {
        procfs::children(self.pid())
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) -> Outcome {
        Ok(kill(Pid::from_raw(self.pid().cast_signed()), signal)?)
    }

    /// Asks it to end and waits for that.
    pub(crate) fn stop(mut self) -> Outcome {
        self.signal(Signal::SIGTERM)?;
        let status = wait_until(15, "cprtd to end", || Ok(self.child.try_wait()?))?;
        ensure!(status.success(), "cprtd ended with {status}");
        Ok(())
    }

    /// Kills it.
    pub(crate) fn kill(mut self) -> Outcome {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The test's parent process ends the workers.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A ppcctl that prints events.
#[derive(Debug)]
pub(crate) struct Listener {
    child: Child,
}

impl Listener {
    /// Waits until it has printed all its events.
    pub(crate) fn finish(mut self, limit_s: u32) -> Outcome<Vec<EventLine>> {
        let status = wait_until(limit_s, "ppcctl to have its events", || {
            Ok(self.child.try_wait()?)
        });
        if status.is_err() {
            self.child.kill()?;
        }
        let output = self.child.wait_with_output()?;
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(status?.success(), "ppcctl events: {}", output.status);
        lines
            .lines()
            .map(|line| serde_json::from_str(line).of(line))
            .collect()
    }
}

fn text(path: &Path) -> Outcome<&str> {
    path.to_str()
        .ok_or_else(|| Stop::fail(format_args!("{} is not text", path.display())))
}

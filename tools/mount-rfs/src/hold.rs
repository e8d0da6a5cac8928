//! The background processes of a mount: a worker, if the backend serves files or the mount has a
//! policy, and this process, which holds the worker until the file system is unmounted.
//!
//! `mount` waits for its helper, so the process that stays is another one. It reads its task from
//! standard input, and reports success or failure on standard output; from then on it is detached
//! from the terminal, and writes problems to the system log.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use cprt::control::config::Config;
use cprt::control::kind::BackendKind;
use cprt::control::protocol::Settings;
use cprt::session::{Options, Session};
use serde::{Deserialize, Serialize};

use crate::Failure;

/// The argument that makes this program the process that stays.
pub(crate) const ARGUMENT: &str = "hold";

/// The mount to hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) kind: BackendKind,
    pub(crate) lower: PathBuf,
    pub(crate) at: PathBuf,
    pub(crate) library: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) passthrough: bool,
}

/// The answer of the process that stays.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    Held,
    Failed(String),
}

/// Starts the process that stays, and returns when the mount is ready.
pub(crate) fn start(task: &Task) -> Result<(), Failure> {
    let system = |doing| move |source| Failure::System { doing, source };
    let starting = "Starting the process that stays";
    let mut child = Command::new("/proc/self/exe")
        .arg(ARGUMENT)
        .arg(&task.at)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(system(starting))?;
    let text = serde_json::to_vec(task)
        .map_err(io::Error::from)
        .map_err(system(starting))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(&text).map_err(system(starting))?;
    }
    let mut answer = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        stdout
            .read_to_string(&mut answer)
            .map_err(system(starting))?;
    }
    match serde_json::from_str(&answer) {
        Ok(Word::Held) => Ok(()),
        Ok(Word::Failed(why)) => Err(Failure::Refused(why)),
        Err(_) => Err(Failure::Refused(
            "the background process of the mount has died".to_owned(),
        )),
    }
}

/// The main function of the process that stays.
pub(crate) fn run() -> io::Result<()> {
    // Detaches from the terminal; it only fails if that is done already.
    let _ = nix::unistd::setsid();
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let task: Task = serde_json::from_str(&text)?;
    // The current directory must not keep its file system from being unmounted.
    std::env::set_current_dir("/")?;
    let at = task.at.clone();
    let session = match begin(&task) {
        Ok(session) => session,
        Err(error) => return say(&Word::Failed(cprt::error::chain(&error))),
    };
    say(&Word::Held)?;
    let null = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    if let Some(fault) = session.until_unmounted(&at) {
        tell_the_system(3, &format!("{}: the policy ended: {fault}", at.display()));
    }
    Ok(())
}

fn begin(task: &Task) -> cprt::Result<Session> {
    let mut config = Config::read_default()?;
    config.fuse.passthrough &= task.passthrough;
    let options = Options {
        directory: match task.kind {
            // Files are the same whether they are read through the mount or not.
            BackendKind::Observe => task.lower.clone(),
            BackendKind::Module | BackendKind::Fuse => task.at.clone(),
        },
        library: task.library.clone(),
        settings: task.settings.clone(),
        cgroup: None,
        config,
    };
    let log = Arc::new(|level: u32, text: &str| {
        if level <= 2 {
            tell_the_system(level + 2, text);
        }
    });
    match task.kind {
        BackendKind::Fuse => Session::mirror(&options, &task.lower, &(log as _)),
        kind => Session::on(&options, kind, &(log as _)),
    }
}

/// Reports the outcome to the parent process.
fn say(word: &Word) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, word)?;
    out.flush()
}

/// Writes a line with this severity and the facility `daemon` to the system log, if there is one.
fn tell_the_system(severity: u32, text: &str) {
    const DAEMON: u32 = 3 << 3;
    let line = format!(
        "<{}>mount.rfs[{}]: {text}",
        DAEMON | severity,
        std::process::id()
    );
    if let Ok(socket) = UnixDatagram::unbound() {
        // There may be no system log.
        let _ = socket.send_to(line.as_bytes(), "/dev/log");
    }
}

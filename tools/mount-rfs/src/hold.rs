//! What goes on in the background while something is mounted: a worker, for whoever serves the files
//! or has a policy, and this process, which holds it until it is unmounted.
//!
//! `mount` waits for what it has started, so the one that stays is another process. What it has to
//! know goes through its standard input, and how it went comes back from its standard output; from
//! then on it has nothing to do with the terminal, and says what is wrong to the system's log.

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

/// What this program is called with for it.
pub(crate) const ARGUMENT: &str = "hold";

/// What to hold.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) kind: BackendKind,
    pub(crate) lower: PathBuf,
    pub(crate) at: PathBuf,
    pub(crate) library: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) passthrough: bool,
}

/// How it went.
#[derive(Debug, Serialize, Deserialize)]
enum Word {
    Held,
    Failed(String),
}

/// Starts the one that stays, and returns when all is in place.
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
            "the process that was to stay has died".to_owned(),
        )),
    }
}

/// The life of the one that stays.
pub(crate) fn run() -> io::Result<()> {
    // Not of the terminal any more; it can only be so already.
    let _ = nix::unistd::setsid();
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let task: Task = serde_json::from_str(&text)?;
    // Wherever we have been started, it may be unmounted.
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
            // Read through the mount or not, the files are the same.
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

/// Says it, and that there is no more.
fn say(word: &Word) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, word)?;
    out.flush()
}

/// A line in the system's log, if there is one: of this severity, from a daemon.
fn tell_the_system(severity: u32, text: &str) {
    const DAEMON: u32 = 3 << 3;
    let line = format!(
        "<{}>mount.rfs[{}]: {text}",
        DAEMON | severity,
        std::process::id()
    );
    if let Ok(socket) = UnixDatagram::unbound() {
        // There may be nobody.
        let _ = socket.send_to(line.as_bytes(), "/dev/log");
    }
}

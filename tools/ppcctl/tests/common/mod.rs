//! A daemon with scripted answers, and the program under test.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A path for a scratch file. Not below the target directory, whose path may be too long for a socket.
pub(crate) fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ppcctl-{}-{name}", std::process::id()))
}

/// Answers each connection with the next of its answers, and remembers the requests.
pub(crate) struct Daemon {
    pub(crate) socket: PathBuf,
    asked: JoinHandle<Vec<String>>,
}

impl Daemon {
    pub(crate) fn new<T: Into<String>>(name: &str, answers: impl IntoIterator<Item = T>) -> Self {
        let socket = scratch(name);
        let listener = UnixListener::bind(&socket).expect("a free name");
        let answers: Vec<String> = answers.into_iter().map(Into::into).collect();
        let asked = thread::spawn(move || {
            let asked = answers.into_iter().map(|answer| {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut line = String::new();
                let mut from = BufReader::new(stream.try_clone().expect("another"));
                from.read_line(&mut line).expect("a request");
                // A client that has enough may have hung up.
                let _ = stream.write_all(answer.as_bytes());
                line
            });
            asked.collect()
        });
        Self { socket, asked }
    }

    /// Runs ppcctl against it.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = ppcctl();
        command.arg("--socket").arg(&self.socket).args(arguments);
        Ran::of(&mut command)
    }

    /// The requests, once all answers are given.
    ///
    /// # Panics
    ///
    /// Answers are left, and no client connects for them.
    pub(crate) fn asked(self) -> Vec<String> {
        let end = Instant::now() + Duration::from_secs(10);
        while !self.asked.is_finished() {
            assert!(Instant::now() < end, "no client came for the next answer");
            thread::sleep(Duration::from_millis(5));
        }
        let asked = self.asked.join().expect("it ends");
        std::fs::remove_file(self.socket).expect("it was ours");
        asked
    }
}

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().expect("it was built");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        Self {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Checks that it failed with this exit status, wrote nothing to standard output, and that its errors contain
    /// these parts.
    ///
    /// # Panics
    ///
    /// One of these is not so.
    pub(crate) fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part}: {self:?}");
        }
    }

    /// Checks that it succeeded without any message, and returns its output.
    ///
    /// # Panics
    ///
    /// It failed, or wrote to standard error.
    pub(crate) fn done(&self) -> &str {
        assert_eq!((self.code, self.err.as_str()), (Some(0), ""), "{self:?}");
        &self.out
    }
}

/// The program, without the environment variables that it evaluates.
pub(crate) fn ppcctl() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ppcctl"));
    command
        .env_remove("PPC_SOCKET")
        .env_remove("PPC_POLICY_PATH");
    command
}

/// A copy of this build's MAIO that only root can change. `None`, with a line that says why, if that is not possible.
pub(crate) fn maio_or_skip() -> Option<&'static Path> {
    static MAIO: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = MAIO.get_or_init(|| {
        if !nix::unistd::geteuid().is_root() {
            return Err("starts are for root; run it as root".to_owned());
        }
        let here = std::env::current_exe().expect("a path");
        let built = here.with_file_name("libmaio.so");
        // Other test programs make their copies at the same time.
        let name = here.file_name().expect("a name");
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let library = library.join("maio.so");
        fs::create_dir_all(library.parent().expect("a folder")).expect("it is ours");
        fs::copy(&built, &library).map_err(|error| format!("{}: {error}", built.display()))?;
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).expect("it is ours");
        cprt::daemon::trust::check(&library, 0).map_err(|error| error.to_string())
    });
    made.as_deref().map_err(|why| test_support::skip(why)).ok()
}

/// Runs ppcctl without any daemon.
pub(crate) fn run<T: AsRef<OsStr>>(arguments: &[T]) -> Ran {
    Ran::of(ppcctl().args(arguments))
}

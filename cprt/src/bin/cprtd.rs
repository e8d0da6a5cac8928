//! The daemon of the cache policy runtime; `cprt::daemon::socket` is what it does.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use cprt::control::config::{Config, NriConfig};

const HELP: &str = "\
The daemon of the cache policy runtime: hosts the policies that ppcctl registers.

Usage: cprtd [--config FILE] [--nri]

      --config FILE  read FILE instead of /etc/cprt.toml, which is optional
      --nri          learn of containers from containerd or CRI-O before they run, at
                     /var/run/nri/nri.sock unless nri.socket of the configuration says otherwise
  -h, --help         print this help
  -V, --version      print the version

cprtd stays in the foreground and logs to its standard error. SIGTERM ends it cleanly; SIGHUP makes it reread
the services and kept sets of its configuration.
Exit status: 0 after SIGTERM or SIGINT, 1 if it cannot run, 2 if its arguments are wrong.";

/// The task of this process.
enum Role {
    Daemon { config: Option<PathBuf>, nri: bool },
    Worker,
    Topology,
    Look(PathBuf),
    Say(&'static str),
}

fn main() -> ExitCode {
    let role = match role(&std::env::args_os().skip(1).collect::<Vec<_>>()) {
        Ok(role) => role,
        Err(problem) => {
            eprintln!("cprtd: {problem}; try 'cprtd --help'");
            return ExitCode::from(2);
        }
    };
    let done = match role {
        Role::Say(text) => {
            println!("{text}");
            Ok(())
        }
        Role::Worker => cprt::worker::process::run(),
        Role::Topology => {
            cprt::machine::topology::Topology::detect().map(|topology| print!("{topology}"))
        }
        Role::Look(path) => cprt::machine::look::run(&path),
        Role::Daemon { config, nri } => {
            cprt::daemon::logging::to_stderr();
            let read = || {
                let mut config = match &config {
                    Some(path) => Config::read(path)?,
                    None => Config::read_default()?,
                };
                if nri && config.nri.socket.as_os_str().is_empty() {
                    config.nri.socket = NriConfig::SOCKET.into();
                }
                Ok(config)
            };
            read().and_then(|now| cprt::daemon::socket::run(now, read))
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cprtd: {}", cprt::error::chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn role(arguments: &[OsString]) -> Result<Role, String> {
    let text: Vec<_> = arguments.iter().map(|it| it.to_string_lossy()).collect();
    let text: Vec<&str> = text.iter().map(AsRef::as_ref).collect();
    match text[..] {
        ["-h" | "--help"] => Ok(Role::Say(HELP)),
        ["-V" | "--version"] => Ok(Role::Say(concat!("cprtd ", env!("CARGO_PKG_VERSION")))),
        // The daemon calls these; the mount is an argument so that ps shows it.
        ["worker", _] => Ok(Role::Worker),
        ["topology"] => Ok(Role::Topology),
        ["look", _] => Ok(Role::Look(PathBuf::from(&arguments[1]))),
        _ => daemon(arguments),
    }
}

fn daemon(arguments: &[OsString]) -> Result<Role, String> {
    let (mut config, mut nri) = (None, false);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.to_string_lossy();
        match text.as_ref() {
            "--nri" => nri = true,
            "--config" => match rest.next() {
                Some(path) => config = Some(path.into()),
                None => return Err("--config needs a file".to_owned()),
            },
            other => match other.strip_prefix("--config=") {
                Some(path) => config = Some(path.into()),
                None => return Err(format!("no such argument: {other}")),
            },
        }
    }
    Ok(Role::Daemon { config, nri })
}

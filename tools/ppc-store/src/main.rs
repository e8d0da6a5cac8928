//! `ppc-store`: shares MAIO's templates among the nodes of a fleet.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use ppc_store::config::{FleetConfig, PATH};
use ppc_store::error::{Result, StoreError};
use ppc_store::local::Disk;
use ppc_store::pace::{Dice, Pace};
use ppc_store::remote::Remote;
use ppc_store::round::{Node, Report};
use ppc_store::serve::{Told, rounds};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

/// Shares MAIO's templates among the nodes of a fleet, through object storage.
///
/// Fetches what other nodes have recorded into the folder .fleet of MAIO's store, and puts there what this node has
/// recorded and the fleet lacks. Settings are in [fleet] of /etc/cprt.toml; credentials come from the environment
/// (AWS_*, GOOGLE_*, AZURE_*) or from the machine's metadata service.
#[derive(Debug, Parser)]
#[command(
    name = "ppc-store",
    version,
    after_help = "Exit status: 0 after SIGTERM, SIGINT or a round with --once; 1 if \
    that failed; 2 for wrong arguments or settings."
)]
struct Arguments {
    /// Read FILE instead of /etc/cprt.toml, which is optional.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    // These comments are for clap, not for rustdoc.
    #[arg(
        long,
        value_name = "URL",
        help = "The storage, instead of the configured one: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER, \
            az://CONTAINER/FOLDER, or the https:// URL of a folder on a WebDAV server, which is only read"
    )]
    url: Option<String>,
    /// The directory of MAIO's templates, instead of the configured one.
    #[arg(long, value_name = "DIR")]
    store: Option<PathBuf>,
    /// Only fetch: put nothing into the storage.
    #[arg(long)]
    fetch_only: bool,
    /// Make one round at once, and end: for an init container, or to try the settings.
    #[arg(long)]
    once: bool,
    /// Print a line of JSON for each round.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A program of one thread: a round waits for one thing after the other.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(run(&arguments)),
        Err(error) => {
            eprintln!("ppc-store: cannot start its threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    match done {
        Ok(succeeded) => ExitCode::from(u8::from(!succeeded)),
        Err(error) => {
            eprintln!("ppc-store: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether the last round succeeded, if that is the end.
async fn run(arguments: &Arguments) -> Result<bool> {
    let config = FleetConfig::read(arguments.config.as_deref())?;
    let url = arguments.url.clone().unwrap_or(config.url);
    if url.is_empty() {
        let file = arguments.config.as_deref().unwrap_or(Path::new(PATH));
        return Err(StoreError::NoUrl(file.to_owned()));
    }
    // One of the libraries that TLS can be done by; fails if it is chosen already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let remote = Remote::open(&url)?;
    let disk = Disk::at(arguments.store.as_deref().unwrap_or(&config.store));
    disk.prepare()?;
    let known = disk.known();
    let puts = config.put && !arguments.fetch_only;
    let mut node = Node::new(disk, remote, known, config.budget, puts, Dice::new());
    if arguments.once {
        let result = node.round(now_s()).await;
        tell(arguments.json, &url, &result, false);
        return Ok(result.is_ok());
    }
    let every = config.interval.as_secs();
    eprintln!("ppc-store: shares templates through {url} every {every} s");
    let told = |told: Told| tell(arguments.json, &url, &told.result, told.failed_before);
    tokio::select! {
        () = rounds(&mut node, Pace::new(config.interval), now_s, told) => {}
        () = ended() => {}
    }
    Ok(true)
}

/// Returns when the program is asked to end.
async fn ended() {
    let (Ok(mut terminated), Ok(mut interrupted)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return;
    };
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
}

fn now_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Reports a round: with JSON, always; otherwise what has changed, and the first of several failures in a row.
fn tell(json: bool, url: &str, result: &Result<Report>, failed_before: bool) {
    if json {
        let line = match result {
            Ok(report) => json!({ "ok": true, "round": report }),
            Err(error) => json!({ "ok": false, "error": chain(error) }),
        };
        println!("{line}");
        return;
    }
    match result {
        Ok(report) => {
            if failed_before {
                eprintln!("ppc-store: {url} can be reached again");
            }
            tell_report(report);
        }
        Err(error) if !failed_before => {
            eprintln!(
                "ppc-store: {}; starts use the local templates; later rounds try again",
                chain(error)
            );
        }
        Err(_) => {}
    }
}

fn tell_report(report: &Report) {
    for refused in &report.refused {
        eprintln!("ppc-store: ignored: {refused}");
    }
    if let Some(why) = &report.read_only {
        eprintln!("ppc-store: no longer uploads templates: {why}");
    }
    let Report {
        listed,
        held,
        fetched,
        dropped,
        put,
        deleted,
        ..
    } = report;
    if fetched + dropped + put + deleted > 0 {
        eprintln!(
            "ppc-store: {held} of {listed} templates here: {fetched} fetched, {dropped} dropped; {put} put there, \
             {deleted} removed"
        );
    }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        // Some errors have their causes in their own text.
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}

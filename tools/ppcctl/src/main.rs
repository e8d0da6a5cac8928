//! Gives mounts of rfs their cache policies, and shows what the policies do.
//!
//! A command line (`args`) becomes a call of [`cprt::control::client::Client`]; its reply becomes text
//! (`show`) or, with `--json`, is printed unchanged; a failure becomes a sentence and an exit status
//! (`failure`, `exit`). `run`, `start`, `template`, `inspect`, `doctor` and `residency`, but for sets to keep,
//! work without the daemon.

mod args;
mod doctor;
mod exit;
mod failure;
mod generate;
mod inspect;
mod pattern;
mod residency;
mod run;
mod screen;
mod setting;
mod show;
mod start;
mod template;
mod top;

use std::io::{IsTerminal as _, stdout};
use std::path::Path;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Parser as _;
use cprt::control::client::Client;
use cprt::control::config::Config;
use cprt::control::metrics::{self, Format};
use cprt::control::protocol::{EventLine, MountStats, MountStatus};
use cprt::machine::topology::Topology;

use crate::args::{Cli, Command, Common, Errand, Events, PolicyCommand, StartCommand};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::screen::{print, print_json, remark};

/// The escape sequence that clears a terminal and moves the cursor to the top.
const CLEAR: &str = "\x1b[H\x1b[2J";

fn main() -> ExitCode {
    let first = std::env::args_os().nth(1);
    let done = if Errand::is_meant(first.as_deref()) {
        match Errand::parse() {
            Errand::Become { user, command } => {
                return run::become_command(user.as_deref(), &command);
            }
            other => errand(&other).map(|()| Exit::Done),
        }
    } else {
        match Cli::parse() {
            Cli {
                common,
                command: Command::Run(wanted),
            } => return run::run(&common, &wanted, || ()),
            Cli {
                common,
                command:
                    Command::Start {
                        store,
                        command: StartCommand::Record(wanted),
                    },
            } => return start::record(&common, store.as_deref(), wanted),
            other => done(other),
        }
    };
    match done {
        Ok(exit) => exit.into(),
        Err(failure) if failure.is_enough() => Exit::Done.into(),
        Err(failure) => {
            remark(&failure.chain());
            failure.exit().into()
        }
    }
}

fn errand(errand: &Errand) -> Result<()> {
    match errand {
        Errand::Generate { directory } => generate::write(directory),
        Errand::Load { library } => inspect::load(library),
        Errand::Worker { .. } => Ok(cprt::worker::process::run()?),
        // main() has handled it: it does not return here.
        Errand::Become { .. } => Ok(()),
        Errand::Topology => print(&Topology::detect()?.to_string()),
    }
}

fn done(Cli { common, command }: Cli) -> Result<Exit> {
    match command {
        // main() has handled it: it has exit statuses of its own.
        Command::Run(_) => return Ok(Exit::Done),
        // Its exit status depends on its findings.
        Command::Doctor { directory } => return doctor::run(common.json, &directory),
        // So do these.
        Command::Warm(wanted) => return residency::warm(&common, &wanted),
        Command::Keep { command } => {
            return residency::keep(&client(&common)?, common.json, &command);
        }
        Command::Drop(wanted) => return residency::release(common.json, &wanted),
        Command::Verify(wanted) => return residency::verify(common.json, &wanted),
        Command::RegPolicy(reg) => {
            let settings = setting::with_service(reg.settings, &reg.service)?;
            let (mount, library) = (setting::mount(&reg.mount)?, setting::library(&reg.library)?);
            let cgroup = reg.cgroup.as_deref().map(setting::full).transpose()?;
            let client = client(&common)?;
            let mount =
                client.reg_policy(&mount, &library, &settings, cgroup.as_deref(), reg.backend)?;
            changed(&common, &mount)
        }
        Command::RmPolicy { mount } => {
            let mount = client(&common)?.rm_policy(&setting::mount(&mount)?)?;
            changed(&common, &mount)
        }
        Command::Set { mount, settings } => {
            let settings = setting::collect(settings)?;
            let mount = client(&common)?.configure(&setting::mount(&mount)?, &settings)?;
            changed(&common, &mount)
        }
        Command::Status { mount } => status(&common, mount.as_deref()),
        Command::Stats { mount, watch } => stats(&common, mount.as_deref(), watch),
        Command::Top { interval } => {
            let every = Duration::from_secs(interval.into());
            top::run(client(&common)?, common.json, every)
        }
        Command::Metrics { openmetrics } => metrics(&common, openmetrics),
        Command::Events(filter) => events(&common, &filter),
        Command::Policy {
            command: PolicyCommand::Inspect { library },
        } => {
            let inspection = inspect::inspect(&setting::library(&library)?)?;
            if common.json {
                print_json(&inspection)
            } else {
                print(&inspect::show(&inspection))
            }
        }
        Command::ServiceId { pairs } => {
            let pairs: Vec<_> = pairs.into_iter().map(|it| (it.key, it.value)).collect();
            let id = maio::service::service_id(&pairs).map_err(Failure::Service)?;
            if common.json {
                print_json(&id)
            } else {
                print(&format!("{id}\n"))
            }
        }
        Command::Template { store, command } => {
            return template::run(common.json, store.as_deref(), command);
        }
        Command::Start { store, command } => {
            return start::run(&common, store.as_deref(), command);
        }
    }?;
    Ok(Exit::Done)
}

/// The client of the daemon whose socket the command line names, or else the configuration.
fn client(common: &Common) -> Result<Client> {
    let config = match (&common.config, &common.socket) {
        (Some(path), _) => Config::read(path)?,
        (None, None) => Config::read_default()?,
        // Only the group is taken from it, for a hint: an unreadable configuration is not a failure.
        (None, Some(_)) => Config::read_default().unwrap_or_default(),
    };
    let socket = common.socket.clone().unwrap_or(config.socket);
    Ok(Client::new(socket).group(config.group))
}

fn changed(common: &Common, mount: &MountStatus) -> Result<()> {
    if common.json {
        print_json(mount)
    } else {
        print(&show::status::change(mount))
    }
}

fn status(common: &Common, mount: Option<&Path>) -> Result<()> {
    let path = mount.map(setting::mount).transpose()?;
    let status = client(common)?.status(path.as_deref())?;
    if common.json {
        return print_json(&status);
    }
    if status.mounts.is_empty() && status.services.is_none() && status.kept.is_empty() {
        remark("no rfs is mounted; try 'mount -t rfs LOWER MNT'");
    }
    print(&show::status::status(&status, mount.is_some()))
}

fn stats(common: &Common, mount: Option<&Path>, watch: Option<u32>) -> Result<()> {
    let mount = mount.map(setting::mount).transpose()?;
    let client = client(common)?;
    let clear = watch.is_some() && !common.json && stdout().is_terminal();
    let mut before: Option<(Vec<MountStats>, Instant)> = None;
    loop {
        let now = client.stats(mount.as_deref())?;
        let at = Instant::now();
        if common.json {
            print_json(&now)?;
        } else {
            let before = before
                .as_ref()
                .map(|(stats, then)| (stats.as_slice(), at - *then));
            let top = match (clear, &before) {
                (true, _) => CLEAR,
                // A blank line separates one table from the next.
                (false, Some(_)) => "\n",
                (false, None) => "",
            };
            if now.is_empty() {
                remark("no mount has a policy; try 'ppcctl reg-policy MNT LIBRARY'");
            }
            print(&format!("{top}{}", show::stats::stats(&now, before)))?;
        }
        let Some(seconds) = watch else {
            return Ok(());
        };
        before = Some((now, at));
        sleep(Duration::from_secs(seconds.into()));
    }
}

fn metrics(common: &Common, openmetrics: bool) -> Result<()> {
    let client = client(common)?;
    let format = if openmetrics {
        Format::OpenMetrics
    } else {
        Format::Prometheus
    };
    let text = metrics::text(&client.status(None)?, &client.stats(None)?, format);
    if common.json {
        print_json(&text)
    } else {
        print(&text)
    }
}

fn events(common: &Common, filter: &Events) -> Result<()> {
    let events = client(common)?.events(&setting::mount(&filter.mount)?)?;
    let mut seen = 0;
    for event in events {
        let event = event?;
        if !show::events::wanted(filter, &event) {
            if event.kind == "LOST" {
                remark(&format!("{} events were lost", event.count));
            }
            continue;
        }
        // The heading is printed with the first event, so that a refusal has no heading.
        print_event(common, &event, seen == 0)?;
        seen += 1;
        if filter.count == Some(seen) {
            return Ok(());
        }
    }
    if let Some(wanted) = filter.count {
        return Err(Failure::Ended { seen, wanted });
    }
    remark("cprtd ended the stream");
    Ok(())
}

fn print_event(common: &Common, event: &EventLine, first: bool) -> Result<()> {
    if common.json {
        return print_json(event);
    }
    let heading = if first { show::events::HEADING } else { "" };
    print(&format!("{heading}{}", show::events::line(event)))
}

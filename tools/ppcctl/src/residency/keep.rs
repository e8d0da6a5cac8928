//! Sets of files that cprtd keeps in the page cache.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use cprt::control::client::Client;
use cprt::control::config::Bytes;
use cprt::control::keep::{KeepPart, KeepRemoved, KeepSet, KeepState, KeepStatus};
use cprt::control::wire::REQUEST_MAX;
use cprt::error::{Refusal, RefusalKind};
use cprt::residency::{CacheFile, Part, distinct};
use maio::template::Store;

use super::interrupt::Interrupts;
use super::{bytes, files, order, shown, tell_left_out};
use crate::args::{KeepAdd, KeepCommand};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::run::progress::Progress;
use crate::screen::{plain, print, print_json, remark};
use crate::setting;
use crate::show;
use crate::template::root_of;

/// How often to ask for the progress.
const TICK: Duration = Duration::from_millis(200);
/// What a request has besides paths and parts.
const ENVELOPE: usize = 4096;

pub(crate) fn keep(client: &Client, json: bool, command: &KeepCommand) -> Result<Exit> {
    match command {
        KeepCommand::Add(wanted) => add(client, json, wanted),
        KeepCommand::Ls => {
            let kept = client.status(None)?.kept;
            if json {
                print_json(&kept)?;
            } else if kept.is_empty() {
                remark("no files are kept; try 'ppcctl keep add NAME DIR'");
            } else {
                print(&show::keep::table(&kept))?;
            }
            Ok(Exit::Done)
        }
        KeepCommand::Show { name } => {
            let set = find(client, name)?;
            if json {
                print_json(&set)?;
            } else {
                print(&show::keep::details(&set))?;
            }
            Ok(Exit::Done)
        }
        KeepCommand::Rm { name, drop } => {
            let removed = client.rm_keep(name, *drop)?;
            if json {
                print_json(&removed)?;
            } else {
                print(&told(&removed))?;
            }
            let stays = removed.dropped_bytes.is_some() && removed.cached_bytes > 0;
            Ok(if stays { Exit::Partly } else { Exit::Done })
        }
    }
}

fn find(client: &Client, name: &str) -> Result<KeepStatus> {
    let kept = client.status(None)?.kept;
    let set = kept.into_iter().find(|it| it.name == name);
    set.ok_or_else(|| {
        let refusal = Refusal {
            kind: RefusalKind::NotFound,
            message: format!("There is no set {}", plain(name)),
            remedy: Some("'ppcctl keep ls' lists the sets".to_owned()),
        };
        cprt::Error::from(refusal).into()
    })
}

fn add(client: &Client, json: bool, wanted: &KeepAdd) -> Result<Exit> {
    let interrupts = Interrupts::take()?;
    let set = set(wanted)?;
    set.check(&wanted.name).map_err(Failure::Usage)?;
    let mut status = client.keep(&wanted.name, &set)?;
    let shows = !wanted.quiet && !json && io::stderr().is_terminal();
    let mut progress = Progress::default();
    let mut signal = None;
    while !wanted.detach && is_under_way(&status) {
        signal = interrupts.sleep(TICK)?;
        if signal.is_some() {
            break;
        }
        status = find(client, &wanted.name)?;
        if shows {
            progress.say(&show::keep::progress(&status));
        }
    }
    progress.clear();
    if json {
        print_json(&status)?;
    } else {
        for left in &status.left_out {
            remark(&plain(left));
        }
        if let Some(reason) = &status.reason {
            remark(&plain(reason));
        }
        if signal.is_some() {
            remark("cprtd continues; 'ppcctl keep ls' shows the set, 'ppcctl keep rm' removes it");
        }
        if !wanted.quiet {
            print(&show::keep::line(&status))?;
        }
    }
    Ok(signal.unwrap_or_else(|| exit(&status, wanted.detach)))
}

const fn is_under_way(status: &KeepStatus) -> bool {
    matches!(status.state, KeepState::Finding | KeepState::Loading)
}

fn exit(status: &KeepStatus, detached: bool) -> Exit {
    match status.state {
        KeepState::Failed => Exit::Failed,
        _ if status.incomplete => Exit::Failed,
        KeepState::Short | KeepState::Waiting => Exit::Partly,
        _ if detached || !is_under_way(status) => Exit::Done,
        _ => Exit::Partly,
    }
}

/// The set to keep, with absolute paths. Files that cannot be kept are reported before the daemon is asked.
fn set(wanted: &KeepAdd) -> Result<KeepSet> {
    let found = files(&wanted.paths)?;
    tell_left_out(&found.left_out, true);
    let paths = wanted.paths.iter().map(|path| setting::full(path));
    let whole = KeepSet {
        paths: paths.collect::<Result<_>>()?,
        parts: Vec::new(),
        budget: wanted.budget.map(|budget| budget.0),
        priority: wanted.priority,
    };
    let Some(service) = &wanted.service_id else {
        return Ok(whole);
    };
    let store = Store::at(root_of(wanted.store.as_deref())?);
    let why = match order::known(&store, service)? {
        None => "there is no template of",
        Some(template) if template.bypasses_cache() => {
            return Err(Failure::Usage(format!(
                "{} reads its model without the page cache (O_DIRECT): keeping the model there would not help",
                plain(service)
            )));
        }
        Some(template) => {
            let (_, parts) = order::by_template(&template, &found.files, &wanted.paths)?;
            if !parts.is_empty() {
                let (paths, parts) = listed(&found.files, &distinct(&parts, u64::MAX))?;
                return fitting(KeepSet {
                    paths,
                    parts,
                    ..whole
                });
            }
            "none of these files is in the template of"
        }
    };
    if !wanted.quiet {
        let all = Bytes(bytes(&found.files));
        remark(&format!(
            "{why} {}: all files are kept, {all}",
            plain(service)
        ));
    }
    Ok(whole)
}

/// The files that parts are of, and the parts of these.
fn listed(files: &[CacheFile], parts: &[Part]) -> Result<(Vec<PathBuf>, Vec<KeepPart>)> {
    let mut places = vec![None; files.len()];
    let (mut paths, mut listed) = (Vec::new(), Vec::<KeepPart>::new());
    for part in parts {
        let place = if let Some(place) = places[part.file] {
            place
        } else {
            paths.push(setting::full(&files[part.file].path)?);
            *places[part.file].insert(paths.len() - 1)
        };
        let length = part.range.end - part.range.start;
        match listed.last_mut() {
            Some((file, offset, before))
                if *file == place && *offset + *before == part.range.start =>
            {
                *before += length;
            }
            _ => listed.push((place, part.range.start, length)),
        }
    }
    Ok((paths, listed))
}

/// The set, unless it is too long to be sent.
fn fitting(set: KeepSet) -> Result<KeepSet> {
    let size = serde_json::to_vec(&set).map_or(0, |text| text.len());
    if size + ENVELOPE <= REQUEST_MAX {
        return Ok(set);
    }
    Err(Failure::Usage(format!(
        "The template has {} ranges, which is too many for a set; omit --service-id to keep all of {}",
        set.parts.len(),
        set.paths
            .first()
            .map_or_else(String::new, |path| shown(path))
    )))
}

fn told(removed: &KeepRemoved) -> String {
    let (name, stays) = (plain(&removed.name), Bytes(removed.cached_bytes));
    match removed.dropped_bytes {
        None => format!(
            "{name} is no longer kept; {stays} of it is cached until the kernel needs the memory\n"
        ),
        Some(dropped) if removed.cached_bytes == 0 => {
            format!("{name} is no longer kept; {} dropped\n", Bytes(dropped))
        }
        Some(dropped) => format!(
            "{name} is no longer kept; {} dropped, {stays} stays, because processes map it or it is not yet written \
             to disk\n",
            Bytes(dropped)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_is_that_of_what_was_wanted() {
        let mut status = show::keep::example();
        for (state, incomplete, expected) in [
            (KeepState::Kept, false, Exit::Done),
            (KeepState::Kept, true, Exit::Failed),
            (KeepState::Short, false, Exit::Partly),
            (KeepState::Waiting, false, Exit::Partly),
            (KeepState::Failed, false, Exit::Failed),
        ] {
            (status.state, status.incomplete) = (state, incomplete);
            assert_eq!(exit(&status, false), expected, "{state} {incomplete}");
        }
        (status.state, status.incomplete) = (KeepState::Finding, false);
        assert_eq!(exit(&status, true), Exit::Done);
    }

    #[test]
    fn removed_keep_reports_dropped_and_cached_bytes() {
        let mut removed = KeepRemoved {
            name: "x".into(),
            dropped_bytes: None,
            cached_bytes: 1 << 20,
        };
        assert!(told(&removed).contains("1 MiB of it is cached until"));
        removed.dropped_bytes = Some(3 << 20);
        assert!(told(&removed).contains("3 MiB dropped, 1 MiB stays"));
        removed.cached_bytes = 0;
        assert_eq!(told(&removed), "x is no longer kept; 3 MiB dropped\n");
    }
}

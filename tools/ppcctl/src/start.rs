//! Known starts: lists, shows, verifies, removes, loads and re-records them.
//!
//! ```text
//! store ─ template ─ maio::next_start ─ timeline ─┬─ show
//!                                                 ├─ verify ─ what the files are now
//!                                                 └─ replay ─ a session without a command
//! record: run, with one more setting
//! ```

use std::path::Path;

use cprt::control::config::Bytes;
use maio::template::{Store, Template, TemplateError, TemplateKind};
use serde::Serialize;

use crate::args::{Common, StartCommand, WhichStart};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::screen::{Table, count, print, print_json, remark};
use crate::template::{age, find, root_of};
use crate::{run, setting};

mod kind;
mod record;
mod replay;
mod show;
mod timeline;
mod verify;

pub(crate) use record::record;
pub(crate) use show::show;
use timeline::Timeline;
pub(crate) use verify::verify;

/// A line of `ls`.
#[derive(Debug, Serialize)]
struct Line {
    name: String,
    node: String,
    /// In seconds since 1970.
    made: u64,
    /// Absent if the template cannot be used.
    #[serde(flatten)]
    sums: Option<Sums>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Sums {
    starts: usize,
    files: usize,
    expected: u64,
}

impl Line {
    fn of(template: Template) -> Self {
        let timeline = Timeline::of(&template);
        Self {
            name: template.service,
            node: template.node,
            made: template.made_s,
            sums: timeline.as_ref().ok().map(|timeline| Sums {
                starts: timeline.starts,
                files: timeline.files.len(),
                expected: timeline.bytes,
            }),
            error: timeline.err().map(|error| error.to_string()),
        }
    }
}

pub(crate) fn run(common: &Common, store: Option<&Path>, command: StartCommand) -> Result<Exit> {
    let json = common.json;
    let root = root_of(store)?;
    let store = Store::at(&root);
    match command {
        StartCommand::Ls => list(json, &store)?,
        StartCommand::Show { which, all } => show(json, &known(&store, &which)?, all)?,
        StartCommand::Verify { which } => return verify(json, &known(&store, &which)?),
        StartCommand::Rm { names, node } => remove(&store, &names, node.as_deref())?,
        StartCommand::Replay(wanted) => {
            let template = known(&store, &wanted.which)?;
            return replay::replay(common, &setting::full(&root)?, &template, &wanted);
        }
        // It has exit statuses of its own.
        StartCommand::Record(_) => {}
    }
    Ok(Exit::Done)
}

/// What is expected of the next start, in order: path, offset and length.
pub(crate) fn expected(template: &Template) -> Result<Vec<(String, u64, u64)>> {
    let Timeline { ranges, files, .. } = Timeline::of(template)?;
    let ranges = ranges.into_iter();
    Ok(ranges
        .map(|range| (files[range.file].path.clone(), range.offset, range.length))
        .collect())
}

/// The template of a start, given by its name or by its command.
fn known(store: &Store, which: &WhichStart) -> Result<Template> {
    let name = match &which.name {
        Some(name) => in_store(store, name)?,
        None => run::start_name_of(None, &which.command)?,
    };
    let found = find(store, &name, which.node.as_deref());
    let template = found.map_err(|failure| match failure {
        Failure::NoTemplate(name) => Failure::NoStart(name),
        other => other,
    })?;
    match template.kind {
        TemplateKind::Start => Ok(template),
        TemplateKind::Model => Err(TemplateError::OfAModel.into()),
    }
}

/// The name of a start in the store: the given name, or that of the service with this name.
fn in_store(store: &Store, name: &str) -> Result<String> {
    let of_service = run::start_name_of_service(name);
    let there = |name: &str| store.load_all(name).map(|mut all| all.next().is_some());
    Ok(if !there(name)? && there(&of_service)? {
        of_service
    } else {
        name.to_owned()
    })
}

/// Lists all that are marked as starts. An unreadable template may be one, but is listed by `template ls` only.
fn list(json: bool, store: &Store) -> Result<()> {
    let mut lines = Vec::new();
    for entry in store.list()? {
        if !entry.state.is_ok_and(|it| it.kind == TemplateKind::Start) {
            continue;
        }
        // It may be gone since.
        if let Ok(Some(template)) = store.load(&entry.service, &entry.node) {
            lines.push(Line::of(template));
        }
    }
    if json {
        return print_json(&lines);
    }
    if lines.is_empty() {
        remark("no start is known; 'ppcctl run -- COMMAND' records one");
        return Ok(());
    }
    let headings = ["NAME", "NODE", "STARTS", "FILES", "EXPECTED", "AGE"];
    let mut table = Table::new(&headings).right(&[2, 3, 4]);
    for line in &lines {
        let sum = |of: fn(Sums) -> String| line.sums.map_or("-".to_owned(), of);
        table.row([
            line.name.clone(),
            line.node.clone(),
            sum(|it| it.starts.to_string()),
            sum(|it| count(it.files as u64)),
            sum(|it| Bytes(it.expected).to_string()),
            line.error.clone().unwrap_or_else(|| age(line.made)),
        ]);
    }
    print(&table.render())
}

/// Removes starts. If one of the names is a model's, nothing is removed.
fn remove(store: &Store, names: &[String], node: Option<&str>) -> Result<()> {
    let names: Vec<_> = names
        .iter()
        .map(|name| in_store(store, name))
        .collect::<Result<_>>()?;
    for name in &names {
        let is_meant = |it: &Template| node.is_none_or(|node| node == it.node);
        let mut all = store.load_all(name)?.filter(is_meant);
        if all.any(|it| it.kind == TemplateKind::Model) {
            return Err(Failure::Usage(format!(
                "{name} is the template of a model; 'ppcctl template rm' removes it"
            )));
        }
    }
    for name in &names {
        if store.remove(name, node)? == 0 {
            return Err(Failure::NoStart(name.clone()));
        }
    }
    Ok(())
}

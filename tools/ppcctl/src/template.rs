//! MAIO's templates: lists, shows, verifies, compares and removes them, and makes them from headers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cprt::control::config::Bytes;
use maio::predict::{self, Deployment, Directory, Prediction, predict_reads};
use maio::template::{
    Diff, Group, Identity, Sameness, Store, Summary, Template, TemplateKind, View, default_root,
    diff, this_node, valid_name,
};
use ppc::Ranks;
use serde::Serialize;

use crate::args::{Named, Order, TemplateCommand};
use crate::exit::Exit;
use crate::failure::{Failure, Result};
use crate::screen::{self, Table, plain, print, print_json, remark};
use crate::start;

/// A line of `ls`.
#[derive(Debug, Serialize)]
struct Line {
    /// What it is a template of. Absent if it cannot be used, as are the optional fields that follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<TemplateKind>,
    service: String,
    node: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<usize>,
    /// Of a start, instead of workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    starts: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reads: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loads: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    made: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The result of verifying a template.
#[derive(Debug, Serialize)]
struct Verdict {
    service: String,
    node: String,
    usable: bool,
    /// The files that differ, by path, and how.
    files: BTreeMap<String, String>,
}

pub(crate) fn run(json: bool, store: Option<&Path>, command: TemplateCommand) -> Result<Exit> {
    let store = Store::at(root_of(store)?);
    match command {
        TemplateCommand::Ls => list(json, &store)?,
        TemplateCommand::Show { named, ranges } => {
            let template = find(&store, &named.service, named.node.as_deref())?;
            match template.kind {
                // JSON is the same for all templates; it includes the kind.
                TemplateKind::Start if !json => start::show(json, &template, ranges)?,
                TemplateKind::Start | TemplateKind::Model => show(json, &template, ranges)?,
            }
        }
        TemplateCommand::Verify { named, directory } => {
            return verify(json, &store, &named, directory.as_deref());
        }
        TemplateCommand::Rm { service, node } => {
            if store.remove(&service, node.as_deref())? == 0 {
                return Err(Failure::NoTemplate(service));
            }
        }
        TemplateCommand::Diff { one, other } => compare(json, &store, &one, &other)?,
        TemplateCommand::Synth {
            directory,
            service_id,
            tp,
            order,
        } => make(json, &store, &directory, service_id.as_deref(), tp, order)?,
    }
    Ok(Exit::Done)
}

/// The given store, or the default one.
pub(crate) fn root_of(store: Option<&Path>) -> Result<PathBuf> {
    let root = store.map(Path::to_owned).or_else(default_root);
    root.ok_or_else(|| Failure::Usage("You have no home directory; use --store DIR".to_owned()))
}

/// The service's template of the given node; without one, of this node, or else of any other.
pub(crate) fn find(store: &Store, service: &str, node: Option<&str>) -> Result<Template> {
    let found = match node {
        Some(node) => store.load(service, node)?,
        None => match store.load(service, &this_node())? {
            Some(template) => Some(template),
            None => store.load_all(service)?.next(),
        },
    };
    found.ok_or_else(|| Failure::NoTemplate(service.to_owned()))
}

fn list(json: bool, store: &Store) -> Result<()> {
    let mut lines = Vec::new();
    for entry in store.list()? {
        let summary = entry.state.as_ref().ok();
        let of = |value: fn(&Summary) -> usize| summary.map(value);
        let groups_if = |kind| Some(summary.filter(|it| it.kind == kind)?.groups);
        lines.push(Line {
            kind: summary.map(|summary| summary.kind),
            service: entry.service,
            node: entry.node,
            bytes: entry.bytes,
            workers: groups_if(TemplateKind::Model),
            starts: groups_if(TemplateKind::Start),
            files: of(|summary| summary.files),
            reads: summary.map(|summary| summary.reads),
            loads: summary.map(|summary| summary.loads),
            made: summary.map(|summary| summary.made_s),
            error: entry.state.as_ref().err().map(ToString::to_string),
        });
    }
    if json {
        return print_json(&lines);
    }
    if lines.is_empty() {
        remark("there are no templates; the first load with MAIO makes one");
        return Ok(());
    }
    let headings = [
        "SERVICE", "NODE", "OF", "WORKERS", "READ", "LOADS", "SIZE", "AGE",
    ];
    let mut table = Table::new(&headings).right(&[3, 4, 5, 6]);
    for line in &lines {
        let number = |value: Option<usize>| value.map_or("-".to_owned(), |it| it.to_string());
        table.row([
            line.service.clone(),
            line.node.clone(),
            line.kind.map_or("-", of_what).to_owned(),
            number(line.workers),
            line.reads
                .map_or("-".to_owned(), |it| Bytes(it).to_string()),
            number(line.loads.and_then(|it| usize::try_from(it).ok())),
            Bytes(line.bytes).to_string(),
            line.made
                .map_or_else(|| line.error.clone().unwrap_or_default(), age),
        ]);
    }
    print(&table.render())
}

const fn of_what(kind: TemplateKind) -> &'static str {
    match kind {
        TemplateKind::Model => "model",
        TemplateKind::Start => "start",
    }
}

pub(crate) fn age(made_s: u64) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    screen::age(now.as_secs().saturating_sub(made_s))
}

fn show(json: bool, template: &Template, ranges: bool) -> Result<()> {
    let view = View::of(template)?;
    if json {
        return print_json(&view);
    }
    let mut text = format!(
        "service  {}\nnode     {}\nmade     {} ago, matched {} loads\n",
        view.service,
        view.node,
        age(view.made),
        view.loads
    );
    if template.bypasses_cache() {
        text +=
            "\nThe model's readers bypass the page cache (O_DIRECT): PPC loads nothing for them.\n";
    }
    for group in &view.groups {
        let near = group.xpu.map(|xpu| format!(", near XPU {xpu}"));
        let (count, bytes) = (group.ranges.len(), Bytes(group.bytes));
        let name = reader(template.kind, group.worker);
        let worker = format!("\nworker {name}: {bytes} in {count} ranges");
        text += &(worker + &near.unwrap_or_default() + "\n");
        text += &if ranges {
            of_ranges(&group.ranges)
        } else {
            of_files(&group.ranges)
        };
    }
    print(&text)
}

fn of_ranges(ranges: &[(&str, u64, u64)]) -> String {
    let mut table = Table::new(&["FILE", "OFFSET", "LENGTH"])
        .right(&[1, 2])
        .indent(2);
    for (path, offset, length) in ranges {
        table.row([(*path).to_owned(), offset.to_string(), length.to_string()]);
    }
    table.render()
}

/// A table of the files, in the order in which each comes first.
fn of_files(ranges: &[(&str, u64, u64)]) -> String {
    let mut files: Vec<(&str, u64, usize)> = Vec::new();
    let mut places = BTreeMap::new();
    for &(path, _, length) in ranges {
        let place = *places.entry(path).or_insert(files.len());
        if place == files.len() {
            files.push((path, 0, 0));
        }
        files[place].1 += length;
        files[place].2 += 1;
    }
    let mut table = Table::new(&["FILE", "READ", "RANGES"])
        .right(&[1, 2])
        .indent(2);
    for (path, bytes, count) in files {
        table.row([path.to_owned(), Bytes(bytes).to_string(), count.to_string()]);
    }
    table.render()
}

fn verify(json: bool, store: &Store, named: &Named, directory: Option<&Path>) -> Result<Exit> {
    let template = find(store, &named.service, named.node.as_deref())?;
    if template.kind == TemplateKind::Start {
        return match directory {
            None => start::verify(json, &template),
            Some(_) => Err(Failure::Usage(
                "A start reads files of the whole machine: omit the directory".to_owned(),
            )),
        };
    }
    // This unpacks and checks all ranges.
    View::of(&template)?;
    let mut verdict = Verdict {
        service: template.service.clone(),
        node: template.node.clone(),
        usable: true,
        files: BTreeMap::new(),
    };
    for then in directory.iter().flat_map(|_| &template.files) {
        let now = directory.map(|directory| Identity::read(directory, &then.path));
        let matter = match now {
            None => continue,
            Some(Err(error)) => error.to_string(),
            Some(Ok(now)) => match then.same(&now) {
                Sameness::Same => continue,
                Sameness::Moved => {
                    verdict.files.insert(then.path.clone(), "a copy".to_owned());
                    continue;
                }
                Sameness::Changed => "changed since the template was made".to_owned(),
            },
        };
        verdict.usable = false;
        verdict.files.insert(then.path.clone(), matter);
    }
    if json {
        print_json(&verdict)?;
    } else {
        for (path, matter) in &verdict.files {
            print(&format!("{}: {matter}\n", plain(path)))?;
        }
        let state = if verdict.usable {
            "can be used"
        } else {
            "cannot be used: the next load records a new one"
        };
        print(&format!(
            "The template of {} on {} {state}\n",
            template.service, template.node
        ))?;
    }
    Ok(if verdict.usable {
        Exit::Done
    } else {
        Exit::Failed
    })
}

fn compare(json: bool, store: &Store, one: &str, other: &str) -> Result<()> {
    let find = |name: &str| match name.split_once('/') {
        Some((service, node)) => find(store, service, Some(node)),
        None => find(store, name, None),
    };
    let (first, second) = (find(one)?, find(other)?);
    if first.kind != second.kind {
        return Err(Failure::Usage(format!(
            "{one} is the template of a {}, and {other} that of a {}: name two of the same kind",
            of_what(first.kind),
            of_what(second.kind)
        )));
    }
    let difference = diff(&first, &second)?;
    if json {
        return print_json(&difference);
    }
    print(&shown(&difference, first.kind, one, other))
}

/// Whose reads a row shows: a worker, by its ranks, or one of the last starts.
fn reader(kind: TemplateKind, number: u32) -> String {
    match (kind, number) {
        (TemplateKind::Model, worker) => Ranks::of_number(worker).to_string(),
        (TemplateKind::Start, 0) => "the last".to_owned(),
        (TemplateKind::Start, before) => format!("{before} before the last"),
    }
}

fn shown(diff: &Diff, kind: TemplateKind, one: &str, other: &str) -> String {
    let readers = match kind {
        TemplateKind::Model => "WORKER",
        TemplateKind::Start => "START",
    };
    let headings = [readers, "ONLY FIRST", "ONLY SECOND", "BOTH", "IN ORDER"];
    let mut table = Table::new(&headings).right(&[0, 1, 2, 3, 4]);
    for worker in &diff.workers {
        table.row([
            reader(kind, worker.worker),
            Bytes(worker.only_a).to_string(),
            Bytes(worker.only_b).to_string(),
            Bytes(worker.both).to_string(),
            format!("{:.1} %", worker.order * 100.0),
        ]);
    }
    let mut text = format!("first   {one}\nsecond  {other}\n\n{}", table.render());
    for file in &diff.files {
        let change = format!("{:?}", file.change).to_lowercase();
        text += &(plain(&file.path) + ": " + &change + "\n");
    }
    text + &format!(
        "\nThey differ in {:.1} % of what is read\n",
        diff.drift() * 100.0
    )
}

fn make(
    json: bool,
    store: &Store,
    directory: &Path,
    service: Option<&str>,
    tp: u32,
    order: Option<Order>,
) -> Result<()> {
    if let Some(id) = service.filter(|id| !valid_name(id)) {
        let text = format!("{id} is not a service ID; 'ppcctl service-id' prints one");
        return Err(Failure::Usage(text));
    }
    let order = order.map(|order| match order {
        Order::Vllm => predict::Order::Vllm,
        Order::Transformers => predict::Order::Transformers,
        Order::File => predict::Order::File,
    });
    let prediction = predict_reads(
        &Directory::new(directory),
        &Deployment {
            tp,
            order,
            ..Deployment::default()
        },
    )?;
    for note in &prediction.notes {
        remark(note);
    }
    let template = template_of(&prediction, directory, service.unwrap_or("synthesised"))?;
    if service.is_some() {
        store.save(&template)?;
    }
    show(json, &template, false)
}

fn template_of(prediction: &Prediction, directory: &Path, service: &str) -> Result<Template> {
    let identity = |(path, _): &(String, u64)| {
        Identity::read(directory, path).map_err(|source| Failure::At {
            path: directory.join(path),
            source,
        })
    };
    let groups = (0..).zip(&prediction.groups);
    let groups: Result<Vec<_>, _> = groups
        .map(|(worker, extents)| Group::new(worker, None, extents))
        .collect();
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Ok(Template {
        kind: TemplateKind::Model,
        service: service.to_owned(),
        node: this_node(),
        made_s: now.as_secs(),
        loads: 0,
        files: prediction
            .files
            .iter()
            .map(identity)
            .collect::<Result<_>>()?,
        groups: groups?,
    })
}

//! Between loads and the store: what was read becomes a template, and a template what will be read.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use ppc::{Host, Level, Result};

use crate::extent::Extent;
use crate::host::FileTable;
use crate::load::{Forecast, Part};
use crate::order::Pieces;
use crate::template::{Group, Identity, Store, Template, TemplateError};
use crate::workers::ExpectedWorker;

/// A template on its way to the store, which may be slow: a thread's business.
#[derive(Debug)]
pub(crate) struct Saving {
    thread: JoinHandle<Result<(), TemplateError>>,
    what: String,
}

impl Saving {
    pub(crate) fn start(store: &Store, template: &Template) -> Option<Self> {
        let what = format!("{} on {}", template.service, template.node);
        let (store, template) = (store.clone(), template.clone());
        let thread = std::thread::Builder::new().name("maio-save".into());
        let thread = thread.spawn(move || store.save(&template)).ok()?;
        Some(Self { thread, what })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    pub(crate) fn end(self, host: &Host<'_>) {
        let Self { thread, what } = self;
        match thread.join() {
            Ok(Ok(())) => host.log(Level::Info, format_args!("Kept the template of {what}")),
            // Another node keeps it.
            Ok(Err(TemplateError::ReadOnly { .. })) => {}
            Ok(Err(error)) => {
                let line = format_args!("The template of {what} is not kept: {error}");
                host.log(Level::Warn, line);
            }
            Err(_) => host.log(Level::Warn, "Keeping a template has panicked"),
        }
    }
}

/// A template of what was read, with the files that it was read from.
pub(crate) fn make_template(
    host: &Host<'_>,
    files: &mut FileTable,
    parts: &[Part],
) -> Result<Template, TemplateError> {
    let mut known: Vec<Option<u32>> = Vec::new();
    let mut identities: Vec<Identity> = Vec::new();
    let mut groups = Vec::new();
    for part in parts {
        let mut extents = Vec::with_capacity(part.extents.len());
        for extent in &part.extents {
            let at = usize::try_from(extent.file).unwrap_or(usize::MAX);
            if known.len() <= at {
                known.resize(at + 1, None);
            }
            if known[at].is_none() {
                let Some(identity) = files.identity(host, extent.file, true) else {
                    // It is gone already, and nobody will read it again.
                    continue;
                };
                known[at] = u32::try_from(identities.len()).ok();
                identities.push(identity);
            }
            if let Some(file) = known[at] {
                extents.push(Extent { file, ..*extent });
            }
        }
        groups.push(Group::new(
            part.worker,
            part.xpu.map(|xpu| xpu.0),
            &extents,
        )?);
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Ok(Template {
        service: String::new(),
        node: String::new(),
        made_s: since.map_or(0, |since| since.as_secs()),
        loads: 1,
        files: identities,
        groups,
    })
}

/// What is going to be read by a template.
pub(crate) fn forecast_of(host: &Host<'_>, template: &Template) -> Option<Forecast> {
    let groups: Result<Vec<_>, _> = template.groups.iter().map(Group::extents).collect();
    match groups {
        Ok(groups) => {
            let expected = template.groups.iter().map(|group| ExpectedWorker {
                worker: group.worker,
                xpu: group.xpu.map(ppc::Xpu),
            });
            let files = template.files.iter();
            let files = files.map(|file| (file.path.clone(), file.size));
            Some(forecast(files.collect(), &groups, expected.collect()))
        }
        Err(error) => {
            host.log(Level::Warn, format_args!("A template is not used: {error}"));
            None
        }
    }
}

/// The same, by the groups' ranges.
pub(crate) fn forecast(
    files: Vec<(String, u64)>,
    groups: &[Vec<Extent>],
    mut expected: Vec<ExpectedWorker>,
) -> Forecast {
    let pieces = Arc::new(Pieces::new(groups));
    expected.truncate(pieces.groups());
    Forecast {
        files: files.into(),
        pieces,
        expected,
        several: false,
    }
}

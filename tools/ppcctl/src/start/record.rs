//! Records a start again, replacing its previous record.

use std::process::ExitCode;

use cprt::control::config::Bytes;
use maio::template::{Store, default_root, this_node};

use super::timeline::Timeline;
use crate::args::{Common, Record, Run};
use crate::failure::Result;
use crate::run;
use crate::screen::{count, plain, remark};
use crate::setting::{self, Setting};

/// Records a start. The exit status is that of the command.
pub(crate) fn record(common: &Common, store: Option<&std::path::Path>, wanted: Record) -> ExitCode {
    match prepared(store, wanted) {
        Ok((wanted, kept)) => {
            let before = kept.as_ref().and_then(Kept::saved);
            run::run(common, &wanted, || {
                if let Some(kept) = &kept {
                    kept.tell(before, wanted.quiet || common.json);
                }
            })
        }
        Err(failure) => run::failed(&failure),
    }
}

/// The run that records, and where the record is kept; `None` if it is not kept.
fn prepared(store: Option<&std::path::Path>, wanted: Record) -> Result<(Run, Option<Kept>)> {
    let mut more = vec![Setting {
        key: "record".to_owned(),
        value: "always".to_owned(),
    }];
    if let Some(store) = store {
        more.push(Setting {
            key: "store".to_owned(),
            value: setting::full(store)?.display().to_string(),
        });
    }
    let wanted = wanted.into_run(more);
    let name = match said(&wanted, "start") {
        Some(name) => name,
        None => run::start_name_of(Some(&wanted.service), &wanted.command)?,
    };
    let root = match said(&wanted, "store").as_deref() {
        Some("none") => None,
        Some(root) => Some(root.into()),
        None => default_root(),
    };
    let node = said(&wanted, "node").unwrap_or_else(this_node);
    let kept = root.map(|root| Kept {
        store: Store::at(root),
        name,
        node,
    });
    Ok((wanted, kept))
}

fn said(wanted: &Run, key: &str) -> Option<String> {
    let setting = wanted.settings.iter().find(|one| one.key == key);
    setting.map(|one| one.value.clone())
}

/// Where the record is kept.
#[derive(Debug)]
struct Kept {
    store: Store,
    name: String,
    node: String,
}

impl Kept {
    fn saved(&self) -> Option<std::time::SystemTime> {
        self.store.saved_at(&self.name, &self.node).ok().flatten()
    }

    /// Reports whether the start has been recorded since `before`, and what was recorded.
    fn tell(&self, before: Option<std::time::SystemTime>, quiet: bool) {
        let now = self.saved();
        let name = plain(&self.name);
        if now.is_none() || now == before {
            remark(&format!(
                "the start {name} was not recorded: the command read too little, or events were lost"
            ));
            return;
        }
        let template = self.store.load(&self.name, &self.node).ok().flatten();
        let timeline = template.and_then(|it| Timeline::of(&it).ok());
        if let Some(timeline) = timeline.filter(|_| !quiet) {
            remark(&format!(
                "recorded {} of {} files; 'ppcctl start show {name}' shows them",
                Bytes(timeline.bytes),
                count(timeline.files.len() as u64)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command, StartCommand};

    fn prepare(line: &str) -> Result<(Run, Option<Kept>)> {
        let cli = Cli::try_parse_from(line.split(' ')).expect(line);
        match cli.command {
            Command::Start {
                store,
                command: StartCommand::Record(wanted),
            } => prepared(store.as_deref(), wanted),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn start_record_becomes_a_run_that_always_records() {
        let (run, kept) =
            prepare("ppcctl start --store /s record --service-id x -- true").expect("one");
        assert_eq!(said(&run, "record").as_deref(), Some("always"));
        assert_eq!(said(&run, "store").as_deref(), Some("/s"));
        assert!(run.directory.is_none() && run.backend.0.is_some());
        let kept = kept.expect("it is kept");
        assert_eq!((kept.name.as_str(), kept.node), ("start-x", this_node()));
        let (_, kept) = prepare("ppcctl start record --set store=none -- true").expect("one");
        assert!(kept.is_none());
        let line = "ppcctl start record --set node=n --set store=/t -- true";
        let kept = prepare(line).expect("one").1.expect("it is kept");
        assert!(kept.name.starts_with("start-true-"), "{}", kept.name);
        assert_eq!(kept.node, "n");
    }
}

//! A start that this node has no record of, as other nodes have recorded it.

use ppc::{Host, Level};

use crate::host::FileTable;
use crate::template::{Store, Template, TemplateKind};

/// How many records are examined, the newest first, and of each how many files: the first that the start reads.
const RECORDS: usize = 4;
const FILES: usize = 64;

/// The newest record whose files are here.
pub(super) fn find(host: &Host<'_>, store: &Store, name: &str, node: &str) -> Option<Template> {
    let others = store.load_others(name, node, None).ok()?;
    let mut starts = others
        .filter(|it| it.kind == TemplateKind::Start)
        .take(RECORDS);
    let found = starts.find(|template| fits(host, template))?;
    let line = format_args!("Loads what {} has recorded of {name}", found.node);
    host.log(Level::Info, line);
    Some(found)
}

/// Whether most of the first files have the size that they had there. Their times tell nothing: an interpreter may have
/// compiled them on each node.
fn fits(host: &Host<'_>, template: &Template) -> bool {
    let first = || template.files.iter().take(FILES);
    let mut files = FileTable::new(first().map(|file| file.path.clone()));
    let numbers = (0..).zip(first());
    let same = numbers.filter(|(number, then)| {
        let now = files.identity(host, *number, false);
        now.is_some_and(|now| now.size == then.size)
    });
    let same = same.count();
    files.close(host);
    same > 0 && same * 2 >= first().count()
}

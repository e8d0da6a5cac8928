//! A start that this node has no record of, as other nodes have recorded it.

use ppc::{Host, Level};

use crate::host::FileTable;
use crate::template::Template;

/// How many files of a record are examined: the first that the start reads.
const FILES: usize = 64;

/// The first record whose files are here.
pub(super) fn find(host: &Host<'_>, records: Vec<Template>, name: &str) -> Option<Template> {
    let found = records.into_iter().find(|record| fits(host, record))?;
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

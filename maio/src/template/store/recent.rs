//! The starts of a store that are useful to another start.

use std::path::PathBuf;
use std::time::SystemTime;

use super::{Store, Template, file_name, names};
use crate::template::TemplateKind;

/// The prefix of starts' names; templates with other names are ignored.
const START: &str = "start-";
/// Upper bound on the templates examined: a command waits for that.
const LOOKED_AT: usize = 64;

impl Store {
    /// The starts of a node that were saved last, the newest first, at most `most`; unreadable ones are left out.
    pub(crate) fn recent_starts(&self, node: &str, most: usize) -> Vec<Template> {
        let (Ok(names), Ok(file)) = (names(&self.root), file_name(node)) else {
            return Vec::new();
        };
        let saved = |name: String| {
            let path: PathBuf = self.root.join(&name).join(&file);
            let modified = path.symlink_metadata().ok()?.modified().ok()?;
            Some((modified, name))
        };
        let starts = names.filter(|name| name.starts_with(START));
        let mut saved: Vec<(SystemTime, String)> =
            starts.take(LOOKED_AT).filter_map(saved).collect();
        saved.sort_unstable_by(|one, other| other.cmp(one));
        let newest = saved.into_iter().take(most);
        let loaded = newest.filter_map(|(_, name)| self.load(&name, node).ok().flatten());
        loaded
            .filter(|template| template.kind == TemplateKind::Start)
            .collect()
    }
}

//! What a node without a recording can learn from the other nodes of its service. Pure.
//!
//! Nodes may be copies of each other, each with all workers, or share the workers of one model. In the
//! first case any template will do. In the second each has the groups of its own workers; a node whose name
//! is new, as names of containers are, may get any ranks, and replays the groups of these.

use std::collections::{HashMap, HashSet};

use super::{Group, Template};
use crate::Extent;

/// How many nodes' templates are enough to know a service.
const MOST_NODES: usize = 64;

/// The combined recordings of the other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTemplate {
    /// Never a load of this node's: 0 are counted where it is from several.
    pub template: Template,
    /// The groups are those of several nodes: a group is read here only if its worker turns up.
    pub several: bool,
}

/// Combines the templates of other nodes, newest first, of a service with at least this many workers in
/// all; `None` if they do not know all of them.
#[must_use]
pub fn learn(others: impl Iterator<Item = Template>, workers: u32) -> Option<FoundTemplate> {
    let others: Vec<Template> = others.take(MOST_NODES).collect();
    let workers = usize::try_from(workers).unwrap_or(usize::MAX);
    let enough = |template: &Template| template.groups.len() >= workers;
    if let Some(whole) = others.iter().position(enough) {
        let template = others.into_iter().nth(whole)?;
        let several = false;
        return Some(FoundTemplate { template, several });
    }
    let template = together(others)?;
    let several = true;
    enough(&template).then_some(FoundTemplate { template, several })
}

/// All workers' groups, of each the newest.
fn together(templates: Vec<Template>) -> Option<Template> {
    let mut templates = templates.into_iter();
    let mut all = templates.next()?;
    all.loads = 0;
    let mut workers: HashSet<u32> = all.groups.iter().map(|group| group.worker).collect();
    for template in templates {
        let numbers = add_files(&mut all, &template);
        for group in template.groups {
            if !workers.insert(group.worker) {
                continue;
            }
            let extents = group.extents().ok()?;
            let known = |extent: Extent| {
                let file = numbers[usize::try_from(extent.file).ok()?];
                Some(Extent { file, ..extent })
            };
            let extents: Option<Vec<_>> = extents.into_iter().map(known).collect();
            all.groups
                .push(Group::new(group.worker, group.xpu, &extents?).ok()?);
        }
    }
    all.groups.sort_by_key(|group| group.worker);
    Some(all)
}

/// The numbers in this template of another template's files.
fn add_files(all: &mut Template, more: &Template) -> Vec<u32> {
    let files = all.files.iter().zip(0..);
    let mut numbers: HashMap<String, u32> = files
        .map(|(file, number)| (file.path.clone(), number))
        .collect();
    let mut number = |file: &super::Identity| {
        let next = u32::try_from(all.files.len()).unwrap_or(u32::MAX);
        *numbers.entry(file.path.clone()).or_insert_with(|| {
            all.files.push(file.clone());
            next
        })
    };
    more.files.iter().map(&mut number).collect()
}

#[cfg(test)]
mod tests {
    use super::super::TemplateKind;
    use super::super::samples::identity;
    use super::*;

    fn extent(file: u32, first: u32) -> Extent {
        Extent {
            file,
            first,
            pages: 2,
        }
    }

    fn of(node: &str, files: &[&str], groups: &[(u32, Extent)]) -> Template {
        let group = |&(worker, extent): &(u32, Extent)| Group::new(worker, None, &[extent]);
        let groups: Result<_, _> = groups.iter().map(group).collect();
        Template {
            kind: TemplateKind::Model,
            service: "s".to_owned(),
            node: node.to_owned(),
            made_s: 1,
            loads: 3,
            files: files.iter().map(|path| identity(path, 1 << 20)).collect(),
            groups: groups.expect("groups"),
        }
    }

    #[test]
    fn newest_complete_template_is_used_alone() {
        let newest = of("b", &["f"], &[(0, extent(0, 0)), (1, extent(0, 9))]);
        let oldest = of("a", &["f"], &[(0, extent(0, 5)), (1, extent(0, 6))]);
        let learnt = learn([newest.clone(), oldest].into_iter(), 2).expect("a template");
        assert_eq!((learnt.template, learnt.several), (newest, false));
        assert_eq!(learn(std::iter::empty(), 0), None);
    }

    #[test]
    fn workers_that_are_on_several_nodes_are_put_together_by_their_files_names() {
        let newest = of("b", &["f", "g"], &[(2, extent(1, 0)), (3, extent(0, 9))]);
        let older = of(
            "a",
            &["h", "g"],
            &[(0, extent(0, 5)), (1, extent(1, 6)), (3, extent(0, 1))],
        );
        let learnt = learn([newest.clone(), older].into_iter(), 4).expect("a template");
        assert!(learnt.several && learnt.template.loads == 0);
        let files = learnt.template.files.iter().map(|file| file.path.as_str());
        assert_eq!(files.collect::<Vec<_>>(), ["f", "g", "h"]);
        let groups = learnt.template.groups.iter();
        let groups = groups.map(|group| (group.worker, group.extents().expect("ranges")[0]));
        let expected = [
            (0, extent(2, 5)),
            (1, extent(1, 6)),
            (2, extent(1, 0)),
            (3, extent(0, 9)),
        ];
        assert_eq!(groups.collect::<Vec<_>>(), expected);
        assert_eq!(
            learn(std::iter::once(newest), 4),
            None,
            "the other workers' reads are unknown"
        );
    }
}

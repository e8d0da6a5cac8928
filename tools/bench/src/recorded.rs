//! Compares a template that was just recorded with what the workers read, page by page.

use std::collections::HashSet;
use std::path::Path;

use maio::Extent;
use maio::template::{Store, Template};

use crate::error::Result;
use crate::model::Model;
use crate::reader::{Profile, steps};
use crate::result::Recorded;

/// A page of a shard.
type Pages = HashSet<(usize, u32)>;

/// Compares the template in a store with what these readers read; `None` if there is none.
pub(crate) fn check(store: &Path, model: &Model, reader: Profile) -> Result<Option<Recorded>> {
    let store = Store::at(store);
    let Some(entry) = store.list()?.into_iter().next() else {
        return Ok(None);
    };
    let template = store.load_all(&entry.service)?.next();
    let compared = template.map(|template| compare(&template, model, reader));
    compared.transpose()
}

fn compare(template: &Template, model: &Model, reader: Profile) -> Result<Recorded> {
    let mut all = Recorded {
        workers: template.groups.len(),
        ..Recorded::default()
    };
    // For each of the template's files, its number among the shards; the configuration is not a shard.
    let shards: Vec<Option<usize>> = template
        .files
        .iter()
        .map(|file| model.shards.iter().position(|it| it.name == file.path))
        .collect();
    for rank in 0..reader.workers {
        let mut found = Pages::new();
        for group in template.groups.iter().filter(|it| it.worker == rank) {
            for extent in group.extents()? {
                let shard = usize::try_from(extent.file).ok();
                if let Some(shard) = shard.and_then(|at| *shards.get(at)?) {
                    found.extend((extent.first..extent.end()).map(|page| (shard, page)));
                }
            }
        }
        let read = read(model, reader, rank);
        all.right += found.intersection(&read).count() as u64;
        all.missing += read.difference(&found).count() as u64;
        all.not_read += found.difference(&read).count() as u64;
    }
    Ok(all)
}

/// The pages that the worker of a rank reads, including the headers of the files.
fn read(model: &Model, reader: Profile, rank: u32) -> Pages {
    let steps = steps(model, reader, rank, 0);
    let headers = steps.iter().map(|step| {
        let header = model.shards[step.shard].header.len() as u64;
        (step.shard, 0..header)
    });
    let tensors = steps.iter().map(|step| (step.shard, step.touch.clone()));
    let mut pages = Pages::new();
    for (shard, bytes) in headers.chain(tensors) {
        if let Some(extent) = Extent::of_bytes(0, &bytes) {
            pages.extend((extent.first..extent.end()).map(|page| (shard, page)));
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use maio::template::{Group, Identity, TemplateKind};

    use super::*;
    use crate::model::SMALL;

    #[test]
    fn a_page_too_many_and_a_page_too_few_are_counted() {
        let model = Model::new(&SMALL.of_mib(64));
        let reader = Profile::tp();
        let identity = |path: &str| Identity {
            path: path.to_owned(),
            size: 0,
            mtime_ns: 0,
            inode: 0,
            header: 0,
        };
        let group = |rank: u32, skip: usize| {
            let mut pages: Vec<_> = read(&model, reader, rank).into_iter().collect();
            pages.sort_unstable();
            // The configuration is the first file.
            let extent = |&(shard, first): &(usize, u32)| Extent {
                file: u32::try_from(shard + 1).expect("few"),
                first,
                pages: 1,
            };
            let extents: Vec<_> = pages.iter().skip(skip).map(extent).collect();
            Group::new(rank, None, &extents).expect("a group")
        };
        let names = model.shards.iter().map(|shard| shard.name.as_str());
        let mut template = Template {
            kind: TemplateKind::Model,
            service: "s".to_owned(),
            node: "n".to_owned(),
            made_s: 0,
            loads: 1,
            files: std::iter::once("config.json")
                .chain(names)
                .map(identity)
                .collect(),
            groups: (0..4).map(|rank| group(rank, 0)).collect(),
        };
        let exact = compare(&template, &model, reader).expect("it fits");
        assert_eq!((exact.workers, exact.missing, exact.not_read), (4, 0, 0));
        assert!(exact.right > 0);
        template.groups[1] = group(1, 3);
        // The reads of another worker, which only partly match this one's.
        template.groups[2] =
            Group::new(2, None, &group(3, 0).extents().expect("them")).expect("it");
        let wrong = compare(&template, &model, reader).expect("it fits");
        assert!(wrong.missing > 3 && wrong.not_read > 0, "{wrong:?}");
        template.groups.truncate(1);
        let few = compare(&template, &model, reader).expect("it fits");
        assert_eq!(few.workers, 1);
        assert_eq!(few.right + few.missing, exact.right);
    }
}

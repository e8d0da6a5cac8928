//! Under which name a template is shared. Pure.
//!
//! Nodes that load the same files by the same workers have the same name for what they record, so a fleet keeps one
//! template of a service and not one for each node. Nodes that share the workers of one model, and revisions of it,
//! have their own names.

use std::fmt;

use maio::template::{Template, TemplateKind, valid_name};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Below this size, in bytes, a file does not tell a model from another: not all nodes need read the same small ones.
const WEIGHTS: u64 = 1 << 20;
/// What a name begins with.
const PREFIX: &str = "fleet-";
/// What a template's name ends with in storage, as it does in a directory.
const SUFFIX: &str = ".maio";

/// Where a template is, in storage and in the fleet's folder.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Place {
    /// The service.
    pub service: String,
    /// The [`slot`].
    pub slot: String,
}

impl Place {
    /// The place of a template of this service.
    #[must_use]
    pub fn of(service: &str, template: &Template) -> Self {
        Self {
            service: service.to_owned(),
            slot: slot(template),
        }
    }

    /// The place that an object's name stands for, from the fleet's folder in the storage; `None` for any other object.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (service, file) = name.split_once('/')?;
        let place = Self {
            service: service.to_owned(),
            slot: file.strip_suffix(SUFFIX)?.to_owned(),
        };
        place.is_valid().then_some(place)
    }

    /// Whether both names are valid, as paths are made of them.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let hex = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f');
        let digits = self.slot.strip_prefix(PREFIX);
        valid_name(&self.service) && digits.is_some_and(|it| it.len() == 16 && it.bytes().all(hex))
    }

    /// The name of the object, from the fleet's folder in the storage.
    #[must_use]
    pub fn object(&self) -> String {
        format!("{self}{SUFFIX}")
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.service, self.slot)
    }
}

/// The name for a template: by its kind; of a model, by its workers and the weights that they read as well.
#[must_use]
pub fn slot(template: &Template) -> String {
    let mut hash = Sha256::new();
    match template.kind {
        TemplateKind::Start => hash.update(b"start"),
        TemplateKind::Model => {
            hash.update(b"model");
            let mut workers: Vec<u32> = template.groups.iter().map(|it| it.worker).collect();
            workers.sort_unstable();
            for worker in workers {
                hash.update(worker.to_le_bytes());
            }
            let mut files: Vec<_> = template.files.iter().collect();
            files.retain(|file| file.size >= WEIGHTS);
            files.sort_by(|one, other| one.path.cmp(&other.path));
            for file in files {
                hash.update(b"\0");
                hash.update(&file.path);
                hash.update(b"\0");
                hash.update(file.size.to_le_bytes());
                hash.update(file.header.to_le_bytes());
            }
        }
    }
    let hash = hash.finalize();
    let digits = hash.iter().take(8);
    digits.fold(PREFIX.to_owned(), |name, byte| format!("{name}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use maio::Extent;
    use maio::template::{Group, Identity};

    use super::*;

    fn template(kind: TemplateKind, workers: &[u32], files: &[(&str, u64, u64)]) -> Template {
        let range = Extent {
            file: 0,
            first: 0,
            pages: 1,
        };
        let group = |&worker: &u32| Group::new(worker, None, &[range]).expect("a group");
        let file = |&(path, size, header): &(&str, u64, u64)| Identity {
            path: path.to_owned(),
            size,
            mtime_ns: i64::try_from(header).expect("it is small"),
            inode: header,
            header,
        };
        Template {
            kind,
            service: "s".to_owned(),
            node: "n".to_owned(),
            made_s: 1,
            loads: 1,
            files: files.iter().map(file).collect(),
            groups: workers.iter().map(group).collect(),
        }
    }

    #[test]
    fn copies_share_a_name_and_what_reads_other_files_or_by_other_workers_does_not() {
        let (a, b) = (("a", 5 << 20, 1), ("b", 5 << 20, 2));
        let of =
            |workers: &[u32], files: &[_]| slot(&template(TemplateKind::Model, workers, files));
        let one = of(&[0, 1], &[a, b]);
        assert_eq!(one, of(&[1, 0], &[b, ("config.json", 700, 9), a]));
        assert_ne!(one, of(&[2, 3], &[a, b]), "another part of the model");
        assert_ne!(
            one,
            of(&[0, 1], &[a, ("b", 5 << 20, 3)]),
            "another revision"
        );
        assert_ne!(one, of(&[0, 1], &[a]));
        assert_ne!(one, of(&[], &[a, b]), "readers that bypass the page cache");
        let start = |files: &[_]| slot(&template(TemplateKind::Start, &[0], files));
        assert_eq!(start(&[a]), start(&[b]), "of a start there is one");
        assert_ne!(start(&[a]), of(&[0], &[a]));
    }

    #[test]
    fn only_places_have_names_of_places() {
        let name = slot(&template(TemplateKind::Start, &[], &[]));
        let place = Place::parse(&format!("qwen/{name}.maio")).expect("a place");
        assert_eq!(place.object(), format!("qwen/{name}.maio"));
        for name in [
            "",
            "qwen",
            "qwen/",
            "qwen/fleet-0123456789abcdef",
            "qwen/node-1.maio",
            "qwen/fleet-0123456789abcde.maio",
            "qwen/fleet-0123456789ABCDEF.maio",
            "qwen/fleet-0123456789abcdef0.maio",
            "../fleet-0123456789abcdef.maio",
            ".fleet/fleet-0123456789abcdef.maio",
            "a/b/fleet-0123456789abcdef.maio",
            "qwen/../fleet-0123456789abcdef.maio",
            "q\0/fleet-0123456789abcdef.maio",
        ] {
            assert_eq!(Place::parse(name), None, "{name:?}");
        }
    }
}

//! What a start without a record shares with others: interpreter, packages, shared objects. Pure.
//!
//! When this start touches a package, what another one read of that package is asked for; likewise for a file that is
//! in no package. Nothing is loaded of packages that this start does not touch.

use std::collections::HashMap;

use super::expected::ahead;
use crate::extent::Extent;
use crate::template::{Group, Template};

/// Directories whose entries are packages.
const OF_PACKAGES: [&str; 3] = ["site-packages", "dist-packages", "node_modules"];
/// The standard library of an interpreter is one package.
const LIBRARY: &str = "python3.";

/// A range of a file that has no number yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shared {
    pub(super) path: String,
    pub(super) first: u32,
    pub(super) pages: u32,
}

/// What other starts read, by package.
#[derive(Debug, Default)]
pub(super) struct OtherStarts(HashMap<String, Vec<Shared>>);

impl OtherStarts {
    /// Where several templates have a package, the first one counts.
    pub(super) fn new(templates: Vec<Template>) -> Self {
        let mut packages = HashMap::new();
        for template in templates {
            for (package, shared) in of_template(&template) {
                packages.entry(package).or_insert(shared);
            }
        }
        Self(packages)
    }

    /// What others read of this file's package; empty from the second call for a package on.
    pub(super) fn touched(&mut self, path: &str) -> Vec<Shared> {
        self.0.remove(package(path)).unwrap_or_default()
    }
}

/// The template's reads by package, in the order of need.
fn of_template(template: &Template) -> HashMap<String, Vec<Shared>> {
    let starts: Result<Vec<_>, _> = template.groups.iter().map(Group::extents).collect();
    let mut packages: HashMap<String, Vec<Shared>> = HashMap::new();
    for Extent { file, first, pages } in ahead(&starts.unwrap_or_default()) {
        let found = usize::try_from(file).ok();
        let Some(file) = found.and_then(|at| template.files.get(at)) else {
            continue;
        };
        let shared = packages.entry(package(&file.path).to_owned()).or_default();
        shared.push(Shared {
            path: file.path.clone(),
            first,
            pages,
        });
    }
    packages
}

/// The package of a file, by its path; a file that is in none counts as a package by itself.
fn package(path: &str) -> &str {
    let mut end = 0;
    let mut within = false;
    let mut library = None;
    for part in path.split('/') {
        end += part.len();
        if within {
            return &path[..end];
        }
        within = OF_PACKAGES.contains(&part);
        if part.starts_with(LIBRARY) && end < path.len() {
            library = Some(end);
        }
        end += 1;
    }
    library.map_or(path, |end| &path[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::{Identity, TemplateKind};

    #[test]
    fn package_is_derived_from_the_path() {
        let table = [
            ("usr/lib/libc.so.6", "usr/lib/libc.so.6"),
            ("usr/lib/python3.11/json/a.pyc", "usr/lib/python3.11"),
            (
                "v/lib/python3.11/site-packages/torch/lib/a.so",
                "v/lib/python3.11/site-packages/torch",
            ),
            (
                "v/lib/python3.11/site-packages/six.py",
                "v/lib/python3.11/site-packages/six.py",
            ),
            ("srv/app/node_modules/x/y/z.js", "srv/app/node_modules/x"),
            ("usr/bin/python3.11", "usr/bin/python3.11"),
        ];
        for (path, expected) in table {
            assert_eq!(package(path), expected, "{path}");
        }
    }

    fn template(name: &str, reads: &[(&str, u32, u32)]) -> Template {
        let files = reads.iter().map(|&(path, ..)| Identity {
            path: path.to_owned(),
            size: 1 << 20,
            mtime_ns: 1,
            inode: 1,
            header: 0,
        });
        let extents: Vec<_> = (0..)
            .zip(reads)
            .map(|(file, &(_, first, pages))| Extent { file, first, pages })
            .collect();
        Template {
            kind: TemplateKind::Start,
            service: name.to_owned(),
            node: "n".to_owned(),
            made_s: 0,
            loads: 1,
            files: files.collect(),
            groups: vec![Group::new(0, None, &extents).expect("a group")],
        }
    }

    #[test]
    fn a_package_is_given_when_it_is_touched_as_the_newest_start_read_it() {
        let torch = "v/site-packages/torch/a.so";
        let newest = template("a", &[("bin/python", 0, 4), (torch, 8, 2)]);
        let older = template("b", &[(torch, 0, 99), ("v/site-packages/numpy/b.so", 0, 7)]);
        let mut others = OtherStarts::new(vec![newest, older]);
        let touched = |others: &mut OtherStarts, path| -> Vec<_> {
            let shared = others.touched(path).into_iter();
            shared.map(|it| (it.path, it.first, it.pages)).collect()
        };
        assert_eq!(touched(&mut others, "etc/passwd"), []);
        assert_eq!(
            touched(&mut others, "v/site-packages/torch/__init__.py"),
            [(torch.to_owned(), 8, 2)]
        );
        assert_eq!(touched(&mut others, torch), [], "once");
        assert_eq!(touched(&mut others, "v/site-packages/numpy/x.py").len(), 1);
        assert_eq!(touched(&mut others, "bin/python").len(), 1);
    }
}

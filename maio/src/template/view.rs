//! A template for users, and for programs that read JSON.
//!
//! For tools: `ppcctl template show` prints it, and the fuzzer checks that every decoded template can be shown. The
//! policy does not use it.

use ppc::Ranks;
use serde::Serialize;

use super::{Group, Identity, Template, TemplateError, TemplateKind};
use crate::Extent;

/// A template with everything unpacked.
#[derive(Debug, Serialize)]
pub struct View<'a> {
    /// What it is of.
    pub kind: TemplateKind,
    /// The service.
    pub service: &'a str,
    /// The node it was recorded on.
    pub node: &'a str,
    /// When it was made, in seconds since 1970.
    pub made: u64,
    /// How many loads it has been right for.
    pub loads: u32,
    /// What is read.
    pub files: Vec<FileView<'a>>,
    /// Its workers; of a start, the last starts.
    pub groups: Vec<GroupView<'a>>,
}

/// A file of a template.
#[derive(Debug, Serialize)]
pub struct FileView<'a> {
    /// From the model's directory.
    pub path: &'a str,
    /// In bytes.
    pub size: u64,
    /// Last change of its contents, in ns since 1970.
    pub mtime_ns: i64,
    /// Its number on its file system; `None` = unknown.
    pub inode: Option<u64>,
    /// The hash of its beginning, in hexadecimal as JSON's numbers end at 2^53; `None` = unknown.
    pub header: Option<String>,
}

/// What a worker reads.
#[derive(Debug, Serialize)]
pub struct GroupView<'a> {
    /// The worker.
    pub worker: u32,
    /// Its ranks, such as `PP1 TP0`; of a start its number.
    pub name: String,
    /// The accelerator it loads for.
    pub xpu: Option<u16>,
    /// How much it reads, in whole pages.
    pub bytes: u64,
    /// Path, offset and length in bytes, in reading order. The last page of a file ends with it.
    pub ranges: Vec<(&'a str, u64, u64)>,
}

impl<'a> View<'a> {
    /// Shows a template.
    ///
    /// # Errors
    /// [`TemplateError::Inconsistent`] if its ranges are impossible.
    pub fn of(template: &'a Template) -> Result<Self, TemplateError> {
        let group = |group| GroupView::of(group, &template.files);
        Ok(Self {
            kind: template.kind,
            service: &template.service,
            node: &template.node,
            made: template.made_s,
            loads: template.loads,
            files: template.files.iter().map(FileView::of).collect(),
            groups: template
                .groups
                .iter()
                .map(group)
                .collect::<Result<_, _>>()?,
        })
    }
}

impl<'a> FileView<'a> {
    fn of(file: &'a Identity) -> Self {
        Self {
            path: &file.path,
            size: file.size,
            mtime_ns: file.mtime_ns,
            inode: (file.inode != 0).then_some(file.inode),
            header: (file.header != 0).then(|| format!("{:016x}", file.header)),
        }
    }
}

impl<'a> GroupView<'a> {
    fn of(group: &Group, files: &'a [Identity]) -> Result<Self, TemplateError> {
        let range = |extent: &Extent| {
            let file = files.get(extent.file as usize)?;
            let left = file.size.checked_sub(extent.offset())?;
            Some((
                file.path.as_str(),
                extent.offset(),
                extent.length().min(left),
            ))
        };
        let extents = group.extents()?;
        let ranges = extents.iter().map(range).collect::<Option<_>>();
        Ok(Self {
            worker: group.worker,
            name: Ranks::of_number(group.worker).to_string(),
            xpu: group.xpu,
            bytes: group.bytes(),
            ranges: ranges.ok_or(TemplateError::Inconsistent("a range belongs to no file"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::small;
    use super::*;

    #[test]
    fn ranges_are_shown_in_bytes_that_files_have() {
        let mut template = small();
        template.files[0].inode = 0;
        template.files[0].header = 0;
        let view = View::of(&template).expect("a view");
        assert_eq!(view.files[0].inode, None);
        assert_eq!(view.files[0].header, None);
        assert_eq!(view.files[1].header.as_deref(), Some("0123456789abcdef"));
        assert_eq!(view.groups[0].ranges.len(), template.groups[0].len());
        assert_eq!(view.groups[1].ranges.last(), Some(&("config.json", 0, 700)));
        template.files.truncate(1);
        assert!(View::of(&template).is_err());
    }
}

//! A template as bytes.
//!
//! ```text
//!  0  magic             8 bytes
//!  8  version           u32, little endian like all
//! 12  length of body    u64
//! 20  SHA-256 of body   32 bytes
//! 52  body              in bincode's format, of fixed-size integers
//! ```
//!
//! Version 1 is of a model. Version 2 differs only in the first byte of its body, which names its kind: a start.
//! Models are still written as version 1, so that a MAIO that knows only that one reads them and refuses starts.
//!
//! The body is not trusted before its checksum is verified, nor afterwards: a writer of templates can
//! write checksums, too.

use std::collections::HashSet;
use std::path::{Component, Path};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use wincode::config::{Configuration, DESERIALIZATION_SIZE_LIMIT_DISABLED};
use wincode::containers;
use wincode::len::BincodeLen;
use wincode::{SchemaRead, SchemaWrite};

use super::{
    Group, Identity, MAX_BYTES, MAX_EXTENTS, MAX_FILES, MAX_GROUPS, Template, TemplateError,
    TemplateKind, pages_of, valid_name,
};

const MAGIC: &[u8; 8] = b"MAIOTPL\n";
const OF_MODEL: u32 = 1;
const MARKED: u32 = 2;
const HEAD: usize = 52;

/// The same as in Linux.
const MAX_PATH: usize = 4096;

/// Lengths of what is borrowed and not allocated are bounded by the input.
const CONFIG: Configuration<
    true,
    MAX_BYTES,
    BincodeLen,
    wincode::int_encoding::LittleEndian,
    wincode::int_encoding::FixInt,
    u32,
    DESERIALIZATION_SIZE_LIMIT_DISABLED,
> = Configuration::default().with_preallocation_size_limit::<MAX_BYTES>();

/// These are allocated, so they have their own limits, in bytes.
type FilesLen = BincodeLen<{ MAX_FILES * size_of::<PackedFile<'static>>() }>;
type GroupsLen = BincodeLen<{ MAX_GROUPS * size_of::<PackedGroup<'static>>() }>;

/// The only kind that is marked.
const START: u8 = 1;

/// The body of version 2.
#[derive(SchemaRead, SchemaWrite)]
struct MarkedBody<'a> {
    kind: u8,
    body: Body<'a>,
}

/// The body of version 1.
#[derive(SchemaRead, SchemaWrite)]
struct Body<'a> {
    service: &'a str,
    node: &'a str,
    made_s: u64,
    loads: u32,
    #[wincode(with = "containers::Vec<PackedFile<'a>, FilesLen>")]
    files: Vec<PackedFile<'a>>,
    #[wincode(with = "containers::Vec<PackedGroup<'a>, GroupsLen>")]
    groups: Vec<PackedGroup<'a>>,
}

#[derive(SchemaRead, SchemaWrite)]
struct PackedFile<'a> {
    path: &'a str,
    size: u64,
    mtime_ns: i64,
    inode: u64,
    header: u64,
}

#[derive(SchemaRead, SchemaWrite)]
struct PackedGroup<'a> {
    worker: u32,
    xpu: Option<u16>,
    count: u32,
    pages: u64,
    bytes: &'a [u8],
}

impl Template {
    /// The content to keep, with all ranges checked.
    ///
    /// # Errors
    /// [`TemplateError::Inconsistent`] if [`Template::from_bytes`] or [`Group::extents`] would refuse it,
    /// [`TemplateError::TooLarge`] if it is.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TemplateError> {
        let limits = self.check()?;
        for group in &self.groups {
            group.unpack(Some(&limits))?;
        }
        let body = self.body();
        let (version, body) = match self.kind {
            TemplateKind::Model => (OF_MODEL, wincode::config::serialize(&body, CONFIG)),
            TemplateKind::Start => {
                let marked = MarkedBody { kind: START, body };
                (MARKED, wincode::config::serialize(&marked, CONFIG))
            }
        };
        let body = body.map_err(|_| TemplateError::Inconsistent("it cannot be written"))?;
        let bytes = sealed(version, &body);
        match bytes.len() {
            size if size > MAX_BYTES => Err(TemplateError::TooLarge(size as u64)),
            _ => Ok(bytes),
        }
    }

    /// Decodes a kept template, whatever its origin. Ranges are checked when they are unpacked.
    ///
    /// # Errors
    /// Any but those of names, paths and input.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TemplateError> {
        if bytes.len() > MAX_BYTES {
            return Err(TemplateError::TooLarge(bytes.len() as u64));
        }
        let wrong = |_| TemplateError::Inconsistent("its body is not that of a template");
        let (kind, body) = match opened(bytes)? {
            (OF_MODEL, body) => {
                let body = wincode::config::deserialize_exact(body, CONFIG).map_err(wrong)?;
                (TemplateKind::Model, body)
            }
            (_, body) => {
                let marked: MarkedBody<'_> =
                    wincode::config::deserialize_exact(body, CONFIG).map_err(wrong)?;
                if marked.kind != START {
                    return Err(TemplateError::Inconsistent("its kind is unknown"));
                }
                (TemplateKind::Start, marked.body)
            }
        };
        let mut template = Self::of(kind, &body);
        let limits: Arc<[u32]> = template.check()?.into();
        for group in &mut template.groups {
            group.limits = Some(Arc::clone(&limits));
        }
        Ok(template)
    }

    fn of(kind: TemplateKind, body: &Body<'_>) -> Self {
        let file = |file: &PackedFile<'_>| Identity {
            path: file.path.to_owned(),
            size: file.size,
            mtime_ns: file.mtime_ns,
            inode: file.inode,
            header: file.header,
        };
        let group = |group: &PackedGroup<'_>| Group {
            worker: group.worker,
            xpu: group.xpu,
            count: group.count,
            pages: group.pages,
            packed: group.bytes.to_vec(),
            limits: None,
        };
        Self {
            kind,
            service: body.service.to_owned(),
            node: body.node.to_owned(),
            made_s: body.made_s,
            loads: body.loads,
            files: body.files.iter().map(file).collect(),
            groups: body.groups.iter().map(group).collect(),
        }
    }

    fn body(&self) -> Body<'_> {
        Body {
            service: &self.service,
            node: &self.node,
            made_s: self.made_s,
            loads: self.loads,
            files: self.files.iter().map(PackedFile::of).collect(),
            groups: self.groups.iter().map(PackedGroup::of).collect(),
        }
    }

    /// Checks all but the ranges. Returns how many pages the files have.
    fn check(&self) -> Result<Vec<u32>, TemplateError> {
        if !valid_name(&self.service) || !valid_name(&self.node) {
            return Err(TemplateError::Inconsistent("a name is invalid"));
        }
        if self.files.len() > MAX_FILES || self.groups.len() > MAX_GROUPS {
            return Err(TemplateError::Inconsistent(
                "it has too many files or groups",
            ));
        }
        if self.groups.iter().any(|group| group.len() > MAX_EXTENTS) {
            return Err(TemplateError::Inconsistent("a group has too many ranges"));
        }
        let mut paths = HashSet::with_capacity(self.files.len());
        let limit = |file: &Identity| pages_of(file.size);
        for file in &self.files {
            // Only a start has directories.
            let path = match file.path.strip_suffix('/') {
                Some(folder) if self.kind == TemplateKind::Start => folder,
                _ => &file.path,
            };
            if !valid_path(path) || !paths.insert(&file.path) {
                return Err(TemplateError::Inconsistent(
                    "a path is invalid or appears twice",
                ));
            }
        }
        let limits = self.files.iter().map(limit).collect::<Option<_>>();
        limits.ok_or(TemplateError::Inconsistent("a file is too large"))
    }
}

impl<'a> PackedFile<'a> {
    fn of(file: &'a Identity) -> Self {
        Self {
            path: &file.path,
            size: file.size,
            mtime_ns: file.mtime_ns,
            inode: file.inode,
            header: file.header,
        }
    }
}

impl<'a> PackedGroup<'a> {
    fn of(group: &'a Group) -> Self {
        Self {
            worker: group.worker,
            xpu: group.xpu,
            count: group.count,
            pages: group.pages,
            bytes: &group.packed,
        }
    }
}

/// Whether a path leads from the model's directory down to a file, and in one way only.
fn valid_path(path: &str) -> bool {
    let parts = || path.split('/');
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    let normal = |part| matches!(part, Component::Normal(_));
    path.len() <= MAX_PATH
        && !path.contains('\0')
        && parts().all(plain)
        && Path::new(path).components().all(normal)
}

/// The body, preceded by what shows that it is whole.
fn sealed(version: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&(body.len() as u64).to_le_bytes());
    bytes.extend_from_slice(&Sha256::digest(body));
    bytes.extend_from_slice(body);
    bytes
}

/// The version and the body, if that is whole and the version one that is known.
fn opened(bytes: &[u8]) -> Result<(u32, &[u8]), TemplateError> {
    let magic = MAGIC.len().min(bytes.len());
    if bytes[..magic] != MAGIC[..magic] {
        return Err(TemplateError::NotATemplate);
    }
    let rest = &bytes[magic..];
    let (version, rest) = rest.split_first_chunk().ok_or(TemplateError::Truncated)?;
    let version = match u32::from_le_bytes(*version) {
        known @ (OF_MODEL | MARKED) => known,
        0 => return Err(TemplateError::Damaged),
        version => return Err(TemplateError::Future(version)),
    };
    let (length, rest) = rest.split_first_chunk().ok_or(TemplateError::Truncated)?;
    let (checksum, body) = rest
        .split_first_chunk::<32>()
        .ok_or(TemplateError::Truncated)?;
    match u64::from_le_bytes(*length) {
        length if length > body.len() as u64 => Err(TemplateError::Truncated),
        length if length < body.len() as u64 => Err(TemplateError::Damaged),
        _ if Sha256::digest(body)[..] != checksum[..] => Err(TemplateError::Damaged),
        _ => Ok((version, body)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::samples::{Random, extents, small};
    use super::*;
    use crate::{Extent, PAGE};

    /// Checks what holds for every template and its unpacked ranges.
    fn check_all(template: &Template) {
        assert!(template.groups.len() <= MAX_GROUPS && template.files.len() <= MAX_FILES);
        for group in &template.groups {
            let Ok(extents) = group.extents() else {
                continue;
            };
            assert_eq!(extents.len(), group.len());
            let bytes: u64 = extents.iter().map(Extent::length).sum();
            assert_eq!(bytes, group.bytes());
            for extent in extents {
                let file = &template.files[extent.file as usize];
                assert!(extent.pages > 0);
                assert!(u64::from(extent.end()) <= file.size.div_ceil(PAGE));
            }
        }
    }

    fn identity() -> impl Strategy<Value = Identity> {
        let numbers = (0..1_u64 << 43, any::<i64>(), any::<u64>(), any::<u64>());
        ("[a-zé]{1,8}(/[-._ 0-9a-z]{0,9}x){0,2}", numbers).prop_map(
            |(path, (size, mtime_ns, inode, header))| Identity {
                path,
                size,
                mtime_ns,
                inode,
                header,
            },
        )
    }

    fn templates() -> impl Strategy<Value = Template> {
        let name = "[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}";
        let files = prop::collection::vec(identity(), 1..9);
        let groups =
            prop::collection::vec((any::<u32>(), any::<Option<u16>>(), any::<u64>()), 0..4);
        (name, name, any::<(u64, u32, bool)>(), files, groups).prop_map(
            |(service, node, (made_s, loads, start), mut files, groups)| {
                files.sort_by(|a, b| a.path.cmp(&b.path));
                files.dedup_by(|a, b| a.path == b.path);
                let group = |(worker, xpu, seed)| {
                    let extents = extents(&mut Random(seed), &files);
                    Group::new(worker, xpu, &extents).expect("a group")
                };
                let groups = groups.into_iter().map(group).collect();
                Template {
                    kind: if start {
                        TemplateKind::Start
                    } else {
                        TemplateKind::Model
                    },
                    service,
                    node,
                    made_s,
                    loads,
                    files,
                    groups,
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..Default::default() })]

        #[test]
        fn templates_come_back_as_they_were(template in templates()) {
            let bytes = template.to_bytes().expect("bytes");
            let back = Template::from_bytes(&bytes).expect("a template");
            prop_assert_eq!(&back, &template);
            for (group, before) in back.groups.iter().zip(&template.groups) {
                prop_assert_eq!(group.extents().expect("ranges"), before.extents().expect("ranges"));
            }
        }

        #[test]
        fn any_extents_round_trip_in_order(
            ranges in prop::collection::vec((0..65536_u32, any::<u32>(), 1..=u32::MAX), 0..300),
        ) {
            let extent = |(file, first, pages)| Extent {
                file,
                first: u32::min(first, u32::MAX - 1),
                pages: u32::min(pages, u32::MAX - u32::min(first, u32::MAX - 1)),
            };
            let extents: Vec<Extent> = ranges.into_iter().map(extent).collect();
            let group = Group::new(0, None, &extents).expect("a group");
            prop_assert_eq!(group.extents().expect("ranges"), extents);
        }

        #[test]
        fn arbitrary_bytes_parse_as_a_valid_template_or_fail(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Template::from_bytes(&bytes).is_err());
            for version in [OF_MODEL, MARKED] {
                if let Ok(template) = Template::from_bytes(&sealed(version, &bytes)) {
                    check_all(&template);
                }
            }
        }
    }

    #[test]
    fn template_cut_at_any_byte_is_rejected() {
        let bytes = small().to_bytes().expect("bytes");
        for length in 0..bytes.len() {
            let error = Template::from_bytes(&bytes[..length]);
            assert!(matches!(error, Err(TemplateError::Truncated)), "{length}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(matches!(
            Template::from_bytes(&longer),
            Err(TemplateError::Damaged)
        ));
    }

    #[test]
    fn flipped_bits_are_an_error() {
        let bytes = small().to_bytes().expect("bytes");
        let mut random = Random(1);
        for _ in 0..10_000 {
            let mut flipped = bytes.clone();
            flipped[random.below(bytes.len())] ^= 1 << random.below(8);
            assert!(Template::from_bytes(&flipped).is_err());
        }
    }

    #[test]
    fn flipped_bits_with_a_right_checksum_are_an_error_or_a_template() {
        let bytes = small().to_bytes().expect("bytes");
        let mut random = Random(2);
        let (mut templates, mut refused) = (0, 0);
        for _ in 0..10_000 {
            let mut body = bytes[HEAD..].to_vec();
            for _ in 0..=random.below(3) {
                body[random.below(bytes.len() - HEAD)] ^= 1 << random.below(8);
            }
            match Template::from_bytes(&sealed(OF_MODEL, &body)) {
                Ok(template) => {
                    check_all(&template);
                    templates += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(templates > 100 && refused > 100, "{templates} {refused}");
    }

    #[test]
    fn a_model_is_written_as_ever_and_a_start_is_marked() {
        let model = small();
        let start = Template {
            kind: TemplateKind::Start,
            ..small()
        };
        let (of_model, of_start) = (model.to_bytes().expect("bytes"), start.to_bytes());
        let of_start = of_start.expect("bytes");
        assert_eq!((of_model[8], of_start[8]), (1, 2), "their versions");
        assert_eq!(of_start[HEAD], START);
        assert_eq!(of_start[HEAD + 1..], of_model[HEAD..]);
        assert_eq!(Template::from_bytes(&of_start).expect("a start"), start);
        // Bodies under the version of the other kind.
        for (version, body) in [(OF_MODEL, &of_start[HEAD..]), (MARKED, &of_model[HEAD..])] {
            assert!(Template::from_bytes(&sealed(version, body)).is_err());
        }
        for kind in [0, START + 1] {
            let body = [&[kind], &of_model[HEAD..]].concat();
            let error = Template::from_bytes(&sealed(MARKED, &body)).expect_err("no such kind");
            assert!(error.to_string().contains("kind is unknown"), "{error}");
        }
    }

    #[test]
    fn each_parse_error_names_its_cause() {
        let bytes = small().to_bytes().expect("bytes");
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Template::from_bytes(&bytes)
                .expect_err("an error")
                .to_string()
        };
        assert_eq!(with(0, b'X'), "This is not a template");
        assert!(with(HEAD, b'X').contains("damaged"));
        assert!(with(8, 3).contains("version 3 of the format; install a newer"));
        assert!(with(8, 0).contains("damaged"));
        assert!(with(12, 255).contains("truncated"));
        let large = vec![0; MAX_BYTES + 1];
        let error = Template::from_bytes(&large)
            .expect_err("an error")
            .to_string();
        assert!(error.contains("too large"), "{error}");
    }

    #[test]
    fn lengths_are_not_believed() {
        let template = small();
        let body = template.to_bytes().expect("bytes")[HEAD..].to_vec();
        // Files follow the names with their lengths, the time and the loads.
        let files = 8 + template.service.len() + 8 + template.node.len() + 8 + 4;
        assert_eq!(
            body[files],
            u8::try_from(template.files.len()).expect("it is small")
        );
        for at in [0, files, files + 8] {
            for length in [u64::MAX, 1 << 62, 1 << 26, MAX_FILES as u64 + 1] {
                let mut body = body.clone();
                body[at..at + 8].copy_from_slice(&length.to_le_bytes());
                let error = Template::from_bytes(&sealed(OF_MODEL, &body));
                assert!(
                    matches!(error, Err(TemplateError::Inconsistent(_))),
                    "{at} {length}"
                );
            }
        }
    }

    #[test]
    fn paths_lead_down_and_in_one_way() {
        for path in ["model.safetensors", "a/b/c", "..a", "é", " "] {
            assert!(valid_path(path), "{path:?}");
        }
        let long = "a".repeat(MAX_PATH + 1);
        for path in [
            "", "/", "/a", "a/", "a//b", ".", "./a", "a/.", "..", "a/../b", "a\0", &long,
        ] {
            assert!(!valid_path(path), "{path:?}");
        }
    }

    #[test]
    fn inconsistent_templates_are_not_written() {
        fn refused(change: impl Fn(&mut Template)) -> bool {
            let mut template = small();
            change(&mut template);
            matches!(template.to_bytes(), Err(TemplateError::Inconsistent(_)))
        }
        assert!(!refused(|_| {}));
        assert!(refused(|it| it.service = "a/b".to_owned()));
        assert!(refused(|it| it.node.clear()));
        assert!(refused(|it| it.files[0].path = "../a".to_owned()));
        assert!(refused(|it| it.files[0].path = it.files[1].path.clone()));
        assert!(refused(|it| it.files[0].size = u64::MAX));
        assert!(refused(|it| it.files[0].size = 0), "ranges beyond it");
        assert!(refused(|it| it.files.clear()));
        assert!(refused(
            |it| it.groups = vec![it.groups[0].clone(); MAX_GROUPS + 1]
        ));
    }
}

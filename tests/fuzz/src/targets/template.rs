//! Templates: a body with a valid checksum, the ranges of a group in valid deflate, and raw files.
//!
//! The input is a byte that chooses one of these, then the bytes. The target adds what a fuzzer cannot guess,
//! the checksum and deflate, as `maio/src/template/format.rs` and `pack.rs` describe.

use maio::PAGE;
use maio::template::{Group, Identity, Template, TemplateKind, View, diff};
use sha2::{Digest as _, Sha256};

use super::Target;

pub(super) const TARGET: Target = Target {
    name: "template",
    run,
    seeds,
    words: &[
        b"MAIOTPL\n\x01\0\0\0",
        b"MAIOTPL\n\x02\0\0\0",
        b"\x01\0\0\0\0\0\0\0a",
        b"a/b",
        b"../",
        b"\xc3\xa9",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x80\x80\x80\x80\x10",
    ],
};

/// Bytes before the body: magic, version, length, checksum.
const HEAD: usize = 52;

fn run(input: &[u8]) {
    let Some((kind, bytes)) = input.split_first() else {
        return;
    };
    match kind % 4 {
        0 => check(bytes),
        1 => check(&sealed(1, bytes)),
        3 => check(&sealed(2, bytes)),
        _ => {
            let Some((head, columns)) = bytes.split_first_chunk() else {
                return;
            };
            check(&sealed(1, &body(head, columns)));
        }
    }
}

fn sealed(version: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u64).to_le_bytes();
    let checksum = Sha256::digest(body);
    let version = [version, 0, 0, 0];
    [b"MAIOTPL\n", &version[..], &length, &checksum, body].concat()
}

/// The sizes of the files that have ranges.
const SIZES: [u64; 3] = [1 << 43, 1 << 20, 5000];

/// A body with one group, with this many ranges and pages.
fn body(count_and_pages: &[u8; 12], columns: &[u8]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let file =
        |(name, size): (&str, u64)| [text(name), size.to_le_bytes().to_vec(), vec![0; 24]].concat();
    let files = ["a", "b/c", "d"].into_iter().zip(SIZES).map(file);
    let packed = stored(columns);
    [
        [text("service"), text("node"), vec![0; 12]].concat(),
        (SIZES.len() as u64).to_le_bytes().to_vec(),
        files.collect::<Vec<_>>().concat(),
        // One group, of worker 0, for no accelerator.
        [&1_u64.to_le_bytes()[..], &[0; 5]].concat(),
        count_and_pages.to_vec(),
        (packed.len() as u64).to_le_bytes().to_vec(),
        packed,
    ]
    .concat()
}

/// Deflate data for these bytes: their number, then one stored block.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    let bytes = &bytes[..usize::from(size)];
    let sizes = [size.to_le_bytes(), (!size).to_le_bytes()].concat();
    [&u32::from(size).to_le_bytes()[..], &[1], &sizes, bytes].concat()
}

/// Checks that a template is refused, or is written as it was read and can be shown.
fn check(bytes: &[u8]) {
    let Ok(template) = Template::from_bytes(bytes) else {
        return;
    };
    let is_sound = template
        .groups
        .iter()
        .all(|group| is_sound(&template, group));
    match template.to_bytes() {
        Ok(again) => {
            assert!(is_sound, "ranges that cannot be are written");
            assert_eq!(again, bytes, "it is written in another way");
            assert_eq!(Template::from_bytes(&again).expect("a template"), template);
        }
        Err(_) => assert!(!is_sound, "what was read is not written"),
    }
    let ranges: usize = template.groups.iter().map(Group::len).sum();
    if ranges > 10_000 {
        // Showing all of them is slow, and fewer show the same.
        return;
    }
    match View::of(&template) {
        Ok(view) => {
            assert!(is_sound, "ranges that cannot be are shown");
            serde_json::to_writer(std::io::sink(), &view).expect("JSON");
        }
        Err(_) => assert!(!is_sound, "what was read is not shown"),
    }
    compare(&template, is_sound);
}

/// Whether a group's ranges can be unpacked. If so, checks that they are within its files, and as many as it says.
fn is_sound(template: &Template, group: &Group) -> bool {
    let Ok(extents) = group.extents() else {
        return false;
    };
    assert_eq!(extents.len(), group.len());
    let pages: u64 = extents.iter().map(|extent| u64::from(extent.pages)).sum();
    assert_eq!(pages * PAGE, group.bytes());
    for extent in &extents {
        let file = &template.files[extent.file as usize];
        let end = u64::from(extent.first) + u64::from(extent.pages);
        assert!(
            extent.pages > 0 && end <= file.size.div_ceil(PAGE),
            "{extent:?}"
        );
    }
    if extents.len() < 1000 {
        let again = Group::new(group.worker, group.xpu, &extents).expect("they can be");
        assert_eq!(again.extents().expect("they can be"), extents);
    }
    true
}

/// Checks that a template equals itself, and that its differences from another add up both ways.
fn compare(template: &Template, is_sound: bool) {
    let Ok(own) = diff(template, template) else {
        assert!(!is_sound, "what was read is not compared");
        return;
    };
    assert!(
        is_sound && own.files.is_empty() && own.drift().abs() < 1e-9,
        "{own:?}"
    );
    let mut other = small();
    "a".clone_into(&mut other.files[0].path);
    let there = diff(template, &other).expect("both are sound");
    let back = diff(&other, template).expect("both are sound");
    assert_eq!(there.files.len(), back.files.len());
    for (there, back) in there.workers.iter().zip(&back.workers) {
        assert_eq!(
            (there.only_a, there.only_b, there.both),
            (back.only_b, back.only_a, back.both)
        );
        assert!((0.0..=1.0).contains(&there.order), "{there:?}");
    }
}

fn small() -> Template {
    let file = |(path, size): (&str, u64)| Identity {
        path: path.to_owned(),
        size,
        mtime_ns: 7,
        inode: 4711,
        header: 9,
    };
    let extent = |(file, first, pages)| maio::Extent { file, first, pages };
    let ranges = [(0, 0, 3), (1, 5, 1), (0, 100, 20), (0, 50, 60), (2, 0, 2)].map(extent);
    Template {
        kind: TemplateKind::Model,
        service: "qwen".to_owned(),
        node: "node-1".to_owned(),
        made_s: 1_790_000_000,
        loads: 2,
        files: [("m-1", 1 << 20), ("m-2", 40 << 10), ("sub/x", 5000)]
            .map(file)
            .to_vec(),
        groups: vec![
            Group::new(0, Some(3), &ranges).expect("a group"),
            Group::new(1, None, &[]).expect("a group"),
        ],
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let whole = small().to_bytes().expect("a template");
    let of_start = Template {
        kind: TemplateKind::Start,
        ..small()
    };
    let of_start = of_start.to_bytes().expect("a template");
    // Stride 1; runs of two ranges of file 0 and one of file 2; gaps; lengths.
    let columns = [1, 4, 3, 0, 2, 4, 1, 10, 0, 9, 4, 4, 5];
    let counts = [&3_u32.to_le_bytes()[..], &7_u64.to_le_bytes()].concat();
    let seed = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    vec![
        seed(0, &whole),
        seed(1, &whole[HEAD..]),
        seed(3, &of_start[HEAD..]),
        seed(2, &[&counts[..], &columns].concat()),
        Vec::new(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the target adds around an input is what templates have there: the parser accepts the seeds.
    #[test]
    fn seals_are_those_of_templates() {
        let whole = small().to_bytes().expect("a template");
        let of_start = Template {
            kind: TemplateKind::Start,
            ..small()
        };
        let of_start = of_start.to_bytes().expect("a template");
        assert_eq!(sealed(1, &whole[HEAD..]), whole);
        assert_eq!(sealed(2, &of_start[HEAD..]), of_start);
        let columns = &seeds()[3][1..];
        let (head, columns) = columns.split_first_chunk().expect("there is more");
        let template = Template::from_bytes(&sealed(1, &body(head, columns))).expect("a template");
        let ranges = template.groups[0].extents().expect("ranges");
        let ranges: Vec<_> = ranges
            .iter()
            .map(|it| (it.file, it.first, it.pages))
            .collect();
        assert_eq!(ranges, [(0, 5, 2), (0, 12, 4), (2, 0, 1)]);
    }
}

//! Predictions for whole models, made up.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Instant;

use proptest::prelude::*;

use super::testing::{Blob, FakeLibrary, Gguf, safetensors, shard};
use super::*;
use crate::PAGE;
use crate::template::Group;

const WORDS: u64 = PAGE / 2;

fn tp(tp: u32) -> Deployment {
    Deployment {
        tp,
        ..Deployment::default()
    }
}

fn in_order(order: Order) -> Deployment {
    Deployment {
        order: Some(order),
        ..Deployment::default()
    }
}

fn made(library: &dyn Library, wanted: Deployment) -> Prediction {
    let prediction = predict_reads(library, &wanted).expect("a model");
    check(&prediction);
    prediction
}

/// Checks what holds for every prediction.
fn check(prediction: &Prediction) {
    for group in &prediction.groups {
        let mut sorted = group.clone();
        sorted.sort();
        for pair in sorted.windows(2) {
            let apart = pair[0].file != pair[1].file || pair[0].end() <= pair[1].first;
            assert!(apart, "a page comes twice: {pair:?}");
        }
        for extent in group {
            let (_, size) = &prediction.files[extent.file as usize];
            assert!(extent.pages > 0 && u64::from(extent.end()) <= size.div_ceil(PAGE));
        }
        for pair in group.windows(2) {
            let joined = pair[0].file != pair[1].file || pair[0].end() != pair[1].first;
            assert!(joined, "neighbours are two: {pair:?}");
        }
    }
}

fn ranges(group: &[Extent]) -> Vec<(u32, u32, u32)> {
    let ranges = group.iter();
    ranges.map(|it| (it.file, it.first, it.pages)).collect()
}

fn names(prediction: &Prediction) -> Vec<&str> {
    let files = prediction.files.iter();
    files.map(|(path, _)| path.as_str()).collect()
}

/// A folder with one file, `model.safetensors`.
fn single(blob: Blob) -> FakeLibrary {
    let mut library = FakeLibrary::default();
    library.add_blob("model.safetensors", blob);
    library
}

/// Pages: 0 is the header's, 1 and 2 b's, 3 to 5 a's, 6 c's and d's.
fn four_tensors() -> Blob {
    shard(&[
        ("b", &[2, WORDS]),
        ("a", &[3, WORDS]),
        ("d", &[WORDS / 2]),
        ("c", &[WORDS / 2]),
    ])
}

#[test]
fn vllm_reads_tensors_by_name_and_others_as_they_lie() {
    let mut library = single(four_tensors());
    library.add("config.json", b"{}");
    let prediction = made(&library, Deployment::default());
    assert_eq!(prediction.format, Format::Safetensors);
    assert_eq!(prediction.order, Order::Vllm);
    assert_eq!(names(&prediction), ["config.json", "model.safetensors"]);
    assert_eq!(prediction.notes, [""; 0]);
    let expected = [(0, 0, 1), (1, 0, 1), (1, 3, 3), (1, 1, 2), (1, 6, 1)];
    assert_eq!(ranges(&prediction.groups[0]), expected);
    for order in [Order::File, Order::Transformers] {
        let prediction = made(&library, in_order(order));
        assert_eq!(ranges(&prediction.groups[0]), [(0, 0, 1), (1, 0, 7)]);
    }
}

#[test]
fn workers_read_their_rows_and_all_of_what_is_not_cut() {
    let blob = shard(&[
        ("model.layers.0.mlp.down_proj.weight", &[64, 8 * WORDS]),
        ("model.layers.0.mlp.gate_proj.weight", &[64, WORDS]),
        ("model.norm.weight", &[WORDS]),
    ]);
    let prediction = made(&single(blob), tp(4));
    assert_eq!(prediction.groups.len(), 4);
    let mut gate = BTreeSet::new();
    for (rank, group) in (0..).zip(&prediction.groups) {
        // The header and all of down_proj, whose rows are short; a quarter of gate_proj; the norm.
        let quarter = (0, 513 + rank * 16, 16);
        let expected = match rank {
            0 => vec![(0, 0, 529), (0, 577, 1)],
            3 => vec![(0, 0, 513), (0, 561, 17)],
            _ => vec![(0, 0, 513), quarter, (0, 577, 1)],
        };
        assert_eq!(ranges(group), expected, "{rank}");
        gate.extend(quarter.1..quarter.1 + quarter.2);
    }
    assert!(gate.into_iter().eq(513..577));
}

#[test]
fn experts_that_each_have_a_worker_are_cut_for_none() {
    let blob = shard(&[
        ("a.mlp.experts.0.up_proj.weight", &[4, WORDS]),
        ("a.mlp.shared_experts.up_proj.weight", &[4, WORDS]),
    ]);
    let experts = Deployment {
        experts: true,
        ..tp(2)
    };
    let library = single(blob);
    let prediction = made(&library, experts);
    assert_eq!(ranges(&prediction.groups[0]), [(0, 0, 7)]);
    assert_eq!(ranges(&prediction.groups[1]), [(0, 0, 5), (0, 7, 2)]);
    let prediction = made(&library, tp(2));
    assert_eq!(ranges(&prediction.groups[0]), [(0, 0, 3), (0, 5, 2)]);
}

#[test]
fn long_rows_are_cut_and_edges_rounded_out() {
    // A row is 64 pages and 8 bytes.
    let blob = shard(&[("a.down_proj.weight", &[2, 64 * WORDS + 4])]);
    let prediction = made(&single(blob), tp(4));
    assert_eq!(ranges(&prediction.groups[0]), [(0, 0, 18), (0, 65, 17)]);
    assert_eq!(
        ranges(&prediction.groups[1]),
        [(0, 0, 1), (0, 17, 17), (0, 81, 17)]
    );
    // Six bytes over after three quarters, and its own page for the last two.
    assert_eq!(
        ranges(&prediction.groups[3]),
        [(0, 0, 1), (0, 49, 17), (0, 113, 17)]
    );
}

#[test]
fn heads_of_keys_come_from_the_configuration() {
    let blob = shard(&[("a.k_proj.weight", &[8, WORDS])]);
    let mut library = single(blob);
    let config = br#"{"num_attention_heads": 8, "num_key_value_heads": 2}"#;
    library.add("config.json", config);
    let prediction = made(&library, tp(4));
    let last = |rank: usize| ranges(&prediction.groups[rank])[1..].to_vec();
    assert_eq!(last(0), [(1, 0, 5)]);
    assert_eq!(last(1), [(1, 0, 5)]);
    assert_eq!(last(2), [(1, 0, 1), (1, 5, 4)]);
    assert_eq!(last(3), [(1, 0, 1), (1, 5, 4)]);
}

#[test]
fn shards_are_listed_by_index_and_sorted_by_number() {
    let mut library = FakeLibrary::default();
    let mut map = Vec::new();
    for shard in 1..=10 {
        let path = format!("model-{shard}-of-10.safetensors");
        library.add_blob(&path, four_tensors());
        map.push(format!(r#""{shard}.a":"{path}""#));
    }
    library.add_blob("consolidated.safetensors", four_tensors());
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, map.join(","));
    library.add("model.safetensors.index.json", index.as_bytes());
    library.add("config.json", b"{}");

    let prediction = made(&library, Deployment::default());
    let expected = [
        "config.json",
        "model.safetensors.index.json",
        "model-1-of-10.safetensors",
        "model-2-of-10.safetensors",
        "model-3-of-10.safetensors",
    ];
    assert_eq!(names(&prediction)[..5], expected);
    assert_eq!(names(&prediction)[11], "model-10-of-10.safetensors");
    assert_eq!(prediction.files.len(), 12);
    assert_eq!(prediction.notes.len(), 1, "{:?}", prediction.notes);
    assert!(prediction.notes[0].starts_with("consolidated.safetensors"));

    let prediction = made(&library, in_order(Order::Transformers));
    let expected = ["model-1-of-10.safetensors", "model-10-of-10.safetensors"];
    assert_eq!(names(&prediction)[2..4], expected);
}

#[test]
fn a_cache_of_links_is_a_model() {
    let top = std::env::temp_dir().join(format!("maio-{}-hub", std::process::id()));
    let snapshot = top.join("snapshots/0123");
    fs::create_dir_all(&snapshot).expect("a folder");
    fs::create_dir_all(top.join("blobs")).expect("a folder");
    fs::write(top.join("blobs/aa"), four_tensors().bytes()).expect("a file");
    fs::write(top.join("blobs/bb"), b"{}").expect("a file");
    symlink("../../blobs/aa", snapshot.join("model.safetensors")).expect("a link");
    symlink("../../blobs/bb", snapshot.join("config.json")).expect("a link");
    let prediction = predict_reads(&Directory::new(&snapshot), &tp(1));
    fs::remove_dir_all(&top).expect("ours");
    let prediction = prediction.expect("a model");
    check(&prediction);
    assert_eq!(names(&prediction), ["config.json", "model.safetensors"]);
    let expected = [(0, 0, 1), (1, 0, 1), (1, 3, 3), (1, 1, 2), (1, 6, 1)];
    assert_eq!(ranges(&prediction.groups[0]), expected);
}

#[test]
fn parts_of_a_gguf_come_by_number_and_as_they_lie() {
    let file = Gguf {
        version: 3,
        pairs: vec![("general.name", 8, 0_u64.to_le_bytes().to_vec())],
        tensors: vec![("b", 3 * PAGE), ("a", 0)],
        alignment: 32,
        data: 20_000,
    };
    let mut library = FakeLibrary::default();
    for part in [2, 1, 10] {
        let path = format!("m-{part:05}-of-00010.gguf");
        library.add(&path, &file.bytes());
    }
    let prediction = made(&library, tp(2));
    assert_eq!(
        (prediction.format, prediction.order),
        (Format::Gguf, Order::File)
    );
    let expected = [1, 2, 10].map(|part| format!("m-{part:05}-of-00010.gguf"));
    assert_eq!(names(&prediction), expected);
    for group in &prediction.groups {
        assert_eq!(ranges(group), [(0, 0, 5), (1, 0, 5), (2, 0, 5)]);
    }
    assert_eq!(prediction.notes, [""; 0]);
}

#[test]
fn damaged_files_are_taken_in_plain_order_and_noted() {
    let mut library = FakeLibrary::default();
    library.add_blob("model-1.safetensors", four_tensors());
    library.add(
        "model-2.safetensors",
        b"version https://git-lfs.github.com/spec/v1",
    );
    let mut cut_off = four_tensors();
    cut_off.size -= 1;
    library.add_blob("model-3.safetensors", cut_off);
    let prediction = made(&library, Deployment::default());
    let expected = [
        (0, 0, 1),
        (0, 3, 3),
        (0, 1, 2),
        (0, 6, 1),
        (1, 0, 1),
        (2, 0, 7),
    ];
    assert_eq!(ranges(&prediction.groups[0]), expected);
    assert_eq!(prediction.notes.len(), 2);
    assert!(prediction.notes[0].starts_with("model-2.safetensors has a header of"));
    let place =
        "model-3.safetensors has c at an impossible offset; it is loaded from beginning to end";
    assert_eq!(prediction.notes[1], place);

    let mut library = FakeLibrary::default();
    library.add("a.gguf", b"GGUF\x01\0\0\0");
    let prediction = made(&library, Deployment::default());
    assert_eq!(ranges(&prediction.groups[0]), [(0, 0, 1)]);
    let note = "a.gguf is not a GGUF file of a known version; it is loaded from beginning to end";
    assert_eq!(prediction.notes, [note]);
}

#[test]
fn other_files_are_read_from_end_to_end() {
    let mut library = FakeLibrary::default();
    for path in ["weights-10.npz", "weights-9.npz", "config.json", "empty"] {
        let size = if path == "empty" { 0 } else { 5000 };
        library.add(path, &vec![1; size]);
    }
    let prediction = made(&library, tp(2));
    assert_eq!(
        (prediction.format, prediction.order),
        (Format::Plain, Order::File)
    );
    assert_eq!(
        names(&prediction),
        ["config.json", "weights-9.npz", "weights-10.npz"]
    );
    assert_eq!(
        ranges(&prediction.groups[1]),
        [(0, 0, 2), (1, 0, 2), (2, 0, 2)]
    );
}

#[test]
fn empty_library_and_bad_worker_count_are_rejected() {
    let empty = FakeLibrary::default();
    assert_eq!(predict_reads(&empty, &tp(1)), Err(PredictError::Empty));
    let library = single(four_tensors());
    for workers in [0, MOST_WORKERS + 1, u32::MAX] {
        assert_eq!(
            predict_reads(&library, &tp(workers)),
            Err(PredictError::Workers(workers))
        );
    }
    assert!(predict_reads(&library, &tp(MOST_WORKERS)).is_ok());
}

/// A library that cannot read what it lists, or else claims to read more than it was asked for.
struct Liar(bool);

impl Library for Liar {
    fn files(&self) -> Vec<(String, u64)> {
        let names = ["a.safetensors", "a.safetensors", "config.json"];
        let index = "model.safetensors.index.json";
        let names = names.into_iter().chain([index, "../../etc/passwd"]);
        names.map(|name| (name.to_owned(), u64::MAX)).collect()
    }

    fn read(&self, _: &str, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        if self.0 {
            Ok(buf.len().saturating_add(1000))
        } else {
            Err(io::ErrorKind::PermissionDenied.into())
        }
    }
}

#[test]
fn libraries_are_not_trusted() {
    for lies in [false, true] {
        let prediction = made(&Liar(lies), tp(3));
        assert_eq!(names(&prediction), ["a.safetensors"]);
        for group in &prediction.groups {
            assert_eq!(ranges(group), [(0, 0, u32::MAX)]);
        }
    }
}

/// A model with as many tensors and shards as `DeepSeek` V3.
fn largest() -> FakeLibrary {
    const SHARDS: usize = 163;
    let mut all: Vec<(String, Vec<u64>)> = Vec::new();
    for layer in 0..58 {
        for expert in 0..257 {
            for (name, rows, columns) in [
                ("down", 7168, 2048),
                ("gate", 2048, 7168),
                ("up", 2048, 7168),
            ] {
                let layer = format!("model.layers.{layer}.mlp.experts.{expert}.{name}_proj");
                all.push((format!("{layer}.weight"), vec![rows, columns / 2]));
                all.push((
                    format!("{layer}.weight_scale_inv"),
                    vec![rows / 128, columns / 64],
                ));
            }
        }
    }
    let mut library = FakeLibrary::default();
    let mut index = r#"{"weight_map":{"#.to_owned();
    for (number, part) in all.chunks(all.len().div_ceil(SHARDS)).enumerate() {
        let path = format!("model-{number:05}-of-{SHARDS:06}.safetensors");
        for (name, _) in part {
            write!(index, r#""{name}":"{path}","#).expect("a string");
        }
        let tensors: Vec<_> = part
            .iter()
            .map(|(name, shape)| (name.as_str(), shape.as_slice()))
            .collect();
        library.add_blob(&path, safetensors(&tensors));
    }
    index.pop();
    index.push_str("}}");
    library.add("model.safetensors.index.json", index.as_bytes());
    library
}

#[test]
fn the_largest_models_take_a_moment() {
    let library = largest();
    let before = Instant::now();
    let prediction = predict_reads(&library, &tp(8)).expect("a model");
    let took = before.elapsed();
    check(&prediction);
    let extents: usize = prediction.groups.iter().map(Vec::len).sum();
    println!(
        "{extents} ranges of {} files in {took:?}",
        prediction.files.len()
    );
    assert_eq!(prediction.notes, [""; 0]);
    assert_eq!(prediction.files.len(), 164);
    // Two thirds are cut in eight, one third is not cut.
    let pages = |group: &Vec<Extent>| group.iter().map(|it| u64::from(it.pages)).sum::<u64>();
    let all: u64 = prediction.files.iter().map(|(_, size)| size / PAGE).sum();
    for group in &prediction.groups {
        let percent = pages(group) * 100 / all;
        assert!((41..46).contains(&percent), "{percent}");
    }
}

/// A line of JSON in front of a hole in a file can claim any number of rows.
#[test]
fn few_bytes_do_not_make_more_ranges_than_a_template_takes() {
    const ROW: u64 = 32 * PAGE;
    let made_of = |rows: u64| {
        let tensors = ["a", "b", "c"].map(|name| format!("{name}.down_proj.weight"));
        let shape = [rows, ROW / 2];
        let tensors = tensors.each_ref().map(|name| (name.as_str(), &shape[..]));
        made(&single(shard(&tensors)), tp(2))
    };
    // As many rows as are recorded one by one, and too many for that.
    for (rows, all_told) in [((1 << 18) - 2, false), (1 << 24, true)] {
        let prediction = made_of(rows);
        assert_eq!(prediction.notes.is_empty(), all_told, "{rows}");
        for group in &prediction.groups {
            assert!(Group::new(0, None, group).is_ok(), "{} ranges", group.len());
        }
    }
}

proptest! {
    #[test]
    fn prediction_handles_any_directory(
        files in prop::collection::btree_map(
            "(a|b/a|model-[0-9]{1,3}|config)\\.(safetensors|gguf|bin|json|pt)",
            (prop::collection::vec(any::<u8>(), 0..100), any::<u64>()),
            0..6,
        ),
        index in prop::option::of("\\{\"weight_map\":\\{\"a\":\"a\\.safetensors\"\\}\\}|\\PC*"),
        workers in 1_u32..5,
    ) {
        let mut library = FakeLibrary::default();
        for (path, (start, size)) in files {
            library.add_blob(&path, Blob { start, size });
        }
        if let Some(index) = index {
            library.add("model.safetensors.index.json", index.as_bytes());
        }
        if let Ok(prediction) = predict_reads(&library, &tp(workers)) {
            check(&prediction);
            prop_assert_eq!(prediction.groups.len(), workers as usize);
        }
    }

    /// Any tensors in headers that parse.
    #[test]
    fn workers_together_read_every_page_for_any_tensors(
        tensors in prop::collection::btree_map(
            "[ab]\\.(gate_proj|k_proj|down_proj|qkv_proj|lm_head|norm)\\.(weight|qweight|bias)",
            prop::collection::vec(0_u64..100, 0..4),
            0..8,
        ),
        workers in 1_u32..9,
    ) {
        let tensors: Vec<_> = tensors
            .iter()
            .map(|(name, shape)| (name.as_str(), shape.as_slice()))
            .collect();
        let blob = safetensors(&tensors);
        let size = blob.size;
        let prediction = made(&single(blob), tp(workers));
        prop_assert_eq!(&prediction.notes, &[""; 0]);
        // Together, the workers read all of the file.
        let pages: BTreeSet<_> = prediction
            .groups
            .iter()
            .flatten()
            .flat_map(|extent| extent.first..extent.end())
            .collect();
        prop_assert_eq!(pages.len() as u64, size.div_ceil(PAGE));
    }
}

#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are meant")]

use std::path::Path;

use test_support::undisturbed;

use super::*;
use crate::residency::find;

const PAGE: u64 = 4096;

fn differing(memory: &[u8], device: &[u8]) -> Option<Damage> {
    let mut damage = None;
    compare(&mut damage, 8 * PAGE, memory, device, PAGE);
    damage
}

#[test]
fn damage_is_measured_from_first_byte_and_in_extents() {
    let device = vec![0; 5 * place(PAGE) + 10];
    assert_eq!(differing(&device, &device), None);
    let mut memory = device.clone();
    let change = |memory: &mut Vec<u8>, page: u64, byte: u64| memory[place(page * PAGE + byte)] = 1;
    change(&mut memory, 1, 100);
    change(&mut memory, 2, 0);
    change(&mut memory, 5, 9);
    let damage = differing(&memory, &device).expect("it differs");
    assert_eq!(damage.offset, 9 * PAGE + 100);
    assert_eq!(damage.length, 2 * PAGE - 100);
    assert_eq!((damage.extents, damage.pages), (2, 3));
}

#[test]
fn damage_extent_continues_across_windows() {
    let mut damage = None;
    for page in [1, 2, 4] {
        Damage::add(&mut damage, &(page * PAGE..(page + 1) * PAGE), page * PAGE);
    }
    let damage = damage.expect("three pages");
    assert_eq!((damage.length, damage.extents), (2 * PAGE, 2));
}

#[test]
fn gaps_are_what_is_not_cached() {
    let all = 10..20;
    assert_eq!(gaps(&all, &[]), [10..20]);
    assert_eq!(gaps(&all, &[10..12, 15..20]), [12..15]);
    assert_eq!(gaps(&all, &[11..12]), [10..11, 12..20]);
    assert_eq!(gaps(&all, std::slice::from_ref(&all)), []);
}

#[test]
fn holes_need_no_device() {
    let mut bytes = [0; 2000];
    assert_eq!(certain(&bytes), 0);
    (bytes[511], bytes[1600]) = (1, 1);
    assert_eq!(certain(&bytes), 1024);
}

#[test]
fn memory_for_devices_is_aligned() {
    let aligned = Aligned::new();
    let start = aligned.memory[aligned.shift..].as_ptr().addr();
    assert_eq!(start % Aligned::MEMORY, 0);
    assert!(aligned.shift + place(WINDOW) <= aligned.memory.len());
}

/// A file on this machine's own file system, with parts of it cached.
struct Sample {
    file: CacheFile,
}

impl Sample {
    const SIZE: u64 = 2 * WINDOW + 3 * PAGE + 5;
    const CACHED: Range<u64> = WINDOW - 2 * PAGE..WINDOW + 3 * PAGE;

    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tmp");
        fs::create_dir_all(&folder).expect("a folder");
        let path = folder.join(format!("cprt-compare-{}-{name}", std::process::id()));
        fs::write(&path, contents()).expect("a file");
        let opened = File::open(&path).expect("it is there");
        opened.sync_all().expect("to write it");
        let found = find(std::slice::from_ref(&path)).expect("there");
        let file = found.files[0].clone();
        let cache = Cache::new().expect("a cache");
        assert_eq!(cache.release(&file).expect("ours").after, Some(0));
        // As a mapping does with random reads: no page beside it comes in.
        let map = Window::of(&opened, &Self::CACHED).expect("a mapping");
        let mut bytes = vec![0; place(length(&Self::CACHED))];
        assert_eq!(map.copy(0, &mut bytes).expect("to read"), bytes.len());
        Self { file }
    }

    fn resident(&self) -> Option<u64> {
        let cache = Cache::new().expect("a cache");
        cache.resident(&self.file.open().expect("there"), &(0..Self::SIZE))
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file.path);
    }
}

fn contents() -> Vec<u8> {
    let bytes = (0..Sample::SIZE).map(|at| (at / 251 + at).to_le_bytes()[0]);
    bytes.collect()
}

/// What a comparison finds, the contents if they are wanted, and how much of the file is cached before and after it.
fn compared(
    sample: &Sample,
    all: bool,
    with_contents: bool,
) -> (Comparison, Vec<u8>, [Option<u64>; 2]) {
    let before = sample.resident();
    let (mut seen, mut whole) = (0, Vec::new());
    let mut take = |bytes: &[u8]| whole.extend_from_slice(bytes);
    let mut wanted = Wanted {
        all,
        contents: with_contents.then_some(&mut take as Contents<'_>),
        goes_on: &mut |bytes| {
            seen += bytes;
            true
        },
    };
    let cache = Cache::new().expect("a cache");
    let outcome = cache.compare(&sample.file, &mut wanted).expect("ours");
    assert_eq!(seen, Sample::SIZE);
    assert_eq!(outcome.damage, None);
    (outcome, whole, [before, sample.resident()])
}

#[test]
fn comparison_covers_cached_pages_and_loads_none() {
    let attempt = || {
        let sample = Sample::new("cached");
        let (outcome, _, resident) = compared(&sample, false, false);
        if outcome.obstacle.is_none() {
            assert_eq!(outcome.compared, outcome.cached);
        }
        (outcome.cached, resident)
    };
    let cached = length(&Sample::CACHED);
    let expected = (cached, [Some(cached); 2]);
    assert_eq!(undisturbed(attempt, |it| *it == expected), expected);
}

#[test]
fn contents_are_whole_and_leave_the_cache_as_it_was() {
    for all in [false, true] {
        let attempt = || {
            let sample = Sample::new("contents");
            let (outcome, whole, resident) = compared(&sample, all, true);
            assert!(whole == contents(), "{all}");
            if all && outcome.obstacle.is_none() {
                assert_eq!(outcome.compared, Sample::SIZE);
            }
            resident
        };
        let expected = [Some(length(&Sample::CACHED)); 2];
        assert_eq!(undisturbed(attempt, |it| *it == expected), expected);
    }
}

#[test]
fn comparison_stops_on_request() {
    let sample = Sample::new("stop");
    let mut wanted = Wanted {
        all: false,
        contents: None,
        goes_on: &mut |_| false,
    };
    let cache = Cache::new().expect("a cache");
    let outcome = cache.compare(&sample.file, &mut wanted).expect("ours");
    assert_eq!(outcome.obstacle, Some(Obstacle::Stopped));
}

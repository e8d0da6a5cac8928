use std::path::PathBuf;

use ppc::testing::FakeHost;
use ppc::{FileId, Op};

use super::*;
use crate::Library;
use crate::template::Store;

const KIB: u64 = 1 << 10;

/// A directory that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("maio-start-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn settings(&self) -> [(&str, &str); 4] {
        let store = self.0.to_str().expect("plain");
        [
            ("start", "python3-1234"),
            ("store", store),
            ("node", "here"),
            ("leases", "none"),
        ]
    }

    fn kept(&self) -> Option<Template> {
        let kept = Store::at(&self.0).load("python3-1234", "here");
        kept.expect("a store")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the rest stays in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn host() -> FakeHost {
    FakeHost::new()
        .file("usr/bin/python3", 4096 * KIB)
        .file("usr/lib/a.so", 512 * KIB)
        .file("usr/lib/b.so", 512 * KIB)
}

/// Runs a start that touches these ranges; returns what was loaded for it.
fn start(
    host: &FakeHost,
    scratch: &Scratch,
    touched: &[(&str, u64, u64)],
) -> Vec<(FileId, u64, u64)> {
    start_with(host, &scratch.settings(), touched)
}

fn start_with(
    host: &FakeHost,
    settings: &[(&str, &str)],
    touched: &[(&str, u64, u64)],
) -> Vec<(FileId, u64, u64)> {
    let (mut policy, ios) = host.start::<Library>(settings).expect("it starts");
    for &(path, from, length) in touched {
        let event = Event::new(Kind::Touch, host.id(path), from, length).by(7);
        policy.prefetch(Some(&event)).expect("it takes the event");
    }
    policy.exit().expect("it ends");
    assert!(
        ios.iter()
            .all(|io| io.op == Op::Load && io.process.is_none())
    );
    ios.iter()
        .map(|io| (io.file, io.offset, io.length))
        .collect()
}

#[test]
fn next_start_loads_recorded_pages_in_first_touch_order() {
    let (host, scratch) = (host(), Scratch::new("order"));
    let touched = [
        ("usr/bin/python3", 0, 64 * KIB),
        ("usr/lib/b.so", 0, 4 * KIB),
        ("usr/bin/python3", 2048 * KIB, 64 * KIB),
        ("usr/lib/a.so", 0, 4 * KIB),
        ("usr/bin/python3", 0, 64 * KIB),
        ("usr/lib/b.so", 100 * KIB, 20 * KIB),
    ];
    assert_eq!(start(&host, &scratch, &touched), []);
    let loaded = start(&host, &scratch, &touched);
    let (python, a, b) = (
        host.id("usr/bin/python3"),
        host.id("usr/lib/a.so"),
        host.id("usr/lib/b.so"),
    );
    let expected = [
        (python, 0, 64 * KIB),
        (b, 0, 120 * KIB),
        (python, 2048 * KIB, 64 * KIB),
        (a, 0, 4 * KIB),
    ];
    assert_eq!(loaded, expected);
    let kept = scratch.kept().expect("a template");
    assert_eq!((kept.groups.len(), kept.loads), (2, 2));
}

#[test]
fn directories_that_a_start_listed_are_loaded_whatever_is_in_them_by_then() {
    let scratch = Scratch::new("directories");
    let touched = [
        ("usr/bin/python3", 0, 64 * KIB),
        ("usr/lib/", 0, 4 * KIB),
        ("usr/lib/a.so", 0, 64 * KIB),
    ];
    start(&host().file("usr/lib/", 0), &scratch, &touched);
    let template = scratch.kept().expect("a template");
    assert_eq!(template.files[1], Identity::folder("usr/lib/".to_owned()));
    // Meanwhile something has been installed there.
    let later = host().file("usr/lib/c.so", KIB).file("usr/lib/", 0);
    let loaded = start(&later, &scratch, &[]);
    let expected = touched.map(|(path, from, length)| (later.id(path), from, length));
    assert_eq!(loaded, expected);
}

#[test]
fn a_start_that_another_node_has_recorded_is_loaded_if_its_files_are_here() {
    let scratch = Scratch::new("elsewhere");
    let touched = [
        ("usr/bin/python3", 0, 64 * KIB),
        ("usr/lib/a.so", 0, 4 * KIB),
    ];
    let [start_, store, _, leases] = scratch.settings();
    let there = [start_, store, ("node", "there"), leases];
    assert_eq!(start_with(&host(), &there, &touched), []);
    let of_others = |size: u64| {
        let host = FakeHost::new()
            .file("usr/bin/python3", size)
            .file("usr/lib/a.so", size);
        let settings = [start_, store, ("node", "new"), leases, ("record", "never")];
        start_with(&host, &settings, &[]).len()
    };
    assert_eq!(of_others(4097 * KIB), 0, "other files");
    let host = host();
    let loaded = start(&host, &scratch, &touched);
    let expected = [
        (host.id("usr/bin/python3"), 0, 64 * KIB),
        (host.id("usr/lib/a.so"), 0, 4 * KIB),
    ];
    assert_eq!(loaded, expected);
    let own = scratch.kept().expect("a template");
    assert_eq!(
        (own.groups.len(), own.loads),
        (2, 2),
        "its own continues from there"
    );
}

#[test]
fn short_start_is_recorded_only_if_it_read_enough() {
    let (host, scratch) = (host(), Scratch::new("least"));
    let [start_, store, node, leases] = scratch.settings();
    let settings = [start_, store, node, leases, ("least", "50")];
    let read = |kib: u64| {
        start_with(&host, &settings, &[("usr/bin/python3", 0, kib * KIB)]);
        scratch.kept().map(|it| it.groups.len())
    };
    assert_eq!(read(1000), Some(1), "nothing was known");
    assert_eq!(read(480), Some(1), "less than half");
    assert_eq!(read(520), Some(2));
    let refused = [start_, store, node, leases, ("least", "101")];
    assert!(host.start::<Library>(&refused).is_err());
}

#[test]
fn a_start_that_lost_events_and_one_that_read_nothing_are_not_kept() {
    let (host, scratch) = (host(), Scratch::new("lost"));
    start(&host, &scratch, &[]);
    assert_eq!(scratch.kept(), None);
    let (mut policy, _) = host
        .start::<Library>(&scratch.settings())
        .expect("it starts");
    let touch = Event::new(Kind::Touch, host.id("usr/lib/a.so"), 0, 512 * KIB).by(7);
    policy.prefetch(Some(&touch)).expect("it takes the event");
    let mut lost = Event::new(Kind::Lost, FileId(0), 0, 0);
    lost.count = 3;
    policy.prefetch(Some(&lost)).expect("it takes the event");
    policy.exit().expect("it ends");
    assert_eq!(scratch.kept(), None);
    assert!(
        host.logs()
            .iter()
            .any(|(_, line)| line.contains("3 events were lost"))
    );
}

#[test]
fn the_fourth_start_forgets_the_first() {
    let (host, scratch) = (host(), Scratch::new("forgets"));
    let usual = [("usr/bin/python3", 0, 4096 * KIB)];
    start(&host, &scratch, &[("usr/lib/a.so", 0, 512 * KIB)]);
    for _ in 0..3 {
        start(&host, &scratch, &usual);
    }
    let kept = scratch.kept().expect("a template");
    assert_eq!(kept.groups.len(), 3);
    let loaded = start(&host, &scratch, &usual);
    assert!(
        loaded
            .iter()
            .all(|&(file, ..)| file == host.id("usr/bin/python3")),
        "{loaded:?}"
    );
}

#[test]
fn next_start_matches_what_the_policy_loads() {
    let (host, scratch) = (host(), Scratch::new("told"));
    let usual = [
        ("usr/lib/b.so", 0, 64 * KIB),
        ("usr/bin/python3", 1024 * KIB, 512 * KIB),
    ];
    let odd = [("usr/lib/a.so", 0, 512 * KIB), usual[0]];
    for touched in [&usual[..], &odd, &usual, &usual] {
        start(&host, &scratch, touched);
    }
    let kept = scratch.kept().expect("a template");
    assert_eq!(kept.kind, TemplateKind::Start);
    let next = next_start(&kept).expect("it is a start's");
    let id = |extent: &Extent| host.id(&kept.files[extent.file as usize].path);
    let told = next.ahead.iter();
    let told: Vec<_> = told.map(|it| (id(it), it.offset(), it.length())).collect();
    assert_eq!(told, start(&host, &scratch, &[]));
    assert_eq!(told.len(), 2, "not what was odd");
    assert_eq!(next.starts.len(), 3);
    let of_model = Template {
        kind: TemplateKind::Model,
        ..kept
    };
    assert!(matches!(
        next_start(&of_model),
        Err(TemplateError::OfAModel)
    ));
}

#[test]
fn record_setting_selects_replay_only_or_a_fresh_record() {
    let (host, scratch) = (host(), Scratch::new("anew"));
    let with = |record| [&scratch.settings()[..], &[("record", record)]].concat();
    let (first, second) = (
        [("usr/lib/a.so", 0, 512 * KIB)],
        [("usr/lib/b.so", 0, 512 * KIB)],
    );
    start(&host, &scratch, &first);
    let before = scratch.kept().expect("a template");
    let replayed = start_with(&host, &with("never"), &second);
    assert_eq!(replayed, [(host.id("usr/lib/a.so"), 0, 512 * KIB)]);
    assert_eq!(scratch.kept(), Some(before), "it records nothing");
    assert_eq!(start_with(&host, &with("always"), &second), []);
    let kept = scratch.kept().expect("a template");
    assert_eq!((kept.groups.len(), kept.loads, kept.files.len()), (1, 1, 1));
    assert_eq!(kept.files[0].path, "usr/lib/b.so");
}

#[test]
fn recording_of_a_busy_program_ends_after_ten_minutes() {
    let (host, scratch) = (host(), Scratch::new("restless"));
    let (mut policy, _) = host
        .start::<Library>(&scratch.settings())
        .expect("it starts");
    for page in 0..121 {
        host.advance(Duration::from_secs(5));
        let file = host.id("usr/bin/python3");
        let mut touch = Event::new(Kind::Touch, file, page * 4 * KIB, 4 * KIB).by(7);
        touch.time_ns = (page + 1) * 5_000_000_000;
        policy.prefetch(Some(&touch)).expect("it takes the event");
        policy.prefetch(None).expect("it wakes");
        let hears = host.wanted().0.contains(Kind::Touch);
        assert_eq!(hears, page < 119, "after {} s", (page + 1) * 5);
    }
    policy.exit().expect("it ends");
    assert!(scratch.kept().is_some());
}

#[test]
fn a_start_that_has_come_to_rest_is_kept_and_hears_no_more() {
    let (host, scratch) = (host(), Scratch::new("rest"));
    let (mut policy, _) = host
        .start::<Library>(&scratch.settings())
        .expect("it starts");
    let touch = Event::new(Kind::Touch, host.id("usr/lib/a.so"), 0, 512 * KIB).by(7);
    policy.prefetch(Some(&touch)).expect("it takes the event");
    host.advance(Duration::from_secs(11));
    policy.prefetch(None).expect("it wakes");
    assert_eq!(host.wanted(), (ppc::Kinds::default(), 0));
    policy.exit().expect("it ends");
    assert!(scratch.kept().is_some());
}

#[test]
fn excluded_paths_are_neither_loaded_nor_recorded() {
    let (host, scratch) = (host(), Scratch::new("without"));
    let touched = [
        ("usr/bin/python3", 0, 64 * KIB),
        ("usr/lib/a.so", 0, 64 * KIB),
    ];
    start(&host, &scratch, &touched);
    let mut settings = scratch.settings().to_vec();
    settings.push(("without", "/usr/lib/"));
    let (mut policy, ios) = host.start::<Library>(&settings).expect("it starts");
    let files: Vec<_> = ios.iter().map(|io| io.file).collect();
    assert_eq!(files, [host.id("usr/bin/python3")]);
    for (path, from, length) in [
        ("usr/lib/b.so", 0, 64 * KIB),
        ("usr/bin/python3", 0, 128 * KIB),
    ] {
        let event = Event::new(Kind::Touch, host.id(path), from, length).by(7);
        policy.prefetch(Some(&event)).expect("it takes the event");
    }
    policy.exit().expect("it ends");
    let kept = scratch.kept().expect("a template");
    let read = kept.groups[0].extents().expect("they unpack");
    let paths: Vec<_> = read
        .iter()
        .map(|it| &kept.files[it.file as usize].path[..])
        .collect();
    assert_eq!(paths, ["usr/bin/python3"]);
    let mut settings = scratch.settings().to_vec();
    settings.push(("without", "lib"));
    assert!(host.start::<Library>(&settings).is_err());
}

#[test]
fn a_start_that_nothing_is_known_of_is_given_what_others_read_of_its_packages() {
    let host = FakeHost::new()
        .file("usr/bin/python3", 4096 * KIB)
        .file("v/site-packages/torch/a.so", 512 * KIB)
        .file("v/site-packages/torch/__init__.py", 64 * KIB)
        .file("v/site-packages/other/b.so", 512 * KIB);
    let scratch = Scratch::new("others");
    let named = |name| {
        let mut settings = scratch.settings();
        settings[0].1 = name;
        host.start::<Library>(&settings).expect("it starts")
    };
    let touch = |path, length| Event::new(Kind::Touch, host.id(path), 0, length).by(7);
    let (mut policy, _) = named("start-a");
    for path in ["v/site-packages/torch/a.so", "v/site-packages/other/b.so"] {
        let event = touch(path, 128 * KIB);
        policy.prefetch(Some(&event)).expect("it takes the event");
    }
    policy.exit().expect("it ends");
    let (mut policy, plan) = named("start-b");
    assert_eq!(plan, [], "it may be anything");
    let event = touch("usr/bin/python3", 64 * KIB);
    let plan = policy.prefetch(Some(&event)).expect("a plan");
    assert!(plan.is_none_or(|plan| plan.is_empty()));
    let event = touch("v/site-packages/torch/__init__.py", 4 * KIB);
    let plan = policy.prefetch(Some(&event)).expect("a plan");
    let plan = plan.expect("torch is torch");
    let asked: Vec<_> = plan
        .iter()
        .map(|io| (io.file, io.offset, io.length))
        .collect();
    assert_eq!(
        asked,
        [(host.id("v/site-packages/torch/a.so"), 0, 128 * KIB)]
    );
    policy.exit().expect("it ends");
}

#[test]
fn first_start_loads_sibling_modules_and_small_objects() {
    let scratch = Scratch::new("siblings");
    let folder = scratch.0.to_str().expect("plain").trim_start_matches('/');
    let path = |name: &str| format!("{folder}/{name}");
    let program = std::fs::read("/proc/self/exe").expect("this program");
    let mut host = FakeHost::new();
    for name in ["a.pyc", "b.pyc", "c.pyc", "d.json", "libz.so.1"] {
        std::fs::write(scratch.0.join(name), &program[..4096]).expect("a file");
        host = host.file(&path(name), 20 * KIB);
    }
    let mut settings = scratch.settings();
    settings[1].1 = "none";
    let (mut policy, _) = host.start::<Library>(&settings).expect("it starts");
    let mut asked = Vec::new();
    let touched = ["libz.so.1", "a.pyc", "b.pyc"].map(path);
    for path in &touched {
        let event = Event::new(Kind::Touch, host.id(path), 0, 4 * KIB).by(7);
        asked.extend(policy.prefetch(Some(&event)).expect("it takes the event"));
    }
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while asked.concat().len() < 4 && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
        asked.extend(policy.prefetch(None).expect("it is woken"));
    }
    let mut asked: Vec<_> = asked.concat().iter().map(|io| io.file).collect();
    asked.sort_unstable();
    let mut expected = [&touched[..], &[path("c.pyc")]].concat();
    expected.sort_unstable_by_key(|path| host.id(path));
    let expected: Vec<_> = expected.iter().map(|path| host.id(path)).collect();
    assert_eq!(asked, expected);
    policy.exit().expect("it ends");
}

#[test]
fn first_start_loads_blocks_around_touched_pages() {
    let scratch = Scratch::new("large");
    let host = FakeHost::new().file("usr/bin/python3", 8192 * KIB);
    let mut settings = scratch.settings();
    settings[1].1 = "none";
    let (mut policy, _) = host.start::<Library>(&settings).expect("it starts");
    let mut hear = |at: u64| {
        let event = Event::new(Kind::Touch, host.id("usr/bin/python3"), at, 4 * KIB).by(7);
        let asked = policy.prefetch(Some(&event)).expect("it takes the event");
        let asked = asked.unwrap_or_default().into_iter();
        asked
            .map(|io| (io.offset / KIB, io.length / KIB))
            .collect::<Vec<_>>()
    };
    assert_eq!(hear(1100 * KIB), [(1024, 512)]);
    assert_eq!(hear(1200 * KIB), [], "it is asked for once");
    assert_eq!(hear(1536 * KIB), [(1536, 512), (2048, 512)]);
    policy.exit().expect("it ends");
}

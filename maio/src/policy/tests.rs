mod report;

use std::os::unix::process::parent_id;
use std::path::PathBuf;

use ppc::testing::FakeHost;
use ppc::{IoFlags, Op, Xpu};

use super::*;
use crate::Library;
use crate::template::Store;

const MIB: u64 = 1 << 20;

/// A directory that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("maio-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn text(&self) -> &str {
        self.0.to_str().expect("plain")
    }

    fn store(&self) -> Store {
        Store::at(&self.0)
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
        .contents("config.json", b"{}")
        .file("b.bin", 8 * MIB)
        .file("a.bin", 8 * MIB)
}

fn event(host: &FakeHost, kind: Kind, path: &str, offset: u64, length: u64, at_s: u64) -> Event {
    let mut event = Event::new(kind, host.id(path), offset, length).by(std::process::id());
    event.time_ns = at_s * 1_000_000_000;
    event
}

fn loaded(ios: &[Io]) -> Vec<(FileId, u64, u64)> {
    ios.iter()
        .filter(|io| io.op == Op::Load)
        .map(|io| (io.file, io.offset, io.length))
        .collect()
}

/// Passes an event of an unknown process to the policy, waits until the process is known, and returns the plan.
fn hear_first(host: &FakeHost, maio: &mut ppc::host::Instance, event: &Event) -> Vec<Io> {
    let mut event = event.clone();
    event.time_ns = event.time_ns.max(ppc::host::Services::now(host));
    let mut plan = maio.prefetch(Some(&event)).expect("a plan");
    for _ in 0..1000 {
        if let Some(plan) = plan.filter(|plan| !plan.is_empty()) {
            return plan;
        }
        std::thread::sleep(Duration::from_millis(10));
        let woken = host.wakes().contains(&Duration::ZERO);
        plan = woken
            .then(|| maio.prefetch(None).expect("a plan"))
            .flatten();
    }
    panic!("nothing is planned: {:?}", host.logs());
}

/// The same where nothing may be planned.
fn hear_in_vain(host: &FakeHost, maio: &mut ppc::host::Instance, event: &Event) {
    let mut plans = vec![maio.prefetch(Some(event)).expect("a plan")];
    // The policy waits no longer than this, whatever its thread does.
    std::thread::sleep(Duration::from_millis(100));
    host.advance(Duration::from_secs(1));
    for _ in 0..2 {
        plans.push(maio.prefetch(None).expect("a plan"));
    }
    assert!(plans.iter().flatten().all(Vec::is_empty), "{plans:?}");
}

/// Reads the files in turn, and lets time pass until the load is over.
fn read_all(host: &FakeHost, maio: &mut ppc::host::Instance, files: &[&str]) {
    for (second, file) in (1..).zip(files) {
        for at in 0..8 {
            let event = event(host, Kind::Touch, file, at * MIB, MIB, second);
            maio.prefetch(Some(&event)).expect("a plan");
        }
    }
    end(host, maio);
}

/// Ends the load, and waits until its template is kept.
fn end(host: &FakeHost, maio: &mut ppc::host::Instance) {
    let before = kept(host);
    // What was asked for never comes here.
    host.advance(Duration::from_mins(6));
    for _ in 0..500 {
        maio.prefetch(None).expect("a plan");
        if kept(host) > before {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
        // Events that have waited for an answer were heard just now.
        host.advance(Duration::from_secs(1));
    }
    panic!("nothing was kept: {:?}", host.logs());
}

/// How often a template has been kept.
fn kept(host: &FakeHost) -> usize {
    let logs = host.logs();
    logs.iter()
        .filter(|(_, line)| line.contains("Kept the template"))
        .count()
}

#[test]
fn first_load_uses_headers_and_second_the_template() {
    let scratch = Scratch::new("loads");
    let settings = [
        ("service-id", "test"),
        ("node", "n"),
        ("store", scratch.text()),
        ("leases", "none"),
    ];
    let host = host();
    let (mut maio, at_init) = host.start::<Library>(&settings).expect("it starts");
    assert_eq!(at_init, []);
    assert!(
        host.wanted().0.contains(Kind::Touch),
        "it is to be recorded"
    );
    assert!(host.wanted().0.from_open(), "but nothing is loaded yet");
    let open = event(&host, Kind::Open, "config.json", 0, 2, 0);
    let plan = hear_first(&host, &mut maio, &open);
    let (a, b) = (host.id("a.bin"), host.id("b.bin"));
    let expected = [
        (host.id("config.json"), 0, PAGE),
        (a, 0, 8 * MIB),
        (b, 0, 8 * MIB),
    ];
    assert_eq!(loaded(&plan), expected);
    assert!(!host.wanted().0.from_open(), "until it is over");
    read_all(&host, &mut maio, &["b.bin", "a.bin"]);
    let kept = scratch
        .store()
        .load("test", "n")
        .expect("one")
        .expect("one");
    assert_eq!((kept.groups.len(), kept.groups[0].bytes()), (1, 16 * MIB));
    assert_eq!(kept.loads, 1);
    assert!(!host.wanted().0.contains(Kind::Touch), "once is enough");

    let (mut maio, _) = host.start::<Library>(&settings).expect("it starts");
    let plan = hear_first(&host, &mut maio, &open);
    assert_eq!(loaded(&plan), [(b, 0, 8 * MIB), (a, 0, 8 * MIB)]);
    assert!(host.wanted().0.contains(Kind::Touch), "it is to be proven");
    read_all(&host, &mut maio, &["b.bin", "a.bin"]);
    let kept = scratch
        .store()
        .load("test", "n")
        .expect("one")
        .expect("one");
    assert_eq!(kept.loads, 2, "it was right");
    assert!(!host.wanted().0.contains(Kind::Touch), "at rest");

    let mut early = settings.to_vec();
    early.push(("begin", "now"));
    let (mut maio, plan) = host.start::<Library>(&early).expect("it starts");
    assert_eq!(loaded(&plan).len(), 2, "before any reader");
    let wanted = || host.wanted().0;
    assert!(wanted().contains(Kind::Touch) && wanted().from_open());
    let touch = event(&host, Kind::Touch, "b.bin", 0, MIB, 1);
    maio.prefetch(Some(&touch)).expect("a plan");
    for _ in 0..1000 {
        // A thread finds out about the reader.
        std::thread::sleep(Duration::from_millis(10));
        maio.prefetch(None).expect("a plan");
        if !wanted().from_open() {
            break;
        }
    }
    assert!(wanted().contains(Kind::Touch) && !wanted().from_open());
}

#[test]
fn without_files_the_store_is_asked_now_and_then() {
    let scratch = Scratch::new("vain");
    let host = host().unlisted();
    let settings = [("store", scratch.text()), ("leases", "none")];
    let (mut maio, _) = host.start::<Library>(&settings).expect("it starts");
    let open = event(&host, Kind::Open, "config.json", 0, 2, 0);
    maio.prefetch(Some(&open)).expect("a plan");
    for _ in 0..40 {
        std::thread::sleep(Duration::from_millis(5));
        maio.prefetch(None).expect("a plan");
    }
    let logs = host.logs();
    let vain = logs
        .iter()
        .filter(|(_, text)| text.contains("No files of a model"));
    assert!((1..4).contains(&vain.count()), "{logs:?}");
}

#[test]
fn a_model_may_be_loaded_before_anything_is_opened() {
    let host = host();
    let settings = [("store", "none"), ("leases", "none"), ("begin", "early")];
    let (mut maio, plan) = host.start::<Library>(&settings).expect("it starts");
    let (a, b) = (host.id("a.bin"), host.id("b.bin"));
    let all = [
        (host.id("config.json"), 0, PAGE),
        (a, 0, 8 * MIB),
        (b, 0, 8 * MIB),
    ];
    assert_eq!(loaded(&plan), all);
    assert!(plan.iter().all(|io| io.priority < 0), "in the background");
    let open = event(&host, Kind::Open, "a.bin", 0, 8 * MIB, 3);
    let plan = hear_first(&host, &mut maio, &open);
    assert_eq!(loaded(&plan), all);
    assert!(
        plan.iter()
            .all(|io| io.priority == 0 || io.op == Op::Cancel),
        "its reader is there"
    );
    // What is cached need not be loaded.
    for (id, length) in [(a, 8 * MIB), (b, 8 * MIB), (host.id("config.json"), 2)] {
        host.set_cached(id, 0..length);
    }
    let (_, plan) = host.start::<Library>(&settings).expect("it starts");
    assert_eq!(plan, []);
}

/// Records a template of this node by a load of these files in this order.
fn recorded(scratch: &Scratch, host: &FakeHost, files: &[&str]) -> ppc::host::Instance {
    let settings = [
        ("service-id", "test"),
        ("node", "n"),
        ("store", scratch.text()),
        ("leases", "none"),
    ];
    let (mut maio, _) = host.start::<Library>(&settings).expect("it starts");
    let open = event(host, Kind::Open, "config.json", 0, 2, 0);
    hear_first(host, &mut maio, &open);
    read_all(host, &mut maio, files);
    maio
}

/// The first event of a new process, which has to outlive the test.
fn newcomer(host: &FakeHost, process: u32, second: u64) -> Event {
    let mut open = event(host, Kind::Open, "config.json", 0, 2, second);
    open.process = process;
    open
}

#[test]
fn a_template_that_lacks_something_is_completed_and_the_next_load_recorded() {
    let scratch = Scratch::new("lacks");
    let host = host();
    let mut maio = recorded(&scratch, &host, &["a.bin"]);
    let plan = hear_first(&host, &mut maio, &newcomer(&host, 1, 400));
    assert_eq!(loaded(&plan), [(host.id("a.bin"), 0, 8 * MIB)]);
    read_all(&host, &mut maio, &["a.bin", "b.bin"]);
    let kept = scratch.store().load("test", "n").expect("readable");
    let kept = kept.expect("a template");
    assert_eq!((kept.loads, kept.groups[0].bytes()), (0, 16 * MIB));
    assert!(host.wanted().0.contains(Kind::Touch), "from the beginning");
    let plan = hear_first(&host, &mut maio, &newcomer(&host, parent_id(), 0));
    assert_eq!(loaded(&plan).len(), 2);
}

#[test]
fn a_template_of_which_much_is_not_read_stays_until_that_is_known() {
    let scratch = Scratch::new("unread");
    let host = host();
    let mut maio = recorded(&scratch, &host, &["a.bin", "b.bin"]);
    hear_first(&host, &mut maio, &newcomer(&host, 1, 400));
    read_all(&host, &mut maio, &["a.bin"]);
    let kept = |loads| {
        let kept = scratch.store().load("test", "n").expect("readable");
        let kept = kept.expect("a template");
        assert_eq!(kept.loads, loads);
        kept.groups[0].bytes()
    };
    assert_eq!(kept(0), 16 * MIB, "it may have been an odd load");
    hear_first(&host, &mut maio, &newcomer(&host, parent_id(), 0));
    read_all(&host, &mut maio, &["a.bin"]);
    assert_eq!(kept(1), 8 * MIB);
}

#[test]
fn small_read_by_a_served_reader_starts_no_load() {
    let scratch = Scratch::new("served");
    let host = host().file("tokenizer.json", MIB);
    let mut maio = recorded(&scratch, &host, &["a.bin", "b.bin"]);
    let open = event(&host, Kind::Open, "tokenizer.json", 0, MIB, 400);
    hear_in_vain(&host, &mut maio, &open);
    let miss = event(&host, Kind::Miss, "config.json", 0, 2, 401);
    hear_in_vain(&host, &mut maio, &miss);
    let plan = hear_first(&host, &mut maio, &newcomer(&host, 1, 402));
    assert_eq!(loaded(&plan).len(), 2);
}

#[test]
fn reads_after_the_load_extend_the_template() {
    let scratch = Scratch::new("after");
    let host = host().file("README.md", MIB);
    let mut maio = recorded(&scratch, &host, &["a.bin"]);
    // One miss is of a file that it still has open, one of a file that it has not needed before.
    let miss = event(&host, Kind::Miss, "a.bin", 0, MIB, 400);
    hear_in_vain(&host, &mut maio, &miss);
    let miss = event(&host, Kind::Miss, "config.json", 0, 2, 401);
    hear_in_vain(&host, &mut maio, &miss);
    let before = kept(&host);
    host.advance(Duration::from_mins(20));
    for _ in 0..500 {
        maio.prefetch(None).expect("a plan");
        if kept(&host) > before {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let template = scratch.store().load("test", "n").expect("readable");
    let template = template.expect("a template");
    let read = template.groups[0].extents().expect("ranges");
    let path = |it: &Extent| template.files[it.file as usize].path.as_str();
    let read: Vec<_> = read.iter().map(|it| (path(it), it.pages)).collect();
    assert_eq!(read, [("a.bin", 2048), ("config.json", 1)]);
    // A file that describes the model is not part of it.
    let mut open = newcomer(&host, 1, 5000);
    open.file = host.id("README.md");
    hear_in_vain(&host, &mut maio, &open);
}

#[test]
fn a_template_of_other_files_is_not_used() {
    let scratch = Scratch::new("changed");
    let settings = [
        ("service-id", "test"),
        ("node", "n"),
        ("store", scratch.text()),
        ("leases", "none"),
    ];
    let first = host();
    let (mut maio, _) = first.start::<Library>(&settings).expect("it starts");
    let open = event(&first, Kind::Open, "config.json", 0, 2, 0);
    hear_first(&first, &mut maio, &open);
    read_all(&first, &mut maio, &["b.bin", "a.bin"]);
    let host = FakeHost::new()
        .file("b.bin", 9 * MIB)
        .file("a.bin", 8 * MIB);
    let (mut maio, _) = host.start::<Library>(&settings).expect("it starts");
    let open = event(&host, Kind::Open, "a.bin", 0, 8 * MIB, 0);
    let plan = hear_first(&host, &mut maio, &open);
    let (a, b) = (host.id("a.bin"), host.id("b.bin"));
    assert_eq!(loaded(&plan), [(a, 0, 8 * MIB), (b, 0, 9 * MIB)]);
    let said = host
        .logs()
        .into_iter()
        .any(|(_, line)| line.contains("b.bin is another file"));
    assert!(said, "{:?}", host.logs());
    // A file that is no template is reported, and the load goes on.
    let path = scratch.0.join("test/n.maio");
    std::fs::write(path, b"MAIO?").expect("a file");
    let (mut maio, _) = host.start::<Library>(&settings).expect("it starts");
    let plan = hear_first(&host, &mut maio, &open);
    assert_eq!(loaded(&plan).len(), 2);
    let said = host
        .logs()
        .into_iter()
        .any(|(_, line)| line.contains("is not used"));
    assert!(said, "{:?}", host.logs());
}

#[test]
fn template_that_does_not_fit_is_recorded_again() {
    let scratch = Scratch::new("drift");
    let settings = [
        ("service-id", "test"),
        ("node", "n"),
        ("store", scratch.text()),
        ("leases", "none"),
    ];
    let host = host();
    let (mut maio, _) = host.start::<Library>(&settings).expect("it starts");
    let open = event(&host, Kind::Open, "config.json", 0, 2, 0);
    hear_first(&host, &mut maio, &open);
    read_all(&host, &mut maio, &["a.bin"]);
    // Another process reads another file, which causes no other event.
    let mut miss = event(&host, Kind::Miss, "b.bin", 0, 8 * MIB, 1000);
    miss.process = 1;
    hear_first(&host, &mut maio, &miss);
    host.advance(Duration::from_hours(1));
    maio.prefetch(None).expect("a plan");
    assert!(host.wanted().0.contains(Kind::Touch), "{:?}", host.logs());
    let open = newcomer(&host, parent_id(), 5000);
    let plan = hear_first(&host, &mut maio, &open);
    assert_eq!(loaded(&plan).len(), 3, "by headers again");
    drop(maio);
    let kept = scratch.store().load("test", "n").expect("readable");
    assert_eq!(kept.map(|kept| kept.loads), Some(0));
    host.start::<Library>(&settings).expect("it starts");
    let wanted = host.wanted().0;
    assert!(
        wanted.contains(Kind::Touch),
        "the next reader of it records"
    );
}

#[test]
fn fully_cached_model_is_not_loaded() {
    let host = host();
    for (path, size) in [("config.json", 2), ("a.bin", 8 * MIB), ("b.bin", 8 * MIB)] {
        host.set_cached(host.id(path), 0..size);
    }
    let (mut maio, _) = host
        .start::<Library>(&[("store", "none"), ("leases", "none")])
        .expect("it starts");
    let open = event(&host, Kind::Open, "config.json", 0, 2, 0);
    hear_in_vain(&host, &mut maio, &open);
}

#[test]
fn direct_io_reader_gets_no_loads() {
    let host = host();
    let (mut maio, _) = host
        .start::<Library>(&[("store", "none"), ("leases", "none")])
        .expect("it starts");
    let mut open = event(&host, Kind::Open, "a.bin", 0, 8 * MIB, 0);
    open.direct = true;
    hear_in_vain(&host, &mut maio, &open);
    // A process that has opened the configuration before.
    let config = event(&host, Kind::Open, "config.json", 0, 2, 0);
    assert!(!loaded(&hear_first(&host, &mut maio, &config)).is_empty());
    open.length = 64 * MIB;
    let plan = maio.prefetch(Some(&open)).expect("a plan").expect("some");
    assert!(
        !plan.is_empty() && plan.iter().all(|io| io.op == Op::Cancel),
        "{plan:?}"
    );
}

#[test]
fn readers_that_bypass_the_page_cache_are_remembered_until_they_do_not() {
    let scratch = Scratch::new("bypass");
    let settings = [
        ("service-id", "test"),
        ("node", "n"),
        ("store", scratch.text()),
        ("leases", "none"),
        ("begin", "early"),
    ];
    let all = 32 * MIB;
    let host = FakeHost::new().file("a.bin", all);
    let early = || host.start::<Library>(&settings).expect("it starts");
    let (mut maio, plan) = early();
    assert_eq!(loaded(&plan).iter().map(|it| it.2).sum::<u64>(), all);
    let mut open = event(&host, Kind::Open, "a.bin", 0, all, 0);
    open.direct = true;
    maio.prefetch(Some(&open)).expect("a plan");
    end(&host, &mut maio);
    let kept = || scratch.store().load("test", "n").expect("a store");
    assert!(kept().is_some_and(|it| it.bypasses_cache()));

    let (mut maio, plan) = early();
    assert_eq!(plan, [], "it is left to its readers");
    hear_in_vain(&host, &mut maio, &open);
    host.advance(Duration::from_mins(5));
    maio.prefetch(None).expect("a plan");

    // Readers use the page cache again.
    let (mut maio, plan) = early();
    assert_eq!(plan, []);
    open.direct = false;
    maio.prefetch(Some(&open)).expect("a plan");
    for at in 0..32 {
        let event = event(&host, Kind::Miss, "a.bin", at * MIB, MIB, 0);
        maio.prefetch(Some(&event)).expect("a plan");
    }
    end(&host, &mut maio);
    assert!(kept().is_some_and(|it| it.loads == 0), "{:?}", host.logs());
    let (_, plan) = early();
    assert!(!loaded(&plan).is_empty(), "by headers");
}

#[test]
fn with_little_memory_no_more_than_that_is_held() {
    let host = host();
    let memory = |used| Memory {
        limit: 8 * MIB,
        used,
        threshold: 8 * MIB,
        available: 8 * MIB - used,
        group: 0,
    };
    host.set_memory(memory(0));
    let (mut maio, _) = host
        .start::<Library>(&[("store", "none"), ("leases", "none")])
        .expect("it starts");
    let open = event(&host, Kind::Open, "config.json", 0, 2, 0);
    let plan = hear_first(&host, &mut maio, &open);
    let bytes = |ios: &[Io]| loaded(ios).iter().map(|io| io.2).sum::<u64>();
    assert_eq!(bytes(&plan), 6 * MIB + PAGE);
    let beacon = event(&host, Kind::Progress, "a.bin", 15 << 19, 15 << 19, 1);
    let plan = maio.prefetch(Some(&beacon)).expect("a plan").expect("some");
    let dropped: u64 = plan
        .iter()
        .filter(|io| io.op == Op::Drop)
        .map(|io| io.length)
        .sum();
    assert_eq!((bytes(&plan), dropped), (0, 2 * MIB + PAGE));
    // Once those pages are gone, others are loaded.
    let plan = maio.prefetch(None).expect("a plan").expect("some");
    assert_eq!(bytes(&plan), 2 * MIB);
    assert!(
        plan.iter().all(|io| !io.flags.contain(IoFlags::REPLACE)),
        "{plan:?}"
    );
    // When other processes need memory, pages that have been read are dropped.
    let beacon = event(&host, Kind::Progress, "b.bin", MIB, 2 * MIB, 2);
    maio.prefetch(Some(&beacon)).expect("a plan");
    host.set_memory(memory(8 * MIB));
    let evicted = maio.evict(None).expect("a plan").expect("some");
    assert!(evicted.iter().all(|io| io.op == Op::Drop), "{evicted:?}");
}

#[test]
fn loads_carry_the_readers_process_and_accelerator() {
    let host = host();
    host.set_process(std::process::id(), Xpu(1));
    let settings = [("store", "none"), ("leases", "none"), ("budget", "8M")];
    let (mut maio, _) = host.start::<Library>(&settings).expect("it starts");
    let miss = event(&host, Kind::Miss, "a.bin", 0, MIB, 1);
    let plan = hear_first(&host, &mut maio, &miss);
    let here = |io: &Io| io.xpu == Some(Xpu(1)) && io.process == Some(std::process::id());
    assert!(!plan.is_empty() && plan.iter().all(here), "{plan:?}");
}

#[test]
fn the_first_load_knows_how_many_workers_there_are_by_the_command_above_them() {
    use crate::predict::shard_of;

    // Each worker has two of the four rows to itself.
    let weights = shard_of(&[("a.up_proj.weight", &[4, 1 << 20])]);
    let host = FakeHost::new()
        .contents("config.json", b"{}")
        .contents("model.safetensors", &weights);
    let (mut maio, _) = host
        .start::<Library>(&[("store", "none"), ("leases", "none")])
        .expect("it starts");
    let mut server = std::process::Command::new("sh")
        .args(["-c", "sleep 60; :", "serve", "-tp", "2"])
        .spawn()
        .expect("a shell");
    // The process exists before it has its arguments.
    let arguments = format!("/proc/{}/cmdline", server.id());
    while std::fs::read(&arguments).expect("it runs").is_empty() {
        std::thread::yield_now();
    }
    let mut open = event(&host, Kind::Open, "config.json", 0, 2, 0);
    open.process = server.id();
    let plan = hear_first(&host, &mut maio, &open);
    server.kill().and_then(|()| server.wait()).expect("it goes");
    // Loads for both workers begin at once, each with its own rows.
    let id = host.id("model.safetensors");
    let loads = loaded(&plan).into_iter().filter(|load| load.0 == id);
    let starts: Vec<u64> = loads.map(|load| load.1 / MIB).collect();
    assert!(starts.contains(&4), "{plan:?}");
}

#[test]
fn new_node_adopts_another_nodes_template() {
    let scratch = Scratch::new("nodes");
    let settings = |node| {
        [
            ("service-id", "test"),
            ("node", node),
            ("store", scratch.text()),
            ("leases", "none"),
        ]
    };
    let host = host();
    let (mut maio, _) = host.start::<Library>(&settings("old")).expect("it starts");
    let open = event(&host, Kind::Open, "config.json", 0, 2, 0);
    hear_first(&host, &mut maio, &open);
    read_all(&host, &mut maio, &["b.bin", "a.bin"]);
    let (mut maio, _) = host.start::<Library>(&settings("new")).expect("it starts");
    assert!(!host.wanted().0.contains(Kind::Touch));
    let plan = hear_first(&host, &mut maio, &open);
    assert_eq!(loaded(&plan).len(), 2);
    read_all(&host, &mut maio, &["b.bin", "a.bin"]);
    let loads = |node| {
        let kept = scratch.store().load("test", node).expect("readable");
        kept.map(|kept| kept.loads)
    };
    assert_eq!((loads("old"), loads("new")), (Some(1), Some(2)));
    // A template of two workers does not do for three.
    let more = settings("third").into_iter().chain([("tp", "3")]);
    let more: Vec<_> = more.collect();
    host.start::<Library>(&more).expect("it starts");
    assert!(host.wanted().0.contains(Kind::Touch));
}

#[test]
fn events_pending_at_exit_are_recorded() {
    let scratch = Scratch::new("exit");
    let settings = [
        ("service-id", "test"),
        ("node", "n"),
        ("store", scratch.text()),
        ("leases", "none"),
    ];
    let host = host();
    let (mut maio, _) = host.start::<Library>(&settings).expect("it starts");
    // The events come one after another, whether or not the reader is known by then.
    let open = event(&host, Kind::Open, "b.bin", 0, 8 * MIB, 0);
    maio.prefetch(Some(&open)).expect("a plan");
    for (file, second) in [("b.bin", 1), ("a.bin", 2)] {
        let read = event(&host, Kind::Touch, file, 0, 8 * MIB, second);
        maio.prefetch(Some(&read)).expect("a plan");
    }
    drop(maio);
    let kept = scratch.store().load("test", "n").expect("readable");
    let kept = kept.expect("a template");
    let read = kept.groups[0].extents().expect("ranges");
    let read = read
        .iter()
        .map(|it| kept.files[it.file as usize].path.as_str());
    assert_eq!(read.collect::<Vec<_>>(), ["b.bin", "a.bin"]);
    assert_eq!(host.opened(), 0);
}

#[test]
fn template_stored_after_the_policy_starts_is_used() {
    let scratch = Scratch::new("late");
    let settings = [
        ("service-id", "test"),
        ("node", "n"),
        ("store", scratch.text()),
        ("leases", "none"),
    ];
    let late = FakeHost::new();
    let (mut maio, _) = late.start::<Library>(&settings).expect("it starts");
    // The model is downloaded, and another node has loaded it meanwhile.
    let late = late
        .file("x.bin", MIB)
        .file("b.bin", 8 * MIB)
        .file("a.bin", 8 * MIB);
    let extent = |file| Extent {
        file,
        first: 0,
        pages: 2048,
    };
    let identity = |path: &str, inode| crate::template::Identity {
        path: path.to_owned(),
        size: 8 * MIB,
        mtime_ns: 1,
        inode,
        header: 0,
    };
    let group = crate::template::Group::new(0, None, &[extent(1), extent(0)]);
    let template = Template {
        kind: crate::template::TemplateKind::Model,
        service: "test".to_owned(),
        node: "other".to_owned(),
        made_s: 1,
        loads: 1,
        files: vec![identity("a.bin", 102), identity("b.bin", 101)],
        groups: vec![group.expect("a group")],
    };
    scratch.store().save(&template).expect("to save");
    let miss = event(&late, Kind::Miss, "b.bin", 0, MIB, 1);
    let plan = hear_first(&late, &mut maio, &miss);
    let (a, b) = (late.id("a.bin"), late.id("b.bin"));
    let expected = [(b, 0, 8 * MIB), (a, 0, 8 * MIB)];
    assert_eq!(loaded(&plan), expected, "from the piece that it is in");
}

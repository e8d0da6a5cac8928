//! Mounts with many models, each of which is loaded and recorded separately.

use std::path::PathBuf;

use ppc::host::Instance;
use ppc::testing::FakeHost;
use ppc::{FileId, Io, Op};

use super::*;
use crate::Library;
use crate::template::Store;

const MIB: u64 = 1 << 20;
/// The size of a shard; weights are not smaller.
const SHARD: u64 = 32 * MIB;

/// A store of templates that is removed when the test ends.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("maio-many-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }

    fn start(&self, host: &FakeHost, more: &[(&str, &str)]) -> (Instance, Vec<Io>) {
        let text = self.0.to_str().expect("plain");
        let settings = [("node", "n"), ("store", text), ("leases", "none")];
        let settings: Vec<_> = settings.into_iter().chain(more.iter().copied()).collect();
        host.start::<Library>(&settings).expect("it starts")
    }

    /// For each template, the service and the files that were read.
    fn kept(&self) -> Vec<(String, Vec<String>)> {
        let store = Store::at(&self.0);
        let entries = store.list().expect("templates").into_iter();
        let files = entries.map(|entry| {
            let template = store.load(&entry.service, &entry.node);
            let template = template.expect("readable").expect("there");
            let paths = template.files.into_iter().map(|file| file.path);
            (entry.service, paths.collect())
        });
        files.collect()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If this fails, the rest stays in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Adds a folder with a model in two shards and an index.
fn with_model(host: FakeHost, folder: &str) -> FakeHost {
    let at = |name: &str| crate::models::join(folder, name);
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    host.contents(&at("config.json"), b"{}")
        .contents(&at("model.safetensors.index.json"), index)
        .file(&at("model-1.safetensors"), SHARD)
        .file(&at("model-2.safetensors"), SHARD)
}

fn event(host: &FakeHost, kind: Kind, path: &str, offset: u64, length: u64) -> Event {
    let mut event = Event::new(kind, host.id(path), offset, length).by(std::process::id());
    event.time_ns = ppc::host::Services::now(host);
    event
}

/// Passes an event to the policy; returns what it plans until it has planned nothing for a while.
fn hear(host: &FakeHost, maio: &mut Instance, event: &Event) -> Vec<Io> {
    let mut planned: Vec<Io> = maio
        .prefetch(Some(event))
        .expect("a plan")
        .unwrap_or_default();
    for _ in 0..30 {
        std::thread::sleep(Duration::from_millis(10));
        host.advance(Duration::from_millis(1));
        let more = maio.prefetch(None).expect("a plan");
        planned.extend(more.unwrap_or_default());
    }
    planned
}

fn open(host: &FakeHost, maio: &mut Instance, path: &str) -> BTreeSet<FileId> {
    loaded(&hear(host, maio, &event(host, Kind::Open, path, 0, SHARD)))
}

fn loaded(planned: &[Io]) -> BTreeSet<FileId> {
    let loads = planned.iter().filter(|io| io.op == Op::Load);
    loads.map(|io| io.file).collect()
}

fn ids(host: &FakeHost, paths: &[&str]) -> BTreeSet<FileId> {
    paths.iter().map(|path| host.id(path)).collect()
}

fn read(host: &FakeHost, maio: &mut Instance, path: &str) {
    for at in 0..SHARD / MIB {
        let touch = event(host, Kind::Touch, path, at * MIB, MIB);
        maio.prefetch(Some(&touch)).expect("a plan");
    }
}

/// Ends everything that is under way, and waits until this many templates are kept.
fn end(host: &FakeHost, maio: &mut Instance, scratch: &Scratch, templates: usize) {
    // What was asked for never comes here.
    host.advance(Duration::from_mins(6));
    for _ in 0..500 {
        maio.prefetch(None).expect("a plan");
        if scratch.kept().len() >= templates {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        // Events that have waited for an answer were heard just now.
        host.advance(Duration::from_secs(1));
    }
    assert_eq!(scratch.kept().len(), templates, "{:?}", host.logs());
}

#[test]
fn only_the_opened_one_of_two_models_is_loaded() {
    let scratch = Scratch::new("two");
    let host = with_model(with_model(FakeHost::new(), "a"), "b");
    let (mut maio, at_init) = scratch.start(&host, &[("service-id", "s")]);
    assert_eq!(at_init, []);
    let wanted = host.wanted().0;
    assert!(wanted.contains(Kind::Touch), "to be recorded");
    assert!(wanted.from_open(), "but not before");
    let of = |folder: &str| {
        let names = ["config.json", "model-1.safetensors", "model-2.safetensors"];
        let index = "model.safetensors.index.json";
        let names = names.into_iter().chain([index]);
        let paths: Vec<_> = names.map(|name| format!("{folder}/{name}")).collect();
        ids(&host, &paths.iter().map(String::as_str).collect::<Vec<_>>())
    };
    assert_eq!(open(&host, &mut maio, "a/config.json"), of("a"));
    read(&host, &mut maio, "a/model-1.safetensors");
    read(&host, &mut maio, "a/model-2.safetensors");
    end(&host, &mut maio, &scratch, 1);
    // The other model is loaded as if it were the only one, and has its own template.
    assert_eq!(open(&host, &mut maio, "b/config.json"), of("b"));
    read(&host, &mut maio, "b/model-2.safetensors");
    end(&host, &mut maio, &scratch, 2);
    let (_, read_of_b) = scratch
        .kept()
        .into_iter()
        .find(|(_, files)| files.len() == 1)
        .expect("one");
    assert_eq!(read_of_b, ["model-2.safetensors"], "from its folder");
    let (mut maio, _) = scratch.start(&host, &[("service-id", "s")]);
    let only = ids(&host, &["b/model-2.safetensors"]);
    assert_eq!(open(&host, &mut maio, "b/config.json"), only);
    let both = ids(&host, &["a/model-1.safetensors", "a/model-2.safetensors"]);
    assert_eq!(open(&host, &mut maio, "a/config.json"), both);
}

#[test]
fn ten_models_and_three_loads_at_once_have_a_template_each() {
    let scratch = Scratch::new("ten");
    let names: Vec<String> = (0..10).map(|number| format!("org/m{number}")).collect();
    let host = names
        .iter()
        .fold(FakeHost::new(), |host, name| with_model(host, name));
    let (mut maio, _) = scratch.start(&host, &[]);
    let weights = |number: usize, shard: u32| format!("org/m{number}/model-{shard}.safetensors");
    let three = [1, 4, 7];
    for number in three {
        let config = format!("org/m{number}/config.json");
        assert_eq!(open(&host, &mut maio, &config).len(), 4, "{number}");
    }
    for shard in [2, 1] {
        for number in three {
            read(&host, &mut maio, &weights(number, shard));
        }
    }
    // Without a name these are one service, because they have the same files.
    end(&host, &mut maio, &scratch, 1);
    let (_, files) = scratch.kept().remove(0);
    assert_eq!(files, ["model-2.safetensors", "model-1.safetensors"]);

    let scratch = Scratch::new("ten-named");
    let (mut maio, _) = scratch.start(&host, &[("service-id", "s")]);
    for number in three {
        let config = format!("org/m{number}/config.json");
        open(&host, &mut maio, &config);
        read(&host, &mut maio, &weights(number, 1));
    }
    end(&host, &mut maio, &scratch, 3);
    let kept = scratch.kept();
    assert!(kept.iter().all(|(service, _)| service.starts_with("s.")));
    drop(maio);
    assert_eq!(host.opened(), 0);
}

#[test]
fn loads_that_are_under_way_at_once_share_the_memory() {
    let scratch = Scratch::new("share");
    let host = with_model(with_model(FakeHost::new(), "a"), "b");
    let memory = |used| ppc::Memory {
        limit: 64 * MIB,
        used,
        threshold: 64 * MIB,
        available: 64 * MIB - used,
        group: 0,
    };
    host.set_memory(memory(0));
    let (mut maio, _) = scratch.start(&host, &[]);
    let bytes = |planned: &[Io]| -> u64 {
        let loads = planned.iter().filter(|io| io.op == Op::Load);
        loads.map(|io| io.length).sum()
    };
    let begin = |maio: &mut Instance, path| {
        let planned = hear(&host, maio, &event(&host, Kind::Open, path, 0, 2));
        bytes(&planned)
    };
    let first = begin(&mut maio, "a/config.json");
    assert!(first <= 56 * MIB, "{first}");
    host.set_memory(memory(first));
    let second = begin(&mut maio, "b/config.json");
    assert!((8 * MIB..=28 * MIB).contains(&second), "{second}");
}

/// A cache of downloads with two revisions: the second one has another last shard.
fn hub() -> FakeHost {
    let index = br#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
    let top = "models--x--y";
    let mut host = FakeHost::new()
        .contents("models--x--y/refs/main", b"aa\n")
        .contents("models--x--y/blobs/c0", b"{}")
        .contents("models--x--y/blobs/i0", index)
        .file("models--x--y/blobs/w1", SHARD)
        .file("models--x--y/blobs/w2", SHARD)
        .file("models--x--y/blobs/w3", SHARD);
    for (revision, last) in [("aa", "w2"), ("bb", "w3")] {
        for (name, blob) in [
            ("config.json", "c0"),
            ("model.safetensors.index.json", "i0"),
            ("model-1.safetensors", "w1"),
            ("model-2.safetensors", last),
        ] {
            let path = format!("{top}/snapshots/{revision}/{name}");
            host = host.link(&path, &format!("{top}/blobs/{blob}"));
        }
    }
    host
}

fn blobs(host: &FakeHost, names: &[&str]) -> BTreeSet<FileId> {
    let path = |name: &&str| host.id(&format!("models--x--y/blobs/{name}"));
    names.iter().map(path).collect()
}

#[test]
fn only_the_opened_revision_in_a_hub_cache_is_loaded() {
    let scratch = Scratch::new("hub");
    let host = hub();
    let (mut maio, at_init) = scratch.start(&host, &[("service-id", "s")]);
    assert_eq!(at_init, []);
    // Both revisions have this file; the branch says which one is meant.
    let of_branch = blobs(&host, &["c0", "i0", "w1", "w2"]);
    assert_eq!(open(&host, &mut maio, "models--x--y/blobs/c0"), of_branch);
    read(&host, &mut maio, "models--x--y/blobs/w1");
    read(&host, &mut maio, "models--x--y/blobs/w2");
    end(&host, &mut maio, &scratch, 1);
    let (_, files) = scratch.kept().remove(0);
    assert_eq!(files, ["model-1.safetensors", "model-2.safetensors"]);
    // Process 1, which outlives any test, opens a shard that only the other revision has.
    let newcomer = |path| {
        let mut open = event(&host, Kind::Open, path, 0, SHARD);
        open.process = 1;
        open
    };
    let planned = hear(&host, &mut maio, &newcomer("models--x--y/blobs/c0"));
    assert_eq!(loaded(&planned), blobs(&host, &["w1", "w2"]));
    let planned = hear(&host, &mut maio, &newcomer("models--x--y/blobs/w3"));
    let taken_back = planned.iter().any(|io| io.op == Op::Cancel);
    assert!(taken_back, "w2 is not read: {planned:?}");
    assert!(loaded(&planned).contains(&host.id("models--x--y/blobs/w3")));
    assert!(!loaded(&planned).contains(&host.id("models--x--y/blobs/w2")));
    read(&host, &mut maio, "models--x--y/blobs/w1");
    read(&host, &mut maio, "models--x--y/blobs/w3");
    end(&host, &mut maio, &scratch, 2);
}

#[test]
fn an_adapter_that_is_opened_at_run_time_loads_nothing_else() {
    let scratch = Scratch::new("adapter");
    let host = with_model(FakeHost::new(), "")
        .contents("lora/adapter_config.json", b"{}")
        .file("lora/adapter_model.safetensors", SHARD)
        .file("draft.safetensors", SHARD);
    let (mut maio, _) = scratch.start(&host, &[("service-id", "s")]);
    open(&host, &mut maio, "config.json");
    read(&host, &mut maio, "model-1.safetensors");
    read(&host, &mut maio, "model-2.safetensors");
    end(&host, &mut maio, &scratch, 1);
    let adapter = ["lora/adapter_config.json", "lora/adapter_model.safetensors"];
    let loads = open(&host, &mut maio, adapter[0]);
    assert_eq!(loads, ids(&host, &adapter));
    end(&host, &mut maio, &scratch, 1);
    let draft = "draft.safetensors";
    let loads = open(&host, &mut maio, draft);
    assert!(loads.contains(&host.id(draft)) && !loads.contains(&host.id("model-1.safetensors")));
}

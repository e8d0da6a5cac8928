use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::template::samples::small;

/// A directory that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("maio-store-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("it is ours");
        Self(path)
    }

    fn store(&self) -> Store {
        Store::at(self.0.join("deep/templates"))
    }

    fn of_service(&self) -> PathBuf {
        self.0.join("deep/templates/qwen")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn of(node: &str, loads: u32) -> Template {
    Template {
        node: node.to_owned(),
        loads,
        ..small()
    }
}

/// The node of the newest template.
fn newest(store: &Store) -> Option<String> {
    let all = store.load_others("qwen", "this", None);
    let mut all = all.expect("to load");
    all.next().map(|template| template.node)
}

fn names_of(store: &Store) -> Vec<(String, bool)> {
    let entries = store.list().expect("to list").into_iter();
    entries
        .map(|it| (format!("{}/{}", it.service, it.node), it.state.is_ok()))
        .collect()
}

#[test]
fn names_are_plain() {
    for name in ["a", "A-1_b.c", "0", "-", &"a".repeat(128)] {
        assert!(valid_name(name), "{name:?}");
    }
    for name in [
        "",
        ".",
        "..",
        ".a",
        "a/b",
        "a b",
        "é",
        "a\0",
        "a\n",
        &"a".repeat(129),
    ] {
        assert!(!valid_name(name), "{name:?}");
        let store = Store::at("/nonexistent");
        assert!(matches!(store.load(name, "n"), Err(TemplateError::Name(_))));
        assert!(matches!(store.load("s", name), Err(TemplateError::Name(_))));
        assert!(matches!(
            store.remove(name, None),
            Err(TemplateError::Name(_))
        ));
        assert!(matches!(
            store.save(&of(name, 1)),
            Err(TemplateError::Name(_))
        ));
    }
}

#[test]
fn roots_are_where_state_is_kept() {
    let path = |text: &str| Some(PathBuf::from(text));
    assert_eq!(
        root(true, path("/s"), path("/h")),
        path("/var/lib/ppc/templates")
    );
    assert_eq!(
        root(false, path("/s"), path("/h")),
        path("/s/ppc/templates")
    );
    let home = path("/h/.local/state/ppc/templates");
    assert_eq!(root(false, None, path("/h")), home);
    assert_eq!(root(false, path("s"), path("/h")), home);
    assert_eq!(root(false, None, None), None);
}

#[test]
fn saved_templates_are_loaded_listed_and_removed() {
    let folder = Folder::new();
    let store = folder.store();
    assert_eq!(store.load("qwen", "node-1").expect("to load"), None);
    assert_eq!(newest(&store), None);
    assert!(store.list().expect("to list").is_empty());
    assert_eq!(store.remove("qwen", None).expect("to remove"), 0);

    store.save(&of("node-2", 1)).expect("to save");
    store.save(&of("node-1", 1)).expect("to save");
    store.save(&of("node-1", 2)).expect("to save");
    assert_eq!(
        store.load("qwen", "node-1").expect("to load"),
        Some(of("node-1", 2))
    );
    assert_eq!(store.load("qwen", "node-3").expect("to load"), None);
    let saved = |node| store.saved_at("qwen", node).expect("to ask");
    assert!(saved("node-1") >= saved("node-2") && saved("node-2").is_some());
    assert_eq!(saved("node-3"), None);
    let entries = store.list().expect("to list");
    assert_eq!(
        entries[0].state.as_ref().expect("a summary"),
        &Summary::of(&of("node-1", 2))
    );
    assert_eq!(
        entries[0].bytes,
        of("node-1", 2).to_bytes().expect("bytes").len() as u64
    );
    let names = [
        ("qwen/node-1".to_owned(), true),
        ("qwen/node-2".to_owned(), true),
    ];
    assert_eq!(names_of(&store), names);
    let mode = |path: &Path| {
        fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o7777
    };
    assert_eq!(mode(&folder.of_service().join("node-1.maio")) & !0o644, 0);

    assert_eq!(store.remove("qwen", Some("node-9")).expect("to remove"), 0);
    assert_eq!(store.remove("qwen", Some("node-2")).expect("to remove"), 1);
    assert_eq!(store.remove("qwen", None).expect("to remove"), 1);
    assert!(!folder.of_service().exists());
}

#[test]
fn the_newest_usable_template_of_others_is_found() {
    let folder = Folder::new();
    let store = folder.store();
    let hour = |hour: u64| SystemTime::UNIX_EPOCH + Duration::from_hours(hour);
    let set = |node: &str, time| {
        let path = folder.of_service().join(format!("{node}.maio"));
        File::options()
            .write(true)
            .open(path)
            .expect("it is ours")
            .set_modified(time)
            .expect("it is ours");
    };
    for (node, time) in [("a", 100), ("b", 300), ("c", 200)] {
        store.save(&of(node, 1)).expect("to save");
        set(node, hour(time));
    }
    assert_eq!(newest(&store).as_deref(), Some("b"));
    fs::write(folder.of_service().join("b.maio"), b"MAIOTPL\nno").expect("it is ours");
    set("b", hour(300));
    assert_eq!(newest(&store).as_deref(), Some("c"));
    assert!(matches!(
        store.load("qwen", "b"),
        Err(TemplateError::Truncated)
    ));
    let states: Vec<bool> = names_of(&store).into_iter().map(|it| it.1).collect();
    assert_eq!(states, [true, false, true]);
}

#[test]
fn a_copy_of_another_nodes_template_is_this_nodes() {
    let folder = Folder::new();
    let store = folder.store();
    store.save(&of("a", 1)).expect("to save");
    let copy = folder.of_service().join("b.maio");
    fs::copy(folder.of_service().join("a.maio"), copy).expect("it is ours");
    assert_eq!(
        store
            .load("qwen", "b")
            .expect("to load")
            .expect("a template")
            .node,
        "b"
    );
}

#[test]
fn writers_at_once_leave_one_whole_template() {
    let folder = Folder::new();
    let store = folder.store();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = &store;
            scope.spawn(move || {
                for load in 0..10 {
                    store.save(&of("n", thread * 10 + load)).expect("to save");
                    let found = store
                        .load("qwen", "n")
                        .expect("to load")
                        .expect("a template");
                    assert_eq!(found, of("n", found.loads));
                }
            });
        }
    });
    let left: Vec<String> = names(&folder.of_service()).expect("a directory").collect();
    assert_eq!(left, ["n.maio"]);
}

#[test]
fn temporary_files_are_invisible_and_old_ones_go() {
    let folder = Folder::new();
    let store = folder.store();
    store.save(&of("n", 1)).expect("to save");
    let (young, old) = (temporary_name("n"), temporary_name("m"));
    for name in [&young, &old] {
        fs::write(folder.of_service().join(name), b"MAIOTPL").expect("it is ours");
    }
    let file = File::options()
        .write(true)
        .open(folder.of_service().join(&old))
        .expect("it is ours");
    file.set_modified(SystemTime::now() - ABANDONED - Duration::from_mins(1))
        .expect("it is ours");
    assert_eq!(names_of(&store), [("qwen/n".to_owned(), true)]);
    assert_eq!(newest(&store).as_deref(), Some("n"));

    store.save(&of("n", 2)).expect("to save");
    assert!(folder.of_service().join(&young).exists());
    assert!(!folder.of_service().join(&old).exists());
}

#[test]
fn only_regular_files_of_a_sane_size_are_read() {
    let folder = Folder::new();
    let store = folder.store();
    store.save(&of("a", 1)).expect("to save");
    let path = |node: &str| folder.of_service().join(format!("{node}.maio"));
    symlink(path("a"), path("link")).expect("it is ours");
    fs::create_dir(path("folder")).expect("it is ours");
    nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("it is ours");
    for node in ["link", "folder", "pipe"] {
        let error = store.load("qwen", node);
        assert!(
            matches!(error, Err(TemplateError::NotAFile(_))),
            "{node} {error:?}"
        );
    }
    File::create(path("large"))
        .expect("it is ours")
        .set_len(MAX_BYTES as u64 + 1)
        .expect("it is ours");
    assert!(matches!(
        store.load("qwen", "large"),
        Err(TemplateError::TooLarge(_))
    ));
    // Saving replaces the link, not its target.
    store.save(&of("link", 5)).expect("to save");
    assert_eq!(
        store
            .load("qwen", "a")
            .expect("to load")
            .expect("a template")
            .loads,
        1
    );
    assert_eq!(
        store
            .load("qwen", "link")
            .expect("to load")
            .expect("a template")
            .loads,
        5
    );
}

#[test]
fn unwritable_store_fails_to_save() {
    // Not even root can make directories there.
    let error = Store::at("/proc/self/templates").save(&of("n", 1));
    assert!(error.is_err());
    let error = Store::at("/sys/kernel/templates").save(&of("n", 1));
    assert!(
        matches!(error, Err(TemplateError::ReadOnly { .. })),
        "{error:?}"
    );
    let folder = Folder::new();
    fs::write(folder.0.join("deep"), b"").expect("it is ours");
    assert!(matches!(
        folder.store().save(&of("n", 1)),
        Err(TemplateError::Io { .. })
    ));
    assert!(folder.store().list().expect("to list").is_empty());
}

#[test]
fn only_what_its_readers_own_is_believed() {
    let of = |owner, mode| trust::why_not(owner, mode, [0, 1000, 7]).is_none();
    assert!(of(0, 0o100_644) && of(1000, 0o100_664) && of(7, 0o40_755));
    assert!(!of(8, 0o100_644) && !of(1000, 0o100_666) && !of(0, 0o41_777));
    let folder = Folder::new();
    let store = folder.store();
    store.save(&of_node("a")).expect("to save");
    let path = folder.of_service().join("a.maio");
    let set = |path: &Path, mode| {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(path, mode).expect("it is ours");
    };
    let refused = |node: &str| {
        let error = store.load("qwen", node);
        assert!(
            matches!(error, Err(TemplateError::Untrusted { .. })),
            "{error:?}"
        );
        assert_eq!(newest(&store), None);
    };
    set(&path, 0o666);
    refused("a");
    set(&path, 0o644);
    set(&folder.of_service(), 0o777);
    refused("a");
    set(&folder.of_service(), 0o755);
    assert_eq!(newest(&store).as_deref(), Some("a"));
}

#[test]
fn a_service_that_is_a_link_is_neither_read_nor_written() {
    let folder = Folder::new();
    let store = folder.store();
    store.save(&of_node("a")).expect("to save");
    let elsewhere = folder.0.join("elsewhere");
    fs::rename(folder.of_service(), &elsewhere).expect("it is ours");
    symlink(&elsewhere, folder.of_service()).expect("it is ours");
    let error = store.load("qwen", "a");
    assert!(
        matches!(error, Err(TemplateError::Untrusted { .. })),
        "{error:?}"
    );
    let error = store.save(&of_node("b"));
    assert!(
        matches!(error, Err(TemplateError::Untrusted { .. })),
        "{error:?}"
    );
    assert!(!elsewhere.join("b.maio").exists());
    assert_eq!(newest(&store), None);
}

#[test]
fn templates_of_other_nodes_are_read_up_to_the_size_limit() {
    let folder = Folder::new();
    let store = folder.store();
    store.save(&of_node("small")).expect("to save");
    for number in 0..3 {
        let path = folder.of_service().join(format!("{number}.maio"));
        let file = File::create(path).expect("it is ours");
        file.set_len(MAX_BYTES as u64 / 2 - 1000)
            .expect("it is ours");
        let age = Duration::from_hours(number + 1);
        file.set_modified(SystemTime::now() - age)
            .expect("it is ours");
        file.set_permissions(fs::Permissions::from_mode(0o644))
            .expect("it is ours");
    }
    assert_eq!(newest(&store).as_deref(), Some("small"));
    let found = nodes(&folder.of_service()).expect("files");
    assert_eq!(found.len(), 4);
    let read = store.load_others("qwen", "this", None).expect("to load");
    assert_eq!(read.count(), 1);
    let since = Some(SystemTime::now() + Duration::from_hours(1));
    let read = store.load_others("qwen", "this", since).expect("to load");
    assert_eq!(read.count(), 0);
}

fn of_node(node: &str) -> Template {
    of(node, 1)
}

//! Policies written outside the tree, as in `policies/README.md`: built by its commands, loaded, and
//! called.

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ppc::host::Table;
use ppc::testing::FakeHost;
use ppc::{Event, Io, Kind, Level};

/// What stands for the tree in the README.
const TREE: &str = "/path/to/tree";

fn tree() -> PathBuf {
    let tree = common::policies().join("..");
    tree.canonicalize().expect("the tree")
}

/// An empty folder outside the tree, gone when the test is.
struct Outside(PathBuf);

impl Outside {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("ppc-readme-{}-{name}", std::process::id()));
        fs::create_dir(&folder).expect("a free name");
        Self(folder)
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.0.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("a scratch file");
    }

    /// Runs commands of the README; `false`, with a line that says so, if a program is not there.
    fn run(&self, needs: &str, commands: &str) -> bool {
        if let Err(error) = Command::new(needs)
            .arg("--version")
            .stdout(Stdio::null())
            .status()
        {
            test_support::skip(&format!("{needs}: {error}"));
            return false;
        }
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
        let status = Command::new("sh")
            .args(["-e", "-c", &commands.replace(TREE, &tree().to_string_lossy())])
            .current_dir(&self.0)
            // Built once for all, and of what this machine has already.
            .env("CARGO_TARGET_DIR", target)
            .env("CARGO_NET_OFFLINE", "true")
            .env_remove("RUSTFLAGS")
            .status()
            .expect("a shell");
        assert!(status.success(), "{commands}");
        true
    }

    /// The versions of the tree, as newer ones may not be here.
    fn lock(&self, folder: &str) {
        let to = self.0.join(folder).join("Cargo.lock");
        fs::copy(tree().join("Cargo.lock"), to).expect("a lock file");
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The blocks of a language, in their order.
fn blocks(language: &str) -> Vec<String> {
    let text = fs::read_to_string(common::policies().join("README.md")).expect("the README");
    let fence = format!("```{language}\n");
    let parts = text.split(&fence).skip(1);
    let blocks = parts.map(|part| part.split("```").next().unwrap_or_default().to_owned());
    blocks.collect()
}

/// The block of shell commands with this in it.
fn commands(word: &str) -> String {
    let found = blocks("sh").into_iter().find(|block| block.contains(word));
    found.expect(word)
}

/// What cargo made of a package.
fn built(library: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme/release");
    target.join(library)
}

#[allow(unsafe_code, reason = "loading a library runs it, and these are ours")]
fn open(library: &Path) -> Table {
    // SAFETY: it was compiled of the README's lines.
    unsafe { Table::open(library) }.expect("a policy")
}

/// It starts with a setting, says so, and loads what follows a miss.
fn is_heard(library: &Path) {
    let table = open(library);
    assert_eq!(table.name(), "ahead");
    let host = FakeHost::new().file("model", 1 << 30);
    let settings = [("length", "64K")];
    let (mut ahead, _) = host.start_table(table, &settings).expect("it starts");
    assert_eq!(host.logs(), [(Level::Info, "ahead starts".to_owned())]);
    let model = host.id("model");
    let miss = Event::new(Kind::Miss, model, 8192, 4096).by(7);
    let next = Io::load(model, 12288..12288 + (64 << 10)).by(7);
    assert_eq!(
        ahead.prefetch(Some(&miss)).expect("a plan"),
        Some(vec![next])
    );
    assert_eq!(ahead.prefetch(None).expect("a plan"), Some(vec![]));
    assert!(host.start_table(table, &[("lenght", "1")]).is_err());
}

#[test]
fn a_policy_in_c() {
    let outside = Outside::new("c");
    outside.write("ahead.c", &blocks("c")[0]);
    if outside.run("cc", &commands("cc -shared")) {
        is_heard(&outside.0.join("ahead.so"));
    }
}

#[test]
fn a_policy_in_rust() {
    let outside = Outside::new("rust");
    let manifest = blocks("toml")[0].replace(TREE, &tree().to_string_lossy());
    outside.write("Cargo.toml", &manifest);
    outside.write("src/lib.rs", &blocks("rust")[0]);
    outside.lock("");
    if outside.run("cargo", "cargo build --release") {
        is_heard(&built("libahead.so"));
    }
}

#[test]
fn a_copy_of_readahead() {
    let outside = Outside::new("copy");
    let commands = commands("cp -r");
    let (copy, build) = commands.split_once("sed ").expect("the line");
    if !outside.run("cargo", copy) {
        return;
    }
    outside.lock("my-readahead");
    outside.run("cargo", &format!("cd my-readahead\nsed {build}"));
    let table = open(&built("libppc_readahead.so"));
    assert_eq!(table.name(), "readahead");
    let host = FakeHost::new().file("model", 1 << 30);
    let (mut readahead, _) = host.start_table(table, &[]).expect("it starts");
    let model = host.id("model");
    let first = Event::new(Kind::Miss, model, 0, 4096).by(7);
    let window = Io::load(model, 4096..5 * 4096).by(7);
    assert_eq!(
        readahead.prefetch(Some(&first)).expect("a plan"),
        Some(vec![window])
    );
}

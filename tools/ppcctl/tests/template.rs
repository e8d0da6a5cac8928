//! Templates and services on the command line, in a store of the test's own.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use common::{Ran, run};
use serde_json::Value;
use test_support::Folder;

/// A directory with a model and a store.
struct Ground(Folder);

impl Ground {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        fs::create_dir(folder.path().join("model")).expect("a new folder");
        Self(folder)
    }

    fn model(&self) -> PathBuf {
        self.0.path().join("model")
    }

    fn template(&self, words: &[&str]) -> Ran {
        let store = self.0.path().join("store");
        let words = words.iter().map(OsStr::new);
        let all = ["template", "--store"].map(OsStr::new).into_iter();
        let all: Vec<_> = all.chain([store.as_os_str()]).chain(words).collect();
        run(&all)
    }

    fn text(&self, words: &[&str]) -> String {
        self.template(words).done().to_owned()
    }

    fn json(&self, words: &[&str]) -> Value {
        let words: Vec<_> = words.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.text(&words)).expect("JSON")
    }
}

/// A file of safetensors with these tensors of bytes.
fn safetensors(path: &Path, tensors: &[(&str, usize)]) {
    let mut at = 0;
    let entries = tensors.iter().map(|(name, bytes)| {
        let from = at;
        at += bytes;
        format!(r#""{name}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{from},{at}]}}"#)
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + at, 7);
    fs::write(path, bytes).expect("a file");
}

#[test]
fn a_service_has_the_same_id_in_any_order() {
    let one = run(&["service-id", "model=llama", "tp=4"])
        .done()
        .to_owned();
    assert_eq!(one.len(), 33, "{one}");
    assert_eq!(run(&["service-id", "tp=4", "model=llama"]).done(), one);
    assert_ne!(run(&["service-id", "tp=8", "model=llama"]).done(), one);
    run(&["service-id", "tp=4", "tp=8"]).failed(2, &["tp"]);
}

#[test]
fn a_template_is_made_shown_verified_compared_and_removed() {
    let ground = Ground::new("templates");
    let model = ground.model();
    let text = model.to_str().expect("plain");
    safetensors(
        &model.join("model.safetensors"),
        &[("b", 3 << 20), ("a", 1 << 20)],
    );
    ground.text(&["synth", text, "--service-id", "one"]);
    ground.text(&["synth", text, "--service-id", "two", "--order", "file"]);
    let list = ground.json(&["ls"]);
    let names = [&list[0]["service"], &list[1]["service"]];
    assert_eq!(names, ["one", "two"], "{list}");
    assert_eq!(
        (&list[0]["workers"], &list[0]["loads"]),
        (&1.into(), &0.into())
    );
    assert!(ground.text(&["ls"]).contains("4 MiB"));
    // By name, a comes first.
    let shown = ground.json(&["show", "one"]);
    let ranges = shown["groups"][0]["ranges"]
        .as_array()
        .expect("ranges")
        .clone();
    let offset = |at: usize| ranges[at][1].as_u64().expect("an offset");
    assert!(
        ranges.len() >= 2 && offset(ranges.len() - 1) < offset(ranges.len() - 2),
        "{shown}"
    );
    assert!(ground.text(&["show", "one", "--ranges"]).contains("OFFSET"));
    assert!(
        ground
            .text(&["verify", "one", text])
            .contains("can be used")
    );
    assert!(
        ground
            .text(&["diff", "one", "one"])
            .contains("differ in 0.0 %")
    );
    let difference = ground.json(&["diff", "one", "two"]);
    assert_eq!(difference["workers"][0]["only_a"], 0, "{difference}");
    assert!(difference["workers"][0]["order"].as_f64().expect("a part") < 1.0);
    // The file changes.
    safetensors(
        &model.join("model.safetensors"),
        &[("b", 2 << 20), ("a", 2 << 20)],
    );
    let ran = ground.template(&["verify", "one", text]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.out.contains("changed since the template was made"),
        "{ran:?}"
    );
    ground.text(&["rm", "one"]);
    ground
        .template(&["rm", "one"])
        .failed(1, &["no template of one"]);
    ground
        .template(&["show", "one"])
        .failed(1, &["no template of one"]);
}

#[test]
fn damaged_template_is_listed_as_damaged() {
    let ground = Ground::new("damaged");
    let model = ground.model();
    fs::write(model.join("weights.bin"), vec![1; 1 << 20]).expect("a file");
    ground.text(&[
        "synth",
        model.to_str().expect("plain"),
        "--service-id",
        "one",
    ]);
    let node = ground.json(&["ls"])[0]["node"].clone();
    let path = ground
        .0
        .path()
        .join("store/one")
        .join(format!("{}.maio", node.as_str().expect("a name")));
    let mut bytes = fs::read(&path).expect("it is there");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&path, bytes).expect("a file");
    let list = ground.json(&["ls"]);
    assert!(
        list[0]["error"]
            .as_str()
            .is_some_and(|it| it.contains("damaged")),
        "{list}"
    );
    ground.template(&["verify", "one"]).failed(1, &["damaged"]);
}

//! Templates and services on the command line, in a store of the test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ppcctl-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("model")).expect("a directory");
        Self(path)
    }

    fn model(&self) -> PathBuf {
        self.0.join("model")
    }

    fn ppcctl(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_ppcctl"))
            .arg("template")
            .args(words)
            .arg("--store")
            .arg(self.0.join("store"))
            .output()
            .expect("it was built")
    }

    fn text(&self, words: &[&str]) -> String {
        let output = self.ppcctl(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn json(&self, words: &[&str]) -> Value {
        let words: Vec<_> = words.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.text(&words)).expect("JSON")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Whatever is left is in a directory for that.
        let _ = fs::remove_dir_all(&self.0);
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

fn service_id(pairs: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ppcctl"))
        .arg("service-id")
        .args(pairs)
        .output()
        .expect("it was built")
}

#[test]
fn a_service_has_the_same_id_in_any_order() {
    let one = service_id(&["model=llama", "tp=4"]);
    let other = service_id(&["tp=4", "model=llama"]);
    assert!(
        one.status.success() && one.stdout == other.stdout,
        "{one:?}"
    );
    assert_eq!(one.stdout.len(), 33, "{one:?}");
    assert_ne!(one.stdout, service_id(&["tp=8", "model=llama"]).stdout);
    assert_eq!(service_id(&["tp=4", "tp=8"]).status.code(), Some(2));
}

#[test]
fn a_template_is_made_shown_verified_compared_and_removed() {
    let scratch = Scratch::new("templates");
    let model = scratch.model();
    let text = model.to_str().expect("plain");
    safetensors(
        &model.join("model.safetensors"),
        &[("b", 3 << 20), ("a", 1 << 20)],
    );
    scratch.text(&["synth", text, "--service-id", "one"]);
    scratch.text(&["synth", text, "--service-id", "two", "--order", "file"]);
    let list = scratch.json(&["ls"]);
    let names = [&list[0]["service"], &list[1]["service"]];
    assert_eq!(names, ["one", "two"], "{list}");
    assert_eq!(
        (&list[0]["workers"], &list[0]["loads"]),
        (&1.into(), &0.into())
    );
    assert!(scratch.text(&["ls"]).contains("4 MiB"));
    // By name, a comes first.
    let shown = scratch.json(&["show", "one"]);
    let ranges = shown["groups"][0]["ranges"]
        .as_array()
        .expect("ranges")
        .clone();
    let offset = |at: usize| ranges[at][1].as_u64().expect("an offset");
    assert!(
        ranges.len() >= 2 && offset(ranges.len() - 1) < offset(ranges.len() - 2),
        "{shown}"
    );
    assert!(
        scratch
            .text(&["show", "one", "--ranges"])
            .contains("OFFSET")
    );
    assert!(
        scratch
            .text(&["verify", "one", text])
            .contains("can be used")
    );
    assert!(
        scratch
            .text(&["diff", "one", "one"])
            .contains("differ in 0.0 %")
    );
    let difference = scratch.json(&["diff", "one", "two"]);
    assert_eq!(difference["workers"][0]["only_a"], 0, "{difference}");
    assert!(difference["workers"][0]["order"].as_f64().expect("a part") < 1.0);
    // Another file than it was.
    safetensors(
        &model.join("model.safetensors"),
        &[("b", 2 << 20), ("a", 2 << 20)],
    );
    let output = scratch.ppcctl(&["verify", "one", text]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("another file than it was"));
    scratch.text(&["rm", "one"]);
    assert_eq!(scratch.ppcctl(&["rm", "one"]).status.code(), Some(1));
    let output = scratch.ppcctl(&["show", "one"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no template of one"),
        "{output:?}"
    );
}

#[test]
fn what_is_damaged_is_listed_as_that() {
    let scratch = Scratch::new("damaged");
    let model = scratch.model();
    fs::write(model.join("weights.bin"), vec![1; 1 << 20]).expect("a file");
    scratch.text(&[
        "synth",
        model.to_str().expect("plain"),
        "--service-id",
        "one",
    ]);
    let node = scratch.json(&["ls"])[0]["node"].clone();
    let path = scratch
        .0
        .join("store/one")
        .join(format!("{}.maio", node.as_str().expect("a name")));
    let mut bytes = fs::read(&path).expect("it is there");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&path, bytes).expect("a file");
    let list = scratch.json(&["ls"]);
    assert!(
        list[0]["error"]
            .as_str()
            .is_some_and(|it| it.contains("damaged")),
        "{list}"
    );
    assert_eq!(scratch.ppcctl(&["verify", "one"]).status.code(), Some(1));
}

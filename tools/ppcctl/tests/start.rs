//! `ppcctl start`: a start is recorded, shown, verified, loaded and removed. Recording takes root and a kernel that
//! reports all reads; the store is the test's own.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Ran, maio_or_skip, ppcctl};
use serde_json::Value;
use test_support::{Folder, Gone, drop_cached, skip, undisturbed};

const KIB: u64 = 1 << 10;
/// Bytes read of each file: less than the kernel's readahead.
const PART: u64 = 16 * KIB;

/// Files to read, and a store.
struct Ground {
    folder: Folder,
    maio: &'static Path,
}

impl Ground {
    /// `None`, with a line that says why, where nothing can be recorded.
    fn new(name: &str) -> Option<Self> {
        let maio = maio_or_skip()?;
        let ground = Self {
            // Files in a temporary folder may be in memory, where there are no misses.
            folder: Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name),
            maio,
        };
        for number in 0..4 {
            let file = ground
                .folder
                .write(&format!("f{number}"), vec![number; 256 << 10]);
            drop_cached(&file).expect("to drop it");
        }
        let ran = ground.record("probe", &ground.script(&[0]));
        if ran.code == Some(125) {
            skip(&format!("tracepoints: {}", ran.err.trim_end()));
            return None;
        }
        ground.done(&["rm", "probe"]);
        Some(ground)
    }

    fn path(&self, number: u8) -> PathBuf {
        self.folder.path().join(format!("f{number}"))
    }

    fn start(&self, words: &[&str]) -> Command {
        let mut command = ppcctl();
        command.args(["start", "--store"]);
        command.arg(self.folder.path().join("store")).args(words);
        command
    }

    fn run(&self, words: &[&str]) -> Ran {
        Ran::of(&mut self.start(words))
    }

    fn done(&self, words: &[&str]) -> String {
        self.run(words).done().to_owned()
    }

    fn json(&self, words: &[&str]) -> Value {
        let words = [words, &["--json"]].concat();
        serde_json::from_str(&self.done(&words)).expect("JSON")
    }

    /// A script that reads the beginnings of these files, in this order.
    fn script(&self, numbers: &[u8]) -> String {
        let read = |&number: &u8| {
            let path = self.path(number);
            format!("head -c {PART} '{}' > /dev/null; ", path.display())
        };
        numbers.iter().map(read).collect()
    }

    fn record(&self, name: &str, script: &str) -> Ran {
        let mut command = self.start(&["record", "--service-id", name, "--policy"]);
        command.arg(self.maio).args(["--", "sh", "-c", script]);
        Ran::of(&mut command)
    }

    fn replay(&self, words: &[&str]) -> Ran {
        let mut command = self.start(&["replay", "--policy"]);
        Ran::of(command.arg(self.maio).args(words))
    }

    /// Runs it as usual, between commands of `ppcctl start`.
    fn usual(&self, name: &str, script: &str) {
        let store = format!("store={}", self.folder.path().join("store").display());
        let mut command = ppcctl();
        command.args([
            "run",
            "-q",
            "--service-id",
            name,
            "--set",
            &store,
            "--policy",
        ]);
        command.arg(self.maio).args(["--", "sh", "-c", script]);
        assert_eq!(Ran::of(&mut command).code, Some(0));
    }

    /// The ranges of our files that are loaded for the next start: file number, offset and length.
    fn expected(&self, name: &str) -> Vec<(u8, u64, u64)> {
        let shown = self.json(&["show", name]);
        let ranges = shown["ranges"].as_array().expect("ranges").iter();
        let own = ranges.filter_map(|range| {
            let path = Path::new(range[0].as_str()?);
            let number = (0..4).find(|&number| self.path(number) == path)?;
            Some((number, range[1].as_u64()?, range[2].as_u64()?))
        });
        own.collect()
    }

    fn make_cold(&self) {
        for number in 0..4 {
            drop_cached(&self.path(number)).expect("to drop it");
        }
    }

    /// Number of cached bytes of a file.
    fn cached(&self, number: u8) -> u64 {
        let ran = Command::new("fincore")
            .args(["--bytes", "--noheadings", "--output", "RES"])
            .arg(self.path(number))
            .output()
            .expect("util-linux");
        let text = String::from_utf8(ran.stdout).expect("a number");
        text.trim().parse().expect("a number")
    }
}

#[test]
fn start_is_recorded_extended_shown_and_replaced() {
    let Some(ground) = Ground::new("start-recorded") else {
        return;
    };
    let ran = ground.record("a", &ground.script(&[2, 0]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.err.contains("recorded ") && ran.err.contains("ppcctl start show start-a"),
        "{ran:?}"
    );
    let first = ground.expected("a");
    let files = |ranges: &[(u8, u64, u64)]| ranges.iter().map(|it| it.0).collect::<Vec<_>>();
    assert_eq!(files(&first), [2, 0]);
    assert!(
        first.iter().all(|it| it.1 == 0 && it.2 >= PART),
        "{first:?}"
    );
    // Starts add to what is known; a new record replaces it.
    ground.usual("a", &ground.script(&[2, 0, 1]));
    assert_eq!(ground.json(&["ls"])[0]["starts"], 2);
    assert_eq!(files(&ground.expected("a")), [2, 0, 1]);
    let shown = ground.json(&["show", "a"]);
    let by_path = |number: u8| {
        let path = ground.path(number);
        let mut files = shown["files"].as_array().expect("files").iter();
        let found = files.find(|it| Some(it["path"].as_str().unwrap_or("")) == path.to_str());
        found.expect("it is there")["starts"].clone()
    };
    assert_eq!((by_path(2), by_path(1)), ([1, 2].into(), [1].into()));
    ground.make_cold();
    let ran = ground.record("a", &ground.script(&[3]));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(
        ran.err.contains("0 B loaded"),
        "nothing is loaded ahead: {ran:?}"
    );
    assert_eq!(files(&ground.expected("a")), [3]);
    let list = ground.json(&["ls"]);
    assert_eq!(
        (&list[0]["name"], &list[0]["starts"]),
        (&"start-a".into(), &1.into())
    );
    assert!(list[0]["expected"].as_u64() >= Some(PART), "{list}");
}

#[test]
fn directories_are_listed_again_that_were_listed_or_that_an_installed_package_has_files_in() {
    let Some(ground) = Ground::new("directories") else {
        return;
    };
    let folder = ground.folder.path().canonicalize().expect("it is there");
    let place = folder.join("python3.12/site-packages");
    for inner in ["six/moves", "six-1.dist-info"] {
        fs::create_dir_all(place.join(inner)).expect("a directory");
    }
    let list = place.join("six-1.dist-info/RECORD");
    // More than a page: shorter files of some file systems lie in the inode.
    let lines = "six/moves/a.py,sha256=x,1\n".repeat(400);
    fs::write(&list, lines).expect("to write");
    let script = format!(
        "{} cat '{}' > /dev/null; ls '{}' > /dev/null",
        ground.script(&[0, 1]),
        list.display(),
        folder.join("python3.12").display()
    );
    let ran = ground.record("lists", &script);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let shown = ground.json(&["show", "lists"]);
    let files = shown["files"].as_array().expect("files");
    let is_directory = |it: &&Value| it["kind"] == "directory";
    let mut paths: Vec<_> = files
        .iter()
        .filter(is_directory)
        .filter_map(|it| it["path"].as_str())
        .filter(|path| Path::new(path).starts_with(&folder))
        .collect();
    paths.sort_unstable();
    let mut expected = [place.join("six/moves/"), folder.join("python3.12/")];
    expected.sort_unstable();
    assert_eq!(
        paths,
        expected
            .each_ref()
            .map(|path| path.to_str().expect("plain")),
        "{shown}"
    );
    // One that is gone is told as such, and what has changed in one does not matter.
    fs::write(folder.join("python3.12/new"), "").expect("to write");
    fs::remove_dir(place.join("six/moves")).expect("to remove");
    let verdict = ground.run(&["verify", "lists", "--json"]);
    let verdict: Value = serde_json::from_str(&verdict.out).expect("JSON");
    let gone = place.join("six/moves/").display().to_string();
    let wrong = verdict["wrong"].as_object().expect("what is wrong");
    assert_eq!(wrong.get(&gone), Some(&"gone".into()), "{verdict}");
    let directory = folder.join("python3.12/").display().to_string();
    assert_eq!(wrong.get(&directory), None, "{verdict}");
}

#[test]
fn start_and_model_templates_are_never_confused() {
    let Some(ground) = Ground::new("start-told") else {
        return;
    };
    ground.record("a", &ground.script(&[0]));
    let store = ground.folder.path().join("store");
    let template = |words: &[&str]| {
        let mut command = ppcctl();
        command.args(["template", "--store"]).arg(&store);
        Ran::of(command.args(words))
    };
    let model = ground.folder.path().to_str().expect("plain");
    let made = template(&["synth", model, "--service-id", "m"]);
    assert_eq!(made.code, Some(0), "{made:?}");
    let list: Value = serde_json::from_str(template(&["ls", "--json"]).done()).expect("JSON");
    let kinds = [&list[0]["kind"], &list[1]["kind"]];
    assert_eq!(kinds, ["model", "start"], "{list}");
    assert!(
        list[1]["workers"].is_null() && list[0]["workers"] == 1,
        "{list}"
    );
    assert_eq!(ground.json(&["ls"]).as_array().map(Vec::len), Some(1));
    let shown = template(&["show", "start-a"]);
    assert!(shown.done().starts_with("start     start-a\n"), "{shown:?}");
    assert!(!shown.out.contains("worker"), "{shown:?}");
    assert!(template(&["show", "m"]).done().contains("worker 0"));
    let verified = template(&["verify", "start-a"]);
    assert!(verified.done().contains("100.0 % of"), "{verified:?}");
    template(&["verify", "start-a", model]).failed(2, &["omit the directory"]);
    let compared = template(&["diff", "start-a", "start-a"]);
    let compared = compared.done();
    assert!(
        compared.contains("START") && compared.contains("the last"),
        "{compared}"
    );
    template(&["diff", "m", "start-a"]).failed(2, &["m is the template of a model"]);
    // Neither kind of template is taken for the other.
    for command in ["show", "verify", "replay"] {
        ground
            .run(&[command, "m"])
            .failed(1, &["not marked as that of a start"]);
    }
    ground
        .run(&["rm", "a", "m"])
        .failed(2, &["m is the template of a model; 'ppcctl template rm'"]);
    assert_eq!(
        ground.json(&["ls"]).as_array().map(Vec::len),
        Some(1),
        "neither is gone"
    );
    ground.done(&["rm", "a"]);
    for command in ["show", "verify", "replay", "rm"] {
        ground
            .run(&[command, "a"])
            .failed(1, &["No start a is known", "start ls"]);
    }
}

#[test]
fn a_start_is_named_by_its_command() {
    let Some(ground) = Ground::new("start-named") else {
        return;
    };
    let script = ground.script(&[1]);
    let mut command = ground.start(&["record", "--policy"]);
    command.arg(ground.maio).args(["--", "sh", "-c", &script]);
    assert_eq!(Ran::of(&mut command).code, Some(0));
    let name = ground.json(&["ls"])[0]["name"]
        .as_str()
        .expect("a name")
        .to_owned();
    assert!(name.starts_with("start-sh-"), "{name}");
    let mut command = ground.start(&["show", "--json", "--", "sh", "-c", &script]);
    let shown: Value = serde_json::from_str(Ran::of(&mut command).done()).expect("JSON");
    assert_eq!(shown["name"], name.as_str());
}

#[test]
fn verify_reports_changed_missing_and_replaced_files() {
    let Some(ground) = Ground::new("start-verified") else {
        return;
    };
    ground.record("a", &ground.script(&[0, 1, 2, 3]));
    assert!(ground.done(&["verify", "a"]).contains("100.0 % of"));
    fs::write(ground.path(0), "another").expect("a file");
    fs::remove_file(ground.path(1)).expect("it is ours");
    fs::rename(ground.path(2), ground.folder.path().join("elsewhere")).expect("it is ours");
    std::os::unix::fs::symlink("elsewhere", ground.path(2)).expect("a link");
    let ran = ground.run(&["verify", "a", "--json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let verdict: Value = serde_json::from_str(&ran.out).expect("JSON");
    let wrong = |number: u8| &verdict["wrong"][ground.path(number).to_str().expect("plain")];
    assert_eq!(
        [wrong(0), wrong(1), wrong(2)],
        ["changed", "gone", "no-file"],
        "{verdict}"
    );
    assert!(wrong(3).is_null() && verdict["right"] == false, "{verdict}");
    let lost = verdict["expected_bytes"].as_u64() > verdict["right_bytes"].as_u64();
    assert!(
        lost && verdict["right_bytes"].as_u64() >= Some(PART),
        "{verdict}"
    );
    assert!(
        ground
            .run(&["verify", "a"])
            .out
            .contains("changed since the template was made")
    );
}

#[test]
fn a_replay_loads_what_is_expected_and_ends() {
    let Some(ground) = Ground::new("start-replayed") else {
        return;
    };
    ground.record("a", &ground.script(&[0, 1, 2]));
    let before = ground.json(&["show", "a"]);
    fs::remove_file(ground.path(1)).expect("it is ours");
    fs::write(ground.path(1), "").expect("an empty one in its place");
    let (ran, cached) = undisturbed(
        || {
            for number in [0, 2] {
                drop_cached(&ground.path(number)).expect("to drop it");
            }
            let ran = ground.replay(&["a", "--json"]);
            (ran, [0, 2].map(|number| ground.cached(number)))
        },
        |(_, cached)| cached.iter().all(|&cached| cached >= PART),
    );
    assert_eq!((ran.code, ran.err.as_str()), (Some(0), ""), "{ran:?}");
    let outcome: Value = serde_json::from_str(&ran.out).expect("JSON");
    assert!(
        outcome["loaded_bytes"].as_u64() >= Some(2 * PART),
        "{outcome}"
    );
    assert_eq!(outcome["missing_bytes"], 0, "{outcome}");
    assert!(
        cached
            .iter()
            .all(|&cached| (PART..256 * KIB).contains(&cached)),
        "{cached:?}"
    );
    assert_eq!(
        before,
        ground.json(&["show", "a"]),
        "a replay is not a start"
    );
    // A file that is gone is reported, and the rest is loaded.
    fs::remove_file(ground.path(1)).expect("it is ours");
    let ran = ground.replay(&["a"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        ran.err,
        format!("ppcctl: {}: gone\n", ground.path(1).display())
    );
    assert!(ran.out.starts_with("start-a on "), "{ran:?}");
    assert_eq!(ground.replay(&["a", "--quiet"]).out, "");
}

#[test]
fn a_store_whose_server_is_gone_holds_up_no_command_for_long() {
    let Some(maio) = maio_or_skip() else { return };
    let gone = match Gone::mount("ppcctl-gone") {
        Ok(gone) => gone,
        Err(error) => return skip(&format!("FUSE: {error}")),
    };
    let model = Folder::new("ppcctl-gone-model");
    model.write("config.json", "{}");
    model.write("weights", vec![1; 1 << 20]);
    // Of a command, and of one with a model, whose policy is another.
    for directory in [None, Some(model.path())] {
        let mut command = ppcctl();
        command.args(["run", "--policy"]).arg(maio).arg("--set");
        command.arg(format!("store={}/store", gone.path().display()));
        command.args(directory).args(["--", "wc", "-c"]);
        let begun = Instant::now();
        let ran = Ran::of(command.arg(model.path().join("weights")));
        let took = begun.elapsed();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        // A second for each policy, and some for a machine that is busy.
        assert!(took < Duration::from_secs(4), "{took:?}: {ran:?}");
        let told = ["without a policy", "does not answer"];
        assert!(told.iter().any(|it| ran.err.contains(it)), "{ran:?}");
    }
}

//! A start, by `ppcctl run` without a directory: what a command and its children read is recorded, and loaded before
//! they read it the next time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::case::{Case, scratch};
use crate::files::{KIB, MIB, Pattern};
use crate::mount::Mount;
use crate::outcome::{For as _, Outcome, ensure, ensure_eq, kernel_is_at_least, skip, wait_until};
use crate::sys::PAGE;

pub(crate) const CASES: &[Case] = &[
    Case::new("cprt_start_replays", 60, replays),
    Case::new("cprt_start_outlives_odd_runs", 90, outlives_odd_runs),
    Case::new("cprt_start_reads_what_is_there", 60, reads_what_is_there),
    Case::new("cprt_start_brings_the_model", 60, brings_the_model),
];

/// How many seconds it may take from the beginning of a start until what it reads is loaded. In a guest it takes 0.5 to
/// 0.7 s, alone on a fast machine; beside another guest on a slow one, whatever takes that long has taken up to 2.6 times
/// as long.
const LOADED_S: u32 = 10;
const FILES: u64 = 12;
/// Pages read of each file, fewer than the kernel would read along with them.
const PAGES: usize = 4;
const PART: u64 = (PAGES * PAGE) as u64;

/// Files that commands read, in a mount of the way under test.
struct Tree {
    mount: Mount,
    files: Vec<Pattern>,
}

impl Tree {
    fn new() -> Outcome<Self> {
        if !kernel_is_at_least(6, 12) {
            skip!("before 6.12 hits are not told without the module: nothing can be recorded");
        }
        let mount = Mount::new()?;
        let file = |number| mount.file(&format!("d/f{number}"), number, 256 * KIB);
        let files = (0..FILES).map(file).collect::<Outcome<_>>()?;
        Ok(Self { mount, files })
    }

    fn path(&self, number: usize) -> PathBuf {
        self.mount.up(&self.files[number])
    }

    fn make_cold(&self) -> Outcome {
        self.files.iter().try_for_each(Pattern::make_cold)
    }

    /// A shell script that reads the beginning of each file, half of them in a child's child.
    fn script(&self) -> String {
        let read = |number| {
            let path = self.path(number);
            format!("head -c {PART} '{}' > /dev/null; ", path.display())
        };
        let (some, others) = (0..self.files.len()).partition::<Vec<_>, _>(|number| number % 2 == 0);
        let others: String = others.into_iter().map(read).collect();
        let some: String = some.into_iter().map(read).collect();
        format!("{some} sh -c \"{others} true\"; true")
    }

    /// Waits until a start that reads none of the files from `first` on has brought in all that the script reads of
    /// them. Pages count once they have come in, even if they are gone again: a machine that reclaims what it takes
    /// for cold takes back the first of these pages before the last are cached, and counts that nowhere.
    fn wait_for_parts(&self, first: usize, script: &str) -> Outcome<(String, Value)> {
        let files = &self.files[first..];
        let mut come = vec![[false; PAGES]; files.len()];
        let start = Held::begin(script, &[])?;
        let all = wait_until(LOADED_S, "all pages", || {
            for (come, file) in come.iter_mut().zip(files) {
                let cached = file.residency()?;
                come.iter_mut()
                    .zip(cached)
                    .for_each(|(come, is)| *come |= is);
            }
            Ok((!come.as_flattened().contains(&false)).then_some(()))
        });
        let ended = start.end()?;
        ensure!(all.is_ok(), "of what the start reads has come: {come:?}");
        Ok(ended)
    }
}

/// A start whose script stays until it is told to end.
struct Held {
    child: Child,
    over: PathBuf,
}

impl Held {
    fn begin(script: &str, arguments: &[&Path]) -> Outcome<Self> {
        let over = scratch().join("over");
        let wait = format!("while [ ! -e '{}' ]; do sleep 0.1; done", over.display());
        let child = begin_with(&format!("{script} {wait}"), arguments)?;
        Ok(Self { child, over })
    }

    fn end(self) -> Outcome<(String, Value)> {
        fs::write(&self.over, "").of(self.over.display())?;
        let ended = finish(self.child);
        fs::remove_file(&self.over).of(self.over.display())?;
        ended
    }
}

/// `ppcctl run` of a script, under one name.
fn begin(script: &str) -> Outcome<Child> {
    begin_with(script, &[])
}

/// The same with arguments that the script ignores.
fn begin_with(script: &str, arguments: &[&Path]) -> Outcome<Child> {
    let store = format!("store={}", scratch().join("store").display());
    let words = [
        "run",
        "--service-id",
        "s",
        "--set",
        &store,
        "--set",
        "node=n",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut command = Command::new("/usr/bin/ppcctl");
    command.arg("--json").args(words).args(arguments);
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().of("ppcctl")
}

/// Runs the script to its end; returns its output and the summary of the start.
fn run(script: &str) -> Outcome<(String, Value)> {
    finish(begin(script)?)
}

fn finish(child: Child) -> Outcome<(String, Value)> {
    let output = child.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {errors}", output.status);
    let line = errors.lines().last().unwrap_or_default();
    let summary: Value = serde_json::from_str(line).of(&errors)?;
    ensure!(summary["fault"].is_null(), "{summary}");
    ensure_eq!(summary["policy"], "maio", "whose start it is");
    Ok((
        String::from_utf8_lossy(&output.stdout).into_owned(),
        summary,
    ))
}

fn replays() -> Outcome {
    let tree = Tree::new()?;
    let all = FILES * PART;
    run(&tree.script())?;
    tree.make_cold()?;
    run(&tree.script())?;
    // What the script reads is cached although this start does not read it, and little more.
    tree.make_cold()?;
    let (_, third) = tree.wait_for_parts(0, "")?;
    let loaded = third["stats"]["loaded_bytes"].as_u64().unwrap_or_default();
    ensure!(loaded >= all, "{third}");
    let along: u64 = tree.files.iter().map(Pattern::cached).sum::<Outcome<_>>()?;
    println!("{along} bytes are cached of files of which {all} are read");
    ensure!(along <= 2 * all, "{along} bytes are cached, {all} are read");
    Ok(())
}

fn outlives_odd_runs() -> Outcome {
    let tree = Tree::new()?;
    for script in [&tree.script(), "true", &tree.script()] {
        run(script)?;
    }
    // A start that is killed halfway, and two at once.
    let half = format!(
        "head -c {PART} '{}' > /dev/null; kill -9 $$",
        tree.path(0).display()
    );
    let killed = begin(&half)?.wait_with_output()?;
    ensure!(!killed.status.success(), "{}", killed.status);
    let both = [begin(&tree.script())?, begin(&tree.script())?];
    for one in both {
        finish(one)?;
    }
    tree.make_cold()?;
    tree.wait_for_parts(0, "")?;
    Ok(())
}

/// A file that has changed, one that is gone, and one that is now a directory.
fn reads_what_is_there() -> Outcome {
    let tree = Tree::new()?;
    run(&tree.script())?;
    let changed = &tree.files[0];
    fs::write(&changed.lower, vec![b'x'; 5])?;
    fs::remove_file(&tree.files[1].lower)?;
    fs::remove_file(&tree.files[2].lower)?;
    fs::create_dir(&tree.files[2].lower)?;
    tree.files[3..].iter().try_for_each(Pattern::make_cold)?;
    let read = format!("cat '{}';", tree.path(0).display());
    let (said, _) = tree.wait_for_parts(3, &read)?;
    ensure_eq!(said, "xxxxx", "what is in the changed file");
    Ok(())
}

/// The model that the command names is loaded before any of its files is opened, and the start is known without it.
fn brings_the_model() -> Outcome {
    let tree = Tree::new()?;
    let weights = tree.mount.file("m/model.safetensors", 99, 17 * MIB)?;
    tree.mount.file("m/config.json", 98, 4 * KIB)?;
    let model = tree.mount.up(&weights).with_file_name("");
    for run in ["first", "second"] {
        weights.make_cold()?;
        let start = Held::begin(&format!("{};", tree.script()), &[&model])?;
        let loaded = wait_until(LOADED_S, "the model", || {
            Ok((weights.cached()? >= weights.size / 2).then_some(()))
        });
        let cached = weights.cached()?;
        let (_, summary) = start.end()?;
        ensure!(
            loaded.is_ok(),
            "{run}: {cached} bytes of the model before it is opened: {summary}"
        );
        ensure!(summary["directory"].is_string(), "{summary}");
        let of_start = &summary["start_stats"]["load_bytes"];
        ensure!(run == "first" || of_start.as_u64() > Some(0), "{summary}");
    }
    Ok(())
}

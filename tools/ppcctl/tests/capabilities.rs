//! The capabilities that root of a container needs: each is taken away, and what still works is what `cprt/README.md`
//! says. Takes root and a kernel that reports all reads.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Ran, maio_or_skip};
use serde_json::Value;
use test_support::{Folder, drop_cached, skip};

/// What root may do, in the words of the table and of setpriv; whether the container has tracefs; and what works as a
/// result.
struct Row {
    may: &'static str,
    bounding: &'static str,
    tracefs: bool,
    backend: &'static str,
    /// Whether opens are reported and starts recorded: both use fanotify.
    opens: bool,
    /// Whether eBPF programs filter what is reported.
    programs: bool,
}

const ROWS: [Row; 8] = [
    row("all", "+all", false, "observe", true, true),
    row(
        "`SYS_ADMIN` alone",
        "-all,+sys_admin",
        false,
        "observe",
        true,
        true,
    ),
    row(
        "all but `SYS_ADMIN`",
        "-sys_admin",
        false,
        "fuse",
        false,
        false,
    ),
    row(
        "all but `SYS_ADMIN`",
        "-sys_admin",
        true,
        "observe",
        false,
        true,
    ),
    row(
        "`BPF` and `PERFMON`",
        "-all,+bpf,+perfmon",
        true,
        "observe",
        false,
        true,
    ),
    row(
        "`PERFMON` alone",
        "-all,+perfmon",
        true,
        "observe",
        false,
        false,
    ),
    row(
        "`SETFCAP` alone",
        "-all,+setfcap",
        true,
        "fuse",
        false,
        false,
    ),
    row("none", "-all", true, "", false, false),
];

const fn row(
    may: &'static str,
    bounding: &'static str,
    tracefs: bool,
    backend: &'static str,
    opens: bool,
    programs: bool,
) -> Row {
    Row {
        may,
        bounding,
        tracefs,
        backend,
        opens,
        programs,
    }
}

/// Capabilities that are not missed while root has `SYS_ADMIN`.
const INDIFFERENT: [&str; 10] = [
    "bpf",
    "perfmon",
    "checkpoint_restore",
    "dac_read_search",
    "ipc_lock",
    "setfcap",
    "sys_nice",
    "sys_ptrace",
    "sys_resource",
    "syslog",
];

impl Row {
    /// The row as in the README.
    fn line(&self) -> String {
        let yes = |is: bool| if is { "yes" } else { "no" };
        let backend = match (self.backend, self.programs) {
            ("observe", true) => "observe",
            ("observe", false) => "observe, by perf",
            ("fuse", _) => "fuse by itself",
            _ => "none",
        };
        let tracefs = yes(self.tracefs);
        let opens = yes(self.opens);
        format!(
            "| {} | {tracefs} | {backend} | {opens} | {opens} |\n",
            self.may
        )
    }
}

/// ppcctl, as root with these capabilities, and with or without tracefs, as containers have it or not.
fn with(bounding: &str, tracefs: bool) -> Command {
    let at = "/sys/kernel/tracing";
    let before = if tracefs {
        // Most machines have it there already.
        format!("{{ [ -e {at}/events ] || mount -t tracefs none {at}; }}")
    } else {
        format!("mount -t tmpfs none {at}")
    };
    let mut command = Command::new("unshare");
    let script = format!("{before} && exec setpriv --bounding-set=\"$0\" \"$@\"");
    command.args(["--mount", "sh", "-c", &script, bounding]);
    command.arg(env!("CARGO_BIN_EXE_ppcctl"));
    command
}

/// A file to read, and a store.
struct Ground {
    folder: Folder,
    maio: &'static Path,
}

impl Ground {
    /// `None`, with a line that says why, where nothing can be recorded.
    fn new(name: &str) -> Option<Self> {
        let maio = maio_or_skip()?;
        let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        folder.write("model/weights", vec![7; 24 << 20]);
        let ground = Self { folder, maio };
        let said = ground.run("+all", false, &ground.reader());
        if said["backend"] != "observe" {
            skip(&format!("tracepoints: {said}"));
            return None;
        }
        Some(ground)
    }

    fn weights(&self) -> PathBuf {
        self.folder.path().join("model/weights")
    }

    /// Reads the file, and gives the runtime time to load the rest of it after the first MiB: on busy processors the
    /// file may be read by then.
    fn reader(&self) -> String {
        format!(
            "{{ head --bytes 1M; sleep 0.5; cat; }} < '{}' > /dev/null",
            self.weights().display()
        )
    }

    /// The summary of a run.
    fn run(&self, bounding: &str, tracefs: bool, script: &str) -> Value {
        drop_cached(&self.weights()).expect("to drop it");
        let mut command = with(bounding, tracefs);
        command.args(["run", "--json", "--set"]);
        command.arg(format!(
            "store={}",
            self.folder.path().join("store").display()
        ));
        command.arg("--policy").arg(self.maio);
        command.arg(self.folder.path().join("model"));
        let ran = Ran::of(command.args(["--", "sh", "-c", script]));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let line = ran.err.lines().rfind(|line| line.starts_with('{'));
        let summary = serde_json::from_str(line.unwrap_or_default());
        summary.unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// The missing capabilities that doctor finds.
    fn missing(&self, bounding: &str, tracefs: bool) -> String {
        let mut command = with(bounding, tracefs);
        command.args(["doctor", "--json"]);
        let ran = Ran::of(command.arg(self.folder.path().join("model")));
        let found: Vec<_> = ran
            .out
            .lines()
            .filter(|line| line.contains("capabilities-missing"))
            .collect();
        found.join("\n")
    }
}

fn limits(said: &Value) -> String {
    said["limits"].to_string()
}

#[test]
fn with_less_the_best_that_is_left_is_taken() {
    let Some(ground) = Ground::new("capabilities") else {
        return;
    };
    for row in &ROWS {
        let (may, line) = (row.bounding, row.line());
        let said = ground.run(may, row.tracefs, &ground.reader());
        let backend = said["backend"].as_str().unwrap_or_default();
        assert_eq!(backend, row.backend, "{line}{said}");
        assert_eq!(said["start_stats"].is_object(), row.opens, "{line}{said}");
        if backend == "observe" {
            let limits = limits(&said);
            assert_eq!(
                !limits.contains("OPEN and CLOSE"),
                row.opens,
                "{line}{limits}"
            );
            assert_eq!(!limits.contains("by perf"), row.programs, "{line}{limits}");
            let read = said["stats"]["events"].as_u64();
            assert!(read > Some(0), "{line}{said}");
        }
        let missing = ground.missing(may, row.tracefs);
        assert_eq!(
            missing.contains("CAP_SYS_ADMIN"),
            !row.opens,
            "{line}{missing}"
        );
    }
}

#[test]
fn each_optional_capability_can_be_dropped_alone() {
    let Some(ground) = Ground::new("capabilities-others") else {
        return;
    };
    for name in INDIFFERENT {
        let said = ground.run(&format!("-{name}"), false, &ground.reader());
        assert_eq!(said["backend"], "observe", "{name}: {said}");
        assert!(said["start_stats"].is_object(), "{name}: {said}");
        let limits = limits(&said);
        for part in ["OPEN and CLOSE", "by perf"] {
            assert!(!limits.contains(part), "{name}: {limits}");
        }
    }
}

/// A worker without these rights does not load a file that only its owner may read.
#[test]
fn files_of_others_take_one_of_two_more() {
    let Some(ground) = Ground::new("capabilities-files") else {
        return;
    };
    let weights = ground.weights();
    nix::unistd::chown(&weights, Some(65534.into()), None).expect("root may");
    fs::set_permissions(&weights, fs::Permissions::from_mode(0o600)).expect("root may");
    let reader = format!(
        "setpriv --reuid 65534 --clear-groups sh -c '{}'",
        ground.reader().replace('\'', "")
    );
    for (taken, loads) in [
        ("-dac_read_search", true),
        ("-dac_override", true),
        ("-dac_override,-dac_read_search", false),
    ] {
        let said = ground.run(taken, false, &reader);
        assert_eq!(said["backend"], "observe", "{taken}: {said}");
        let loaded = said["stats"]["load_bytes"].as_u64() > Some(0);
        let errors = said["stats"]["load_errors"].as_u64() > Some(0);
        assert_eq!(loaded && !errors, loads, "{taken}: {said}");
    }
}

#[test]
fn the_readme_has_the_table() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cprt/README.md");
    let readme = fs::read_to_string(readme).expect("the README");
    let (_, rest) = readme
        .split_once("<!-- capabilities -->\n")
        .expect("a beginning");
    let (text, _) = rest.split_once("<!-- /capabilities -->").expect("an end");
    let lines: String = ROWS.iter().map(Row::line).collect();
    let head =
        "| root may | tracefs | backend | opens and closes | starts |\n|---|---|---|---|---|\n";
    assert_eq!(text, format!("{head}{lines}"));
}

//! `ppcctl run`: a command runs as it would without it, whatever the machine allows.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::{Ran, ppcctl, scratch};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;
use test_support::{Folder, compile, drop_cached, policies, skip, skip_part, undisturbed};

/// A policy that loads much, in a file that only root can change, or why there is none.
fn policy() -> Result<&'static Path, &'static str> {
    static POLICY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = POLICY.get_or_init(|| {
        let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-shift.so");
        let arguments = ["-shared", "-fPIC", "-std=gnu11"];
        let source = policies().join("shift/shift.c");
        if !compile("cc", &arguments, &source, &library) {
            return Err("there is no cc".to_owned());
        }
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).expect("it is ours");
        cprt::daemon::trust::check(&library, geteuid().as_raw()).map_err(|error| error.to_string())
    });
    made.as_deref().map_err(String::as_str)
}

macro_rules! policy_or_skip {
    () => {
        match policy() {
            Ok(policy) => policy,
            Err(why) => {
                skip(why);
                return;
            }
        }
    };
}

/// A directory with a file of 1 MiB, which all users may read.
fn model(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write("weights", vec![b'w'; 1 << 20]);
    folder
}

/// Whether a shell script succeeds; `prefix` is a command that runs another one as a different user, or
/// empty.
fn succeeds(prefix: &[&str], script: &str) -> bool {
    let words = [prefix, &["sh", "-c", script]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    let output = command.output().expect("a shell");
    output.status.success()
}

/// The backend that a run must have on this machine, judged by what the kernel allows the user, not by
/// the program under test. `None` where the kernel allows none.
fn backend_here(prefix: &[&str]) -> Option<&'static str> {
    let allows = |script| succeeds(prefix, script);
    // Bit 21 is CAP_SYS_ADMIN.
    let may_administer = allows(
        "caps=$(sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status); \
         [ $(( (0x$caps >> 21) & 1 )) = 1 ]",
    );
    if may_administer && allows("grep -qw rfs /proc/filesystems") {
        return Some("module");
    }
    // Mounts tracefs itself, as few machines have it mounted for all users.
    let told = "unshare --mount sh -c 'mount -t tracefs none /mnt && \
                [ -r /mnt/events/filemap/mm_filemap_add_to_page_cache/id ]'";
    if may_administer && allows(told) {
        return Some("observe");
    }
    has_fuse(prefix).then_some("fuse")
}

/// Whether the machine lets the user mount a FUSE file system.
fn has_fuse(prefix: &[&str]) -> bool {
    let mounts = "unshare --mount true || unshare --user --map-root-user --mount true || \
                  command -v fusermount3";
    succeeds(prefix, &format!("exec 3<> /dev/fuse && {{ {mounts}; }}"))
}

/// The summary that `--json` writes as the last line of standard error.
fn summary(ran: &Ran) -> Value {
    let line = ran.err.lines().last().unwrap_or_default();
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// Checks that the run had this machine's backend, and the policy; or without a backend, that it gave
/// the reason for each.
#[track_caller]
fn had_backend(ran: &Ran, expected: Option<&str>) {
    let said = summary(ran);
    assert_eq!(said["backend"].as_str(), expected, "{ran:?}");
    if expected.is_some() {
        assert_eq!(said["policy"], "shift", "{ran:?}");
        assert!(said["stats"].is_object(), "{ran:?}");
        assert!(said["fault"].is_null(), "{ran:?}");
        return;
    }
    assert!(said["stats"].is_null(), "{ran:?}");
    for part in ["without a policy", "module: ", "observe: ", "fuse: "] {
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
    skip_part("the machine allows no backend: the command ran without a policy");
}

fn with(policy: &Path) -> Command {
    let mut command = ppcctl();
    command.args(["run", "--policy"]).arg(policy);
    command
}

fn run(policy: &Path, directory: &Path, words: &[&str]) -> Ran {
    Ran::of(with(policy).arg(directory).arg("--").args(words))
}

#[test]
fn the_command_has_its_own_output_and_exit_status() {
    let (policy, model) = (policy_or_skip!(), model("run-own"));
    let ran = run(
        policy,
        model.path(),
        &["sh", "-c", "echo out; echo err >&2; exit 7"],
    );
    assert_eq!((ran.code, ran.out.as_str()), (Some(7), "out\n"), "{ran:?}");
    assert!(ran.err.lines().any(|line| line == "err"), "{ran:?}");

    let mut child = with(policy)
        .arg("-q")
        .arg(model.path())
        .args(["--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was built");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"in").expect("a reader");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.stdout, b"in");
}

#[test]
fn command_that_cannot_run_exits_with_a_shell_status() {
    let (policy, model) = (policy_or_skip!(), model("run-cannot"));
    for (directory, word, code, part) in [
        (
            model.path(),
            "no-such-command",
            127,
            "no-such-command: No such file",
        ),
        (
            model.path(),
            "/etc/passwd",
            126,
            "/etc/passwd: Permission denied",
        ),
        (
            Path::new("/nowhere/at/all"),
            "true",
            125,
            "/nowhere/at/all: No such file",
        ),
        (
            Path::new("/etc/passwd"),
            "true",
            125,
            "/etc/passwd: not a directory",
        ),
    ] {
        let ran = run(policy, directory, &[word]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{ran:?}");
        assert!(ran.err.contains(part), "{part}: {ran:?}");
    }
    let ran = run(Path::new("/nowhere/p.so"), model.path(), &["true"]);
    assert_eq!(ran.code, Some(125), "{ran:?}");
    let ran = Ran::of(with(policy).arg(model.path()));
    assert_eq!(ran.code, Some(2), "no command: {ran:?}");
}

#[test]
fn signals_are_the_commands() {
    use std::os::unix::process::ExitStatusExt as _;

    let (policy, model) = (policy_or_skip!(), model("run-signals"));
    let status = with(policy)
        .arg("-q")
        .arg(model.path())
        .args(["--", "sh", "-c", "kill -USR1 $$"])
        .status()
        .expect("it was built");
    assert_eq!(status.signal(), Some(Signal::SIGUSR1 as i32));

    let script = "trap 'exit 9' TERM; echo ready; sleep 20 & wait";
    let mut child = started(
        with(policy)
            .arg(model.path())
            .args(["--", "sh", "-c", script]),
    );
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).expect("it is ours");
    assert_eq!(ended(&mut child), Some(9));
}

/// A key pressed in a terminal reaches the command once.
#[test]
fn control_c_is_for_the_command() {
    let (policy, model) = (policy_or_skip!(), model("run-key"));
    let inner =
        "n=0; trap 'n=$((n+1))' INT; echo ready; for i in 1 2 3 4 5; do sleep 0.3; done; exit $n";
    // exec, as a shell that stays gets the signal too, and some shells end by it.
    let outer = format!(
        "exec {} run -q --policy {} {} -- sh -c \"{}\"",
        env!("CARGO_BIN_EXE_ppcctl"),
        policy.display(),
        model.path().display(),
        inner.replace('$', "\\$")
    );
    // A process started in the background ignores SIGINT, and a shell cannot change that.
    let mut command = Command::new("env");
    command
        .args(["--default-signal=INT", "script"])
        .args(["-qefc", &outer, "/dev/null"])
        .stdin(Stdio::piped());
    if Command::new("script").arg("--version").output().is_err() {
        skip("there is no script(1)");
        return;
    }
    let mut child = started(&mut command);
    let mut keys = child.stdin.take().expect("a pipe");
    keys.write_all(b"\x03").expect("a terminal");
    assert_eq!(ended(&mut child), Some(1), "times that it was received");
    drop(keys);
}

/// Starts a command and waits for its first line.
fn started(command: &mut Command) -> Child {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("it was built");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut line).expect("a line");
    assert_eq!(line.trim_end(), "ready");
    // The pipe stays open, as a process that writes more would otherwise be killed by SIGPIPE.
    std::mem::forget(out);
    child
}

fn ended(child: &mut Child) -> Option<i32> {
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            return status.code();
        }
        assert!(since.elapsed() < Duration::from_secs(10), "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_directory_is_the_same_by_any_name() {
    let (policy, model) = (policy_or_skip!(), model("run-names"));
    let link = scratch("run-names-link");
    symlink(model.path(), &link).expect("a free name");
    let ran = run(
        policy,
        &link,
        &["sh", "-c", &format!("wc -c < {}/weights", link.display())],
    );
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "1048576\n"),
        "{ran:?}"
    );
    fs::remove_file(&link).expect("it was just there");
    for backend in ["auto", "fuse"] {
        let ran = Ran::of(
            with(policy)
                .args([
                    "--backend",
                    backend,
                    ".",
                    "--",
                    "sh",
                    "-c",
                    "pwd; wc -c < weights",
                ])
                .current_dir(model.path()),
        );
        if backend == "fuse" && !has_fuse(&[]) {
            ran.failed(125, &["fuse"]);
            skip_part(ran.err.trim_end());
            continue;
        }
        assert_eq!(
            ran.out,
            format!("{}\n1048576\n", model.path().display()),
            "{ran:?}"
        );
    }
}

#[test]
fn a_cache_of_downloads_is_taken_with_the_files_that_its_links_lead_to() {
    let (policy, model) = (policy_or_skip!(), model("run-links"));
    let snapshot = model.path().join("snapshots/0123");
    fs::create_dir_all(&snapshot).expect("a folder");
    symlink("../../weights", snapshot.join("weights")).expect("a link");
    let ran = run(policy, &snapshot, &["true"]);
    let wider = model.path().canonicalize().expect("it is there");
    let line = format!(
        "ppcctl: using {}, which includes the targets of links",
        wider.display()
    );
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.lines().any(|it| it == line), "{ran:?}");
}

#[test]
fn the_summary_counts_the_page_faults_of_the_command_alone() {
    let (policy, model) = (policy_or_skip!(), model("run-faults"));
    // Outside of the model, so that no policy loads it.
    let (other, program) = (Folder::new("run-faults-other"), PathBuf::from("/bin/true"));
    let cold = other.write("true", fs::read(program).expect("a program"));
    fs::set_permissions(&cold, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let faults = || {
        let mut command = with(policy);
        command.arg("--json").arg(model.path()).arg("--").arg(&cold);
        summary(&Ran::of(&mut command))["major_faults"].as_i64()
    };
    if drop_cached(&cold).is_err() {
        skip("the file system keeps all files in memory");
        return;
    }
    assert!(faults() > Some(0), "it was not cached");
    let again = undisturbed(faults, |again| *again == Some(0));
    assert_eq!(again, Some(0), "only the policy's worker has had any");
}

#[test]
fn a_configuration_that_the_user_names_limits_loads() {
    let (policy, model) = (policy_or_skip!(), model("run-config"));
    let config = model.write("cprt.toml", "[loader]\nthreads = 3\n");
    let run = |config: &Path| {
        let mut command = with(policy);
        command.arg("--json").arg("--config").arg(config);
        Ran::of(command.arg(model.path()).args(["--", "true"]))
    };
    let ran = run(&config);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    if backend_here(&[]).is_some() {
        assert_eq!(summary(&ran)["stats"]["streams"], 3, "{ran:?}");
    }
    let ran = run(Path::new("/none/cprt.toml"));
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.err.contains("/none/cprt.toml"), "{ran:?}");
}

#[test]
fn json_is_a_summary_and_quiet_is_nothing() {
    let (policy, model) = (policy_or_skip!(), model("run-said"));
    let quiet = Ran::of(
        with(policy)
            .arg("--quiet")
            .arg(model.path())
            .args(["--", "true"]),
    );
    assert_eq!(quiet.done(), "");
    // A hole that has never been read is not cached, so to read it is a miss, but for tmpfs.
    let hole = fs::File::create(model.path().join("hole")).expect("a file");
    hole.set_len(1 << 20).expect("a hole");
    let script = "cat hole > /dev/null; sleep 2; exit 3";
    let mut command = with(policy);
    command.args(["--json", ".", "--", "sh", "-c", script]);
    let ran = Ran::of(command.current_dir(model.path()));
    assert_eq!((ran.code, ran.out.as_str()), (Some(3), ""), "{ran:?}");
    let said = summary(&ran);
    assert_eq!(said["exit"], 3, "{said}");
    assert_eq!(said["directory"].as_str(), model.path().to_str(), "{said}");
    let expected = backend_here(&[]);
    had_backend(&ran, expected);
    if expected.is_none() {
        return;
    }
    let system = nix::sys::statfs::statfs(model.path()).expect("a file system");
    if system.filesystem_type() == nix::sys::statfs::TMPFS_MAGIC {
        skip_part("nothing misses on tmpfs");
        return;
    }
    for counter in ["events", "prefetch_calls", "load_ranges"] {
        let counted = said["stats"][counter].as_u64();
        assert!(counted > Some(0), "{counter}: {said}");
    }
}

#[test]
fn requested_backend_is_used_or_the_run_fails() {
    let (policy, model) = (policy_or_skip!(), model("run-backend"));
    if fs::read_to_string("/proc/filesystems").is_ok_and(|text| text.contains("\trfs\n")) {
        skip_part("this machine has the module");
    } else {
        let ran = Ran::of(
            with(policy)
                .args(["--backend", "module"])
                .arg(model.path())
                .args(["--", "true"]),
        );
        ran.failed(
            125,
            &["module: the module rfs is not loaded", "ppcctl doctor"],
        );
    }
    let script = "cat weights | wc -c; echo x 2> /dev/null > new || echo refused";
    let mut command = with(policy);
    command.args(["--json", "--backend", "fuse", ".", "--", "sh", "-c", script]);
    let ran = Ran::of(command.current_dir(model.path()));
    if !has_fuse(&[]) {
        ran.failed(125, &["fuse"]);
        skip(ran.err.trim_end());
        return;
    }
    assert_eq!(ran.out, "1048576\nrefused\n", "{ran:?}");
    had_backend(&ran, Some("fuse"));
    assert!(
        !model.path().join("new").exists(),
        "nothing is written below"
    );
}

/// For an ordinary user, the backend depends on what the machine allows.
#[test]
fn an_ordinary_user_may_run_it() {
    let (policy, model) = (policy_or_skip!(), model("run-user"));
    let setpriv = ["setpriv", "--reuid", "65534", "--regid", "65534"];
    let setpriv = [&setpriv[..], &["--clear-groups"]].concat();
    let (prefix, id) = if geteuid().is_root() {
        (&setpriv[..], "65534".to_owned())
    } else {
        (&[][..], geteuid().to_string())
    };
    let program = env!("CARGO_BIN_EXE_ppcctl");
    for path in [program.as_ref(), policy] {
        if !succeeds(prefix, &format!("[ -r '{}' ]", path.display())) {
            skip(&format!("user {id} may not read {}", path.display()));
            return;
        }
    }
    let words = [prefix, &[program, "run", "--json", "--policy"]].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(policy).arg(model.path());
    let script = "id -u; cat \"$0\"/weights | wc -c";
    let ran = Ran::of(command.args(["--", "sh", "-c", script]).arg(model.path()));
    assert_eq!(ran.out, format!("{id}\n1048576\n"), "{ran:?}");
    had_backend(&ran, backend_here(prefix));
}

/// Runs in its own mount namespace, after a script that changes file systems or drops rights.
fn in_a_namespace(before: &str, policy: &Path, directory: &Path) -> Option<Ran> {
    if !geteuid().is_root() {
        skip("mounting is for root");
        return None;
    }
    let script = format!(
        "set -e; {before} {} run --json --policy {} {} -- sh -c 'wc -c < {}/weights'",
        env!("CARGO_BIN_EXE_ppcctl"),
        policy.display(),
        directory.display(),
        directory.display()
    );
    Some(Ran::of(
        Command::new("unshare").args(["--mount", "sh", "-c", &script]),
    ))
}

#[test]
fn run_works_on_tmpfs_overlay_xfs_and_btrfs() {
    let (policy, model) = (policy_or_skip!(), model("run-systems"));
    let at = model.path().display();
    let tmpfs = format!(
        "mkdir {at}/t; mount -t tmpfs none {at}/t; cp {at}/weights {at}/t; mount --move {at}/t {at};"
    );
    let overlay = format!(
        "mkdir {at}/o; mount -t tmpfs none {at}/o; mkdir {at}/o/u {at}/o/w {at}/o/l; \
         cp {at}/weights {at}/o/l; \
         mount -t overlay none -o lowerdir={at}/o/l,upperdir={at}/o/u,workdir={at}/o/w {at};"
    );
    let on_a_disk = |kind: &str| {
        format!(
            "command -v mkfs.{kind} > /dev/null || exit 77; truncate -s 400M {at}/image; \
             mkfs.{kind} -q {at}/image > /dev/null; mkdir {at}/x; \
             mount -o loop {at}/image {at}/x 2> /dev/null || exit 77; \
             cp {at}/weights {at}/x; mount --bind {at}/x {at};"
        )
    };
    for (name, before) in [
        ("tmpfs", tmpfs),
        ("overlay", overlay),
        ("xfs", on_a_disk("xfs")),
        ("btrfs", on_a_disk("btrfs")),
    ] {
        let Some(ran) = in_a_namespace(&before, policy, model.path()) else {
            return;
        };
        if ran.code == Some(77) {
            skip_part(&format!(
                "{name}: there is no mkfs.{name}, or no loop device"
            ));
            continue;
        }
        assert_eq!(
            (ran.code, ran.out.as_str()),
            (Some(0), "1048576\n"),
            "{name}: {ran:?}"
        );
        had_backend(&ran, backend_here(&[]));
        for name in ["image", "t", "o", "x"] {
            let path = model.path().join(name);
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }
}

/// As in a container: no tracefs, none of the capabilities, and no way to mount.
#[test]
fn run_without_privileges_warns_and_runs_the_command() {
    let (policy, model) = (policy_or_skip!(), model("run-closed"));
    let before = "mount -t tmpfs none /sys/kernel; \
                  [ ! -e /dev/fuse ] || mount --bind /dev/null /dev/fuse; \
                  setpriv --bounding-set -sys_admin,-perfmon,-bpf --inh-caps -all";
    let Some(ran) = in_a_namespace(before, policy, model.path()) else {
        return;
    };
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (Some(0), "1048576\n"),
        "{ran:?}"
    );
    let lines: Vec<_> = ran.err.lines().collect();
    assert!(
        matches!(lines[..], [line, _] if line.contains("without a policy")),
        "{ran:?}"
    );
    assert!(summary(&ran)["backend"].is_null(), "{ran:?}");
}

/// A reader of a mirror whose worker is killed gets an error at once.
#[test]
fn a_worker_that_is_killed_leaves_no_reader_waiting() {
    let (policy, model) = (policy_or_skip!(), model("run-kill"));
    let script = "echo ready; while cat weights > /dev/null 2>&1; do sleep 0.1; done; exit 5";
    let mut command = with(policy);
    command.args(["-q", "--backend", "fuse", ".", "--", "sh", "-c", script]);
    let mut child = command
        .current_dir(model.path())
        .stdout(Stdio::piped())
        .spawn()
        .expect("built");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut line).expect("a line");
    if !has_fuse(&[]) {
        assert_eq!(ended(&mut child), Some(125));
        skip("there is no FUSE here");
        return;
    }
    assert_eq!(line, "ready\n");
    let worker = worker_of(child.id());
    kill(Pid::from_raw(worker), Signal::SIGKILL).expect("it is ours");
    assert_eq!(ended(&mut child), Some(5));
}

/// The command continues, with another worker.
#[test]
fn a_worker_that_is_killed_is_started_again() {
    let (policy, model) = (policy_or_skip!(), model("run-again"));
    let script = "echo ready; read line; cat weights | wc -c";
    let mut command = with(policy);
    command.args([".", "--", "sh", "-c", script]);
    let mut child = command
        .current_dir(model.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("built");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    if backend_here(&[]).is_none() {
        drop(child.stdin.take());
        assert_eq!(ended(&mut child), Some(0));
        skip("there is no backend here");
        return;
    }
    let first = worker_of(child.id());
    kill(Pid::from_raw(first), Signal::SIGKILL).expect("it is ours");
    let since = Instant::now();
    while find_worker(child.id()).is_none_or(|worker| worker == first) {
        assert!(since.elapsed() < Duration::from_secs(20), "no other worker");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(child.stdin.take());
    let mut bytes = String::new();
    out.read_to_string(&mut bytes).expect("what it read");
    assert_eq!((ended(&mut child), bytes.trim()), (Some(0), "1048576"));
    let mut errors = String::new();
    let mut stderr = child.stderr.take().expect("a pipe");
    stderr.read_to_string(&mut errors).expect("its words");
    assert!(
        errors.contains("killed by SIGKILL; starting it again"),
        "{errors}"
    );
    assert!(!errors.contains("continued without it"), "{errors}");
}

/// The child of a process that was started as a worker.
fn worker_of(process: u32) -> i32 {
    find_worker(process).expect("a worker")
}

fn find_worker(process: u32) -> Option<i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    // Any of its threads may have started it.
    let children = |task: std::io::Result<fs::DirEntry>| {
        fs::read_to_string(task.ok()?.path().join("children")).ok()
    };
    let children: String = tasks.filter_map(children).collect();
    let of_worker = |pid: &&str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(b"worker")
    };
    let mut pids = children.split_ascii_whitespace();
    pids.find(of_worker)?.parse().ok()
}

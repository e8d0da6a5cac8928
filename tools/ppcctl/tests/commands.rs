//! Every command against a daemon that is missing, agrees, refuses, or sends garbage.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use common::{Daemon, Ran, ppcctl, run, scratch};
use test_support::{metrics, skip};

const MOUNT: &str = r#"{"path":"/mnt/m","lower":"/srv/m","device":"rfs0","state":"running","policy":{"name":"shift","version":"1","library":"/p.so","settings":{"length":"4096"},"backend":"module","features":["open"],"worker":77,"crashes":0,"log":[]}}"#;
const NATIVE: &str = r#"{"path":"/mnt/n","lower":"/srv/n","device":"rfs1","state":"native"}"#;
const EVENT: &str = r#"{"kind":"MISS","path":"a/b.gguf","file":7,"offset":0,"length":4096,"time_ns":1000000000,"count":1,"process":10,"thread":11,"cpu":0,"mmap":false,"direct":false}"#;

/// The commands that ask the daemon something.
const COMMANDS: [&[&str]; 9] = [
    &["reg-policy", "/mnt/m", "/p.so"],
    &["rm-policy", "/mnt/m"],
    &["set", "/mnt/m", "a=b"],
    &["status"],
    &["stats", "/mnt/m"],
    &["events", "/mnt/m"],
    &["metrics"],
    &["keep", "ls"],
    &["keep", "rm", "x"],
];

fn ok(json: &str) -> String {
    format!("{{\"ok\":{json}}}\n")
}

fn refusal(kind: &str) -> String {
    format!(r#"{{"error":{{"kind":"{kind}","message":"No such thing","remedy":"try another"}}}}"#)
        + "\n"
}

#[test]
fn reg_policy_hands_over_absolute_paths() {
    let daemon = Daemon::new("reg", [ok(MOUNT)]);
    let ran = daemon.run(&[
        "reg-policy",
        "/mnt/m/",
        "/x/p.so",
        "length=4096",
        "b=c=d",
        "--cgroup",
        "/sys/fs/cgroup/a",
    ]);
    assert_eq!(
        ran.done(),
        "/mnt/m: shift 1 is running, worker 77, with length=4096\n"
    );
    assert_eq!(
        daemon.asked(),
        [r#"{"do":"reg-policy","mount":"/mnt/m","library":"/x/p.so","settings":{"b":"c=d","length":"4096"},"cgroup":"/sys/fs/cgroup/a"}"#.to_owned() + "\n"]
    );

    let daemon = Daemon::new("reg-here", [ok(MOUNT)]);
    let mut command = ppcctl();
    command
        .current_dir("/usr")
        .arg("--socket")
        .arg(&daemon.socket);
    command.args(["reg-policy", "lib", "./p.so"]);
    Ran::of(&mut command).done();
    let asked = daemon.asked().concat();
    // Debian's /usr/lib is a directory, so no link is followed.
    assert!(
        asked.contains(r#""mount":"/usr/lib","library":"/usr/p.so""#),
        "{asked}"
    );
}

#[test]
fn reg_policy_finds_names() {
    let directory = scratch("names");
    fs::create_dir(&directory).expect("a free name");
    fs::write(directory.join("eager.so"), "").expect("a scratch file");
    let daemon = Daemon::new("reg-name", [ok(MOUNT)]);
    let mut command = ppcctl();
    command.env(
        "PPC_POLICY_PATH",
        format!("/nowhere:{}", directory.display()),
    );
    command.arg("--socket").arg(&daemon.socket);
    command.args(["reg-policy", "/mnt/m", "eager"]);
    Ran::of(&mut command).done();
    let asked = daemon.asked().concat();
    let library = format!(r#""library":"{}/eager.so""#, directory.display());
    assert!(asked.contains(&library), "{asked}");
    fs::remove_dir_all(directory).expect("it was just there");

    run(&["reg-policy", "/mnt/m", "no-such-policy"]).failed(
        4,
        &[
            "There is no no-such-policy.so in ",
            // After `make tools` those beside the program come first.
            "/usr/lib/ppc; name the directory",
            "./no-such-policy.so",
            "PPC_POLICY_PATH",
        ],
    );
}

#[test]
fn settings_are_checked_before_the_daemon_is_asked() {
    for (arguments, parts) in [
        (&["set", "/m", "length"][..], &["use length=VALUE"][..]),
        (
            &["reg-policy", "/m", "/p.so", "length"],
            &["use length=VALUE"],
        ),
        (&["set", "/m", "=1"], &["the key is missing"]),
        (&["set", "/m"], &["KEY=VALUE", "Usage:"]),
        (
            &["set", "/m", "a=1", "a=2"],
            &["a is set twice, to 1 and to 2"],
        ),
        (&["frob"], &["unrecognized subcommand"]),
        (
            &["events", "/m", "--kind", "mis"],
            &["invalid value 'mis'", "miss"],
        ),
        (&[], &["Usage:"]),
    ] {
        run(arguments).failed(2, parts);
    }
}

#[test]
fn rm_and_set_tell_what_became_of_the_mount() {
    let daemon = Daemon::new("rm-set", [ok(NATIVE), ok(MOUNT)]);
    let ran = daemon.run(&["rm-policy", "/mnt/n"]);
    assert_eq!(ran.done(), "/mnt/n: no policy, the kernel decides\n");
    let ran = daemon.run(&["set", "/mnt/m", "length=4096"]);
    assert!(ran.done().ends_with("with length=4096\n"));
    let expected = [
        r#"{"do":"rm-policy","mount":"/mnt/n"}"#,
        r#"{"do":"configure","mount":"/mnt/m","settings":{"length":"4096"}}"#,
    ];
    assert_eq!(daemon.asked(), expected.map(|line| format!("{line}\n")));
}

#[test]
fn status_is_a_table() {
    let all = format!(r#"{{"version":"0.1.0","pid":5,"uptime_s":60,"mounts":[{MOUNT},{NATIVE}]}}"#);
    let one = format!(r#"{{"version":"0.1.0","pid":5,"uptime_s":60,"mounts":[{MOUNT}]}}"#);
    let none = r#"{"version":"0.1.0","pid":5,"uptime_s":60,"mounts":[]}"#;
    let daemon = Daemon::new("status", [ok(&all), ok(&one), ok(none)]);
    assert_eq!(
        daemon.run(&["status"]).done(),
        "\
cprtd 0.1.0, process 5, up 1 min

MOUNT   STATE    POLICY   BACKEND  WORKER  CRASHES
/mnt/m  running  shift 1  module       77        0
/mnt/n  native   -        -             -        -
"
    );
    let ran = daemon.run(&["status", "/mnt/m"]);
    assert!(ran.done().contains("  mirrors   /srv/m\n"), "{ran:?}");
    let ran = daemon.run(&["status"]);
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.out, "cprtd 0.1.0, process 5, up 1 min\n");
    assert!(ran.err.contains("try 'mount -t rfs LOWER MNT'"), "{ran:?}");
    let asked = daemon.asked();
    assert_eq!(asked[1], "{\"do\":\"status\",\"mount\":\"/mnt/m\"}\n");
}

#[test]
fn stats_are_a_table_and_may_be_watched() {
    let stats = |events| {
        let stats = format!(r#"{{"events":{events},"load_bytes":2097152}}"#);
        ok(&format!(
            r#"[{{"path":"/mnt/m","policy":"shift","stats":{stats}}}]"#
        ))
    };
    let daemon = Daemon::new("stats", [stats(1234)]);
    let ran = daemon.run(&["stats"]);
    assert!(ran.done().starts_with("/mnt/m, shift\n"), "{ran:?}");
    assert!(
        ran.out
            .contains("1,234  events that the backend reported\n"),
        "{ran:?}"
    );
    assert!(ran.out.contains("2 MiB  bytes covered by loads"), "{ran:?}");
    daemon.asked();

    // The stream ends when the daemon does.
    let daemon = Daemon::new("watch", [stats(1), stats(1001), String::new()]);
    let ran = daemon.run(&["stats", "/mnt/m", "--watch"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let tables: Vec<_> = ran.out.split("\n\n").collect();
    assert_eq!(tables.len(), 2, "{ran:?}");
    assert!(
        !tables[0].contains("GAIN") && tables[1].contains("GAIN"),
        "{ran:?}"
    );
    assert!(!ran.out.contains('\x1b'), "{ran:?}");
    daemon.asked();
}

#[test]
fn metrics_are_status_and_counters_in_either_format() {
    let status = ok(&format!(
        r#"{{"version":"0.1.0","pid":1,"uptime_s":2,"mounts":[{MOUNT},{NATIVE}]}}"#
    ));
    let counted = ok(r#"[{"path":"/mnt/m","policy":"shift","stats":{"loaded_bytes":4096}}]"#);
    let daemon = Daemon::new("metrics", [&status, &counted].repeat(3));
    for (arguments, is_open) in [
        (&["metrics"][..], false),
        (&["metrics", "--openmetrics"], true),
    ] {
        let ran = daemon.run(arguments);
        let text = ran.done();
        let samples = metrics(text, is_open).unwrap_or_else(|why| panic!("{why}\n{text}"));
        let loaded = samples
            .iter()
            .find(|it| it.name == "ppc_loaded_bytes_total");
        let loaded = loaded.expect("a counter");
        assert_eq!(
            (loaded.labels["mount"].as_str(), loaded.value),
            ("/mnt/m", 4096.0)
        );
    }
    let ran = daemon.run(&["metrics", "--json"]);
    let json = ran.done();
    assert!(
        json.starts_with("\"# HELP ppc_build_info ") && json.ends_with("\\n\"\n"),
        "{json}"
    );
    assert_eq!(daemon.asked().len(), 6);
}

#[test]
fn top_gives_the_terminal_back_whatever_ends_it() {
    let status = ok(r#"{"version":"0.1.0","pid":1,"uptime_s":2,"mounts":[]}"#);
    let daemon = Daemon::new("top", [&status].repeat(64));
    daemon.run(&["top"]).failed(2, &["'ppcctl stats --watch'"]);
    let top = format!(
        "{} --socket {} top",
        env!("CARGO_BIN_EXE_ppcctl"),
        daemon.socket.display()
    );
    for end in [
        format!("(sleep 1; printf q) | script -qec '{top}' /dev/null"),
        format!("script -qec 'timeout --foreground -s TERM 1 {top}' /dev/null < /dev/null"),
    ] {
        let ran = std::process::Command::new("sh")
            .args(["-c", &end])
            .output()
            .expect("a shell");
        let text = String::from_utf8_lossy(&ran.stdout);
        let (entered, left) = (text.find("\x1b[?1049h"), text.rfind("\x1b[?1049l"));
        assert!(entered.is_some() && entered < left, "{end}: {text:?}");
    }
    // Not all of its answers have been asked for.
    fs::remove_file(&daemon.socket).expect("it was ours");
}

#[test]
fn events_are_filtered_and_counted() {
    let open = EVENT.replace("MISS", "OPEN");
    let other = EVENT.replace("a/b.gguf", "c");
    let by = EVENT.replace(r#""process":10"#, r#""process":12"#);
    let lost = EVENT
        .replace("MISS", "LOST")
        .replace(r#""count":1"#, r#""count":9"#);
    let stream = [EVENT, &open, &other, &by, &lost].map(ok).concat();
    let daemon = Daemon::new("events", vec![stream; 6]);

    let ran = daemon.run(&["events", "/mnt/m"]);
    assert_eq!(ran.code, Some(0));
    assert_eq!(ran.out.lines().count(), 6, "{ran:?}");
    assert!(
        ran.out
            .lines()
            .next()
            .is_some_and(|line| line.ends_with("FILE"))
    );
    assert!(ran.err.contains("cprtd ended the stream"), "{ran:?}");

    let ran = daemon.run(&["events", "/mnt/m", "--kind", "open"]);
    assert_eq!(ran.out.lines().count(), 2, "{ran:?}");
    assert!(ran.err.contains("9 events were lost"), "{ran:?}");
    let ran = daemon.run(&["events", "/mnt/m", "--process", "12", "--json"]);
    assert_eq!(ran.out, format!("{by}\n{lost}\n"));
    let ran = daemon.run(&[
        "events", "/mnt/m", "--file", "*.gguf", "--kind", "miss", "--count", "2",
    ]);
    assert_eq!(ran.done().lines().count(), 3);
    let ran = daemon.run(&["events", "/mnt/m", "--count", "9"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("after 5 of 9 events"), "{ran:?}");
    let ran = daemon.run(&["events", "/mnt/m", "--json", "--count", "1"]);
    assert_eq!(ran.done(), format!("{EVENT}\n"));
    daemon.asked();
}

#[test]
fn json_is_the_protocols_own() {
    let status =
        format!(r#"{{"version":"0.1.0","pid":5,"uptime_s":60,"mounts":[{MOUNT},{NATIVE}]}}"#);
    let daemon = Daemon::new(
        "json",
        [ok(MOUNT), ok(NATIVE), ok(MOUNT), ok(&status), ok("[]")],
    );
    for (arguments, expected) in COMMANDS.iter().zip([MOUNT, NATIVE, MOUNT, &status, "[]"]) {
        let ran = daemon.run(&[*arguments, &["--json"]].concat());
        assert_eq!(ran.done(), format!("{expected}\n"));
    }
    daemon.asked();
}

#[test]
fn every_command_reports_a_missing_daemon() {
    for arguments in COMMANDS {
        let words = [&["--socket", "/nowhere/control.sock"], arguments].concat();
        run(&words).failed(
            3,
            &["/nowhere/control.sock", "systemctl start cprtd", "--socket"],
        );
    }
    // A daemon that has ended and left its socket behind.
    let daemon = Daemon::new("gone", [ok("[]")]);
    daemon.run(&["stats", "--json"]).done();
    let socket = scratch("left");
    fs::rename(&daemon.socket, &socket).expect("a free name");
    fs::write(&daemon.socket, "").expect("for the daemon to remove");
    daemon.asked();
    let socket_text = socket.display().to_string();
    run(&["status", "--socket", &socket_text]).failed(3, &["systemctl start cprtd"]);
    fs::remove_file(socket).expect("it was just there");
}

#[test]
fn the_socket_comes_from_option_environment_or_configuration() {
    let config = scratch("config.toml");
    let daemon = Daemon::new("where", [ok("[]"), ok("[]"), ok("[]")]);
    let text = format!("socket = {:?}\ngroup = \"loaders\"\n", daemon.socket);
    fs::write(&config, text).expect("a scratch file");
    Ran::of(ppcctl().arg("stats").env("PPC_SOCKET", &daemon.socket));
    run(&["--config".as_ref(), config.as_os_str(), "stats".as_ref()]);
    let mut both = ppcctl();
    both.env("PPC_SOCKET", "/nowhere")
        .arg("stats")
        .arg("--socket")
        .arg(&daemon.socket);
    Ran::of(&mut both);
    assert_eq!(daemon.asked().len(), 3);

    fs::write(&config, "sokcet = 1\n").expect("a scratch file");
    let ran = run(&["--config".as_ref(), config.as_os_str(), "stats".as_ref()]);
    ran.failed(1, &["line 1", "unknown field `sokcet`"]);
    fs::remove_file(&config).expect("it was just there");
    let ran = run(&["--config".as_ref(), config.as_os_str(), "stats".as_ref()]);
    ran.failed(1, &["Reading ", "No such file"]);
}

#[test]
fn refusals_end_by_their_kind_and_name_the_remedy() {
    for (kind, code) in [
        ("invalid", 1),
        ("not-found", 3),
        ("untrusted", 4),
        ("policy", 4),
        ("failed", 1),
    ] {
        let daemon = Daemon::new(&format!("no-{kind}"), vec![refusal(kind); COMMANDS.len()]);
        for arguments in COMMANDS {
            let ran = daemon.run(arguments);
            ran.failed(code, &["ppcctl: No such thing; try another\n"]);
        }
        daemon.asked();
    }
}

#[test]
fn nonsense_from_the_daemon_is_shown() {
    for (name, answer, part) in [
        ("html", "<html>\n", "it begins with \"<html>\""),
        ("half", "{\"ok\":{\"ver", "in the middle of a line"),
        ("empty", "{}\n", "does not know this reply"),
        ("other", "{\"ok\":7}\n", "does not know this reply"),
        ("escape", "\x1b[2J\n", "\\u{1b}[2J"),
    ] {
        let daemon = Daemon::new(name, vec![answer; COMMANDS.len()]);
        for arguments in COMMANDS {
            daemon.run(arguments).failed(1, &[part]);
        }
        daemon.asked();
    }
    let daemon = Daemon::new("nothing", [""]);
    daemon.run(&["status"]).failed(
        1,
        &[
            "closed the connection without an answer",
            "systemctl status cprtd",
        ],
    );
    daemon.asked();
}

#[test]
fn a_closed_socket_names_the_group() {
    let daemon = Daemon::new("closed", [ok("[]")]);
    let closed = fs::Permissions::from_mode(0o000);
    fs::set_permissions(&daemon.socket, closed).expect("it is ours");
    let config = scratch("closed.toml");
    let text = format!("socket = {:?}\ngroup = \"loaders\"\n", daemon.socket);
    fs::write(&config, text).expect("a scratch file");
    let readable = fs::Permissions::from_mode(0o644);
    fs::set_permissions(&config, readable).expect("it is ours");
    let mut command = ppcctl();
    command.arg("--config").arg(&config).arg("stats");
    // Permissions do not apply to root.
    if fs::metadata(&config).expect("it is there").uid() == 0 {
        command.uid(65534).gid(65534);
    }
    match command.stdout(Stdio::null()).stderr(Stdio::null()).status() {
        Ok(_) => {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            Ran::of(&mut command).failed(
                1,
                &[
                    "only root and the group loaders may",
                    "usermod -aG loaders USER",
                ],
            );
        }
        Err(error) => skip(&format!(
            "other users may not run {}: {error}",
            env!("CARGO_BIN_EXE_ppcctl")
        )),
    }
    let open = fs::Permissions::from_mode(0o600);
    fs::set_permissions(&daemon.socket, open).expect("it is ours");
    daemon.run(&["stats"]);
    daemon.asked();
    fs::remove_file(config).expect("it was just there");
}

#[test]
fn a_reader_that_has_enough_ends_it_quietly() {
    let endless = ok(EVENT).repeat(200_000);
    let daemon = Daemon::new("pipe", [endless]);
    let mut child = ppcctl()
        .arg("--socket")
        .arg(&daemon.socket)
        .args(["events", "/mnt/m"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it was built");
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_line(&mut line).expect("a line");
    drop(out);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stderr, b"");
    daemon.asked();
}

#[test]
fn version_and_help_are_data() {
    let version = format!("ppcctl {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(run(&["--version"]).done(), version);
    for (arguments, part) in [
        (&["--help"][..], "Exit status:"),
        (&["reg-policy", "--help"], "PPC_POLICY_PATH"),
        (&["policy", "inspect", "--help"], "into a separate process"),
    ] {
        assert!(run(arguments).done().contains(part), "{part}");
    }
    assert!(!run(&["--help"]).done().contains("generate"));
}

#[test]
fn pages_and_completions_cover_every_command() {
    let directory = scratch("generated");
    run(&["generate".as_ref(), directory.as_os_str()]).done();
    for page in [
        "ppcctl",
        "ppcctl-reg-policy",
        "ppcctl-rm-policy",
        "ppcctl-set",
        "ppcctl-status",
        "ppcctl-stats",
        "ppcctl-metrics",
        "ppcctl-top",
        "ppcctl-events",
        "ppcctl-run",
        "ppcctl-warm",
        "ppcctl-keep",
        "ppcctl-keep-add",
        "ppcctl-keep-ls",
        "ppcctl-keep-show",
        "ppcctl-keep-rm",
        "ppcctl-drop",
        "ppcctl-verify",
        "ppcctl-doctor",
        "ppcctl-policy",
        "ppcctl-policy-inspect",
        "ppcctl-service-id",
        "ppcctl-template",
        "ppcctl-template-ls",
        "ppcctl-template-show",
        "ppcctl-template-verify",
        "ppcctl-template-rm",
        "ppcctl-template-diff",
        "ppcctl-template-synth",
        "ppcctl-start",
        "ppcctl-start-ls",
        "ppcctl-start-show",
        "ppcctl-start-verify",
        "ppcctl-start-rm",
        "ppcctl-start-replay",
        "ppcctl-start-record",
    ] {
        let path = directory.join("man").join(format!("{page}.1"));
        let text = fs::read_to_string(&path).expect(page);
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    let page = fs::read_to_string(directory.join("man/ppcctl.1")).expect("the page");
    assert!(page.contains("Exit status:"), "{page}");
    let pages = fs::read_dir(directory.join("man")).expect("a directory");
    assert_eq!(pages.count(), 36);
    for shell in ["bash/ppcctl", "zsh/_ppcctl", "fish/ppcctl.fish"] {
        let path = directory.join("completions").join(shell);
        let text = fs::read_to_string(path).expect(shell);
        assert!(text.contains("reg-policy"), "{shell}");
        assert!(!text.contains("generate"), "{shell}");
        assert!(text.contains("replay"), "{shell}");
    }
    fs::remove_dir_all(directory).expect("it was just there");
}

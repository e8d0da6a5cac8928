//! What is refused, with which message and which exit status.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use cprt::control::protocol::MountState;

use crate::case::{Case, scratch};
use crate::daemon::{Answer, Daemon, FAILED, NOTHING_THERE, REFUSED, USAGE, policy, test_policy};
use crate::mount::Mount;
use crate::outcome::{Outcome, ensure, ensure_eq};

pub(crate) const CASES: &[Case] = &[
    Case::new(
        "cprt_refusal_of_untrusted_libraries",
        40,
        of_untrusted_libraries,
    ),
    Case::new("cprt_refusal_of_no_policies", 40, of_no_policies),
    Case::new("cprt_refusal_by_the_policy", 40, by_the_policy),
    Case::new("cprt_refusal_of_unknown_mounts", 40, of_unknown_mounts),
    Case::new("cprt_refusal_of_configurations", 40, of_configurations),
    Case::new("cprt_refusal_of_other_users", 40, of_other_users),
    Case::new(
        "cprt_refusal_keeps_the_policy_before",
        40,
        keeps_the_policy_before,
    ),
    Case::new("cprt_refusal_of_a_second_daemon", 40, of_a_second_daemon),
];

#[track_caller]
fn refused(answer: &Answer, code: i32, words: &[&str]) -> Outcome {
    ensure_eq!(answer.code, code, "{answer:?}");
    let said = format!("{} {}", answer.output, answer.errors);
    for word in words {
        ensure!(said.contains(word), "{word:?} is missing in {said}");
    }
    Ok(())
}

/// A copy of a policy in its own folder.
fn copy(folder: &str) -> Outcome<PathBuf> {
    // Not below /tmp, which every user may write to.
    let folder = Path::new("/usr/lib/ppc/test").join(folder);
    fs::create_dir_all(&folder)?;
    let library = folder.join("shift.so");
    fs::copy(policy("shift"), &library)?;
    Ok(library)
}

fn of_untrusted_libraries() -> Outcome {
    let mount = Mount::new()?;
    let daemon = Daemon::start()?;
    let library = copy("untrusted")?;
    let folder = library.parent().unwrap_or(Path::new("/")).to_owned();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    let attempt = |words: &[&str]| -> Outcome {
        let answer = daemon.try_register(&mount.path, &library, &[])?;
        refused(&answer, REFUSED, words)
    };
    chown(&library, Some(1000), None)?;
    attempt(&["belongs to user 1000"])?;
    chown(&library, Some(0), None)?;
    mode(&library, 0o664)?;
    attempt(&["mode 664", "chmod go-w"])?;
    mode(&library, 0o644)?;
    mode(&folder, 0o777)?;
    attempt(&["mode 777"])?;
    mode(&folder, 0o755)?;
    chown(&folder, Some(1000), None)?;
    attempt(&["belongs to user 1000"])?;
    chown(&folder, Some(0), None)?;
    // A link to a library is as trusted as the library.
    let link = scratch().join("link.so");
    std::os::unix::fs::symlink(&library, &link)?;
    daemon.register(&mount, &link, &[])?;
    daemon.unregister(&mount)?;
    let below_tmp = scratch().join("shift.so");
    fs::copy(&library, &below_tmp)?;
    let answer = daemon.try_register(&mount.path, &below_tmp, &[])?;
    refused(&answer, REFUSED, &["/tmp", "can write to"])?;
    fs::remove_dir_all(folder)?;
    daemon.stop()
}

fn of_no_policies() -> Outcome {
    let mount = Mount::new()?;
    let daemon = Daemon::start()?;
    let attempt = |library: &Path, words: &[&str]| -> Outcome {
        let answer = daemon.try_register(&mount.path, library, &[])?;
        refused(&answer, REFUSED, words)
    };
    attempt(
        &test_policy("newer"),
        &["needs version 99", "supports versions up to 2"],
    )?;
    attempt(&test_policy("wrong_size"), &["damaged", "8 bytes"])?;
    attempt(
        Path::new("/lib/x86_64-linux-gnu/libc.so.6"),
        &["no ppc_policy"],
    )?;
    attempt(Path::new("/etc/passwd"), &["cannot be opened"])?;
    attempt(Path::new("/usr/lib/ppc"), &["is not a file"])?;
    attempt(&policy("missing"), &["No such file"])?;
    ensure_eq!(
        daemon.status(&mount)?.state,
        MountState::Native,
        "the state"
    );
    ensure_eq!(daemon.workers()?.len(), 0, "workers");
    daemon.stop()
}

fn by_the_policy() -> Outcome {
    let mount = Mount::new()?;
    let daemon = Daemon::start()?;
    let attempt = |name: &Path, setting: &[&str], words: &[&str]| -> Outcome {
        let answer = daemon.try_register(&mount.path, name, setting)?;
        refused(&answer, REFUSED, words)
    };
    attempt(
        &test_policy("init_fail"),
        &[],
        &["test-init-fail", "no template for the phase of the moon"],
    )?;
    attempt(
        &policy("shift"),
        &["lenght=4096"],
        &["unknown setting", "length=BYTES"],
    )?;
    attempt(&policy("shift"), &["length=-1"], &["not a number of bytes"])?;
    attempt(&policy("null"), &["a=b"], &["Unknown setting: a"])?;
    ensure_eq!(daemon.workers()?.len(), 0, "workers");
    // A policy without settings takes none while it runs.
    daemon.register(&mount, &policy("eager"), &[])?;
    let path = mount.path.display().to_string();
    let answer = daemon.run(&["set", &path, "path=x"])?;
    refused(&answer, REFUSED, &["takes no settings while it runs"])?;
    daemon.stop()
}

fn of_unknown_mounts() -> Outcome {
    let mount = Mount::new()?;
    let daemon = Daemon::start()?;
    let answer = daemon.try_register(Path::new("/tmp"), &policy("null"), &[])?;
    refused(&answer, NOTHING_THERE, &["/tmp"])?;
    for command in [
        ["rm-policy", "/tmp"],
        ["stats", "/tmp"],
        ["status", "/tmp"],
        ["events", "/tmp"],
        ["rm-policy", "/nowhere"],
    ] {
        refused(&daemon.run(&command)?, NOTHING_THERE, &[command[1]])?;
    }
    // A mount without a policy has none to remove.
    let path = mount.path.display().to_string();
    refused(
        &daemon.run(&["rm-policy", &path])?,
        NOTHING_THERE,
        &[&path, "has no policy"],
    )?;
    refused(
        &daemon.run(&["no-such-command"])?,
        USAGE,
        &["unrecognized subcommand 'no-such-command'"],
    )?;
    refused(
        &daemon.run(&["reg-policy", &path])?,
        USAGE,
        &["required", "Usage:"],
    )?;
    refused(
        &daemon.run(&["reg-policy", &path, "/x.so", "no-setting"])?,
        USAGE,
        &["use no-setting=VALUE"],
    )?;
    let nobody = daemon.socket().with_file_name("none.sock");
    let output = std::process::Command::new("/usr/bin/ppcctl")
        .args(["--socket", &nobody.display().to_string(), "status"])
        .output()?;
    ensure_eq!(
        output.status.code(),
        Some(NOTHING_THERE),
        "without a daemon"
    );
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(said.contains("is cprtd running?"), "{said}");
    daemon.stop()
}

fn of_configurations() -> Outcome {
    let socket = scratch().join("control.sock");
    let base = format!("socket = \"{}\"\n", socket.display());
    for (text, words) in [
        ("[memory]\ntreshold = 50\n", ["treshold", "cprt.toml"]),
        ("[memory]\nthreshold = 0\n", ["threshold", "cprt.toml"]),
        (
            "[loader]\nchunk = \"2 parsecs\"\n",
            ["parsecs", "cprt.toml"],
        ),
        ("sockets = \"/x\"\n", ["sockets", "cprt.toml"]),
    ] {
        let (status, said) = Daemon::fails(&format!("{base}{text}"))?;
        ensure!(!status.success(), "cprtd takes {text:?}");
        for word in words {
            ensure!(said.contains(word), "{word:?} is missing in {said}");
        }
        ensure!(!socket.exists(), "it listens anyway");
    }
    Ok(())
}

fn of_other_users() -> Outcome {
    let mount = Mount::new()?;
    let daemon = Daemon::start()?;
    // With a policy, the daemon has a state to keep.
    daemon.register(&mount, &policy("null"), &[])?;
    let socket = daemon.socket();
    let mode = socket.metadata()?.permissions().mode() & 0o777;
    ensure_eq!(mode & 0o007, 0, "the socket is open to all users: {mode:o}");
    // Even where other users can reach the socket.
    let scratch = scratch();
    fs::set_permissions(&scratch, fs::Permissions::from_mode(0o755))?;
    let state = scratch.join("state.json");
    let mode = state.metadata()?.permissions().mode() & 0o777;
    ensure_eq!(mode & 0o077, 0, "the state is open to others: {mode:o}");
    let output = std::os::unix::process::CommandExt::uid(
        &mut std::process::Command::new("/usr/bin/ppcctl"),
        65534,
    )
    .arg("--socket")
    .arg(&socket)
    .arg("status")
    .output()?;
    ensure_eq!(output.status.code(), Some(FAILED), "{output:?}");
    ensure_eq!(
        String::from_utf8_lossy(&output.stdout),
        "",
        "what another user hears"
    );
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(said.contains("only root"), "{said}");
    daemon.stop()
}

/// A library that is refused does not replace the running policy.
fn keeps_the_policy_before() -> Outcome {
    let mount = Mount::new()?;
    let daemon = Daemon::start()?;
    daemon.register(&mount, &policy("shift"), &[])?;
    for (library, words) in [
        (test_policy("newer"), "needs version 99"),
        (test_policy("wrong_size"), "damaged"),
        (policy("missing"), "No such file"),
    ] {
        let answer = daemon.try_register(&mount.path, &library, &[])?;
        refused(&answer, REFUSED, &[words])?;
    }
    let status = daemon.status(&mount)?;
    ensure_eq!(status.state, MountState::Running, "the state");
    let name = status.policy.map(|policy| policy.name);
    ensure_eq!(name.as_deref(), Some("shift"), "the policy");
    // One whose init fails may do so for a moment, as two policies cannot share the device. But afterwards one
    // policy has to be in charge.
    let answer = daemon.try_register(&mount.path, &test_policy("init_fail"), &[])?;
    refused(&answer, REFUSED, &["test-init-fail"])?;
    let status = daemon.wait_for(&mount, 10, "the policy before to be back", |status| {
        status.state == MountState::Running
    })?;
    let name = status.policy.map(|policy| policy.name);
    ensure_eq!(name.as_deref(), Some("shift"), "the policy");
    daemon.stop()
}

fn of_a_second_daemon() -> Outcome {
    let daemon = Daemon::start()?;
    let text = fs::read_to_string(scratch().join("cprt.toml"))?;
    let (status, said) = Daemon::fails(&text)?;
    ensure!(!status.success(), "two listen at one socket");
    ensure!(said.contains("control.sock"), "{said}");
    ensure_eq!(daemon.all()?.pid, daemon.pid(), "who listens there");
    daemon.stop()
}

//! Containers: made by `unshare`, as runtimes do it, and by a runtime.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How a command is contained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// A PID namespace of its own, and otherwise the test's own namespaces.
    Processes,
    /// Namespaces for processes, mounts and cgroups, and an overlayfs of two layers over the machine's root directory.
    Root,
    /// The same with a user namespace.
    Users,
    /// Made by runc, with this capability and no other, and such a root directory.
    Runc(&'static str),
    /// The same with `BPF`, `PERFMON` and the host's tracefs, and without perf, as on a Debian kernel with
    /// `kernel.perf_event_paranoid` at 3.
    Paranoid,
}

/// Mounts the root directory. Arguments: where, and the folder for its `/volume`.
const ROOT: &str = "set -e
    mount -t tmpfs none \"$1\"; cd \"$1\"; mkdir empty upper work root
    mount -t overlay none -o lowerdir=empty:/,upperdir=upper,workdir=work root
    mkdir root/volume root/before";

/// Enters the root directory, with the machine's devices and a `/proc` of its own.
const ENTER: &str = "mount --bind \"$2\" root/volume
    mount --rbind /dev root/dev; mount -t proc proc root/proc; mount -t sysfs -o ro sysfs root/sys
    shift 2
    cd root; pivot_root . before; umount -l before";

impl Container {
    /// Why this machine cannot have one, if it cannot.
    #[must_use]
    pub fn is_missing(self) -> Option<String> {
        let succeeds = |command: &mut Command| {
            let quiet = command.stdin(Stdio::null()).stderr(Stdio::null());
            quiet
                .stdout(Stdio::null())
                .status()
                .is_ok_and(|it| it.success())
        };
        if !succeeds(Command::new("unshare").args(["--mount", "--pid", "--fork", "true"])) {
            return Some("namespaces are for root".to_owned());
        }
        let is_runc = matches!(self, Self::Runc(_) | Self::Paranoid);
        (is_runc && !succeeds(Command::new("runc").arg("--version")))
            .then(|| "there is no runc".to_owned())
    }

    /// Whether it has a root directory of its own, with the volume at `/volume`.
    #[must_use]
    pub const fn has_root(self) -> bool {
        !matches!(self, Self::Processes)
    }

    /// A command in the container. `place` is an empty folder to build it in; the container shows `volume`.
    ///
    /// # Panics
    ///
    /// The place cannot be written to.
    #[must_use]
    pub fn command(self, place: &Path, volume: &Path, words: &[&OsStr]) -> Command {
        let script = match self {
            Self::Processes => "shift 2; exec \"$@\"".to_owned(),
            Self::Root => format!("{ROOT}\n{ENTER}\nexec \"$@\""),
            Self::Users => {
                format!("{ROOT}\n{ENTER}\nexec unshare --user --map-root-user --cgroup \"$@\"")
            }
            Self::Runc(_) | Self::Paranoid => return self.by_runc(place, volume, words),
        };
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        if self == Self::Root {
            command.arg("--cgroup");
        }
        command.args(["sh", "-c", &script, "sh"]);
        command.args([place, volume]).args(words);
        command
    }

    fn by_runc(self, place: &Path, volume: &Path, words: &[&OsStr]) -> Command {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        const TRACEFS: &str = ", { \"destination\": \"/sys/kernel/tracing\", \"type\": \"bind\",
        \"source\": \"/sys/kernel/tracing\", \"options\": [\"rbind\", \"ro\"] }";
        const REFUSED: &str =
            "\"seccomp\": { \"defaultAction\": \"SCMP_ACT_ALLOW\", \"syscalls\": [
        { \"names\": [\"perf_event_open\"], \"action\": \"SCMP_ACT_ERRNO\", \"errnoRet\": 13 }] },";

        let (allowed, tracefs, refused) = match self {
            Self::Runc(capability) => (vec![capability], "", ""),
            _ => (vec!["CAP_BPF", "CAP_PERFMON"], TRACEFS, REFUSED),
        };

        let bundle = place.with_extension("bundle");
        fs::create_dir_all(&bundle).expect("a folder for runc");
        let text = |word: &OsStr| format!("{:?}", word.to_string_lossy());
        let arguments: Vec<_> = words.iter().copied().map(text).collect();
        let sets = ["bounding", "effective", "permitted"];
        let capabilities = sets.map(|set| format!("\"{set}\": {allowed:?}"));
        let spaces = ["pid", "mount", "ipc", "uts"].map(|kind| format!("{{\"type\": \"{kind}\"}}"));
        let environment = ["PATH", "PPC_POLICY_PATH"].map(|name| {
            let value = std::env::var_os(name).unwrap_or_else(OsString::new);
            format!("\"{name}={}\"", value.to_string_lossy())
        });
        let config = format!(
        "{{ \"ociVersion\": \"1.0.2\",
            \"process\": {{ \"user\": {{ \"uid\": 0, \"gid\": 0 }}, \"cwd\": \"/\",
                \"args\": [{}], \"env\": [{}], \"capabilities\": {{ {} }} }},
            \"root\": {{ \"path\": {} }},
            \"mounts\": [
                {{ \"destination\": \"/proc\", \"type\": \"proc\", \"source\": \"proc\" }},
                {{ \"destination\": \"/dev\", \"type\": \"tmpfs\", \"source\": \"tmpfs\" }},
                {{ \"destination\": \"/sys\", \"type\": \"sysfs\", \"source\": \"sysfs\", \"options\": [\"ro\"] }},
                {{ \"destination\": \"/volume\", \"type\": \"bind\", \"source\": {}, \"options\": [\"rbind\"] }} {tracefs} ],
            \"linux\": {{ {refused} \"namespaces\": [{}] }} }}",
        arguments.join(", "),
        environment.join(", "),
        capabilities.join(", "),
        text(place.join("root").as_os_str()),
        text(volume.as_os_str()),
        spaces.join(", ")
    );
        fs::write(bundle.join("config.json"), config).expect("a file for runc");
        let number = NUMBER.fetch_add(1, Relaxed);
        let name = format!("ppc-test-{}-{number}", std::process::id());
        let mut command = Command::new("unshare");
        let script = format!(
            "mount -t tracefs none /sys/kernel/tracing\n{ROOT}\nexec runc run --bundle \"$2\" \"$3\""
        );
        command.args(["--mount", "sh", "-c", &script, "sh"]);
        command.args([place, &bundle]).arg(name);
        command
    }
}

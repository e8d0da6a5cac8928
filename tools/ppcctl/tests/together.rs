//! Services beside each other: `ppcctl run` for several of them at once, on a disk of the test's own that counts what
//! it delivers. Recording takes root and a kernel that reports all reads.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Ran, maio_or_skip, ppcctl};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;
use test_support::{Container, Folder, drop_cached, skip, skip_part, undisturbed, wait_for};

const MIB: u64 = 1 << 20;
/// The size of the disk; its file has holes.
const DISK: u64 = 768 * MIB;

/// A file system on a loop device, which counts what is read from it.
struct Disk {
    path: PathBuf,
    node: PathBuf,
}

impl Disk {
    /// `None`, with a line that says why, where there is no loop device.
    fn new(folder: &Folder) -> Option<Self> {
        let file = folder.path().join("disk");
        let made = fs::File::create(&file).and_then(|it| it.set_len(DISK));
        made.expect("a file of ours");
        let attached = said(
            Command::new("losetup")
                .args(["--find", "--show", "--direct-io=on"])
                .arg(&file),
        );
        let Some(node) = attached.map(PathBuf::from) else {
            skip("no loop device");
            return None;
        };
        let path = folder.path().join("at");
        fs::create_dir(&path).expect("ours");
        // From here on, dropping it takes it down.
        let disk = Self { path, node };
        let made = said(
            Command::new("mkfs.ext4")
                .args(["-q", "-F", "-m", "0"])
                .arg(&disk.node),
        );
        made.expect("a file system");
        let nothing = None::<&str>;
        let flags = MsFlags::MS_NOATIME;
        mount(Some(&disk.node), &disk.path, Some("ext4"), flags, nothing).expect("to mount it");
        Some(disk)
    }

    /// Where the kernel counts what it delivers.
    fn counters(&self) -> PathBuf {
        let name = self.node.file_name().expect("a name");
        Path::new("/sys/block").join(name).join("stat")
    }

    fn delivered(&self) -> u64 {
        delivered(&self.counters())
    }
}

/// Bytes read from a device so far.
fn delivered(counters: &Path) -> u64 {
    let text = fs::read_to_string(counters).expect("counters");
    let sectors = text
        .split_whitespace()
        .nth(2)
        .and_then(|it| it.parse::<u64>().ok());
    sectors.expect("a number") * 512
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = umount2(&self.path, MntFlags::MNT_DETACH);
        let _ = said(Command::new("losetup").arg("--detach").arg(&self.node));
    }
}

/// The output of a command that succeeds.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// A disk, and what the services leave behind.
struct Ground {
    // Dropped in this order: the disk is in the folder.
    disk: Disk,
    folder: Folder,
    maio: &'static Path,
}

/// What a service does, and where.
#[derive(Clone, Copy)]
struct Service<'a> {
    id: &'a str,
    /// Below the disk's root directory.
    directory: &'a str,
    /// `$0` is the disk.
    script: &'a str,
    container: Option<Container>,
    settings: &'a [&'a str],
}

impl<'a> Service<'a> {
    const fn new(id: &'a str, directory: &'a str, script: &'a str) -> Self {
        Self {
            id,
            directory,
            script,
            container: None,
            settings: &[],
        }
    }
}

impl Ground {
    /// `None`, with a line that says why, where nothing can be recorded.
    fn new(name: &str) -> Option<Self> {
        let maio = maio_or_skip()?;
        let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        let ground = Self {
            disk: Disk::new(&folder)?,
            folder,
            maio,
        };
        ground.write("probe/model.safetensors", &safetensors(MIB));
        let ran = ground.run(&Service::new("probe", "probe", "true"));
        if summary(&ran)["backend"] != "observe" {
            skip(&format!("tracepoints: {}", ran.err.trim_end()));
            return None;
        }
        Some(ground)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.disk.path.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("ours");
        fs::write(&path, bytes).expect("ours");
        path
    }

    /// A model of this size in two files.
    fn model(&self, name: &str, bytes: u64) {
        self.write(&format!("{name}/config.json"), b"{}");
        for number in 0..2 {
            let file = format!("{name}/{number}.safetensors");
            self.write(&file, &safetensors(bytes / 2));
        }
    }

    fn weights(&self, name: &str) -> [PathBuf; 2] {
        [0, 1].map(|number| self.disk.path.join(format!("{name}/{number}.safetensors")))
    }

    fn cached(&self, name: &str) -> u64 {
        self.weights(name).iter().map(|path| cached(path)).sum()
    }

    fn make_cold(&self, names: &[&str]) {
        for path in names.iter().flat_map(|name| self.weights(name)) {
            drop_cached(&path).expect("to drop it");
        }
    }

    /// A place below the disk's root directory, as a service sees it.
    fn seen(&self, service: &Service<'_>, name: &str) -> PathBuf {
        let root = service.container.map_or(self.disk.path.as_path(), |it| {
            if it.has_root() {
                Path::new("/volume")
            } else {
                &self.disk.path
            }
        });
        root.join(name)
    }

    /// `ppcctl run` for a service.
    fn command(&self, service: &Service<'_>) -> Command {
        let setting = |key: &str| format!("{key}={}", self.seen(service, key).display()).into();
        let mut words: Vec<OsString> = [
            env!("CARGO_BIN_EXE_ppcctl"),
            "run",
            "--json",
            "--service-id",
            service.id,
        ]
        .map(OsString::from)
        .to_vec();
        words.extend(["--policy".into(), self.maio.into()]);
        let own = service.settings.iter().map(OsString::from);
        let settings = [setting("store"), setting("leases"), "idle=1".into()];
        words.extend(
            settings
                .into_iter()
                .chain(own)
                .flat_map(|it| ["--set".into(), it]),
        );
        words.push(self.seen(service, service.directory).into());
        words.extend(["--", "sh", "-c", service.script].map(OsString::from));
        words.push(self.seen(service, "").into());
        let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        let mut command = match service.container {
            None => {
                let mut command = Command::new(words[0]);
                command.args(&words[1..]);
                command
            }
            Some(container) => {
                let place = self.folder.path().join(format!("place-{}", service.id));
                let _ = fs::create_dir(&place);
                container.command(&place, &self.disk.path, &words)
            }
        };
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, service: &Service<'_>) -> Ran {
        Ran::of(&mut self.command(service))
    }

    /// Runs services at the same time; returns how they ended, and how many bytes the disk has delivered.
    fn at_once(&self, services: &[Service<'_>]) -> (Vec<Ran>, u64) {
        let before = self.disk.delivered();
        let started = services
            .iter()
            .map(|it| self.command(it).spawn().expect("a process"));
        let started: Vec<Child> = started.collect();
        let ended: Vec<Ran> = started.into_iter().map(ended).collect();
        for (service, ran) in services.iter().zip(&ended) {
            assert_eq!(ran.code, Some(0), "{}: {ran:?}", service.id);
            assert!(summary(ran)["fault"].is_null(), "{}: {ran:?}", service.id);
        }
        (ended, self.disk.delivered() - before)
    }
}

fn ended(child: Child) -> Ran {
    let output = child.wait_with_output().expect("ours");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Ran {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// The bytes of a file that are in the page cache.
fn cached(path: &Path) -> u64 {
    let output = said(Command::new("fincore").args(["-bnoRES"]).arg(path));
    output.and_then(|it| it.parse().ok()).expect("util-linux")
}

/// One tensor of about this many bytes, in a file of exactly this size.
fn safetensors(bytes: u64) -> Vec<u8> {
    let data = bytes - 4096;
    let header =
        format!("{{\"w\":{{\"dtype\":\"U8\",\"shape\":[{data}],\"data_offsets\":[0,{data}]}}}}");
    let mut file = [&(4096_u64 - 8).to_le_bytes(), header.as_bytes()].concat();
    file.resize(4096, b' ');
    file.resize(usize::try_from(bytes).expect("small"), 7);
    file
}

/// The summary that `--json` writes as the last line of standard error.
fn summary(ran: &Ran) -> Value {
    let line = ran.err.lines().rfind(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// A framework takes its time between the configuration and the weights.
const READS_ALL: &str = "cat \"$0/m/config.json\" > /dev/null; sleep 0.3; cat \"$0\"/m/*.safetensors > /dev/null; sleep 0.5";
/// What the disk may deliver beside a model, for folders, inodes and templates.
const BESIDE: u64 = 2 * MIB;

#[test]
fn services_that_share_a_model_have_it_read_once() {
    const SIZE: u64 = 96 * MIB;

    let Some(ground) = Ground::new("together-share") else {
        return;
    };
    ground.model("m", SIZE);
    let containers = [
        [None, None],
        [None, Some(Container::Root)],
        [
            Some(Container::Processes),
            Some(Container::Runc("CAP_SYS_ADMIN")),
        ],
    ];
    for (number, containers) in (0..).zip(containers) {
        if let Some(why) = containers.iter().flatten().find_map(|it| it.is_missing()) {
            skip_part(&format!("{containers:?}: {why}"));
            continue;
        }
        let ids = ["a", "b"].map(|id| format!("{id}{number}"));
        let service = |at: usize| Service {
            container: containers[at],
            ..Service::new(&ids[at], "m", READS_ALL)
        };
        let services = [service(0), service(1)];
        for load in ["first", "second"] {
            let attempt = || {
                ground.make_cold(&["m"]);
                ground.at_once(&services).1
            };
            let most = SIZE * 103 / 100 + BESIDE;
            let read = undisturbed(attempt, |read| *read <= most);
            println!("{containers:?}, {load}: {read} of {SIZE}");
            assert!(
                read <= most && read >= SIZE * 9 / 10,
                "{containers:?}, {load}: {read} bytes of {SIZE}"
            );
        }
    }
}

#[test]
fn three_services_read_only_their_own_of_ten_models() {
    const SIZE: u64 = 40 * MIB;

    let Some(ground) = Ground::new("together-ten") else {
        return;
    };
    let names: Vec<String> = (0..10).map(|number| format!("models/m{number}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for name in &names {
        ground.model(name, SIZE);
    }
    let theirs = [names[1], names[4], names[7]];
    let script = |name: &str| {
        format!(
            "exec 3< \"$0/{name}/0.safetensors\"; cat \"$0/{name}/config.json\" > /dev/null; sleep 0.5; cat \"$0/{name}\"/*.safetensors > /dev/null; sleep 0.5"
        )
    };
    let scripts = theirs.map(script);
    for load in ["first", "second"] {
        let ids = ["x", "y", "z"];
        let service = |at: usize| Service::new(ids[at], "models", &scripts[at]);
        let services = [0, 1, 2].map(service);
        let attempt = || {
            ground.make_cold(&names);
            let (_, read) = ground.at_once(&services);
            let others = names.iter().filter(|name| !theirs.contains(name));
            (read, others.map(|name| ground.cached(name)).sum::<u64>())
        };
        let most = 3 * SIZE * 103 / 100 + BESIDE;
        let (read, others) = undisturbed(attempt, |(read, _)| *read <= most);
        assert!(read <= most, "{load}: {read} bytes for three of {SIZE}");
        // A header may have been looked at.
        assert!(
            others < MIB,
            "{load}: {others} bytes of the models of no service"
        );
    }
    let mut command = ppcctl();
    command
        .args(["template", "--json", "--store"])
        .arg(ground.disk.path.join("store"))
        .arg("ls");
    let all: Value = serde_json::from_str(Ran::of(&mut command).done()).expect("JSON");
    let mut services: Vec<&str> = all
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|it| it["service"].as_str())
        .collect();
    services.retain(|name| ["x.", "y.", "z."].iter().any(|id| name.starts_with(id)));
    assert_eq!(services.len(), 3, "one for each: {all}");
}

/// What the process of a service does that opens adapters long after its model: prints how much the disk delivers for
/// them while the model is not cached.
#[test]
#[ignore = "only as a helper of an_adapter_that_is_opened_at_run_time_brings_nothing_else"]
fn opens_adapters() {
    let Some(root) = std::env::var_os("TOGETHER_ROOT").map(PathBuf::from) else {
        return;
    };
    let counters = PathBuf::from(std::env::var_os("TOGETHER_COUNTERS").expect("a path"));
    fs::read(root.join("models/m/config.json")).expect("to read");
    let weights = [0, 1].map(|number| {
        let path = root.join(format!("models/m/{number}.safetensors"));
        let file = fs::File::open(&path).expect("the model");
        fs::read(path).expect("to read");
        file
    });
    // The load is over, and the process continues.
    std::thread::sleep(Duration::from_secs(4));
    for file in &weights {
        posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("to drop it");
    }
    let before = delivered(&counters);
    for adapter in ADAPTERS {
        fs::read(root.join(adapter)).expect("to read");
        std::thread::sleep(Duration::from_secs(1));
    }
    println!("DELIVERED {}", delivered(&counters) - before);
}

const ADAPTERS: [&str; 2] = [
    "models/adapter/adapter_model.safetensors",
    "models/m/small/adapter_model.safetensors",
];

#[test]
fn an_adapter_that_is_opened_at_run_time_brings_nothing_else() {
    const SIZE: u64 = 24 * MIB;

    let Some(ground) = Ground::new("together-adapter") else {
        return;
    };
    for name in ["models/m", "models/other"] {
        ground.model(name, 80 * MIB);
    }
    ground.write("models/adapter/adapter_config.json", b"{}");
    let adapters = ADAPTERS.map(|name| ground.write(name, &safetensors(SIZE)));
    let program = std::env::current_exe().expect("this program");
    let script = format!(
        "TOGETHER_ROOT=\"$0\" TOGETHER_COUNTERS='{}' exec '{}' --exact opens_adapters --ignored --nocapture",
        ground.disk.counters().display(),
        program.display()
    );
    for load in ["first", "second"] {
        ground.make_cold(&["models/m", "models/other"]);
        for path in &adapters {
            drop_cached(path).expect("to drop it");
        }
        let ran = ground.run(&Service::new("a", "models", &script));
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let number = ran
            .out
            .split("DELIVERED ")
            .nth(1)
            .and_then(|it| it.split_whitespace().next());
        let read: u64 = number.and_then(|it| it.parse().ok()).expect("a number");
        assert!(
            read <= 2 * SIZE + BESIDE,
            "{load}: {read} bytes for two adapters of {SIZE}: {ran:?}"
        );
    }
}

/// A memory cgroup of the test's own, below the one that it is in.
struct Group(PathBuf);

impl Group {
    /// `None`, with a line that says why, where there is none with a limit.
    fn new(limit: u64) -> Option<Self> {
        let home = cprt::machine::memory::Roots::default().home_of(std::process::id());
        let path = home.map(|home| home.join(format!("ppc-together-{}", std::process::id())));
        let made = path.filter(|path| fs::create_dir(path).is_ok()).map(Self);
        let limits = ["memory.max", "memory.limit_in_bytes"];
        let is_limited = |group: &Self| {
            let mut files = limits.iter().map(|name| group.0.join(name));
            files.any(|file| file.exists() && fs::write(file, limit.to_string()).is_ok())
        };
        let group = made.filter(is_limited);
        if group.is_none() {
            skip("no memory cgroup can be made");
        }
        group
    }

    /// The bytes that it pays for.
    fn used(&self) -> u64 {
        let names = ["memory.current", "memory.usage_in_bytes"];
        let mut texts = names
            .iter()
            .filter_map(|name| fs::read_to_string(self.0.join(name)).ok());
        texts
            .find_map(|text| text.trim().parse().ok())
            .expect("a number")
    }

    fn member(&self, command: &Command) -> Command {
        let mut member = Command::new("sh");
        let script = format!("echo $$ > '{}/cgroup.procs'; exec \"$@\"", self.0.display());
        member
            .args(["-c", &script, "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        member
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        member
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait_for("the end of its processes", || {
            fs::remove_dir(&self.0).is_ok().then_some(())
        });
    }
}

/// Two services in one container, say, whose models do not fit together: each has its part of the memory.
#[test]
fn services_with_different_models_stay_within_their_common_memory() {
    const SIZE: u64 = 256 * MIB;
    const LIMIT: u64 = 560 * MIB;
    /// Where loads stop, by default.
    const THRESHOLD: u64 = LIMIT / 100 * 80;

    let Some(ground) = Ground::new("together-memory") else {
        return;
    };
    let Some(group) = Group::new(LIMIT) else {
        return;
    };
    let names = ["m", "n"];
    for name in names {
        ground.model(name, SIZE);
    }
    let script = |name: &str| {
        format!(
            "cat \"$0/{name}/config.json\" > /dev/null; sleep 3; touch \"$0/reads\"; cat \"$0/{name}\"/*.safetensors > /dev/null; sleep 0.5"
        )
    };
    let scripts = names.map(script);
    let reads = ground.disk.path.join("reads");
    for load in ["first", "second"] {
        ground.make_cold(&names);
        let _ = fs::remove_file(&reads);
        let before = ground.disk.delivered();
        let start = |at: usize| {
            let service = Service::new(names[at], names[at], &scripts[at]);
            let mut member = group.member(&ground.command(&service));
            member.spawn().expect("a process")
        };
        let services = [0, 1].map(start);
        // What has been read no longer belongs to a service: it stays until the kernel needs the room, which may then
        // take pages that are yet to be read.
        let mut most = 0;
        wait_for("readers", || {
            let used = group.used();
            if reads.exists() {
                return Some(());
            }
            most = most.max(used);
            None
        });
        for (name, ran) in names.iter().zip(services.map(ended)) {
            assert_eq!(ran.code, Some(0), "{ran:?}");
            let summary = summary(&ran);
            assert_eq!(summary["stats"]["memory_limit"], LIMIT, "{name}: {summary}");
            let loaded = summary["stats"]["loaded_bytes"].as_u64();
            assert!(loaded > Some(SIZE / 8), "{name}: {summary}");
        }
        let read = ground.disk.delivered() - before;
        println!(
            "{load}: at most {most} bytes used of {LIMIT}, loads stop at {THRESHOLD}; {read} of {} read",
            2 * SIZE
        );
        assert!(
            most <= THRESHOLD + BESIDE,
            "{load}: {most} bytes used, loads are to stop at {THRESHOLD}"
        );
    }
}

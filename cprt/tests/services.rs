//! `[service.NAME]`: the daemon records what a service reads as it starts, and loads it ahead of the service the next
//! time. Recording takes root and a kernel that reports all reads; files, store and daemon are the test's own.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cprt::control::client::Client;
use cprt::control::protocol::{ServiceStatus, ServicesStatus, StartPhase, Status};
use cprt::control::start_name::start_name;
use maio::template::{Store, Template, this_node};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use test_support::{
    Container, Folder, TRUSTED, drop_cached, own_view, skip, undisturbed, wait_for,
};

/// The size of each file.
const SIZE: u64 = 512 << 10;

/// The folder of this build's MAIO, which each test sees at [`TRUSTED`], or why there is none.
fn policies() -> Result<&'static Path, &'static str> {
    static POLICIES: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let made = POLICIES.get_or_init(|| {
        if !geteuid().is_root() {
            return Err("starts are for root; run it as root".to_owned());
        }
        let here = std::env::current_exe().expect("a path");
        let built = here.with_file_name("libmaio.so");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("services");
        fs::create_dir_all(&folder).expect("it is ours");
        let library = folder.join("maio.so");
        fs::copy(&built, &library).map_err(|error| format!("{}: {error}", built.display()))?;
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).expect("it is ours");
        Ok(folder)
    });
    made.as_deref().map_err(String::as_str)
}

/// Lets one test at a time have a daemon. Each daemon receives every exec of the machine, including those of other
/// tests' services: nine daemons at once would be too late for starts as short as these.
static TURN: Mutex<()> = Mutex::new(());

/// A daemon, and files for services to read.
struct Ground {
    _turn: MutexGuard<'static, ()>,
    folder: Folder,
    /// A folder for the socket, whose path has to be short.
    place: Folder,
    daemon: Child,
}

impl Ground {
    /// Starts a daemon with this configuration; `None` where nothing can be recorded, after saying why.
    fn new(name: &str, config: impl Fn(&Path) -> String) -> Option<Self> {
        let policies = match policies() {
            Ok(policies) => policies,
            Err(why) => {
                skip(why);
                return None;
            }
        };
        if let Err(error) = own_view(policies) {
            skip(&format!("no mount namespace: {error}"));
            return None;
        }
        let ground = Self::with(name, Path::new(TRUSTED), config);
        let services = ground.services();
        if let Some(why) = services.off {
            skip(&why);
            return None;
        }
        Some(ground)
    }

    fn with(name: &str, policies: &Path, config: impl Fn(&Path) -> String) -> Self {
        // A test that failed has given up its turn.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // A temporary folder may be in memory, where reads never miss.
        let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        for number in 0..4_u8 {
            let file = folder.write(&format!("f{number}"), vec![number; 512 << 10]);
            drop_cached(&file).expect("to drop it");
        }
        let place = Folder::new(name);
        let own = format!(
            "socket = '{0}/socket'\nstate = '{0}/state.json'\nlearnt = '{0}/learnt.json'\nkept = '{0}/kept.json'\n",
            place.path().display()
        );
        let file = place.write("cprt.toml", own + &config(folder.path()));
        // Beside the built program there may be policies, which the daemon would find.
        let program = folder.path().join("cprtd");
        fs::hard_link(env!("CARGO_BIN_EXE_cprtd"), &program).expect("of one file system");
        let mut daemon = Command::new(program);
        daemon.arg("--config").arg(file);
        daemon.env("PPC_POLICY_PATH", policies);
        let daemon = daemon.spawn().expect("it was built");
        Self {
            _turn: turn,
            folder,
            place,
            daemon,
        }
    }

    /// The services in the daemon's status, once the daemon runs and knows them.
    fn services(&self) -> ServicesStatus {
        wait_for("the daemon", || self.status()?.services)
    }

    fn status(&self) -> Option<Status> {
        Client::new(self.place.path().join("socket"))
            .status(None)
            .ok()
    }

    fn service(&self, name: &str) -> Option<ServiceStatus> {
        self.services().known.into_iter().find(|it| it.name == name)
    }

    fn reload(&self, config: impl Fn(&Path) -> String) {
        let file = self.place.path().join("cprt.toml");
        let text = fs::read_to_string(&file).expect("it is there");
        let own = text.lines().take(4).map(|line| format!("{line}\n"));
        let own: String = own.collect();
        fs::write(&file, own + &config(self.folder.path())).expect("ours");
        let daemon = Pid::from_raw(self.daemon.id().try_into().expect("a process"));
        kill(daemon, Signal::SIGHUP).expect("it is there");
    }

    /// Makes a program that runs this script, under a name that no other program has.
    fn program(&self, name: &str, script: &str) -> PathBuf {
        let text = format!("#!/bin/sh\n{script}\n");
        let path = self.folder.write(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        path
    }

    fn file(&self, number: u8) -> PathBuf {
        self.folder.path().join(format!("f{number}"))
    }

    fn cached(&self, number: u8) -> u64 {
        cached(&self.file(number))
    }

    fn make_cold(&self, numbers: &[u8]) {
        for &number in numbers {
            drop_cached(&self.file(number)).expect("to drop it");
        }
    }

    fn template(&self, name: &str) -> Option<Template> {
        let store = Store::at(self.folder.path().join("store"));
        store.load(name, &this_node()).expect("a store")
    }

    /// The number of the last starts that read this file.
    fn readers(&self, name: &str, number: u8) -> usize {
        let template = self.template(name).expect("it is kept");
        let path = self.file(number);
        let is_file = |path_there: &str| Path::new("/").join(path_there) == path;
        let place = template.files.iter().position(|it| is_file(&it.path));
        let place = place.and_then(|it| u32::try_from(it).ok());
        let groups = template
            .groups
            .iter()
            .map(|it| it.extents().expect("sound"));
        groups
            .filter(|it| it.iter().any(|extent| Some(extent.file) == place))
            .count()
    }

    /// Waits until a start of a service by another process than `before` is recorded, and returns its process.
    fn under_way(&self, service: &str, before: u32) -> u32 {
        wait_for("a start", || {
            let last = self.service(service)?.last?;
            let is_recorded = last.phase == StartPhase::UnderWay;
            (last.process != before && is_recorded).then_some(last.process)
        })
    }

    /// Waits until the newest start of a service, by this process, is over, and returns the service's status.
    fn over(&self, service: &str, process: u32) -> ServiceStatus {
        wait_for("the end of a start", || {
            let status = self.service(service)?;
            let last = status.last.as_ref()?;
            let is_over = matches!(last.phase, StartPhase::Over | StartPhase::Failed);
            (last.process == process && is_over).then_some(status)
        })
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let daemon = Pid::from_raw(self.daemon.id().try_into().expect("a process"));
        let _ = kill(daemon, Signal::SIGTERM);
        let _ = self.daemon.wait();
    }
}

/// The number of bytes of a file that are in the page cache.
fn cached(path: &Path) -> u64 {
    let mut fincore = Command::new("fincore");
    fincore.args(["--bytes", "--noheadings", "--output", "RES"]);
    let ran = fincore.arg(path).output().expect("util-linux");
    let text = String::from_utf8(ran.stdout).expect("a number");
    text.trim().parse().expect("a number")
}

/// A service that waits for a line before it continues.
struct Running(Child, Option<ChildStdin>);

impl Running {
    fn start(program: &Path, arguments: &[&str]) -> Self {
        Self::by(Command::new(program), arguments)
    }

    fn by(mut command: Command, arguments: &[&str]) -> Self {
        let mut child = command
            .args(arguments)
            .stdin(Stdio::piped())
            .spawn()
            .expect("a script");
        let input = child.stdin.take();
        Self(child, input)
    }

    fn go_on(&mut self) {
        let input = self.1.as_mut().expect("its input");
        input.write_all(b"go\n").expect("it waits");
    }

    fn end(mut self) -> u32 {
        self.go_on();
        assert!(self.0.wait().expect("its end").success());
        self.0.id()
    }

    fn kill(mut self) -> u32 {
        self.0.kill().expect("ours");
        let _ = self.0.wait();
        self.0.id()
    }
}

fn config_of(service: &str, exe: &str) -> impl Fn(&Path) -> String {
    let (service, exe) = (service.to_owned(), exe.to_owned());
    move |folder| {
        format!(
            "[service.{service}]\nexe = '{exe}'\nsettings = {{ store = '{}/store' }}\n",
            folder.display()
        )
    }
}

#[test]
fn files_read_by_one_start_are_preloaded_at_the_next() {
    let Some(ground) = Ground::new("services-again", config_of("x", "cprt-again")) else {
        return;
    };
    let script = format!(
        "read line; cat '{}' '{}' > /dev/null",
        ground.file(1).display(),
        ground.file(2).display()
    );
    let program = ground.program("cprt-again", &script);
    let name = start_name(
        program.to_str().expect("plain"),
        &["--port".into(), "7".into()],
    );
    let first = Running::start(&program, &["--port", "1"]);
    let process = first.0.id();
    ground.under_way("x", 0);
    assert_eq!(ground.service("x").expect("it is known").running, [process]);
    assert_eq!(ground.cached(1), 0, "nothing is known of it");
    let first = first.end();
    let status = ground.over("x", first);
    let last = status.last.expect("a start");
    assert_eq!(last.start, name, "that of ppcctl run");
    assert_eq!((ground.readers(&name, 1), ground.readers(&name, 3)), (1, 0));
    // Both files are loaded while the service has read nothing but its script.
    let attempt = || {
        ground.make_cold(&[1, 2, 3]);
        let second = Running::start(&program, &["--port=2"]);
        let until = Instant::now() + Duration::from_secs(20);
        let both = || [ground.cached(1), ground.cached(2)];
        while both() != [SIZE; 2] && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (both, other) = (both(), ground.cached(3));
        let process = second.end();
        (both, other, ground.over("x", process))
    };
    let (both, other, status) = undisturbed(attempt, |(both, ..)| *both == [SIZE; 2]);
    assert_eq!((both, other), ([SIZE; 2], 0));
    let again = status.last.expect("a start");
    assert_eq!(again.start, name, "a port does not identify a start");
    assert!(again.loaded_bytes >= 2 * SIZE, "{again:?}");
    assert!(
        status.running.is_empty() && status.starts >= 2,
        "{:?}",
        status.running
    );
    assert!(ground.readers(&name, 1) >= 2);
    let totals = status.totals;
    assert!(totals.over >= 2 && totals.failed == 0, "{totals:?}");
    assert!(totals.loaded_bytes >= again.loaded_bytes, "{totals:?}");
    let phases = totals.beginning_us + totals.loading_us + totals.reading_us;
    assert!(phases <= totals.whole_us, "{totals:?}");
    assert!(phases * 100 >= totals.whole_us * 99, "{totals:?}");
}

/// A file of weights: one tensor.
fn safetensors(bytes: usize) -> Vec<u8> {
    let header = format!(
        "{{\"w\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[0,{bytes}]}}}}",
        bytes / 4
    );
    let length = header.len() as u64;
    [&length.to_le_bytes(), header.as_bytes(), &vec![7; bytes]].concat()
}

#[test]
fn a_model_that_is_named_is_loaded_before_it_is_opened() {
    let Some(ground) = Ground::new("services-model", config_of("m", "cprt-model")) else {
        return;
    };
    ground.folder.write("m/config.json", "{}");
    let weights = ground
        .folder
        .write("m/model.safetensors", safetensors(32 << 20));
    let size = weights.metadata().expect("it is there").len();
    let script = format!("read line; cat '{}' > /dev/null", weights.display());
    let program = ground.program("cprt-model", &script);
    let model = ground.folder.path().join("m");
    let attempt = || {
        drop_cached(&weights).expect("to drop it");
        let running = Running::start(&program, &["--model", model.to_str().expect("plain")]);
        let until = Instant::now() + Duration::from_secs(20);
        while cached(&weights) < size && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let found = cached(&weights);
        let process = running.end();
        ground.over("m", process);
        found
    };
    let found = undisturbed(attempt, |&found| found >= size);
    assert!(found >= size, "{found} of {size}");
}

#[test]
fn starts_that_die_half_way_or_loop_spoil_nothing() {
    let Some(ground) = Ground::new("services-dies", config_of("d", "cprt-dies")) else {
        return;
    };
    let read = |number| format!("cat '{}' > /dev/null", ground.file(number).display());
    let big = ground.folder.write("big", vec![7; 16 << 20]);
    let big = format!("cat '{}' > /dev/null", big.display());
    let script = format!("{}; read line; {}; {big}", read(0), read(2));
    let program = ground.program("cprt-dies", &script);
    let whole = Running::start(&program, &[]);
    // Either of the two processes may be reported first, so the second begins only now.
    ground.under_way("d", 0);
    let twice = Running::start(&program, &[]);
    let (first, second) = (whole.0.id(), twice.0.id());
    let status = wait_for("both", || ground.service("d").filter(|it| it.starts == 2));
    assert_eq!(status.running, [first, second]);
    assert!(
        status
            .left_out
            .is_some_and(|why| why.contains("in progress"))
    );
    whole.end();
    twice.end();
    let name = ground.over("d", first).last.expect("a start").start;
    assert_eq!(ground.readers(&name, 2), 1);
    let kept = ground.template(&name);
    let mut last = first;
    for _ in 0..2 {
        let dies = Running::start(&program, &[]);
        last = ground.under_way("d", last);
        assert_eq!(last, dies.0.id());
        dies.kill();
        let said = ground.over("d", last).last.expect("a start").said;
        assert!(said.is_some_and(|it| it.contains("ended early")));
    }
    assert_eq!(
        ground.template(&name),
        kept,
        "what died half-way is not kept"
    );
    let before = ground.service("d").expect("it is known").starts;
    for starts in before + 1..before + 4 {
        let dies = Running::start(&program, &[]);
        let status = wait_for("it", || {
            ground.service("d").filter(|it| it.starts == starts)
        });
        assert!(
            status
                .left_out
                .is_some_and(|why| why.contains("three times"))
        );
        dies.kill();
    }
    assert_eq!(ground.template(&name), kept);
}

#[test]
fn services_come_and_go_with_the_configuration() {
    let Some(ground) = Ground::new("services-reload", config_of("a", "cprt-reload-a")) else {
        return;
    };
    let programs = ["cprt-reload-a", "cprt-reload-b"].map(|it| ground.program(it, "read line"));
    ground.reload(config_of("b", "cprt-reload-b"));
    wait_for("the other", || ground.service("b"));
    assert!(ground.service("a").is_none());
    let [a, b] = programs.map(|program| Running::start(&program, &[]));
    wait_for("its start", || ground.service("b")?.last);
    // A running service is found, whenever it started.
    ground.reload(config_of("a", "cprt-reload-a"));
    let running = || ground.service("a").filter(|it| it.running == [a.0.id()]);
    assert_eq!(wait_for("what runs", running).starts, 0);
    ground.reload(config_of("b", "cprt-reload-b"));
    wait_for("what runs", || {
        ground.service("b").filter(|it| it.running == [b.0.id()])
    });
    // A configuration that cannot be read changes nothing.
    ground.reload(|_| "[service.b]\nno = 1\n".to_owned());
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(ground.service("b").expect("it stays").running, [b.0.id()]);
    ground.reload(|_| String::new());
    wait_for("none", || {
        ground.status().filter(|it| it.services.is_none())
    });
    let (a, b) = (a.end(), b.end());
    assert_ne!(a, b);
}

#[test]
fn daemon_unable_to_watch_starts_reports_why_and_runs() {
    if !geteuid().is_root() {
        return skip("starts are for root; run it as root");
    }
    let nowhere = Path::new("/nowhere");
    let ground = Ground::with("services-off", nowhere, config_of("a", "cprt-none"));
    let off = ground.services().off.expect("a reason");
    assert!(
        off.contains("maio") || off.contains("6.12") || off.contains("tracepoint"),
        "{off}"
    );
    assert!(ground.status().is_some());
}

#[test]
fn frequently_started_heavy_reader_is_learned() {
    let learn = |folder: &Path| format!("learn = true\n# {}\n", folder.display());
    let Some(ground) = Ground::new("services-learn", learn) else {
        return;
    };
    let much = ground.folder.write("much", vec![7; 65 << 20]);
    let program = ground.program(
        "cprt-learn",
        &format!("cat '{}' > /dev/null; read line", much.display()),
    );
    let other = ground.program("cprt-little", "read line");
    let little: Vec<_> = (0..3).map(|_| Running::start(&other, &[])).collect();
    let much: Vec<_> = (0..3).map(|_| Running::start(&program, &[])).collect();
    let name = start_name(program.to_str().expect("plain"), &[]);
    let status = wait_for("what is learned", || ground.service(&name));
    assert!(status.learnt && status.last.is_none(), "{status:?}");
    let all = ground.services().known;
    assert!(all.iter().all(|it| !it.name.contains("little")), "{all:?}");
    let written = fs::read_to_string(ground.place.path().join("learnt.json"));
    assert!(written.expect("it is written down").contains(&name));
    for running in little.into_iter().chain(much) {
        running.end();
    }
    let again = Running::start(&program, &[]);
    let process = again.0.id();
    wait_for("its start", || {
        ground
            .service(&name)?
            .last
            .filter(|it| it.process == process)
    });
    again.kill();
}

/// Runs a program in a container whose `/volume` is a folder of the test.
fn contained(container: Container, program: &Path, volume: &Path) -> Command {
    let place = volume.join("place");
    fs::create_dir_all(&place).expect("ours");
    container.command(&place, volume, &[program.as_os_str()])
}

#[test]
fn container_start_is_recorded_with_its_own_files() {
    is_known_in(Container::Users, "cprt-boxed");
}

#[test]
fn a_start_in_a_container_of_runc_is_known_as_well() {
    is_known_in(Container::Runc("CAP_SYS_CHROOT"), "cprt-runc");
}

fn is_known_in(container: Container, name: &str) {
    let Some(ground) = Ground::new(name, config_of("c", name)) else {
        return;
    };
    if let Some(why) = container.is_missing() {
        return skip(&why);
    }
    // One file comes from the root directory's layers, by chance under our path, and one from a volume.
    let script = format!(
        "read line; cat '{}' /volume/f2 > /dev/null",
        ground.file(1).display()
    );
    let program = ground.program(name, &script);
    let start = || Running::by(contained(container, &program, ground.folder.path()), &[]);
    let first = start();
    let process = ground.under_way("c", 0);
    assert_ne!(process, first.0.id());
    first.end();
    let status = ground.over("c", process);
    assert_eq!(status.left_out, None);
    let name = status.last.expect("a start").start;
    let outside = start_name(program.to_str().expect("plain"), &[]);
    assert_ne!(
        name, outside,
        "the same program in another image is another"
    );
    let template = ground.template(&name).expect("it is kept");
    let paths: Vec<_> = template.files.iter().map(|it| it.path.as_str()).collect();
    let own = ground.file(1);
    let own = own
        .strip_prefix("/")
        .expect("a path")
        .to_str()
        .expect("plain");
    assert!(
        paths.contains(&"volume/f2") && paths.contains(&own),
        "{paths:?}"
    );
    // The shell's own files lie in the container's layers, too.
    assert!(paths.iter().any(|it| it.contains("/libc.so")), "{paths:?}");
    let attempt = || {
        ground.make_cold(&[1, 2, 3]);
        let second = start();
        let until = Instant::now() + Duration::from_secs(20);
        let both = || [ground.cached(1), ground.cached(2)];
        while both() != [SIZE; 2] && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (both, other) = (both(), ground.cached(3));
        let process = ground.under_way("c", process);
        second.end();
        (both, other, ground.over("c", process))
    };
    let (both, other, status) = undisturbed(attempt, |(both, ..)| *both == [SIZE; 2]);
    assert_eq!((both, other), ([SIZE; 2], 0), "before it reads them");
    assert_eq!(status.last.expect("a start").start, name);
}

#[test]
fn the_model_of_a_container_is_found_on_its_volume() {
    let Some(ground) = Ground::new("services-volume", config_of("v", "cprt-volume")) else {
        return;
    };
    ground.folder.write("m/config.json", "{}");
    let weights = ground
        .folder
        .write("m/model.safetensors", safetensors(32 << 20));
    let size = weights.metadata().expect("it is there").len();
    let script = "read line; cat /volume/m/model.safetensors > /dev/null";
    let program = ground.program("cprt-volume", script);
    let attempt = || {
        drop_cached(&weights).expect("to drop it");
        let before = ground.service("v").and_then(|it| Some(it.last?.process));
        let command = contained(Container::Users, &program, ground.folder.path());
        let running = Running::by(command, &["--model=/volume/m"]);
        let process = ground.under_way("v", before.unwrap_or(0));
        let until = Instant::now() + Duration::from_secs(20);
        while cached(&weights) < size && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let found = cached(&weights);
        running.end();
        ground.over("v", process);
        found
    };
    let found = undisturbed(attempt, |&found| found >= size);
    assert!(found >= size, "{found} of {size}");
}

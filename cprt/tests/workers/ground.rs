//! A daemon for one test, with folders and mounts of its own.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cprt::control::client::Client;
use cprt::control::protocol::{MountState, PolicyStatus, Status};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use test_support::{Folder, LATEST, TRUSTED, compile, own_view, skip, wait_for};

/// The folder where policies are built, which each test sees at [`TRUSTED`].
fn policies() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("workers");
    fs::create_dir_all(&folder).expect("it is ours");
    folder
}

/// Makes a policy writable only by root, and returns the path under which the daemon finds it.
fn trusted(made: &Path) -> PathBuf {
    fs::set_permissions(made, fs::Permissions::from_mode(0o755)).expect("it is ours");
    Path::new(TRUSTED).join(made.file_name().expect("a name"))
}

/// The policy that reports its events, and loads what its settings say.
pub(crate) fn probe() -> &'static Path {
    static PROBE: OnceLock<PathBuf> = OnceLock::new();
    PROBE.get_or_init(|| {
        let source =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/runtime/policies/probe.c");
        let made = policies().join(format!("probe-{}.so", std::process::id()));
        let arguments = ["-shared", "-fPIC", "-std=c11", "-pthread"];
        assert!(compile("cc", &arguments, &source, &made), "a C compiler");
        trusted(&made)
    })
}

/// A daemon that runs or is yet to be started, and its folders.
pub(crate) struct Ground {
    folder: Folder,
    /// A folder for the socket, whose path has to be short.
    place: Folder,
    daemon: Option<Child>,
    environment: Vec<(&'static str, &'static str)>,
}

impl Ground {
    /// Enters a view of the file system that only this test's thread and its children have. `None` if that is not
    /// possible or there is no C compiler, after saying why.
    pub(crate) fn new(name: &str) -> Option<Self> {
        if !geteuid().is_root() {
            skip("workers of a daemon are for root; run it as root");
            return None;
        }
        if Command::new("cc").arg("--version").output().is_err() {
            skip("there is no C compiler");
            return None;
        }
        if let Err(error) = own_view(&policies()) {
            skip(&format!("no mount namespace: {error}"));
            return None;
        }
        // A temporary folder may be in memory, where reads never miss.
        let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        Some(Self {
            folder,
            place: Folder::new(name),
            daemon: None,
            environment: Vec::new(),
        })
    }

    /// Makes a folder below that of the test.
    pub(crate) fn directory(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let path = self.folder.path().join(name.as_ref());
        fs::create_dir_all(&path).expect("it is ours");
        path
    }

    /// Makes a file in the folder of policies.
    pub(crate) fn trusted(name: &str, bytes: &[u8]) -> PathBuf {
        let path = policies().join(format!("{}-{name}", std::process::id()));
        fs::write(&path, bytes).expect("it is ours");
        trusted(&path)
    }

    /// Sets a variable in the daemon's environment.
    pub(crate) fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.environment.push((name, value));
        self
    }

    /// Starts the daemon with this added to its configuration, and waits until it answers.
    pub(crate) fn start(self, config: &str) -> Self {
        let ground = self.start_by(config, None);
        wait_for("the daemon", || ground.status());
        ground
    }

    /// Starts the daemon with this added to its configuration, and with a service manager that listens at this socket.
    pub(crate) fn start_by(mut self, config: &str, manager: Option<&Path>) -> Self {
        let own = format!(
            "socket = '{0}/socket'\nstate = '{0}/state.json'\nlearnt = '{0}/learnt.json'\nkept = '{0}/kept.json'\n",
            self.place.path().display()
        );
        let file = self.place.write("cprt.toml", own + config);
        let log = fs::File::create(self.log()).expect("it is ours");
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_cprtd"));
        daemon.arg("--config").arg(file).stderr(log);
        daemon.envs(self.environment.iter().copied());
        daemon.envs(manager.map(|socket| ("NOTIFY_SOCKET", socket)));
        self.daemon = Some(daemon.spawn().expect("it was built"));
        self
    }

    fn log(&self) -> PathBuf {
        self.place.path().join("log")
    }

    /// What the daemon has logged.
    pub(crate) fn said(&self) -> String {
        fs::read_to_string(self.log()).unwrap_or_default()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.place.path().join("socket")
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.socket())
    }

    fn status(&self) -> Option<Status> {
        self.client().status(None).ok()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let daemon = self.daemon().expect("it was started").cast_signed();
        kill(Pid::from_raw(daemon), signal).expect("it is there");
    }

    /// Waits for the daemon to end successfully.
    pub(crate) fn ended(&mut self) {
        let mut daemon = self.daemon.take().expect("it was started");
        let status = daemon.wait().expect("it is ours");
        assert!(status.success(), "{status}: {}", self.said());
    }

    /// The worker of a directory, if it runs.
    pub(crate) fn worker(&self, directory: &Path) -> Option<u32> {
        let mounts = self.status()?.mounts;
        let found = mounts.into_iter().find(|it| it.path == directory)?;
        let policy = found.policy.filter(|_| found.state == MountState::Running);
        policy?.worker
    }

    /// The status of a directory's policy.
    pub(crate) fn policy(&self, directory: &Path) -> Option<PolicyStatus> {
        let mounts = self.status()?.mounts;
        mounts.into_iter().find(|it| it.path == directory)?.policy
    }

    fn daemon(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// Child processes of the daemon, including zombies.
    pub(crate) fn workers(&self) -> Vec<u32> {
        let Some(daemon) = self.daemon() else {
            return Vec::new();
        };
        let children = format!("/proc/{daemon}/task");
        let tasks = fs::read_dir(children).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|it| fs::read_to_string(it.path().join("children")).ok());
        let lists: Vec<_> = lists.collect();
        let numbers = lists.iter().flat_map(|it| it.split_whitespace());
        numbers.filter_map(|it| it.parse().ok()).collect()
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.said());
        }
        let Some(mut daemon) = self.daemon.take() else {
            return;
        };
        let process = Pid::from_raw(daemon.id().try_into().expect("a process"));
        let _ = kill(process, Signal::SIGTERM);
        let until = Instant::now() + LATEST;
        while daemon.try_wait().is_ok_and(|it| it.is_none()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        // Does not wait for a daemon that the kernel holds up.
        let _ = daemon.kill();
        let _ = daemon.try_wait();
    }
}

pub(crate) fn bind(what: &Path, at: &Path) {
    let nothing = None::<&str>;
    mount(Some(what), at, nothing, MsFlags::MS_BIND, nothing).expect("to bind it");
}

pub(crate) fn unbind(at: &Path) {
    umount2(at, MntFlags::MNT_DETACH).expect("it is mounted");
}

//! A daemon's workers on this machine: workers that hang, mounts that appear late, requests from members of its group.
//! The tests take root, and have mounts and folders of their own.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use cprt::control::protocol::{MountState, Settings};
use cprt::machine::memory::Roots;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use test_support::{Folder, LATEST, drop_cached, skip, wait_for};

use ground::{Ground, bind, unbind};
use hung::{Hung, Way};

mod ground;
mod hung;

/// How long stopping a worker may take, whatever its threads wait for.
const TO_STOP: Duration = Duration::from_secs(5);

fn observed(paths: &[(&Path, &str)]) -> String {
    let probe = ground::probe().display().to_string();
    let entries = paths.iter().map(|(path, settings)| {
        format!(
            "[mount.'{}']\npolicy = '{probe}'\nbackend = 'observe'\nsettings = {{ log = '0'{settings} }}\n",
            path.display()
        )
    });
    entries.collect()
}

/// Whether events of a reader below a directory arrive.
fn is_heard(ground: &Ground, directory: &Path, file: &Path) -> bool {
    drop_cached(file).expect("to drop it");
    fs::read(file).expect("to read it");
    let stats = ground.client().stats(Some(directory));
    stats.is_ok_and(|all| all.iter().any(|it| it.stats.events > 0))
}

#[test]
fn policy_starts_on_a_late_mount_and_on_a_remount() {
    let Some(ground) = Ground::new("workers-late") else {
        return;
    };
    let at = ground.directory("at");
    let other = ground.directory("other");
    fs::write(other.join("f"), vec![7; 1 << 20]).expect("a file");
    let ground = ground.start(&observed(&[(&at, "")]));
    let first = wait_for("the policy of the bare directory", || ground.worker(&at));
    let mut before = first;
    for time in ["later", "again"] {
        bind(&other, &at);
        let worker = wait_for(time, || {
            ground.worker(&at).filter(|worker| *worker != before)
        });
        wait_for("a reader's event", || {
            is_heard(&ground, &at, &at.join("f")).then_some(())
        });
        before = worker;
        unbind(&at);
        // The bare directory is configured as well, so it has a worker again.
        before = wait_for("the bare directory", || {
            ground.worker(&at).filter(|worker| *worker != before)
        });
    }
    // A policy removed by hand stays removed until something else is mounted there.
    ground.client().rm_policy(&at).expect("it is there");
    let elsewhere = ground.directory("elsewhere");
    bind(&other, &elsewhere);
    std::thread::sleep(Duration::from_millis(300));
    unbind(&elsewhere);
    assert!(ground.worker(&at).is_none());
    bind(&other, &at);
    wait_for("the next mount", || ground.worker(&at));
    unbind(&at);
}

#[test]
fn a_mount_around_the_directory_counts_too() {
    let Some(ground) = Ground::new("workers-around") else {
        return;
    };
    let (at, other) = (ground.directory("at/models"), ground.directory("other"));
    fs::create_dir(other.join("models")).expect("a folder");
    fs::write(other.join("models/f"), vec![7; 1 << 20]).expect("a file");
    let around = at.parent().expect("ours").to_owned();
    let ground = ground.start(&observed(&[(&at, "")]));
    let before = wait_for("the policy", || ground.worker(&at));
    bind(&other, &around);
    wait_for("another policy", || {
        ground.worker(&at).filter(|worker| *worker != before)
    });
    wait_for("a reader's event", || {
        is_heard(&ground, &at, &at.join("f")).then_some(())
    });
    unbind(&around);
}

/// Ends a worker while its loads wait for a file system that does not answer.
fn a_stop_is_bounded(name: &str, way: Way) {
    let Some(ground) = Ground::new(name) else {
        return;
    };
    let Some(hung) = Hung::mount(&ground, "hung") else {
        return;
    };
    let (other, at) = (ground.directory("other"), ground.directory("at"));
    let ground = ground.start(&observed(&[(&at, "")]));
    wait_for("the policy of the bare directory", || ground.worker(&at));
    let settings = [("log", "0"), ("load", "f")].map(|(key, value)| (key.into(), value.into()));
    let client = ground.client();
    let observe = Some("observe".parse().expect("a backend"));
    client
        .reg_policy(
            hung.path(),
            ground::probe(),
            &Settings::from(settings),
            None,
            observe,
        )
        .expect("it answers");
    wait_for("a load that waits", || {
        let stats = client.stats(Some(hung.path())).ok()?;
        (stats.first()?.stats.in_flight_bytes > 0).then_some(())
    });
    hung.answers(way, false);
    let worker = ground.worker(hung.path()).expect("it runs");
    std::thread::scope(|scope| {
        let removed = scope.spawn(|| {
            let since = Instant::now();
            let removed = ground.client().rm_policy(hung.path());
            (removed.map(drop), since.elapsed())
        });
        // Meanwhile, other mounts are not held up.
        std::thread::sleep(Duration::from_millis(100));
        let since = Instant::now();
        let before = ground.worker(&at);
        bind(&other, &at);
        wait_for("the policy of another mount", || {
            ground.worker(&at).filter(|worker| Some(*worker) != before)
        });
        let others = since.elapsed();
        assert!(others < TO_STOP, "others waited for {others:?}");
        let (removed, took) = removed.join().expect("no panic");
        removed.expect("to be removed");
        assert!(took < TO_STOP, "the stop took {took:?}");
    });
    hung.answers(way, true);
    wait_for("the process to be gone", || {
        let process = Path::new("/proc").join(worker.to_string());
        (!process.exists()).then_some(())
    });
    unbind(&at);
}

#[test]
fn a_stop_is_bounded_where_reads_are_not_answered() {
    a_stop_is_bounded("workers-reads", Way::Reads);
}

#[test]
fn a_stop_is_bounded_where_the_server_is_stopped() {
    a_stop_is_bounded("workers-stopped", Way::Stopped);
}

#[test]
fn a_directory_that_does_not_answer_holds_up_no_other() {
    let Some(ground) = Ground::new("workers-deaf") else {
        return;
    };
    let Some(hung) = Hung::mount(&ground, "a-hung") else {
        return;
    };
    let (other, at) = (ground.directory("other"), ground.directory("at"));
    hung.answers(Way::All, false);
    let ground = ground.start(&observed(&[(hung.path(), ""), (&at, "")]));
    let before = wait_for("the policy of another directory", || ground.worker(&at));
    bind(&other, &at);
    wait_for("the policy of another mount", || {
        ground.worker(&at).filter(|worker| *worker != before)
    });
    assert!(ground.worker(hung.path()).is_none());
    unbind(&at);
    hung.answers(Way::All, true);
    wait_for("the policy of what answers again", || {
        ground.worker(hung.path())
    });
}

/// A memory cgroup of the test's own, below the one that it is in.
struct Group(PathBuf);

impl Group {
    fn new() -> Option<Self> {
        let home = Roots::default().home_of(std::process::id());
        let path = home.map(|home| home.join(format!("cprt-workers-{}", std::process::id())));
        let made = path.filter(|path| fs::create_dir(path).is_ok());
        let is_counted = |path: &PathBuf| path.join("memory.stat").exists();
        if let Some(path) = &made
            && !is_counted(path)
        {
            let _ = fs::remove_dir(path);
        }
        let group = made.filter(is_counted).map(Self);
        if group.is_none() {
            skip("no memory cgroup can be made");
        }
        group
    }

    fn has(&self, process: u32) -> bool {
        let text = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        text.lines().any(|line| line == process.to_string())
    }

    /// Starts a process in the cgroup that reads the first line of a file and stays.
    fn reader(&self, file: &Path) -> Child {
        drop_cached(file).expect("to drop it");
        let script = format!(
            "echo $$ > '{}/cgroup.procs'; read line < '{}'; exec sleep 60",
            self.0.display(),
            file.display()
        );
        let reader = Command::new("sh").args(["-c", &script]).spawn();
        reader.expect("a shell")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

fn end(mut reader: Child) {
    let _ = reader.kill();
    let _ = reader.wait();
}

#[test]
fn a_worker_is_in_the_cgroup_that_pays_only_while_it_loads() {
    let Some(ground) = Ground::new("workers-guest") else {
        return;
    };
    let Some(group) = Group::new() else { return };
    let at = ground.directory("at");
    let file = at.join("f");
    fs::write(&file, "line\n".repeat(4 << 20)).expect("a file");
    let config = observed(&[(&at, ", ahead = '67108864'")]);
    let ground = ground.start(&format!("{config}[loader]\nbandwidth = '8 MiB'\n"));
    let first = wait_for("the policy", || ground.worker(&at));
    // On a busy machine, a miss may be lost.
    let enters = || {
        for _ in 0..5 {
            let reader = group.reader(&file);
            let until = Instant::now() + Duration::from_secs(5);
            while Instant::now() < until {
                let worker = ground.worker(&at).filter(|worker| group.has(*worker));
                if let Some(worker) = worker {
                    return (worker, reader);
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            end(reader);
        }
        panic!("it does not enter");
    };
    let (worker, reader) = enters();
    assert_eq!(worker, first);
    // Once all is loaded the worker is back, though the reader is still in the cgroup.
    wait_for("it to leave", || (!group.has(worker)).then_some(()));
    assert!(group.has(reader.id()));
    end(reader);
    // If it is killed together with the reader, as when a unit is stopped, the policy has not crashed.
    for _ in 0..4 {
        let (worker, reader) = enters();
        kill(Pid::from_raw(worker.cast_signed()), Signal::SIGTERM).expect("it is there");
        end(reader);
        wait_for("the next worker", || {
            ground.worker(&at).filter(|next| *next != worker)
        });
    }
    let policy = ground.policy(&at).expect("it runs");
    assert_eq!((policy.crashes, policy.last_fault), (0, None));
    // Once its readers are gone, the cgroup can be removed in the middle of a load.
    let (worker, reader) = enters();
    end(reader);
    wait_for("the cgroup to be empty", || fs::remove_dir(&group.0).ok());
    assert_eq!(ground.worker(&at), Some(worker));
}

#[test]
fn a_library_is_looked_at_each_time_it_is_loaded() {
    let Some(ground) = Ground::new("workers-trust") else {
        return;
    };
    let at = ground.directory("at");
    let library = Ground::trusted("own.so", &fs::read(ground::probe()).expect("it is built"));
    let ground = ground.start("");
    let observe = Some("observe".parse().expect("a backend"));
    let settings = Settings::from([("log".into(), "0".into())]);
    let client = ground.client();
    let registered = client.reg_policy(&at, &library, &settings, None, observe);
    registered.expect("it is root's alone");
    let end_worker = || {
        let worker = wait_for("a worker", || ground.worker(&at));
        kill(Pid::from_raw(worker.cast_signed()), Signal::SIGKILL).expect("it is there");
        worker
    };
    let first = end_worker();
    let second = wait_for("another worker", || {
        ground.worker(&at).filter(|worker| *worker != first)
    });
    std::os::unix::fs::chown(&library, Some(1234), None).expect("it is ours");
    assert_eq!(end_worker(), second);
    let failed = wait_for("it to be given up", || {
        let all = client.status(None).ok()?.mounts;
        let own = all.into_iter().find(|it| it.path == at)?;
        (own.state == MountState::Failed).then_some(own)
    });
    let reason = failed.reason.unwrap_or_default();
    assert!(reason.contains("belongs to user 1234"), "{reason}");
    fs::remove_file(library).expect("it is ours");
}

/// Sends a request as another user; returns the answer.
fn ask_as(user: u32, ground: &Ground, directory: &Path, setting: &str) -> String {
    let asked = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "asks", "--ignored", "--nocapture"])
        .env("CPRT_ASK", ground.socket())
        .env("CPRT_ASK_FOR", directory)
        .env("CPRT_ASK_BY", ground::probe())
        .env("CPRT_ASK_SETTING", setting)
        .uid(user)
        .gid(GROUP)
        .output()
        .expect("this program");
    let said = String::from_utf8_lossy(&asked.stdout).into_owned();
    let heard = said.lines().find_map(|line| line.split_once("HEARD "));
    heard.map_or_else(|| format!("{asked:?}"), |(_, heard)| heard.to_owned())
}

#[test]
#[ignore = "only as a helper of others"]
fn asks() {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let (Some(socket), Some(at), Some(library)) = (
        variable("CPRT_ASK"),
        variable("CPRT_ASK_FOR"),
        variable("CPRT_ASK_BY"),
    ) else {
        return;
    };
    let setting = std::env::var("CPRT_ASK_SETTING").expect("a setting");
    let (key, value) = setting.split_once('=').expect("a setting");
    let settings = Settings::from([(key.to_owned(), value.to_owned())]);
    let observe = Some("observe".parse().expect("a backend"));
    let heard = cprt::control::client::Client::new(socket)
        .reg_policy(&at, &library, &settings, None, observe)
        .map(|status| status.state);
    println!("HEARD {heard:?}");
}

/// The group `daemon`, which every system has.
const GROUP: u32 = 1;

#[test]
fn a_member_of_the_group_is_not_root() {
    let Some(ground) = Ground::new("workers-group") else {
        return;
    };
    let at = ground.directory("at");
    let victim = ground.directory("victim").join("written");
    let ground = ground.start("group = 'daemon'\n");
    let path = format!("record={}", victim.display());
    let heard = ask_as(65534, &ground, &at, &path);
    assert!(heard.contains("for root only"), "{heard}");
    assert!(!victim.exists(), "written as root");
    assert!(ground.worker(&at).is_none());
    let heard = ask_as(65534, &ground, &at, "log=0");
    assert!(heard.contains("Running"), "{heard}");
    let said = ground.said();
    assert!(said.contains("asked by user 65534, group 1"), "{said}");
    let heard = ask_as(0, &ground, &at, &path);
    assert!(heard.contains("Running") && victim.exists(), "{heard}");
}

#[test]
fn the_service_manager_hears_how_far_the_daemon_is() {
    let Some(ground) = Ground::new("workers-notify") else {
        return;
    };
    let at = ground.directory("at");
    let place = Folder::new("workers-notify-at");
    let manager = UnixDatagram::bind(place.path().join("socket")).expect("a socket");
    manager.set_read_timeout(Some(LATEST)).expect("a time");
    let hear = || {
        let mut bytes = [0; 256];
        let length = manager.recv(&mut bytes).expect("a message");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let name = place.path().join("socket");
    let mut ground = ground.start_by(&observed(&[(&at, "")]), Some(&name));
    assert!(hear().starts_with("READY=1"), "before there is a socket");
    assert!(ground.client().status(None).is_ok(), "it is ready");
    wait_for("the policy", || ground.worker(&at));
    ground.signal(Signal::SIGHUP);
    assert!(hear().starts_with("RELOADING=1"));
    assert!(hear().starts_with("READY=1"));
    let since = Instant::now();
    ground.signal(Signal::SIGTERM);
    assert!(hear().starts_with("STOPPING=1"));
    ground.ended();
    assert!(since.elapsed() < TO_STOP, "{:?}", since.elapsed());
}

#[test]
fn a_daemon_that_may_make_no_namespaces_mirrors_all_the_same() {
    let Some(ground) = Ground::new("workers-fuse") else {
        return;
    };
    if fs::File::open("/dev/fuse").is_err() {
        return skip("there is no /dev/fuse");
    }
    let at = ground.directory("at");
    fs::write(at.join("f"), "below").expect("a file");
    // As in a unit that restricts namespaces, the daemon can try nothing in a namespace.
    let ground = ground.with("PATH", "/nowhere").start("");
    let client = ground.client();
    let fuse = Some("fuse".parse().expect("a backend"));
    let settings = Settings::from([("log".into(), "0".into())]);
    let before = at.metadata().expect("it is there").dev();
    let registered = client.reg_policy(&at, ground::probe(), &settings, None, fuse);
    assert_eq!(registered.expect("to mirror").state, MountState::Running);
    assert_ne!(at.metadata().expect("the mirror").dev(), before);
    assert_eq!(fs::read(at.join("f")).expect("to read"), b"below");
    client.rm_policy(&at).expect("it is there");
    assert_eq!(at.metadata().expect("it is there").dev(), before);
}

#[test]
fn policy_that_cannot_be_loaded_leaves_no_mount_or_worker() {
    let Some(ground) = Ground::new("workers-slot") else {
        return;
    };
    let at = ground.directory("at");
    let bad = Ground::trusted("bad.so", b"no library");
    let ground = ground.start("");
    let client = ground.client();
    let observe = || Some("observe".parse().expect("a backend"));
    let refused = client.reg_policy(&at, &bad, &Settings::new(), None, observe());
    refused.expect_err("it is not a library");
    let status = client.status(Some(&at)).expect_err("there is nothing");
    assert!(status.to_string().contains("No rfs"), "{status}");
    let status = client.status(None).expect("a daemon");
    assert!(status.mounts.iter().all(|it| it.path != at));
    assert_eq!(ground.workers(), Vec::<u32>::new());
    // A policy that can be loaded is accepted afterwards.
    let probe: PathBuf = ground::probe().into();
    let taken = client.reg_policy(&at, &probe, &Settings::new(), None, observe());
    assert_eq!(taken.expect("to register").state, MountState::Running);
    assert!(ground.worker(&at).is_some());
}

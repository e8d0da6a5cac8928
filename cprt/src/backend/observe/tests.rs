//! Tests on the machine's file system, with readers that are further processes of this test binary. A
//! test that the kernel or this process's rights do not allow says why and is skipped.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use super::bpf::Bpf;
use super::perf::Perf;
use super::*;
use crate::machine::ranges::Ranges;
use crate::sys::testing::{self, Mapped, skip, skip_part, warm};

mod containers;
mod telling;

const MIB: u64 = 1 << 20;
/// How long to wait for anything, on a machine with much else to do.
const LATEST: Duration = Duration::from_secs(20);

/// A directory that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("cprt-observe-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("sub")).expect("a directory");
        Self(root)
    }

    /// Makes a file of which nothing is cached.
    fn file(&self, name: &str, length: u64) -> PathBuf {
        let path = self.0.join(name);
        let file = File::create(&path).expect("a file");
        let block = vec![7; 1 << 20];
        for at in (0..length).step_by(1 << 20) {
            let part = usize::try_from((length - at).min(MIB)).expect("a size");
            file.write_all_at(&block[..part], at).expect("to write");
        }
        file.sync_all().expect("to sync");
        drop_cached(&path);
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn drop_cached(path: &Path) {
    let file = File::open(path).expect("the file");
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("to drop");
}

type Opened = io::Result<Box<dyn RecordSource>>;

/// Runs a test with each source of records that opens; if none does, says why.
fn each_source(name: &str, test: impl Fn(&Folder, &(dyn Fn(&Folder) -> Observe + Sync))) {
    let layouts = match available::layouts() {
        Ok(layouts) if layouts.len() == Point::ALL.len() => layouts,
        Ok(_) => return skip("this kernel lacks tracepoints, which came with 6.12"),
        Err(error) => return skip(&format!("tracepoints: {error}")),
    };
    if !testing::lets_go(&std::env::temp_dir()) {
        return skip("the directory for temporary files keeps all pages");
    }
    let by_bpf = || -> Opened { Ok(Box::new(Bpf::open(&layouts)?)) };
    let by_both = || -> Opened { Ok(Box::new(Bpf::open_by_perf(&layouts)?)) };
    let by_perf = || -> Opened { Ok(Box::new(Perf::open(&layouts)?)) };
    let sources: [(&str, &(dyn Fn() -> Opened + Sync)); 3] =
        [("bpf", &by_bpf), ("both", &by_both), ("perf", &by_perf)];
    // A kernel of series 6 with type information has to run programs at the tracepoints; on others, the second
    // source is as good.
    if std::fs::read_to_string("/proc/sys/kernel/osrelease").is_ok_and(|it| it.starts_with("6."))
        && Path::new("/sys/kernel/btf/vmlinux").exists()
        && let Ok(bpf) = by_bpf()
    {
        assert_eq!(bpf.name(), "bpf", "programs run at the tracepoints");
    }
    let refused: Vec<_> = sources
        .iter()
        .filter_map(|(source, open)| Some(format!("by {source}: {}", open().err()?)))
        .collect();
    match refused.len() {
        0 => {}
        3 => return skip(&refused.join(", ")),
        _ => skip_part(&refused.join(", ")),
    }
    for (source, open) in sources {
        if open().is_err() {
            continue;
        }
        let folder = Folder::new(&format!("{name}-{source}"));
        test(&folder, &|folder| {
            let source = open().expect("once more");
            Observe::with(&folder.0, source, None, &layouts).expect("to observe")
        });
    }
}

/// Runs a test in a thread with private mounts, on an overlayfs that is stacked on a directory. Skips it
/// where that is not possible.
fn stacked(name: &str, test: impl Fn(&Folder) + Sync) {
    let below = Folder::new(&format!("{name}-below"));
    std::fs::create_dir_all(below.0.join("upper")).expect("a directory");
    std::fs::create_dir_all(below.0.join("work")).expect("a directory");
    std::fs::create_dir_all(below.0.join("lower/sub")).expect("a directory");
    let above = Folder::new(&format!("{name}-above"));
    let mounted = || -> nix::Result<()> {
        use nix::mount::{MsFlags, mount};

        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
        let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(None::<&Path>, "/", None::<&Path>, private, None::<&Path>)?;
        let [lower, upper, work] = ["lower", "upper", "work"].map(|name| below.0.join(name));
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            lower.display(),
            upper.display(),
            work.display()
        );
        let kind = Some("overlay");
        mount(
            kind,
            &above.0,
            kind,
            MsFlags::empty(),
            Some(options.as_str()),
        )
    };
    // The thread takes this one's name, under which skips are reported.
    let thread = std::thread::current().name().map(str::to_owned);
    let builder = std::thread::Builder::new().name(thread.unwrap_or_default());
    std::thread::scope(|scope| {
        let run = || {
            // The lower files are written before the overlayfs covers them.
            let lower = Folder(below.0.join("lower"));
            lower.file("sub/model", 8 * MIB);
            lower.file("changed", MIB);
            std::mem::forget(lower);
            match mounted() {
                Ok(()) => test(&above),
                Err(error) => skip(&format!("overlayfs: {error}")),
            }
        };
        builder.spawn_scoped(scope, run).expect("a thread");
    });
}

#[test]
fn overlayfs_files_are_observed_loaded_and_evicted() {
    each_source("stacked", |folder, open| {
        let name = folder
            .0
            .file_name()
            .and_then(|name| name.to_str())
            .expect("a name");
        stacked(name, |folder| {
            // A file that lies in the upper directory, with the inode number of the lower one.
            let changed = folder.0.join("changed");
            let file = OpenOptions::new()
                .append(true)
                .open(&changed)
                .expect("the file");
            file.write_all_at(&[1; 4096], MIB)
                .and_then(|()| file.sync_all())
                .expect("to write");
            drop_cached(&changed);
            let observe = open(folder);
            want(&observe, &[Kind::Miss, Kind::Touch]);
            let mut reader = Reader::new();
            for (name, length) in [("sub/model", 8 * MIB), ("changed", MIB + 4096)] {
                let file = observe.open(Path::new(name)).expect("its id");
                let path = folder.0.join(name);
                reader.does(&format!("read {} 0 {length} 65536", path.display()));
                let events = heard(&observe);
                for kind in [Kind::Miss, Kind::Touch] {
                    let told = union(&events, kind, file, reader.id());
                    assert_eq!(told, [(0, length)], "{name} {kind:?}");
                }
                let span = Span {
                    file,
                    offset: 0,
                    length,
                };
                warm_unheard(&observe, &path);
                assert_eq!(observe.resident(span).expect("to look"), length);
                reader.does(&format!("map {}", path.display()));
                reader.does(&format!("touch 0 {length}"));
                let events = heard(&observe);
                assert_eq!(
                    union(&events, Kind::Touch, file, reader.id()),
                    [(0, length)]
                );
                assert!(events.iter().all(|event| event.mmap));
                warm(&path);
                let evicted = observe.evict(span, false).expect("to evict");
                assert_eq!((evicted.dropped, evicted.kept), (length, 0), "{name}");
                let loaded = observe.load(span, How::default()).expect("to load");
                assert_eq!((loaded.done, loaded.fresh), (length, length), "{name}");
            }
        });
    });
}

/// A process that carries out orders, one on each line.
struct Reader {
    child: Killed,
    process: u32,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

const READER: &str = "CPRT_TEST_READS";

impl Reader {
    fn new() -> Self {
        Self::by(Command::new(std::env::current_exe().expect("this")))
    }

    /// Starts a reader in its own PID namespace, as in a container.
    fn contained() -> Self {
        let mut command = containers::unshare();
        command.arg(std::env::current_exe().expect("this"));
        let reader = Self::by(command);
        let (parent, list) = (reader.child.0.id(), Path::new("/proc"));
        let children = list.join(format!("{parent}/task/{parent}/children"));
        let text = std::fs::read_to_string(children).expect("its children");
        let process = text.trim().parse().expect("one child");
        Self { process, ..reader }
    }

    fn by(mut command: Command) -> Self {
        let mut child = command
            .args([
                "--exact",
                "backend::observe::tests::reader_helper_executes_its_orders",
                "--ignored",
                "--nocapture",
            ])
            .env(READER, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut reader = Self {
            process: child.id(),
            child: Killed(child),
            input,
            output,
        };
        reader.wait();
        reader
    }

    /// Gives an order and waits until it is carried out.
    fn does(&mut self, order: &str) {
        self.begins(order);
        self.wait();
    }

    fn begins(&mut self, order: &str) {
        writeln!(self.input, "{order}").expect("to tell it");
    }

    fn wait(&mut self) {
        let done = self.output.by_ref().map_while(std::result::Result::ok);
        assert!(
            done.into_iter().any(|line| line.ends_with("done")),
            "it has died"
        );
    }

    fn id(&self) -> u32 {
        self.process
    }
}

/// A process that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process of a `Reader`; otherwise does nothing. Orders: `read PATH FROM TO PIECE`, `exact` (the same
/// without readahead), `map PATH`, `touch FROM TO`, `close`.
#[test]
#[ignore = "only as a helper of others"]
fn reader_helper_executes_its_orders() {
    if std::env::var_os(READER).is_none() {
        return;
    }
    println!("done");
    let (mut mapped, mut opened) = (None, None);
    for line in io::stdin().lines().map_while(std::result::Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().expect("a number");
        match words[0] {
            "read" | "exact" => {
                let file = File::open(words[1]).expect("the file");
                if words[0] == "exact" {
                    let random = PosixFadviseAdvice::POSIX_FADV_RANDOM;
                    posix_fadvise(&file, 0, 0, random).expect("advice");
                }
                let mut buffer = vec![0; number(4)];
                let (mut at, end) = (number(2), number(3));
                while at < end {
                    let part = buffer.len().min(end - at);
                    file.read_exact_at(&mut buffer[..part], at as u64)
                        .expect("to read");
                    at += part;
                }
                opened = Some(file);
            }
            "map" => {
                let file = File::open(words[1]).expect("the file");
                mapped = Some(Mapped::new(&file).expect("a mapping"));
            }
            "touch" => {
                let mapped = mapped.as_ref().expect("a mapping");
                std::hint::black_box(mapped.sum(number(1)..number(2)));
            }
            _ => (mapped, opened) = (None, None),
        }
        println!("done");
    }
    drop((mapped, opened));
}

/// The events until it has been quiet for a while and the directory has been scanned, which is put off
/// if that was done recently.
fn heard(observe: &Observe) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        hear_until_quiet(observe, &mut events);
        if !observe.hearing.lock().expect("it").scans() {
            return events;
        }
    }
}

/// Takes events until a call some time after the last one finds none: time alone proves nothing
/// where threads wait for a CPU.
fn hear_until_quiet(observe: &Observe, events: &mut Vec<Event>) {
    const QUIET: Duration = Duration::from_millis(150);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                observe.interrupt();
            }
        });
        let mut last = Instant::now();
        loop {
            let (asked, before) = (Instant::now(), events.len());
            observe.events(events).expect("events");
            if events.len() > before {
                last = Instant::now();
            } else if asked.duration_since(last) > QUIET {
                break;
            }
        }
        over.store(true, Relaxed);
    });
}

/// Caches a whole file, and takes this process's own records of that, which would take room.
fn warm_unheard(observe: &Observe, path: &Path) {
    warm(path);
    observe.interrupt();
    observe.events(&mut Vec::new()).expect("events");
}

/// The ranges of a file that events of this kind and process cover.
fn union(events: &[Event], kind: Kind, file: FileId, process: u32) -> Vec<(u64, u64)> {
    let of = |event: &&Event| (event.kind, event.file, event.process) == (kind, file, process);
    let ranges = events
        .iter()
        .filter(of)
        .map(|event| event.offset..event.end());
    let union = ranges.collect::<Ranges>();
    union.iter().map(|range| (range.start, range.end)).collect()
}

fn want(observe: &Observe, kinds: &[Kind]) {
    observe
        .want(kinds.iter().copied().collect(), MIB)
        .expect("to want");
}

#[test]
fn opens_and_closes_are_reported_only_while_wanted() {
    each_source("opens", |folder, open| {
        let path = folder.file("sub/model", MIB);
        let observe = open(folder);
        if !observe.features().contain(Features::OPEN) {
            return skip("fanotify is not allowed");
        }
        want(&observe, &[Kind::Open, Kind::Close]);
        let mut reader = Reader::new();
        let process = reader.id();
        // Other tests start processes at any time, and these may be the last to close a file that was
        // being written here.
        let heard = || {
            let mut events = heard(&observe);
            events.retain(|event| event.process == process);
            events
        };
        reader.does(&format!("read {} 0 4096 4096", path.display()));
        let events = heard();
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].kind, events[0].length), (Kind::Open, MIB));
        reader.does("close");
        // A file made since.
        let new = folder.file("sub/new", 10);
        reader.does(&format!("read {} 0 10 4096", new.display()));
        let events: Vec<_> = heard()
            .into_iter()
            .map(|event| (event.kind, observe.path(event.file).expect("its path")))
            .collect();
        let expected = [
            (Kind::Close, "sub/model".into()),
            (Kind::Open, "sub/new".into()),
        ];
        assert_eq!(events, expected);
        want(&observe, &[Kind::Miss]);
        reader.does("close");
        assert_eq!(heard(), []);
    });
}

#[test]
fn hits_are_listened_to_from_an_open_on_if_that_is_enough() {
    each_source("rests", |folder, open| {
        let path = folder.file("model", MIB);
        let observe = open(folder);
        if !observe.features().contain(Features::OPEN | Features::TOUCH) {
            return skip("this kernel reports no hits, or fanotify is not allowed");
        }
        let listens = || observe.reads().on().contains(&Point::Get);
        warm(&path);
        observe.rests_until_open(true);
        want(&observe, &[Kind::Miss, Kind::Touch]);
        assert!(listens(), "a reader may have had it open");
        std::thread::sleep(reads::CALM);
        assert_eq!(heard(&observe), []);
        assert!(!listens());
        let mut reader = Reader::new();
        reader.does(&format!("read {} 0 4096 4096", path.display()));
        heard(&observe);
        assert!(listens(), "it has been opened");
        reader.does(&format!("read {} 0 4096 4096", path.display()));
        let touched = |event: &Event| event.kind == Kind::Touch && event.process == reader.id();
        assert!(heard(&observe).iter().any(touched));
        observe.rests_until_open(false);
        want(&observe, &[Kind::Miss, Kind::Touch]);
        std::thread::sleep(reads::CALM);
        heard(&observe);
        assert!(listens(), "now hits are wanted in any case");
    });
}

#[test]
fn old_new_and_moved_files_are_identified_among_thousands() {
    const COUNT: u64 = 3000;
    each_source("many", |folder, open| {
        for number in 0..COUNT {
            std::fs::write(folder.0.join(format!("sub/{number}")), b"x").expect("a file");
        }
        let observe = open(folder);
        assert_eq!(observe.table().len() as u64, COUNT);
        want(&observe, &[Kind::Miss, Kind::Touch]);
        let later = folder.0.join("sub/later");
        std::fs::write(&later, b"later").expect("a file");
        std::fs::rename(folder.0.join("sub/7"), folder.0.join("moved")).expect("to move");
        heard(&observe);
        let mut reader = Reader::new();
        let names = ["sub/0", "sub/2999", "sub/1500", "moved", "sub/later"];
        for name in names {
            let path = folder.0.join(name);
            File::open(&path)
                .and_then(|file| file.sync_all())
                .expect("to sync");
            drop_cached(&path);
            reader.does(&format!("read {} 0 1 1", path.display()));
        }
        let events = heard(&observe);
        for kind in [Kind::Miss, Kind::Touch] {
            let told = events.iter().filter(|event| event.kind == kind);
            let mut paths: Vec<_> = told
                .map(|event| {
                    observe
                        .path(event.file)
                        .expect("its path")
                        .display()
                        .to_string()
                })
                .collect();
            paths.sort();
            let mut expected = names.map(str::to_owned);
            expected.sort();
            assert_eq!(paths, expected, "{kind:?}");
        }
    });
}

#[test]
fn a_file_that_is_replaced_or_gone_is_stale() {
    each_source("stale", |folder, open| {
        let path = folder.file("model", MIB);
        let observe = open(folder);
        let file = observe.open(Path::new("model")).expect("its id");
        std::fs::rename(&path, folder.0.join("sub/moved")).expect("to move");
        assert_eq!(
            observe.path(file).expect("its path"),
            Path::new("sub/moved")
        );
        assert_eq!(observe.info(file).expect("its info").size, MIB);
        std::fs::remove_file(folder.0.join("sub/moved")).expect("to remove");
        let other = folder.file("sub/moved", 10);
        assert!(matches!(observe.info(file), Err(Fault::Stale)));
        let errno = observe.path(file).map_err(|fault| fault.errno());
        assert_eq!(errno, Err(libc::ENOENT), "it is held, and has no path");
        observe.close(file).expect("to close");
        assert!(matches!(observe.path(file), Err(Fault::Stale)));
        assert!(observe.close(file).is_err());
        let name = other.strip_prefix(&folder.0).expect("below it");
        let file = observe.open(name).expect("the other one");
        assert_eq!(observe.info(file).expect("its info").size, 10);
        std::fs::remove_dir_all(&folder.0).expect("to remove");
        let since = Instant::now();
        while observe.events(&mut Vec::new()).expect("events") != Flow::Ended {
            assert!(since.elapsed() < LATEST);
        }
    });
}

#[test]
fn a_reader_that_is_killed_is_forgotten_and_files_grow() {
    each_source("killed", |folder, open| {
        let path = folder.file("model", 64 * MIB);
        let observe = open(folder);
        let file = observe.open(Path::new("model")).expect("its id");
        want(&observe, &[Kind::Miss, Kind::Touch, Kind::Progress]);
        let mut reader = Reader::new();
        reader.does(&format!("map {}", path.display()));
        reader.begins(&format!("touch 0 {}", 64 * MIB));
        std::thread::sleep(Duration::from_millis(3));
        drop(reader);
        let events = heard(&observe);
        assert!(events.iter().all(|event| event.end() <= 64 * MIB));
        let since = Instant::now();
        while observe.hearing.lock().expect("it").due().is_some() {
            assert!(since.elapsed() < LATEST, "it is still looked at");
            observe.events(&mut Vec::new()).expect("events");
        }
        let growing = OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("the file");
        growing
            .write_all_at(&[1; 4096], 64 * MIB)
            .expect("to write");
        growing.sync_all().expect("to sync");
        heard(&observe);
        let mut reader = Reader::new();
        reader.does(&format!(
            "read {} {} {} 4096",
            path.display(),
            64 * MIB,
            64 * MIB + 4096
        ));
        let touched = union(&heard(&observe), Kind::Touch, file, reader.id());
        assert_eq!(touched, [(64 * MIB, 64 * MIB + 4096)]);
    });
}

const OBSERVER: &str = "CPRT_TEST_OBSERVES";

/// A process that observes a directory until it is killed; otherwise does nothing.
#[test]
#[ignore = "only as a helper of others"]
fn observer_helper_runs_until_killed() {
    let Some(root) = std::env::var_os(OBSERVER) else {
        return;
    };
    let observe = Observe::open(Path::new(&root)).expect("to observe");
    want(&observe, &[Kind::Miss, Kind::Touch, Kind::Progress]);
    println!("listens");
    let mut events = Vec::new();
    while events.is_empty() {
        observe.events(&mut events).expect("events");
    }
    println!("hears");
    loop {
        observe.events(&mut events).expect("events");
        events.clear();
    }
}

#[test]
fn reader_finishes_when_its_observer_is_killed() {
    each_source("killed-observer", |folder, _| {
        let path = folder.file("model", 64 * MIB);
        let mut reader = Reader::new();
        for _ in 0..3 {
            let observer = Command::new(std::env::current_exe().expect("this"))
                .args([
                    "--exact",
                    "backend::observe::tests::observer_helper_runs_until_killed",
                ])
                .args(["--ignored", "--nocapture"])
                .env(OBSERVER, &folder.0)
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process");
            let mut observer = Killed(observer);
            let output = BufReader::new(observer.0.stdout.take().expect("its output"));
            let mut lines = output.lines().map_while(std::result::Result::ok);
            let mut it = |what| lines.any(|line| line.ends_with(what));
            assert!(it("listens"), "it has died");
            drop_cached(&path);
            reader.begins(&format!("read {} 0 {} 4096", path.display(), 64 * MIB));
            assert!(it("hears"), "it has died");
            drop(observer);
            reader.wait();
        }
    });
}

#[test]
fn no_thread_wakes_while_no_process_reads() {
    each_source("idle", |folder, open| {
        folder.file("model", MIB);
        let observe = open(folder);
        want(&observe, &[Kind::Miss, Kind::Touch, Kind::Progress]);
        heard(&observe);
        assert!(observe.source.due().is_none());
        assert!(observe.hearing.lock().expect("it").due().is_none());
        let began = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                observe.interrupt();
            });
            observe.events(&mut Vec::new()).expect("events");
        });
        assert!(began.elapsed() >= Duration::from_millis(300));
        let began = Instant::now();
        observe.interrupt();
        observe.events(&mut Vec::new()).expect("events");
        assert!(
            began.elapsed() < LATEST,
            "the next call, if none is under way"
        );
    });
}

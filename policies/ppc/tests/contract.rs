//! Both sides against each other: faults of a policy, faults of a table, every service once.

use std::ffi::CStr;
use std::path::PathBuf;
use std::time::Duration;

use ppc::host::Table;
use ppc::testing::FakeHost;
use ppc::{
    Configure, Entry, Error, Event, Evict, Features, FileId, Host, Io, Kind, Kinds, Level,
    LoadError, Memory, Plan, Policy, Prefetch, Report, Result, Settings, Waker, Xpu, ffi,
};

/// A policy whose setting, and the offset of the event, choose what it does wrong.
struct Odd;

impl Policy for Odd {
    const NAME: &'static CStr = c"odd";
    const VERSION: &'static CStr = c"3";
    const DESCRIPTION: &'static CStr = c"Misbehaves";
    const NEEDS: Features = Features::OPEN.union(Features::TOUCH);

    fn init(_: &Host<'_>, settings: &mut Settings, plan: &mut Plan<'_>) -> Result<Self> {
        if let Some(message) = settings.text("panic") {
            panic!("{message}");
        }
        plan.add(Io::load(FileId(9), 5..))?;
        Ok(Self)
    }

    fn exit(self, _: &Host<'_>) -> Result<()> {
        Err(Error::Errno(libc::EPIPE))
    }
}

impl Prefetch for Odd {
    fn prefetch(&mut self, _: &Host<'_>, event: Option<&Event>, plan: &mut Plan<'_>) -> Result<()> {
        let event = event.ok_or(Error::Errno(libc::EAGAIN))?;
        for page in 0..event.length {
            plan.add(Io::load(event.file, page * 4096..page * 4096 + event.count))?;
        }
        assert!(event.offset == 0, "no plan for {}", event.offset);
        Ok(())
    }
}

impl Configure for Odd {
    fn configure(&mut self, _: &Host<'_>, settings: &mut Settings) -> Result<()> {
        settings.bytes("known").map(drop)
    }
}

ppc::callbacks!(Odd);

fn miss(offset: u64, ios: u64) -> Event {
    Event::new(Kind::Miss, FileId(1), offset, ios)
}

#[test]
fn a_panic_is_logged_and_the_instance_is_done_for() {
    let host = FakeHost::new();
    let refused = host
        .start::<Odd>(&[("panic", "at once")])
        .expect_err("it panicked");
    assert_eq!(refused, LoadError::Init(libc::EIO));
    let (mut odd, at_init) = host.start::<Odd>(&[]).expect("it starts");
    assert_eq!(at_init, [Io::load(FileId(9), 5..)]);
    for event in [miss(3, 1), miss(0, 1)] {
        let error = odd.prefetch(Some(&event)).expect_err("it panicked");
        assert_eq!(error.errno(), libc::EIO);
    }
    odd.exit().expect("a broken one is only dropped");
    let said = ["init: panic: at once", "prefetch: panic: no plan for 3"];
    assert_eq!(
        host.logs(),
        said.map(|line| (Level::Error, line.to_owned()))
    );
}

#[test]
fn an_error_drops_the_plan_and_the_next_event_is_served() {
    let host = FakeHost::new();
    let (mut odd, _) = host.start::<Odd>(&[]).expect("it starts");
    assert_eq!(
        odd.prefetch(None).expect_err("its own").errno(),
        libc::EAGAIN
    );
    let mut empty = miss(0, 1);
    empty.count = 0;
    assert_eq!(
        odd.prefetch(Some(&empty)).expect_err("no length").errno(),
        libc::EINVAL
    );
    let plan = odd.prefetch(Some(&miss(0, 1))).expect("a plan");
    assert_eq!(plan, Some(vec![Io::load(FileId(1), 0..1)]));
    assert!(odd.evict(None).expect("the kernel's way").is_none());
    assert_eq!(odd.exit().expect_err("its own").errno(), libc::EPIPE);
}

#[test]
fn a_sink_has_an_end_and_what_it_took_counts() {
    let (odd, _) = FakeHost::new().start::<Odd>(&[]).expect("it starts");
    let plan = odd.limit(3).prefetch(Some(&miss(0, 10))).expect("a plan");
    assert_eq!(plan.map(|ios| ios.len()), Some(3));
}

#[test]
fn unknown_settings_are_refused() {
    let host = FakeHost::new();
    let refused = host.start::<Odd>(&[("pannic", "no")]).expect_err("a typo");
    assert_eq!(refused, LoadError::Init(libc::EINVAL));
    assert_eq!(
        host.logs(),
        [(Level::Error, "init: Unknown setting: pannic".to_owned())]
    );
    let (mut odd, _) = host.start::<Odd>(&[]).expect("it starts");
    odd.configure("known", "1M").expect("a size");
    for (key, value) in [("known", "much"), ("unknown", "1")] {
        assert_eq!(
            odd.configure(key, value).expect_err(key).errno(),
            libc::EINVAL
        );
    }
}

#[test]
fn load_error_names_the_missing_mount_feature() {
    let host = FakeHost::new().features(Features::OPEN);
    let refused = host.start::<Odd>(&[]).expect_err("no TOUCH");
    assert_eq!(refused, LoadError::Needs(Features::TOUCH.0));
}

#[allow(unsafe_code, reason = "tables that no policy would have")]
fn table(change: impl FnOnce(&mut ffi::ppc_policy)) -> Result<Table, LoadError> {
    let mut policy = ffi::ppc_policy::of::<Odd>();
    change(&mut policy);
    // SAFETY: it is as long as the longest size that the loader accepts; its strings are constants.
    unsafe { Table::copy(&raw const policy) }
}

#[test]
fn a_table_is_sound_or_refused() {
    let sound = table(|_| ()).expect("it is as it should be");
    let texts = (sound.name(), sound.version(), sound.description());
    assert_eq!(texts, ("odd", "3", "Misbehaves"));
    let bare = table(|policy| policy.version = std::ptr::null()).expect("no version is fine");
    assert_eq!(bare.version(), "");

    table(|policy| policy.abi_version = 1).expect("all earlier ones run");
    let newer = table(|policy| policy.abi_version = 3).expect_err("of the future");
    assert_eq!(newer, LoadError::Newer { policy: 3, host: 2 });
    assert!(newer.to_string().contains("install a newer host"));
    for (version, size) in [(0, 80), (1, 0), (1, 79), (1, 81), (1, u32::MAX)] {
        let change = |policy: &mut ffi::ppc_policy| {
            (policy.abi_version, policy.struct_size) = (version, size);
        };
        assert_eq!(
            table(change).expect_err("damaged"),
            LoadError::Damaged { version, size }
        );
    }
    let long =
        CStr::from_bytes_with_nul(&[[b'a'; 66].as_slice(), &[0]].concat()).map(CStr::to_owned);
    let long = long.expect("one NUL, at its end");
    for name in [
        std::ptr::null(),
        c"".as_ptr(),
        c"Odd/..".as_ptr(),
        long.as_ptr(),
    ] {
        assert_eq!(
            table(|policy| policy.name = name).expect_err("no name"),
            LoadError::Name
        );
    }
    assert_eq!(
        table(|policy| policy.needs = 1 << 6).expect_err("needs"),
        LoadError::UnknownNeeds(2)
    );
}

#[test]
fn policy_without_init_starts_but_rejects_settings() {
    let nothing = |policy: &mut ffi::ppc_policy| {
        (policy.init, policy.exit, policy.prefetch, policy.configure) = (None, None, None, None);
    };
    let nothing = table(nothing).expect("the kernel's own page cache");
    let host = FakeHost::new();
    let (mut native, at_init) = host.start_table(nothing, &[]).expect("it starts");
    assert_eq!(at_init, []);
    assert!(
        native
            .prefetch(Some(&miss(0, 1)))
            .expect("the kernel's way")
            .is_none()
    );
    assert_eq!(
        native.configure("a", "b").expect_err("none").errno(),
        libc::EOPNOTSUPP
    );
    native.exit().expect("nothing to do");
    let refused = host
        .start_table(nothing, &[("a", "b")])
        .expect_err("no init");
    assert_eq!(refused, LoadError::NoSettings);
}

#[test]
fn callbacks_are_what_is_implemented() {
    let there = |table: Result<Table, LoadError>| {
        let raw = *table.expect("it is sound").raw();
        let advises = (raw.prefetch.is_some(), raw.evict.is_some());
        (advises, raw.configure.is_some())
    };
    assert_eq!(there(Table::of::<Odd>()), ((true, false), true));
    assert_eq!(there(Table::of::<Curious>()), ((false, false), false));
    assert_eq!(there(Table::of::<Leaky>()), ((false, true), false));
}

#[test]
fn a_flag_of_another_operation_is_an_error() {
    let host = FakeHost::new();
    for (setting, fine) in [("load", true), ("drop", false), ("cancel", false)] {
        let started = host.start::<Holds>(&[("op", setting)]);
        assert_eq!(started.is_ok(), fine, "{setting}");
    }
}

/// Names its operation with a flag of loads.
struct Holds;

impl Policy for Holds {
    const NAME: &'static CStr = c"holds";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Holds what it names";

    fn init(_: &Host<'_>, settings: &mut Settings, plan: &mut Plan<'_>) -> Result<Self> {
        let io = match settings.text("op").as_deref() {
            Some("drop") => Io::drop(FileId(1), ..),
            Some("cancel") => Io::cancel(FileId(1), ..),
            _ => Io::load(FileId(1), ..),
        };
        plan.add(io.hold()).map(|()| Self)
    }
}

ppc::callbacks!(Holds);

fn files(host: &Host<'_>) -> Result<()> {
    let b = host.open("dir/b")?;
    assert_eq!(
        host.open("dir").expect_err("a directory").errno(),
        libc::ENOENT
    );
    assert_eq!(host.path(b)?, PathBuf::from("dir/b"));
    let info = host.info(b)?;
    assert_eq!(
        (info.size, info.device, info.inode, info.mtime_ns),
        (5, 1, 101, 1)
    );
    let mut head = [0; 4];
    assert_eq!((host.read(b, 0, &mut head)?, &head), (4, b"hell"));
    assert_eq!(
        (host.read(b, 4, &mut head)?, &head[..1]),
        (1, b"o".as_slice())
    );
    assert_eq!(host.read(b, 5, &mut head)?, 0);
    assert_eq!(host.resident(b, 1, 2)?, 1);
    let entry = |path: &str, size| Entry {
        path: path.into(),
        size,
    };
    let (a, b_entry) = (entry("a", Some(3)), entry("dir/b", Some(5)));
    assert_eq!(host.list("", false)?, [a.clone(), entry("dir", None)]);
    assert_eq!(
        host.list("", true)?,
        [a, entry("dir", None), b_entry.clone()]
    );
    assert_eq!(host.list("dir", false)?, [b_entry]);
    assert_eq!(
        host.list("none", false).expect_err("none").errno(),
        libc::ENOENT
    );
    host.close(b)?;
    let twice = host.close(b).expect_err("it is closed");
    assert_eq!(
        twice.to_string(),
        format!(
            "close_file: {}",
            std::io::Error::from_raw_os_error(libc::EBADF)
        )
    );
    assert_eq!(
        host.info(FileId(77)).expect_err("none").errno(),
        libc::ESTALE
    );
    Ok(())
}

/// Asks for everything once.
struct Curious;

/// A load whose parts are the whole.
fn report() -> Report {
    Report {
        service: "llama".to_owned(),
        asked: 60,
        used: 30,
        late: 20,
        unread: 10,
        own: 70,
        waiting_ns: 1,
        loading_ns: 2,
        held_ns: 3,
        reading_ns: 4,
        resting_ns: 5,
        whole_ns: 15,
    }
}

/// Reports a valid load and some invalid ones.
fn reports(host: &Host<'_>) -> Result<()> {
    host.report(&report())?;
    let wrong: [fn(&mut Report); 5] = [
        |it| it.service.clear(),
        |it| it.service = "x".repeat(256),
        |it| it.unread += 1,
        |it| it.late = u64::MAX,
        |it| it.held_ns += 1,
    ];
    for change in wrong {
        let mut report = report();
        change(&mut report);
        let refused = host.report(&report).expect_err("no sense");
        assert_eq!(refused.errno(), libc::EINVAL, "{report:?}");
    }
    Ok(())
}

impl Policy for Curious {
    const NAME: &'static CStr = c"curious";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Uses every service";

    fn init(host: &Host<'_>, _: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
        files(host)?;

        let memory = Memory {
            limit: 4,
            used: 1,
            threshold: 3,
            available: 2,
            group: 5,
        };
        assert_eq!(host.memory()?, memory);
        assert_eq!(
            (host.process_xpu(42), host.process_xpu(43)),
            (Some(Xpu(1)), None)
        );
        assert_eq!((host.now(), host.deadline()), (5_000, None));
        let refused = host
            .want(Kind::Miss | Kind::Touch, 0)
            .expect_err("no TOUCH");
        assert_eq!(refused.errno(), libc::EOPNOTSUPP);
        host.want(Kind::Miss | Kind::Progress, 1 << 20)?;
        host.wake(Duration::from_millis(3))?;
        let waker = host.waker();
        std::thread::spawn(move || waker.wake(Duration::from_millis(4)))
            .join()
            .expect("no panic")?;
        reports(host)?;
        host.log(Level::Info, "two\nlines\0");
        Ok(Self)
    }
}

ppc::callbacks!(Curious);

#[test]
fn every_host_service_works_in_init() {
    let features = Features::PROGRESS | Features::OPEN;
    let host = FakeHost::new()
        .features(features)
        .file("a", 3)
        .contents("dir/b", b"hello");
    host.set_process(42, Xpu(1));
    host.set_cached(host.id("dir/b"), 2..9);
    host.set_memory(Memory {
        limit: 4,
        used: 1,
        threshold: 3,
        available: 2,
        group: 5,
    });
    host.advance(Duration::from_micros(5));
    host.start::<Curious>(&[])
        .unwrap_or_else(|refused| panic!("{refused}: {:?}", host.logs()));
    assert_eq!(
        host.wanted(),
        (
            [Kind::Miss, Kind::Progress].into_iter().collect::<Kinds>(),
            1 << 20
        )
    );
    assert_eq!(host.wakes(), [3, 4].map(Duration::from_millis));
    assert_eq!(host.opened(), 0);
    assert_eq!(host.reports(), [report()]);
    assert_eq!(host.logs(), [(Level::Info, "two lines ".to_owned())]);
}

/// Gives its waker away.
struct Leaky;

static LEAKED: std::sync::Mutex<Option<Waker>> = std::sync::Mutex::new(None);

impl Policy for Leaky {
    const NAME: &'static CStr = c"leaky";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Leaves something behind";

    fn init(host: &Host<'_>, _: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
        *LEAKED.lock().expect("no panic") = Some(host.waker());
        Ok(Self)
    }
}

impl Evict for Leaky {
    fn evict(&mut self, _: &Host<'_>, _: Option<&Event>, _: &mut Plan<'_>) -> Result<()> {
        Ok(())
    }
}

ppc::callbacks!(Leaky);

#[test]
fn a_waker_outlives_its_host_and_does_nothing() {
    for settings in [[].as_slice(), &[("fails", "in the end")]] {
        let host = FakeHost::new();
        let started = host.start::<Leaky>(settings);
        let waker = LEAKED.lock().expect("no panic").take().expect("it leaked");
        assert_eq!(waker.wake(Duration::ZERO).is_ok(), started.is_ok());
        drop(started);
        assert_eq!(
            waker.wake(Duration::ZERO).expect_err("it is shut").errno(),
            libc::ESHUTDOWN
        );
        let _ = host.logs();
        waker.log(Level::Info, "lost");
        assert_eq!(host.logs(), []);
    }
}

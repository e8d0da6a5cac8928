//! Policies in Rust, run by the real thread over a fake mount.

use std::sync::atomic::AtomicU32;
use std::thread::JoinHandle;

use ppc::{Configure, Evict, Kind, Plan, Policy, Prefetch};

use super::*;
use crate::backend::fake::{Fake, PAGE};
use crate::control::config;
use crate::control::stats::Counters;
use crate::machine::memory::{Roots, Watch};
use crate::machine::topology::Topology;
use crate::worker::budget::Budget;
use crate::worker::loader::ThreadGroup;
use crate::worker::messages::{Inbox, ends};

const FILE: FileId = FileId(1);

/// A policy that loads what follows a miss, drops all before an event, fails on file 9 and panics on file 10.
struct Next(u64);

impl Policy for Next {
    const NAME: &'static std::ffi::CStr = c"next";
    const VERSION: &'static std::ffi::CStr = c"1";
    const DESCRIPTION: &'static std::ffi::CStr = c"";

    fn init(
        host: &ppc::Host<'_>,
        settings: &mut ppc::Settings,
        plan: &mut Plan<'_>,
    ) -> ppc::Result<Self> {
        let length = settings.bytes("length")?.unwrap_or(PAGE);
        if length == 13 {
            host.log(ppc::Level::Error, "13 brings bad luck");
            return Err(ppc::Error::Errno(libc::EINVAL));
        }
        plan.add(Io::load(FILE, ..PAGE))?;
        Ok(Self(length))
    }
}

impl Prefetch for Next {
    fn prefetch(
        &mut self,
        _: &ppc::Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> ppc::Result<()> {
        let Some(event) = event else { return Ok(()) };
        plan.add(Io::load(FILE, event.end()..event.end() + self.0).by(event.process))?;
        match event.file.0 {
            9 => Err(ppc::Error::Errno(libc::EPERM)),
            10 => panic!("file 10"),
            _ => Ok(()),
        }
    }
}

impl Evict for Next {
    fn evict(
        &mut self,
        _: &ppc::Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> ppc::Result<()> {
        let Some(event) = event.filter(|event| event.offset > 0) else {
            return Ok(());
        };
        plan.add(Io::drop(FILE, ..event.offset))
    }
}

impl Configure for Next {
    fn configure(&mut self, _: &ppc::Host<'_>, settings: &mut ppc::Settings) -> ppc::Result<()> {
        self.0 = settings.bytes("length")?.unwrap_or(self.0);
        Ok(())
    }
}

ppc::callbacks!(Next);

struct Rig {
    fake: Arc<Fake>,
    budget: Arc<Budget>,
    queue: Arc<Queue<Task>>,
    loader: Arc<Loader>,
    evictor: Arc<Evictor>,
    counters: Arc<Counters>,
    notes: Inbox,
    thread: JoinHandle<()>,
}

/// Starts a policy thread that has to evict above `threshold` percent of memory: at 1 always, at 100 never.
fn rig(threshold: u8, settings: &[(&str, &str)]) -> Rig {
    let fake = Arc::new(Fake::new(Duration::ZERO).file(1, 64));
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a socket");
    let (notes, _) = ends(theirs).expect("ends");
    let (_, outbox) = ends(ours).expect("ends");
    let memory = config::MemoryConfig {
        threshold,
        hysteresis: 0,
        pressure: 100,
        ..config::MemoryConfig::default()
    };
    let queue = Arc::new(Queue::new(16));
    let counters = Arc::new(Counters::default());
    let topology: Topology = "node 0 cpus=0\n".parse().expect("a topology");
    let second = Duration::from_secs(1);
    let budget = Arc::new(Budget::new(
        Arc::clone(&fake) as _,
        Watch::new(memory, Roots::default()),
        Arc::clone(&queue),
        Arc::clone(&counters),
    ));
    let services = Arc::new(PolicyServices::new(
        Arc::clone(&fake) as _,
        Arc::clone(&budget),
        topology,
        Arc::clone(&queue),
        Arc::new(outbox),
        Arc::clone(&counters),
        second,
    ));
    let anywhere = vec![ThreadGroup {
        node: None,
        cpus: Vec::new(),
    }];
    let backend = Arc::clone(&fake);
    let loader = Arc::new(Loader::new(
        backend,
        Arc::clone(&budget) as _,
        Arc::clone(&counters),
        anywhere,
        config::LoaderConfig::default(),
        None,
    ));
    let evictor = Arc::new(Evictor::new(
        Arc::clone(&fake) as _,
        Arc::clone(&budget) as _,
        Arc::clone(&counters),
    ));
    let policy_thread = PolicyThread {
        host: Arc::clone(&services),
        queue: Arc::clone(&queue),
        watchdog: Arc::new(Watchdog::new(second, u64::MAX)),
        loader: Arc::clone(&loader),
        evictor: Arc::clone(&evictor),
        payer: Arc::new(AtomicU32::new(0)),
        guest: Arc::new(Guest::new(None, Arc::clone(&services.outbox), || true)),
        pays_itself: false,
        interval: Duration::from_millis(5),
        plans: Arc::default(),
    };
    let settings: Settings = settings
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    let table = Table::of::<Next>().expect("a table");
    Rig {
        fake,
        budget,
        queue,
        loader,
        evictor,
        counters,
        notes,
        thread: std::thread::spawn(move || policy_thread.run(table, &settings, || ())),
    }
}

impl Rig {
    /// The next note that is not a log line.
    fn note(&mut self) -> Note {
        loop {
            match self.notes.hear().expect("a note").expect("a worker") {
                Note::Log { .. } => {}
                note => return note,
            }
        }
    }

    fn end(self) -> Arc<Counters> {
        self.loader.end();
        self.queue.close();
        self.thread.join().expect("the policy's thread");
        self.evictor.end();
        self.counters
    }
}

fn miss(file: u64, page: u64) -> Event {
    Event::new(Kind::Miss, FileId(file), page * PAGE, PAGE).by(77)
}

#[test]
fn events_become_loads() {
    let mut rig = rig(100, &[("length", "8192")]);
    assert!(matches!(rig.note(), Note::Ready { .. }));
    rig.fake
        .until("what init named", |fake| fake.cached(1) == 1);
    rig.queue.push(&[miss(1, 4), miss(1, 10)]);
    rig.fake
        .until("what the misses named", |fake| fake.cached(1) == 5);
    let counters = rig.end();
    assert_eq!(counters.prefetch_calls.get(), 2);
    assert_eq!(counters.evict_calls.get(), 0, "there is memory");
}

#[test]
fn plan_of_a_failed_call_is_dropped() {
    let mut rig = rig(100, &[]);
    assert!(matches!(rig.note(), Note::Ready { .. }));
    rig.queue.push(&[miss(9, 4), miss(1, 20)]);
    rig.fake.until("the second", |fake| fake.cached(1) == 2);
    rig.queue.push(&[miss(10, 30)]);
    let counters = Arc::clone(&rig.counters);
    rig.fake
        .until("the panic", |_| counters.policy_errors.get() == 2);
    assert_eq!(rig.fake.cached(1), 2);
    rig.end();
}

#[test]
fn evict_is_called_before_any_load_over_the_threshold() {
    let mut rig = rig(1, &[]);
    assert!(matches!(rig.note(), Note::Ready { .. }));
    rig.queue.push(&[miss(1, 4)]);
    let counters = Arc::clone(&rig.counters);
    rig.fake.until("evict is called, and at intervals", |_| {
        counters.evict_calls.get() >= 3
    });
    assert_eq!(rig.fake.cached(1), 0, "nothing is loaded meanwhile");
    let counters = rig.end();
    assert_eq!(counters.evict_ranges.get(), 1);
}

#[test]
fn settings_change_or_are_refused() {
    let mut rig = rig(100, &[]);
    assert!(matches!(rig.note(), Note::Ready { .. }));
    for (key, value, fine) in [("length", "12288", true), ("lenght", "1", false)] {
        let settings = Settings::from([(key.to_owned(), value.to_owned())]);
        rig.queue.order(Task::Configure { id: 5, settings });
        let Note::Configured { id: 5, refused } = rig.note() else {
            panic!("no answer");
        };
        assert_eq!(refused.is_none(), fine, "{refused:?}");
    }
    rig.queue.push(&[miss(1, 10)]);
    rig.fake
        .until("as it was changed", |fake| fake.cached(1) == 4);
    rig.end();
}

#[test]
fn refusal_names_the_policy_and_its_error() {
    let mut rig = rig(100, &[("length", "13")]);
    let Note::Refused(refusal) = rig.note() else {
        panic!("it runs");
    };
    assert!(
        refusal.message.contains("errno") || refusal.message.contains("nvalid"),
        "{refusal}"
    );
    assert!(
        refusal
            .message
            .starts_with("The policy next refuses to start: "),
        "{refusal}"
    );
    rig.end();
}

#[test]
fn pages_that_the_kernel_dropped_are_not_ours_any_more() {
    let mut rig = rig(100, &[]);
    assert!(matches!(rig.note(), Note::Ready { .. }));
    rig.fake
        .until("what init named", |fake| fake.cached(1) == 1);
    rig.queue.push(&[miss(1, 20)]);
    rig.fake.until("one more", |fake| fake.cached(1) == 2);
    let budget = Arc::clone(&rig.budget);
    // Twenty misses of the reader: the fake has none of their pages.
    for page in 0..20 {
        budget.reader_missed(&miss(1, page));
    }
    rig.fake
        .until("they count", |_| budget.own_bytes() == 22 * 4096);
    budget.recount();
    assert_eq!(budget.own_bytes(), 2 * 4096);
    budget.reader_missed(&miss(1, 30));
    budget.recount();
    assert_eq!(budget.own_bytes(), 3 * 4096, "not again so soon");
    rig.end();
}

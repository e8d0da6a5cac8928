//! The loader's threads over a fake mount.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::backend::Evicted;
use crate::backend::Span;
use crate::backend::fake::{Fake, PAGE};
use crate::control::config::Bytes;

/// Memory in the state that a test sets.
#[derive(Default)]
struct Memory {
    over: AtomicBool,
    /// Bytes that may be loaded in all, if not 0; answers then take a while.
    limit: AtomicI64,
    moved: AtomicI64,
    /// Whether questions about it get no answer for now.
    silent: AtomicBool,
    asked: AtomicBool,
}

impl Room for Memory {
    fn room(&self) -> Option<u64> {
        self.asked.store(true, Relaxed);
        while self.silent.load(Relaxed) {
            std::thread::sleep(ms(1));
        }
        let limit = self.limit.load(Relaxed);
        if limit > 0 {
            let left = limit - self.moved.load(Relaxed);
            std::thread::sleep(ms(3));
            return u64::try_from(left).ok().filter(|&left| left > 0);
        }
        (!self.over.load(Relaxed)).then_some(1 << 40)
    }

    fn came(&self, _: Span, fresh: u64) {
        self.moved.fetch_add(fresh.cast_signed(), Relaxed);
    }

    fn went(&self, _: Span, evicted: Evicted) {
        self.moved.fetch_sub(evicted.dropped.cast_signed(), Relaxed);
    }

    fn recount(&self) {}
}

struct Rig {
    fake: Arc<Fake>,
    memory: Arc<Memory>,
    counters: Arc<Counters>,
    loader: Loader,
}

impl Rig {
    fn new(fake: Fake, threads: u16, chunk_pages: u64) -> Self {
        let fake = Arc::new(fake);
        let memory = Arc::new(Memory::default());
        let counters = Arc::new(Counters::default());
        let anywhere = ThreadGroup {
            node: None,
            cpus: Vec::new(),
        };
        let config = config::LoaderConfig {
            threads,
            chunk: Bytes(chunk_pages * PAGE),
            bandwidth: Bytes(0),
        };
        let loader = Loader::new(
            Arc::clone(&fake) as _,
            Arc::clone(&memory) as _,
            Arc::clone(&counters),
            vec![anywhere],
            config,
            None,
        );
        Self {
            fake,
            memory,
            counters,
            loader,
        }
    }

    fn range(process: u32, file: u64, pages: std::ops::Range<u64>) -> LoadRange {
        LoadRange {
            span: Span {
                file: FileId(file),
                offset: pages.start * PAGE,
                length: (pages.end - pages.start) * PAGE,
            },
            process,
            priority: 0,
            charge: Some(process),
            large: false,
            hold: false,
            replaces: true,
        }
    }

    fn submit(&self, process: u32, file: u64, pages: std::ops::Range<u64>) {
        let range = Self::range(process, file, pages);
        self.loader.submit(&[(0, range)]);
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn a_plan_is_loaded_whole_and_charged() {
    let rig = Rig::new(Fake::new(Duration::ZERO).file(1, 100), 4, 8);
    rig.submit(7, 1, 3..100);
    rig.fake.until("all loaded", |fake| fake.cached(1) == 97);
    rig.loader.end();
    assert_eq!(rig.counters.loaded_bytes.get(), 97 * PAGE);
    assert_eq!(rig.memory.moved.load(Relaxed), 97 * 4096);
    assert_eq!(rig.counters.in_flight_bytes.get(), 0);
    assert!(rig.fake.charged().iter().all(|&payer| payer == Some(7)));
    let longest = rig.fake.loads().iter().map(|span| span.length).max();
    assert_eq!(longest, Some(8 * PAGE));
}

#[test]
fn a_newer_plan_stops_the_older_in_mid_chunk() {
    let rig = Rig::new(Fake::new(ms(2)).file(1, 1000).file(2, 4), 1, 1000);
    rig.submit(7, 1, 0..1000);
    rig.fake.until("it loads", |fake| fake.cached(1) > 2);
    rig.submit(7, 2, 0..4);
    rig.fake
        .until("the newer is loaded", |fake| fake.cached(2) == 4);
    rig.loader.end();
    assert!(rig.fake.cached(1) < 500, "the older continued");
    assert_eq!(rig.counters.interruptions.get(), 1);
    assert!(rig.counters.last_stop_ns.get() > 0);
}

#[test]
fn loads_pause_over_the_memory_threshold_and_resume() {
    let rig = Rig::new(Fake::new(ms(1)).file(1, 400), 2, 16);
    rig.submit(7, 1, 0..400);
    rig.fake.until("it loads", |fake| fake.cached(1) > 2);
    rig.memory.over.store(true, Relaxed);
    // Loads in flight end by themselves if no others begin.
    std::thread::sleep(ms(100));
    let held = rig.fake.cached(1);
    std::thread::sleep(ms(100));
    assert_eq!(rig.fake.cached(1), held);
    assert!(held < 400);
    rig.memory.over.store(false, Relaxed);
    rig.fake.until("all loaded", |fake| fake.cached(1) == 400);
    rig.loader.end();
}

/// While a thread waits for the answer, loads of others end, and their bytes are not in it.
#[test]
fn slow_answers_about_memory_let_at_most_one_chunk_too_many_begin() {
    const LIMIT: i64 = 64 * PAGE.cast_signed();
    const CHUNK: u64 = 4;
    let rig = Rig::new(Fake::new(ms(1)).file(1, 4000), 8, CHUNK);
    rig.memory.limit.store(LIMIT, Relaxed);
    rig.submit(7, 1, 0..4000);
    rig.fake.until("memory is full", |_| {
        rig.memory.moved.load(Relaxed) >= LIMIT
    });
    std::thread::sleep(ms(100));
    let moved = rig.memory.moved.load(Relaxed);
    let most = LIMIT + (CHUNK * PAGE).cast_signed();
    assert!(moved < most, "{moved} of {LIMIT}");
    rig.loader.end();
}

/// What the kernel reads ahead is charged to the same memory.
#[test]
fn loads_are_exact_once_what_is_read_ahead_of_them_may_exceed_memory() {
    const CHUNK: u64 = 1 << 20;
    let limit = readahead::UNKNOWN + 8 * CHUNK;
    let pages = limit / PAGE;
    let chunk = CHUNK / PAGE;
    let rig = Rig::new(Fake::new(Duration::ZERO).file(1, pages), 1, chunk);
    rig.memory.limit.store(limit.cast_signed(), Relaxed);
    // The device of a fake file does not tell how far the kernel reads ahead.
    rig.submit(7, 1, 0..pages - 4);
    rig.fake
        .until("all loaded", |fake| fake.cached(1) == pages - 4);
    rig.loader.end();
    let exact = rig.fake.exact();
    let first = exact.iter().position(|&exact| exact);
    assert_eq!(first, Some(8), "{exact:?}");
    assert!(exact[8..].iter().all(|&exact| exact), "{exact:?}");
}

#[test]
fn plan_wakes_as_many_threads_as_can_begin_to_load_it() {
    const CHUNK: u64 = 4;
    let rig = Rig::new(Fake::new(Duration::ZERO).file(1, 1000), 8, CHUNK);
    let mut state = rig.loader.inner.lock();
    let mut plan = |pages: std::ops::Range<u64>| {
        state.backlog.submit(&[(0, Rig::range(7, 1, pages))]);
        state.useful()
    };
    assert_eq!(plan(0..CHUNK), [1]);
    assert_eq!(plan(0..3 * CHUNK), [3]);
    assert_eq!(plan(0..1000), [8]);
    state.backlog.take(0);
    state.backlog.take(0);
    assert_eq!(state.useful(), [6], "two are loading");
    state.backlog.pause(true);
    assert_eq!(state.useful(), [6], "once there is memory");
}

#[test]
fn each_of_many_small_plans_is_loaded() {
    const PLANS: u64 = 200;
    let rig = Rig::new(Fake::new(ms(1)).file(1, 16 + PLANS), 16, 1);
    rig.submit(7, 1, 0..16);
    for page in 16..16 + PLANS {
        rig.fake
            .until("what was planned is loaded", |fake| fake.cached(1) == page);
        rig.submit(7, 1, page..page + 1);
    }
    rig.loader.end();
}

#[test]
fn failed_load_is_skipped_and_the_rest_is_loaded() {
    let rig = Rig::new(Fake::new(Duration::ZERO).file(1, 64).broken(1, 20), 1, 8);
    rig.submit(7, 1, 0..64);
    rig.fake
        .until("the rest is loaded", |fake| fake.cached(1) == 64 - 4);
    rig.loader.end();
    assert_eq!(rig.counters.load_errors.get(), 1);
}

#[test]
fn loader_ends_within_a_second_and_takes_no_more_work() {
    let rig = Rig::new(Fake::new(ms(5)).file(1, 10_000), 4, 2000);
    rig.submit(7, 1, 0..10_000);
    rig.fake.until("it loads", |fake| fake.cached(1) > 2);
    let since = Instant::now();
    rig.loader.end();
    assert!(since.elapsed() < ms(1000), "{:?}", since.elapsed());
    rig.submit(7, 1, 0..10);
    assert_eq!(rig.loader.state().0, 0, "nothing is taken any more");
}

#[test]
fn reader_miss_does_not_wait_for_a_memory_check() {
    let rig = Rig::new(Fake::new(Duration::ZERO).file(1, 100), 2, 8);
    rig.memory.silent.store(true, Relaxed);
    rig.submit(7, 1, 0..100);
    rig.fake
        .until("it looks", |_| rig.memory.asked.load(Relaxed));
    let (to, from) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            rig.loader.reader_waits(&Span {
                file: FileId(2),
                offset: 0,
                length: PAGE,
            });
            let _ = to.send(());
        });
        let heard = from.recv_timeout(ms(5000));
        rig.memory.silent.store(false, Relaxed);
        heard.expect("the miss is heard meanwhile");
    });
    rig.fake.until("all loaded", |fake| fake.cached(1) == 100);
    rig.loader.end();
}

//! A simulated node: readers, a loader, and a page cache that changes only by their loads, drops and misses.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

mod loose;
mod mapped;
mod never_worse;
mod planning;
mod returns;

impl Window {
    /// Whether every reader is at its end or gone.
    fn is_done(&self) -> bool {
        let done = |reader: &super::Reader| reader.gone || reader.front == reader.order.len();
        self.readers.iter().all(done)
    }
}

/// Number of pages that the kernel reads for a missed one.
const AROUND: u32 = 32;

#[derive(Clone, Debug)]
struct Setup {
    groups: Vec<Vec<Extent>>,
    budget: u64,
    /// Pages that the loader loads in a turn; `speeds` has those that each reader reads.
    loader: u32,
    speeds: Vec<u32>,
    beacon: u32,
}

struct FakeReader {
    /// Pages in the order in which they are read.
    pages: Vec<(u32, u32)>,
    at: usize,
    said: usize,
    events: u32,
}

struct Node {
    window: Window,
    cached: Vec<Vec<bool>>,
    /// How often each page came from the device.
    came: Vec<Vec<u32>>,
    readers: Vec<FakeReader>,
    queues: Vec<VecDeque<Extent>>,
    misses: u64,
    over_budget: bool,
    /// Whether pages that will still be read may be dropped, which is then counted.
    bears: bool,
    /// Events of reads are ranges, as of a load that is recorded.
    touches: bool,
    lost: Option<Lost>,
}

/// Which events of each reader are not heard: so many in a row, of so many.
#[derive(Clone, Copy, Debug)]
struct Lost {
    in_a_row: u32,
    of: u32,
}

fn pages_of(group: &[Extent]) -> Vec<(u32, u32)> {
    let mut pages = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for extent in group {
        let all = (extent.first..extent.end()).map(|page| (extent.file, page));
        pages.extend(all.filter(|page| seen.insert(*page)));
    }
    pages
}

fn without(load: &Extent, gone: &Extent) -> Vec<Extent> {
    if load.file != gone.file {
        return vec![*load];
    }
    let part = |first: u32, end: u32| Extent {
        file: load.file,
        first,
        pages: end.saturating_sub(first),
    };
    let parts = [
        part(load.first, load.end().min(gone.first)),
        part(load.first.max(gone.end()), load.end()),
    ];
    parts.into_iter().filter(|part| part.pages > 0).collect()
}

impl Node {
    fn new(setup: &Setup) -> Self {
        let pieces = Arc::new(Pieces::new(&setup.groups));
        let files = 1 + setup
            .groups
            .iter()
            .flatten()
            .map(|it| it.file)
            .max()
            .unwrap_or(0);
        let size = |file| {
            let all = setup.groups.iter().flatten().filter(|it| it.file == file);
            all.map(Extent::end).max().unwrap_or(0) as usize
        };
        let reader = |group: &Vec<Extent>| FakeReader {
            pages: pages_of(group),
            at: 0,
            said: 0,
            events: 0,
        };
        Self {
            window: Window::new(pieces, setup.budget),
            cached: (0..files).map(|file| vec![false; size(file)]).collect(),
            came: (0..files).map(|file| vec![0; size(file)]).collect(),
            readers: setup.groups.iter().map(reader).collect(),
            queues: setup.groups.iter().map(|_| VecDeque::new()).collect(),
            misses: 0,
            over_budget: false,
            bears: false,
            touches: false,
            lost: None,
        }
    }

    fn hear(&mut self, group: usize, extent: &Extent, access: Access, read: u64) {
        let events = &mut self.readers[group].events;
        *events += 1;
        let is_lost = |lost: Lost| *events % lost.of >= lost.of - lost.in_a_row;
        if !self.lost.is_some_and(is_lost) {
            self.window.hear(group, extent, access, read);
        }
    }

    fn has_read(&self, page: (u32, u32)) -> bool {
        let unread = |reader: &FakeReader| reader.pages[reader.at..].contains(&page);
        !self.readers.iter().any(unread)
    }

    fn bring(&mut self, file: u32, page: u32) -> bool {
        let cached = &mut self.cached[file as usize][page as usize];
        let new = !std::mem::replace(cached, true);
        self.came[file as usize][page as usize] += u32::from(new);
        new
    }

    fn advise(&mut self) {
        let before = self.window.held();
        let cached = &self.cached;
        let absent = |extent: &Extent| {
            let mut pages = extent.first..extent.end();
            !pages.any(|page| cached[extent.file as usize][page as usize])
        };
        for gone in self.window.withdraw_earlier(absent) {
            for queue in &mut self.queues {
                *queue = queue.iter().flat_map(|load| without(load, &gone)).collect();
            }
        }
        self.window.reissue_overtaken(absent);
        let loads = self.window.loads();
        self.over_budget |= self.window.held() > before.max(self.window.budget);
        for extent in self.window.drops() {
            for page in extent.first..extent.end() {
                assert!(
                    self.bears || self.has_read((extent.file, page)),
                    "{extent:?} is still needed"
                );
                self.cached[extent.file as usize][page as usize] = false;
            }
            // Dropped ranges are no longer loaded.
            for queue in &mut self.queues {
                *queue = queue
                    .iter()
                    .flat_map(|load| without(load, &extent))
                    .collect();
            }
        }
        for load in loads {
            let queue = &mut self.queues[load.reader];
            if load.instead {
                queue.clear();
            }
            queue.push_back(load.extent);
        }
    }

    fn load(&mut self, pages: u32) {
        let mut left = pages;
        while left > 0 {
            let mut idle = true;
            for group in 0..self.queues.len() {
                let Some(extent) = self.queues[group].front_mut() else {
                    continue;
                };
                let (file, page) = (extent.file, extent.first);
                (extent.first, extent.pages) = (extent.first + 1, extent.pages - 1);
                if extent.pages == 0 {
                    self.queues[group].pop_front();
                }
                idle = false;
                if self.bring(file, page) {
                    left = left.saturating_sub(1);
                }
            }
            if idle {
                return;
            }
        }
    }

    fn read(&mut self, group: usize, setup: &Setup) {
        let mut missed = false;
        for _ in 0..setup.speeds[group] {
            let reader = &self.readers[group];
            let Some(&(file, page)) = reader.pages.get(reader.at) else {
                break;
            };
            if !self.cached[file as usize][page as usize] {
                if missed {
                    break;
                }
                missed = true;
                self.miss(group, file, page);
            }
            self.readers[group].at += 1;
            self.say(group, setup.beacon as usize);
        }
    }

    /// Has the kernel read a missed page, and with it only pages that this reader is about to read.
    fn miss(&mut self, group: usize, file: u32, page: u32) {
        let reader = &self.readers[group];
        let next = reader.pages[reader.at..].iter().zip(page..page + AROUND);
        let run = next.take_while(|&(&it, page)| it == (file, page));
        let extent = Extent {
            file,
            first: page,
            pages: u32::try_from(run.count()).expect("a few"),
        };
        for page in extent.first..extent.end() {
            self.misses += u64::from(self.bring(file, page));
        }
        self.hear(group, &extent, Access::Miss, 0);
        self.advise();
    }

    fn say(&mut self, group: usize, beacon: usize) {
        let reader = &mut self.readers[group];
        let end = reader.at == reader.pages.len();
        if reader.at - reader.said < beacon && !end {
            return;
        }
        let read = (reader.at - reader.said) as u64;
        let from = std::mem::replace(&mut reader.said, reader.at);
        if self.touches {
            let pages = reader.pages[from..reader.at].to_vec();
            for run in pages.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1) {
                let pages = u32::try_from(run.len()).expect("a few");
                let (file, first) = run[0];
                let extent = Extent { file, first, pages };
                self.hear(group, &extent, Access::Read, pages.into());
            }
            return self.advise();
        }
        let (file, first) = reader.pages[reader.at - 1];
        let extent = Extent {
            file,
            first,
            pages: 1,
        };
        self.hear(group, &extent, Access::Read, read);
        self.advise();
    }

    fn is_done(&self) -> bool {
        self.readers
            .iter()
            .all(|reader| reader.at == reader.pages.len())
    }

    /// Checks that the window knows all cached pages as held.
    fn check(&self) {
        for (file, pages) in (0..).zip(&self.cached) {
            for (page, _) in (0..).zip(pages).filter(|&(_, &cached)| cached) {
                let piece = self.window.pieces.at(file, page).expect("a piece");
                let state = self.window.cache.state(piece);
                assert_eq!(
                    state,
                    PieceState::Held,
                    "page {page} of file {file}, piece {piece}"
                );
            }
        }
    }
}

fn total(setup: &Setup) -> u64 {
    Pieces::new(&setup.groups).total()
}

/// Runs until all is read; returns the pages that readers had to wait for.
fn run(setup: &Setup) -> u64 {
    let mut node = Node::new(setup);
    node.advise();
    for turn in 0.. {
        assert!(turn < 200_000, "no end: {:?}", node.window);
        node.load(setup.loader);
        for group in 0..node.readers.len() {
            node.read(group, setup);
        }
        node.advise();
        assert!(!node.over_budget);
        node.check();
        if node.is_done() {
            break;
        }
    }
    assert!(node.window.is_done());
    let came = node.came.iter().flatten();
    assert!(came.clone().all(|&times| times <= 1), "loaded twice");
    assert_eq!(came.map(|&it| u64::from(it)).sum::<u64>(), total(setup));
    node.misses
}

/// Each worker's slice of each tensor, but all of some tensors, in the same order.
fn slices(ranks: u32, tensors: u32, pages: u32) -> Vec<Vec<Extent>> {
    let group = |rank| {
        let tensor = |number: u32| {
            let (file, first) = (number / 8, number % 8 * pages);
            let slice = pages / ranks;
            let whole = number.is_multiple_of(3);
            Extent {
                file,
                first: if whole { first } else { first + rank * slice },
                pages: if whole { pages } else { slice },
            }
        };
        (0..tensors).map(tensor).collect()
    };
    (0..ranks).map(group).collect()
}

fn groups() -> impl Strategy<Value = Vec<Vec<Extent>>> {
    let extents = prop::collection::vec((0..3_u32, 0..2000_u32, 1..700_u32), 1..12);
    let alike = (extents.clone(), 1..5_usize).prop_map(|(one, count)| vec![one; count]);
    let apart = prop::collection::vec(extents, 1..4);
    let groups = prop_oneof![alike, apart].prop_map(|groups| {
        let extent = |(file, first, pages)| Extent { file, first, pages };
        let group = |group: Vec<_>| group.into_iter().map(extent).collect();
        groups.into_iter().map(group).collect()
    });
    let sliced = (1..5_u32, 1..30_u32, 4..200_u32)
        .prop_map(|(ranks, tensors, pages)| slices(ranks, tensors, pages));
    prop_oneof![groups, sliced]
}

fn setups() -> impl Strategy<Value = Setup> {
    let speeds = prop::collection::vec(1..300_u32, 5);
    (groups(), 600..9000_u64, 1..600_u32, speeds, 1..600_u32).prop_map(
        |(groups, budget, loader, speeds, beacon)| Setup {
            groups,
            budget,
            loader,
            speeds,
            beacon,
        },
    )
}

/// Gives a reader the same pages in another order, block by block.
fn shuffled(reader: &mut FakeReader, block: usize, seed: u64) {
    let mut blocks: Vec<Vec<_>> = reader.pages.chunks(block).map(<[_]>::to_vec).collect();
    let mut state = seed | 1;
    for at in (1..blocks.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let other = usize::try_from(state >> 33).expect("small") % (at + 1);
        blocks.swap(at, other);
    }
    reader.pages = blocks.concat();
}

/// Reads everything in shuffled orders; returns the number of pages that came from the device.
fn run_shuffled(setup: &Setup, block: usize, seed: u64) -> u64 {
    let mut node = Node::new(setup);
    node.bears = true;
    for (reader, number) in node.readers.iter_mut().zip(1..) {
        shuffled(reader, block, seed ^ number);
    }
    node.advise();
    while !node.is_done() {
        node.load(setup.loader);
        for group in 0..node.readers.len() {
            node.read(group, setup);
        }
        node.advise();
        assert!(!node.over_budget);
    }
    node.came
        .iter()
        .flatten()
        .map(|&times| u64::from(times))
        .sum()
}

#[test]
fn random_reads_reload_at_most_3_percent() {
    let groups = vec![slices(1, 64, 1024).remove(0)];
    for (block, budget) in [(32, 20_000), (256, 20_000), (2048, 20_000), (32, 1 << 20)] {
        let setup = Setup {
            budget,
            loader: 200,
            speeds: vec![90],
            beacon: 64,
            groups: groups.clone(),
        };
        let came = (1..20)
            .map(|seed| run_shuffled(&setup, block, seed))
            .sum::<u64>();
        let all = 19 * total(&setup);
        assert!(
            came * 100 <= all * 103,
            "{came} of {all}, blocks of {block}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Readers that keep to their orders, at any speed.
    #[test]
    fn every_page_is_loaded_once_within_the_budget(setup in setups()) {
        run(&setup);
    }

    /// Readers that do anything: loads never exceed the budget, and readers get their bytes from the
    /// kernel in any case.
    #[test]
    fn window_stays_within_budget_for_any_reader(
        setup in setups(),
        events in prop::collection::vec((0..6_usize, 0..4_u32, 0..3000_u32, 1..300_u32, any::<bool>()), 0..200),
        leaves in 0..6_usize,
    ) {
        let mut window = Window::new(Arc::new(Pieces::new(&setup.groups)), setup.budget);
        for (group, file, first, pages, misses) in events {
            let step = if misses { Access::Miss } else { Access::Read };
            window.hear(group, &Extent { file, first, pages }, step, 0);
            let before = window.held();
            window.loads();
            prop_assert!(window.held() <= before.max(setup.budget));
            window.drops();
            if group == leaves {
                window.leave(group);
            }
        }
        window.join(0);
        let all = setup.groups.len() + 1;
        for reader in 0..all {
            window.leave(reader);
        }
        prop_assert!(window.is_done());
        window.drop_all();
        prop_assert_eq!(window.held(), 0, "no reader needs anything");
    }
}

#[test]
fn readers_rarely_wait_with_enough_memory() {
    for groups in [slices(4, 64, 400), vec![slices(1, 64, 400).remove(0); 4]] {
        let setup = Setup {
            budget: 1 << 20,
            loader: 400,
            speeds: vec![90; groups.len()],
            beacon: 256,
            groups,
        };
        let (misses, all) = (run(&setup), total(&setup));
        assert!(misses * 50 <= all, "{misses} of {all}");
    }
}

#[test]
fn readers_rarely_wait_with_little_memory() {
    let groups = slices(4, 64, 400);
    let setup = Setup {
        budget: 4000,
        loader: 400,
        speeds: vec![90; 4],
        beacon: 64,
        groups,
    };
    let (misses, all) = (run(&setup), total(&setup));
    assert!(
        all > 3 * setup.budget && misses * 50 <= all,
        "{misses} of {all}"
    );
}

#[test]
fn a_reader_that_stops_does_not_stop_the_others() {
    let groups = slices(2, 64, 400);
    let mut node = Node::new(&Setup {
        groups: groups.clone(),
        budget: 2000,
        loader: 0,
        speeds: vec![],
        beacon: 0,
    });
    let window = &mut node.window;
    window.loads();
    // The other reader reads nothing, and then leaves.
    let end = groups[0].len() as u64;
    for extent in &groups[0] {
        window.hear(0, extent, Access::Read, 0);
        window.loads();
    }
    assert_eq!(window.progress(0).0, window.progress(0).1, "{end}");
    let ahead = window.readers[1].ahead();
    assert!(ahead >= 500, "it has its share: {ahead}");
    window.leave(1);
    assert!(window.is_done());
    window.drop_all();
    assert_eq!(window.held(), 0);
}

#[test]
fn a_look_into_the_last_file_is_not_where_a_reader_is() {
    let groups = vec![vec![
        Extent {
            file: 0,
            first: 0,
            pages: 50_000,
        },
        Extent {
            file: 1,
            first: 0,
            pages: 50_000,
        },
    ]];
    let mut window = Window::new(Arc::new(Pieces::new(&groups)), 10_000);
    window.loads();
    let page = |file, first, pages| Extent { file, first, pages };
    assert_eq!(
        window.hear(0, &page(1, 5000, 32), Access::Miss, 0),
        Expectation::Own
    );
    assert_eq!(window.progress(0).0, 0);
    assert!(window.loads().is_empty());
    // A reader that goes on reading there has moved there.
    for at in 0..10 {
        window.hear(0, &page(1, 5000 + at * 32, 32), Access::Miss, 0);
    }
    assert!(window.progress(0).0 > 50_000);
    let piece_of = |page: u32| page / TABLE * TABLE..(page / TABLE + 1) * TABLE;
    let alone = |loads: &[Prefetch], page| {
        let pages = |it: &Prefetch| it.extent.first..it.extent.end();
        loads.len() == 1 && loads[0].extent.file == 1 && pages(&loads[0]) == piece_of(page)
    };
    let loads = window.loads();
    assert!(loads[0].instead, "{loads:?}");
    assert!(alone(&loads, 5000 + 9 * 32), "it may come back: {loads:?}");
    for at in 10..600 {
        window.hear(0, &page(1, 5000 + at * 32, 32), Access::Miss, 0);
    }
    let loads = window.loads();
    let last = 5000 + 599 * 32;
    assert!(
        alone(&loads, last),
        "what it does not need is to go first: {loads:?}"
    );
    let loads = window.loads();
    let next = piece_of(last).end;
    assert_eq!((loads[0].extent.file, loads[0].extent.first), (1, next));
    assert_eq!(
        window.hear(0, &page(1, 60_000, 1), Access::Miss, 0),
        Expectation::Unexpected
    );
    assert_eq!(window.unknown(), 1);
    assert_eq!(
        window.hear(7, &page(1, 1, 1), Access::Miss, 0),
        Expectation::Others
    );
}

#[test]
fn loader_continues_from_a_reader_that_overtakes_it() {
    let groups = vec![vec![Extent {
        file: 0,
        first: 0,
        pages: 100_000,
    }]];
    let mut window = Window::new(Arc::new(Pieces::new(&groups)), 200_000);
    let loads = window.loads();
    assert_eq!((loads.len(), loads[0].extent.pages), (1, 100_000));
    let page = |first| Extent {
        file: 0,
        first,
        pages: 32,
    };
    let loads = |window: &mut Window, come: u32| {
        window.reissue_overtaken(|extent| extent.first >= come);
        window.loads()
    };
    window.hear(0, &page(0), Access::Miss, 0);
    assert!(loads(&mut window, 0).is_empty(), "it has only begun");
    window.hear(0, &page(29_000), Access::Miss, 28_000);
    assert!(loads(&mut window, 30_300).is_empty(), "it is just there");
    window.hear(0, &page(30_000), Access::Miss, 1000);
    let found = loads(&mut window, 30_100);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].instead && found[0].extent.first > 30_000);
    assert_eq!(found[0].extent.end(), 100_000);
    window.hear(0, &page(31_000), Access::Miss, 0);
    // It is at it; what was left out before that, as nothing has come of it, follows.
    let left = loads(&mut window, 0);
    assert_eq!(left[0].extent.first, 0);
    assert!(
        left.iter()
            .all(|it| !it.instead && it.extent.end() <= found[0].extent.first),
        "{left:?}"
    );
}

#[test]
fn reader_that_joins_late_gets_dropped_pages_reloaded() {
    let extent = |first, pages| Extent {
        file: 0,
        first,
        pages,
    };
    let groups = vec![vec![extent(0, 10_240)]];
    let mut window = Window::new(Arc::new(Pieces::new(&groups)), 2048);
    for at in 0..10 {
        window.loads();
        window.hear(0, &extent(at * 1024, 1024), Access::Read, 0);
    }
    assert!(window.is_done());
    window.drop_all();
    assert_eq!(window.held(), 0);
    assert_eq!(window.join(0), Some(1));
    assert_eq!(window.join(9), None, "no such order");
    assert!(!window.is_done());
    let loads = window.loads();
    assert_eq!((loads[0].reader, loads[0].extent), (1, extent(0, 2048)));
    window.drop_all();
    assert_eq!(window.held(), 2048, "it is waited for");
    window.leave(1);
    window.drop_all();
    assert_eq!((window.held(), window.is_done()), (0, true));
    // The reader was there all the time, and goes on.
    window.hear(1, &extent(0, 512), Access::Read, 0);
    assert_eq!(window.loads()[0].extent.first, 512);
}

#[test]
fn a_beacon_beside_its_part_shows_a_reader_at_what_it_has_before_that_in_the_same_file() {
    let extent = |file, first, pages| Extent { file, first, pages };
    let groups = vec![
        vec![
            extent(0, 0, 1000),
            extent(1, 1000, 100),
            extent(1, 1900, 100),
        ],
        vec![extent(1, 1100, 800)],
    ];
    let mut window = Window::new(Arc::new(Pieces::new(&groups)), 1 << 20);
    window.hear(0, &extent(0, 999, 1), Access::Beacon, 1000);
    assert_eq!(window.progress(0).0, 1000);
    let beside = window.hear(0, &extent(1, 1200, 1), Access::Beacon, 150);
    assert_eq!((beside, window.progress(0).0), (Expectation::Own, 1024));
    let far = window.hear(0, &extent(1, 1800, 1), Access::Beacon, 1);
    assert_eq!(far, Expectation::Others, "more than a table away");
    // The neighbouring piece in the table may belong to another file.
    let groups = vec![vec![extent(0, 0, 1000)], vec![extent(1, 900, 50)]];
    let mut window = Window::new(Arc::new(Pieces::new(&groups)), 1 << 20);
    let other = window.hear(0, &extent(1, 920, 1), Access::Beacon, 1);
    assert_eq!(other, Expectation::Others);
    assert_eq!(
        window.hear(0, &extent(1, 920, 1), Access::Read, 1),
        Expectation::Others
    );
}

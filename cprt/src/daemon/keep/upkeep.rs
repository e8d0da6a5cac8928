//! Keeps the sets: finds their files, looks at what the page cache has of them, loads and releases. One thread calls
//! it; it may take as long as the file systems do.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::decide::{self, Cut, Room, Step, View};
use super::set::{Kept, Outlook};
use super::share::{Share, Wish, bytes, length, share};
use crate::control::config::{Config, LoaderConfig, MemoryConfig};
use crate::control::keep::{KeepRemoved, KeepSet, KeepStatus};
use crate::machine::mappings::Identity;
use crate::machine::memory::{MemoryState, Roots, Watch};
use crate::machine::ranges::Ranges;
use crate::residency::{Cache, CacheFile, LeftOut, Part, Reason, Warming, find};
use crate::sys::thread_cpu_time;
use crate::{Error, Result};

/// How often to look what is cached, at most;
const LOOK: Duration = Duration::from_secs(5);
/// looking and finding take at most one part in this many of a processor's time,
const CPU_SHARE: u32 = 100;
/// and one part in this many of the time that they wait, also for a processor: where they wait long for that once, a
/// hundred times as long would pass before a loss is seen.
const WAIT_SHARE: u32 = 10;
/// Upper bound on the bytes of one load: then it is time to look what else is missing.
const AT_ONCE: u64 = 4 << 30;
/// How often to find files anew, at most.
const FIND: Duration = Duration::from_mins(1);
/// How long to rest while sets are kept, and memory may run short;
const REST: Duration = Duration::from_millis(500);
/// while something is being loaded or released.
const TICK: Duration = Duration::from_millis(50);
/// How long memory pressure takes to show that something was released.
const EASED: Duration = Duration::from_millis(600);

/// All sets, by precedence, and what is being done for them.
pub(super) struct Upkeep {
    cache: Cache,
    watch: Watch,
    roots: Roots,
    memory: MemoryConfig,
    loader: LoaderConfig,
    files: Vec<CacheFile>,
    sets: Vec<Kept>,
    loading: Option<Loading>,
    find_at: Instant,
    look_at: Instant,
    /// Until then, it is not known whether what was released has helped.
    eased: Instant,
    room: Room,
    over: bool,
}

/// A load under way.
struct Loading {
    set: usize,
    warming: Warming,
}

/// What looking or finding costs.
struct Effort {
    began: Instant,
    cpu: Duration,
}

impl Effort {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            cpu: thread_cpu_time(),
        }
    }

    /// How long to rest after it.
    fn pause(&self) -> Duration {
        let cpu = thread_cpu_time().saturating_sub(self.cpu);
        pause(self.began.elapsed(), cpu)
    }
}

/// How long to rest after something that took so long, and so much CPU time.
fn pause(took: Duration, cpu: Duration) -> Duration {
    (cpu * CPU_SHARE).max(took * WAIT_SHARE)
}

impl Upkeep {
    pub(super) fn new(config: &Config, roots: Roots) -> Result<Self> {
        let watch = Watch::new(config.memory, roots.clone());
        watch.follow_process(std::process::id());
        let now = Instant::now();
        Ok(Self {
            cache: Cache::new()?,
            watch,
            roots,
            memory: config.memory,
            loader: config.loader,
            files: Vec::new(),
            sets: Vec::new(),
            loading: None,
            find_at: now,
            look_at: now,
            eased: now,
            room: Room::default(),
            over: false,
        })
    }

    /// Switches to these sets. Those that are gone are released if `drop` says so.
    pub(super) fn apply(
        &mut self,
        wanted: &BTreeMap<String, KeepSet>,
        drop: impl Fn(&str) -> bool,
    ) -> Vec<KeepRemoved> {
        self.stop_loading(Instant::now());
        let before = std::mem::take(&mut self.sets);
        let mut gone = Vec::new();
        for set in before {
            match wanted.get(&set.name) {
                Some(same) if *same == set.wanted => self.sets.push(set),
                Some(_) => {}
                None => gone.push(set),
            }
        }
        for (name, set) in wanted {
            if !self.sets.iter().any(|it| it.name == *name) {
                self.sets.push(Kept::new(name, set));
            }
        }
        let by_precedence = |set: &Kept| (std::cmp::Reverse(set.wanted.priority), set.name.clone());
        self.sets.sort_by_key(by_precedence);
        let files = self.files.clone();
        self.find();
        let kept = self.kept();
        let removed = gone.iter().map(|set| {
            let part = |part: &Part| (files[part.file].clone(), part.range.clone());
            let parts = set.parts.iter().map(part);
            self.part_with(&set.name, parts, &kept, drop(&set.name))
        });
        removed.collect()
    }

    /// Does what is due, and returns how long to rest; `None` if nothing will ever be due.
    pub(super) fn turn(&mut self) -> Option<Duration> {
        if self.sets.is_empty() {
            return None;
        }
        let now = Instant::now();
        if self.loading.is_none() && now >= self.find_at {
            self.find();
        } else if self.loading.is_none() && now >= self.look_at {
            self.look(now);
        }
        let state = self.sample();
        self.room = Room::of(&state, &self.memory, self.there());
        self.over = state.over;
        if let Some(loading) = &mut self.loading {
            if !state.over && loading.warming.goes_on() {
                return Some(TICK);
            }
            self.stop_loading(now);
            return Some(Duration::ZERO);
        }
        match decide::next(&self.views(now), self.room) {
            Step::Release(cuts) if now >= self.eased => {
                self.release(&cuts);
                let for_pressure = state.pressure.is_some_and(|it| it.over);
                self.eased = now + if for_pressure { EASED } else { TICK };
                Some(TICK)
            }
            Step::Load(set, bytes) => {
                self.load(set, bytes.min(AT_ONCE), now);
                Some(TICK)
            }
            Step::Release(_) | Step::Rest => Some(REST),
        }
    }

    /// What became of the sets, by precedence.
    pub(super) fn report(&self) -> Vec<KeepStatus> {
        let now = Instant::now();
        let sets = self.sets.iter().enumerate();
        let reports = sets.map(|(at, set)| {
            let loading = self.loading.as_ref().filter(|it| it.set == at);
            let outlook = Outlook {
                fresh: loading.map(|it| it.warming.stats().loaded_bytes),
                over: self.over,
                free: self.room.free,
            };
            set.status(&outlook, now)
        });
        reports.collect()
    }

    /// Ends what is under way.
    pub(super) fn end(mut self) {
        self.stop_loading(Instant::now());
    }

    fn there(&self) -> u64 {
        self.sets.iter().map(Kept::there).sum()
    }

    fn sample(&self) -> MemoryState {
        let loading = self.loading.as_ref();
        let fresh = loading.map_or(0, |it| it.warming.stats().loaded_bytes);
        self.watch.sample(self.there() + fresh)
    }

    fn views(&self, now: Instant) -> Vec<View> {
        let views = self.sets.iter().map(|set| View {
            priority: set.wanted.priority,
            parts: set
                .parts
                .iter()
                .map(length)
                .zip(set.there.iter().copied())
                .collect(),
            may_load: set.may_load(now),
        });
        views.collect()
    }

    /// Finds the files of all sets.
    fn find(&mut self) {
        let effort = Effort::new();
        let mut wishes = Vec::new();
        for set in &mut self.sets {
            wishes.push(match wish(&set.wanted) {
                Ok((wish, left_out)) => {
                    set.found(left_out);
                    wish
                }
                Err(error) => {
                    set.not_found(&error);
                    Wish::default()
                }
            });
        }
        let (files, shares) = share(&wishes);
        let same = files == self.files;
        self.files = files;
        for (set, Share { parts, whole }) in self.sets.iter_mut().zip(shares) {
            set.whole = whole;
            if !same || parts != set.parts {
                set.take(parts);
            }
        }
        let now = Instant::now();
        self.find_at = now + FIND.max(effort.pause());
        self.look(now);
    }

    /// Counts what is cached of all sets.
    fn look(&mut self, now: Instant) {
        let effort = Effort::new();
        let mut changed = false;
        for at in 0..self.sets.len() {
            changed |= self.look_at_set(at);
            self.sets[at].settle(now);
        }
        self.look_at = now + LOOK.max(effort.pause());
        if changed {
            self.find_at = self.find_at.min(self.look_at);
        }
    }

    /// Counts what is cached of a set; returns whether a file is another one by now.
    fn look_at_set(&mut self, at: usize) -> bool {
        let set = &mut self.sets[at];
        let mut opened: Option<(usize, Option<std::fs::File>)> = None;
        let mut changed = false;
        let mut before = 0;
        for (part, there) in set.parts.iter().zip(&mut set.counted) {
            let end = before + length(part);
            let within = set.cap.saturating_sub(before).min(length(part));
            before = end;
            if opened.as_ref().is_none_or(|(file, _)| *file != part.file) {
                let file = self.files[part.file].open();
                changed |= file.is_err();
                opened = Some((part.file, file.ok()));
            }
            let range = part.range.start..part.range.start + within;
            let file = opened.as_ref().and_then(|(_, file)| file.as_ref());
            let counted = file.and_then(|file| self.cache.resident(file, &range));
            *there = counted.unwrap_or(0);
        }
        changed
    }

    /// Begins to load the first bytes that a set lacks.
    fn load(&mut self, at: usize, most: u64, now: Instant) {
        let set = &mut self.sets[at];
        let (mut parts, mut left, mut before) = (Vec::new(), most, 0);
        for (part, &there) in set.parts.iter().zip(&set.there) {
            let start = before;
            before += length(part);
            if there >= length(part) {
                continue;
            }
            let Ok(cached) = self.cache.cached(&self.files[part.file], &part.range) else {
                continue;
            };
            for gap in cached.gaps(&part.range, 1) {
                let range = gap.start..gap.end.min(gap.start.saturating_add(left));
                if range.is_empty() {
                    break;
                }
                left -= range.end - range.start;
                set.cap = set.cap.max(start + (range.end - part.range.start));
                parts.push(Part {
                    file: part.file,
                    range,
                });
            }
        }
        if parts.is_empty() {
            // It is there by now, or cannot be read.
            self.sets[at].cap = u64::MAX;
            self.look_at_set(at);
            self.sets[at].settle(now);
            if self.sets[at].lacks() {
                self.sets[at].fails("its files cannot be read", now);
            }
            return;
        }
        if bytes(&parts) < most {
            set.cap = u64::MAX;
        }
        let watch = Watch::new(self.memory, self.roots.clone());
        watch.follow_process(std::process::id());
        match Warming::in_background(self.files.clone(), parts, watch, self.loader) {
            Ok(warming) => self.loading = Some(Loading { set: at, warming }),
            Err(error) => self.sets[at].fails(&crate::error::chain(&error), now),
        }
    }

    /// Ends the load under way, if any, and counts what it has done.
    fn stop_loading(&mut self, now: Instant) {
        let Some(Loading { set: at, warming }) = self.loading.take() else {
            return;
        };
        let (stats, lacked) = (warming.stats(), warming.lacked_memory());
        let is_whole = !lacked && stats.queued_bytes + stats.in_flight_bytes == 0;
        drop(warming.end());
        let expected = self.sets[at].there() + stats.loaded_bytes;
        self.look_at_set(at);
        let set = &mut self.sets[at];
        set.has_loaded(stats.loaded_bytes, now);
        if stats.load_errors > 0 {
            set.settle_quietly();
            set.fails("loads failed; the kernel's log may say why (dmesg)", now);
        } else if is_whole {
            // What is gone already was lost.
            set.expect(expected);
            set.settle(now);
        } else {
            set.settle_quietly();
        }
    }

    /// Has sets give way.
    fn release(&mut self, cuts: &[Cut]) {
        for &(at, cap) in cuts {
            let set = &mut self.sets[at];
            let (mut before, mut dropped) = (0, 0);
            for part in &set.parts {
                let start = before;
                before += length(part);
                if before <= cap {
                    continue;
                }
                let skipped = cap.saturating_sub(start);
                let range = part.range.start + skipped..part.range.end;
                let went = self.cache.release_range(&self.files[part.file], &range);
                dropped += went.map_or(0, |(dropped, _)| dropped);
            }
            set.cap = cap;
            set.released += dropped;
            let (name, bytes) = (set.name.clone(), crate::control::config::Bytes(dropped));
            log::info!("Memory is needed: {bytes} of the set {name} are released");
            self.look_at_set(at);
            self.sets[at].settle_quietly();
        }
    }

    /// What the sets keep, by file.
    fn kept(&self) -> HashMap<Identity, Ranges> {
        let mut kept: HashMap<Identity, Ranges> = HashMap::new();
        for part in self.sets.iter().flat_map(|set| &set.parts) {
            let ranges = kept.entry(self.files[part.file].identity()).or_default();
            ranges.insert(&part.range);
        }
        kept
    }

    /// Parts with a set that is gone: drops what no other set keeps, if so wanted, and counts what stays.
    fn part_with(
        &self,
        name: &str,
        parts: impl Iterator<Item = (CacheFile, std::ops::Range<u64>)>,
        kept: &HashMap<Identity, Ranges>,
        drop: bool,
    ) -> KeepRemoved {
        let (mut dropped, mut stays) = (0, 0);
        for (file, range) in parts {
            let own = match kept.get(&file.identity()) {
                Some(kept) => kept.gaps(&range, 1),
                None => vec![range],
            };
            for range in own {
                // A file that is gone has nothing cached.
                if drop {
                    let (went, left) = self.cache.release_range(&file, &range).unwrap_or((0, 0));
                    dropped += went;
                    stays += left;
                } else if let Ok(opened) = file.open() {
                    stays += self.cache.resident(&opened, &range).unwrap_or(0);
                }
            }
        }
        KeepRemoved {
            name: name.to_owned(),
            dropped_bytes: drop.then_some(dropped),
            cached_bytes: stays,
        }
    }
}

/// The files of a set and what of them is wanted, and what was left out.
fn wish(set: &KeepSet) -> Result<(Wish, Vec<LeftOut>)> {
    if set.parts.is_empty() {
        let found = find(&set.paths)?;
        return Ok((Wish::whole(found.files, set.budget), found.left_out));
    }
    let (mut files, mut left_out) = (Vec::new(), Vec::new());
    let mut places: Vec<Option<usize>> = Vec::new();
    for path in &set.paths {
        let one: &[PathBuf] = std::slice::from_ref(path);
        // The service may have been updated since: the other files are still of use.
        let (mut found, left) = match find(one) {
            Ok(found) if !path.is_dir() => (found.files, found.left_out),
            Ok(_) => (Vec::new(), Vec::new()),
            Err(error) => (Vec::new(), vec![missing(path, &error)]),
        };
        left_out.extend(left);
        places.push(found.pop().map(|file| {
            files.push(file);
            files.len() - 1
        }));
    }
    let parts = set.parts.iter().filter_map(|&(path, offset, length)| {
        let file = places.get(path).copied().flatten()?;
        let end = offset.saturating_add(length).min(files[file].size);
        (offset < end).then_some(Part {
            file,
            range: offset..end,
        })
    });
    let wish = Wish {
        parts: parts.collect(),
        files,
        budget: set.budget,
    };
    Ok((wish, left_out))
}

fn missing(path: &std::path::Path, error: &Error) -> LeftOut {
    LeftOut {
        path: path.to_owned(),
        why: Reason::Unreadable(crate::error::chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_waits_for_a_processor_hardly_delays_the_next_one() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(500), ms(2)), LOOK, "of 50 s by its time alone");
        assert_eq!(pause(ms(200), ms(200)), ms(20_000), "many files");
        assert_eq!(pause(ms(6_000), ms(1)), ms(60_000), "a server far away");
    }
}

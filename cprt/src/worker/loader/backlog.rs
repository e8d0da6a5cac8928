//! Queues loads and decides which comes next. Nothing here does I/O or knows the time.
//!
//! Plans are lists of ranges, each for a group of threads (a NUMA node) and most of them for a
//! process. A group has a stream for each process and priority, and takes from them: higher priorities
//! first, and of equal ones each process in its turn, a chunk at a time. A range waits behind those of its
//! stream, unless it replaces: then it removes what waits from older plans of its process for the same
//! file, and when all threads of a group are busy, all that is left of those plans, in flight or not. A
//! range of no particular process replaces nothing. One thread loads what several processes want, for all
//! of them: other threads would only wait for the same pages.
//!
//! A priority below 0 is the background: such pieces are under way only while nothing else is, and no more of them at a
//! time than a reader hardly waits for, as readers that the policy does not know may wait for the same device.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use ppc::FileId;

use super::background::Background;
use crate::backend::Span;

#[cfg(test)]
mod tests;

/// A range to load, already checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadRange {
    pub(crate) span: Span,
    /// 0: no particular process.
    pub(crate) process: u32,
    pub(crate) priority: i32,
    pub(crate) charge: Option<u32>,
    pub(crate) large: bool,
    /// The kernel is to reclaim other cache first.
    pub(crate) hold: bool,
    /// It replaces older ranges of its process.
    pub(crate) replaces: bool,
}

/// A piece of a range that a thread loads at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) range: LoadRange,
    /// Identifies it while it is in flight.
    pub(crate) cookie: u64,
    /// Nothing beyond it may be read, as others read from the device or memory is nearly full.
    pub(crate) exact: bool,
}

/// What a new plan has replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Aside {
    /// Bytes that will no longer be loaded.
    pub(crate) bytes: u64,
    /// Cookies of loads in flight that have to stop.
    pub(crate) stop: Vec<u64>,
}

#[derive(Debug, Default)]
struct Stream {
    process: u32,
    priority: i32,
    ranges: VecDeque<LoadRange>,
    /// The number of its last turn.
    turn: u64,
}

#[derive(Debug, Default)]
struct Group {
    streams: Vec<Stream>,
    flying: Vec<Flying>,
}

#[derive(Debug)]
struct Flying {
    chunk: Chunk,
    /// It has to stop.
    marked: bool,
    /// It is not to be resumed.
    dropped: bool,
    /// Other processes that want it as well.
    also: Vec<u32>,
}

/// All groups.
#[derive(Debug)]
pub(crate) struct Backlog {
    groups: Vec<Group>,
    threads: usize,
    chunk: u64,
    background: Background,
    cookie: u64,
    turn: u64,
    queued: u64,
    /// No thread may take a piece now, so all threads count as busy.
    paused: bool,
}

/// Upper bound on ranges that wait in a group: a policy that names them faster than they are loaded
/// would fill the worker's memory.
const MAX_RANGES: usize = 1 << 18;

/// How many chunks from a load in flight a range counts as about to be loaded.
const NEAR: u64 = 8;

impl Backlog {
    pub(crate) fn new(groups: usize, threads: usize, chunk: u64) -> Self {
        Self {
            groups: (0..groups).map(|_| Group::default()).collect(),
            threads,
            chunk,
            background: Background::new(chunk),
            cookie: 0,
            turn: 0,
            queued: 0,
            paused: false,
        }
    }

    /// Sets how many loads are under way at once from now on.
    pub(crate) fn set_streams(&mut self, threads: usize) {
        self.threads = threads;
    }

    /// Notes how long a piece in the background took, all of which came from the device.
    pub(crate) fn background_loaded(&mut self, bytes: u64, took: Duration) {
        self.background.loaded(bytes, took);
    }

    /// Sets whether threads have to wait.
    pub(crate) fn pause(&mut self, paused: bool) {
        self.paused = paused;
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Bytes that wait.
    pub(crate) fn queued(&self) -> u64 {
        self.queued
    }

    /// Whether something waits for this group.
    pub(crate) fn has_work(&self, group: usize) -> bool {
        self.groups
            .get(group)
            .is_some_and(|group| !group.streams.is_empty())
    }

    /// How many chunks wait for this group, counted up to `most`.
    pub(crate) fn chunks(&self, group: usize, most: usize) -> usize {
        let streams = self.groups.get(group).into_iter();
        let ranges = streams.flat_map(|it| &it.streams).flat_map(|it| &it.ranges);
        let mut chunks = 0;
        for range in ranges {
            let more = usize::try_from(range.span.length.div_ceil(self.chunk));
            chunks = more.map_or(most, |more| chunks + more);
            if chunks >= most {
                return most;
            }
        }
        chunks
    }

    /// Adds a plan: ranges, each with its group.
    pub(crate) fn submit(&mut self, plan: &[(usize, LoadRange)]) -> Aside {
        let mut aside = self.push_aside(plan);
        for &(group, range) in plan {
            let Some(group) = self.groups.get_mut(group) else {
                continue;
            };
            self.queued += range.span.length;
            let key = (range.process, range.priority);
            let streams = &mut group.streams;
            let at = streams
                .iter()
                .position(|stream| (stream.process, stream.priority) == key);
            let at = at.unwrap_or_else(|| {
                streams.push(Stream {
                    process: range.process,
                    priority: range.priority,
                    ..Stream::default()
                });
                streams.len() - 1
            });
            append(
                &mut streams[at].ranges,
                LoadRange {
                    replaces: false,
                    ..range
                },
            );
        }
        let dropped: u64 = self.groups.iter_mut().map(Group::trim).sum();
        self.queued -= dropped;
        aside.bytes += dropped;
        aside
    }

    /// Removes from older plans of the same processes what replacing ranges make obsolete: ranges of the same file, as
    /// the reader is elsewhere by now, and everything where threads are scarce.
    fn push_aside(&mut self, plan: &[(usize, LoadRange)]) -> Aside {
        let mut same = HashSet::new();
        let mut short = HashSet::new();
        let replaces = |range: &LoadRange| range.process != 0 && range.replaces;
        for &(group, range) in plan.iter().filter(|(_, range)| replaces(range)) {
            same.insert((range.process, range.span.file));
            let group = self.groups.get(group);
            if group.is_some_and(|group| self.paused || group.flying.len() >= self.threads) {
                short.insert(range.process);
            }
        }
        let stays = |range: &LoadRange| {
            !short.contains(&range.process) && !same.contains(&(range.process, range.span.file))
        };
        let mut aside = Aside::default();
        for group in &mut self.groups {
            for stream in &mut group.streams {
                let left = stream.left();
                stream.ranges.retain(stays);
                aside.bytes += left - stream.left();
            }
            group.streams.retain(|stream| !stream.ranges.is_empty());
            for flying in &mut group.flying {
                flying.also.retain(|process| !short.contains(process));
                if !short.contains(&flying.chunk.range.process) {
                    continue;
                }
                if let Some(process) = flying.also.pop() {
                    flying.chunk.range.process = process;
                    continue;
                }
                (flying.marked, flying.dropped) = (true, true);
                aside.stop.push(flying.chunk.cookie);
            }
        }
        self.queued -= aside.bytes;
        aside
    }

    /// The next piece for a thread of this group.
    pub(crate) fn take(&mut self, group: usize) -> Option<Chunk> {
        loop {
            let range = self.next(group)?;
            let mut flying = self.groups.iter_mut().flat_map(|group| &mut group.flying);
            if let Some(same) = flying.find(|it| !it.marked && it.covers(&range.span)) {
                same.also.push(range.process);
                continue;
            }
            self.cookie += 1;
            let cookie = self.cookie;
            let exact = range.priority < 0 && !self.background.is_quiet();
            let chunk = Chunk {
                range,
                cookie,
                exact,
            };
            self.groups[group].flying.push(Flying {
                chunk,
                marked: false,
                dropped: false,
                also: Vec::new(),
            });
            return Some(chunk);
        }
    }

    /// Takes the next piece out of the streams.
    fn next(&mut self, group: usize) -> Option<LoadRange> {
        self.turn += 1;
        let turn = self.turn;
        let group = self.groups.get_mut(group)?;
        let next = |stream: &&mut Stream| (std::cmp::Reverse(stream.priority), stream.turn);
        let stream = group.streams.iter_mut().min_by_key(next)?;
        stream.turn = turn;
        let range = stream.ranges.front_mut()?;
        let mut piece = *range;
        // Up to the next boundary, so that neighbouring pieces are aligned to folios and to each other.
        let most = if range.priority < 0 {
            self.background.begin();
            self.background.piece()
        } else {
            self.chunk
        };
        let length = (most - range.span.offset % most).min(range.span.length);
        piece.span.length = length;
        range.span.offset += length;
        range.span.length -= length;
        if range.span.length == 0 {
            stream.ranges.pop_front();
        }
        group.streams.retain(|stream| !stream.ranges.is_empty());
        self.queued -= length;
        Some(piece)
    }

    /// Whether the queue has only background work.
    pub(crate) fn is_for_background(&self) -> bool {
        let mut streams = self
            .groups
            .iter()
            .flat_map(|group| &group.streams)
            .peekable();
        streams.peek().is_some() && streams.all(|stream| stream.priority < 0)
    }

    /// Whether it is time to look whether others read.
    pub(crate) fn background_is_to_look(&self) -> bool {
        self.flying() == 0 && self.background.is_to_look()
    }

    /// Notes whether the device reads while no load of this queue is in flight; `None` if the device does not report
    /// it.
    pub(crate) fn background_look(&mut self, now: Instant, reads: Option<bool>) {
        self.background.look(now, reads);
    }

    /// How long to rest after a piece in the background that took this time.
    pub(crate) fn background_rest(&self, took: Duration) -> Duration {
        self.background.rest(took)
    }

    /// How many pieces may be loaded in the background at once.
    pub(crate) fn background_at_once(&self) -> usize {
        self.background.at_once()
    }

    /// Whether anything is in flight that is not in the background.
    pub(crate) fn is_busy(&self) -> bool {
        let mut flying = self.groups.iter().flat_map(|group| &group.flying);
        flying.any(|flying| flying.chunk.range.priority >= 0)
    }

    /// The highest priority of all that waits or is in flight.
    pub(crate) fn priority(&self) -> i32 {
        let of_group = |group: &Group| {
            let waiting = group.streams.iter().map(|stream| stream.priority);
            let flying = group.flying.iter().map(|it| it.chunk.range.priority);
            waiting.chain(flying).max()
        };
        self.groups.iter().filter_map(of_group).max().unwrap_or(0)
    }

    /// Marks all loads in flight to be stopped and resumed later, and returns their cookies.
    pub(crate) fn hold(&mut self) -> Vec<u64> {
        let flying = self.groups.iter_mut().flat_map(|group| &mut group.flying);
        flying
            .map(|flying| {
                flying.marked = true;
                flying.chunk.cookie
            })
            .collect()
    }

    /// How many threads are loading.
    pub(crate) fn flying(&self) -> usize {
        self.groups.iter().map(|group| group.flying.len()).sum()
    }

    /// How many threads of a group are loading.
    pub(crate) fn flying_in(&self, group: usize) -> usize {
        self.groups.get(group).map_or(0, |group| group.flying.len())
    }

    /// Whether this is in flight, or so near to a load in flight that it is about to be loaded.
    pub(crate) fn is_about(&self, span: &Span) -> bool {
        let near = self.chunk.saturating_mul(NEAR);
        let mut flying = self.groups.iter().flat_map(|group| &group.flying);
        flying.any(|it| {
            let own = it.chunk.range.span;
            own.file == span.file && own.offset.abs_diff(span.offset) < near
        })
    }

    /// Whether a load that has to stop is still in flight.
    pub(crate) fn marked(&self) -> bool {
        let mut flying = self.groups.iter().flat_map(|group| &group.flying);
        flying.any(|flying| flying.marked)
    }

    /// The rest of a stopped piece, unless no process wants it now.
    pub(crate) fn rest(&self, chunk: Chunk, done: u64) -> Option<LoadRange> {
        let mut flying = self.groups.iter().flat_map(|group| &group.flying);
        let wanted = flying.any(|it| it.chunk.cookie == chunk.cookie && !it.dropped);
        let mut rest = chunk.range;
        rest.span.offset += done.min(rest.span.length);
        rest.span.length -= done.min(rest.span.length);
        (wanted && rest.span.length > 0).then_some(rest)
    }

    /// Notes that a thread is done with a piece; the part that it gives back comes first again.
    pub(crate) fn done(&mut self, group: usize, cookie: u64, back: Option<LoadRange>) {
        let Some(group) = self.groups.get_mut(group) else {
            return;
        };
        group.flying.retain(|it| it.chunk.cookie != cookie);
        let Some(back) = back else {
            return;
        };
        self.queued += back.span.length;
        let key = (back.process, back.priority);
        let found = group
            .streams
            .iter_mut()
            .find(|stream| (stream.process, stream.priority) == key);
        match found {
            Some(stream) => stream.ranges.push_front(back),
            None => group.streams.push(Stream {
                process: back.process,
                priority: back.priority,
                ranges: VecDeque::from([back]),
                turn: 0,
            }),
        }
    }

    /// Forgets the ranges of a file that is gone.
    pub(crate) fn forget(&mut self, file: FileId) -> u64 {
        let before = self.queued;
        for group in &mut self.groups {
            for stream in &mut group.streams {
                stream.ranges.retain(|range| range.span.file != file);
            }
            group.streams.retain(|stream| !stream.ranges.is_empty());
        }
        self.recount();
        before - self.queued
    }

    /// Removes these ranges from the queue, because the evictor drops them; returns how many bytes that was.
    pub(crate) fn cancel(&mut self, spans: &[Span]) -> u64 {
        let before = self.queued;
        let gone = by_file(spans);
        for group in &mut self.groups {
            for stream in &mut group.streams {
                stream.cancel(&gone);
            }
            group.streams.retain(|stream| !stream.ranges.is_empty());
        }
        self.recount();
        before - self.queued
    }

    /// Empties the queue; returns its bytes and the loads in flight.
    pub(crate) fn clear(&mut self) -> Aside {
        let bytes = std::mem::take(&mut self.queued);
        let mut stop = Vec::new();
        for group in &mut self.groups {
            group.streams.clear();
            for flying in &mut group.flying {
                (flying.marked, flying.dropped) = (true, true);
                stop.push(flying.chunk.cookie);
            }
        }
        Aside { bytes, stop }
    }

    fn recount(&mut self) {
        let streams = self.groups.iter().flat_map(|group| &group.streams);
        self.queued = streams.map(Stream::left).sum();
    }
}

impl Flying {
    fn covers(&self, span: &Span) -> bool {
        let own = self.chunk.range.span;
        let end = |span: &Span| span.offset.saturating_add(span.length);
        own.file == span.file && own.offset <= span.offset && end(span) <= end(&own)
    }
}

impl Group {
    /// Drops the oldest ranges of the longest stream while there are too many.
    fn trim(&mut self) -> u64 {
        let mut ranges: usize = self.streams.iter().map(|stream| stream.ranges.len()).sum();
        let mut dropped = 0;
        while ranges > MAX_RANGES
            && let Some(longest) = self.streams.iter_mut().max_by_key(|it| it.ranges.len())
        {
            let excess = (ranges - MAX_RANGES).min(longest.ranges.len());
            let oldest = longest.ranges.drain(..excess);
            dropped += oldest.map(|range| range.span.length).sum::<u64>();
            ranges -= excess;
            self.streams.retain(|stream| !stream.ranges.is_empty());
        }
        dropped
    }
}

impl Stream {
    fn left(&self) -> u64 {
        self.ranges.iter().map(|range| range.span.length).sum()
    }

    /// Cuts out the ranges that are gone, in one pass.
    fn cancel(&mut self, gone: &Gone) {
        let touches = |range: &LoadRange| {
            let of_file = gone.get(&range.span.file);
            of_file.is_some_and(|gone| !gone_of(gone, &range.span).is_empty())
        };
        if !self.ranges.iter().any(touches) {
            return;
        }
        let ranges = std::mem::take(&mut self.ranges);
        for range in ranges {
            let of_file = gone.get(&range.span.file).map(Vec::as_slice);
            let mut from = range.span.offset;
            let to = from.saturating_add(range.span.length);
            let mut keep = |from: u64, to: u64| {
                if from < to {
                    let mut part = range;
                    (part.span.offset, part.span.length) = (from, to - from);
                    self.ranges.push_back(part);
                }
            };
            for hole in gone_of(of_file.unwrap_or_default(), &range.span) {
                keep(from, hole.start);
                from = from.max(hole.end);
            }
            keep(from, to);
        }
    }
}

/// The ranges that are gone of each file, sorted and disjoint.
type Gone = HashMap<FileId, Vec<Range<u64>>>;

fn by_file(spans: &[Span]) -> Gone {
    let mut gone = Gone::new();
    for span in spans.iter().filter(|span| span.length > 0) {
        let end = span.offset.saturating_add(span.length);
        gone.entry(span.file).or_default().push(span.offset..end);
    }
    for ranges in gone.values_mut() {
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, last| {
            let joins = next.start <= last.end;
            if joins {
                last.end = last.end.max(next.end);
            }
            joins
        });
    }
    gone
}

/// Those that overlap the span.
fn gone_of<'g>(gone: &'g [Range<u64>], span: &Span) -> &'g [Range<u64>] {
    let end = span.offset.saturating_add(span.length);
    let first = gone.partition_point(|range| range.end <= span.offset);
    let last = gone.partition_point(|range| range.start < end);
    gone.get(first..last).unwrap_or_default()
}

/// Adds a range, or extends the last one if it continues there.
fn append(ranges: &mut VecDeque<LoadRange>, range: LoadRange) {
    if let Some(last) = ranges.back_mut() {
        let mut next = *last;
        next.span.offset = last.span.offset + last.span.length;
        next.span.length = range.span.length;
        if next == range {
            last.span.length += range.span.length;
            return;
        }
    }
    ranges.push_back(range);
}

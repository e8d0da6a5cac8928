//! Finds how many loads under way at once suit the device. Pure; the time comes from outside.
//!
//! One disk is busy with four loads, a network file system with sixty, and a hard disk suffers from more
//! than two. So the number is doubled until that has not paid twice or has done harm, and halved where the first
//! doubling did harm. After that, it tries soon whether a few less are as good, and then now and then whether a few
//! more are better.

use std::cmp::Ordering;
use std::time::Duration;

/// Loads under way at the beginning.
pub(super) const START: usize = 4;
/// Upper bound on loads under way.
pub(super) const MOST: usize = 128;
/// The factor by which doubling the loads has to raise the rate: each load costs CPU time, and the measured rates
/// of a saturated SSD vary by a tenth.
const PAYS: f64 = 1.2;
/// The same factor for half as many loads more.
const PAYS_A_LITTLE: f64 = 1.12;
/// The factor to which a quarter fewer loads may lower the rate.
const AS_GOOD: f64 = 0.97;
/// If more loads lower the rate below this factor, the device suffers from them.
const SUFFERS: f64 = 0.85;
/// Lower bound on loads that a rate is measured over.
const FEW: usize = 8;
/// After this many loads with a new number, a rate below that factor is harm enough: on a device that suffers, to
/// measure on takes longest.
const EARLY: usize = 4;
const HARM: f64 = 0.7;
/// Above this factor a doubling that has not paid is tried once more.
const NO_LESS: f64 = 0.95;
/// A rate below this factor shows that fewer loads leave a part of the device unused.
const LACK: f64 = 0.85;
/// Loads of at least this many bytes take about the same time for each byte.
const LARGE: u64 = 512 << 10;
/// What a load costs besides its bytes, as bytes: the device answers a few times before the first of them. Without
/// that, a rate would say how large the last loads were, as starts read thousands of small files between large ones.
const EACH: u64 = 512 << 10;
/// How many rates to measure before another number is tried; the short one after a change that has just paid, and
/// after the doubling.
const STAY: u32 = 64;
const STAY_SHORT: u32 = 4;
/// If more loads than this factor of the number are in flight, the rate is not that number's.
const TOO_MANY: f64 = 1.25;
/// Upper bound on loads to begin with where an earlier search has found more: the device may bear fewer by now.
const MOST_FOUND: usize = 32;

const SAMPLE_WORDS: usize = 5;
/// How many numbers the state of the search takes.
pub(super) const WORDS: usize = 7 + 2 * SAMPLE_WORDS;
/// The state of the search as numbers.
pub(super) type Words = [u64; WORDS];

/// The state of the search for the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Search {
    /// The configuration has set the number.
    Off,
    /// Doubling.
    Up,
    /// Halving.
    Down,
    /// An earlier search has found the number; what it gives now is being measured.
    Found,
    /// The number stays for this many rates; then more loads are tried, or fewer.
    Stay { left: u32, more: bool },
    /// More loads, or fewer, are being tried.
    Try { more: bool },
}

/// The rate with a number of loads at once: bytes per second, with [`EACH`] for each load.
#[derive(Clone, Copy, Debug)]
struct Mark {
    streams: usize,
    rate: f64,
    /// All of the loads were large.
    large: bool,
}

/// Measurements of some loads.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    loads: usize,
    /// With [`EACH`] for each load.
    bytes: u64,
    took: Duration,
    /// The sum of how many loads were in flight at the end of each.
    together: usize,
    /// Some loads were not large.
    small: bool,
}

impl Sample {
    fn add(&mut self, bytes: u64, took: Duration, together: usize) {
        self.loads += 1;
        self.bytes += bytes + EACH;
        self.took += took;
        self.together += together;
        self.small |= bytes < LARGE;
    }

    fn to_words(self) -> [u64; SAMPLE_WORDS] {
        let took = u64::try_from(self.took.as_nanos()).unwrap_or(u64::MAX);
        let (loads, together) = (self.loads as u64, self.together as u64);
        [loads, self.bytes, took, together, self.small.into()]
    }

    fn from_words(words: &[u64]) -> Option<Self> {
        let &[loads, bytes, took, together, small] = words else {
            return None;
        };
        Some(Self {
            loads: usize::try_from(loads).ok()?,
            bytes,
            took: Duration::from_nanos(took),
            together: usize::try_from(together).ok()?,
            small: small != 0,
        })
    }

    /// How many loads were in flight, on average.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    fn together(&self) -> f64 {
        self.together as f64 / self.loads.max(1) as f64
    }

    /// Loads that begin together end together, so the bytes that arrive in an interval say little. The time that each
    /// load takes says more: the rate of one load, times the number of loads, is the rate of all.
    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
    fn mark(&self, streams: usize) -> Mark {
        let one = self.bytes as f64 / self.took.as_secs_f64().max(1e-9);
        Mark {
            streams,
            rate: self.together() * one,
            large: !self.small,
        }
    }
}

/// The number of loads, and the measurements to find it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    limit: usize,
    search: Search,
    best: Option<Mark>,
    /// Loads to ignore: those that began before this measurement, and the first round with a new number.
    skip: usize,
    sample: Sample,
    /// The same of that first round, for as long as more loads are being tried.
    first: Sample,
}

impl Streams {
    /// A fixed number of loads, or with 0 the number that turns out to be best.
    pub(super) fn new(fixed: usize) -> Self {
        Self {
            limit: if fixed == 0 { START } else { fixed },
            search: if fixed == 0 { Search::Up } else { Search::Off },
            best: None,
            // The first loads open files, and the device may be asleep.
            skip: START,
            sample: Sample::default(),
            first: Sample::default(),
        }
    }

    /// A new search that begins with what this one has found, if it has found anything.
    pub(super) fn found(&self) -> Option<Self> {
        let best = self.best.filter(|_| self.searches())?;
        Some(Self {
            limit: best.streams.min(MOST_FOUND),
            search: Search::Found,
            best: Some(best),
            ..Self::new(0)
        })
    }

    /// How many loads may be under way.
    pub(super) const fn limit(&self) -> usize {
        self.limit
    }

    /// Whether there is anything to find out.
    pub(super) fn searches(&self) -> bool {
        self.search != Search::Off
    }

    /// Notes a load of `bytes` that took `took`, with `flying` others under way. Returns whether the limit has
    /// changed.
    pub(super) fn loaded(&mut self, bytes: u64, took: Duration, flying: usize) -> bool {
        if self.search == Search::Off {
            return false;
        }
        let before = self.limit;
        if let Some(mark) = self.measured(bytes, took, flying + 1) {
            self.judge(mark);
            // Loads under way, and the first round with the new number, belong to neither measurement.
            let others = flying + self.limit;
            self.forget(if self.limit == before { 0 } else { others });
        }
        self.limit != before
    }

    /// Adds a load to the measurement; returns the rate once that says something.
    fn measured(&mut self, bytes: u64, took: Duration, together: usize) -> Option<Mark> {
        if self.skip > 0 {
            self.skip -= 1;
            if self.skip >= self.limit {
                return None;
            }
            self.first.add(bytes, took, together);
            return self.harm();
        }
        self.sample.add(bytes, took, together);
        if self.sample.loads < FEW.max(self.limit) {
            return None;
        }
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        if self.sample.together() > TOO_MANY * self.limit as f64 {
            self.forget(0);
            return None;
        }
        Some(self.sample.mark(self.limit))
    }

    /// The rate of the first round with another number, if it shows that this does harm.
    fn harm(&self) -> Option<Mark> {
        let best = self.best.filter(|best| best.large)?;
        let (few, factor) = match self.limit.cmp(&best.streams) {
            Ordering::Greater => (EARLY, HARM),
            Ordering::Less if self.search == (Search::Try { more: false }) => (2 * EARLY, LACK),
            _ => return None,
        };
        let first = self.first.mark(self.limit);
        let shows = first.large && self.first.loads >= few && first.rate < factor * best.rate;
        shows.then_some(first)
    }

    /// Allows at least this many loads: each worker has one.
    pub(super) fn at_least(&mut self, least: usize) {
        self.limit = self.limit.max(least.min(MOST));
    }

    /// Discards the measurement: there was not enough work for all loads. `flying` are under way.
    pub(super) fn starved(&mut self, flying: usize) {
        self.forget(flying);
    }

    /// The state as numbers, for other workers.
    pub(super) fn to_words(self) -> Words {
        let (search, left) = match self.search {
            Search::Off => (0, 0),
            Search::Up => (1, 0),
            Search::Down => (2, 0),
            Search::Stay { left, more } => (3 + u64::from(more), left),
            Search::Try { more } => (5 + u64::from(more), 0),
            Search::Found => (7, 0),
        };
        let best = self.best.map_or([0; 3], |best| {
            let large = u64::from(best.large);
            [best.streams as u64, best.rate.to_bits(), large]
        });
        let mut words = [0; WORDS];
        let state = [self.limit as u64, search, left.into(), self.skip as u64];
        let all = state.into_iter().chain(best);
        let all = all.chain(self.sample.to_words());
        for (word, number) in words.iter_mut().zip(all.chain(self.first.to_words())) {
            *word = number;
        }
        words
    }

    /// The state that other workers have left; `None` if no worker can have written that.
    pub(super) fn from_words(words: &Words) -> Option<Self> {
        let [
            limit,
            search,
            left,
            skip,
            streams,
            rate,
            large,
            samples @ ..,
        ] = *words;
        let search = match search {
            1 => Search::Up,
            2 => Search::Down,
            3 | 4 => Search::Stay {
                left: u32::try_from(left).ok()?,
                more: search == 4,
            },
            5 | 6 => Search::Try { more: search == 6 },
            7 => Search::Found,
            _ => return None,
        };
        let count = |number: u64| usize::try_from(number).ok().filter(|it| *it <= MOST);
        let best = Mark {
            streams: count(streams)?,
            rate: f64::from_bits(rate),
            large: large != 0,
        };
        let (sample, first) = samples.split_at(SAMPLE_WORDS);
        let known = best.streams > 0 && best.rate.is_finite();
        Some(Self {
            limit: count(limit).filter(|limit| *limit > 0)?,
            search,
            best: known.then_some(best),
            skip: usize::try_from(skip).ok()?,
            sample: Sample::from_words(sample)?,
            first: Sample::from_words(first)?,
        })
    }

    fn forget(&mut self, skip: usize) {
        self.skip = skip;
        self.sample = Sample::default();
        self.first = Sample::default();
    }

    fn judge(&mut self, mark: Mark) {
        let Mark { streams, rate, .. } = mark;
        let Some(best) = &mut self.best else {
            self.best = Some(mark);
            self.limit = (streams * 2).min(MOST);
            return;
        };
        let part = rate / best.rate;
        // Rates of large loads are certain enough to believe them that more loads are worse.
        let again = if best.large && mark.large {
            NO_LESS
        } else {
            HARM
        };
        match self.search {
            Search::Off => {}
            Search::Found => {
                *best = mark;
                self.stay(STAY_SHORT, true);
            }
            Search::Up | Search::Down if part > PAYS => {
                *best = mark;
                let next = if self.search == Search::Up {
                    streams * 2
                } else {
                    streams / 2
                };
                self.limit = next.clamp(1, MOST);
                if self.limit == streams {
                    self.stay(STAY, self.search == Search::Down);
                }
            }
            Search::Up if best.streams == START && part < SUFFERS => {
                self.search = Search::Down;
                self.limit = START / 2;
            }
            // Hardly any device wants so few loads, so more are tried soon.
            Search::Down => self.stay(STAY_SHORT, true),
            // One rate may be off by more than doubling pays, so four times as many are tried as well.
            Search::Up if part > again && streams == best.streams * 2 && streams < MOST => {
                self.limit = (streams * 2).min(MOST);
            }
            // The first rates are the least certain ones, as files are opened meanwhile and readers miss: they may have
            // led too far. A mixture of sizes has no rates so near to each other that fewer loads would show.
            Search::Up if best.large => self.stay(STAY_SHORT, false),
            Search::Up => self.stay(STAY, true),
            Search::Stay { left, more } => {
                best.rate = best.rate.mul_add(0.8, rate * 0.2);
                if left > 0 {
                    self.search = Search::Stay {
                        left: left - 1,
                        more,
                    };
                } else {
                    self.try_other(more);
                }
            }
            Search::Try { more } => {
                // Below the number that every device bears, fewer loads have to be better, not just as good.
                let enough = if more || streams < START {
                    PAYS_A_LITTLE
                } else {
                    AS_GOOD
                };
                if part > enough {
                    // Several steps down, each of them as good as the one before, must not add up to a loss.
                    let rate = if more { rate } else { rate.max(best.rate) };
                    *best = Mark { rate, ..mark };
                    self.stay(STAY_SHORT, more);
                } else {
                    self.stay(STAY, !more);
                }
            }
        }
    }

    fn stay(&mut self, left: u32, more: bool) {
        self.limit = self.best.map_or(self.limit, |best| best.streams);
        let more = more || self.limit <= START;
        self.search = Search::Stay { left, more };
    }

    fn try_other(&mut self, more: bool) {
        let streams = self.limit;
        let other = if more {
            (streams + streams.div_ceil(2)).min(MOST)
        } else {
            (streams - streams / 4).max(1)
        };
        if other == streams {
            self.stay(STAY, !more);
        } else {
            self.search = Search::Try { more };
            self.limit = other;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// The properties of a device that matter here.
    #[derive(Clone, Copy, Debug)]
    struct Device {
        /// How long a single load takes, in ms.
        alone: f64,
        /// Upper bound on loads per ms, of all streams together.
        most: f64,
        /// Each load at once beyond this number costs this part of the rate.
        suffers_from: (usize, f64),
    }

    impl Device {
        fn rate(&self, streams: usize) -> f64 {
            let (many, cost) = self.suffers_from;
            let too_many = u32::try_from(streams.saturating_sub(many)).expect("few");
            let most = self.most / cost.mul_add(f64::from(too_many), 1.0);
            let streams = u32::try_from(streams).expect("few");
            (f64::from(streams) / self.alone).min(most)
        }

        fn best(&self) -> f64 {
            (1..=MOST).map(|it| self.rate(it)).fold(0.0, f64::max)
        }

        /// Loads `mib` MiB, at a rate that `noise` puts off; returns how many of them came at less than nine
        /// tenths of the best rate.
        fn load(&self, streams: &mut Streams, mib: usize, noise: &[f64]) -> usize {
            let (mut slow, mut done) = (0, 0);
            let mut noise = noise.iter().cycle();
            while done < mib {
                let together = streams.limit();
                let rate = self.rate(together);
                let off = 1.0 + noise.next().expect("cycles");
                let all = f64::from(u32::try_from(together).expect("few"));
                let took = Duration::from_secs_f64(all * off / rate / 1e3);
                for _ in 0..together {
                    streams.loaded(MIB, took, together - 1);
                }
                done += together;
                if rate < 0.9 * self.best() {
                    slow += together;
                }
            }
            slow
        }
    }

    const NONE: (usize, f64) = (MOST, 0.0);

    /// The devices that the loader is made for: their names, and how many of 5000 MiB may come slowly.
    fn devices() -> Vec<(&'static str, Device, usize)> {
        let device = |alone, most, suffers_from| Device {
            alone,
            most,
            suffers_from,
        };
        vec![
            ("a fast disk", device(0.5, 3.0, NONE), 100),
            ("one SSD", device(6.0, 0.35, NONE), 100),
            ("a network file system", device(90.0, 0.9, NONE), 800),
            ("a knee at 16", device(10.0, 1.6, NONE), 150),
            // More streams are tried here once again.
            ("a turning disk", device(12.0, 0.15, (2, 0.2)), 170),
        ]
    }

    #[test]
    fn each_device_reaches_over_90_percent_of_its_best_rate() {
        for (name, device, most) in devices() {
            let mut streams = Streams::new(0);
            let slow = device.load(&mut streams, 5000, &[0.0]);
            let rate = device.rate(streams.limit()) / device.best();
            println!("{name}: {} streams, {slow} MiB slowly", streams.limit());
            assert!(rate > 0.9, "{name}: {rate} of the best rate");
            assert!(slow <= most, "{name}: {slow} MiB slowly");
        }
    }

    /// A device that suffers is slowest while too many loads are tried, so that few MiB of them cost much time.
    #[test]
    fn harmful_stream_count_is_abandoned_early() {
        let disk = devices()[4].1;
        let disk = Device {
            suffers_from: (2, 0.4),
            ..disk
        };
        let mut streams = Streams::new(0);
        let (mut done, mut took) = (0, 0.0);
        while done < 256 {
            let together = streams.limit();
            let all = f64::from(u32::try_from(together).expect("few"));
            let each = all / disk.rate(together);
            for _ in 0..together {
                streams.loaded(2 * MIB, Duration::from_secs_f64(each * 2e-3), together - 1);
            }
            done += together;
            took += each;
        }
        let best = 256.0 / disk.best();
        println!("{:.2} of the least time", took / best);
        assert!(took < 1.2 * best, "{took} instead of {best}");
    }

    /// Half of the loads rest while readers wait: the rate of the other half does not justify more loads.
    #[test]
    fn loads_that_rest_are_not_counted() {
        let ssd = devices()[1].1;
        let mut streams = Streams::new(0);
        for _ in 0..1000 {
            let readers_wait = streams.limit() > START;
            let together = streams.limit() / if readers_wait { 2 } else { 1 };
            let all = f64::from(u32::try_from(together).expect("few"));
            let took = Duration::from_secs_f64(all / ssd.rate(together) / 1e3);
            streams.loaded(MIB, took, together - 1);
        }
        assert_eq!(streams.limit(), START);
    }

    #[test]
    fn the_state_survives_as_numbers() {
        for (_, device, _) in devices() {
            let (mut whole, mut parts) = (Streams::new(0), Streams::new(0));
            for _ in 0..500 {
                device.load(&mut whole, 1, &[0.0]);
                device.load(&mut parts, 1, &[0.0]);
                let words = parts.to_words();
                parts = Streams::from_words(&words).expect("the state");
                assert_eq!(words, whole.to_words());
            }
        }
        assert!(Streams::from_words(&[0; WORDS]).is_none());
        assert!(Streams::from_words(&[u64::MAX; WORDS]).is_none());
    }

    #[test]
    fn fixed_stream_limit_never_changes() {
        let mut streams = Streams::new(7);
        devices()[2].1.load(&mut streams, 1000, &[0.0]);
        assert_eq!(streams.limit(), 7);
    }

    #[test]
    fn a_device_that_becomes_slower_for_many_gets_fewer() {
        let [_, _, (_, far, _), _, (_, disk, _)] = devices()[..] else {
            panic!("five devices");
        };
        let mut streams = Streams::new(0);
        far.load(&mut streams, 5000, &[0.0]);
        assert!(streams.limit() >= 64);
        disk.load(&mut streams, 200_000, &[0.0]);
        assert!(streams.limit() < 16, "{}", streams.limit());
    }

    #[test]
    fn without_work_nothing_is_learnt() {
        let mut streams = Streams::new(0);
        for _ in 0..1000 {
            streams.loaded(MIB, Duration::from_millis(1), 0);
            streams.starved(0);
        }
        assert_eq!(streams.limit(), START);
    }

    /// Rates that are off by five percent in either direction make no great difference.
    #[test]
    fn noise_does_not_lead_astray() {
        let mut seed = 1_u64;
        let mut noise = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let part = u32::try_from(seed >> 40).expect("24 bits");
            f64::from(part) / f64::from(1_u32 << 24) * 0.1 - 0.05
        };
        for _ in 0..200 {
            let noise: Vec<f64> = (0..100).map(|_| noise()).collect();
            for (name, device, _) in devices() {
                let mut streams = Streams::new(0);
                device.load(&mut streams, 5000, &noise);
                let rate = device.rate(streams.limit()) / device.best();
                assert!(rate > 0.75, "{name}: {rate} with {}", streams.limit());
            }
        }
    }

    /// How many of a hundred starts have fewer than `few` loads at once after 300 loads, from a device that takes
    /// `latency` ms to answer and transfers `bandwidth` bytes per ms.
    ///
    /// A start reads thousands of small files and parts of large ones, in any mixture. Each small one takes as long as
    /// the device needs to answer: for the folder, the inode and the data, as far as they are not in memory.
    fn starts_with_few(few: usize, latency: f64, bandwidth: f64) -> usize {
        const KIB: u64 = 1 << 10;

        let mut seed = 1_u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 40
        };
        let mut size = || match random() % 16 {
            0..8 => (4 * KIB, random() % 3 + 1),
            8..12 => (24 * KIB, random() % 3 + 1),
            12..14 => (128 * KIB, 3),
            14 => (512 * KIB, 3),
            _ => (2 * MIB, 3),
        };
        let mut late = 0;
        for _ in 0..100 {
            let mut streams = Streams::new(0);
            let mut loads = 0;
            while loads < 300 {
                let together = streams.limit();
                let sizes: Vec<_> = (0..together).map(|_| size()).collect();
                #[allow(clippy::cast_precision_loss, reason = "an estimate")]
                let on_bus = sizes.iter().map(|(bytes, _)| bytes).sum::<u64>() as f64 / bandwidth;
                for (bytes, answers) in sizes {
                    #[allow(clippy::cast_precision_loss, reason = "an estimate")]
                    let alone = latency.mul_add(answers as f64, bytes as f64 / bandwidth);
                    let took = Duration::from_secs_f64(alone.max(on_bus) / 1e3);
                    streams.loaded(bytes, took, together - 1);
                }
                loads += together;
            }
            late += usize::from(streams.limit() < few);
        }
        late
    }

    #[test]
    fn a_mixture_of_sizes_does_not_lead_astray() {
        for (few, latency, bandwidth) in [(8, 1.5, 350e3), (32, 20.0, 1e6)] {
            let late = starts_with_few(few, latency, bandwidth);
            println!("{latency} ms: {late} of 100 starts had fewer than {few} loads at once");
            assert!(
                late < 3,
                "{latency} ms: {late} of 100 starts had fewer than {few} loads at once"
            );
        }
    }
}

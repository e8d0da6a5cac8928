//! The bars: what the results have to show, and whether they do.

use std::fmt::Write as _;

use crate::backend_cost::{RECORDING, STARTING};
use crate::case::{Policy, Regime};
use crate::reader::{Access, Mode, Order};
use crate::result::{Bar, Bystander, CaseResult, Recorded, Results, Run};
use crate::ssd::TIMING;
use crate::table::{beside, of_runs};
use crate::units::float;

/// The ratio up to which two cases count as equal.
const NOISE: f64 = 1.05;

/// All bars that can be computed from the cases in the results.
pub(crate) fn bars(results: &Results) -> Vec<Bar> {
    let mut bars = Vec::new();
    for case in results
        .cases
        .iter()
        .filter(|case| case.policy.is_maio() && !case.runs.is_empty())
    {
        let ledger = Ledger {
            results,
            case,
            load: of_runs(case, |run| run.load).unwrap_or(0.0),
        };
        ledger.every_case(&mut bars);
        if case.reader.mode == Mode::Tp && case.reader.access != Access::Direct {
            ledger.shared(&mut bars);
        }
        match case.regime {
            _ if is_harmless(case) => ledger.harmless(&mut bars),
            Regime::Ample => ledger.ample(&mut bars),
            Regime::Limited => ledger.limited(&mut bars),
            Regime::OwnDisk => ledger.own_disk(&mut bars),
            Regime::Cached | Regime::Slow => {}
        }
    }
    bars.extend(results.bystanders.iter().map(bystander));
    bars
}

/// The limit for what an unrelated program may lose to a policy.
fn bystander(found: &Bystander) -> Bar {
    let records = [RECORDING, STARTING].contains(&found.state.as_str());
    let limit = if records { 1.02 } else { 1.01 };
    Bar {
        what: "warm 4 KiB reads / without".to_owned(),
        case: format!("bystander/{}", found.state),
        value: found.ratio,
        limit,
        passed: found.ratio <= limit,
    }
}

/// Whether there is nothing to gain in a case, so that nothing may be lost either.
fn is_harmless(case: &CaseResult) -> bool {
    let nothing = matches!(case.regime, Regime::Cached | Regime::Slow);
    let wrong = matches!(case.policy, Policy::MaioWrong | Policy::MaioStale);
    nothing || case.reader.access == Access::Direct || wrong
}

/// A case, with the results that it is compared with.
struct Ledger<'r> {
    results: &'r Results,
    case: &'r CaseResult,
    load: f64,
}

impl Ledger<'_> {
    fn load_of(&self, policy: Policy) -> Option<f64> {
        let case = beside(self.results, self.case, policy)?;
        of_runs(case, |run| run.load)
    }

    fn bar(&self, bars: &mut Vec<Bar>, what: &str, value: f64, limit: f64) {
        bars.push(Bar {
            what: what.to_owned(),
            case: self.case.name.clone(),
            value,
            limit,
            passed: value <= limit,
        });
    }

    /// Adds a bar for the ratio of the load time to another one.
    fn against(&self, bars: &mut Vec<Bar>, what: &str, other: Option<f64>, limit: f64) {
        if let Some(other) = other.filter(|&other| other > 0.0) {
            self.bar(bars, what, self.load / other, limit);
        }
    }

    /// The whole time that a user waits may be longer by 2 % or 50 ms, whichever is more.
    fn own_disk(&self, bars: &mut Vec<Bar>) {
        let of = |case| of_runs(case, |run| run.whole);
        let native = beside(self.results, self.case, Policy::Native).and_then(of);
        if let (Some(native), Some(whole)) = (native.filter(|it| *it > 0.0), of(self.case)) {
            let limit = (1.0 + 0.05 / native).max(1.02);
            self.bar(bars, "command / native's", whole / native, limit);
        }
    }

    fn every_case(&self, bars: &mut Vec<Bar>) {
        if self.case.regime == Regime::OwnDisk {
            return;
        }
        let model = float(self.results.testbed.model);
        let value = |of: fn(&Run) -> f64| of_runs(self.case, of).unwrap_or(0.0);
        if self.case.regime != Regime::Cached && self.case.reader.access != Access::Direct {
            let bytes = value(|run| float(run.device_bytes)) / model;
            self.bar(bars, "device bytes / model", bytes, 1.02);
        }
        if self.results.testbed.timing.latency_us > TIMING.latency_us {
            // The CPU time of an emulated processor says nothing.
            return;
        }
        let cpu = value(|run| run.runtime_cpu) / (model / 1e9);
        match self.case.regime {
            Regime::Ample => self.bar(bars, "CPU s of the runtime per GB", cpu, 0.25),
            Regime::Limited => self.bar(bars, "CPU s of the runtime per GB", cpu, 0.45),
            Regime::Cached | Regime::Slow | Regime::OwnDisk => {}
        }
    }

    /// For workers that share a model: whether the reads of each are recorded correctly, and their data is
    /// in memory before they need it.
    fn shared(&self, bars: &mut Vec<Bar>) {
        let beside = |policy| beside(self.results, self.case, policy);
        let readers = |case| of_some(case, |run| run.readers_bytes);
        match (self.case.policy, self.case.regime) {
            (Policy::MaioFirst, Regime::Ample) => {
                self.recorded(bars);
                let all = beside(Policy::Native).and_then(readers);
                let replay = beside(Policy::MaioReplay).and_then(readers);
                if let (Some(all), Some(replay), Some(own)) = (all, replay, readers(self.case))
                    && all > replay
                {
                    let lost = (own - replay) / (all - replay);
                    self.bar(bars, "of a replay's gain is lost", lost, 0.10);
                }
            }
            (Policy::MaioReplay, Regime::Ample) => {
                let late = of_some(self.case, |run| run.late_bytes);
                let all = beside(Policy::Native).and_then(readers);
                if let (Some(late), Some(all)) = (late, all.filter(|&all| all > 0.0)) {
                    self.bar(bars, "readers' late bytes / native's", late / all, 0.01);
                }
            }
            (Policy::MaioReplay, Regime::Limited) => self.dropped(bars),
            (Policy::MaioWrong | Policy::MaioStale, _) => {
                let device = |case| of_runs(case, |run| float(run.device_bytes));
                let native = beside(Policy::Native).and_then(device);
                if let (Some(own), Some(native)) = (device(self.case), native) {
                    self.bar(bars, "device bytes / native's", own / native, 1.03);
                }
            }
            _ => {}
        }
    }

    /// Adds bars for the pages that the template of this load lacks, and for those that it has and nothing read.
    fn recorded(&self, bars: &mut Vec<Bar>) {
        let workers = self.case.reader.workers as usize;
        let pages =
            |of: fn(&Recorded) -> u64| of_some(self.case, |run| run.recorded.map(|it| of(&it)));
        let lacking = of_some(self.case, |run| {
            let found = run.recorded?;
            // A template with more workers or fewer is of no use at all.
            let unusable = found.workers != workers;
            Some(found.missing + if unusable { found.right } else { 0 })
        });
        let read = pages(|it| it.right + it.missing).filter(|&read| read > 0.0);
        if let (Some(lacking), Some(extra), Some(read)) = (lacking, pages(|it| it.not_read), read) {
            self.bar(bars, "read, but not in the template", lacking / read, 0.001);
            self.bar(bars, "in the template, but not read", extra / read, 0.01);
        }
    }

    /// The module drops mapped pages; without it they stay, and are counted.
    fn dropped(&self, bars: &mut Vec<Bar>) {
        let mapped = self.case.reader.access != Access::Pread;
        if mapped && self.results.backend != "module" {
            return;
        }
        let stat = |name: &'static str| of_some(self.case, move |run| run.stats.get(name).copied());
        if let (Some(kept), Some(dropped)) = (stat("kept_bytes"), stat("evicted_bytes")) {
            let part = kept / dropped.max(1.0);
            self.bar(bars, "to be dropped and stayed", part, 0.001);
        }
    }

    fn harmless(&self, bars: &mut Vec<Bar>) {
        self.against(bars, "load / native", self.load_of(Policy::Native), 1.03);
    }

    fn ample(&self, bars: &mut Vec<Bar>) {
        if self.case.policy == Policy::MaioFirst {
            let replay = self.load_of(Policy::MaioReplay);
            return self.against(bars, "load / replay", replay, 1.10);
        }
        let first = self.load_of(Policy::MaioFirst);
        self.against(bars, "load / first load", first, 1.05);
        let precache = self.load_of(Policy::Precache).unwrap_or(0.0);
        let testbed = &self.results.testbed;
        // A worker that reads everything twice has to copy it twice.
        let again = match self.case.reader.order {
            Order::Twice => testbed.warm - testbed.start,
            _ => 0.0,
        };
        let floor = testbed.device.max(precache) + again;
        // No loader can have what each of several workers wants next.
        let (what, floor) = match self.case.reader.order {
            Order::Shuffled | Order::Reshuffled if self.case.reader.mode == Mode::Full => (
                "load / max(F, precache, own orders)",
                floor.max(testbed.own_orders),
            ),
            _ => ("load / max(F, precache)", floor),
        };
        self.against(bars, what, Some(floor), 1.10);
        let native = match self.case.reader.mode {
            Mode::Full => 0.20,
            _ => 0.38,
        };
        self.gain(bars, native, 0.75);
        self.peers(bars, NOISE);
    }

    fn limited(&self, bars: &mut Vec<Bar>) {
        if self.case.policy == Policy::MaioFirst {
            return;
        }
        match (self.case.reader.access, self.case.reader.mode) {
            (Access::Kept, _) => {
                // The module drops mapped pages.
                let limit = if self.results.backend == "module" {
                    0.30
                } else {
                    0.50
                };
                self.against(bars, "load / native", self.load_of(Policy::Native), limit);
            }
            (_, mode) => {
                let floor = self.results.testbed.limited_floor(mode);
                self.against(bars, "load / limited floor", Some(floor), 1.15);
                let native = if mode == Mode::Full { 0.25 } else { 0.50 };
                self.gain(bars, native, 0.90);
            }
        }
        self.peers(bars, 0.5);
    }

    /// Adds bars for the gain over the kernel, for the readers that the claim is about.
    fn gain(&self, bars: &mut Vec<Bar>, native: f64, native_4096: f64) {
        let reader = self.case.reader;
        if reader.workers == 4 && reader.order == Order::Natural {
            self.against(bars, "load / native", self.load_of(Policy::Native), native);
            let far = self.load_of(Policy::Native4096);
            self.against(bars, "load / native-4096k", far, native_4096);
        }
    }

    fn peers(&self, bars: &mut Vec<Bar>, limit: f64) {
        for policy in [Policy::Eager, Policy::Framework, Policy::Precache] {
            // With enough memory, everything was loaded before the clock started.
            let before = policy == Policy::Precache && self.case.regime == Regime::Ample;
            if !before {
                let what = format!("load / {policy}");
                self.against(bars, &what, self.load_of(policy), limit);
            }
        }
    }
}

/// The median of a number, if all runs have it.
fn of_some(case: &CaseResult, of: impl Fn(&Run) -> Option<u64>) -> Option<f64> {
    let all = case.runs.iter().all(|run| of(run).is_some());
    of_runs(case, |run| float(of(run).unwrap_or(0))).filter(|_| all)
}

/// The bars as text, with the missed ones last, where they are noticed.
pub(crate) fn list(bars: &[Bar]) -> String {
    let (passed, missed): (Vec<&Bar>, Vec<&Bar>) = bars.iter().partition(|bar| bar.passed);
    let mut text = String::new();
    for bar in passed.iter().chain(&missed) {
        let word = if bar.passed { "PASS" } else { "MISS" };
        let Bar {
            what,
            case,
            value,
            limit,
            ..
        } = bar;
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "{word}  {value:6.3} of {limit:5.3}  {what:<28} {case}"
        );
    }
    text + &format!("{} passed, {} missed\n", passed.len(), missed.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::Profile;
    use crate::result::Recorded;
    use crate::result::samples::results;

    fn bar(bars: &[Bar], what: &str) -> Option<(f64, bool)> {
        let found = bars.iter().find(|bar| bar.what == what);
        found.map(|bar| ((bar.value * 1000.0).round() / 1000.0, bar.passed))
    }

    #[test]
    fn an_ample_replay_is_held_against_the_device_and_its_peers() {
        let full = Profile::full();
        let loads = [
            (Policy::Native, 20.0),
            (Policy::Eager, 3.0),
            (Policy::Precache, 3.0),
            (Policy::MaioReplay, 4.2),
            (Policy::MaioFirst, 4.4),
        ];
        let found = bars(&results(full, Regime::Ample, &loads));
        assert_eq!(bar(&found, "load / native"), Some((0.21, false)));
        assert_eq!(bar(&found, "load / max(F, precache)"), Some((1.05, true)));
        assert_eq!(bar(&found, "load / eager"), Some((1.4, false)));
        assert_eq!(bar(&found, "load / precache"), None);
        assert_eq!(bar(&found, "load / replay"), Some((1.048, true)));
        assert_eq!(bar(&found, "load / first load"), Some((0.955, true)));
        assert_eq!(bar(&found, "load / framework"), None, "it was not run");
        let text = list(&found);
        assert!(text.ends_with("7 passed, 2 missed\n"), "{text}");
    }

    #[test]
    fn a_command_on_the_own_disk_may_take_two_hundredths_or_fifty_ms_more() {
        let of = |native, ours| {
            let loads = [(Policy::Native, native), (Policy::MaioFirst, ours)];
            let mut results = results(Profile::full().with(1), Regime::OwnDisk, &loads);
            for case in &mut results.cases {
                case.runs[0].whole = case.runs[0].load;
            }
            let found = bars(&results);
            assert_eq!(found.len(), 1, "{found:?}");
            bar(&found, "command / native's").map(|(_, passed)| passed)
        };
        assert_eq!((of(0.5, 0.545), of(0.5, 0.56)), (Some(true), Some(false)));
        assert_eq!((of(10.0, 10.15), of(10.0, 10.3)), (Some(true), Some(false)));
    }

    #[test]
    fn bystanders_may_lose_one_hundredth_and_two_while_a_load_is_recorded() {
        let of = |state: &str, ratio| Bystander {
            state: state.to_owned(),
            with_ms: 200.0,
            without_ms: 200.0,
            ratio,
            spread: 0.0,
        };
        let passed = |state, ratio| bystander(&of(state, ratio)).passed;
        assert!(passed("idle", 1.009) && !passed("ppcctl run", 1.011));
        assert!(passed(RECORDING, 1.019) && !passed(RECORDING, 1.021));
    }

    #[test]
    fn floor_for_reading_twice_includes_the_second_copy() {
        let twice = Profile::full().in_order(Order::Twice);
        let found = bars(&results(twice, Regime::Ample, &[(Policy::MaioReplay, 5.0)]));
        // 4 s of the device, and 1 s of copies.
        assert_eq!(bar(&found, "load / max(F, precache)"), Some((1.0, true)));
    }

    #[test]
    fn workers_with_orders_of_their_own_are_held_against_what_a_loader_can_do_for_them() {
        let shuffled = Profile::full().in_order(Order::Shuffled);
        let found = bars(&results(
            shuffled,
            Regime::Ample,
            &[(Policy::MaioReplay, 5.0)],
        ));
        let what = "load / max(F, precache, own orders)";
        assert_eq!(bar(&found, what), Some((1.0, true)));
        assert_eq!(bar(&found, "load / max(F, precache)"), None);
    }

    #[test]
    fn a_limited_replay_is_held_against_what_the_window_allows() {
        let tp = Profile::tp().by(Access::Dropped);
        let loads = [(Policy::Native, 10.0), (Policy::MaioReplay, 5.0)];
        let results = results(tp, Regime::Limited, &loads);
        // 1 s to start, and then 1 GB less a window of 0.2 GB at 0.25 GB/s.
        assert!((results.testbed.limited_floor(Mode::Full) - 4.2).abs() < 1e-9);
        let found = bars(&results);
        assert_eq!(bar(&found, "load / limited floor"), Some((1.19, false)));
        assert_eq!(bar(&found, "load / native"), Some((0.5, true)));
    }

    #[test]
    fn bars_cover_template_errors_lost_gain_and_late_reads() {
        let loads = [
            (Policy::Native, 10.0),
            (Policy::MaioFirst, 5.0),
            (Policy::MaioReplay, 5.0),
        ];
        let mut results = results(Profile::tp(), Regime::Ample, &loads);
        let missing = "read, but not in the template";
        let extra = "in the template, but not read";
        assert_eq!(bar(&bars(&results), missing), None, "nothing was recorded");
        for (case, bytes) in results.cases.iter_mut().zip([1000, 300, 100]) {
            case.runs[0].readers_bytes = Some(bytes);
            case.runs[0].late_bytes = Some(bytes / 10);
        }
        let mut recorded = Recorded {
            workers: 4,
            right: 199,
            missing: 1,
            not_read: 2,
        };
        results.cases[1].runs[0].recorded = Some(recorded);
        let found = bars(&results);
        assert_eq!(bar(&found, missing), Some((0.005, false)));
        assert_eq!(bar(&found, extra), Some((0.01, true)));
        let lost = bar(&found, "of a replay's gain is lost");
        assert_eq!(lost, Some((0.222, false)));
        let late = bar(&found, "readers' late bytes / native's");
        assert_eq!(late, Some((0.01, true)));
        recorded.workers = 3;
        recorded.not_read = 3;
        results.cases[1].runs[0].recorded = Some(recorded);
        let found = bars(&results);
        assert_eq!(bar(&found, missing), Some((1.0, false)));
        assert_eq!(bar(&found, extra), Some((0.015, false)));
    }

    #[test]
    fn undropped_mapped_bytes_count_only_with_the_module() {
        let loads = [(Policy::Native, 10.0), (Policy::MaioReplay, 5.0)];
        let mut results = results(Profile::tp(), Regime::Limited, &loads);
        let stats = [("kept_bytes", 5), ("evicted_bytes", 1000)];
        results.cases[1].runs[0].stats = stats.map(|(name, n)| (name.to_owned(), n)).into();
        let what = "to be dropped and stayed";
        assert_eq!(bar(&bars(&results), what), None, "it is mapped");
        "module".clone_into(&mut results.backend);
        assert_eq!(bar(&bars(&results), what), Some((0.005, false)));
    }

    #[test]
    fn load_slowed_4_percent_by_a_wrong_template_fails() {
        let loads = [(Policy::Native, 10.0), (Policy::MaioWrong, 10.4)];
        let found = bars(&results(Profile::full(), Regime::Ample, &loads));
        assert_eq!(bar(&found, "load / native"), Some((1.04, false)));
    }
}

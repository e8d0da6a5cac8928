//! What a measurement comes to, as it is written to `target/bench/NAME.json`.
//!
//! Times are seconds, amounts bytes, unless a name says otherwise. What is added later has a default,
//! so that older files can be read.

use serde::{Deserialize, Serialize};

use crate::case::{Policy, Regime};
use crate::median::median;
use crate::reader::Profile;
use crate::ssd::{Lateness, Timing};
use crate::units::float;

/// All of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Of this structure: 1.
    pub(crate) format: u32,
    /// What was asked for: quick, standard or the like.
    pub(crate) profile: String,
    /// How misses were heard of.
    pub(crate) backend: String,
    pub(crate) machine: Machine,
    pub(crate) testbed: Testbed,
    /// Of a model on a disk of the machine; none on the simulated SSD.
    #[serde(default)]
    pub(crate) real: Option<Real>,
    /// Whole starts, of each disk that they were measured on.
    #[serde(default)]
    pub(crate) whole_starts: Vec<Starts>,
    /// This machine's own disk, if something was loaded from there beside the simulated SSD.
    #[serde(default)]
    pub(crate) own_disk: Option<OwnDisk>,
    /// What reading costs programs that have nothing to do with any of this, if that was measured.
    #[serde(default)]
    pub(crate) bystanders: Vec<Bystander>,
    /// How well the simulated SSD keeps to its model, before the first run.
    pub(crate) checks: Vec<Check>,
    /// In the order in which they were first run.
    pub(crate) cases: Vec<CaseResult>,
    /// What was to be shown, and whether it was.
    pub(crate) bars: Vec<Bar>,
}

/// What a command takes from exec to exit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Starts {
    /// What is started, in a sentence.
    pub(crate) what: String,
    /// What it is read from.
    pub(crate) disk: String,
    /// Cold, with MAIO first and later, and with everything cached.
    pub(crate) times: Vec<StartTimes>,
}

impl Starts {
    /// The part of what a cold disk costs that second starts do without; `None` if it costs nothing to speak of.
    pub(crate) fn removed(&self) -> Option<f64> {
        /// Of a cold start.
        const LEAST: f64 = 0.05;

        let [cold, _, later, warm] = &self.times[..] else {
            return None;
        };
        let [cold, later, warm] = [cold, later, warm].map(StartTimes::median);
        (cold - warm > cold * LEAST).then(|| (cold - later) / (cold - warm))
    }
}

impl StartTimes {
    pub(crate) fn median(&self) -> f64 {
        median(self.seconds.iter().copied()).map_or(0.0, |it| it.value)
    }
}

/// Starts of one kind, a number for each round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StartTimes {
    pub(crate) title: String,
    pub(crate) seconds: Vec<f64>,
}

/// Where it was measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processors: usize,
    pub(crate) memory: u64,
    /// Of this program.
    pub(crate) version: String,
}

/// What was measured with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Testbed {
    pub(crate) timing: Timing,
    /// Of all files of the model.
    pub(crate) model: u64,
    pub(crate) files: usize,
    /// Of the memory cgroup where it is limited.
    pub(crate) limit: u64,
    /// What the runtime may fill of that.
    pub(crate) window: u64,
    /// How long the device takes for the model: what it has divided by its bandwidth.
    pub(crate) device: f64,
    /// From reading the configuration to the first weight.
    pub(crate) start: f64,
    /// How long a load by four workers takes if all is cached and nothing takes CPU time.
    pub(crate) warm: f64,
    /// Whether the simulated SSD runs before all other processes.
    pub(crate) runs_first: bool,
}

/// A model on a disk of the machine, and what loaded it. Of the testbed there are the files and, if it
/// could be measured, the best bandwidth then.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Real {
    pub(crate) folder: String,
    /// For a shell; nothing if every byte was looked at through mappings.
    pub(crate) command: String,
    /// The device and its file system, as far as they are known.
    pub(crate) disk: String,
    /// Why it was not on a simulated SSD, if it should have been.
    pub(crate) instead: String,
}

/// A disk of the machine, beside the simulated SSD.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct OwnDisk {
    /// The device and its file system, as far as they are known.
    pub(crate) name: String,
    /// The most bytes a second that it was seen to give; 0 if that is not known.
    pub(crate) best: f64,
}

/// A program that reads a cached file of its own, beside a policy: medians.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bystander {
    /// What the policy does meanwhile.
    pub(crate) state: String,
    /// How long the reader takes with it and without, in ms.
    pub(crate) with_ms: f64,
    pub(crate) without_ms: f64,
    /// How many times as long as without in the same round, and how far the farthest round is from that, as a
    /// part of it.
    pub(crate) ratio: f64,
    pub(crate) spread: f64,
}

/// A few requests, and how long they should have taken.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    /// Bytes per second by the model, and as measured.
    pub(crate) expected: f64,
    pub(crate) measured: f64,
}

/// One case, in all rounds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct CaseResult {
    pub(crate) name: String,
    pub(crate) policy: Policy,
    pub(crate) reader: Profile,
    pub(crate) regime: Regime,
    /// Why there are fewer runs than rounds, if there are.
    #[serde(default)]
    pub(crate) left_out: String,
    pub(crate) runs: Vec<Run>,
}

/// One load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Run {
    pub(crate) round: usize,
    /// From opening the configuration to the end of the last worker.
    pub(crate) load: f64,
    /// With the start and the end of all processes and of the runtime: what a user waits for. 0 of older programs.
    pub(crate) whole: f64,
    /// Read from the device, as it has counted itself.
    pub(crate) device_bytes: u64,
    pub(crate) requests: u64,
    /// The part of the device's bandwidth that was used during the load, up to 1.
    pub(crate) utilisation: f64,
    /// Of all workers.
    pub(crate) major_faults: u64,
    pub(crate) minor_faults: u64,
    /// What the disk gave for all workers themselves, and what of it after the first hundredth of what each
    /// of them touched; not told by all kernels.
    pub(crate) readers_bytes: Option<u64>,
    pub(crate) late_bytes: Option<u64>,
    /// How well the template that was kept says what was read.
    pub(crate) recorded: Option<Recorded>,
    /// CPU time of all readers, of the runtime's worker with its policy, and of the simulated SSD.
    pub(crate) reader_cpu: f64,
    pub(crate) runtime_cpu: f64,
    pub(crate) device_cpu: f64,
    /// The most page cache that was charged to the readers' cgroup, and anonymous memory.
    pub(crate) peak_cache: u64,
    pub(crate) peak_anonymous: u64,
    /// The most memory that the runtime's worker took.
    pub(crate) runtime_memory: u64,
    /// Bytes that had been loaded when the load began, by a policy that loads before.
    pub(crate) before: u64,
    /// Touched by all workers, and what of it was wrong.
    pub(crate) touched: u64,
    pub(crate) wrong: u64,
    /// Bytes of the model that were cached before, where nothing should have been.
    pub(crate) dirty: u64,
    pub(crate) lateness: Lateness,
    /// The part of the machine's CPU time that neither we nor the device took.
    pub(crate) others: f64,
    /// The device was late, twice, or others took much of the CPU time.
    pub(crate) disturbed: bool,
    /// What the runtime counted, by the names of `ppcctl stats`.
    pub(crate) stats: std::collections::BTreeMap<String, u64>,
    /// What policy and runtime had to say.
    pub(crate) notes: Vec<String>,
    /// What happened when.
    pub(crate) timeline: Timeline,
}

/// A template against what was read, in pages of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Recorded {
    /// Workers that it knows of.
    pub(crate) workers: usize,
    pub(crate) right: u64,
    /// Read, and not in it.
    pub(crate) missing: u64,
    /// In it, and not read.
    pub(crate) not_read: u64,
}

/// A run over time. Moments are seconds after its begin.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Timeline {
    /// Bytes that the device delivered in each tenth of a second.
    pub(crate) device: Vec<u64>,
    /// When the first of these was, usually a little before the begin.
    pub(crate) device_from: f64,
    /// When workers began and ended to read.
    pub(crate) workers: Vec<(f64, f64)>,
    pub(crate) samples: Vec<Sample>,
}

/// One look.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sample {
    pub(crate) at: f64,
    /// Charged to the readers' cgroup.
    pub(crate) cache: u64,
    pub(crate) anonymous: u64,
    /// By the runtime: waiting and in flight, loaded and dropped so far.
    pub(crate) queued: u64,
    pub(crate) loaded: u64,
    pub(crate) evicted: u64,
}

/// Something that was to be shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bar {
    pub(crate) what: String,
    pub(crate) case: String,
    /// Measured, and what it should be at most.
    pub(crate) value: f64,
    pub(crate) limit: f64,
    pub(crate) passed: bool,
}

impl Testbed {
    /// How long a load takes at least where memory is limited: while the framework starts the window is
    /// filled, then the device has to bring in the rest.
    pub(crate) fn limited_floor(&self) -> f64 {
        let rest = float(self.model.saturating_sub(self.window));
        let streamed = self.start + rest / float(self.timing.bandwidth);
        streamed.max(self.warm).max(self.device)
    }
}

/// Results made up for tests.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    /// One run of each policy: 1 GB at 0.25 GB/s.
    pub(crate) fn results(reader: Profile, regime: Regime, loads: &[(Policy, f64)]) -> Results {
        let case = |&(policy, load): &(Policy, f64)| CaseResult {
            name: format!("{policy}/{reader}/{regime}"),
            policy,
            reader,
            regime,
            left_out: String::new(),
            runs: vec![Run {
                round: 1,
                load,
                device_bytes: 1_000_000_000,
                ..Run::default()
            }],
        };
        Results {
            format: 1,
            profile: "test".to_owned(),
            backend: "observe".to_owned(),
            machine: Machine::default(),
            testbed: Testbed {
                timing: Timing {
                    latency_us: 1500,
                    bandwidth: 250_000_000,
                    slots: 64,
                    crowd: 0,
                },
                model: 1_000_000_000,
                files: 7,
                limit: 250_000_000,
                window: 200_000_000,
                device: 4.0,
                start: 1.0,
                warm: 2.0,
                runs_first: true,
            },
            real: None,
            whole_starts: Vec::new(),
            own_disk: None,
            bystanders: Vec::new(),
            checks: Vec::new(),
            cases: loads.iter().map(case).collect(),
            bars: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_the_same_when_they_are_read_again() {
        let loads = [(Policy::Native, 2.0), (Policy::MaioReplay, 1.0)];
        let written = samples::results(Profile::tp(), Regime::Limited, &loads);
        let text = serde_json::to_string(&written).expect("JSON");
        let read: Results = serde_json::from_str(&text).expect("the same");
        assert_eq!(serde_json::to_string(&read).expect("JSON"), text);
        assert!(text.contains(r#""policy":"maio-replay""#));
        // Of an older program.
        let run: Run = serde_json::from_str(r#"{"load": 2.5}"#).expect("some of it");
        assert!((run.load - 2.5).abs() < 1e-9 && run.round == 0);
    }
}

//! The results of measurements, as written to `target/bench/NAME.json`.
//!
//! Times are in seconds, sizes in bytes, unless a name says otherwise. Fields added later have defaults,
//! so that older files can be read.

use serde::{Deserialize, Serialize};

use crate::case::{Policy, Regime};
use crate::median::median;
use crate::reader::{Mode, Profile};
use crate::ssd::{Lateness, Timing};
use crate::units::float;

/// All results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    /// Version of this structure: 1.
    pub(crate) format: u32,
    /// The set of cases: quick, standard or the like.
    pub(crate) profile: String,
    /// The backend that reported misses.
    pub(crate) backend: String,
    pub(crate) machine: Machine,
    pub(crate) testbed: Testbed,
    /// The model, if it is on a disk of the machine; none on the simulated SSD.
    #[serde(default)]
    pub(crate) real: Option<Real>,
    /// Whole starts, for each disk that they were measured on.
    #[serde(default)]
    pub(crate) whole_starts: Vec<Starts>,
    /// This machine's own disk, if something was loaded from there beside the simulated SSD.
    #[serde(default)]
    pub(crate) own_disk: Option<OwnDisk>,
    /// The cost to unrelated programs, if that was measured.
    #[serde(default)]
    pub(crate) bystanders: Vec<Bystander>,
    /// How closely the simulated SSD follows its model, measured before the first run.
    pub(crate) checks: Vec<Check>,
    /// The cases, in the order in which they were first run.
    pub(crate) cases: Vec<CaseResult>,
    /// The bars, and whether they were reached.
    pub(crate) bars: Vec<Bar>,
}

/// How long a command takes from exec to exit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Starts {
    /// The program that is started, in a sentence.
    pub(crate) what: String,
    /// The disk that it is read from.
    pub(crate) disk: String,
    /// Times when cold, with MAIO for the first and second time, and with everything cached.
    pub(crate) times: Vec<StartTimes>,
}

impl Starts {
    /// The share of the cold penalty that second starts remove; `None` if the penalty is negligible.
    pub(crate) fn removed(&self) -> Option<f64> {
        /// Least penalty that counts, as a share of a cold start.
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

/// Times of starts of one kind, one for each round.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StartTimes {
    pub(crate) title: String,
    pub(crate) seconds: Vec<f64>,
}

/// The machine of the measurements.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processors: usize,
    pub(crate) memory: u64,
    /// The version of this program.
    pub(crate) version: String,
}

/// The testbed of the measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Testbed {
    pub(crate) timing: Timing,
    /// Size of all files of the model.
    pub(crate) model: u64,
    pub(crate) files: usize,
    /// The limit of the memory cgroup where memory is limited.
    pub(crate) limit: u64,
    /// The part of the limit that the runtime may fill.
    pub(crate) window: u64,
    /// How long the device takes for the model: its size divided by the bandwidth.
    pub(crate) device: f64,
    /// Time from reading the configuration to the first weight.
    pub(crate) start: f64,
    /// How long a load by four workers takes if everything is cached and nothing takes CPU time.
    pub(crate) warm: f64,
    /// The same for two replicas, whose workers copy twice as much each.
    #[serde(default)]
    pub(crate) warm_replicas: f64,
    /// How long a load by four workers takes at least if each reads in an order of its own.
    #[serde(default)]
    pub(crate) own_orders: f64,
    /// Whether the simulated SSD runs before all other processes.
    pub(crate) runs_first: bool,
}

/// A model on a disk of the machine, and the command that loaded it. Of the testbed, only the files and, if
/// it could be measured, the best bandwidth are then set.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Real {
    pub(crate) folder: String,
    /// The shell command; empty if every byte was read through mappings.
    pub(crate) command: String,
    /// The device and its file system, as far as known.
    pub(crate) disk: String,
    /// Why it was not a simulated SSD, if it should have been.
    pub(crate) instead: String,
}

/// A disk of the machine, measured besides the simulated SSD.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct OwnDisk {
    /// The device and its file system, as far as known.
    pub(crate) name: String,
    /// The highest measured bandwidth, in bytes per second; 0 if it is not known.
    pub(crate) best: f64,
}

/// A program that reads a cached file of its own, beside a policy: medians.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bystander {
    /// What the policy is doing meanwhile.
    pub(crate) state: String,
    /// How long the reader takes with and without the policy, in ms.
    pub(crate) with_ms: f64,
    pub(crate) without_ms: f64,
    /// Ratio of the two times of a round, and the distance of the farthest round from it, as a fraction of
    /// it.
    pub(crate) ratio: f64,
    pub(crate) spread: f64,
}

/// A few requests, and their speed compared with the model's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    /// Bytes per second according to the model, and as measured.
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
    /// Why there are fewer runs than rounds, if so.
    #[serde(default)]
    pub(crate) left_out: String,
    pub(crate) runs: Vec<Run>,
}

/// One load.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Run {
    pub(crate) round: usize,
    /// Time from opening the configuration to the end of the last worker.
    pub(crate) load: f64,
    /// The same with start and end of all processes and of the runtime: how long a user waits. 0 in older files.
    pub(crate) whole: f64,
    /// Bytes read from the device, by its own count.
    pub(crate) device_bytes: u64,
    pub(crate) requests: u64,
    /// The share of the device's bandwidth that was used during the load, up to 1.
    pub(crate) utilisation: f64,
    /// Page faults of all workers.
    pub(crate) major_faults: u64,
    pub(crate) minor_faults: u64,
    /// Bytes that the disk delivered for the workers themselves, and those of them after the first hundredth
    /// of what each touched; not reported by all kernels.
    pub(crate) readers_bytes: Option<u64>,
    pub(crate) late_bytes: Option<u64>,
    /// How closely the template that was kept matches what was read.
    pub(crate) recorded: Option<Recorded>,
    /// CPU time of all readers, of the runtime's worker with its policy, and of the simulated SSD.
    pub(crate) reader_cpu: f64,
    pub(crate) runtime_cpu: f64,
    pub(crate) device_cpu: f64,
    /// Peak page cache and anonymous memory charged to the readers' cgroup.
    pub(crate) peak_cache: u64,
    pub(crate) peak_anonymous: u64,
    /// Peak memory of the runtime's worker.
    pub(crate) runtime_memory: u64,
    /// Bytes loaded before the load began, by a policy that loads in advance.
    pub(crate) before: u64,
    /// Bytes touched by all workers, and number of wrong pieces.
    pub(crate) touched: u64,
    pub(crate) wrong: u64,
    /// Bytes of the model that were cached before, where nothing should have been.
    pub(crate) dirty: u64,
    pub(crate) lateness: Lateness,
    /// The share of the machine's CPU time that neither we nor the device used.
    pub(crate) others: f64,
    /// Whether the device was late, twice, or others used much of the CPU time.
    pub(crate) disturbed: bool,
    /// The runtime's counters, by their names in `ppcctl stats`.
    pub(crate) stats: std::collections::BTreeMap<String, u64>,
    /// Log lines of policy and runtime.
    pub(crate) notes: Vec<String>,
    /// The course of the run over time.
    pub(crate) timeline: Timeline,
}

/// A template compared with what was read, in pages of all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Recorded {
    /// Number of workers in the template.
    pub(crate) workers: usize,
    pub(crate) right: u64,
    /// Pages that were read but are not in it.
    pub(crate) missing: u64,
    /// Pages that are in it but were not read.
    pub(crate) not_read: u64,
}

/// A run over time. Times are in seconds since its beginning.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Timeline {
    /// Bytes that the device delivered in each tenth of a second.
    pub(crate) device: Vec<u64>,
    /// Start of the first of these, usually a little before the beginning.
    pub(crate) device_from: f64,
    /// When each worker began and finished reading.
    pub(crate) workers: Vec<(f64, f64)>,
    pub(crate) samples: Vec<Sample>,
}

/// One sample.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Sample {
    pub(crate) at: f64,
    /// Bytes charged to the readers' cgroup.
    pub(crate) cache: u64,
    pub(crate) anonymous: u64,
    /// Bytes of the runtime: queued and in flight, loaded so far, and dropped so far.
    pub(crate) queued: u64,
    pub(crate) loaded: u64,
    pub(crate) evicted: u64,
}

/// Something that was to be shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bar {
    pub(crate) what: String,
    pub(crate) case: String,
    /// The measured value, and its upper limit.
    pub(crate) value: f64,
    pub(crate) limit: f64,
    pub(crate) passed: bool,
}

impl Testbed {
    /// How long a load takes at least where memory is limited: while the framework starts the window is
    /// filled, then the device has to bring in the rest.
    pub(crate) fn limited_floor(&self, mode: Mode) -> f64 {
        let rest = float(self.model.saturating_sub(self.window));
        let streamed = self.start + rest / float(self.timing.bandwidth);
        let warm = match mode {
            Mode::Replicas => self.warm_replicas,
            _ => self.warm,
        };
        streamed.max(warm).max(self.device)
    }
}

/// Sample results for tests.
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
                warm_replicas: 2.5,
                own_orders: 5.0,
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
        // Written by an older program.
        let run: Run = serde_json::from_str(r#"{"load": 2.5}"#).expect("some of it");
        assert!((run.load - 2.5).abs() < 1e-9 && run.round == 0);
    }
}

//! Loads what a start is expected to read, without running it.
//!
//! ```text
//! template ─ timeline ─ how many ranges ─┐
//! session: the policy asks for all ──────┴─ until all is asked for and nothing waits ─ outcome
//! ```

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cprt::control::config::{Bytes, Config, TimeSpan};
use cprt::control::protocol::Settings;
use cprt::control::stats::Stats;
use cprt::session::{Options, Session};
use maio::template::Template;
use serde::Serialize;

use super::timeline::Timeline;
use super::verify::{Fate, look};
use crate::args::{Common, Replay};
use crate::exit::Exit;
use crate::failure::Result;
use crate::run::policy_log;
use crate::run::progress::{Progress, millis};
use crate::screen::{count, plain, print, print_json, remark};
use crate::setting;

/// How often progress is checked.
const TICK: Duration = Duration::from_millis(50);
/// Progress is shown at every n-th check, the n-th being the first.
const SHOWN_EACH: u32 = 10;
/// Number of checks without any change after which a replay is over, though the policy has not named all ranges.
const STILL: u32 = 100;
/// Number of checks without an answer after which a replay is over. A restarted worker needs a while to answer.
const SILENT: u32 = 600;

/// The outcome of a replay.
#[derive(Debug, Default, Serialize)]
struct Outcome {
    name: String,
    node: String,
    seconds: f64,
    files: usize,
    /// Bytes expected, without those that files no longer have.
    expected_bytes: u64,
    /// Bytes read from storage.
    loaded_bytes: u64,
    cached_bytes: u64,
    /// Bytes of existing files that could not be loaded.
    missing_bytes: u64,
    load_errors: u64,
    /// The memory limit; 0 if it is not known.
    memory_limit: u64,
    /// Whether memory was over its threshold during the replay.
    memory_over: bool,
    /// Files of which nothing can be loaded, by path.
    absent: BTreeMap<String, Fate>,
    /// Why the policy ended early.
    fault: Option<String>,
}

pub(super) fn replay(
    common: &Common,
    store: &Path,
    template: &Template,
    wanted: &Replay,
) -> Result<Exit> {
    let timeline = Timeline::of(template)?;
    let fates = look(template, &timeline);
    let mut outcome = Outcome::expected(template, &timeline, &fates);
    let options = options(store, template, wanted, common.limits()?)?;
    let began = Instant::now();
    let session = Session::of_children(&options, &policy_log(wanted.quiet))?;
    let shows = !wanted.quiet && !common.json && io::stderr().is_terminal();
    let stats = wait(&session, timeline.ranges.len() as u64, shows);
    outcome.seconds = began.elapsed().as_secs_f64();
    outcome.fault = session.end();
    outcome.came(&stats.unwrap_or_default());
    if common.json {
        print_json(&outcome)?;
    } else {
        for line in outcome.remarks() {
            remark(&line);
        }
        if !wanted.quiet {
            print(&outcome.text())?;
        }
    }
    Ok(if outcome.is_complete() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

fn options(store: &Path, template: &Template, wanted: &Replay, config: Config) -> Result<Options> {
    let settings = [
        ("start", template.service.clone()),
        ("node", template.node.clone()),
        ("store", store.display().to_string()),
        ("record", "never".to_owned()),
    ];
    let settings: Settings = settings
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    Ok(Options {
        directory: Path::new("/").to_owned(),
        library: setting::library(&wanted.policy)?,
        settings,
        cgroup: wanted.cgroup.as_deref().map(setting::full).transpose()?,
        config,
    })
}

/// Sleeps until nothing more will be loaded. Returns the last statistics.
fn wait(session: &Session, ranges: u64, shows: bool) -> Option<Stats> {
    let mut loading = Loading::new(ranges);
    let mut progress = Progress::default();
    let mut last = None;
    for tick in 1.. {
        sleep(TICK);
        let now = session.stats();
        if shows
            && tick % SHOWN_EACH == 0
            && let Some(stats) = &now
        {
            progress.show(stats);
        }
        let is_over = loading.is_over(now.as_ref());
        last = now.or(last);
        if is_over {
            break;
        }
    }
    progress.clear();
    last
}

/// Decides whether anything is still to be loaded. Pure.
#[derive(Debug)]
struct Loading {
    /// How many ranges the policy will name.
    ranges: u64,
    before: Option<Stats>,
    still: u32,
    silent: u32,
}

impl Loading {
    const fn new(ranges: u64) -> Self {
        Self {
            ranges,
            before: None,
            still: 0,
            silent: 0,
        }
    }

    fn is_over(&mut self, now: Option<&Stats>) -> bool {
        let Some(now) = now else {
            self.silent += 1;
            return self.silent >= SILENT;
        };
        self.silent = 0;
        let done = |it: &Stats| (it.load_ranges, it.load_bytes, it.superseded_bytes);
        let moves = self.before.replace(now.clone()).as_ref().map(done) != Some(done(now));
        if moves || now.queued_bytes + now.in_flight_bytes > 0 {
            self.still = 0;
            return false;
        }
        self.still += 1;
        // Ranges are counted just before they are queued: a single idle check proves nothing.
        self.still
            >= if now.load_ranges >= self.ranges {
                1
            } else {
                STILL
            }
    }
}

impl Outcome {
    fn expected(template: &Template, timeline: &Timeline, fates: &[(Fate, u64)]) -> Self {
        let mut outcome = Self {
            name: template.service.clone(),
            node: template.node.clone(),
            files: timeline.files.len(),
            ..Self::default()
        };
        for (file, &(fate, _)) in timeline.files.iter().zip(fates) {
            if !fate.is_there() {
                outcome.absent.insert(file.path.clone(), fate);
            }
        }
        for range in &timeline.ranges {
            let (fate, size) = fates[range.file];
            if fate.is_there() {
                let end = (range.offset + range.length).min(size);
                outcome.expected_bytes += end.saturating_sub(range.offset);
            }
        }
        outcome
    }

    fn came(&mut self, stats: &Stats) {
        self.loaded_bytes = stats.loaded_bytes;
        self.cached_bytes = stats.load_bytes.saturating_sub(stats.loaded_bytes);
        self.missing_bytes = self.expected_bytes.saturating_sub(stats.load_bytes);
        self.load_errors = stats.load_errors;
        self.memory_limit = stats.memory_limit;
        self.memory_over = stats.memory_over > 0;
    }

    fn is_complete(&self) -> bool {
        self.missing_bytes == 0 && self.fault.is_none()
    }

    /// What went wrong, line by line.
    fn remarks(&self) -> Vec<String> {
        let absent = self.absent.iter();
        let mut lines: Vec<_> = absent
            .map(|(path, fate)| format!("{}: {}", plain(path), fate.matter()))
            .collect();
        if let Some(fault) = &self.fault {
            lines.push(format!("the policy failed: {}", plain(fault)));
        }
        if (1..self.expected_bytes).contains(&self.memory_limit) {
            lines.push(format!(
                "memory is limited to {}, so part of the {} is dropped again",
                Bytes(self.memory_limit),
                Bytes(self.expected_bytes)
            ));
        }
        if self.missing_bytes > 0 {
            let why = if self.load_errors > 0 {
                format!(": {} loads failed", count(self.load_errors))
            } else if self.memory_over {
                ": memory is over its threshold; free some, or name another cgroup with --cgroup"
                    .to_owned()
            } else {
                String::new()
            };
            lines.push(format!(
                "{} could not be loaded{why}",
                Bytes(self.missing_bytes)
            ));
        }
        lines
    }

    fn text(&self) -> String {
        format!(
            "{} on {}: {} loaded and {} cached before, of {} in {} files; it took {}\n",
            plain(&self.name),
            plain(&self.node),
            Bytes(self.loaded_bytes),
            Bytes(self.cached_bytes),
            Bytes(self.expected_bytes),
            count((self.files - self.absent.len()) as u64),
            TimeSpan(Duration::from_millis(millis(self.seconds)))
        )
    }
}

#[cfg(test)]
mod tests {
    use maio::PAGE;

    use super::super::timeline::tests::template;
    use super::*;

    fn stats(load_ranges: u64, load_bytes: u64, queued_bytes: u64) -> Stats {
        Stats {
            load_ranges,
            load_bytes,
            queued_bytes,
            ..Stats::default()
        }
    }

    #[test]
    fn loading_ends_once_all_ranges_are_requested_and_idle() {
        let mut loading = Loading::new(10);
        for (now, over) in [
            (stats(0, 0, 0), false),
            (stats(4, 0, 4096), false),
            // The rest has been counted and is about to wait.
            (stats(10, 4096, 0), false),
            (stats(10, 4096, 8192), false),
            (stats(10, 8192, 4096), false),
            (stats(10, 12288, 0), false),
            (stats(10, 12288, 0), true),
        ] {
            assert_eq!(loading.is_over(Some(&now)), over, "{now:?}");
        }
    }

    #[test]
    fn silent_or_incomplete_policy_is_not_awaited_forever() {
        let mut loading = Loading::new(10);
        let looks = (1..=1000).find(|_| loading.is_over(Some(&stats(5, 4096, 0))));
        assert_eq!(looks, Some(STILL + 1));
        let mut loading = Loading::new(10);
        let looks = (1..=1000).find(|_| loading.is_over(None));
        assert_eq!(looks, Some(SILENT));
    }

    #[test]
    fn absent_files_are_reported_and_missing_bytes_fail() {
        let files = [("a", 4 * PAGE), ("b", 8 * PAGE), ("c", 2 * PAGE)];
        let template = template(&files, &[&[(0, 0, 4), (1, 0, 8), (2, 0, 2)]]);
        let timeline = Timeline::of(&template).expect("a start");
        let fates = [
            (Fate::Right, 4 * PAGE),
            (Fate::Changed, 5 * PAGE),
            (Fate::Gone, 0),
        ];
        let mut outcome = Outcome::expected(&template, &timeline, &fates);
        assert_eq!(outcome.expected_bytes, 9 * PAGE);
        outcome.came(&Stats {
            load_bytes: 9 * PAGE,
            loaded_bytes: 5 * PAGE,
            ..Stats::default()
        });
        assert!(outcome.is_complete());
        assert_eq!(outcome.remarks(), ["/c: gone"]);
        assert!(
            outcome.text().starts_with(
                "start-x on n: 20 KiB loaded and 16 KiB cached before, of 36 KiB in 2 files"
            ),
            "{}",
            outcome.text()
        );
        outcome.came(&Stats {
            load_bytes: PAGE,
            memory_over: 1,
            memory_limit: 4 * PAGE,
            ..Stats::default()
        });
        assert!(!outcome.is_complete());
        let lines = outcome.remarks();
        assert_eq!(
            lines[1],
            "memory is limited to 16 KiB, so part of the 36 KiB is dropped again"
        );
        assert!(
            lines[2].starts_with("32 KiB could not be loaded: memory"),
            "{lines:?}"
        );
    }
}

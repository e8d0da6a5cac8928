//! The metrics of the daemon, of policies and of services.

use super::exposition::{Exposition, Family, Kind, Value, of_path};
use crate::control::protocol::{MountState, PolicyStatus, ServicesStatus, StartTotals, Status};

/// All of them, in the order of the text.
pub(super) const ALL: &[&Family] = &[
    &BUILD,
    &UPTIME,
    &MOUNTS,
    &POLICY,
    &UP,
    &FAILURES,
    &FOLLOWED,
    &PROCESSES,
    &STARTS,
    &LEFT_ALONE,
    &START_FAILURES,
    &LOADED,
    &CACHED,
    &LAST_START,
    &DURATION,
    &PHASES,
];

/// How many of [`ALL`] come before the counters of workers.
pub(super) const BEFORE_WORKERS: usize = 6;

const fn family(
    name: &'static str,
    kind: Kind,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Family {
    Family {
        name,
        kind,
        unit,
        labels,
        help,
    }
}

const BUILD: Family = family(
    "ppc_build",
    Kind::Info,
    "",
    &["version"],
    "The version of cprtd",
);
const UPTIME: Family = family(
    "ppc_uptime_seconds",
    Kind::Gauge,
    "seconds",
    &[],
    "Time since cprtd started",
);
const MOUNTS: Family = family(
    "ppc_mounts",
    Kind::Gauge,
    "",
    &["state"],
    "Mounts of rfs, and directories with a policy, by state: native, running, waiting or failed",
);
const POLICY: Family = family(
    "ppc_policy",
    Kind::Info,
    "",
    &["mount", "policy", "version", "backend"],
    "The policy of a mount",
);
const UP: Family = family(
    "ppc_worker_up",
    Kind::Gauge,
    "",
    &["mount", "policy"],
    "1 if the policy's worker runs, 0 while the kernel decides alone",
);
const FAILURES: Family = family(
    "ppc_policy_failures",
    Kind::Counter,
    "",
    &["mount", "policy"],
    "Failures of the policy since it was registered; after each but the last, its worker was started again",
);
const FOLLOWED: Family = family(
    "ppc_services_followed",
    Kind::Gauge,
    "",
    &[],
    "1 if starts of services are recorded and loaded ahead, 0 if they cannot be",
);
const PROCESSES: Family = family(
    "ppc_service_processes",
    Kind::Gauge,
    "",
    &["service"],
    "Processes of the service that run and that cprtd saw start",
);
const STARTS: Family = family(
    "ppc_service_starts",
    Kind::Counter,
    "",
    &["service"],
    "Starts of the service",
);
const LEFT_ALONE: Family = family(
    "ppc_service_starts_left_alone",
    Kind::Counter,
    "",
    &["service"],
    "Starts of the service that were neither recorded nor loaded; 'ppcctl status' says why",
);
const START_FAILURES: Family = family(
    "ppc_service_start_failures",
    Kind::Counter,
    "",
    &["service"],
    "Starts of the service that continued without loads, because the policy failed",
);
const LAST_START: Family = family(
    "ppc_service_last_start_timestamp_seconds",
    Kind::Gauge,
    "seconds",
    &["service"],
    "Start time of the newest start that was followed, since 1970",
);
const DURATION: Family = family(
    "ppc_service_start_duration_seconds",
    Kind::Summary,
    "seconds",
    &["service"],
    "Time of finished starts, from when the service was executed until its reading came to rest",
);
const PHASES: Family = family(
    "ppc_service_start_phase_seconds",
    Kind::Counter,
    "seconds",
    &["service", "phase"],
    "The same time by phases that follow each other: beginning, until the policy runs; loading, until everything that \
     the start is known to read is loaded; reading",
);
const LOADED: Family = family(
    "ppc_service_loaded_bytes",
    Kind::Counter,
    "bytes",
    &["service"],
    "Bytes loaded ahead of starts, from storage",
);
const CACHED: Family = family(
    "ppc_service_cached_bytes",
    Kind::Counter,
    "bytes",
    &["service"],
    "Bytes that PPC would have loaded ahead of starts, but that were already cached",
);

pub(super) fn of_daemon(to: &mut Exposition, status: &Status) {
    to.family(&BUILD, [([status.version.clone()], Value::Whole(1))]);
    to.family(&UPTIME, [([], Value::Whole(status.uptime_s))]);
    let of_mounts = [
        MountState::Native,
        MountState::Running,
        MountState::Waiting,
        MountState::Failed,
    ];
    let mounts = of_mounts.map(|state| {
        let so = status.mounts.iter().filter(|mount| mount.state == state);
        ([state.to_string()], Value::Whole(so.count() as u64))
    });
    to.family(&MOUNTS, mounts);
}

pub(super) fn of_policies(to: &mut Exposition, status: &Status) {
    let mounts = || {
        let mounts = status.mounts.iter();
        mounts.filter_map(|mount| Some((mount, mount.policy.as_ref()?)))
    };
    let infos = mounts().map(|(mount, policy)| {
        let PolicyStatus {
            name,
            version,
            backend,
            ..
        } = policy;
        let labels = [
            of_path(&mount.path),
            name.clone(),
            version.clone(),
            backend.clone(),
        ];
        (labels, Value::Whole(1))
    });
    to.family(&POLICY, infos);
    let ups = mounts().map(|(mount, policy)| {
        let labels = [of_path(&mount.path), policy.name.clone()];
        let is_up = mount.state == MountState::Running;
        (labels, Value::Whole(is_up.into()))
    });
    to.family(&UP, ups);
    let failures = mounts().map(|(mount, policy)| {
        let labels = [of_path(&mount.path), policy.name.clone()];
        (labels, Value::Whole(policy.crashes))
    });
    to.family(&FAILURES, failures);
}

pub(super) fn of_services(to: &mut Exposition, services: &ServicesStatus) {
    let is_on = services.off.is_none();
    to.family(&FOLLOWED, [([], Value::Whole(is_on.into()))]);
    let known = &services.known;
    let running = known.iter().map(|service| {
        let processes = service.running.len() as u64;
        ([service.name.clone()], Value::Whole(processes))
    });
    to.family(&PROCESSES, running);
    let starts = known.iter();
    to.family(
        &STARTS,
        starts.map(|it| ([it.name.clone()], Value::Whole(it.starts))),
    );
    let mut total = |family, of: fn(&StartTotals) -> u64| {
        let series = known.iter();
        let series = series.map(|it| ([it.name.clone()], Value::Whole(of(&it.totals))));
        to.family(family, series);
    };
    total(&LEFT_ALONE, |totals| totals.left_alone);
    total(&START_FAILURES, |totals| totals.failed);
    total(&LOADED, |totals| totals.loaded_bytes);
    total(&CACHED, |totals| totals.cached_bytes);
    let last = known.iter().filter_map(|service| {
        let last = service.last.as_ref()?;
        Some(([service.name.clone()], Value::Whole(last.began_s)))
    });
    to.family(&LAST_START, last);
    let durations = known.iter().map(|service| {
        let StartTotals { over, whole_us, .. } = service.totals;
        ([service.name.clone()], over, Value::micros(whole_us))
    });
    to.summary(&DURATION, durations);
    let phases = known.iter().flat_map(|service| {
        let totals = &service.totals;
        let phases = [
            ("beginning", totals.beginning_us),
            ("loading", totals.loading_us),
            ("reading", totals.reading_us),
        ];
        phases.map(|(phase, us)| ([service.name.clone(), phase.to_owned()], Value::micros(us)))
    });
    to.family(&PHASES, phases);
}

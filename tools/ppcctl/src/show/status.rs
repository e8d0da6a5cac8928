//! The state of mounts, of their policies, and of services.

use std::time::{SystemTime, UNIX_EPOCH};

use cprt::control::config::Bytes;
use cprt::control::protocol::{
    MountState, MountStatus, PolicyStatus, ServiceStatus, ServicesStatus, Status,
};

use crate::screen::{Table, age, count, plain};

/// A table of the mounts; below it the problems of each, or with `all` everything that is known of it.
pub(crate) fn status(status: &Status, all: bool) -> String {
    let mut text = format!(
        "cprtd {}, process {}, up {}\n",
        plain(&status.version),
        status.pid,
        age(status.uptime_s)
    );
    if !status.mounts.is_empty() {
        text += &mounts(status, all);
    }
    if let Some(services) = &status.services {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        text += &of_services(services, now.map_or(0, |now| now.as_secs()));
    }
    if !status.kept.is_empty() {
        text.extend(["\n", &super::keep::table(&status.kept)]);
    }
    text
}

fn mounts(status: &Status, all: bool) -> String {
    let mut table =
        Table::new(&["MOUNT", "STATE", "POLICY", "BACKEND", "WORKER", "CRASHES"]).right(&[4, 5]);
    for mount in &status.mounts {
        let policy = mount.policy.as_ref();
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        table.row([
            mount.path.display().to_string(),
            mount.state.to_string(),
            or_none(policy.map(name)),
            or_none(policy.map(|policy| policy.backend.clone())),
            or_none(
                policy
                    .and_then(|policy| policy.worker)
                    .map(|pid| pid.to_string()),
            ),
            or_none(policy.map(|policy| count(policy.crashes))),
        ]);
    }
    let mut text = format!("\n{}", table.render());
    for mount in &status.mounts {
        let details = details(mount, all);
        if !details.is_empty() {
            let path = plain(&mount.path.display().to_string());
            text.extend(["\n", &path, "\n", &details]);
        }
    }
    text
}

/// A table of services, `now` being in seconds since 1970; below it their problems, and what their policies said last.
fn of_services(services: &ServicesStatus, now: u64) -> String {
    let mut text = String::new();
    if let Some(off) = &services.off {
        let why = plain(off);
        text.extend([
            "\nStarts of services are neither recorded nor loaded ahead: ",
            &why,
            "\n",
        ]);
    }
    if services.known.is_empty() {
        return text;
    }
    let headings = [
        "SERVICE", "RUNNING", "STARTS", "LAST", "LOADED", "CACHED", "START",
    ];
    let mut table = Table::new(&headings).right(&[2, 4, 5]);
    for service in &services.known {
        let last = service.last.as_ref();
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let when =
            last.map(|it| format!("{}, {} ago", it.phase, age(now.saturating_sub(it.began_s))));
        table.row([
            service.name.clone(),
            running(service),
            count(service.starts),
            or_none(when),
            or_none(last.map(|it| Bytes(it.loaded_bytes).to_string())),
            or_none(last.map(|it| Bytes(it.cached_bytes).to_string())),
            or_none(last.map(|it| it.start.clone())),
        ]);
    }
    text.extend(["\n", &table.render()]);
    for service in &services.known {
        let mut table = Table::default().indent(2);
        if service.learnt {
            table.row(["learned", "it starts often and reads much"]);
        }
        if let Some(why) = &service.left_out {
            table.row(["left alone", why.as_str()]);
        }
        if let Some(said) = service.last.as_ref().and_then(|it| it.said.as_ref()) {
            table.row(["said", said.as_str()]);
        }
        let details = table.render();
        if !details.is_empty() {
            text.extend(["\n", &plain(&service.name), "\n", &details]);
        }
    }
    text
}

/// The first of the service's processes, and the number of others.
fn running(service: &ServiceStatus) -> String {
    match service.running[..] {
        [] => "-".to_owned(),
        [one] => one.to_string(),
        [first, ref others @ ..] => format!("{first} and {} more", others.len()),
    }
}

/// The new state of a mount, in one line.
pub(crate) fn change(mount: &MountStatus) -> String {
    let path = plain(&mount.path.display().to_string());
    let what = match (&mount.policy, mount.state) {
        (None, _) => "no policy, the kernel decides".to_owned(),
        (Some(policy), MountState::Running) => {
            let worker = policy.worker.map(|pid| format!(", worker {pid}"));
            format!(
                "{} is running{}",
                plain(&name(policy)),
                worker.unwrap_or_default()
            )
        }
        (Some(policy), state) => format!("{} is {state}", plain(&name(policy))),
    };
    let settings = mount.policy.as_ref().map(|policy| &policy.settings);
    let settings = match settings.map(super::settings) {
        Some(settings) if !settings.is_empty() => format!(", with {}", plain(&settings)),
        _ => String::new(),
    };
    let reason = mount
        .reason
        .as_ref()
        .map(|reason| format!("; {}", plain(reason)));
    format!("{path}: {what}{settings}{}\n", reason.unwrap_or_default())
}

fn name(policy: &PolicyStatus) -> String {
    format!("{} {}", policy.name, policy.version)
        .trim_end()
        .to_owned()
}

fn details(mount: &MountStatus, all: bool) -> String {
    let mut table = Table::default().indent(2);
    let mut line = |key: &str, value: String| {
        if !value.is_empty() {
            table.row([key, value.as_str()]);
        }
    };
    if all {
        line("mirrors", mount.lower.display().to_string());
        line("device", mount.device.clone());
    }
    line("reason", mount.reason.clone().unwrap_or_default());
    if let Some(policy) = &mount.policy {
        if all {
            let cgroup = policy
                .cgroup
                .as_ref()
                .map(|path| path.display().to_string());
            line("library", policy.library.display().to_string());
            line("settings", super::settings(&policy.settings));
            line("cgroup", cgroup.unwrap_or_default());
            line("features", policy.features.join(", "));
        }
        line("last fault", policy.last_fault.clone().unwrap_or_default());
        for (at, entry) in policy.log.iter().enumerate() {
            line(if at == 0 { "log" } else { "" }, entry.clone());
        }
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use cprt::control::protocol::{StartPhase, StartStatus, StartTotals};

    use super::*;

    fn native() -> MountStatus {
        MountStatus {
            path: "/mnt/b".into(),
            lower: "/srv/b".into(),
            device: "rfs1".into(),
            state: MountState::Native,
            reason: None,
            policy: None,
        }
    }

    fn running() -> MountStatus {
        MountStatus {
            path: "/mnt/models".into(),
            lower: "/srv/models".into(),
            device: "rfs0".into(),
            state: MountState::Running,
            reason: None,
            policy: Some(PolicyStatus {
                name: "shift".into(),
                version: "1".into(),
                library: "/usr/lib/ppc/shift.so".into(),
                settings: [("length".to_owned(), "4096".to_owned())].into(),
                backend: "module".into(),
                features: vec!["open".into(), "touch".into()],
                worker: Some(4711),
                cgroup: None,
                crashes: 0,
                last_fault: None,
                log: vec![],
            }),
        }
    }

    fn failed() -> MountStatus {
        let mut mount = running();
        mount.path = "/mnt/x".into();
        mount.state = MountState::Failed;
        mount.reason = Some("it crashed 5 times in a minute".into());
        if let Some(policy) = &mut mount.policy {
            policy.version = String::new();
            policy.worker = None;
            policy.crashes = 1234;
            policy.last_fault = Some("signal 11 (SIGSEGV)".into());
            policy.log = vec!["first\x1b[2J".into(), "second".into()];
        }
        mount
    }

    fn shown(mounts: Vec<MountStatus>, all: bool) -> String {
        let of = Status {
            version: "0.1.0".into(),
            pid: 12,
            uptime_s: 61,
            mounts,
            services: None,
            loads: Vec::new(),
            kept: Vec::new(),
        };
        status(&of, all)
    }

    #[test]
    fn services_are_tabulated_with_messages_below() {
        let never = ServiceStatus {
            name: "b".into(),
            learnt: true,
            running: vec![],
            starts: 0,
            totals: StartTotals::default(),
            left_out: None,
            last: None,
        };
        let started = ServiceStatus {
            name: "a".into(),
            learnt: false,
            running: vec![4711, 4712, 4713],
            starts: 1234,
            totals: StartTotals::default(),
            left_out: Some("another start of it was in progress".into()),
            last: Some(StartStatus {
                start: "start-vllm-serve-0123".into(),
                process: 4711,
                began_s: 1000,
                phase: StartPhase::Over,
                loaded_bytes: 3 << 20,
                cached_bytes: 0,
                said: Some("Kept\x1b".into()),
            }),
        };
        let mut services = ServicesStatus {
            off: None,
            learn: true,
            known: vec![started, never],
        };
        assert_eq!(
            of_services(&services, 1061),
            "
SERVICE  RUNNING          STARTS  LAST                 LOADED  CACHED  START
a        4711 and 2 more   1,234  over, 1 min 1 s ago   3 MiB     0 B  start-vllm-serve-0123
b        -                     0  -                         -       -  -

a
  left alone  another start of it was in progress
  said        Kept\\u{1b}

b
  learned  it starts often and reads much
"
        );
        services = ServicesStatus {
            off: Some("no maio.so".into()),
            ..ServicesStatus::default()
        };
        let off = "\nStarts of services are neither recorded nor loaded ahead: no maio.so\n";
        assert_eq!(of_services(&services, 0), off);
    }

    #[test]
    fn status_without_mounts_shows_only_the_daemon() {
        assert_eq!(
            shown(vec![], false),
            "cprtd 0.1.0, process 12, up 1 min 1 s\n"
        );
    }

    #[test]
    fn mounts_are_a_table_and_troubles_follow() {
        let text = shown(vec![native(), running(), failed()], false);
        assert_eq!(
            text,
            "\
cprtd 0.1.0, process 12, up 1 min 1 s

MOUNT        STATE    POLICY   BACKEND  WORKER  CRASHES
/mnt/b       native   -        -             -        -
/mnt/models  running  shift 1  module     4711        0
/mnt/x       failed   shift    module        -    1,234

/mnt/x
  reason      it crashed 5 times in a minute
  last fault  signal 11 (SIGSEGV)
  log         first\\u{1b}[2J
              second
"
        );
    }

    #[test]
    fn status_of_one_mount_shows_all_details() {
        let text = shown(vec![running()], true);
        let (_, details) = text.split_once("\n/mnt/models\n").expect("details");
        assert_eq!(
            details,
            "  mirrors   /srv/models
  device    rfs0
  library   /usr/lib/ppc/shift.so
  settings  length=4096
  features  open, touch
"
        );
    }

    #[test]
    fn a_change_is_a_line() {
        for (mount, expected) in [
            (native(), "/mnt/b: no policy, the kernel decides\n"),
            (
                running(),
                "/mnt/models: shift 1 is running, worker 4711, with length=4096\n",
            ),
            (
                failed(),
                "/mnt/x: shift is failed, with length=4096; it crashed 5 times in a minute\n",
            ),
        ] {
            assert_eq!(change(&mount), expected);
        }
    }
}

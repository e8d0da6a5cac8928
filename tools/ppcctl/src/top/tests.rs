//! The screen as text, and what ends it.

use std::path::PathBuf;

use cprt::control::protocol::{
    MountState, MountStatus, PolicyStatus, ServiceStatus, ServicesStatus, StartTotals,
};
use cprt::control::stats::Stats;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

use super::*;

const GIB: u64 = 1 << 30;

fn mount(path: &str, state: MountState) -> MountStatus {
    let policy = PolicyStatus {
        name: "maio".into(),
        backend: "observe".into(),
        ..PolicyStatus::default()
    };
    MountStatus {
        path: path.into(),
        lower: path.into(),
        device: String::new(),
        state,
        reason: None,
        policy: (state != MountState::Native).then_some(policy),
    }
}

fn counted(path: &str, stats: Stats) -> MountStats {
    MountStats {
        path: path.into(),
        policy: "maio".into(),
        stats,
    }
}

fn status(mounts: Vec<MountStatus>) -> Status {
    let service = |name: &str| ServiceStatus {
        name: name.into(),
        learnt: false,
        running: vec![7],
        starts: 12,
        totals: StartTotals {
            loaded_bytes: 3 * GIB,
            ..StartTotals::default()
        },
        left_out: None,
        last: None,
    };
    Status {
        version: "0.1.0".into(),
        pid: 1,
        uptime_s: 7_384,
        mounts,
        services: Some(ServicesStatus {
            off: None,
            learn: false,
            known: vec![service("llama"), service("whisper")],
        }),
        loads: vec![],
        kept: vec![crate::show::keep::example()],
    }
}

/// A load under way, one that is done, a policy that failed, and a mount without one; two answers, two seconds apart.
fn model() -> Model {
    let status = status(vec![
        mount("/srv/models/whisper", MountState::Running),
        mount(
            "/srv/models/meta/llama-3.1-70b-instruct/original",
            MountState::Running,
        ),
        mount("/srv/x\x1b[2J", MountState::Failed),
        mount("/native", MountState::Native),
    ]);
    let llama = Stats {
        load_bytes: 30 * GIB,
        queued_bytes: 100 * GIB,
        load_rate: 2 * GIB,
        streams: 8,
        memory_used: 40 * GIB,
        memory_limit: 160 * GIB,
        ..Stats::default()
    };
    let later = Stats {
        load_bytes: 34 * GIB,
        queued_bytes: 96 * GIB,
        reader_bytes: 3 * GIB,
        missed_bytes: GIB,
        late_bytes: GIB / 2,
        evicted_bytes: 1 << 20,
        lost: 1_234,
        ..llama.clone()
    };
    let whisper = Stats {
        load_bytes: GIB,
        streams: 4,
        memory_used: GIB,
        memory_limit: 160 * GIB,
        ..Stats::default()
    };
    let at = |llama: &Stats| {
        [
            counted("/srv/models/whisper", whisper.clone()),
            counted(
                "/srv/models/meta/llama-3.1-70b-instruct/original",
                llama.clone(),
            ),
        ]
    };
    let (mut model, now) = (Model::default(), Instant::now());
    model.update(&status, &at(&llama), now);
    model.update(&status, &at(&later), now + Duration::from_secs(2));
    model
}

fn picture(model: &Model, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("in memory");
    terminal
        .draw(|frame| draw::draw(frame, model))
        .expect("in memory");
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(usize::from(width)).map(|line| {
        let line: String = line.iter().map(ratatui::buffer::Cell::symbol).collect();
        line.trim_end().to_owned() + "\n"
    });
    lines.collect()
}

#[test]
fn the_screen_is_these_pictures() {
    for (width, height, expected) in [
        (80, 24, include_str!("picture-80x24.txt")),
        (200, 50, include_str!("picture-200x50.txt")),
    ] {
        let drawn = picture(&model(), width, height);
        assert_eq!(drawn, expected, "{width} x {height}:\n{drawn}");
    }
}

#[test]
fn screen_is_drawn_at_any_size_and_without_an_answer() {
    for (width, height) in [(1, 1), (5, 3), (20, 8), (80, 2), (300, 5)] {
        picture(&model(), width, height);
        picture(&Model::default(), width, height);
    }
    let mut model = model();
    model.problem = Some("cprtd has not answered".into());
    let drawn = picture(&model, 80, 24);
    assert!(drawn.ends_with("cprtd has not answered\n"), "{drawn}");
}

#[test]
fn lists_that_are_too_long_say_so() {
    let paths: Vec<_> = (0..40).map(|n| format!("/srv/{n}")).collect();
    let mounts = paths.iter().map(|path| mount(path, MountState::Waiting));
    let mut model = Model::default();
    model.update(&status(mounts.collect()), &[], Instant::now());
    let drawn = picture(&model, 80, 24);
    assert_eq!(drawn.matches("and 3").count(), 3, "{drawn}");
    assert!(
        drawn.contains("whisper") && drawn.contains("waiting"),
        "{drawn}"
    );
}

#[test]
fn a_load_begins_when_the_one_before_is_done() {
    let status = status(vec![mount("/m", MountState::Running)]);
    let (mut model, now) = (Model::default(), Instant::now());
    for (load_bytes, queued_bytes, expected) in [
        (100, 0, (0, 0)),
        (150, 50, (50, 100)),
        (180, 20, (80, 100)),
        (200, 0, (0, 0)),
        (210, 30, (10, 40)),
        // Another worker.
        (5, 5, (5, 10)),
    ] {
        let counters = Stats {
            load_bytes,
            queued_bytes,
            ..Stats::default()
        };
        model.update(&status, &[counted("/m", counters)], now);
        let row = &model.mounts[0];
        assert_eq!((row.done, row.whole), expected);
    }
}

#[test]
fn q_and_control_c_end_it() {
    let key = |c, modifiers| is_end(KeyEvent::new(KeyCode::Char(c), modifiers));
    assert!(key('q', KeyModifiers::NONE) && key('c', KeyModifiers::CONTROL));
    assert!(!key('c', KeyModifiers::NONE) && !key('x', KeyModifiers::NONE));
}

#[test]
fn top_without_a_terminal_suggests_stats_watch() {
    let client = Client::new(PathBuf::from("/nowhere"));
    let problem = run(client, true, TICK)
        .expect_err("no terminal")
        .to_string();
    assert!(problem.contains("ppcctl stats --watch"), "{problem}");
}

//! The screen: lists below each other. Those that are longer than their share of the height end in how many more
//! there are. Pure.

use cprt::control::config::Bytes;
use cprt::control::keep::KeepStatus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

use super::model::{Model, MountRow, ServiceRow};
use crate::screen::{age, count, plain};

/// The lines of a list besides its rows: a blank line and the headings.
const BESIDES: usize = 2;

/// The least width of names.
const NAMES: usize = 20;
/// The width of percent behind a bar.
const PERCENT: u16 = 6;

/// One list.
struct List {
    headings: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// Of the columns after the first.
    widths: Vec<u16>,
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame, model: &Model) {
    let area = frame.area();
    let [head, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Line::from(title(model)).bold(), head);
    let lists = lists(model, area.width);
    let heights = shares(
        &lists.iter().map(|it| it.rows.len()).collect::<Vec<_>>(),
        usize::from(body.height),
    );
    let areas = Layout::vertical(heights.iter().map(|&it| Constraint::Length(it))).split(body);
    let names = lists.iter().flat_map(|list| list.rows.iter());
    let longest = names.filter_map(|cells| Some(plain(cells.first()?).chars().count()));
    let longest = longest.max().unwrap_or(0);
    for (list, area) in lists.into_iter().zip(areas.iter()) {
        list.draw(frame, *area, longest);
    }
    let problem = model.problem.as_deref().map(plain);
    let foot_line = match problem {
        Some(problem) => Line::from(problem).reversed(),
        None => Line::from("q quits").dim(),
    };
    frame.render_widget(foot_line, foot);
}

fn title(model: &Model) -> String {
    if model.version.is_empty() {
        return "ppcctl top".to_owned();
    }
    let rate: u64 = model.mounts.iter().map(|row| row.rate).sum();
    let loads = if rate == 0 {
        "nothing is loaded now".to_owned()
    } else {
        format!("{} loaded now", per_s(rate))
    };
    let (version, up) = (plain(&model.version), age(model.uptime_s));
    format!("cprtd {version}, up {up}, {loads}")
}

fn lists(model: &Model, width: u16) -> Vec<List> {
    let mounts = || model.mounts.iter();
    let (bar_width, bar) = (width / 10 + PERCENT, usize::from(width / 10));
    let mut lists = vec![
        List {
            headings: vec!["LOADS", "DONE", "OF", "RATE", "LEFT", "AT ONCE"],
            rows: mounts().map(|row| load(row, bar)).collect(),
            widths: vec![bar_width, 9, 11, 10, 7],
        },
        List {
            headings: vec![
                "READERS",
                "READ",
                "WAITED FOR",
                "OF IT LATE",
                "DIRECT",
                "LOST",
            ],
            rows: mounts().map(readers).collect(),
            widths: vec![11, 11, 11, 11, 7],
        },
        List {
            headings: vec!["MEMORY", "USED", "", "LIMIT", "DROPPED"],
            rows: mounts().map(|row| memory(row, bar)).collect(),
            widths: vec![9, bar_width, 9, 11],
        },
    ];
    if !model.services.is_empty() {
        lists.push(List {
            headings: vec!["SERVICES", "RUNNING", "STARTS", "LOADED", "LAST START"],
            rows: model.services.iter().map(service).collect(),
            widths: vec![7, 7, 9, 26],
        });
    }
    if !model.kept.is_empty() {
        lists.push(List {
            headings: vec!["KEPT", "CACHED", "", "WANTED", "BUDGET", "STATE"],
            rows: model.kept.iter().map(|set| kept(set, bar)).collect(),
            widths: vec![9, bar_width, 9, 9, 15],
        });
    }
    lists
}

fn kept(set: &KeepStatus, bar: usize) -> Vec<String> {
    let budget = set.budget_bytes;
    vec![
        set.name.clone(),
        Bytes(set.cached_bytes).to_string(),
        progress(set.cached_bytes, set.wanted_bytes, bar),
        Bytes(set.wanted_bytes).to_string(),
        budget.map_or_else(|| "-".to_owned(), |bytes| Bytes(bytes).to_string()),
        set.state.to_string(),
    ]
}

fn load(row: &MountRow, bar: usize) -> Vec<String> {
    let (done, whole) = if row.whole == 0 {
        (row.state.clone(), "-".to_owned())
    } else {
        (
            progress(row.done, row.whole, bar),
            Bytes(row.whole).to_string(),
        )
    };
    vec![
        row.path.clone(),
        done,
        whole,
        per_s(row.rate),
        row.left_s().map_or_else(|| "-".to_owned(), age),
        count(row.streams),
    ]
}

fn readers(row: &MountRow) -> Vec<String> {
    let mut cells = vec![row.path.clone()];
    cells.extend(row.reads.map(per_s));
    cells.push(count(row.lost));
    cells
}

fn memory(row: &MountRow, bar: usize) -> Vec<String> {
    let (used, limit) = (row.memory_used, row.memory_limit);
    let or_none = |bytes| {
        if limit == 0 {
            "-".to_owned()
        } else {
            Bytes(bytes).to_string()
        }
    };
    vec![
        row.path.clone(),
        or_none(used),
        progress(used, limit, bar),
        or_none(limit),
        per_s(row.dropped),
    ]
}

fn service(row: &ServiceRow) -> Vec<String> {
    let last = row.last.as_ref();
    vec![
        row.name.clone(),
        count(row.processes),
        count(row.starts),
        Bytes(row.loaded).to_string(),
        last.map_or_else(
            || "-".to_owned(),
            |(phase, ago)| format!("{phase}, {} ago", age(*ago)),
        ),
    ]
}

fn per_s(bytes: u64) -> String {
    if bytes == 0 {
        "-".to_owned()
    } else {
        format!("{}/s", Bytes(bytes))
    }
}

/// A bar of this width, and percent.
fn progress(done: u64, whole: u64, width: usize) -> String {
    if whole == 0 {
        return String::new();
    }
    let part =
        |of: u64| (u128::from(done.min(whole)) * u128::from(of) / u128::from(whole)) as usize;
    let full = part(width as u64).min(width);
    let bar = "█".repeat(full) + &"░".repeat(width - full);
    format!("{bar} {:>3} %", part(100))
}

/// The heights of lists with these numbers of rows: each gets what it needs, as long as none is below its equal share.
fn shares(rows: &[usize], height: usize) -> Vec<u16> {
    let mut left = height;
    let mut heights = vec![0; rows.len()];
    let mut order: Vec<_> = (0..rows.len()).collect();
    order.sort_by_key(|&at| rows[at]);
    for (place, at) in order.into_iter().enumerate() {
        let share = left / (rows.len() - place);
        heights[at] = (rows[at].max(1) + BESIDES).min(share);
        left -= heights[at];
    }
    let height = |it: usize| u16::try_from(it).unwrap_or(u16::MAX);
    heights.into_iter().map(height).collect()
}

impl List {
    /// Its first column takes what the others leave, as far as the `longest` name of all lists needs it.
    fn draw(self, frame: &mut Frame, area: Rect, longest: usize) {
        let places = usize::from(area.height).saturating_sub(BESIDES);
        let taken: u16 = self.widths.iter().map(|width| width + 1).sum();
        let first = area.width.saturating_sub(taken);
        let first = first.min(u16::try_from(longest.max(NAMES)).unwrap_or(u16::MAX));
        let mut rows = self.rows;
        if rows.is_empty() {
            rows.push(vec!["none".to_owned()]);
        } else if rows.len() > places && places > 0 {
            let hidden = rows.len() - (places - 1);
            rows.truncate(places - 1);
            rows.push(vec![format!("and {hidden} more")]);
        }
        let rows = rows.into_iter().map(|cells| {
            let cells = cells.into_iter().enumerate();
            Row::new(cells.map(|(at, cell)| {
                let cell = plain(&cell);
                Line::from(if at == 0 {
                    ending(&cell, usize::from(first))
                } else {
                    cell
                })
            }))
        });
        let widths = std::iter::once(first).chain(self.widths);
        let widths = widths.map(Constraint::Length);
        let heading = Row::new(self.headings)
            .style(Style::new().bold())
            .top_margin(1);
        frame.render_widget(Table::new(rows, widths).header(heading), area);
    }
}

/// The end of a text that is too long: of a path, that is what distinguishes it.
fn ending(text: &str, width: usize) -> String {
    let length = text.chars().count();
    if length <= width {
        return text.to_owned();
    }
    let kept = text.chars().skip(length + 1 - width.min(length + 1));
    std::iter::once('…').chain(kept).collect()
}

//! Sets of files that stay in the page cache.

use cprt::control::config::Bytes;
use cprt::control::keep::{KeepState, KeepStatus};

use crate::screen::{Table, count, plain};

/// A table of the sets; below it, why those are not kept that are not.
pub(crate) fn table(kept: &[KeepStatus]) -> String {
    let headings = [
        "SET", "STATE", "CACHED", "WANTED", "BUDGET", "PRIORITY", "PATHS",
    ];
    let mut table = Table::new(&headings).right(&[2, 3, 4, 5]);
    for set in kept {
        table.row([
            set.name.clone(),
            set.state.to_string(),
            Bytes(set.cached_bytes).to_string(),
            Bytes(set.wanted_bytes).to_string(),
            budget(set),
            set.priority.to_string(),
            paths(set),
        ]);
    }
    let mut text = table.render();
    for set in kept {
        if let Some(reason) = &set.reason {
            text.extend(["\n", &plain(&set.name), ": ", &plain(reason), "\n"]);
        }
    }
    text
}

fn budget(set: &KeepStatus) -> String {
    set.budget_bytes
        .map_or_else(|| "-".to_owned(), |bytes| Bytes(bytes).to_string())
}

/// The first path, and the number of others.
fn paths(set: &KeepStatus) -> String {
    match &set.paths[..] {
        [] => "-".to_owned(),
        [one] => one.display().to_string(),
        [first, others @ ..] => format!("{} and {} more", first.display(), others.len()),
    }
}

/// All that is known of a set.
pub(crate) fn details(set: &KeepStatus) -> String {
    let mut table = Table::default();
    let mut line = |key: &str, value: String| table.row([key, value.as_str()]);
    line("set", set.name.clone());
    line("state", set.state.to_string());
    if let Some(reason) = &set.reason {
        line("reason", reason.clone());
    }
    line("cached", Bytes(set.cached_bytes).to_string());
    line("wanted", Bytes(set.wanted_bytes).to_string());
    line("budget", budget(set));
    line(
        "whole",
        format!("{} in {} files", Bytes(set.whole_bytes), count(set.files)),
    );
    line("priority", set.priority.to_string());
    let from = if set.configured {
        "the configuration"
    } else {
        "ppcctl keep add"
    };
    line("from", from.to_owned());
    line("loaded", Bytes(set.loaded_bytes).to_string());
    line("released", Bytes(set.released_bytes).to_string());
    line("reclaimed", Bytes(set.reclaimed_bytes).to_string());
    for (at, path) in set.paths.iter().enumerate() {
        line(
            if at == 0 { "paths" } else { "" },
            path.display().to_string(),
        );
    }
    for (at, left) in set.left_out.iter().enumerate() {
        line(if at == 0 { "left out" } else { "" }, left.clone());
    }
    table.render()
}

/// A set in one line.
pub(crate) fn line(set: &KeepStatus) -> String {
    let beyond = set.whole_bytes.saturating_sub(set.wanted_bytes);
    let beyond = if beyond > 0 {
        format!(
            "; {} is beyond the budget, or kept by other sets",
            Bytes(beyond)
        )
    } else {
        String::new()
    };
    match set.state {
        KeepState::Finding => format!("{}: its files are being found\n", plain(&set.name)),
        state => format!(
            "{} is {state}: {} of {} in {} files is cached{beyond}\n",
            plain(&set.name),
            Bytes(set.cached_bytes),
            Bytes(set.wanted_bytes),
            count(set.files)
        ),
    }
}

/// What is being done for a set, for a line that is rewritten.
pub(crate) fn progress(set: &KeepStatus) -> String {
    match set.state {
        KeepState::Finding => "finding the files".to_owned(),
        _ => format!(
            "{} of {} cached",
            Bytes(set.cached_bytes),
            Bytes(set.wanted_bytes)
        ),
    }
}

/// A set of which a half is cached.
#[cfg(test)]
pub(crate) fn example() -> KeepStatus {
    KeepStatus {
        name: "llama".into(),
        configured: false,
        paths: vec!["/srv/llama".into(), "/srv/b".into()],
        priority: 5,
        budget_bytes: Some(4 << 30),
        state: KeepState::Short,
        reason: Some("memory\x1b".into()),
        files: 1234,
        whole_bytes: 6 << 30,
        wanted_bytes: 4 << 30,
        cached_bytes: 2 << 30,
        loaded_bytes: 3 << 30,
        released_bytes: 1 << 20,
        reclaimed_bytes: 0,
        left_out: vec!["/srv/b/pipe: no regular file".into()],
        incomplete: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_a_table_and_reasons_follow() {
        let mut other = example();
        (other.name, other.budget_bytes, other.reason) = ("b".into(), None, None);
        (other.paths, other.state) = (vec!["/b".into()], KeepState::Kept);
        assert_eq!(
            table(&[example(), other]),
            "\
SET    STATE            CACHED  WANTED  BUDGET  PRIORITY  PATHS
llama  short of memory   2 GiB   4 GiB   4 GiB         5  /srv/llama and 1 more
b      kept              2 GiB   4 GiB       -         5  /b

llama: memory\\u{1b}
"
        );
    }

    #[test]
    fn a_set_has_its_line_and_its_details() {
        let mut set = example();
        assert_eq!(
            line(&set),
            "llama is short of memory: 2 GiB of 4 GiB in 1,234 files is cached; 2 GiB is beyond the budget, or kept \
             by other sets\n"
        );
        let text = details(&set);
        for part in [
            "released   1 MiB",
            "left out   /srv/b/pipe",
            "from       ppcctl keep add",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        set.state = KeepState::Finding;
        assert_eq!(line(&set), "llama: its files are being found\n");
        assert_eq!(progress(&set), "finding the files");
    }
}

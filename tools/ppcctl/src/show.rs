//! What the daemon says and what is found out, for people. Each part turns a reply into text and does nothing else.

pub(crate) mod events;
pub(crate) mod stats;
pub(crate) mod status;

use cprt::control::protocol::Settings;

/// As they are typed.
fn settings(settings: &Settings) -> String {
    let pairs: Vec<_> = settings
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(" ")
}

//! The daemon's replies as text, for people. Each module turns a reply into text and does nothing else.

pub(crate) mod events;
pub(crate) mod keep;
pub(crate) mod stats;
pub(crate) mod status;

use cprt::control::protocol::Settings;

/// The settings as they are typed.
fn settings(settings: &Settings) -> String {
    let pairs: Vec<_> = settings
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    pairs.join(" ")
}

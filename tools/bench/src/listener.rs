//! The policy of `ppc-bench cost`: it receives the events in its settings, and advises nothing.
//!
//! | setting | meaning |
//! |---|---|
//! | `kinds` | the kinds of events it wants, as in `open miss`; those that the mount cannot report are left out |
//! | `progress` | the interval of PROGRESS, as in `4M` |

use std::ffi::CStr;

use ppc::{Error, Event, Features, Host, Kind, Kinds, Plan, Policy, Prefetch, Result, Settings};

/// The policy, which has no state.
#[derive(Debug)]
pub struct Listener;

impl Policy for Listener {
    const NAME: &'static CStr = c"listener";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Receives events and advises nothing";

    fn init(host: &Host<'_>, settings: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
        let progress = settings.bytes("progress")?.unwrap_or(0);
        let kinds = settings.text("kinds").unwrap_or_default();
        host.want(wanted(&kinds, host.features())?, progress)?;
        Ok(Self)
    }
}

impl Prefetch for Listener {
    fn prefetch(&mut self, _: &Host<'_>, _: Option<&Event>, _: &mut Plan<'_>) -> Result<()> {
        Ok(())
    }
}

/// The named kinds that a mount with these features reports, chosen as MAIO does.
fn wanted(names: &str, features: Features) -> Result<Kinds> {
    let mut kinds = Vec::new();
    for name in names.split_ascii_whitespace() {
        let (kind, needed) = match name {
            "miss" => (Kind::Miss, Features(0)),
            "open" => (Kind::Open, Features::OPEN),
            "close" => (Kind::Close, Features::OPEN),
            "touch" => (Kind::Touch, Features::TOUCH),
            "progress" => (Kind::Progress, Features::PROGRESS),
            _ => {
                return Err(Error::Setting {
                    key: "kinds".to_owned(),
                    value: names.to_owned(),
                    problem: "not of miss, open, close, touch and progress",
                });
            }
        };
        kinds.extend((features.0 & needed.0 == needed.0).then_some(kind));
    }
    Ok(kinds.into_iter().collect())
}

ppc::export_policy!(Listener);

#[cfg(test)]
mod tests {
    use ppc::LoadError;
    use ppc::testing::FakeHost;

    use super::*;

    #[test]
    fn listener_wants_named_kinds_that_the_mount_supports() {
        let all = Features(u64::MAX);
        let found = wanted("miss open", all).expect("kinds");
        assert_eq!(found, Kind::Miss | Kind::Open);
        let found = wanted("miss close touch progress", Features::OPEN).expect("kinds");
        assert_eq!(found, Kind::Miss | Kind::Close);
        assert_eq!(wanted("", all).expect("none"), Kinds::default());
        assert!(wanted("misses", all).is_err());
    }

    #[test]
    fn listener_advises_nothing_and_rejects_unknown_kinds() {
        let host = FakeHost::new().file("model", 1 << 20);
        let settings = [("kinds", "miss open"), ("progress", "4M")];
        let (mut listener, at_init) = host.start::<Listener>(&settings).expect("it starts");
        assert_eq!(at_init, []);
        let miss = Event::new(Kind::Miss, host.id("model"), 0, 4096);
        let plan = listener.prefetch(Some(&miss)).expect("a plan");
        assert_eq!(plan, Some(vec![]));
        let refused = FakeHost::new().start::<Listener>(&[("kinds", "all")]);
        assert!(matches!(refused, Err(LoadError::Init(_))));
    }
}

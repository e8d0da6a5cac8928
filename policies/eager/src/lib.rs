//! Loads everything at the first event, and never evicts.

use std::ffi::CStr;

use ppc::{Event, Features, Host, Kind, Plan, Policy, Prefetch, Result, Settings};

/// The policy, with the path to load until that has been loaded.
#[derive(Debug)]
pub struct Eager(Option<String>);

impl Policy for Eager {
    const NAME: &'static CStr = c"eager";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Loads everything at the first event";

    fn init(host: &Host<'_>, settings: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
        // An OPEN comes earlier than the first MISS, by the time the reader spends in between.
        if host.features().contain(Features::OPEN) {
            host.want(Kind::Miss | Kind::Open, 0)?;
        }
        Ok(Self(Some(settings.text("path").unwrap_or_default())))
    }
}

impl Prefetch for Eager {
    fn prefetch(
        &mut self,
        host: &Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> Result<()> {
        let reads = event.is_some_and(|event| matches!(event.kind, Kind::Open | Kind::Miss));
        let Some(path) = self.0.take_if(|_| reads) else {
            return Ok(());
        };
        // From now on there is nothing to do, so an OPEN need not wake the worker.
        host.want(Kind::Miss, 0)?;
        plan.add_all(path)
    }
}

ppc::export_policy!(Eager);

#[cfg(test)]
mod tests {
    use ppc::Io;
    use ppc::testing::FakeHost;

    use super::*;

    fn host() -> FakeHost {
        let host = FakeHost::new()
            .file("model/2", 2 << 20)
            .file("model/1", 1 << 20);
        host.file("model/empty", 0).file("other/3", 1)
    }

    fn all(host: &FakeHost, paths: &[&str]) -> Vec<Io> {
        paths
            .iter()
            .map(|path| Io::load(host.id(path), ..))
            .collect()
    }

    #[test]
    fn the_first_event_loads_everything_and_no_other_anything() {
        let host = host();
        let (mut eager, at_init) = host.start::<Eager>(&[]).expect("it starts");
        assert_eq!(at_init, []);
        assert_eq!(eager.prefetch(None).expect("a plan"), Some(vec![]));
        let open = Event::new(Kind::Open, host.id("model/2"), 0, 2 << 20);
        let everything = all(&host, &["model/1", "model/2", "other/3"]);
        assert_eq!(
            eager.prefetch(Some(&open)).expect("a plan"),
            Some(everything)
        );
        let miss = Event::new(Kind::Miss, host.id("model/2"), 0, 4096);
        assert_eq!(eager.prefetch(Some(&miss)).expect("a plan"), Some(vec![]));
        assert!(eager.evict(Some(&miss)).expect("no callback").is_none());
        assert_eq!(host.wanted(), (Kind::Miss.into(), 0));
    }

    #[test]
    fn a_path_is_what_it_loads() {
        let host = host().features(Features::default());
        for (path, loaded) in [
            ("model", ["model/1", "model/2"].as_slice()),
            ("other/3", &["other/3"]),
        ] {
            let (mut eager, _) = host.start::<Eager>(&[("path", path)]).expect("it starts");
            let miss = Event::new(Kind::Miss, host.id("model/1"), 0, 4096);
            assert_eq!(
                eager.prefetch(Some(&miss)).expect("a plan"),
                Some(all(&host, loaded))
            );
        }
    }
}

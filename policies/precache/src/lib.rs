//! Loads everything when it is registered, and never evicts.

use std::ffi::CStr;

use ppc::{Host, Plan, Policy, Result, Settings};

/// Its work is done once it exists. Files it did not load are read as if there were no policy.
#[derive(Debug)]
pub struct Precache;

impl Policy for Precache {
    const NAME: &'static CStr = c"precache";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Loads everything when it is registered";

    fn init(_: &Host<'_>, settings: &mut Settings, plan: &mut Plan<'_>) -> Result<Self> {
        plan.add_all(settings.text("path").unwrap_or_default())?;
        Ok(Self)
    }
}

ppc::export_policy!(Precache);

#[cfg(test)]
mod tests {
    use ppc::testing::FakeHost;
    use ppc::{Io, Level, LoadError};

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
    fn everything_is_loaded_at_once_and_nothing_later() {
        let host = host();
        let (mut precache, at_init) = host.start::<Precache>(&[]).expect("it starts");
        assert_eq!(at_init, all(&host, &["model/1", "model/2", "other/3"]));
        assert!(precache.prefetch(None).expect("no callback").is_none());
        assert!(precache.evict(None).expect("no callback").is_none());
        assert_eq!(host.logs(), []);
    }

    #[test]
    fn a_path_is_what_it_loads() {
        let host = host();
        for (path, loaded) in [
            ("model", ["model/1", "model/2"].as_slice()),
            ("other/3", &["other/3"]),
        ] {
            let (_, at_init) = host
                .start::<Precache>(&[("path", path)])
                .expect("it starts");
            assert_eq!(at_init, all(&host, loaded));
        }
        let refused = host
            .start::<Precache>(&[("path", "none")])
            .expect_err("no such path");
        assert!(matches!(refused, LoadError::Init(_)));
        let [(level, line)] = &host.logs()[..] else {
            panic!("it says why, once");
        };
        assert_eq!(*level, Level::Error);
        assert!(line.starts_with("init: list: "), "{line}");
    }
}

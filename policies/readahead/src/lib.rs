//! The kernel's readahead as a policy: a window for each process on each file, which doubles while
//! its misses are sequential and closes when they are not.

mod window;

use std::collections::HashMap;
use std::ffi::CStr;

use ppc::{Event, Features, FileId, Host, Io, Kind, Plan, Policy, Prefetch, Result, Settings};

use crate::window::Window;

/// The kernel's default, unless `read_ahead_kb` is set.
const DEFAULT_MAX: u64 = 128 << 10;
/// Upper bound on windows: they would pile up on a mount without CLOSE events.
const MOST_WINDOWS: usize = 4096;

/// The windows, by file and process.
#[derive(Debug)]
pub struct Readahead {
    max: u64,
    windows: HashMap<(u32, FileId), Window>,
}

impl Policy for Readahead {
    const NAME: &'static CStr = c"readahead";
    const VERSION: &'static CStr = c"1";
    const DESCRIPTION: &'static CStr = c"Reads ahead of sequential readers as the kernel does";

    fn init(host: &Host<'_>, settings: &mut Settings, _: &mut Plan<'_>) -> Result<Self> {
        let max = settings.bytes("max")?.unwrap_or(DEFAULT_MAX);
        if host.features().contain(Features::OPEN) {
            host.want(Kind::Miss | Kind::Close, 0)?;
        }
        let windows = HashMap::new();
        Ok(Self { max, windows })
    }
}

impl Prefetch for Readahead {
    fn prefetch(&mut self, _: &Host<'_>, event: Option<&Event>, plan: &mut Plan<'_>) -> Result<()> {
        let Some(event) = event else {
            return Ok(());
        };
        let reader = (event.process, event.file);
        match event.kind {
            Kind::Close => {
                self.windows.remove(&reader);
            }
            Kind::Miss => {
                if self.windows.len() >= MOST_WINDOWS && !self.windows.contains_key(&reader) {
                    self.windows.clear();
                }
                let window = self.windows.entry(reader).or_insert(Window::new(self.max));
                if let Some(ahead) = window.miss(event.offset, event.length) {
                    plan.add(Io::load(event.file, ahead).by(event.process))?;
                }
            }
            _ => (),
        }
        Ok(())
    }
}

ppc::export_policy!(Readahead);

#[cfg(test)]
mod tests {
    use ppc::LoadError;
    use ppc::host::Instance;
    use ppc::testing::FakeHost;

    use super::*;

    fn miss(policy: &mut Instance, event: &Event) -> Vec<Io> {
        policy
            .prefetch(Some(event))
            .expect("a plan")
            .expect("a callback")
    }

    #[test]
    fn processes_and_files_have_their_own_windows() {
        let host = FakeHost::new().file("a", 1 << 30).file("b", 1 << 30);
        let (mut policy, at_init) = host.start::<Readahead>(&[]).expect("it starts");
        assert_eq!(at_init, []);
        let (a, b) = (host.id("a"), host.id("b"));
        let ahead =
            |file, process, start, length| vec![Io::load(file, start..start + length).by(process)];
        for (file, process) in [(a, 1), (a, 2), (b, 1)] {
            let first = Event::new(Kind::Miss, file, 0, 4096).by(process);
            assert_eq!(
                miss(&mut policy, &first),
                ahead(file, process, 4096, 4 * 4096)
            );
        }
        let second = Event::new(Kind::Miss, a, 5 * 4096, 4096).by(1);
        assert_eq!(miss(&mut policy, &second), ahead(a, 1, 6 * 4096, 8 * 4096));
        // A reader that closes and comes back in the middle counts as new.
        let close = Event::new(Kind::Close, a, 0, 0).by(1);
        assert_eq!(miss(&mut policy, &close), []);
        let third = Event::new(Kind::Miss, a, 14 * 4096, 4096).by(1);
        assert_eq!(miss(&mut policy, &third), []);
        assert_eq!(policy.prefetch(None).expect("a plan"), Some(vec![]));
    }

    #[test]
    fn the_maximum_is_a_setting() {
        let host = FakeHost::new().file("a", 1 << 30);
        let (mut policy, _) = host
            .start::<Readahead>(&[("max", "8K")])
            .expect("it starts");
        let first = Event::new(Kind::Miss, host.id("a"), 0, 1 << 20);
        assert_eq!(
            miss(&mut policy, &first),
            [Io::load(host.id("a"), 1 << 20..(1 << 20) + (8 << 10)).by(1)]
        );
        for setting in [("max", "many"), ("min", "4K")] {
            let refused = host
                .start::<Readahead>(&[setting])
                .expect_err("no such thing");
            assert!(matches!(refused, LoadError::Init(_)));
        }
    }

    #[test]
    fn readahead_works_without_close_events() {
        let host = FakeHost::new()
            .features(Features::default())
            .file("a", 1 << 30);
        let (mut policy, _) = host.start::<Readahead>(&[]).expect("it starts");
        assert!(host.wanted().0.contains(Kind::Miss));
        for process in 1..=5000 {
            let first = Event::new(Kind::Miss, host.id("a"), 0, 4096).by(process);
            assert_eq!(miss(&mut policy, &first).len(), 1);
        }
    }
}

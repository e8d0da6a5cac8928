//! Tests of the registry that need no worker.

use super::*;

#[test]
fn concurrent_registrations_are_all_saved() {
    const MOUNTS: usize = 16;
    let state = std::env::temp_dir().join(format!("cprt-registry-{}.json", std::process::id()));
    for _ in 0..20 {
        let config = Config {
            state: state.clone(),
            ..Config::default()
        };
        let registry = Registry::new(config, String::new());
        std::thread::scope(|scope| {
            for number in 0..MOUNTS {
                let registry = &registry;
                scope.spawn(move || {
                    let slot = registry.slot(&PathBuf::from(format!("/mnt/{number}")));
                    slot.state().registration = Some(Registration {
                        source: BackendSource::OBSERVE,
                        library: "/usr/lib/ppc/maio.so".into(),
                        settings: Settings::default(),
                        cgroup: None,
                    });
                    registry.persist();
                });
            }
        });
        let saved: Registrations = state::read(&state, "register again").expect("to read");
        assert_eq!(saved.len(), MOUNTS);
    }
    std::fs::remove_file(&state).expect("to remove");
}

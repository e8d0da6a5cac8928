use super::*;

fn with(obstacle: Option<Obstacle>, cached: u64) -> Comparison {
    Comparison {
        cached,
        compared: 0,
        damage: None,
        obstacle,
    }
}

#[test]
fn a_right_hash_outweighs_a_file_system_without_direct_reads() {
    use Obstacle::{Changed, FromMemory, NoDirect, NotTold};
    for (obstacle, cached, hash, all, good) in [
        (None, 5, None, false, true),
        (Some(NoDirect), 5, None, false, false),
        (Some(NoDirect), 5, Some(true), false, true),
        (Some(NoDirect), 0, None, false, true),
        (Some(NoDirect), 0, None, true, false),
        (Some(FromMemory), 5, Some(true), false, true),
        (Some(NotTold), 0, Some(true), false, false),
        (Some(Changed), 5, None, false, false),
    ] {
        let comparison = with(obstacle, cached);
        let verdict = judge("/a".into(), &comparison, hash, all);
        assert_eq!(verdict == Verdict::Good, good, "{comparison:?} {hash:?}");
    }
    let wrong = judge("/a".into(), &with(None, 5), Some(false), false);
    assert!(matches!(wrong, Verdict::Damaged(_)));
}

#[test]
fn damage_is_worse_than_what_could_not_be_checked() {
    let mut outcome = Outcome {
        files: 3,
        bytes: 3 << 20,
        cached_bytes: 2 << 20,
        compared_bytes: 1 << 20,
        ..Outcome::default()
    };
    assert_eq!(outcome.exit(), Exit::Done);
    assert_eq!(
        outcome.text(false),
        "nothing is wrong; 2 MiB of 3 MiB in 3 files cached, 1 MiB compared with the device, 0 hashes computed; it \
         took 0 s\n"
    );
    outcome.missing.push("/m/gone".into());
    assert_eq!(outcome.exit(), Exit::Unchecked);
    assert_eq!(outcome.text(true), "/m/gone: listed, but missing\n");
    let damaged = Damaged {
        path: "/m/a".into(),
        differs: None,
        hash_right: Some(false),
    };
    outcome.add(&with(None, 1), Some(false), Verdict::Damaged(damaged));
    assert_eq!((outcome.exit(), outcome.hashed_files), (Exit::Damaged, 1));
    let text = outcome.text(false);
    assert!(text.starts_with("/m/a: its SHA-256 differs"), "{text}");
    assert!(text.contains("\n1 damaged; "), "{text}");
}

#[test]
fn progress_line_shows_rate_and_time_left() {
    let second = Duration::from_secs(1);
    assert_eq!(line(0, 1 << 30, second), "0 B of 1 GiB checked");
    assert_eq!(
        line(256 << 20, 1 << 30, second),
        "256 MiB of 1 GiB checked, 256 MiB/s, 3 s left"
    );
}

#[test]
fn only_what_is_below_the_given_paths_can_be_missing() {
    let list = ["/proc/none", "/nowhere/else", "/proc/version"];
    let list: HashMap<PathBuf, Hash> = list.map(|path| (path.into(), [0; 32])).into();
    let missing = missing(&list, &[], &["/proc".into()]);
    let expected: [PathBuf; 2] = ["/proc/none".into(), "/proc/version".into()];
    assert_eq!(missing, expected);
}

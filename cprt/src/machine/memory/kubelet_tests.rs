//! Configurations of kubelet, as installers and people write them.

use super::*;

const MIB: u64 = 1 << 20;

/// The threshold of a machine of 1000 MiB.
fn highest(text: &str) -> (u64, EvictionOrigin) {
    let (thresholds, problems) = Thresholds::of(text);
    assert_eq!(problems, [""; 0], "{text}");
    let eviction = thresholds.highest(1000 * MIB).expect(text);
    (eviction.below / MIB, eviction.origin)
}

#[test]
fn mappings_in_lines_and_in_braces() {
    use EvictionOrigin::{Default, Hard, Soft};
    for (text, expected) in [
        ("", (100, Default)),
        (
            "apiVersion: kubelet.config.k8s.io/v1beta1\n",
            (100, Default),
        ),
        ("evictionHard:\n  memory.available: 200Mi\n", (200, Hard)),
        (
            "evictionHard:\n    memory.available:   \"200Mi\"   # more\n",
            (200, Hard),
        ),
        (
            "evictionHard: # first\n\n  # none\n  imagefs.available: 15%\n  'memory.available': '20%'\n",
            (200, Hard),
        ),
        (
            "\"evictionHard\":\n  \"memory.available\" : \"200Mi\"\n",
            (200, Hard),
        ),
        (
            "evictionHard: {memory.available: 200Mi, nodefs.available: 10%}\n",
            (200, Hard),
        ),
        (
            "evictionHard: {nodefs.available: \"10%\", \"memory.available\": \"200Mi\"} # x\n",
            (200, Hard),
        ),
        (
            "evictionHard: {\n  nodefs.available: 10%, # a\n  memory.available: 200Mi,\n}\n",
            (200, Hard),
        ),
        (
            "evictionHard:\r\n  memory.available: 200Mi\r\n",
            (200, Hard),
        ),
        (
            "evictionHard:\n  memory.available: 50Mi\nevictionSoft:\n  memory.available: 300Mi\n",
            (300, Soft),
        ),
        ("evictionSoft:\n  memory.available: 7.5%\n", (100, Default)),
        ("evictionSoft:\n  memory.available: 20%\n", (200, Soft)),
        // Such a key elsewhere does not count.
        (
            "evictionMinimumReclaim:\n  memory.available: 500Mi\n",
            (100, Default),
        ),
        (
            "other:\n  evictionHard:\n    memory.available: 500Mi\n",
            (100, Default),
        ),
        (
            "evictionHard:\n  deeper:\n    memory.available: 500Mi\n",
            (100, Default),
        ),
        (
            "evictionHard:\n  nodefs.available: 5%\nmemory.available: 500Mi\n",
            (100, Default),
        ),
        (
            "#evictionHard:\n#  memory.available: 500Mi\n",
            (100, Default),
        ),
        (
            "evictionHard:\n  #memory.available: 500Mi\n",
            (100, Default),
        ),
        ("evictionHard: {}\n", (100, Default)),
        ("evictionHard: null\n", (100, Default)),
        ("evictionHard:\n  memory.available: ~\n", (100, Default)),
        ("evictionHard: {memory.available: 200Mi\n", (100, Default)),
        (
            "note: it's # evictionHard\nevictionHard:\n  memory.available: 200Mi\n",
            (200, Hard),
        ),
    ] {
        assert_eq!(highest(text), expected, "{text}");
    }
}

#[test]
fn a_configuration_in_json() {
    let text = r#"{"kind": "KubeletConfiguration",
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "10%"}}"#;
    assert_eq!(highest(text), (200, EvictionOrigin::Hard));
    assert_eq!(highest("{").0, 100);
    assert_eq!(
        highest(r#"{"evictionHard": {"memory.available": 5}}"#).0,
        100
    );
}

#[test]
fn invalid_threshold_is_reported_and_defaults_apply() {
    let (thresholds, problems) = Thresholds::of("evictionHard:\n  memory.available: many\n");
    assert_eq!(thresholds, Thresholds::default_ones());
    assert!(problems[0].contains("evictionHard: memory.available: \"many\""));
}

#[test]
fn thresholds_that_kubelet_ignores() {
    for amount in ["0%", "100%", "0"] {
        let text = format!("evictionHard:\n  memory.available: {amount}\n");
        assert_eq!(Thresholds::of(&text).0.highest(1000), None, "{amount}");
    }
}

#[test]
fn odd_text_does_no_harm() {
    let text = "evictionHard: {\n\t'memory.available': \"20%\", # it's\n}\nevictionSoft:\n  memory.available: 1Gi\n";
    for end in 0..text.len() {
        for from in [0, end / 2] {
            Thresholds::of(&text[from..end]);
        }
    }
    for text in [
        "\0",
        "'",
        "\"",
        "evictionHard:\n '",
        "evictionHard: {'",
        ":",
        "evictionHard:\n :\n",
    ] {
        assert_eq!(Thresholds::of(text).0, Thresholds::default_ones());
    }
}

#[test]
fn only_a_file_is_read() {
    assert!(read(&std::env::temp_dir()).is_err());
    assert!(read(Path::new("/dev/null")).is_err());
    let absent = read(Path::new("/nowhere/config.yaml"));
    assert_eq!(
        absent.expect_err("it is not there").kind(),
        io::ErrorKind::NotFound
    );
}

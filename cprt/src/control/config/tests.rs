//! The configuration file, and the errors that a wrong one causes.

use super::*;

const SAMPLE: &str = include_str!("../../../cprt.toml");

fn refused(text: &str) -> String {
    match text.parse::<Config>() {
        Ok(config) => panic!("{text:?} became {config:?}"),
        Err(problem) => problem,
    }
}

#[test]
fn the_sample_is_the_defaults() {
    assert_eq!(SAMPLE.parse(), Ok(Config::default()));
    assert_eq!("".parse(), Ok(Config::default()));
}

/// Takes the keys from the parser's error about an unknown one.
#[test]
fn the_sample_shows_every_key() {
    for table in [
        "",
        "[memory]\n",
        "[loader]\n",
        "[worker]\n",
        "[metrics]\n",
        "[nri]\n",
    ] {
        let problem = refused(&format!("{table}no-such-key = 1\n"));
        let (_, known) = problem.split_once(", expected").expect("known keys");
        let keys: Vec<_> = known.split('`').skip(1).step_by(2).collect();
        assert!(keys.len() >= 2, "{problem}");
        for key in keys {
            let shown = SAMPLE.lines().any(|line| {
                line.starts_with(&format!("{key} = "))
                    || line.contains(&format!("[{key}]"))
                    || line.contains(&format!("[{key}."))
            });
            assert!(shown, "{table}{key}");
        }
    }
}

#[test]
fn the_commented_mount_of_the_sample_is_one() {
    let lines = SAMPLE.lines().filter_map(|line| line.strip_prefix("#\t"));
    let text: Vec<_> = lines.collect();
    let config: Config = text.join("\n").parse().expect("an example that works");
    let eager = &config.mount[Path::new("/mnt/models")];
    assert_eq!(eager.policy, Path::new("/usr/lib/ppc/eager.so"));
    assert_eq!(eager.settings["key"], "value");
    assert!(eager.cgroup.is_some());
    let llama = &config.service["llama"];
    let all = [&llama.exe, &llama.arguments, &llama.unit, &llama.cgroup];
    assert!(all.iter().all(|it| it.is_some()) && llama.model.is_some());
    assert_eq!(llama.settings["idle"], "20");
    let keep = &config.keep["llama"];
    assert_eq!((keep.paths.len(), keep.priority), (2, 5));
    assert_eq!(keep.budget, Some(Bytes(20 << 30)));
}

#[test]
fn a_set_to_keep_has_paths() {
    for (text, problem) in [
        ("[keep.a]\n", "missing field `paths`"),
        ("[keep.a]\npaths = []\n", "[keep.a]: name at least one"),
        ("[keep.a]\npaths = ['m']\n", "\"m\" must begin with a slash"),
        ("[keep.'a b']\npaths = ['/m']\n", "a name may have"),
        ("[keep.a]\npaths = ['/m']\nbudget = 0\n", "omit it"),
        ("kept = 'here'\n", "must begin with a slash"),
    ] {
        let refused = refused(text);
        assert!(refused.contains(problem), "{text}: {refused}");
    }
}

#[test]
fn services_are_parsed_and_invalid_ones_rejected() {
    let text = "learn = true\n[service.a]\nexe = 'a'\n[service.b]\nunit = 'b'\n[service.c]\nimage = 'c:*'\n";
    let config: Config = text.parse().expect("three services");
    assert!(config.learn && config.service.len() == 3);
    let problem = refused("[service.a]\narguments = 'x'\n");
    assert!(problem.contains("[service.a]: set exe"), "{problem}");
    assert!(refused("[service.a]\npod = 'x'\n").contains("unknown field `pod`"));
    assert!(refused("learnt = 'here'\n").contains("must begin with a slash"));
}

#[test]
fn memory_is_guarded_for_kubelet_and_for_gpus() {
    let text = "[memory]\nkubelet = '7.5%'\nunified = 'on'\n";
    let config: Config = text.parse().expect("two guards");
    let part = KubeletGuard::Below(crate::control::guard::Amount::Part(750));
    assert_eq!(config.memory.kubelet, part);
    assert_eq!(config.memory.unified, UnifiedGuard::On);
    // A worker gets it as JSON.
    let json = serde_json::to_string(&config.memory).expect("it has no odd keys");
    let memory: MemoryConfig = serde_json::from_str(&json).expect("the same again");
    assert_eq!(memory, config.memory);
    for (text, problem) in [
        ("[memory]\nkubelet = 'some'\n", "or \"off\" to ignore"),
        ("[memory]\nunified = true\n", "expected a string"),
    ] {
        let refused = refused(text);
        assert!(refused.contains(problem), "{text}: {refused}");
    }
}

#[test]
fn metrics_endpoints_have_defaults_and_are_checked() {
    let served = |text: &str| {
        let config: Config = text.parse().expect(text);
        let socket = config.metrics_socket();
        (socket, config.metrics.address.map(|it| it.to_string()))
    };
    let beside = |folder: &str| Some(Path::new(folder).join("metrics.sock"));
    assert_eq!(served(""), (beside("/run/cprt"), None));
    assert_eq!(served("socket = '/x/control'\n"), (beside("/x"), None));
    let text = "[metrics]\nsocket = '/y/m'\naddress = '[::1]:9464'\n";
    assert_eq!(
        served(text),
        (Some("/y/m".into()), Some("[::1]:9464".into()))
    );
    let text = "[metrics]\nsocket = ''\naddress = ''\n";
    assert_eq!(served(text), (None, None));
    for address in ["localhost:9464", "127.0.0.1", ":9464", "9464"] {
        let problem = refused(&format!("[metrics]\naddress = '{address}'\n"));
        assert!(problem.contains("such as \"127.0.0.1:9464\""), "{problem}");
    }
}

#[test]
fn mounts_are_tables_with_a_path_for_a_name() {
    let text = "[mount.\"/a\"]\npolicy = \"/p.so\"\n[mount.\"/b c\"]\npolicy = \"/q.so\"\n";
    let config: Config = text.parse().expect("two mounts");
    let mounts: Vec<_> = config.mount.keys().map(PathBuf::as_path).collect();
    assert_eq!(mounts, [Path::new("/a"), Path::new("/b c")]);
    let registration = &config.mount[Path::new("/a")];
    assert_eq!(registration.settings, Settings::new());
    assert_eq!(registration.cgroup, None);
    assert!(refused("[mount.\"/a\"]\n").contains("missing field `policy`"));
}

#[test]
fn unknown_or_malformed_settings_report_their_line() {
    for (text, line, part) in [
        ("\nsokcet = \"/s\"\n", 2, "unknown field `sokcet`"),
        ("[memory]\nlimit = 1\n", 2, "unknown field `limit`"),
        ("[loader]\n\nchunks = 1\n", 3, "unknown field `chunks`"),
        ("[cache]\n", 1, "unknown field `cache`"),
        (
            "[mount.\"/a\"]\npolicy = \"/p.so\"\nsetting = {}\n",
            3,
            "unknown field `setting`",
        ),
        ("[memory]\nthreshold = 80 %\n", 2, ""),
        ("socket = \"/s\"\nsocket = \"/t\"\n", 2, "duplicate key"),
        ("[memory]\nthreshold = 300\n", 2, "300"),
        (
            "[loader]\nchunk = \"2 MB\"\n",
            2,
            "\"2 MB\" is not a number of bytes such as",
        ),
        (
            "[loader]\nchunk = true\n",
            2,
            "expected a number of bytes, as",
        ),
        (
            "[loader]\nchunk = -1\n",
            2,
            "expected a number of bytes, as",
        ),
        (
            "[memory]\ninterval = 100\n",
            2,
            "expected a span of time with its unit, as",
        ),
        (
            "[memory]\ninterval = \"100\"\n",
            2,
            "\"100\" is not a span of time such as",
        ),
    ] {
        let problem = refused(text);
        assert!(
            problem.contains(&format!("line {line}, column ")),
            "{problem}"
        );
        assert!(problem.contains(part), "{problem}");
    }
}

#[test]
fn out_of_range_settings_are_rejected_with_the_range() {
    for (text, expected) in [
        (
            "[memory]\nthreshold = 0",
            "memory.threshold = 0: must be a percentage, from 1 to 100",
        ),
        (
            "[memory]\nthreshold = 101",
            "memory.threshold = 101: must be a percentage, from 1 to 100",
        ),
        (
            "[memory]\nhysteresis = 80",
            "memory.hysteresis = 80: must be less than memory.threshold, 80",
        ),
        (
            "[memory]\npressure = 101",
            "memory.pressure = 101: must be a percentage; 100 disables it",
        ),
        (
            "[memory]\ninterval = \"0 s\"",
            "memory.interval: must be longer than 0",
        ),
        (
            "[loader]\nthreads = 129",
            "loader.threads = 129: must be at most 128",
        ),
        (
            "[loader]\nchunk = 4096",
            "loader.chunk = \"4 KiB\": must be from 64 KiB to 1 GiB",
        ),
        (
            "[loader]\nchunk = \"2G\"",
            "loader.chunk = \"2 GiB\": must be from 64 KiB to 1 GiB",
        ),
        (
            "[worker]\ndeadline = \"999us\"",
            "worker.deadline = \"999 us\": must be at least 1 ms",
        ),
        (
            "[worker]\nmemory = \"16M\"",
            "worker.memory = \"16 MiB\": must be at least 32 MiB",
        ),
        (
            "[worker]\nqueue = 15",
            "worker.queue = 15: must be at least 16",
        ),
        (
            "[worker]\nranges = 0",
            "worker.ranges = 0: must be at least 1",
        ),
        (
            "socket = \"cprt.sock\"",
            "socket: \"cprt.sock\" must begin with a slash",
        ),
        ("state = \"\"", "state: \"\" must begin with a slash"),
        (
            "[mount.\"models\"]\npolicy = \"/p.so\"",
            "[mount.\"models\"]: \"models\" must begin with a slash",
        ),
        (
            "[mount.\"/m\"]\npolicy = \"eager.so\"",
            "[mount.\"/m\"] policy: \"eager.so\" must begin with a slash",
        ),
        (
            "[mount.\"/m\"]\npolicy = \"/p.so\"\ncgroup = \"a\"",
            "[mount.\"/m\"] cgroup: \"a\" must begin with a slash",
        ),
    ] {
        assert_eq!(refused(text), expected);
    }
    for edge in [
        "[memory]\nthreshold = 100\npressure = 100\nhysteresis = 99",
        "[memory]\nthreshold = 1\nhysteresis = 0\npressure = 0",
        "[loader]\nthreads = 128\nchunk = \"1 GiB\"",
        "[loader]\nthreads = 0\nchunk = \"64 KiB\"",
        "[worker]\ndeadline = \"1 ms\"\nmemory = \"32 MiB\"\nqueue = 16\nranges = 1",
    ] {
        assert!(edge.parse::<Config>().is_ok(), "{edge}");
    }
}

#[test]
fn config_error_names_its_file() {
    let path = std::env::temp_dir().join(format!("cprt-config-{}.toml", std::process::id()));
    let missing = Config::read(&path).expect_err("there is none");
    assert_eq!(missing.to_string(), format!("Reading {}", path.display()));
    std::fs::write(&path, "[worker]\nqueue = 1\n").expect("a scratch file");
    let wrong = Config::read(&path).expect_err("out of range");
    let expected = format!("{}: worker.queue = 1: must be at least 16", path.display());
    assert_eq!(wrong.to_string(), expected);
    std::fs::remove_file(path).expect("it was just there");
}

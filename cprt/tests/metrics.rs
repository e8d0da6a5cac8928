//! Metrics from a real daemon: as text, as a real Prometheus reads them, and as the dashboard and the README name them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cprt::control::metrics::{Format, text};
use cprt::control::protocol::{MountStats, Status};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;
use test_support::{Folder, Sample, TRUSTED, drop_cached, metrics, own_view, skip, wait_for};

/// The size of the file that is read.
const SIZE: usize = 512 << 10;
/// The size of the model.
const MODEL: usize = 4 << 20;
/// What Prometheus asks for.
const OPEN: &str = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";

/// The folder of this build's MAIO, made once: another test's daemon may be running the library.
fn policies() -> &'static Path {
    static POLICIES: OnceLock<PathBuf> = OnceLock::new();
    POLICIES.get_or_init(|| {
        let here = std::env::current_exe().expect("a path");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("metrics");
        fs::create_dir_all(&folder).expect("it is ours");
        let library = folder.join("maio.so");
        fs::copy(here.with_file_name("libmaio.so"), &library).expect("it was built");
        fs::set_permissions(&library, fs::Permissions::from_mode(0o755)).expect("it is ours");
        folder
    })
}

/// A process that is ended with the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let process = Pid::from_raw(self.0.id().try_into().expect("a process"));
        let _ = kill(process, Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// A daemon that serves metrics at a socket and at an address.
struct Ground {
    _daemon: Ended,
    /// A folder for the sockets, whose paths have to be short.
    place: Folder,
    /// Has the file `f`; on a disk, because a temporary folder may be in memory, where reads never miss.
    folder: Folder,
    address: SocketAddr,
}

impl Ground {
    fn new(name: &str, config: impl Fn(&Path) -> String) -> Self {
        let place = Folder::new(name);
        let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        folder.write("f", vec![7; SIZE]);
        folder.write("kept", vec![7; SIZE]);
        folder.write("model.bin", vec![7; MODEL]);
        let address = free_address();
        let own = format!(
            "socket = '{0}/s'\nstate = '{0}/state.json'\nlearnt = '{0}/learnt.json'\nkept = '{0}/kept.json'\n{1}\
             [metrics]\naddress = '{address}'\n",
            place.path().display(),
            config(folder.path())
        );
        let file = place.write("cprt.toml", own);
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_cprtd"));
        let daemon = daemon
            .arg("--config")
            .arg(file)
            .env("PPC_POLICY_PATH", TRUSTED)
            .spawn()
            .expect("it was built");
        Self {
            _daemon: Ended(daemon),
            place,
            folder,
            address,
        }
    }

    /// A daemon with MAIO for a directory and with a service; `None` where that is not possible, after saying why.
    fn with_policy(name: &str) -> Option<Self> {
        if !geteuid().is_root() {
            skip("policies of a daemon are for root; run it as root");
            return None;
        }
        if let Err(error) = own_view(policies()) {
            skip(&format!("no mount namespace: {error}"));
            return None;
        }
        let ground = Self::new(name, |folder| {
            let folder = folder.display();
            format!(
                "[mount.'{folder}']\npolicy = '{TRUSTED}/maio.so'\nbackend = 'observe'\n\
                 settings = {{ store = '{folder}/store', service-id = 'm', idle = '1' }}\n[service.x]\nexe = 'no-such-program'\n\
                 [keep.x]\npaths = ['{folder}/kept']\n"
            )
        });
        // The daemon has the library open by the time it says that the worker is up.
        let up = |samples: &[Sample]| sum(samples, "ppc_worker_up") > 0.0;
        wait_for("the policy", || ground.samples().filter(|it| up(it)));
        Some(ground)
    }

    fn samples(&self) -> Option<Vec<Sample>> {
        let stream = TcpStream::connect(self.address).ok()?;
        let (head, body) = get(stream, "/metrics", OPEN);
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        assert!(head.contains("application/openmetrics-text; version=1.0.0"));
        Some(metrics(&body, true).unwrap_or_else(|why| panic!("{why}\n{body}")))
    }
}

/// An address of this machine that no program listens at.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listener.local_addr().expect("an address")
}

/// The head and the body of a response.
fn get(mut stream: impl Read + Write, path: &str, accept: &str) -> (String, String) {
    let request = format!("GET {path} HTTP/1.0\r\nAccept: {accept}\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("a response");
    let (head, body) = text.split_once("\r\n\r\n").expect("both");
    (head.to_owned(), body.to_owned())
}

/// The sum of all series of this name.
fn sum(samples: &[Sample], name: &str) -> f64 {
    let series = samples.iter().filter(|it| it.name == name);
    series.map(|it| it.value).sum()
}

#[test]
fn a_daemon_serves_metrics_at_its_socket_and_at_its_address() {
    let ground = Ground::new("metrics-plain", |_| String::new());
    let samples = wait_for("the daemon", || ground.samples());
    assert!(sum(&samples, "ppc_build_info") >= 1.0, "{samples:?}");
    let path = ground.place.path().join("metrics.sock");
    let mode = fs::metadata(&path).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o007, 0, "{mode:o}");
    let stream = UnixStream::connect(&path).expect("it listens");
    let (head, body) = get(stream, "/metrics", "*/*");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    metrics(&body, false).unwrap_or_else(|why| panic!("{why}\n{body}"));
    drop(ground);
    assert!(!path.exists(), "it is gone with its daemon");
}

#[test]
fn reader_miss_raises_the_missed_bytes_counter() {
    let Some(ground) = Ground::with_policy("metrics-moves") else {
        return;
    };
    let samples = ground.samples().expect("it answers");
    assert!(sum(&samples, "ppc_policy_info") > 0.0);
    let before = sum(&samples, "ppc_missed_bytes_total");
    let path = ground.folder.path().join("f");
    let file = fs::File::open(&path).expect("it is there");
    // MAIO listens to misses from an open on, and a moment after it.
    wait_for("a miss", || {
        drop_cached(&path).expect("to drop it");
        file.read_at(&mut vec![0; SIZE], 0).expect("it is there");
        let now = sum(&ground.samples()?, "ppc_missed_bytes_total");
        (now > before).then_some(())
    });
}

/// Has a process read the model until MAIO has taken that for a load and the load is over.
fn load(ground: &Ground) -> Vec<Sample> {
    let model = ground.folder.path().join("model.bin");
    wait_for("the end of a load", || {
        drop_cached(&model).expect("to drop it");
        let read = Command::new("cat")
            .arg(&model)
            .stdout(Stdio::null())
            .status();
        assert!(read.expect("a program").success());
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            let samples = ground.samples()?;
            if sum(&samples, "ppc_model_load_duration_seconds_count") > 0.0 {
                return Some(samples);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        None
    })
}

#[test]
fn load_metrics_add_up_by_source_and_phase() {
    let Some(ground) = Ground::with_policy("metrics-load") else {
        return;
    };
    let samples = load(&ground);
    let of = |name: &str, label: &str, value: &str| {
        let series = samples.iter().filter(|it| it.name == name);
        let is_it = |it: &&Sample| it.labels.get(label).is_some_and(|it| it == value);
        series.filter(is_it).map(|it| it.value).sum::<f64>()
    };
    let whole = sum(&samples, "ppc_model_load_duration_seconds_sum");
    let phases = sum(&samples, "ppc_model_load_phase_seconds_total");
    // Sums of decimal fractions differ in the last digit.
    let nanosecond = 1e-9;
    assert!(
        phases >= whole * 0.99 && phases <= whole + nanosecond,
        "{phases} of {whole}"
    );
    let source = |name| of("ppc_model_load_source_bytes_total", "source", name);
    let asked = sum(&samples, "ppc_model_load_asked_bytes_total");
    let prefetched = source("in-time") + source("late") + source("never-read");
    assert!((asked - prefetched).abs() < 1.0, "{samples:?}");
    let read = source("in-time") + source("late") + source("reader");
    #[expect(clippy::cast_precision_loss, reason = "it is small")]
    let model = MODEL as f64;
    assert!(read >= model, "{read}: it has read the model");
    assert!(of("ppc_model_load_phase_seconds_total", "service", "m") > 0.0);
}

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("metrics")
        .join(name);
    fs::read_to_string(path).expect("it is there")
}

/// The queries of the dashboard, with values for its variables.
fn queries() -> Vec<String> {
    fn find(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                let own = fields.get("expr").and_then(Value::as_str);
                found.extend(own.map(str::to_owned));
                fields.values().for_each(|value| find(value, found));
            }
            Value::Array(values) => values.iter().for_each(|value| find(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    let dashboard: Value = serde_json::from_str(&page("grafana.json")).expect("JSON");
    find(&dashboard, &mut found);
    let filled = found.iter().map(|query| {
        let mut query = query.clone();
        for (variable, value) in [
            ("$instance", ".*"),
            ("$mount", ".*"),
            ("$service", ".*"),
            ("$__rate_interval", "1m"),
            ("$__range", "5m"),
        ] {
            query = query.replace(variable, value);
        }
        query
    });
    filled.collect()
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("ppc_")).collect()
}

#[test]
fn the_dashboard_and_the_page_name_metrics_that_there_are() {
    let status = r#"{"version":"1","pid":1,"uptime_s":1,"mounts":[{"path":"/m","lower":"/m","device":"",
        "state":"running","policy":{"name":"p","version":"1","library":"/p.so","settings":{},"backend":"observe",
        "features":[],"crashes":0,"log":[]}}],"services":{"learn":false,"known":[{"name":"x","learnt":false,
        "running":[],"starts":1,"last":{"start":"s","process":1,"began_s":1,"phase":"over","loaded_bytes":1,
        "cached_bytes":1}}]},"loads":[{"service":"x"}],"kept":[{"name":"x","configured":true,"paths":["/m"],"priority":0,"state":"kept","files":1,
        "whole_bytes":1,"wanted_bytes":1,"cached_bytes":1,"loaded_bytes":1,"released_bytes":0,"reclaimed_bytes":0}]}"#;
    let status: Status = serde_json::from_str(status).expect("a status");
    let counted = r#"[{"path":"/m","policy":"p","stats":{}}]"#;
    let counted: Vec<MountStats> = serde_json::from_str(counted).expect("counters");
    let written = text(&status, &counted, Format::OpenMetrics);
    let samples = metrics(&written, true).expect("sound");
    let there: BTreeSet<_> = samples.iter().map(|it| it.name.as_str()).collect();

    let queries = queries();
    assert!(queries.len() > 30, "{queries:?}");
    let readme = page("README.md");
    let mut told: Vec<_> = names(&readme).into_iter().collect();
    told.extend(queries.iter().flat_map(|query| names(query)));
    for name in told {
        // A summary is named without what its series end in.
        let is_there = there.contains(name) || there.contains(format!("{name}_sum").as_str());
        assert!(is_there, "{name}");
    }
    // Where the dashboard takes the values of its variables from.
    let dashboard = page("grafana.json");
    assert!(names(&dashboard).iter().all(|name| there.contains(name)));
    for query in &queries {
        assert!(!query.contains('$'), "{query}");
    }
}

/// Prometheus as Debian has it, with its own folder, reading this daemon five times a second.
fn prometheus(ground: &Ground) -> Option<(Ended, SocketAddr)> {
    let program = ["/usr/bin/prometheus", "/usr/local/bin/prometheus"];
    let Some(program) = program
        .map(PathBuf::from)
        .into_iter()
        .find(|it| it.exists())
    else {
        skip("there is no prometheus");
        return None;
    };
    let (address, folder) = (free_address(), ground.folder.path().display());
    let config = format!(
        "scrape_configs:\n- job_name: cprtd\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\n  \
         static_configs:\n  - targets: ['{}']\n",
        ground.address
    );
    let config = ground.folder.write("prometheus.yml", config);
    let mut prometheus = Command::new(program);
    prometheus
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={folder}/tsdb"))
        .arg(format!("--web.listen-address={address}"))
        .arg("--log.level=error")
        .stdin(Stdio::null());
    Some((Ended(prometheus.spawn().expect("a program")), address))
}

/// What Prometheus answers to a query: its status, and how many series.
fn asked(at: SocketAddr, query: &str) -> Option<(String, usize)> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric();
    let encoded = query.bytes().map(|byte| {
        if plain(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    });
    let path = format!("/api/v1/query?query={}", encoded.collect::<String>());
    let (_, body) = get(TcpStream::connect(at).ok()?, &path, "*/*");
    let answer: Value = serde_json::from_str(&body).ok()?;
    let series = answer["data"]["result"].as_array().map_or(0, Vec::len);
    let problem = answer["error"].as_str().map(str::to_owned);
    Some((problem.unwrap_or_default(), series))
}

#[test]
fn prometheus_reads_it_and_answers_every_query_of_the_dashboard() {
    let Some(ground) = Ground::with_policy("metrics-prometheus") else {
        return;
    };
    let Some((_prometheus, at)) = prometheus(&ground) else {
        return;
    };
    wait_for("a scrape", || {
        let (_, series) = asked(at, "up{job=\"cprtd\"} == 1")?;
        (series == 1).then_some(())
    });
    load(&ground);
    for query in queries() {
        // Rates take two scrapes.
        wait_for(&query, || {
            let (problem, series) = asked(at, &query)?;
            assert_eq!(problem, "", "{query}");
            (series > 0).then_some(())
        });
    }
    let (_, failed) = asked(at, "up{job=\"cprtd\"} == 0").expect("it answers");
    assert_eq!(failed, 0, "each scrape is understood");
}

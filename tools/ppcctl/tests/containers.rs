//! `ppcctl run` in containers, and outside with the command in one: the same is recorded and loaded as without
//! containers. Recording takes root and a kernel that reports all reads; files and store are the test's own.

mod common;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

use common::{Ran, maio_or_skip, ppcctl};
use serde_json::Value;
use test_support::{Container, Folder, drop_cached, skip, skip_part, undisturbed};

/// The size of each of two files of weights.
const SIZE: usize = 24 << 20;
/// All kinds of containers, but for one without the rights to observe.
const CONTAINERS: [Container; 3] = [
    Container::Processes,
    Container::Root,
    Container::Runc("CAP_SYS_ADMIN"),
];

/// A model, and stores.
struct Ground {
    folder: Folder,
    place: PathBuf,
    maio: &'static Path,
}

impl Ground {
    /// `None`, with a line that says why, where nothing can be recorded.
    fn new(name: &str) -> Option<Self> {
        let maio = maio_or_skip()?;
        let folder = Folder::within(Path::new(env!("CARGO_TARGET_TMPDIR")), name);
        for number in 0..2 {
            folder.write(&format!("model/{number}.safetensors"), safetensors());
        }
        // Without one, each file is its own model.
        folder.write("model/config.json", "{}");
        let place = folder.path().join("place");
        fs::create_dir(&place).expect("ours");
        let ground = Self {
            folder,
            place,
            maio,
        };
        let ran = ground.run(
            None,
            "probe",
            &ground.reader(ground.folder.path(), false),
            None,
        );
        if summary(&ran)["backend"] != "observe" {
            skip(&format!("tracepoints: {}", ran.err.trim_end()));
            return None;
        }
        Some(ground)
    }

    /// The script of a command that reads all files. If it `waits`, it opens the first file, and then waits for the
    /// second to be cached; it fails if that does not happen.
    fn reader(&self, at: &Path, waits: bool) -> Vec<OsString> {
        let wait = "for i in $(seq 100); do
                case $(fincore -bnoRES \"$0/1.safetensors\") in *$1) break;; esac; sleep 0.1
            done; [ $i -lt 100 ] || exit 9;";
        let script = format!(
            "exec 3< \"$0/0.safetensors\"; head -c 100000 <&3 > /dev/null; {}
             cat \"$0\"/0.safetensors \"$0\"/1.safetensors > /dev/null; sleep 0.5",
            if waits { wait } else { "" }
        );
        let size = self.weights(1).metadata().expect("it is there").len();
        let words: [&OsStr; 3] = ["sh".as_ref(), "-c".as_ref(), script.as_ref()];
        let mut words = words.map(OsStr::to_owned).to_vec();
        words.extend([at.join("model").into_os_string(), size.to_string().into()]);
        words
    }

    fn weights(&self, number: u8) -> PathBuf {
        self.folder
            .path()
            .join(format!("model/{number}.safetensors"))
    }

    /// `ppcctl run` for the model as service `id`, perhaps in a container, or with the command in one.
    fn run(
        &self,
        around: Option<Container>,
        id: &str,
        command: &[OsString],
        within: Option<Container>,
    ) -> Ran {
        for number in 0..2 {
            drop_cached(&self.weights(number)).expect("to drop it");
        }
        let volume = self.folder.path();
        let here = around.map_or(volume, |it| self.inside(it));
        let mut words: Vec<OsString> = [env!("CARGO_BIN_EXE_ppcctl"), "run", "--json"]
            .map(OsString::from)
            .to_vec();
        words.extend(["--service-id", id, "--policy"].map(OsString::from));
        words.extend([self.maio.into(), "--set".into()]);
        words.push(format!("store={}", here.join("store").display()).into());
        words.extend([here.join("model").into_os_string(), "--".into()]);
        let plain = |all: &[OsString]| -> Vec<OsString> { all.to_vec() };
        words.extend(within.map_or_else(|| plain(command), |it| self.contained(it, command)));
        let words = around.map_or_else(|| plain(&words), |it| self.contained(it, &words));
        let mut all = std::process::Command::new(&words[0]);
        Ran::of(all.args(&words[1..]))
    }

    /// The words of a command that runs the given words in a container.
    fn contained(&self, container: Container, words: &[OsString]) -> Vec<OsString> {
        let words: Vec<_> = words.iter().map(OsString::as_os_str).collect();
        let command = container.command(&self.place, self.folder.path(), &words);
        let program = std::iter::once(command.get_program());
        program
            .chain(command.get_args())
            .map(OsStr::to_owned)
            .collect()
    }

    /// The path of the folder in a container.
    fn inside(&self, container: Container) -> &Path {
        if container.has_root() {
            Path::new("/volume")
        } else {
            self.folder.path()
        }
    }

    /// The template of a service: all ranges of each worker, in order.
    fn known(&self, id: &str) -> Value {
        let mut command = ppcctl();
        command
            .args(["template", "--store"])
            .arg(self.folder.path().join("store"));
        let ran = Ran::of(command.args(["show", id, "--json", "--ranges"]));
        let known: Value = serde_json::from_str(ran.done()).expect("JSON");
        assert!(known["groups"].is_array(), "{id}: {known}");
        known["groups"].clone()
    }

    /// Runs it twice: the first run is recorded; in the second, the rest is loaded while the reader waits after its
    /// first bytes.
    fn twice(&self, around: Option<Container>, id: &str, at: &Path, within: Option<Container>) {
        let first = self.run(around, id, &self.reader(at, false), within);
        assert_eq!(first.code, Some(0), "{id}: {first:?}");
        assert_eq!(summary(&first)["backend"], "observe", "{id}: {first:?}");
        let again = || self.run(around, id, &self.reader(at, true), within);
        let second = undisturbed(again, |ran| ran.code == Some(0));
        assert_eq!(second.code, Some(0), "{id} is loaded ahead: {second:?}");
        assert!(summary(&second)["fault"].is_null(), "{id}: {second:?}");
    }
}

/// Two tensors, after a header of a page, so that what is cached of a file is all of it or less.
fn safetensors() -> Vec<u8> {
    let half = SIZE / 2;
    let header = format!(
        "{{\"a\":{{\"dtype\":\"U8\",\"shape\":[{half}],\"data_offsets\":[0,{half}]}},\
          \"b\":{{\"dtype\":\"U8\",\"shape\":[{half}],\"data_offsets\":[{half},{SIZE}]}}}}"
    );
    let length = 4096_u64 - 8;
    let mut bytes = [&length.to_le_bytes(), header.as_bytes()].concat();
    bytes.resize(4096, b' ');
    bytes.resize(4096 + SIZE, 7);
    bytes
}

/// The summary that `--json` writes as the last line of standard error.
fn summary(ran: &Ran) -> Value {
    let line = ran.err.lines().rfind(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_default())
        .unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

/// Whether this machine has such containers; if not, a line says why.
fn has(container: Container) -> bool {
    let why = container.is_missing();
    if let Some(why) = &why {
        skip_part(&format!("{container:?}: {why}"));
    }
    why.is_none()
}

#[test]
fn a_command_in_a_container_is_recorded_and_loaded_ahead_as_outside() {
    let Some(ground) = Ground::new("run-contained") else {
        return;
    };
    let here = ground.folder.path();
    ground.twice(None, "outside", here, None);
    for container in CONTAINERS.into_iter().filter(|&it| has(it)) {
        let id = format!("{container:?}")
            .to_lowercase()
            .replace(['(', ')', '"'], "-");
        let id = id.trim_end_matches('-');
        ground.twice(Some(container), id, ground.inside(container), None);
        assert_eq!(ground.known(id), ground.known("outside"), "{id}");
    }
}

#[test]
fn readers_in_containers_are_followed_from_outside() {
    let Some(ground) = Ground::new("run-around") else {
        return;
    };
    let here = ground.folder.path();
    ground.twice(None, "outside", here, None);
    let all = [CONTAINERS.as_slice(), &[Container::Users]].concat();
    for container in all.into_iter().filter(|&it| has(it)) {
        // By a volume, and by the layer of the root directory in which it has the same path.
        let ways = [("volume", ground.inside(container)), ("layer", here)];
        for (way, at) in ways.into_iter().take(1 + usize::from(container.has_root())) {
            let id = format!("{container:?}")
                .to_lowercase()
                .replace(['(', ')', '"'], "-");
            let id = format!("{way}-{}", id.trim_end_matches('-'));
            ground.twice(None, &id, at, Some(container));
            assert_eq!(ground.known(&id), ground.known("outside"), "{id}");
        }
    }
}

/// In such a container root may not observe, but it may mount FUSE for itself.
#[test]
fn a_user_namespace_leaves_fuse() {
    let Some(ground) = Ground::new("run-users") else {
        return;
    };
    if !has(Container::Users) {
        return;
    }
    let reader = ground.reader(Path::new("/volume"), false);
    let ran = ground.run(Some(Container::Users), "users", &reader, None);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(summary(&ran)["backend"], "fuse", "{ran:?}");
}

/// As where `kernel.perf_event_paranoid` is 3: eBPF programs do not need perf.
#[test]
fn reads_are_recorded_even_if_perf_is_denied() {
    let Some(ground) = Ground::new("run-paranoid") else {
        return;
    };
    if !has(Container::Paranoid) {
        return;
    }
    let here = ground.folder.path();
    ground.twice(None, "outside", here, None);
    let (container, volume) = (Container::Paranoid, Path::new("/volume"));
    ground.twice(Some(container), "paranoid", volume, None);
    assert_eq!(ground.known("paranoid"), ground.known("outside"));
}

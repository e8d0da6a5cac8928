//! `doctor` of directories on this machine, whatever it is, as root and as an ordinary user.

mod common;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Ran, ppcctl};
use serde_json::Value;
use test_support::{Folder, skip};

/// The user that owns nothing.
const NOBODY: u32 = 65534;

/// A directory with a file of some size in it.
fn model(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write("model.safetensors", vec![7; 1 << 20]);
    folder
}

fn doctor(directory: &Path) -> Command {
    let mut command = ppcctl();
    command.arg("doctor").arg(directory);
    command
}

/// The findings, in JSON. Checks that the exit status is that of the worst finding, and that standard error is empty.
fn found(command: &mut Command) -> Value {
    let ran = Ran::of(command.arg("--json"));
    assert_eq!(ran.err, "");
    assert_eq!(ran.out.lines().count(), 1);
    let found: Value = serde_json::from_str(&ran.out).expect("JSON");
    let severities = ["ok", "note", "warning", "problem"];
    let findings = found["findings"].as_array().expect("a list");
    let worst = findings.iter().map(|finding| {
        for key in ["group", "code", "text"] {
            assert!(finding[key].is_string(), "{finding}");
        }
        let mut severities = severities.iter();
        severities.position(|name| finding["severity"] == *name)
    });
    let worst = worst.map(|at| at.expect("one of them")).max();
    let worst = worst.expect("there is something to say");
    assert_eq!(found["severity"], severities[worst]);
    assert_eq!(ran.code, Some([0, 0, 10, 11][worst]));
    found
}

/// The severity and the text of a finding.
fn finding(found: &Value, code: &str) -> Option<(String, String)> {
    let findings = found["findings"].as_array()?;
    let finding = findings.iter().find(|finding| finding["code"] == code)?;
    let words = format!("{} {}", finding["text"], finding["remedy"]);
    Some((finding["severity"].as_str()?.to_owned(), words))
}

#[track_caller]
fn names(found: &Value, code: &str, severity: &str, part: &str) {
    let (really, words) = finding(found, code).unwrap_or_else(|| panic!("no {code}: {found}"));
    assert_eq!(really, severity, "{words}");
    assert!(words.contains(part), "{part}: {words}");
}

#[test]
fn a_model_is_found_however_it_is_named() {
    let model = model("doctor-names");
    let link = model.path().with_extension("link");
    symlink(model.path(), &link).expect("a free name");
    let parent = model.path().parent().expect("there is one");
    let name = Path::new(model.path().file_name().expect("there is one"));
    let with_slash = PathBuf::from(format!("{}/", link.display()));
    for (directory, is_link) in [
        (model.path(), false),
        (name, false),
        (&model.path().join("."), false),
        (&link, true),
        (&with_slash, true),
    ] {
        let found = found(doctor(directory).current_dir(parent));
        assert_eq!(found["directory"], model.path().display().to_string());
        assert_eq!(found["bytes"], 1 << 20);
        assert_eq!(finding(&found, "directory-link").is_some(), is_link);
        assert!(finding(&found, "numa").is_some(), "{found}");
    }
    fs::remove_file(link).expect("it was just there");
}

#[test]
fn people_get_groups_and_remedies() {
    let model = model("doctor-text");
    symlink("nothing", model.path().join("tokenizer.json")).expect("a free name");
    let ran = Ran::of(&mut doctor(model.path()));
    assert_eq!((ran.code, ran.err.as_str()), (Some(11), ""));
    let heading = format!("{}: ", model.path().display());
    assert!(ran.out.starts_with(&heading), "{ran:?}");
    for part in [
        "1 MiB; ",
        "\nBackend\n",
        "\nFiles\n",
        "\n  PROBLEM  1 link, ",
        "\n        -> Download",
        "\nFile system\n",
        "\nDevice\n",
        "\nMemory\n",
        "\nNUMA and accelerators\n",
        "\nKernel\n",
        "\nPrivileges\n",
    ] {
        assert!(ran.out.contains(part), "{part:?}: {}", ran.out);
    }
}

#[test]
fn a_cache_of_downloads_is_named_as_a_whole() {
    let cache = model("doctor-cache");
    let snapshot = cache.path().join("snapshots/0f");
    fs::create_dir_all(&snapshot).expect("it is ours");
    fs::create_dir(cache.path().join("blobs")).expect("it is ours");
    fs::rename(
        cache.path().join("model.safetensors"),
        cache.path().join("blobs/1234"),
    )
    .expect("it is ours");
    symlink("../../blobs/1234", snapshot.join("model.safetensors")).expect("a free name");
    let found = found(&mut doctor(&snapshot));
    let whole = format!("Name {}, which contains both", cache.path().display());
    names(&found, "links-leave", "problem", &whole);
    assert_eq!(found["bytes"], 1 << 20);
    // There, doctor finds nothing wrong with links.
    let found = self::found(&mut doctor(cache.path()));
    assert_eq!(finding(&found, "links-leave"), None);
}

#[test]
fn an_empty_directory_is_no_model() {
    let model = model("doctor-empty");
    fs::remove_file(model.path().join("model.safetensors")).expect("it is ours");
    names(
        &found(&mut doctor(model.path())),
        "files-none",
        "problem",
        "findmnt",
    );
}

#[test]
fn doctor_of_a_non_directory_fails_in_one_line() {
    let model = model("doctor-none");
    let file = model.path().join("model.safetensors");
    let missing = model.path().join("missing");
    for (path, why) in [(&file, "not a directory"), (&missing, "No such file")] {
        for json in [&[][..], &["--json"]] {
            let ran = Ran::of(doctor(path).args(json));
            let line = format!("ppcctl: Reading {}: ", path.display());
            ran.failed(1, &[&line, why]);
        }
    }
    Ran::of(ppcctl().arg("doctor")).failed(2, &["<DIR>"]);
}

#[test]
fn an_ordinary_user_gets_findings_of_closed_files() {
    let model = model("doctor-closed");
    let file = model.path().join("model.safetensors");
    let mut command = doctor(model.path());
    let is_root = fs::metadata(&file).expect("it is there").uid() == 0;
    // Permissions do not apply to root.
    if is_root {
        command.uid(NOBODY).gid(NOBODY);
    }
    let closed = model.path().join("closed");
    fs::create_dir(&closed).expect("it is ours");
    symlink("closed/x", model.path().join("link")).expect("a free name");
    for path in [&file, &closed] {
        let mode = if is_root { 0o700 } else { 0 };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    }
    if let Err(error) = command.stdout(Stdio::null()).status() {
        skip(&format!(
            "other users may not run {}: {error}",
            env!("CARGO_BIN_EXE_ppcctl")
        ));
        return;
    }
    let found = found(command.stdout(Stdio::piped()));
    // Otherwise it could not be removed.
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).expect("it is ours");
    for part in ["2 files", "1 directory", "/closed"] {
        names(&found, "files-unreadable", "problem", part);
    }
    assert!(finding(&found, "links-broken").is_none());
    names(&found, "not-root", "warning", "CAP_PERFMON");
    assert!(finding(&found, "capabilities").is_none());
}

#[test]
fn mounts_are_seen_in_a_namespace_of_their_own() {
    let model = model("doctor-mounts");
    fs::create_dir(model.path().join("within")).expect("it is ours");
    for name in ["memory", "merged"] {
        fs::create_dir(model.path().join(name)).expect("it is ours");
    }
    // The namespace and its mounts end with the shell.
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-euc", script, "sh"])
            .arg(model.path())
            .arg(env!("CARGO_BIN_EXE_ppcctl"));
        command
    };
    let tried = shell("mount -t tmpfs none \"$1/within\"")
        .stderr(Stdio::null())
        .status();
    if !tried.is_ok_and(|status| status.success()) {
        skip("mounting is for root, and takes unshare");
        return;
    }
    let script = "mount -t tmpfs none \"$1/within\"; exec \"$2\" doctor \"$1\" \"$3\"";
    let found_within = found(&mut shell(script));
    let path = model.path().join("within").display().to_string();
    names(&found_within, "mounts-within", "warning", &path);

    let script = "mount -t tmpfs none \"$1/memory\"; cp \"$1/model.safetensors\" \"$1/memory\"; \
                  exec \"$2\" doctor \"$1/memory\" \"$3\"";
    names(
        &found(&mut shell(script)),
        "file-system-memory",
        "note",
        "tmpfs",
    );

    let script = "mount -t tmpfs none \"$1/memory\"; mkdir \"$1/memory/up\" \"$1/memory/work\"; \
                  mount -t overlay -o \"lowerdir=$1,upperdir=$1/memory/up,workdir=$1/memory/work\" \
                  none \"$1/merged\"; exec \"$2\" doctor \"$1/merged\" \"$3\"";
    names(
        &found(&mut shell(script)),
        "file-system-overlay",
        "note",
        "overlay",
    );
}

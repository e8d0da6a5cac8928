//! `policy inspect` of libraries that work, that are not policies, and that misbehave.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{run, scratch};
use nix::unistd::geteuid;
use test_support::{Folder, policies, skip_part};

/// A library built from this source, or `None`, with a line that says so, if there is no compiler.
fn library(name: &str, source: &str) -> Option<PathBuf> {
    let file = scratch(&format!("{name}.c"));
    fs::write(&file, source).expect("a scratch file");
    let library = compile(name, &file);
    fs::remove_file(file).expect("it was just there");
    library
}

fn compile(name: &str, source: &Path) -> Option<PathBuf> {
    let library = scratch(&format!("{name}.so"));
    // Omitted fields are part of the tests.
    let arguments = [
        "-shared",
        "-fPIC",
        "-std=gnu11",
        "-Wno-missing-field-initializers",
    ];
    test_support::compile("cc", &arguments, source, &library).then_some(library)
}

fn inspect(library: &Path, more: &[&str]) -> common::Ran {
    let mut arguments = vec!["policy".as_ref(), "inspect".as_ref(), library.as_os_str()];
    arguments.extend(more.iter().map(std::ffi::OsStr::new));
    run(&arguments)
}

/// Checks that a library is refused quickly, with its path and this sentence.
fn refused(name: &str, source: &str, sentence: &str) {
    let Some(library) = library(name, source) else {
        return;
    };
    let begin = Instant::now();
    inspect(&library, &[]).failed(
        4,
        &[&format!("ppcctl: {}: {sentence}\n", library.display())],
    );
    assert!(begin.elapsed() < Duration::from_secs(9));
    fs::remove_file(library).expect("it was just there");
}

#[test]
fn a_policy_is_described() {
    let Some(library) = compile("good", &policies().join("shift/shift.c")) else {
        return;
    };
    let ran = inspect(&library, &[]);
    let cell = |key: &str| cell(&ran, key);
    assert_eq!(cell("library"), library.display().to_string());
    assert_eq!(
        (cell("name"), cell("version")),
        ("shift".into(), "1".into())
    );
    assert_eq!(
        (cell("abi_version"), cell("struct_size")),
        ("2".into(), "80".into())
    );
    assert_eq!(
        (cell("needs"), cell("callbacks")),
        ("-".into(), "init, exit, prefetch, evict, configure".into())
    );
    let json = inspect(&library, &["--json"]);
    let value: serde_json::Value = serde_json::from_str(json.done()).expect("JSON");
    assert_eq!(value["name"], "shift");
    assert_eq!(value["callbacks"][2], "prefetch");
    fs::remove_file(library).expect("it was just there");
}

/// The rest of the line that begins with a word.
fn cell(ran: &common::Ran, key: &str) -> String {
    let line = ran.done().lines().find(|line| line.starts_with(key));
    let line = line.and_then(|line| line.split_once("  "));
    line.map(|(_, value)| value.trim().to_owned()).expect(key)
}

/// What is reported about trust, in the table and in JSON.
fn trusted(library: &Path) -> (String, Option<String>) {
    let json = inspect(library, &["--json"]);
    let value: serde_json::Value = serde_json::from_str(json.done()).expect("JSON");
    let untrusted = value["untrusted"].as_str().map(str::to_owned);
    assert_eq!(value["trusted"], untrusted.is_none(), "{value}");
    (cell(&inspect(library, &[]), "trusted"), untrusted)
}

#[test]
fn policy_that_other_users_can_change_is_reported() {
    let Some(made) = compile("changeable", &policies().join("shift/shift.c")) else {
        return;
    };
    // If root runs the test, every directory on the path is root's alone.
    let is_root = geteuid().is_root();
    let folder = if is_root {
        Folder::within(Path::new("/usr/local/lib"), "ppcctl-inspect")
    } else {
        Folder::new("ppcctl-inspect")
    };
    let library = folder.path().join("shift.so");
    fs::copy(&made, &library).expect("it is ours");
    fs::remove_file(made).expect("it was just there");
    let set = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    set(&library, 0o666);
    let (path, place) = (library.display(), folder.path().display());
    let close = |path, mode| {
        format!(
            "users other than the owner can write to {path} (mode {mode}) and could change what runs as root; \
             try 'chmod go-w {path}', or install the policy below /usr/lib/ppc"
        )
    };
    let why = if is_root {
        close(&path, "666")
    } else {
        format!(
            "{path} belongs to user {}, who could change what runs as root; try 'chown root {path}', \
             or install the policy below /usr/lib/ppc",
            geteuid()
        )
    };
    assert_eq!(trusted(&library), (format!("no: {why}"), Some(why)));
    if !is_root {
        skip_part("only root has a place that no other user can change");
        return;
    }
    set(&library, 0o644);
    set(folder.path(), 0o777);
    let why = close(&place, "777");
    assert_eq!(trusted(&library), (format!("no: {why}"), Some(why)));
    set(folder.path(), 0o755);
    assert_eq!(trusted(&library), ("yes".to_owned(), None));
}

#[test]
fn unusable_policies_are_rejected_with_the_reason() {
    refused(
        "nothing",
        "int nothing;",
        "It exports no ppc_policy, so it is not a policy; see ppc.h",
    );
    refused(
        "newer",
        "#include \"ppc.h\"\nPPC_EXPORT const struct ppc_policy ppc_policy = \
         { PPC_INIT(struct ppc_policy), 99, \"newer\" };",
        "The policy needs version 99 of ppc.h, and this host supports versions up to 2; install a newer host, or \
         build the policy with this host's header",
    );
    let text = policies()
        .join("ppc.h")
        .canonicalize()
        .expect("it is there");
    inspect(&text, &[]).failed(4, &["ppc.h: The library cannot be opened: "]);
    inspect(Path::new("/nowhere.so"), &[]).failed(4, &["/nowhere.so: No such file"]);
    inspect(Path::new("/usr/"), &[]).failed(4, &["/usr is not a file"]);
    inspect(Path::new("no-such-policy"), &[]).failed(4, &["There is no no-such-policy.so in"]);
}

#[test]
fn library_that_exits_or_crashes_is_reported() {
    refused(
        "exits",
        "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { exit(0); }",
        "The library ends the process that loads it, with exit status 0",
    );
    refused(
        "crashes",
        "__attribute__((constructor)) static void f(void) { *(volatile int *)8 = 1; }",
        "The library crashes when it is loaded: signal 11 (SIGSEGV)",
    );
    // The name is an invalid pointer, so reading it crashes.
    refused(
        "wild",
        "#include \"ppc.h\"\nPPC_EXPORT const struct ppc_policy ppc_policy = \
         { PPC_INIT(struct ppc_policy), 1, (const char *)8 };",
        "The library crashes when it is loaded: signal 11 (SIGSEGV)",
    );
}

#[test]
fn policy_that_prints_and_hangs_at_exit_is_described() {
    let source = "#include \"ppc.h\"\n#include <stdio.h>\n#include <unistd.h>\n\
         __attribute__((constructor)) static void f(void) { puts(\"{\\\"ok\\\":1}\"); fflush(stdout); }\n\
         __attribute__((destructor)) static void g(void) { for (;;) pause(); }\n\
         PPC_EXPORT const struct ppc_policy ppc_policy = \
         { PPC_INIT(struct ppc_policy), 1, \"loud\" };";
    let Some(library) = library("loud", source) else {
        return;
    };
    let ran = inspect(&library, &["--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains(r#""name":"loud""#), "{ran:?}");
    assert_eq!(ran.err, "{\"ok\":1}\n");
    fs::remove_file(library).expect("it was just there");
}

#[test]
fn library_that_hangs_on_load_is_given_up_after_10_s() {
    let source = "#include <unistd.h>\n\
         __attribute__((constructor)) static void f(void) { for (;;) pause(); }";
    let Some(library) = library("hangs", source) else {
        return;
    };
    inspect(&library, &[]).failed(4, &["The library is still not loaded after 10 s"]);
    fs::remove_file(library).expect("it was just there");
}

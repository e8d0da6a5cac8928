//! `policy inspect` of libraries that are well, that are no policies, and that misbehave.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{run, scratch};
use test_support::{policies, skip};

/// A library of this source, or `None` with a line that says so if there is no compiler.
fn library(name: &str, source: &str) -> Option<PathBuf> {
    let file = scratch(&format!("{name}.c"));
    fs::write(&file, source).expect("a scratch file");
    let library = compile(name, &file);
    fs::remove_file(file).expect("it was just there");
    library
}

fn compile(name: &str, source: &Path) -> Option<PathBuf> {
    let library = scratch(&format!("{name}.so"));
    let mut command = Command::new("cc");
    command
        .args(["-shared", "-fPIC", "-std=gnu11", "-I"])
        .arg(policies());
    command.arg("-o").arg(&library).arg(source);
    match command.status() {
        Ok(status) => assert!(status.success(), "{command:?}"),
        Err(error) => {
            skip(&format!("cc: {error}"));
            return None;
        }
    }
    Some(library)
}

fn inspect(library: &Path, more: &[&str]) -> common::Ran {
    let mut arguments = vec!["policy".as_ref(), "inspect".as_ref(), library.as_os_str()];
    arguments.extend(more.iter().map(std::ffi::OsStr::new));
    run(&arguments)
}

/// It is refused with this sentence behind its path, and quickly.
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
    let cell = |key: &str| {
        let line = ran.done().lines().find(|line| line.starts_with(key));
        let line = line.and_then(|line| line.split_once("  "));
        line.map(|(_, value)| value.trim().to_owned()).expect(key)
    };
    assert_eq!(cell("library"), library.display().to_string());
    assert_eq!(
        (cell("name"), cell("version")),
        ("shift".into(), "1".into())
    );
    assert_eq!(
        (cell("abi_version"), cell("struct_size")),
        ("1".into(), "88".into())
    );
    assert_eq!(
        (cell("needs"), cell("callbacks")),
        ("-".into(), "init, exit, prefetch, evict, configure".into())
    );
    // In /tmp it is not, but whose tests these are may have set TMPDIR.
    let trusted = match cprt::daemon::trust::check(&library, 0) {
        Ok(_) => "yes".to_owned(),
        Err(untrusted) => format!("no: {untrusted}"),
    };
    assert_eq!(cell("trusted"), trusted);

    let json = inspect(&library, &["--json"]);
    let value: serde_json::Value = serde_json::from_str(json.done()).expect("JSON");
    assert_eq!(value["name"], "shift");
    assert_eq!(value["trusted"], trusted == "yes");
    assert_eq!(value["untrusted"].is_string(), trusted != "yes");
    assert_eq!(value["callbacks"][2], "prefetch");
    fs::remove_file(library).expect("it was just there");
}

#[test]
fn what_is_no_policy_is_refused_with_its_sentence() {
    refused(
        "nothing",
        "int nothing;",
        "It exports no ppc_policy, so it is no policy; see ppc.h",
    );
    refused(
        "newer",
        "#include \"ppc.h\"\nPPC_EXPORT const struct ppc_policy ppc_policy = \
         { PPC_INIT(struct ppc_policy), 99, \"newer\" };",
        "The policy speaks version 99 of ppc.h, this host only up to 1; install a newer host, or \
         build the policy with this one's header",
    );
    let text = policies()
        .join("ppc.h")
        .canonicalize()
        .expect("it is there");
    inspect(&text, &[]).failed(4, &["ppc.h: The library does not open: "]);
    inspect(Path::new("/nowhere.so"), &[]).failed(4, &["/nowhere.so: No such file"]);
    inspect(Path::new("/usr/"), &[]).failed(4, &["/usr is no file"]);
    inspect(Path::new("no-such-policy"), &[]).failed(4, &["There is no no-such-policy.so in"]);
}

#[test]
fn what_misbehaves_costs_a_sentence_only() {
    refused(
        "exits",
        "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { exit(0); }",
        "It ends the process that loads it, with exit status 0",
    );
    refused(
        "crashes",
        "__attribute__((constructor)) static void f(void) { *(volatile int *)8 = 1; }",
        "It crashes when it is loaded: signal 11 (SIGSEGV)",
    );
    // Of no use as a string, so its name is what crashes.
    refused(
        "wild",
        "#include \"ppc.h\"\nPPC_EXPORT const struct ppc_policy ppc_policy = \
         { PPC_INIT(struct ppc_policy), 1, (const char *)8 };",
        "It crashes when it is loaded: signal 11 (SIGSEGV)",
    );
}

#[test]
fn what_prints_and_hangs_at_its_end_is_described_all_the_same() {
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
fn what_hangs_is_given_up() {
    let source = "#include <unistd.h>\n\
         __attribute__((constructor)) static void f(void) { for (;;) pause(); }";
    let Some(library) = library("hangs", source) else {
        return;
    };
    inspect(&library, &[]).failed(4, &["It is still not loaded after 10 s"]);
    fs::remove_file(library).expect("it was just there");
}

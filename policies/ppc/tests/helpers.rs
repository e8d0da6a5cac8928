//! What `ppc.h` brings along for policies: its macro that registers and its inline functions.

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use std::fmt::Write as _;
use std::process::Command;

use ppc::host::Table;
use ppc::testing::FakeHost;
use ppc::{Event, Io, Kind, Settings};

const CASES: [&str; 20] = [
    "0",
    "1",
    "4096",
    "128K",
    "8M",
    "3G",
    "007",
    "18446744073709551615",
    "17179869183G",
    "18446744073709551616",
    "17179869184G",
    "99999999999999999999999",
    "",
    "K",
    "+1",
    "-1",
    "1k",
    "1 M",
    " 1",
    "1MM",
];

#[test]
fn both_languages_read_the_same_sizes() {
    let mut source = String::from("#include <stdio.h>\n#include \"ppc.h\"\nint main(void)\n{\n");
    source.push_str("\tuint64_t bytes = 0;\n");
    for text in CASES {
        writeln!(
            source,
            "\tif (ppc_parse_bytes(\"{text}\", &bytes)) puts(\"none\");\n\
             \telse printf(\"%llu\\n\", (unsigned long long)bytes);"
        )
        .expect("a string takes it");
    }
    source.push_str("\treturn 0;\n}\n");
    let (file, program) = (common::scratch("bytes.c"), common::scratch("bytes"));
    std::fs::write(&file, source).expect("a scratch file");
    if !common::cc(&[], &file, &program) {
        return;
    }
    let output = Command::new(&program).output().expect("the program runs");
    let told = String::from_utf8(output.stdout).expect("numbers");
    assert_eq!(told.lines().count(), CASES.len());
    for (text, c) in CASES.into_iter().zip(told.lines()) {
        let rust = Settings::new([("size", text)]).bytes("size").ok().flatten();
        let rust = rust.map_or_else(|| "none".to_owned(), |bytes| bytes.to_string());
        assert_eq!(rust, c, "{text:?}");
    }
    for path in [file, program] {
        std::fs::remove_file(path).expect("it was just there");
    }
}

/// Loads what follows a miss and drops what is before it, by the inline functions.
const CALLBACKS: &str = r#"
#include "ppc.h"

static const struct ppc_host *the_host;

static int start(const struct ppc_host *host, const struct ppc_setting *settings,
		 struct ppc_sink *sink, void **self)
{
	(void)settings;
	(void)sink;
	(void)self;
	the_host = host;
	return 0;
}

static int both(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	int err = ppc_load(the_host, sink, event->file, event->offset + event->length, 8192,
			   event->tgid);

	(void)self;
	return err ? err : ppc_drop(the_host, sink, event->file, 0, event->offset);
}
"#;

const NAMED: &str = r#"
PPC_POLICY(.name = "both", .version = nullptr, .description = "by name", .needs = 0,
	   .init = start, .exit = nullptr, .prefetch = both, .evict = nullptr, .configure = nullptr);
"#;

const IN_ORDER: &str = r#"
PPC_POLICY("both", nullptr, "in order", 0, start, nullptr, both, nullptr, nullptr);
"#;

#[allow(
    unsafe_code,
    reason = "loading a library runs it, and this one is ours"
)]
fn works(compiler: &str, language: &str, standard: &str, registered: &str) {
    let (source, library) = (common::scratch("both.c"), common::scratch("both.so"));
    std::fs::write(&source, format!("{CALLBACKS}{registered}")).expect("a scratch file");
    let hidden = "-fvisibility=hidden";
    let arguments = [
        "-x",
        language,
        standard,
        "-pedantic",
        "-shared",
        "-fPIC",
        hidden,
    ];
    let done = common::compile(compiler, &arguments, &source, &library);
    std::fs::remove_file(source).expect("it was just there");
    if !done {
        return;
    }
    // SAFETY: it was compiled of the lines above.
    let table = unsafe { Table::open(&library) }.expect("a policy");
    std::fs::remove_file(library).expect("it was just there");
    let raw = table.raw();
    assert_eq!((table.name(), table.version()), ("both", ""));
    assert!(raw.prefetch.is_some() && raw.evict.is_none() && raw.exit.is_none());

    let host = FakeHost::new().file("model", 1 << 20);
    let (mut policy, _) = host.start_table(table, &[]).expect("it starts");
    let model = host.id("model");
    let miss = Event::new(Kind::Miss, model, 4096, 4096).by(7);
    let expected = vec![Io::load(model, 8192..16384).by(7), Io::drop(model, ..4096)];
    assert_eq!(
        policy.prefetch(Some(&miss)).expect("a plan"),
        Some(expected)
    );
}

#[test]
fn a_policy_registers_in_any_dialect() {
    let c = NAMED.replace("nullptr", "NULL");
    works("cc", "c", "-std=c99", &c);
    works("cc", "c", "-std=c11", &c);
    works("c++", "c++", "-std=c++11", IN_ORDER);
    works("c++", "c++", "-std=c++17", IN_ORDER);
    works("c++", "c++", "-std=c++20", NAMED);
}

//! Today's header begins as version 1 did: policies built with version 1 run as they did.
//!
//! `policies/ppc-v1.h` is a copy that is never changed. The C compiler shows, for both headers, where the
//! fields of version 1 are and which values its constants have.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use test_support::skip;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn frozen() -> PathBuf {
    root().join("tests/runtime/policies/ppc-v1.h")
}

/// Structures and their fields, as the frozen header has them.
fn fields(header: &str) -> BTreeMap<String, Vec<String>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut inside = None;
    for line in header.lines() {
        if let Some(name) = line
            .strip_prefix("struct ")
            .and_then(|rest| rest.strip_suffix(" {"))
        {
            inside = Some(name.to_owned());
        } else if line.starts_with("};") {
            inside = None;
        } else if let Some(name) = &inside {
            found.entry(name.clone()).or_default().extend(field(line));
        }
    }
    found
}

/// The name that a line of a structure declares; a line that continues another's parameters declares none.
fn field(line: &str) -> Option<String> {
    let line = line.strip_prefix('\t')?;
    if line.starts_with('\t') || line.starts_with(' ') {
        return None;
    }
    let name = match line.split_once("(*") {
        Some((_, pointer)) => pointer.split(')').next()?,
        None => line.strip_suffix(';')?.rsplit([' ', '*']).next()?,
    };
    Some(name.to_owned())
}

/// The constants that are compiled into policies.
fn constants(header: &str) -> BTreeSet<String> {
    let defines = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define PPC_"));
    defines
        .filter_map(|rest| rest.split_whitespace().next())
        .filter(|name| !name.contains('(') && !["H", "EXPORT", "ABI_VERSION"].contains(name))
        .map(|name| format!("PPC_{name}"))
        .collect()
}

/// The offsets and values in a header, by name; `None` if there is no compiler.
fn asked(header: &Path, text: &str, scratch: &str) -> Option<BTreeMap<String, i64>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, program) = (folder.join(format!("{scratch}.c")), folder.join(scratch));
    let mut lines = String::new();
    for (name, members) in fields(text) {
        let _ = writeln!(lines, "S({name})");
        for member in members {
            let _ = writeln!(lines, "F({name}, {member})");
        }
    }
    for name in constants(text) {
        let _ = writeln!(lines, "C({name})");
    }
    let code = format!(
        "#include <stdio.h>\n#include \"{}\"\n\
         #define S(s) printf(\"size {{}}.\" #s \" %zu\\n\", sizeof(struct s));\n\
         #define F(s, f) printf(#s \".\" #f \" %zu\\n\", offsetof(struct s, f)); \\\n\
         \tprintf(\"length {{}}.\" #s \".\" #f \" %zu\\n\", sizeof(((struct s *)0)->f));\n\
         #define C(c) printf(#c \" %lld\\n\", (long long)c);\n\
         int main(void) {{\n{lines}return 0; }}\n",
        header.display()
    );
    std::fs::write(&source, code.replace("{}.", "")).expect("a scratch file");
    let compiled = Command::new("cc")
        .arg("-o")
        .arg(&program)
        .arg(&source)
        .status();
    match compiled {
        Ok(status) => assert!(status.success(), "{} does not compile", source.display()),
        Err(error) => {
            skip(&format!("cc: {error}"));
            return None;
        }
    }
    let output = Command::new(&program).output().expect("it runs").stdout;
    let output = String::from_utf8(output).expect("it is text");
    let pairs = output.lines().filter_map(|line| line.rsplit_once(' '));
    Some(
        pairs
            .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
            .collect(),
    )
}

#[test]
fn fields_and_constants_are_found() {
    let text = std::fs::read_to_string(frozen()).expect("the frozen header");
    let found = fields(&text);
    assert_eq!(found.len(), 8, "{found:?}");
    assert_eq!(found["ppc_setting"], ["key", "value"]);
    assert_eq!(found["ppc_host"].len(), 19);
    assert_eq!(found["ppc_policy"].len(), 11);
    let constants = constants(&text);
    assert!(constants.contains("PPC_EVENT_MISS") && constants.contains("PPC_OP_LOAD"));
}

#[test]
fn todays_header_begins_as_version_1_did() {
    let text = std::fs::read_to_string(frozen()).expect("the frozen header");
    let Some(then) = asked(&frozen(), &text, "header-v1") else {
        return;
    };
    let today = root().join("policies/ppc.h");
    let now = asked(&today, &text, "header-now").expect("there is a compiler");
    assert!(then.len() > 80, "{then:?}");
    for (name, value) in &then {
        if name.starts_with("size ") {
            assert!(now[name] >= *value, "{name} was {value}, is {}", now[name]);
        } else {
            assert_eq!(now[name], *value, "{name}");
        }
    }
}

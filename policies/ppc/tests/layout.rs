//! The mirror in `ffi.rs` against the C compiler's view of `ppc.h`.

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use std::fmt::Write as _;
use std::mem::offset_of;
use std::process::Command;

use ppc::{Features, IoFlags, Kind, Kinds, Level, Op, ffi};

macro_rules! layout {
    ($($name:ident { $($field:ident)* })*) => {
        /// `(what, C expression, number in Rust)` for each size and offset.
        fn rust() -> Vec<(String, String, u64)> {
            let mut all = Vec::new();
            $(
                let c = concat!("struct ", stringify!($name));
                all.push((c.to_owned(), format!("sizeof({c})"), size_of::<ffi::$name>() as u64));
                $(
                    let field = stringify!($field).trim_start_matches("r#");
                    let offset = offset_of!(ffi::$name, $field) as u64;
                    all.push((format!("{c}.{field}"), format!("offsetof({c}, {field})"), offset));
                )*
            )*
            all
        }
    };
}

layout! {
    ppc_event { struct_size kind flags tgid file offset length time_ns count tid cpu }
    ppc_io { struct_size op flags priority file offset length xpu tgid }
    ppc_setting { key value }
    ppc_file { struct_size reserved size device inode mtime_ns }
    ppc_entry { struct_size r#type size path }
    ppc_memory { struct_size reserved limit used threshold available group }
    ppc_report {
        struct_size reserved service asked used late unread own waiting_ns loading_ns held_ns reading_ns resting_ns
        whole_ns
    }
    ppc_host {
        struct_size abi_version features deadline_ns ctx log add open_file close_file file_info
        file_path list read resident memory process_xpu now want wake report
    }
    ppc_policy {
        struct_size abi_version name version description needs init exit prefetch evict configure
    }
}

fn numbers() -> Vec<(String, String, u64)> {
    let numbers = [
        ("PPC_ABI_VERSION", ffi::ABI_VERSION.into()),
        ("PPC_POLICY_SIZE_V1", ffi::POLICY_SIZE_V1.into()),
        ("PPC_EVENT_LOST", Kind::Lost.as_raw().into()),
        ("PPC_EVENT_OPEN", Kind::Open.as_raw().into()),
        ("PPC_EVENT_CLOSE", Kind::Close.as_raw().into()),
        ("PPC_EVENT_MISS", Kind::Miss.as_raw().into()),
        ("PPC_EVENT_TOUCH", Kind::Touch.as_raw().into()),
        ("PPC_EVENT_PROGRESS", Kind::Progress.as_raw().into()),
        ("PPC_WANT_FROM_OPEN", Kinds::FROM_OPEN.bits().into()),
        ("PPC_FEATURE_OPEN", Features::OPEN.0),
        ("PPC_FEATURE_TOUCH", Features::TOUCH.0),
        ("PPC_FEATURE_PROGRESS", Features::PROGRESS.0),
        ("PPC_FEATURE_EVICT_MAPPED", Features::EVICT_MAPPED.0),
        ("PPC_FEATURE_AFFINITY", Features::AFFINITY.0),
        ("PPC_FEATURE_CHARGE", Features::CHARGE.0),
        ("PPC_LOG_ERROR", Level::Error as u64),
        ("PPC_LOG_WARN", Level::Warn as u64),
        ("PPC_LOG_INFO", Level::Info as u64),
        ("PPC_LOG_DEBUG", Level::Debug as u64),
        ("PPC_EV_MMAP", ffi::EV_MMAP.into()),
        ("PPC_EV_DIRECT", ffi::EV_DIRECT.into()),
        ("PPC_OP_LOAD", Op::Load.as_raw().into()),
        ("PPC_OP_DROP", Op::Drop.as_raw().into()),
        ("PPC_OP_CANCEL", Op::Cancel.as_raw().into()),
        ("PPC_IO_REPLACE", IoFlags::REPLACE.bits().into()),
        ("PPC_IO_HOLD", IoFlags::HOLD.bits().into()),
        ("PPC_IO_NEAR", ffi::IO_NEAR.into()),
        ("PPC_IO_LARGE", IoFlags::LARGE.bits().into()),
        ("PPC_IO_UNMAPPED", IoFlags::UNMAPPED.bits().into()),
        ("PPC_ENTRY_FILE", ffi::ENTRY_FILE.into()),
        ("PPC_ENTRY_DIRECTORY", ffi::ENTRY_DIRECTORY.into()),
        ("PPC_LIST_RECURSIVE", ffi::LIST_RECURSIVE.into()),
    ];
    let entry = |(name, value): (&str, u64)| (name.to_owned(), name.to_owned(), value);
    numbers.into_iter().map(entry).collect()
}

#[test]
fn rust_bindings_match_the_c_header() {
    let expected = [rust(), numbers()].concat();
    let mut source = String::from("#include <stdio.h>\n#include \"ppc.h\"\nint main(void)\n{\n");
    for (_, expression, _) in &expected {
        writeln!(
            source,
            "\tprintf(\"%llu\\n\", (unsigned long long)({expression}));"
        )
        .expect("a string takes it");
    }
    source.push_str("\treturn 0;\n}\n");
    let (file, program) = (common::scratch("layout.c"), common::scratch("layout"));
    std::fs::write(&file, source).expect("a scratch file");
    if !common::cc(&[], &file, &program) {
        return;
    }
    let output = Command::new(&program).output().expect("the program runs");
    let text = String::from_utf8(output.stdout).expect("numbers");
    let told: Vec<u64> = text
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect();
    assert_eq!(told.len(), expected.len());
    for ((what, _, rust), c) in expected.iter().zip(told) {
        assert_eq!(*rust, c, "{what}");
    }
    for path in [file, program] {
        std::fs::remove_file(path).expect("it was just there");
    }
}

#[test]
fn older_dialects_and_cxx_take_the_header() {
    let source = common::scratch("dialect.c");
    std::fs::write(&source, "#include \"ppc.h\"\n").expect("a scratch file");
    for (compiler, language, standard) in [
        ("cc", "c", "-std=c99"),
        ("c++", "c++", "-std=c++11"),
        ("c++", "c++", "-std=c++20"),
    ] {
        let output = common::scratch("dialect.o");
        let arguments = ["-x", language, standard, "-pedantic", "-c"];
        if common::compile(compiler, &arguments, &source, &output) {
            std::fs::remove_file(output).expect("it was just there");
        }
    }
    std::fs::remove_file(source).expect("it was just there");
}

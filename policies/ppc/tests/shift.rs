//! A policy in C, built from the header alone, loaded as a library, against the fake host.

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use ppc::host::Table;
use ppc::testing::FakeHost;
use ppc::{Event, Io, Kind, Level, LoadError};

/// What it shifts by, unless a setting says otherwise.
const SEGMENT: u64 = 8 << 20;

/// `None` if there is no compiler.
#[allow(
    unsafe_code,
    reason = "loading a library runs it, and this one is ours"
)]
fn shift(name: &str) -> Option<Table> {
    let library = common::scratch(name);
    let source = common::policies().join("shift/shift.c");
    if !common::cc(&["-shared", "-fPIC"], &source, &library) {
        return None;
    }
    // SAFETY: it was compiled of shift.c a line ago.
    let table = unsafe { Table::open(&library) }.expect("shift is a policy");
    std::fs::remove_file(library).expect("it was just there");
    Some(table)
}

#[test]
fn shift_loads_the_range_after_a_miss_and_drops_the_one_before() {
    let Some(table) = shift("shift.so") else {
        return;
    };
    assert_eq!((table.name(), table.version()), ("shift", "1"));
    let host = FakeHost::new().file("model", 1 << 30);
    let (mut shift, at_init) = host.start_table(table, &[]).expect("it starts");
    assert_eq!(at_init, []);

    let model = host.id("model");
    let miss = Event::new(Kind::Miss, model, 100 << 20, 4096).by(7);
    let next = (100 << 20) + 4096;
    let right = Io::load(model, next..next + SEGMENT).by(7).replace();
    assert_eq!(
        shift.prefetch(Some(&miss)).expect("a plan"),
        Some(vec![right])
    );
    let left = Io::drop(model, (100 << 20) - SEGMENT..100 << 20);
    assert_eq!(shift.evict(Some(&miss)).expect("a plan"), Some(vec![left]));

    let near_start = Event::new(Kind::Miss, model, 4096, 4096);
    let clipped = Io::drop(model, ..4096);
    assert_eq!(
        shift.evict(Some(&near_start)).expect("a plan"),
        Some(vec![clipped])
    );
    let start = Event::new(Kind::Miss, model, 0, 4096);
    let open = Event::new(Kind::Open, model, 0, 1 << 30);
    for nothing in [Some(&start), Some(&open), None] {
        assert_eq!(shift.evict(nothing).expect("a plan"), Some(vec![]));
    }
    assert_eq!(shift.prefetch(None).expect("a plan"), Some(vec![]));
    shift.exit().expect("it ends");
    assert_eq!(host.logs(), []);
}

#[test]
fn its_length_is_a_setting_that_may_change() {
    let Some(table) = shift("shift-settings.so") else {
        return;
    };
    let host = FakeHost::new().file("model", 1 << 30);
    let (mut shift, _) = host
        .start_table(table, &[("length", "65536")])
        .expect("it starts");
    let miss = Event::new(Kind::Miss, host.id("model"), 0, 4096);
    let mut length = || {
        shift
            .prefetch(Some(&miss))
            .expect("a plan")
            .expect("a callback")[0]
            .length
    };
    assert_eq!(length(), 65536);
    shift.configure("length", "4K").expect("a length");
    for (key, value) in [
        ("length", "-1"),
        ("length", "0"),
        ("length", "1x"),
        ("lenght", "1"),
    ] {
        let error = shift.configure(key, value).expect_err("no length");
        assert_eq!(error.errno(), libc::EINVAL, "{key}={value}");
        let refused = host
            .start_table(table, &[(key, value)])
            .expect_err("no length");
        assert_eq!(refused, LoadError::Init(libc::EINVAL));
    }
    let miss_length = shift
        .prefetch(Some(&miss))
        .expect("a plan")
        .expect("a callback")[0]
        .length;
    assert_eq!(miss_length, 4096);
    assert!(host.logs().iter().all(|(level, _)| *level == Level::Error));
}

#[test]
#[allow(unsafe_code, reason = "nothing that is opened here runs foreign code")]
fn file_that_is_no_policy_is_rejected() {
    let (source, library) = (common::scratch("none.c"), common::scratch("none.so"));
    // SAFETY: a file of text has no constructors to run.
    let refused = unsafe { Table::open(&common::policies().join("ppc.h")) };
    let refused = refused.expect_err("a text is not a library").to_string();
    assert!(
        refused.starts_with("The library cannot be opened: "),
        "{refused}"
    );

    std::fs::write(&source, "int nothing;\n").expect("a scratch file");
    if common::cc(&["-shared", "-fPIC"], &source, &library) {
        // SAFETY: it has nothing but one number.
        let refused = unsafe { Table::open(&library) };
        assert_eq!(
            refused.expect_err("nothing is exported"),
            LoadError::NoSymbol
        );
        std::fs::remove_file(library).expect("it was just there");
    }
    std::fs::remove_file(source).expect("it was just there");
}

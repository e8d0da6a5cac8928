//! What `add` takes of a policy in C: I/Os of other versions' sizes, and only what it understands.

#[allow(dead_code, reason = "each test uses a part of it")]
mod common;

use ppc::host::{Instance, Table};
use ppc::testing::FakeHost;
use ppc::{Event, FileId, Io, Kind, Op, Xpu};

/// Adds one I/O, followed by a field that no version has, as the event says: its size in the offset, the
/// operation in the thread, flags in the cpu, and in the count what the field holds. It returns what
/// `add` says.
const POLICY: &str = r#"
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

static int add(void *self, const struct ppc_event *event, struct ppc_sink *sink)
{
	struct { struct ppc_io io; uint64_t later; } longer = {
		.io = { .op = event->tid, .flags = event->cpu, .priority = 5, .file = event->file,
			.length = event->length, .xpu = 7, .tgid = 42 },
		.later = event->count,
	};

	(void)self;
	longer.io.struct_size = (uint32_t)event->offset;
	return the_host->add(the_host->ctx, sink, &longer.io);
}

PPC_POLICY(.name = "sizes", .init = start, .prefetch = add);
"#;

const WHOLE: u64 = size_of::<ppc::ffi::ppc_io>() as u64;
/// One that ends with its length: without xpu and tgid.
const LEAST: u64 = WHOLE - 8;
const NEAR: u32 = ppc::ffi::IO_NEAR;

/// What the event says; an I/O of this size, for the rest a plain load.
fn event(size: u64) -> Event {
    let mut event = Event::new(Kind::Miss, FileId(1), size, 4096);
    (event.thread, event.count) = (Op::Load.as_raw(), 0);
    event
}

#[allow(
    unsafe_code,
    reason = "loading a library runs it, and this one is ours"
)]
fn policy(name: &str) -> Option<Instance> {
    let (source, library) = (
        common::scratch(&format!("{name}.c")),
        common::scratch(&format!("{name}.so")),
    );
    std::fs::write(&source, POLICY).expect("a scratch file");
    let compiled = common::cc(&["-shared", "-fPIC"], &source, &library);
    std::fs::remove_file(source).expect("it was just there");
    if !compiled {
        return None;
    }
    // SAFETY: it was compiled of the lines above.
    let table = unsafe { Table::open(&library) }.expect("a policy");
    std::fs::remove_file(library).expect("it was just there");
    Some(
        FakeHost::new()
            .start_table(table, &[])
            .expect("it starts")
            .0,
    )
}

/// The I/O that the host understood, or the errno of `add`.
fn added(policy: &mut Instance, event: &Event) -> Result<Io, i32> {
    match policy.prefetch(Some(event)) {
        Ok(ios) => Ok(ios.expect("a callback")[0]),
        Err(error) => Err(error.errno()),
    }
}

#[test]
fn fields_missing_from_a_shorter_io_are_zero() {
    let Some(mut policy) = policy("shorter") else {
        return;
    };
    let load = Io::load(FileId(1), ..4096).priority(5);
    assert_eq!(added(&mut policy, &event(LEAST)), Ok(load));
    // The accelerator is there, and not asked for; the process is not.
    assert_eq!(added(&mut policy, &event(LEAST + 4)), Ok(load));
    assert_eq!(added(&mut policy, &event(WHOLE)), Ok(load.by(42)));
    let mut near = event(LEAST + 4);
    near.cpu = NEAR;
    assert_eq!(added(&mut policy, &near), Ok(load.near(Xpu(7))));
    near.offset = LEAST;
    assert_eq!(added(&mut policy, &near), Ok(load.near(Xpu(0))));
    for size in [0, 4, LEAST - 8, LEAST - 1] {
        assert_eq!(
            added(&mut policy, &event(size)),
            Err(libc::EINVAL),
            "{size}"
        );
    }
}

#[test]
fn a_longer_one_is_taken_if_it_asks_for_nothing_more() {
    let Some(mut policy) = policy("longer") else {
        return;
    };
    let load = Io::load(FileId(1), ..4096).priority(5).by(42);
    let mut longer = event(WHOLE + 8);
    assert_eq!(added(&mut policy, &longer), Ok(load));
    longer.count = 1 << 56;
    assert_eq!(added(&mut policy, &longer), Err(libc::E2BIG));
    longer.offset = WHOLE + 7;
    assert_eq!(
        added(&mut policy, &longer),
        Ok(load),
        "the byte is beyond it"
    );
    for size in [4097, u64::from(u32::MAX)] {
        assert_eq!(added(&mut policy, &event(size)), Err(libc::E2BIG), "{size}");
    }
}

#[test]
fn operations_and_flags_that_are_not_known_are_refused() {
    let Some(mut policy) = policy("unknown") else {
        return;
    };
    let mut asked = |op: u32, flags| {
        let mut event = event(WHOLE);
        (event.thread, event.cpu) = (op, flags);
        added(&mut policy, &event)
    };
    for op in [0, 4, u32::MAX] {
        assert_eq!(asked(op, 0), Err(libc::EINVAL), "{op}");
    }
    let ops = [Op::Load, Op::Drop, Op::Cancel];
    for op in ops {
        let done = asked(op.as_raw(), 0).map(|io| io.op);
        assert_eq!(done, Ok(op));
    }
    // Each flag is for one operation.
    for bit in 0..32 {
        let takes = ops.map(|op| asked(op.as_raw(), 1 << bit).is_ok());
        let expected = match bit {
            0..=3 => [true, false, false],
            4 => [false, true, false],
            _ => [false; 3],
        };
        assert_eq!(takes, expected, "flag {bit}");
    }
}

#[test]
fn a_range_is_neither_empty_nor_endless() {
    let Some(mut policy) = policy("ranges") else {
        return;
    };
    for (length, expected) in [
        (1, Ok(1)),
        (i64::MAX as u64, Ok(i64::MAX as u64)),
        (0, Err(libc::EINVAL)),
        (1 << 63, Err(libc::EINVAL)),
    ] {
        let mut event = event(WHOLE);
        event.length = length;
        assert_eq!(added(&mut policy, &event).map(|io| io.length), expected);
    }
}

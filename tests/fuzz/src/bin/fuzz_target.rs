//! libFuzzer, running the target that `FUZZ_TARGET` names and writing each input to the slate at
//! `FUZZ_SLATE` first. Its arguments are libFuzzer's.

#![no_main]

use std::cell::RefCell;
use std::env;

use fuzz::limits::Limits;
use fuzz::slate::Slate;
use fuzz::targets::{self, Target};
use libfuzzer_sys::fuzz_target;

struct Run {
    target: Target,
    slate: Slate,
    limits: Limits,
}

thread_local! {
    /// Made for the first input, when libFuzzer has allocated its own tables.
    static RUN: RefCell<Option<Run>> = const { RefCell::new(None) };
}

fuzz_target!(|input: &[u8]| {
    RUN.with_borrow_mut(|run| run.get_or_insert_with(Run::new).one(input));
});

/// A panic ends the process before it unwinds: libfuzzer-sys sees to it.
impl Run {
    fn new() -> Self {
        let name = env::var("FUZZ_TARGET").expect("FUZZ_TARGET is set by the runner");
        let slate = env::var_os("FUZZ_SLATE").expect("FUZZ_SLATE is set by the runner");
        Self {
            target: targets::by_name(&name).expect("FUZZ_TARGET is a target"),
            slate: Slate::create(slate.as_ref()).expect("the slate can be written"),
            limits: Limits::set().expect("the kernel sets limits"),
        }
    }

    fn one(&mut self, input: &[u8]) {
        self.slate.write(input).expect("the slate can be written");
        self.limits.restart().expect("the kernel starts the timer");
        (self.target.run)(input);
    }
}

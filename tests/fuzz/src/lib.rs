//! MAIO's parsers of templates and model headers, as targets for a fuzzer.
//!
//! `make fuzz` builds two programs of this crate. `fuzz` is the runner: it starts `fuzz-target` once for each
//! target, waits, and keeps the input on which that process died. `fuzz-target` is libFuzzer with the target
//! that `FUZZ_TARGET` names; the Makefile has it compiled with counters of the edges it passes.
//!
//! libFuzzer's own limits and handlers fall short without a sanitizer: it measures time on the wall clock, checks
//! the memory of the process once a second, and loses the input when the stack overflows or memory is
//! exhausted. So the kernel ends the process by our own [`limits`], and the [`slate`] has the input.

pub mod limits;
pub mod slate;
pub mod targets;

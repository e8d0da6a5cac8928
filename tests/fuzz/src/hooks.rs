//! What a program that was compiled with counters of its edges calls and counts, as LLVM's
//! `SanitizerCoverage` defines it. Compiled without, nothing is called and nothing counted.
//!
//! `make fuzz` has everything but the standard library compiled so, this crate included. Functions named
//! `__sanitizer_` are left out of it; what they call must be inlined, or would call them in turn.

#![allow(
    unsafe_code,
    reason = "the counters are the linker's, in a section of the program"
)]

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Where counters begin and end: a byte for each edge.
static COUNTERS: [AtomicPtr<u8>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// Numbers that were compared last, two and two.
static COMPARED: [[AtomicU64; 2]; RECENT] = [const { [const { AtomicU64::new(0) }; 2] }; RECENT];
static TURN: AtomicUsize = AtomicUsize::new(0);
/// Whether what is compared is noted: this program compares much itself.
static NOTING: AtomicBool = AtomicBool::new(false);
const RECENT: usize = 256;

/// How many edges have counters.
pub(crate) fn edges() -> usize {
    let [start, end] = bounds();
    end.addr() - start.addr()
}

/// Counts and notes from here on.
pub(crate) fn start() {
    let [start, _] = bounds();
    if !start.is_null() {
        // SAFETY: the loader named this range of the program's writable data, which stays, and nobody
        // has a reference to it. Only this thread runs code that counts.
        unsafe { ptr::write_bytes(start, 0, edges()) };
    }
    NOTING.store(true, Ordering::Relaxed);
}

/// Notes no more, and copies the counters, of which there must be as many as [`edges`].
pub(crate) fn stop(counts: &mut [u8]) {
    NOTING.store(false, Ordering::Relaxed);
    assert_eq!(counts.len(), edges(), "one for each edge");
    let [start, _] = bounds();
    if !start.is_null() {
        // SAFETY: as in `start`; and `counts` is of that length, and not of the program's data.
        unsafe { ptr::copy_nonoverlapping(start, counts.as_mut_ptr(), counts.len()) };
    }
}

/// Two numbers that were compared not long ago, whichever `pick` leads to.
pub(crate) fn compared(pick: u64) -> [u64; 2] {
    let at = usize::try_from(pick % RECENT as u64).unwrap_or(0);
    let [one, other] = &COMPARED[at];
    [one.load(Ordering::Relaxed), other.load(Ordering::Relaxed)]
}

fn bounds() -> [*mut u8; 2] {
    let [start, end] = &COUNTERS;
    [start.load(Ordering::Relaxed), end.load(Ordering::Relaxed)]
}

#[allow(
    clippy::inline_always,
    reason = "it must not be a function of its own, see above"
)]
#[inline(always)]
fn note(one: u64, other: u64) {
    if !NOTING.load(Ordering::Relaxed) {
        return;
    }
    let at = TURN.load(Ordering::Relaxed).wrapping_add(1);
    TURN.store(at, Ordering::Relaxed);
    let place = &COMPARED[at % RECENT];
    place[0].store(one, Ordering::Relaxed);
    place[1].store(other, Ordering::Relaxed);
}

/// Called once for each object file, before `main`, with the counters of the whole program.
///
/// # Safety
///
/// `start` to `end` are what the linker says.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, end: *mut u8) {
    COUNTERS[0].store(start, Ordering::Relaxed);
    COUNTERS[1].store(end, Ordering::Relaxed);
}

macro_rules! comparisons {
    ($($name:ident: $number:ty,)*) => {
        $(
            /// Called before two numbers are compared.
            #[unsafe(no_mangle)]
            extern "C" fn $name(one: $number, other: $number) {
                note(u64::from(one), u64::from(other));
            }
        )*
    };
}

comparisons! {
    __sanitizer_cov_trace_cmp1: u8,
    __sanitizer_cov_trace_cmp2: u16,
    __sanitizer_cov_trace_cmp4: u32,
    __sanitizer_cov_trace_cmp8: u64,
    __sanitizer_cov_trace_const_cmp1: u8,
    __sanitizer_cov_trace_const_cmp2: u16,
    __sanitizer_cov_trace_const_cmp4: u32,
    __sanitizer_cov_trace_const_cmp8: u64,
}

/// Called before a number decides between several ways: how many there are, the number's bits, and the
/// number of each way. One of them is noted.
///
/// # Safety
///
/// `ways` is what the compiler made.
#[unsafe(no_mangle)]
unsafe extern "C" fn __sanitizer_cov_trace_switch(number: u64, ways: *const u64) {
    // SAFETY: the first word is how many there are, two words before them.
    let way = unsafe {
        let count = usize::try_from(*ways).unwrap_or(1).max(1);
        *ways.add(2 + TURN.load(Ordering::Relaxed) % count)
    };
    note(number, way);
}

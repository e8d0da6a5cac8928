//! The program that runs in the kernel at a tracepoint. Pure: offsets in, instructions out.
//!
//! It ends at once if the backend does not follow the file, or if this process is the reader; otherwise it puts a
//! record into the ring, or counts it where there is no room. It must not slow down readers of other files,
//! so it first looks into a table of bits, in which the bit of a foreign inode is mostly unset. As C:
//!
//! ```text
//! struct record r = { .inode = <the inode> };
//! if (!(control.bits >> r.inode % BITS & 1)) return;
//! if (tgid == own) return;                // of what comes in, only if it is small
//! r.device = ...; r.first = ...; r.last = ...;
//! if (<part of the run>) return;          // of reads and of what is mapped only
//! if (!files[r.inode, r.device]) return;
//! r.who = ...; r.time = ktime_get_ns(); r.cpu = ...;
//! if (ringbuf_output(ring, &r, control.wake)) (*lost)++;
//! ```
//!
//! A read passes the tracepoint whenever it continues, and readers continue where they were: most of that is
//! not worth a record. So each CPU remembers the last reader ([`run`]).
//!
//! ```text
//! s = runs[point];
//! if (s.who, s.inode, s.device are the same) {
//!     if (last == s.last && first > s.at && first <= s.said + AT_ONCE) { s.at = first; return; }
//!     if (first == s.last + 1) {
//!         if (last - s.run < control.merge) { s.last = last; s.at = first; s.said = s.run; return; }
//!         r.first = s.run, and on with that
//!     }
//! }
//! if (!files[...]) return;
//! if (s.run <= s.last && <another reader or place>) ringbuf_output(ring, { s, s.run, s.last });
//! s = { .run = last + 1, .at = first, .said = r.first, ... };
//! ```

use super::asm::Register::{Context, Control, R0, R1, R2, R3, R4, R5, Run, Stack, Who};
use super::asm::{HelperCall, Is, Label, Program};
use super::reach::{Call, FileReach, Pages, Reaches};
use super::record::{Key, Point, Raw, half, word};
use super::who::{self, Listed, Own, jump_if_own};
use crate::sys;

/// Bytes of a record.
pub(super) const RECORD: usize = 64;
/// Bytes of a key: inode and device, as at the beginning of a record.
pub(super) const KEY: usize = 16;
/// Bytes of a run, which each CPU remembers for each point.
pub(super) const RUN: usize = 56;
/// How many numbers the programs receive: those of [`control`] and then [`bits`].
pub(super) const CONTROL: u32 = 2 + BITS / 64;
/// The index of the first of [`bits`] among them.
pub(super) const BITS_AT: usize = 2;
/// How many bits there are; each inode has one of them.
const BITS: u32 = 4096;

/// The bits of these files.
pub(super) fn bits(keys: &[Key]) -> [u64; BITS as usize / 64] {
    let mut bits = [0; BITS as usize / 64];
    for key in keys {
        let bit = usize::try_from(key.inode % u64::from(BITS)).unwrap_or(0);
        bits[bit / 64] |= 1 << (bit % 64);
    }
    bits
}

/// The control values for the programs: whether a record wakes us, and how many pages of one reader may
/// go without a record.
pub(super) fn control(wake: bool, merge: u64) -> [u64; BITS_AT] {
    // Flags of the kernel's ring buffer. By itself it wakes only a consumer that had read everything: a
    // record begun while we polled would keep later ones from waking us.
    const NO_WAKEUP: u64 = 1;
    const FORCE_WAKEUP: u64 = 2;

    [if wake { FORCE_WAKEUP } else { NO_WAKEUP }, merge]
}

/// Offsets of the parts of a record.
mod at {
    pub(super) const INODE: i16 = 0;
    pub(super) const DEVICE: i16 = 8;
    pub(super) const FIRST: i16 = 16;
    pub(super) const LAST: i16 = 24;
    pub(super) const WHO: i16 = 32;
    pub(super) const TIME: i16 = 40;
    pub(super) const CPU: i16 = 48;
    pub(super) const POINT: i16 = 52;
    pub(super) const BEGINNING: i16 = 56;

    /// A run begins like a record, but with the first page that has not been reported in the place of
    /// the first one; then come the reader's last place, and where the last record began.
    pub(super) const RUN: i16 = FIRST;
    pub(super) const AT: i16 = TIME;
    pub(super) const SAID: i16 = CPU;

    pub(super) const WAKE: i16 = 0;
    pub(super) const MERGE: i16 = 8;
    pub(super) const BITS: i16 = 16;
}

/// The record is at the top of the stack, below it the key of an array, and then the record of the run
/// before.
const NEW: i16 = -64;
const INDEX: i16 = NEW - 8;
const OLD: i16 = INDEX - 64;

/// The last page of a small range, counted from 0.
const SMALL: i32 = 15;

/// Added to the point of a record that reports a remembered run.
const LATE: u32 = 0x100;

/// Which reads a program reports, and the table for that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    /// Reads of these files.
    Files(i32),
    /// All reads of these processes.
    Processes(Listed),
}

/// The maps that the program works with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    pub(super) whom: Whom,
    pub(super) ring: i32,
    pub(super) lost: i32,
    pub(super) runs: i32,
    pub(super) control: i32,
}

/// Assembles the program for a tracepoint. A request that continues is reported again after `at_once` pages.
pub(super) fn program(reaches: &Reaches, maps: Maps, own: Own, at_once: i32) -> Vec<u64> {
    let mut program = Program::default();
    program.copy(Context, R1);
    match maps.whom {
        Whom::Files(_) => {
            inode(&mut program, &reaches.file);
            program.store(Stack, NEW + at::INODE, R1);
            program.value_of(Control, maps.control);
            perhaps_ours(&mut program);
            who::who(&mut program, own.numbering, Label::End);
            if reaches.point != Point::Add {
                jump_if_own(&mut program, own, Label::End);
            }
        }
        Whom::Processes(processes) => {
            who::listed(&mut program, processes, own, reaches.point == Point::Add);
            inode(&mut program, &reaches.file);
            program.store(Stack, NEW + at::INODE, R1);
            program.value_of(Control, maps.control);
        }
    }
    device(&mut program, &reaches.file);
    program.store(Stack, NEW + at::DEVICE, R1);
    extent(&mut program, reaches);
    if reaches.point == Point::Add {
        end_if_own_and_small(&mut program, own);
    }
    program.set(R1, -1);
    program.store(Stack, NEW + at::BEGINNING, R1);
    let runs = matches!(reaches.point, Point::Get | Point::Map);
    if runs {
        run(&mut program, reaches, maps, at_once);
    } else {
        ours(&mut program, maps);
    }
    program.store(Stack, NEW + at::WHO, Who);
    output(&mut program, NEW, reaches.point as u32, maps);
    program.finish()
}

/// Loads the inode's number into R1, and perhaps the inode itself into the register that is the run's later.
fn inode(program: &mut Program, file: &FileReach) {
    match file {
        FileReach::Record { inode, .. } => program.load_field(R1, Context, *inode),
        FileReach::Kernel {
            inode,
            number,
            cast,
            ..
        } => {
            match (cast, inode.0.split_first()) {
                (Some(cast), Some((&handed, rest))) => {
                    program.load_field(R1, Context, handed);
                    program.set(R2, cast.structure);
                    program.call_by_type(cast.function);
                    program.follow(Run, R0, rest);
                }
                _ => program.reach(Run, inode),
            }
            program.load_field(R1, Run, *number);
        }
    }
}

/// Loads the device into R1.
fn device(program: &mut Program, file: &FileReach) {
    match file {
        FileReach::Record { device, .. } => program.load_field(R1, Context, *device),
        FileReach::Kernel {
            superblock, device, ..
        } => {
            program.copy(R3, Run);
            for field in [superblock, device] {
                program.set(R1, 0);
                program.store(Stack, INDEX, R1);
                program.add(R3, field.offset.into());
                program.address(R1, INDEX);
                program.set(R2, field.size.into());
                program.call(HelperCall::ProbeReadKernel);
                program.load(R3, Stack, INDEX);
            }
            program.copy(R1, R3);
        }
    }
}

/// Ends if the bit of the inode, which is in R1, is not set.
fn perhaps_ours(program: &mut Program) {
    program.and(R1, i32::try_from(BITS - 1).unwrap_or(0));
    program.copy(R2, R1);
    program.shift_right(R2, 6);
    program.shift_left(R2, 3);
    program.add_register(R2, Control);
    program.load(R2, R2, at::BITS);
    program.and(R1, 63);
    program.shift_right_by(R2, R1);
    program.and(R2, 1);
    program.jump_if_number(R2, 0, Label::End);
}

/// Ends if this process has brought in something small: its large folios are reported, as one fault maps all of each.
fn end_if_own_and_small(program: &mut Program, own: Own) {
    jump_if_own(program, own, Label::Own);
    program.jump(Label::Foreign);
    program.here(Label::Own);
    program.load(R1, Stack, NEW + at::LAST);
    program.load(R2, Stack, NEW + at::FIRST);
    program.subtract(R1, R2);
    program.set(R2, SMALL);
    program.jump_if(R1, Is::NotGreater, R2, Label::End);
    program.here(Label::Foreign);
}

/// Ends unless the file is ours.
fn ours(program: &mut Program, maps: Maps) {
    let Whom::Files(files) = maps.whom else {
        return;
    };
    program.map(R1, files);
    program.address(R2, NEW);
    program.call(HelperCall::MapLookup);
    program.jump_if_number(R0, 0, Label::End);
}

/// Ends if the reader only continues; otherwise reports the remembered run of the reader before.
fn run(program: &mut Program, reaches: &Reaches, maps: Maps, at_once: i32) {
    let point = reaches.point;
    program.element(maps.runs, point as i32, INDEX);
    program.copy(Run, R0);
    for at in [at::INODE, at::DEVICE] {
        program.load(R1, Stack, NEW + at);
        program.load(R2, Run, at);
        program.jump_if(R1, Is::Not, R2, Label::Other);
    }
    program.load(R2, Run, at::WHO);
    program.jump_if(Who, Is::Not, R2, Label::Other);
    program.load(R1, Stack, NEW + at::FIRST);
    program.load(R2, Stack, NEW + at::LAST);
    program.load(R3, Run, at::LAST);
    program.jump_if(R2, Is::Not, R3, Label::Next);
    // The same request.
    program.load(R4, Run, at::AT);
    program.jump_if(R1, Is::NotGreater, R4, Label::Other);
    program.load(R4, Run, at::SAID);
    program.add(R4, at_once);
    program.jump_if(R1, Is::Greater, R4, Label::Other);
    program.store(Run, at::AT, R1);
    program.jump(Label::End);

    program.here(Label::Next);
    program.add(R3, 1);
    program.jump_if(R1, Is::Not, R3, Label::Other);
    program.load(R4, Run, at::RUN);
    program.copy(R3, R2);
    program.subtract(R3, R4);
    program.load(R5, Control, at::MERGE);
    program.jump_if(R3, Is::NotLess, R5, Label::Whole);
    program.store(Run, at::LAST, R2);
    program.store(Run, at::AT, R1);
    program.store(Run, at::SAID, R4);
    program.jump(Label::End);

    program.here(Label::Whole);
    program.store(Run, at::AT, R1);
    program.store(Stack, NEW + at::FIRST, R4);
    program.jump(Label::Tell);

    program.here(Label::Other);
    ours(program, maps);
    program.load(R1, Run, at::RUN);
    program.load(R2, Run, at::LAST);
    program.jump_if(R1, Is::Greater, R2, Label::Flushed);
    for at in [at::INODE, at::DEVICE, at::FIRST, at::LAST, at::WHO] {
        program.load(R1, Run, at);
        program.store(Stack, OLD + at, R1);
    }
    program.set(R1, -1);
    program.store(Stack, OLD + at::BEGINNING, R1);
    output(program, OLD, point as u32 | LATE, maps);
    program.here(Label::Told);
    program.here(Label::Flushed);
    if let Some(call) = &reaches.call {
        beginning(program, call);
    }
    program.load(R1, Stack, NEW + at::FIRST);
    program.store(Run, at::AT, R1);

    program.here(Label::Tell);
    remember(program);
}

/// Finds the page with which the read began, by the system call that the thread is in. The kernel does not report
/// folios that are followed by one whose I/O is under way, so the first record may come from further on.
///
/// ```text
/// if (call == pread) r.beginning = offset / PAGE;
/// else if (call == read) r.beginning = r.last + 1 - <pages of count>;
/// ```
fn beginning(program: &mut Program, call: &Call) {
    let page = sys::page_size();
    let shift = page.trailing_zeros().cast_signed();
    program.call(HelperCall::GetCurrentTaskBtf);
    program.copy(R1, R0);
    program.call(HelperCall::TaskPtRegs);
    program.load_field(R1, R0, call.number);
    program.load_field(R2, R0, call.count);
    program.load_field(R3, R0, call.offset);
    program.jump_if_number(R1, call.pread, Label::Positioned);
    program.jump_if_not_number(R1, call.read, Label::Unknown);
    program.add(R2, i32::try_from(page - 1).unwrap_or(0));
    program.shift_right(R2, shift);
    program.load(R3, Stack, NEW + at::LAST);
    program.add(R3, 1);
    program.jump_if(R2, Is::Greater, R3, Label::Unknown);
    program.subtract(R3, R2);
    program.jump(Label::Known);
    program.here(Label::Positioned);
    program.shift_right(R3, shift);
    program.here(Label::Known);
    program.store(Stack, NEW + at::BEGINNING, R3);
    program.here(Label::Unknown);
}

/// Sets the run to that of the record.
fn remember(program: &mut Program) {
    for at in [at::INODE, at::DEVICE, at::LAST] {
        program.load(R1, Stack, NEW + at);
        program.store(Run, at, R1);
    }
    // All is reported: R1 is the last page.
    program.add(R1, 1);
    program.store(Run, at::RUN, R1);
    program.store(Run, at::WHO, Who);
    program.load(R1, Stack, NEW + at::FIRST);
    program.store(Run, at::SAID, R1);
}

/// Adds time, CPU and point to the record on the stack, and puts it into the ring, or counts it as lost.
fn output(program: &mut Program, record: i16, point: u32, maps: Maps) {
    program.call(HelperCall::KtimeGetNs);
    program.store(Stack, record + at::TIME, R0);
    program.call(HelperCall::GetSmpProcessorId);
    program.store_half(Stack, record + at::CPU, R0);
    program.set(R1, point.cast_signed());
    program.store_half(Stack, record + at::POINT, R1);
    program.map(R1, maps.ring);
    program.address(R2, record);
    program.set(R3, i32::try_from(RECORD).unwrap_or(0));
    program.load(R4, Control, at::WAKE);
    program.call(HelperCall::RingbufOutput);
    program.jump_if_number(R0, 0, Label::Told);
    program.value_of(R0, maps.lost);
    program.set(R1, 1);
    // An atomic addition of eight bytes.
    program.put(0xdb, R0, R1, 0, 0);
    program.here(Label::Told);
}

/// Stores the first and the last page.
fn extent(program: &mut Program, reaches: &Reaches) {
    program.reach(R1, &reaches.first);
    program.store(Stack, NEW + at::FIRST, R1);
    match &reaches.pages {
        Pages::One => {}
        Pages::Last(last) => program.reach(R1, last),
        Pages::Order(order) => {
            program.reach(R2, order);
            many(program);
        }
        Pages::Folio {
            flags,
            large,
            order,
        } => {
            program.reach(R3, flags);
            program.and(R3, 1_i32.wrapping_shl(*large));
            program.jump_if_number(R3, 0, Label::Small);
            program.reach(R2, order);
            many(program);
            program.here(Label::Small);
        }
    }
    program.store(Stack, NEW + at::LAST, R1);
}

/// From the first page in R1, computes the last one; R2 has the logarithm of their number.
fn many(program: &mut Program) {
    program.set(R3, 1);
    program.shift_left_by(R3, R2);
    program.add_register(R1, R3);
    program.add(R1, -1);
}

/// A key as the program looks it up.
pub(super) fn key(key: Key) -> [u8; KEY] {
    let mut bytes = [0; KEY];
    bytes[..8].copy_from_slice(&key.inode.to_ne_bytes());
    bytes[8..].copy_from_slice(&u64::from(key.device).to_ne_bytes());
    bytes
}

/// A record as the program writes it.
pub(super) fn decode(bytes: &[u8]) -> Option<Raw> {
    let place = |at: i16| usize::try_from(at).unwrap_or(usize::MAX);
    let long = |at| word(bytes, place(at));
    let who = long(at::WHO)?;
    let first = long(at::FIRST)?;
    let number = half(bytes, place(at::POINT))?;
    let late = number & LATE != 0;
    let number = usize::try_from(number & !LATE).ok()?;
    Some(Raw {
        point: *[Point::Add, Point::Fault, Point::Get, Point::Map].get(number)?,
        key: Key {
            device: u32::try_from(long(at::DEVICE)?).ok()?,
            inode: long(at::INODE)?,
        },
        first,
        beginning: Some(long(at::BEGINNING)?).filter(|&page| page <= first),
        last: long(at::LAST)?.max(first),
        process: u32::try_from(who >> 32).ok()?,
        thread: u32::try_from(who & 0xffff_ffff).ok()?,
        cpu: half(bytes, place(at::CPU))?,
        time_ns: long(at::TIME)?,
        late,
    })
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::layouts;
    use super::super::who::Numbering;
    use super::super::who::tests::{CONTAINED, jumps_to_the_end};
    use super::*;

    const MAPS: Maps = Maps {
        whom: Whom::Files(5),
        ring: 6,
        lost: 7,
        runs: 8,
        control: 9,
    };

    const OWN: Own = Own {
        process: 1234,
        numbering: Numbering::First,
    };

    #[test]
    fn jumps_go_forward_only_and_the_end_is_reachable() {
        let processes = |by_ours| Maps {
            whom: Whom::Processes(Listed {
                processes: 5,
                by_ours,
            }),
            ..MAPS
        };
        for layout in layouts() {
            for (numbering, maps, least) in [
                (Numbering::First, MAPS, 4),
                (Numbering::First, processes(None), 1),
                (CONTAINED, MAPS, 9),
                (CONTAINED, processes(Some(10)), 5),
            ] {
                let own = Own { numbering, ..OWN };
                let code = program(&(&layout).into(), maps, own, 512);
                let ends = jumps_to_the_end(&code);
                assert!(ends >= least, "{ends} {maps:?}");
            }
        }
    }

    #[test]
    fn instructions_are_the_kernels() {
        /// The distance of such jumps, which is checked above.
        const END: u8 = 0;

        let code = program(&(&layouts()[0]).into(), MAPS, OWN, 512);
        #[rustfmt::skip]
        let beginning = [
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],             // r6 = r1
            [0x79, 0x61, 8, 0, 0, 0, 0, 0],             // r1 = *(u64 *)(r6 + 8)
            [0x7b, 0x1a, 0xc0, 0xff, 0, 0, 0, 0],       // *(u64 *)(r10 - 64) = r1
            [0x18, 0x29, 0, 0, 9, 0, 0, 0],             // r9 = the value of the map of descriptor 9
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0x57, 0x01, 0, 0, 0xff, 0x0f, 0, 0],       // r1 &= 4095
            [0xbf, 0x12, 0, 0, 0, 0, 0, 0],             // r2 = r1
            [0x77, 0x02, 0, 0, 6, 0, 0, 0],             // r2 >>= 6
            [0x67, 0x02, 0, 0, 3, 0, 0, 0],             // r2 <<= 3
            [0x0f, 0x92, 0, 0, 0, 0, 0, 0],             // r2 += r9
            [0x79, 0x22, 16, 0, 0, 0, 0, 0],            // r2 = *(u64 *)(r2 + 16)
            [0x57, 0x01, 0, 0, 63, 0, 0, 0],            // r1 &= 63
            [0x7f, 0x12, 0, 0, 0, 0, 0, 0],             // r2 >>= r1
            [0x57, 0x02, 0, 0, 1, 0, 0, 0],             // r2 &= 1
            [0x15, 0x02, END, 0, 0, 0, 0, 0],           // if r2 == 0 goto end
            [0x85, 0, 0, 0, 14, 0, 0, 0],               // call get_current_pid_tgid
            [0xbf, 0x07, 0, 0, 0, 0, 0, 0],             // r7 = r0
            [0xbf, 0x71, 0, 0, 0, 0, 0, 0],             // r1 = r7
            [0x77, 0x01, 0, 0, 32, 0, 0, 0],            // r1 >>= 32
            [0x15, 0x01, END, 0, 0xd2, 4, 0, 0],        // if r1 == 1234 goto end
            [0x61, 0x61, 16, 0, 0, 0, 0, 0],            // r1 = *(u32 *)(r6 + 16)
        ];
        for (at, expected) in beginning.iter().enumerate() {
            let mut got = code[at].to_le_bytes();
            if got[0] == 0x15 {
                got[2] = END;
            }
            assert_eq!(got, *expected, "instruction {at}");
        }
    }

    #[test]
    fn the_stack_has_room_for_a_record() {
        assert_eq!(RECORD, usize::from(NEW.unsigned_abs()));
        assert_eq!(RECORD, usize::from((OLD - INDEX).unsigned_abs()));
        assert_eq!(RECORD, usize::try_from(at::BEGINNING).expect("a place") + 8);
    }

    #[test]
    fn records_are_read_back() {
        #[rustfmt::skip]
        let bytes: [u8; RECORD] = [
            77,0,0,0,0,0,0,0,       // inode
            0,0,0xe0,0x0f,0,0,0,0,  // device 254:0
            1,0,0,0,0,0,0,0,        // from page 1
            4,0,0,0,0,0,0,0,        // to 4
            9,0,0,0, 8,0,0,0,       // thread 9 of process 8
            3,0,0,0,0,0,0,0,        // after 3 ns
            2,0,0,0,                // on CPU 2
            2,0,0,0,                // by a read
            0,0,0,0,0,0,0,0,        // which began with page 0
        ];
        let key_of = Key {
            device: 254 << 20,
            inode: 77,
        };
        let expected = Raw {
            point: Point::Get,
            key: key_of,
            first: 1,
            beginning: Some(0),
            last: 4,
            process: 8,
            thread: 9,
            cpu: 2,
            time_ns: 3,
            late: false,
        };
        assert_eq!(decode(&bytes), Some(expected));
        assert_eq!(key(key_of), bytes[..KEY]);
        assert_eq!(decode(&bytes[..RECORD - 1]), None);
        let mut other = bytes;
        other[53] = 1;
        assert_eq!(
            decode(&other),
            Some(Raw {
                late: true,
                ..expected
            })
        );
        other[52] = 4;
        assert_eq!(decode(&other), None, "no such point");
    }
}

//! The program that runs in the kernel at a tracepoint. Pure: layouts in, instructions out.
//!
//! It leaves at once if this process is the reader or the file is none of ours; otherwise it puts a
//! record into the ring, or counts it where there is no room. In other words:
//!
//! ```text
//! if (tgid == own) return;
//! struct record r = { .inode = ctx->i_ino, .device = ctx->s_dev, .first = ctx->index, .last = ... };
//! if (<part of the run>) return;          // of reads and of what is mapped only
//! if (!files[r.inode, r.device]) return;
//! r.who = ...; r.time = ktime_get_ns(); r.cpu = ...;
//! if (ringbuf_output(ring, &r, control.wake)) (*lost)++;
//! ```
//!
//! A read tells of itself whenever it goes on, and readers go on where they were: most of that is not
//! worth a record. So each CPU remembers the last reader ([`run`]).
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

use super::record::{Extent, Field, Key, Layout, Point, Raw, half, word};

/// Bytes of a record.
pub(super) const RECORD: usize = 56;
/// Bytes of a key: inode and device, as at the beginning of a record.
pub(super) const KEY: usize = 16;
/// Bytes of what a CPU remembers, one for each point.
pub(super) const RUN: usize = 56;
/// How many numbers are told to the programs.
pub(super) const CONTROL: u32 = 2;

/// What is told to the programs: whether a record wakes us, and how many pages of one reader may go
/// without a record.
pub(super) fn control(wake: bool, merge: u64) -> [u64; CONTROL as usize] {
    // As the kernel's ring buffer knows them. By itself it wakes only who had read all there was: a
    // record that was begun while we looked by ourselves would keep later ones from waking us.
    const NO_WAKEUP: u64 = 1;
    const FORCE_WAKEUP: u64 = 2;

    [if wake { FORCE_WAKEUP } else { NO_WAKEUP }, merge]
}

/// Where the parts of a record are.
mod at {
    pub(super) const INODE: i16 = 0;
    pub(super) const DEVICE: i16 = 8;
    pub(super) const FIRST: i16 = 16;
    pub(super) const LAST: i16 = 24;
    pub(super) const WHO: i16 = 32;
    pub(super) const TIME: i16 = 40;
    pub(super) const CPU: i16 = 48;
    pub(super) const POINT: i16 = 52;

    /// What a CPU remembers begins as a record does, with the first page that has not been told in
    /// the place of the first one; then come where the reader was last, and where the last record
    /// began.
    pub(super) const RUN: i16 = FIRST;
    pub(super) const AT: i16 = TIME;
    pub(super) const SAID: i16 = CPU;

    pub(super) const WAKE: i16 = 0;
    pub(super) const MERGE: i16 = 8;
}

/// The record lies at the top of the stack, below it the key of an array, and then the record of what
/// was there before.
const NEW: i16 = -56;
const INDEX: i16 = NEW - 8;
const OLD: i16 = INDEX - 56;

/// With the point of a record that tells of what has been kept.
const LATE: u32 = 0x100;

/// What the program works with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    pub(super) files: i32,
    pub(super) ring: i32,
    pub(super) lost: i32,
    pub(super) runs: i32,
    pub(super) control: i32,
}

/// Registers. Calls take the first ones and spoil them; the result is in R0.
#[derive(Clone, Copy, Debug)]
enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    /// Ours: what the tracepoint says.
    Context = 6,
    /// Ours: process and thread.
    Who,
    /// Ours: what this CPU remembers.
    Run,
    /// Ours: what we are told.
    Control,
    /// The end of the stack.
    Stack = 10,
}

use Register::{Context, Control, R0, R1, R2, R3, R4, R5, Run, Stack, Who};

/// Functions of the kernel.
#[derive(Clone, Copy, Debug)]
enum HelperCall {
    MapLookup = 1,
    KtimeGetNs = 5,
    GetSmpProcessorId = 8,
    GetCurrentPidTgid = 14,
    RingbufOutput = 130,
}

/// Comparisons, of registers without sign.
#[derive(Clone, Copy, Debug)]
enum Is {
    Greater = 0x2d,
    NotLess = 0x3d,
    Not = 0x5d,
    NotGreater = 0xbd,
}

/// A place to jump to, further on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    End,
    Next,
    Whole,
    Other,
    Tell,
    Flushed,
    Told,
}

/// A program under way: a jump does not know yet how far.
#[derive(Debug, Default)]
struct Program {
    code: Vec<u64>,
    jumps: Vec<(usize, Label)>,
}

impl Program {
    fn put(&mut self, op: u8, to: Register, from: Register, offset: i16, number: i32) {
        let registers = to as u8 | (from as u8) << 4;
        let [low, high] = offset.to_le_bytes();
        let [a, b, c, d] = number.to_le_bytes();
        self.code
            .push(u64::from_le_bytes([op, registers, low, high, a, b, c, d]));
    }

    fn call(&mut self, function: HelperCall) {
        self.put(0x85, R0, R0, 0, function as i32);
    }

    fn copy(&mut self, to: Register, from: Register) {
        self.put(0xbf, to, from, 0, 0);
    }

    fn set(&mut self, to: Register, number: i32) {
        self.put(0xb7, to, R0, 0, number);
    }

    fn add(&mut self, to: Register, number: i32) {
        self.put(0x07, to, R0, 0, number);
    }

    fn subtract(&mut self, to: Register, from: Register) {
        self.put(0x1f, to, from, 0, 0);
    }

    /// Reads a field of the tracepoint's record.
    fn field(&mut self, to: Register, field: Field) {
        let op = match field.size {
            1 => 0x71,
            2 => 0x69,
            4 => 0x61,
            _ => 0x79,
        };
        let offset = i16::try_from(field.offset).unwrap_or(i16::MAX);
        self.put(op, to, Context, offset, 0);
    }

    /// Reads eight bytes.
    fn load(&mut self, to: Register, from: Register, at: i16) {
        self.put(0x79, to, from, at, 0);
    }

    /// Writes eight.
    fn store(&mut self, to: Register, at: i16, from: Register) {
        self.put(0x7b, to, from, at, 0);
    }

    /// Writes four.
    fn store_half(&mut self, to: Register, at: i16, from: Register) {
        self.put(0x63, to, from, at, 0);
    }

    fn map(&mut self, to: Register, fd: i32) {
        // Two instructions long; the source says that the number is a map's descriptor.
        let [a, b, c, d] = fd.to_le_bytes();
        self.code.push(u64::from_le_bytes([
            0x18,
            to as u8 | 1 << 4,
            0,
            0,
            a,
            b,
            c,
            d,
        ]));
        self.code.push(0);
    }

    fn address(&mut self, to: Register, on_stack: i16) {
        self.copy(to, Stack);
        self.add(to, on_stack.into());
    }

    /// Looks up an element of an array, or else ends.
    fn element(&mut self, map: i32, number: i32) {
        self.set(R1, number);
        self.store(Stack, INDEX, R1);
        self.map(R1, map);
        self.address(R2, INDEX);
        self.call(HelperCall::MapLookup);
        self.jump_if_number(R0, 0, Label::End);
    }

    fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x05, R0, R0, 0, 0);
    }

    fn jump_if(&mut self, one: Register, is: Is, other: Register, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(is as u8, one, other, 0, 0);
    }

    fn jump_if_number(&mut self, register: Register, is: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x15, register, R0, 0, is);
    }

    /// Here the jumps to a label lead.
    fn here(&mut self, label: Label) {
        let here = self.code.len();
        let code = &mut self.code;
        self.jumps.retain(|&(at, to)| {
            if to == label {
                // From the instruction after the jump.
                let far = u64::try_from(here - at - 1).unwrap_or(0);
                code[at] |= (far & 0x7fff) << 16;
            }
            to != label
        });
    }

    fn finish(mut self) -> Vec<u64> {
        self.here(Label::End);
        // The result says that others who listen to this tracepoint are to hear of it as well.
        self.code.push(0xb7 | 1 << 32);
        self.code.push(0x95);
        self.code
    }
}

/// The program for a tracepoint, which does not hear of the process `own`. Of a request that goes on
/// it tells again after `at_once` pages.
pub(super) fn program(layout: &Layout, maps: Maps, own: u32, at_once: i32) -> Vec<u64> {
    let mut program = Program::default();
    program.copy(Context, R1);
    program.call(HelperCall::GetCurrentPidTgid);
    program.copy(Who, R0);
    // The process is in the upper half.
    program.put(0x77, R0, R0, 0, 32);
    program.jump_if_number(R0, i32::try_from(own).unwrap_or(0), Label::End);

    program.field(R1, layout.inode);
    program.store(Stack, NEW + at::INODE, R1);
    program.field(R1, layout.device);
    program.store(Stack, NEW + at::DEVICE, R1);
    extent(&mut program, layout);
    program.element(maps.control, 0);
    program.copy(Control, R0);
    let runs = matches!(layout.point, Point::Get | Point::Map);
    if runs {
        run(&mut program, layout.point, maps, at_once);
    } else {
        ours(&mut program, maps);
    }
    program.store(Stack, NEW + at::WHO, Who);
    output(&mut program, NEW, layout.point as u32, maps);
    program.finish()
}

/// Ends unless the file is ours.
fn ours(program: &mut Program, maps: Maps) {
    program.map(R1, maps.files);
    program.address(R2, NEW);
    program.call(HelperCall::MapLookup);
    program.jump_if_number(R0, 0, Label::End);
}

/// Ends if the reader only goes on; otherwise tells what had been kept of the one before.
fn run(program: &mut Program, point: Point, maps: Maps, at_once: i32) {
    program.element(maps.runs, point as i32);
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
    output(program, OLD, point as u32 | LATE, maps);
    program.here(Label::Told);
    program.here(Label::Flushed);
    program.load(R1, Stack, NEW + at::FIRST);
    program.store(Run, at::AT, R1);

    program.here(Label::Tell);
    remember(program);
}

/// From here on the run is that of the record.
fn remember(program: &mut Program) {
    for at in [at::INODE, at::DEVICE, at::LAST] {
        program.load(R1, Stack, NEW + at);
        program.store(Run, at, R1);
    }
    // Nothing is kept: R1 is the last page.
    program.add(R1, 1);
    program.store(Run, at::RUN, R1);
    program.store(Run, at::WHO, Who);
    program.load(R1, Stack, NEW + at::FIRST);
    program.store(Run, at::SAID, R1);
}

/// Puts a record into the ring, or counts it; what is on the stack but time, CPU and point is there.
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
    program.element(maps.lost, 0);
    program.set(R1, 1);
    // An atomic addition of eight bytes.
    program.put(0xdb, R0, R1, 0, 0);
    program.here(Label::Told);
}

/// The first page and the last one.
fn extent(program: &mut Program, layout: &Layout) {
    program.field(R1, layout.first);
    program.store(Stack, NEW + at::FIRST, R1);
    match layout.extent {
        Extent::One => {}
        Extent::Last(field) => program.field(R1, field),
        Extent::Order(field) => {
            program.field(R2, field);
            program.set(R3, 1);
            program.put(0x6f, R3, R2, 0, 0);
            program.put(0x0f, R1, R3, 0, 0);
            program.add(R1, -1);
        }
    }
    program.store(Stack, NEW + at::LAST, R1);
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
    use super::*;

    const MAPS: Maps = Maps {
        files: 5,
        ring: 6,
        lost: 7,
        runs: 8,
        control: 9,
    };

    #[test]
    fn every_jump_leads_further_on_and_the_end_is_reached() {
        for layout in layouts() {
            let code = program(&layout, MAPS, 1234, 512);
            let bytes: Vec<_> = code.iter().map(|code| code.to_le_bytes()).collect();
            let is_jump = |code: &[u8; 8]| code[0] & 7 == 5 && !matches!(code[0], 0x85 | 0x95);
            // The second halves of wide instructions are zeros, which are no jumps.
            let jumps = bytes.iter().enumerate().filter(|(_, code)| is_jump(code));
            let mut ends = 0;
            for (at, code) in jumps {
                let far = usize::from(u16::from_le_bytes([code[2], code[3]]));
                assert!(far > 0 && at + 1 + far <= bytes.len() - 2, "{at}: {far}");
                ends += usize::from(at + 1 + far == bytes.len() - 2);
            }
            assert!(ends >= 4, "{ends}");
            assert_eq!(code[code.len() - 2..], [0xb7 | 1 << 32, 0x95]);
        }
    }

    #[test]
    fn instructions_are_the_kernels() {
        /// How far is checked above.
        const END: u8 = 0;

        let code = program(&layouts()[0], MAPS, 1234, 512);
        #[rustfmt::skip]
        let beginning = [
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],             // r6 = r1
            [0x85, 0, 0, 0, 14, 0, 0, 0],               // call get_current_pid_tgid
            [0xbf, 0x07, 0, 0, 0, 0, 0, 0],             // r7 = r0
            [0x77, 0, 0, 0, 32, 0, 0, 0],               // r0 >>= 32
            [0x15, 0, END, 0, 0xd2, 4, 0, 0],           // if r0 == 1234 goto end
            [0x79, 0x61, 8, 0, 0, 0, 0, 0],             // r1 = *(u64 *)(r6 + 8)
            [0x7b, 0x1a, 0xc8, 0xff, 0, 0, 0, 0],       // *(u64 *)(r10 - 56) = r1
            [0x61, 0x61, 16, 0, 0, 0, 0, 0],            // r1 = *(u32 *)(r6 + 16)
            [0x7b, 0x1a, 0xd0, 0xff, 0, 0, 0, 0],       // *(u64 *)(r10 - 48) = r1
            [0x79, 0x61, 24, 0, 0, 0, 0, 0],            // r1 = *(u64 *)(r6 + 24)
            [0x7b, 0x1a, 0xd8, 0xff, 0, 0, 0, 0],       // *(u64 *)(r10 - 40) = r1
            [0x79, 0x61, 32, 0, 0, 0, 0, 0],            // r1 = *(u64 *)(r6 + 32)
            [0x7b, 0x1a, 0xe0, 0xff, 0, 0, 0, 0],       // *(u64 *)(r10 - 32) = r1
            [0xb7, 0x01, 0, 0, 0, 0, 0, 0],             // r1 = 0
            [0x7b, 0x1a, 0xc0, 0xff, 0, 0, 0, 0],       // *(u64 *)(r10 - 64) = r1
            [0x18, 0x11, 0, 0, 9, 0, 0, 0],             // r1 = the map of descriptor 9
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],             // r2 = r10
            [0x07, 0x02, 0, 0, 0xc0, 0xff, 0xff, 0xff], // r2 += -64
            [0x85, 0, 0, 0, 1, 0, 0, 0],                // call map_lookup_elem
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
        assert_eq!(RECORD, usize::try_from(at::POINT).expect("a place") + 4);
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
        ];
        let key_of = Key {
            device: 254 << 20,
            inode: 77,
        };
        let expected = Raw {
            point: Point::Get,
            key: key_of,
            first: 1,
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

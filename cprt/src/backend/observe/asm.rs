//! The program that runs in the kernel at a tracepoint. Pure: layouts in, instructions out.
//!
//! It leaves at once if this process is the reader or the file is none of ours; otherwise it puts a
//! record into the ring, or counts it where there is no room. In other words:
//!
//! ```text
//! if (tgid == own) return;
//! struct record r = { .inode = ctx->i_ino, .device = ctx->s_dev };
//! if (!files[r.inode, r.device]) return;
//! r.first = ctx->index; r.last = ...; r.who = ...; r.time = ktime_get_ns(); r.cpu = ...;
//! if (ringbuf_output(ring, &r)) (*lost)++;
//! ```

use super::record::{Extent, Field, Key, Layout, Point, Raw, half, word};

/// Bytes of a record.
pub(super) const RECORD: usize = 56;
/// Bytes of a key: inode and device, as at the beginning of a record.
pub(super) const KEY: usize = 16;

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
}

/// The record lies at the top of the stack, and below it the key of the counter.
const STACK: i16 = -56;
const ZERO: i16 = STACK - 8;

/// What the program works with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    pub(super) files: i32,
    pub(super) ring: i32,
    pub(super) lost: i32,
}

/// Registers. Calls take the first ones and spoil them; the result is in R0.
#[derive(Clone, Copy, Debug)]
enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    /// Ours: what the tracepoint says.
    Context = 6,
    /// Ours: process and thread.
    Who,
    /// The end of the stack.
    Stack = 10,
}

use Register::{Context, R0, R1, R2, R3, R4, Stack, Who};

/// Functions of the kernel.
#[derive(Clone, Copy, Debug)]
enum Call {
    MapLookup = 1,
    KtimeGetNs = 5,
    GetSmpProcessorId = 8,
    GetCurrentPidTgid = 14,
    RingbufOutput = 130,
}

/// An instruction under way: a jump does not know yet how far.
#[derive(Debug, Default)]
struct Program {
    code: Vec<u64>,
    to_end: Vec<usize>,
}

impl Program {
    fn put(&mut self, op: u8, to: Register, from: Register, offset: i16, number: i32) {
        let registers = to as u8 | (from as u8) << 4;
        let [low, high] = offset.to_le_bytes();
        let [a, b, c, d] = number.to_le_bytes();
        self.code
            .push(u64::from_le_bytes([op, registers, low, high, a, b, c, d]));
    }

    fn call(&mut self, function: Call) {
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

    /// Reads a field of the tracepoint's record.
    fn load(&mut self, to: Register, field: Field) {
        let op = match field.size {
            1 => 0x71,
            2 => 0x69,
            4 => 0x61,
            _ => 0x79,
        };
        let offset = i16::try_from(field.offset).unwrap_or(i16::MAX);
        self.put(op, to, Context, offset, 0);
    }

    /// Writes eight bytes of our record.
    fn store(&mut self, at: i16, from: Register) {
        self.put(0x7b, Stack, from, STACK + at, 0);
    }

    /// Writes four.
    fn store_half(&mut self, at: i16, from: Register) {
        self.put(0x63, Stack, from, STACK + at, 0);
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

    fn end_if(&mut self, register: Register, is: i32) {
        self.to_end.push(self.code.len());
        self.put(0x15, register, R0, 0, is);
    }

    fn finish(mut self) -> Vec<u64> {
        for at in self.to_end {
            // From the instruction after the jump to the two at the end.
            let far = u64::try_from(self.code.len() - at - 1).unwrap_or(0);
            self.code[at] |= (far & 0x7fff) << 16;
        }
        // The result says that others who listen to this tracepoint are to hear of it as well.
        self.code.push(0xb7 | 1 << 32);
        self.code.push(0x95);
        self.code
    }
}

/// The program for a tracepoint, which does not hear of the process `own`.
pub(super) fn program(layout: &Layout, maps: Maps, own: u32) -> Vec<u64> {
    let mut program = Program::default();
    program.copy(Context, R1);
    program.call(Call::GetCurrentPidTgid);
    program.copy(Who, R0);
    // The process is in the upper half.
    program.put(0x77, R0, R0, 0, 32);
    program.end_if(R0, i32::try_from(own).unwrap_or(0));

    program.load(R1, layout.inode);
    program.store(at::INODE, R1);
    program.load(R1, layout.device);
    program.store(at::DEVICE, R1);
    program.map(R1, maps.files);
    program.address(R2, STACK);
    program.call(Call::MapLookup);
    program.end_if(R0, 0);

    extent(&mut program, layout);
    program.store(at::WHO, Who);
    program.call(Call::KtimeGetNs);
    program.store(at::TIME, R0);
    program.call(Call::GetSmpProcessorId);
    program.store_half(at::CPU, R0);
    program.set(R1, layout.point as i32);
    program.store_half(at::POINT, R1);
    program.map(R1, maps.ring);
    program.address(R2, STACK);
    program.set(R3, -i32::from(STACK));
    program.set(R4, 0);
    program.call(Call::RingbufOutput);
    program.end_if(R0, 0);

    program.set(R1, 0);
    program.put(0x7b, Stack, R1, ZERO, 0);
    program.map(R1, maps.lost);
    program.address(R2, ZERO);
    program.call(Call::MapLookup);
    program.end_if(R0, 0);
    program.set(R1, 1);
    // An atomic addition of eight bytes.
    program.put(0xdb, R0, R1, 0, 0);
    program.finish()
}

/// The first page and the last one.
fn extent(program: &mut Program, layout: &Layout) {
    program.load(R1, layout.first);
    program.store(at::FIRST, R1);
    match layout.extent {
        Extent::One => {}
        Extent::Last(field) => program.load(R1, field),
        Extent::Order(field) => {
            program.load(R2, field);
            program.set(R3, 1);
            program.put(0x6f, R3, R2, 0, 0);
            program.put(0x0f, R1, R3, 0, 0);
            program.add(R1, -1);
        }
    }
    program.store(at::LAST, R1);
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
    let number = usize::try_from(half(bytes, place(at::POINT))?).ok()?;
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
    };

    #[test]
    fn every_jump_leads_to_the_end() {
        for layout in layouts() {
            let code = program(&layout, MAPS, 1234);
            let bytes: Vec<_> = code.iter().map(|code| code.to_le_bytes()).collect();
            let jumps = bytes.iter().enumerate().filter(|(_, code)| code[0] == 0x15);
            let mut count = 0;
            for (at, code) in jumps {
                let far = usize::from(u16::from_le_bytes([code[2], code[3]]));
                assert_eq!(at + 1 + far, bytes.len() - 2, "where the result is set");
                count += 1;
            }
            assert_eq!(count, 4);
            assert_eq!(code[code.len() - 2..], [0xb7 | 1 << 32, 0x95]);
        }
    }

    #[test]
    fn instructions_are_the_kernels() {
        let code = program(&layouts()[0], MAPS, 1234);
        #[rustfmt::skip]
        let beginning = [
            [0xbf, 0x16, 0, 0, 0, 0, 0, 0],             // r6 = r1
            [0x85, 0, 0, 0, 14, 0, 0, 0],               // call get_current_pid_tgid
            [0xbf, 0x07, 0, 0, 0, 0, 0, 0],             // r7 = r0
            [0x77, 0, 0, 0, 32, 0, 0, 0],               // r0 >>= 32
            [0x15, 0, 39, 0, 0xd2, 4, 0, 0],            // if r0 == 1234 goto end
            [0x79, 0x61, 8, 0, 0, 0, 0, 0],             // r1 = *(u64 *)(r6 + 8)
            [0x7b, 0x1a, 0xc8, 0xff, 0, 0, 0, 0],       // *(u64 *)(r10 - 56) = r1
            [0x61, 0x61, 16, 0, 0, 0, 0, 0],            // r1 = *(u32 *)(r6 + 16)
            [0x7b, 0x1a, 0xd0, 0xff, 0, 0, 0, 0],       // *(u64 *)(r10 - 48) = r1
            [0x18, 0x11, 0, 0, 5, 0, 0, 0],             // r1 = the map of descriptor 5
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0xbf, 0xa2, 0, 0, 0, 0, 0, 0],             // r2 = r10
            [0x07, 0x02, 0, 0, 0xc8, 0xff, 0xff, 0xff], // r2 += -56
            [0x85, 0, 0, 0, 1, 0, 0, 0],                // call map_lookup_elem
        ];
        for (at, expected) in beginning.iter().enumerate() {
            assert_eq!(code[at].to_le_bytes(), *expected, "instruction {at}");
        }
    }

    #[test]
    fn the_stack_has_room_for_a_record() {
        assert_eq!(RECORD, usize::from(STACK.unsigned_abs()));
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
        };
        assert_eq!(decode(&bytes), Some(expected));
        assert_eq!(key(key_of), bytes[..KEY]);
        assert_eq!(decode(&bytes[..RECORD - 1]), None);
        let mut other = bytes;
        other[52] = 4;
        assert_eq!(decode(&other), None, "no such point");
    }
}

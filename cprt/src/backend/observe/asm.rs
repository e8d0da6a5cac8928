//! An assembler for programs in the kernel. Pure.
//!
//! Jumps lead only forward, to labels that are set later.

use super::reach::Reach;
use super::record::Field;

/// Registers. Calls take their arguments in the first ones and clobber them; the result is in R0.
#[derive(Clone, Copy, Debug)]
pub(super) enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    /// By our convention: the tracepoint's arguments.
    Context = 6,
    /// By our convention: process and thread.
    Who,
    /// By our convention: this CPU's run.
    Run,
    /// By our convention: the control values.
    Control,
    /// The end of the stack.
    Stack = 10,
}

use Register::{Context, R0, R1, R2, Stack};

/// Functions of the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) enum HelperCall {
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    KtimeGetNs = 5,
    GetSmpProcessorId = 8,
    GetCurrentPidTgid = 14,
    GetCurrentTask = 35,
    ProbeReadKernel = 113,
    GetNsCurrentPidTgid = 120,
    RingbufOutput = 130,
    GetCurrentTaskBtf = 158,
    TaskPtRegs = 175,
}

/// Comparisons of registers, unsigned.
#[derive(Clone, Copy, Debug)]
pub(super) enum Is {
    Greater = 0x2d,
    NotLess = 0x3d,
    Not = 0x5d,
    NotGreater = 0xbd,
}

/// A target for jumps, further on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Label {
    End,
    Own,
    Foreign,
    Listed,
    Small,
    Next,
    Whole,
    Other,
    Tell,
    Flushed,
    Positioned,
    Known,
    Unknown,
    Told,
    Numbered,
    Further,
    Found,
}

/// A program being assembled: the distances of jumps are not known yet.
#[derive(Debug, Default)]
pub(super) struct Program {
    code: Vec<u64>,
    jumps: Vec<(usize, Label)>,
}

impl Program {
    pub(super) fn put(&mut self, op: u8, to: Register, from: Register, offset: i16, number: i32) {
        let registers = to as u8 | (from as u8) << 4;
        let [low, high] = offset.to_le_bytes();
        let [a, b, c, d] = number.to_le_bytes();
        self.code
            .push(u64::from_le_bytes([op, registers, low, high, a, b, c, d]));
    }

    pub(super) fn call(&mut self, function: HelperCall) {
        self.put(0x85, R0, R0, 0, function as i32);
    }

    /// Calls a kernel function by the number of its type.
    pub(super) fn call_by_type(&mut self, function: i32) {
        // R2 in the source field says that the number is one of a type.
        self.put(0x85, R0, R2, 0, function);
    }

    pub(super) fn copy(&mut self, to: Register, from: Register) {
        self.put(0xbf, to, from, 0, 0);
    }

    pub(super) fn set(&mut self, to: Register, number: i32) {
        self.put(0xb7, to, R0, 0, number);
    }

    pub(super) fn add(&mut self, to: Register, number: i32) {
        self.put(0x07, to, R0, 0, number);
    }

    pub(super) fn add_register(&mut self, to: Register, from: Register) {
        self.put(0x0f, to, from, 0, 0);
    }

    pub(super) fn subtract(&mut self, to: Register, from: Register) {
        self.put(0x1f, to, from, 0, 0);
    }

    pub(super) fn and(&mut self, to: Register, number: i32) {
        self.put(0x57, to, R0, 0, number);
    }

    pub(super) fn shift_left(&mut self, to: Register, bits: i32) {
        self.put(0x67, to, R0, 0, bits);
    }

    pub(super) fn shift_right(&mut self, to: Register, bits: i32) {
        self.put(0x77, to, R0, 0, bits);
    }

    pub(super) fn shift_left_by(&mut self, to: Register, from: Register) {
        self.put(0x6f, to, from, 0, 0);
    }

    pub(super) fn shift_right_by(&mut self, to: Register, from: Register) {
        self.put(0x7f, to, from, 0, 0);
    }

    /// Reads a value of the tracepoint.
    pub(super) fn reach(&mut self, to: Register, reach: &Reach) {
        self.follow(to, Context, &reach.0);
    }

    /// Loads these fields in turn, each from where the previous one points to.
    pub(super) fn follow(&mut self, to: Register, mut from: Register, fields: &[Field]) {
        for &field in fields {
            self.load_field(to, from, field);
            from = to;
        }
    }

    pub(super) fn load_field(&mut self, to: Register, from: Register, field: Field) {
        let op = match field.size {
            1 => 0x71,
            2 => 0x69,
            4 => 0x61,
            _ => 0x79,
        };
        let offset = i16::try_from(field.offset).unwrap_or(i16::MAX);
        self.put(op, to, from, offset, 0);
    }

    /// Reads eight bytes.
    pub(super) fn load(&mut self, to: Register, from: Register, at: i16) {
        self.put(0x79, to, from, at, 0);
    }

    /// Reads four bytes.
    pub(super) fn load_half(&mut self, to: Register, from: Register, at: i16) {
        self.put(0x61, to, from, at, 0);
    }

    /// Writes eight bytes.
    pub(super) fn store(&mut self, to: Register, at: i16, from: Register) {
        self.put(0x7b, to, from, at, 0);
    }

    /// Writes four bytes.
    pub(super) fn store_half(&mut self, to: Register, at: i16, from: Register) {
        self.put(0x63, to, from, at, 0);
    }

    /// Loads a map, by its descriptor.
    pub(super) fn map(&mut self, to: Register, fd: i32) {
        self.wide(to, 1, fd);
    }

    /// Loads the address of a map's only value.
    pub(super) fn value_of(&mut self, to: Register, fd: i32) {
        self.wide(to, 2, fd);
    }

    /// Two instructions long; `what` says what the number stands for.
    fn wide(&mut self, to: Register, what: u8, fd: i32) {
        let [a, b, c, d] = fd.to_le_bytes();
        let registers = to as u8 | what << 4;
        self.code
            .push(u64::from_le_bytes([0x18, registers, 0, 0, a, b, c, d]));
        self.code.push(0);
    }

    /// Loads an eight-byte number.
    pub(super) fn set_long(&mut self, to: Register, number: u64) {
        self.code
            .push(u64::from_le_bytes([0x18, to as u8, 0, 0, 0, 0, 0, 0]) | (number << 32));
        self.code.push(number >> 32 << 32);
    }

    pub(super) fn address(&mut self, to: Register, on_stack: i16) {
        self.copy(to, Stack);
        self.add(to, on_stack.into());
    }

    /// Looks up an element of an array, by its number stored at that place of the stack; ends if there is none.
    pub(super) fn element(&mut self, map: i32, number: i32, index: i16) {
        self.set(R1, number);
        self.store(Stack, index, R1);
        self.map(R1, map);
        self.address(R2, index);
        self.call(HelperCall::MapLookup);
        self.jump_if_number(R0, 0, Label::End);
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x05, R0, R0, 0, 0);
    }

    pub(super) fn jump_if(&mut self, one: Register, is: Is, other: Register, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(is as u8, one, other, 0, 0);
    }

    pub(super) fn jump_if_not_number(&mut self, register: Register, is: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x55, register, R0, 0, is);
    }

    pub(super) fn jump_if_number(&mut self, register: Register, is: i32, to: Label) {
        self.jumps.push((self.code.len(), to));
        self.put(0x15, register, R0, 0, is);
    }

    /// Sets a label here.
    pub(super) fn here(&mut self, label: Label) {
        let here = self.code.len();
        let code = &mut self.code;
        self.jumps.retain(|&(at, to)| {
            if to == label {
                // Counted from the instruction after the jump.
                let far = u64::try_from(here - at - 1).unwrap_or(0);
                code[at] |= (far & 0x7fff) << 16;
            }
            to != label
        });
    }

    pub(super) fn finish(mut self) -> Vec<u64> {
        self.here(Label::End);
        // The result 1 lets other listeners at this tracepoint receive it as well.
        self.code.push(0xb7 | 1 << 32);
        self.code.push(0x95);
        self.code
    }
}

//! Assembles the instructions that find the reader, by its numbers in our PID namespace. Pure.
//!
//! In the first namespace these are the kernel's own. For another one, as in a container, the kernel has a function
//! for processes of exactly that namespace; a process of a container within ours has a list of its numbers,
//! one for each namespace that it is in:
//!
//! ```text
//! if (!get_ns_current_pid_tgid(<ours>, &who)) goto known;
//! struct pid *thread = current->thread_pid, *process = current->signal->pids[PIDTYPE_TGID];
//! for (level = thread->level - 1; level >= 0; level--)      // unrolled, WITHIN times
//!     if (thread->numbers[level].ns->ns.inum == <ours>) {
//!         who = process->numbers[level].nr << 32 | thread->numbers[level].nr; goto known;
//!     }
//! return;
//! ```
//!
//! A process outside our namespace is not reported: it has no number there.

use super::asm::Register::{Context, R0, R1, R2, R3, R4, Stack, Who};
use super::asm::{HelperCall, Is, Label, Program};
use super::record::Field;
use crate::sys::btf::Btf;

/// How many levels of containers within containers are searched.
const WITHIN: i32 = 4;
/// Bytes of one entry of that list: a number and its namespace.
const NUMBER: i32 = 16;

/// Places on the stack for the kernel's pointers and the numbers read from there. All of it is free until a run is
/// looked at.
const THREAD: i16 = -136;
const PROCESS: i16 = THREAD + 8;
const LEVEL: i16 = THREAD + 16;
const FOUND: i16 = THREAD + 24;
const NAMESPACE: i16 = FOUND + 8;
const INODE: i16 = THREAD + 40;
/// The key of an array or a table.
const INDEX: i16 = -72;
/// The child's number, in the programs that follow forks.
const CHILD: i16 = -64;

/// The numbers that identify processes: those of our PID namespace. Processes outside it are not reported; all
/// processes are in the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    First,
    /// The namespace's file, and how to find processes of namespaces within it, where the kernel has type information.
    Of {
        device: u64,
        inode: u64,
        walk: Option<Walk>,
    },
}

/// Offsets of the kernel's numbers of processes, in bytes from the beginning of each structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    /// In `task_struct`: the thread's `pid`, and the structure that all threads of its process share.
    thread: i32,
    signal: i32,
    /// In `signal_struct`: the process's `pid`.
    process: i32,
    /// In `pid`: how many namespaces deep it is, and its numbers.
    level: i32,
    numbers: i32,
    /// In `pid_namespace`: the inode number of its file.
    inode: i32,
}

impl Walk {
    /// `None` if this kernel has other structures.
    pub(super) fn of(btf: &Btf) -> Option<Self> {
        /// The index of the process's `pid` among the kinds of `pid` that a thread has.
        const TGID: u32 = 1;

        let member = |structure, name| btf.member(structure, name);
        let offset = |structure, name| i32::try_from(member(structure, name)?.offset).ok();
        let is_as_here = btf.value("pid_type", "PIDTYPE_TGID")? == TGID
            && member("upid", "nr")?.offset == 0
            && i32::from(NAMESPACE - FOUND) == offset("upid", "ns")?;
        let inode = member("ns_common", "inum")?;
        let process = member("signal_struct", "pids")?.offset + 8 * TGID;
        let walk = Self {
            thread: offset("task_struct", "thread_pid")?,
            signal: offset("task_struct", "signal")?,
            process: i32::try_from(process).ok()?,
            level: offset("pid", "level")?,
            numbers: offset("pid", "numbers")?,
            inode: offset("pid_namespace", "ns")? + i32::try_from(inode.offset).ok()?,
        };
        (is_as_here && inode.size == 4).then_some(walk)
    }
}

/// The process that the program does not report, and the numbers by which it reports others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own {
    pub(super) process: u32,
    pub(super) numbering: Numbering,
}

/// The tables of processes that are reported: programs fill the one by numbers of the first PID namespace; we fill the
/// one by numbers of ours, if that is another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) processes: i32,
    pub(super) by_ours: Option<i32>,
}

/// Finds the numbers of process and thread; jumps to `to` if the process has none.
pub(super) fn who(program: &mut Program, numbering: Numbering, to: Label) {
    let Numbering::Of {
        device,
        inode,
        walk,
    } = numbering
    else {
        program.call(HelperCall::GetCurrentPidTgid);
        program.copy(Who, R0);
        return;
    };
    program.set_long(R1, device);
    program.set_long(R2, inode);
    program.address(R3, INDEX);
    program.set(R4, 8);
    program.call(HelperCall::GetNsCurrentPidTgid);
    let Some(walk) = walk else {
        program.jump_if_not_number(R0, 0, to);
        program.load(Who, Stack, INDEX);
        return;
    };
    program.jump_if_number(R0, 0, Label::Numbered);
    within(program, walk, inode, to);
    program.here(Label::Numbered);
    program.load(Who, Stack, INDEX);
    program.here(Label::Found);
}

/// Jumps to [`Label::Found`] for a process of a namespace within ours, and to `to` for any other.
fn within(program: &mut Program, walk: Walk, inode: u64, to: Label) {
    program.call(HelperCall::GetCurrentTask);
    program.copy(Who, R0);
    read(program, THREAD, 8, |it| it.copy(R3, Who), walk.thread);
    read(program, PROCESS, 8, |it| it.copy(R3, Who), walk.signal);
    read(program, PROCESS, 8, kept(PROCESS), walk.process);
    read(program, LEVEL, 4, kept(THREAD), walk.level);
    for up in 1..=WITHIN {
        program.load(R1, Stack, LEVEL);
        program.set(R2, up);
        program.jump_if(R2, Is::Greater, R1, to);
        number(program, THREAD, walk, up);
        read(program, INODE, 4, kept(NAMESPACE), walk.inode);
        program.load(R1, Stack, INODE);
        program.set_long(R2, inode);
        program.jump_if(R1, Is::Not, R2, Label::Further);
        program.load_half(Who, Stack, FOUND);
        number(program, PROCESS, walk, up);
        program.load_half(R1, Stack, FOUND);
        program.shift_left(R1, 32);
        program.add_register(Who, R1);
        program.jump(Label::Found);
        program.here(Label::Further);
    }
    program.jump(to);
}

/// Reads the number of a `pid` in the namespace that is `up` levels above its own.
fn number(program: &mut Program, pid: i16, walk: Walk, up: i32) {
    let address = |program: &mut Program| {
        program.load(R3, Stack, LEVEL);
        program.add(R3, -up);
        program.shift_left(R3, NUMBER.trailing_zeros().cast_signed());
        program.load(R1, Stack, pid);
        program.add_register(R3, R1);
    };
    read(program, FOUND, NUMBER, address, walk.numbers);
}

/// An address that has been read.
fn kept(at: i16) -> impl Fn(&mut Program) {
    move |program| program.load(R3, Stack, at)
}

/// Copies bytes of the kernel to the stack, from an offset behind an address.
fn read(
    program: &mut Program,
    to: i16,
    bytes: i32,
    address: impl FnOnce(&mut Program),
    offset: i32,
) {
    address(program);
    // What is not read is 0.
    program.set(R1, 0);
    program.store(Stack, to, R1);
    program.add(R3, offset);
    program.address(R1, to);
    program.set(R2, bytes);
    program.call(HelperCall::ProbeReadKernel);
}

/// Jumps to `to` if it is this process.
pub(super) fn jump_if_own(program: &mut Program, own: Own, to: Label) {
    program.copy(R1, Who);
    // The process is in the upper half.
    program.shift_right(R1, 32);
    program.jump_if_number(R1, i32::try_from(own.process).unwrap_or(0), to);
}

/// Finds the process, and ends unless it is listed, or, if `own_too`, is this one.
pub(super) fn listed(program: &mut Program, listed: Listed, own: Own, own_too: bool) {
    if listed.by_ours.is_none() && !own_too {
        jump_if_listed(program, listed.processes, Label::Listed);
        program.jump(Label::End);
        program.here(Label::Listed);
        who(program, own.numbering, Label::End);
        return;
    }
    jump_if_listed(program, listed.processes, Label::Listed);
    who(program, own.numbering, Label::End);
    if own_too {
        jump_if_own(program, own, Label::Known);
    }
    if let Some(by_ours) = listed.by_ours {
        jump_if_ours(program, by_ours, Label::Known);
    }
    program.jump(Label::End);
    program.here(Label::Listed);
    who(program, own.numbering, Label::End);
    program.here(Label::Known);
}

/// Jumps if the process is in a table, by its number in the first PID namespace.
fn jump_if_listed(program: &mut Program, processes: i32, to: Label) {
    program.call(HelperCall::GetCurrentPidTgid);
    program.shift_right(R0, 32);
    program.store(Stack, INDEX, R0);
    look_up(program, processes, to);
}

/// The same by its number in ours.
fn jump_if_ours(program: &mut Program, processes: i32, to: Label) {
    program.copy(R1, Who);
    program.shift_right(R1, 32);
    program.store(Stack, INDEX, R1);
    look_up(program, processes, to);
}

fn look_up(program: &mut Program, processes: i32, to: Label) {
    program.map(R1, processes);
    program.address(R2, INDEX);
    program.call(HelperCall::MapLookup);
    program.jump_if_not_number(R0, 0, to);
}

/// The program that follows forks: it lists the children of `parent`, given by its number in our PID namespace, and
/// theirs. The kernel reuses numbers, so a new process that is not a child of these is removed.
pub(super) fn following(child: Field, listed: Listed, parent: Own) -> Vec<u64> {
    let mut program = Program::default();
    program.copy(Context, R1);
    program.load_field(R1, Context, child);
    program.store(Stack, CHILD, R1);
    jump_if_listed(&mut program, listed.processes, Label::Listed);
    who(&mut program, parent.numbering, Label::Other);
    jump_if_own(&mut program, parent, Label::Listed);
    if let Some(by_ours) = listed.by_ours {
        jump_if_ours(&mut program, by_ours, Label::Listed);
    }
    program.here(Label::Other);
    program.map(R1, listed.processes);
    program.address(R2, CHILD);
    program.call(HelperCall::MapDelete);
    program.jump(Label::End);
    program.here(Label::Listed);
    program.set(R1, 1);
    program.store(Stack, INDEX, R1);
    program.map(R1, listed.processes);
    program.address(R2, CHILD);
    program.address(R3, INDEX);
    program.set(R4, 0);
    program.call(HelperCall::MapUpdate);
    program.finish()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The numbering of a conceivable kernel.
    pub(in super::super) const CONTAINED: Numbering = Numbering::Of {
        device: 4,
        inode: 0xf000_0001,
        walk: Some(Walk {
            thread: 2000,
            signal: 2100,
            process: 400,
            level: 4,
            numbers: 96,
            inode: 120,
        }),
    };

    /// Counts the jumps to the end, and checks that each jump leads forward, and none of them past the end.
    pub(in super::super) fn jumps_to_the_end(code: &[u64]) -> usize {
        let bytes: Vec<_> = code.iter().map(|code| code.to_le_bytes()).collect();
        let is_jump = |code: &[u8; 8]| code[0] & 7 == 5 && !matches!(code[0], 0x85 | 0x95);
        // The second halves of wide instructions are zeros, which are not jumps.
        let jumps = bytes.iter().enumerate().filter(|(_, code)| is_jump(code));
        let mut ends = 0;
        for (at, code) in jumps {
            let far = usize::from(u16::from_le_bytes([code[2], code[3]]));
            assert!(far > 0 && at + 1 + far <= bytes.len() - 2, "{at}: {far}");
            ends += usize::from(at + 1 + far == bytes.len() - 2);
        }
        assert_eq!(code[code.len() - 2..], [0xb7 | 1 << 32, 0x95]);
        ends
    }

    #[test]
    fn forks_are_followed_by_either_numbers() {
        let child = Field { offset: 8, size: 4 };
        for (numbering, by_ours) in [(Numbering::First, None), (CONTAINED, Some(6))] {
            let listed = Listed {
                processes: 5,
                by_ours,
            };
            let own = Own {
                process: 7,
                numbering,
            };
            assert_eq!(jumps_to_the_end(&following(child, listed, own)), 1);
        }
    }

    #[test]
    fn kernel_btf_yields_plausible_pid_offsets() {
        let Ok(btf) = Btf::kernel() else {
            return crate::sys::testing::skip("this kernel has no type information (BTF)");
        };
        let walk = Walk::of(&btf).expect("its lists of numbers");
        assert!(walk.thread > 0 && walk.process >= 8 && walk.numbers > walk.level);
    }
}

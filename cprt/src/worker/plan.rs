//! Checks each range that a policy names against its file. Pure.
//!
//! A policy may name anything. Ranges of anything but a regular file of the mount are left out, and so are
//! ranges that begin beyond the end of their file; those that reach beyond it are cut off there.

use std::collections::HashMap;

use ppc::{FileId, Io, IoFlags, Op};

use crate::backend::Span;
use crate::worker::evictor::DropRange;
use crate::worker::loader::LoadRange;

/// The look-ups that a plan's checks need.
pub(crate) trait World {
    /// Bytes of a regular file; `None` if it is none.
    fn size(&mut self, file: FileId) -> Option<u64>;
    /// The group of loader threads for an accelerator and a process.
    fn group(&mut self, xpu: Option<ppc::Xpu>, process: Option<u32>) -> usize;
    /// The process whose memory cgroup pays for what this process will read.
    fn charge(&mut self, process: Option<u32>) -> Option<u32>;
}

/// The checked ranges of a plan for one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sound<T> {
    pub(crate) ranges: Vec<T>,
    /// Ranges that were left out.
    pub(crate) refused: u64,
}

impl<T> Sound<T> {
    /// Ranges that the policy named.
    pub(crate) fn named(&self) -> u64 {
        self.ranges.len() as u64 + self.refused
    }
}

/// Checks the ranges to load.
pub(crate) fn loads(ios: &[Io], world: &mut dyn World) -> Sound<(usize, LoadRange)> {
    check(Op::Load, ios, world, |io, span, world| {
        let range = LoadRange {
            span,
            process: io.process.unwrap_or(0),
            priority: io.priority,
            charge: world.charge(io.process),
            large: io.flags.contain(IoFlags::LARGE),
            hold: io.flags.contain(IoFlags::HOLD),
            replaces: io.flags.contain(IoFlags::REPLACE),
        };
        (world.group(io.xpu, io.process), range)
    })
}

/// Checks the ranges to drop.
pub(crate) fn drops(ios: &[Io], world: &mut dyn World) -> Sound<DropRange> {
    check(Op::Drop, ios, world, |io, span, _| DropRange {
        span,
        unmapped: io.flags.contain(IoFlags::UNMAPPED),
    })
}

/// Checks the ranges whose loads are cancelled.
pub(crate) fn cancels(ios: &[Io], world: &mut dyn World) -> Sound<Span> {
    check(Op::Cancel, ios, world, |_, span, _| span)
}

fn check<T>(
    op: Op,
    ios: &[Io],
    world: &mut dyn World,
    make: impl Fn(&Io, Span, &mut dyn World) -> T,
) -> Sound<T> {
    let mut sizes = HashMap::new();
    let mut sound = Sound {
        ranges: Vec::new(),
        refused: 0,
    };
    for io in ios.iter().filter(|io| io.op == op) {
        let size = *sizes
            .entry(io.file)
            .or_insert_with(|| world.size(io.file).unwrap_or(0));
        let length = size.saturating_sub(io.offset).min(io.length);
        if length == 0 {
            sound.refused += 1;
            continue;
        }
        let span = Span {
            file: io.file,
            offset: io.offset,
            length,
        };
        sound.ranges.push(make(io, span, world));
    }
    sound
}

#[cfg(test)]
mod tests {
    use ppc::Xpu;

    use super::*;

    struct Fake {
        asked: u32,
    }

    impl World for Fake {
        fn size(&mut self, file: FileId) -> Option<u64> {
            self.asked += 1;
            (file == FileId(1)).then_some(100)
        }

        fn group(&mut self, xpu: Option<Xpu>, _: Option<u32>) -> usize {
            xpu.map_or(0, |xpu| usize::from(xpu.0) + 1)
        }

        fn charge(&mut self, process: Option<u32>) -> Option<u32> {
            process
        }
    }

    #[test]
    fn ranges_are_cut_to_the_file_and_others_left_out() {
        let mut world = Fake { asked: 0 };
        let ios = [
            Io::load(FileId(1), ..10),
            Io::load(FileId(1), 90..).by(7).near(Xpu(2)),
            Io::load(FileId(1), 100..101),
            Io::load(FileId(1), i64::MAX as u64 - 1..),
            Io::load(FileId(2), ..10),
            Io::load(FileId(2), ..10),
        ];
        let sound = loads(&ios, &mut world);
        let seen: Vec<_> = sound
            .ranges
            .iter()
            .map(|(group, range)| (*group, range.span.offset, range.span.length, range.charge))
            .collect();
        assert_eq!(seen, [(0, 0, 10, None), (3, 90, 10, Some(7))]);
        assert_eq!(sound.refused, 4);
        assert_eq!(world.asked, 2, "each file once");
    }

    #[test]
    fn drops_are_checked_alike() {
        let ios = [
            Io::drop(FileId(1), 50..).unmapped(),
            Io::drop(FileId(9), ..),
        ];
        let sound = drops(&ios, &mut Fake { asked: 0 });
        assert_eq!((sound.named(), sound.refused), (2, 1));
        assert_eq!(sound.ranges[0].span.length, 50);
        assert!(sound.ranges[0].unmapped);
    }

    #[test]
    fn each_operation_has_its_own_ranges() {
        let file = FileId(1);
        let ios = [
            Io::load(file, ..10),
            Io::drop(file, 10..30),
            Io::cancel(file, 30..60),
            Io::load(file, 60..100),
        ];
        let mut world = Fake { asked: 0 };
        let loaded: Vec<_> = loads(&ios, &mut world).ranges;
        let loaded: Vec<_> = loaded.iter().map(|(_, it)| it.span.length).collect();
        let dropped = drops(&ios, &mut world).ranges;
        let dropped: Vec<_> = dropped.iter().map(|it| it.span.length).collect();
        let cancelled = cancels(&ios, &mut world).ranges;
        let cancelled: Vec<_> = cancelled.iter().map(|span| span.length).collect();
        assert_eq!(
            (loaded, dropped, cancelled),
            (vec![10, 40], vec![20], vec![30])
        );
    }

    #[test]
    fn each_load_flag_sets_only_its_own_field() {
        let file = FileId(1);
        let ios = [
            Io::load(file, ..10).by(7),
            Io::load(file, ..10).by(7).replace(),
            Io::load(file, ..10).by(7).hold(),
            Io::load(file, ..10).by(7).large(),
        ];
        let sound = loads(&ios, &mut Fake { asked: 0 }).ranges;
        let flags: Vec<_> = sound
            .iter()
            .map(|(_, it)| (it.replaces, it.hold, it.large))
            .collect();
        assert_eq!(
            flags,
            [
                (false, false, false),
                (true, false, false),
                (false, true, false),
                (false, false, true)
            ]
        );
    }
}

//! From what a policy names to what is done: every range is checked against its file. Pure.
//!
//! A policy may name anything. What is no regular file of the mount is left out, as is what begins
//! beyond its end; what reaches beyond it is cut off there.

use std::collections::HashMap;

use ppc::{FileId, Io};

use crate::backend::Span;
use crate::worker::evictor::Drop;
use crate::worker::loader::Range;

/// What is known of the world while a plan is checked.
pub(crate) trait World {
    /// Bytes of a regular file; `None` if it is none.
    fn size(&mut self, file: FileId) -> Option<u64>;
    /// The group of loader threads for an accelerator and a process.
    fn group(&mut self, xpu: Option<ppc::Xpu>, process: Option<u32>) -> usize;
    /// Whose memory cgroup pays for what this process will read.
    fn charge(&mut self, process: Option<u32>) -> Option<u32>;
}

/// A plan, found sound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sound<T> {
    pub(crate) ranges: Vec<T>,
    /// How many were left out.
    pub(crate) refused: u64,
}

/// Checks what is to be loaded.
pub(crate) fn loads(ios: &[Io], world: &mut dyn World) -> Sound<(usize, Range)> {
    check(ios, world, |io, span, world| {
        let range = Range {
            span,
            process: io.process.unwrap_or(0),
            priority: io.priority,
            charge: world.charge(io.process),
            large: io.large,
            hold: io.hold,
            more: io.more,
        };
        (world.group(io.xpu, io.process), range)
    })
}

/// Checks what is to be evicted.
pub(crate) fn drops(ios: &[Io], world: &mut dyn World) -> Sound<Drop> {
    check(ios, world, |io, span, _| Drop {
        span,
        unmapped: io.unmapped,
    })
}

fn check<T>(
    ios: &[Io],
    world: &mut dyn World,
    make: impl Fn(&Io, Span, &mut dyn World) -> T,
) -> Sound<T> {
    let mut sizes = HashMap::new();
    let mut sound = Sound {
        ranges: Vec::with_capacity(ios.len()),
        refused: 0,
    };
    for io in ios {
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
            Io::new(FileId(1), 0, 10),
            Io::to_end(FileId(1), 90).by(7).near(Some(Xpu(2))),
            Io::new(FileId(1), 100, 1),
            Io::new(FileId(1), i64::MAX as u64 - 1, 1),
            Io::new(FileId(2), 0, 10),
            Io::new(FileId(2), 0, 10),
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
    fn evictions_are_checked_alike() {
        let mut io = Io::to_end(FileId(1), 50);
        io.unmapped = true;
        let sound = drops(&[io, Io::to_end(FileId(9), 0)], &mut Fake { asked: 0 });
        assert_eq!((sound.ranges.len(), sound.refused), (1, 1));
        assert_eq!(sound.ranges[0].span.length, 50);
        assert!(sound.ranges[0].unmapped);
    }
}

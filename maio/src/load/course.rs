//! Which worker a process is taken for, by what it reads. Pure.

use std::sync::Arc;

use super::{Load, PAGE};
use crate::extent::Extent;
use crate::window::{Access, Expectation, TABLE};
use crate::workers::Assignment;

/// How many pages of another worker's course a reader must read to be taken for that worker.
const COURSE: u64 = (4 << 20) / PAGE;
/// How many bytes of an order a process must read to keep it, even if it reads something else now and then.
const SURE: u64 = 64 << 20;

impl Load {
    /// Follows a process to these pages; returns whether any worker was expected to read them.
    pub(super) fn follow(
        &mut self,
        process: u32,
        extent: &Extent,
        step: Access,
        read: u64,
    ) -> bool {
        let place = self.workers.member(process).and_then(|member| member.place);
        if let Some((group, reader)) = place {
            let heard = self.window.hear(reader, extent, step, read);
            let sure = self.window.progress(reader).0 * PAGE > SURE;
            if self.stays(process, group, heard, sure, extent) {
                return heard != Expectation::Unexpected;
            }
            self.workers.unassign(process);
            if reader >= self.workers.groups() {
                // Pieces would be held for it until the end of the load.
                self.window.leave(reader);
            }
        }
        let page = match step {
            Access::Miss => extent.first,
            Access::Read | Access::Beacon => extent.end().saturating_sub(1),
        };
        let Some(piece) = self.pieces.at(extent.file, page) else {
            self.window.count_unexpected(extent);
            return false;
        };
        if self.is_small(extent.file) {
            // A process that reads the configuration need not be a worker.
            return true;
        }
        let pieces = Arc::clone(&self.pieces);
        let near = match step {
            // A fault also maps neighbouring pages, which may be other workers' parts.
            Access::Beacon => pieces.up_to(piece, page.saturating_sub(TABLE)),
            Access::Miss | Access::Read => piece..piece + 1,
        };
        let fits = |group| {
            let order = pieces.order(group);
            order.is_some_and(|it| near.clone().any(|piece| it.place(piece).is_some()))
        };
        let (group, reader) = match self.workers.choose(process, fits) {
            Some(Assignment::Expected(group)) => (group, Some(group)),
            Some(Assignment::Extra(group)) => (group, self.window.join(group)),
            None => return true,
        };
        if let Some(reader) = reader {
            self.workers.assign(process, group, reader);
            self.window.hear(reader, extent, step, read);
        }
        true
    }

    /// Whether a process is still taken for the worker of a group; `sure` if it has come far in it. One that has a
    /// rank, or has come far, may look at another worker's part; after a few MiB of that it is taken for that worker.
    fn stays(
        &mut self,
        process: u32,
        group: usize,
        heard: Expectation,
        sure: bool,
        extent: &Extent,
    ) -> bool {
        let ranked = self.workers.ranked(process);
        let Some(member) = self.workers.member(process) else {
            return true;
        };
        let pages = u64::from(extent.pages);
        let by_rank = ranked.is_some() && !member.by_course;
        let elsewhere = ranked.is_some_and(|it| it != group);
        if heard == Expectation::Others {
            member.strayed += pages;
        } else {
            member.strayed = member.strayed.saturating_sub(pages);
        }
        let strays = heard == Expectation::Others && (by_rank || sure);
        let leaves =
            heard == Expectation::Others && (member.strayed > COURSE || !(by_rank || sure));
        if leaves {
            member.by_course |= by_rank;
            member.strayed = 0;
        }
        if strays || (elsewhere && heard != Expectation::Unexpected) {
            self.off_course += pages;
        }
        !leaves
    }
}

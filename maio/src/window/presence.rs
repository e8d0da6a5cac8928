//! Readers that join, leave and resume. Pure.

use std::sync::Arc;

use super::cache::MOST_READERS;
use super::{Reader, Window};

impl Window {
    /// Adds a reader of a group's order, from the beginning; returns its number, unless there are
    /// too many.
    pub(crate) fn join(&mut self, group: usize) -> Option<usize> {
        let order = Arc::clone(self.pieces.order(group)?);
        if self.readers.len() >= MOST_READERS {
            return None;
        }
        self.readers.push(Reader::new(order));
        let number = self.readers.len() - 1;
        self.wait_for(number, 0);
        Some(number)
    }

    /// A reader is not expected to read any more.
    pub(crate) fn leave(&mut self, number: usize) {
        let Some(reader) = self.readers.get_mut(number).filter(|reader| !reader.gone) else {
            return;
        };
        reader.gone = true;
        self.leave_return(number);
        if let Some(loose) = &self.readers[number].loose {
            return loose.needed().for_each(|piece| self.cache.release(piece));
        }
        self.pass(number, usize::MAX);
    }

    /// A reader that has left continues where it was.
    pub(crate) fn resume(&mut self, number: usize) {
        let Some(reader) = self.readers.get_mut(number).filter(|reader| reader.gone) else {
            return;
        };
        reader.gone = false;
        if let Some(loose) = &mut reader.loose {
            loose.restart();
            return self.cache.need(loose.needed());
        }
        reader.issued = reader.front;
        reader.passed = reader.front;
        reader.instead = true;
        let from = reader.front;
        self.wait_for(number, from);
    }

    /// From a place on, keeps the pieces of this reader until it has passed them, and loads dropped ones
    /// once more.
    pub(super) fn wait_for(&mut self, number: usize, from: usize) {
        let order = &self.readers[number].order;
        let pieces = (from..order.len()).filter_map(|place| order.piece(place));
        self.cache.need(pieces);
    }
}

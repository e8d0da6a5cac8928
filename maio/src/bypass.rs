//! Whether the readers of a model bypass the page cache. Pure.
//!
//! An open with `O_DIRECT` suggests it, but proves nothing: some loaders open a file like that only to probe support,
//! and read it through the page cache afterwards. So nothing is loaded after such an open until more of the weights has
//! come through the page cache than the headers of files and the kernel's readahead after them.

use crate::extent::PAGE;

/// The fraction of the model, within bounds in pages, from which on reads are more than headers.
const PART: u64 = 16;
const LEAST: u64 = (16 << 20) / PAGE;
const MOST: u64 = (64 << 20) / PAGE;

/// Whether the page cache has been bypassed recently.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bypass {
    /// Pages of weights that readers got through the page cache since the last such open.
    cached: Option<u64>,
}

impl Bypass {
    /// A reader has opened weights with `O_DIRECT`.
    pub(crate) const fn suspect(&mut self) {
        if self.cached.is_none() {
            self.cached = Some(0);
        }
    }

    /// Readers got `pages` of the weights through the page cache, of a model of `total` pages.
    pub(crate) fn read_cached(&mut self, pages: u64, total: u64) {
        let Some(cached) = &mut self.cached else {
            return;
        };
        *cached = cached.saturating_add(pages);
        if *cached >= (total / PART).clamp(LEAST, MOST) {
            self.cached = None;
        }
    }

    pub(crate) const fn is_likely(self) -> bool {
        self.cached.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_counts_until_the_weights_come_through_the_page_cache() {
        let total = 1 << 18;
        let mut bypass = Bypass::default();
        bypass.read_cached(total, total);
        assert!(!bypass.is_likely());
        bypass.suspect();
        bypass.read_cached(LEAST, total);
        assert!(
            bypass.is_likely(),
            "headers, and what was read ahead of them"
        );
        bypass.suspect();
        bypass.read_cached(total / PART - LEAST, total);
        assert!(!bypass.is_likely());
        bypass.suspect();
        assert!(bypass.is_likely(), "another reader");
    }
}

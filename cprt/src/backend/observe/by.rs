//! Whether the readers of weights use `read` or mappings. Pure.

/// Smaller files are not weights: tokenizers are read in one way, and weights in another.
const WEIGHTS: u64 = 64 << 20;
/// How many bytes got by `read` make it clear that readers do not only look into headers that way.
const ENOUGH: u64 = 8 << 20;

/// The ways of reading since the wanted events changed, as they do when a load begins or ends.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct By {
    read: u64,
    maps: bool,
}

impl By {
    /// Notes that bytes of a file of that size were got by a mapping or by `read`.
    pub(super) const fn used(&mut self, maps: bool, bytes: u64, size: u64) {
        if size < WEIGHTS {
            return;
        }
        if maps {
            self.maps = true;
        } else {
            self.read = self.read.saturating_add(bytes);
        }
    }

    /// Whether it is clear that they use `read`.
    pub(super) const fn is_read(self) -> bool {
        self.read >= ENOUGH && !self.maps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_and_a_tokenizer_say_nothing_and_one_mapping_all() {
        let mut by = By::default();
        for (maps, bytes, size, expected) in [
            (false, ENOUGH - 1, WEIGHTS, false),
            (false, ENOUGH, WEIGHTS - 1, false),
            (true, ENOUGH, WEIGHTS - 1, false),
            (false, 1, WEIGHTS, true),
            (true, 1, WEIGHTS, false),
            (false, ENOUGH, WEIGHTS, false),
        ] {
            by.used(maps, bytes, size);
            assert_eq!(by.is_read(), expected, "{maps} {bytes} {size}");
        }
    }
}

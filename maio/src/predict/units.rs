//! The parts of files that are read as a whole: tensors, and files without tensors.

use std::iter;
use std::ops::Range;

use super::build::HEADERS;
use super::{Library, gguf, safetensors};

/// Finds these parts, file by file.
pub(crate) struct Units<'a> {
    library: &'a dyn Library,
    /// Bytes of headers that may still be read.
    left: u64,
}

impl<'a> Units<'a> {
    pub(crate) fn new(library: &'a dyn Library) -> Self {
        Self {
            library,
            left: HEADERS,
        }
    }

    /// The parts of a file, as ranges of bytes; none if its header is damaged.
    pub(crate) fn of(&mut self, path: &str, size: u64) -> Vec<Range<u64>> {
        let ending = path.rsplit('.').next().unwrap_or_default();
        match ending {
            "safetensors" => safetensors::header(self.library, path, size, &mut self.left)
                .map(|header| {
                    let tensors = header.tensors.into_iter().map(|tensor| tensor.bytes);
                    iter::once(0..header.end).chain(tensors).collect()
                })
                .unwrap_or_default(),
            "gguf" => gguf::layout(self.library, path, size, &mut self.left)
                .map(|layout| layout.ranges().collect())
                .unwrap_or_default(),
            _ => iter::once(0..size).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{FakeLibrary, safetensors};
    use super::*;

    #[test]
    fn tensors_headers_and_files_without_any() {
        let mut library = FakeLibrary::default();
        let blob = safetensors(&[("b", &[4]), ("a", &[2, 3])]);
        let size = blob.size;
        library.add_blob("x.safetensors", blob);
        library.add("broken.safetensors", b"no header");
        library.add("y.bin", &[0; 100]);
        let mut units = Units::new(&library);
        let found = units.of("x.safetensors", size);
        assert_eq!(found.len(), 3);
        assert_eq!((found[0].start, found[2].end), (0, size));
        assert!(found.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert!(units.of("broken.safetensors", 9).is_empty());
        assert_eq!(units.of("y.bin", 100).first(), Some(&(0..100)));
    }
}

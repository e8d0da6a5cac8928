//! The targets: parsers of untrusted input, and what must hold for any input. A target panics if it does not.

mod folder;
mod gguf;
mod safetensors;
mod shelf;
mod template;

use std::fs;
use std::hint::black_box;
use std::io;
use std::path::Path;

/// A parser, and what must hold for it.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name for `make fuzz TARGET=`.
    pub name: &'static str,
    /// Parses an input and checks the result.
    pub run: fn(&[u8]),
    /// Valid inputs, made by code.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the format, for libFuzzer's dictionary.
    pub words: &'static [&'static [u8]],
}

impl Target {
    /// The inputs that a run starts from: those made by code, and those kept in `seeds/`, on which the target
    /// once failed.
    ///
    /// # Errors
    ///
    /// A file in `seeds/` cannot be read.
    pub fn inputs(&self) -> io::Result<Vec<Vec<u8>>> {
        let mut inputs = (self.seeds)();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
        match fs::read_dir(folder.join(self.name)) {
            Ok(entries) => {
                for entry in entries {
                    inputs.push(fs::read(entry?.path())?);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(inputs)
    }
}

/// All targets but the planted faults.
pub const ALL: [Target; 4] = [
    template::TARGET,
    safetensors::TARGET,
    gguf::TARGET,
    folder::TARGET,
];

/// Faults of each kind, which every run must find.
pub const PLANTED: [Target; 3] = [
    fault("planted", planted),
    fault("slow", |_| while black_box(true) {}),
    fault("hungry", |_| drop(black_box(vec![1_u8; 1 << 30]))),
];

const fn fault(name: &'static str, run: fn(&[u8])) -> Target {
    Target {
        name,
        run,
        seeds: || vec![vec![0; 16]],
        words: &[],
    }
}

/// The target or planted fault of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<Target> {
    let all = ALL.into_iter().chain(PLANTED);
    all.into_iter().find(|target| target.name == name)
}

/// A fault behind bytes that are compared one by one and a number that cannot be guessed.
fn planted(input: &[u8]) {
    let Some((word, rest)) = input.split_first_chunk::<3>() else {
        return;
    };
    for (byte, wanted) in word.iter().zip(b"bug") {
        // Without this the compiler compares all three at once.
        if black_box(byte) != wanted {
            return;
        }
    }
    let Some((number, _)) = rest.split_first_chunk() else {
        return;
    };
    let number = u32::from_le_bytes(*number);
    assert!(number != 0x5eed_face, "the planted bug");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_accept_their_seeds() {
        for target in ALL {
            let inputs = target.inputs().expect("seeds are files");
            println!("{}: {} inputs", target.name, inputs.len());
            assert!(!inputs.is_empty(), "{}", target.name);
            for input in inputs {
                (target.run)(&input);
            }
        }
    }

    /// libFuzzer ignores longer ones.
    #[test]
    fn words_are_at_most_64_bytes() {
        for target in ALL {
            for word in target.words {
                assert!((1..=64).contains(&word.len()), "{}: {word:?}", target.name);
            }
        }
    }

    #[test]
    #[should_panic(expected = "the planted bug")]
    fn the_planted_bug_is_there() {
        planted(b"bug\xce\xfa\xed\x5e");
    }
}

//! What is run on the inputs. A target panics if something does not hold.

mod folder;
mod gguf;
mod safetensors;
mod shelf;
mod template;

use std::hint::black_box;

/// A reader of bytes of strangers, and what holds whatever they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) name: &'static str,
    pub(crate) run: fn(&[u8]),
    /// Inputs that get far, made by code.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the format.
    pub(crate) words: &'static [&'static [u8]],
}

pub(crate) const ALL: [Target; 4] = [
    template::TARGET,
    safetensors::TARGET,
    gguf::TARGET,
    folder::TARGET,
];

/// With a fault of each kind, to see that it is found and told.
pub(crate) const PLANTED: [Target; 3] = [
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

/// Of the target's, or of all that are no test of the program itself.
pub(crate) fn by_name(name: &str) -> Option<Target> {
    let all = ALL.into_iter().chain(PLANTED);
    all.into_iter().find(|target| target.name == name)
}

/// Behind bytes that are compared one by one, and a number that no luck finds.
fn planted(input: &[u8]) {
    let Some((word, rest)) = input.split_first_chunk::<3>() else {
        return;
    };
    for (byte, wanted) in word.iter().zip(b"bug") {
        // Or they would be compared all at once.
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
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Inputs that have been worth keeping: those in `seeds/` once were the end of something.
    #[test]
    fn seeds_and_what_once_was_a_crash_are_none() {
        for target in ALL {
            let mut inputs = (target.seeds)();
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds");
            if let Ok(entries) = fs::read_dir(folder.join(target.name)) {
                let read = |entry: std::io::Result<fs::DirEntry>| fs::read(entry?.path());
                let read: std::io::Result<Vec<_>> = entries.map(read).collect();
                inputs.extend(read.expect("seeds are files"));
            }
            println!("{}: {} inputs", target.name, inputs.len());
            assert!(!inputs.is_empty(), "{}", target.name);
            for input in inputs {
                (target.run)(&input);
            }
        }
    }

    #[test]
    #[should_panic(expected = "the planted bug")]
    fn the_planted_bug_is_there() {
        planted(b"bug\xce\xfa\xed\x5e");
    }
}

//! The header of a GGUF file.
//!
//! The input is a byte for the deployment, a byte for how much follows the file's beginning, and the beginning.

use super::Target;
use super::shelf::{Shelf, check, wanted};

pub(super) const TARGET: Target = Target {
    name: "gguf",
    run,
    seeds,
    words: &[
        b"GGUF\x03\0\0\0",
        b"\x11\0\0\0\0\0\0\0general.alignment\x04\0\0\0",
        b"\x08\0\0\0",
        b"\x09\0\0\0",
        b"\0\0\0\0\0\0\0\0",
    ],
};

fn run(input: &[u8]) {
    let Some(([how, behind], bytes)) = input.split_first_chunk() else {
        return;
    };
    let mut shelf = Shelf::default();
    shelf.add("model.gguf", bytes, *behind);
    check(&shelf, wanted(*how));
}

/// A key and its value, with its type.
fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&text(key), &kind.to_le_bytes()[..], value].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

/// An array of values of one type.
fn array(kind: u32, count: u64, values: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], &count.to_le_bytes(), values].concat()
}

/// The description of a tensor with two dimensions.
fn tensor(name: &str, offset: u64) -> Vec<u8> {
    let shape = [
        2_u32.to_le_bytes().as_slice(),
        &[0; 16],
        &1_u32.to_le_bytes(),
    ]
    .concat();
    [&text(name), &shape[..], &offset.to_le_bytes()].concat()
}

pub(super) fn file() -> Vec<u8> {
    let pairs = [
        pair("general.alignment", 4, &64_u32.to_le_bytes()),
        pair(
            "tokens",
            9,
            &array(8, 2, &[text("<s>"), text("</s>")].concat()),
        ),
        pair("nested", 9, &array(9, 1, &array(5, 3, &[0; 12]))),
        pair("name", 8, &text("a model")),
        pair("float", 12, &[0; 8]),
    ];
    let tensors = [tensor("b", 128), tensor("a", 0), tensor("c", 64 << 10)];
    let counts = [tensors.len() as u64, pairs.len() as u64].map(u64::to_le_bytes);
    let head = [&b"GGUF\x03\0\0\0"[..], &counts.concat()].concat();
    [head, pairs.concat(), tensors.concat()].concat()
}

fn seeds() -> Vec<Vec<u8>> {
    let seed = |size: u8, file: &[u8]| [&[0, size], file].concat();
    vec![
        seed(200, &file()),
        seed(0, &file()),
        seed(70, b"GGUF\x02\0\0\0"),
        Vec::new(),
    ]
}

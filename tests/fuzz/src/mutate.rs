//! Makes an input of others: a few small changes, of the kinds that lead readers of formats astray.

use crate::random::Random;

/// Inputs grow no longer.
pub(crate) const LONGEST: usize = 4096;

/// Lengths, counts and places that are seldom thought of; the rest of a number's bytes are cut off.
const NUMBERS: [u64; 20] = [
    0,
    1,
    2,
    7,
    8,
    16,
    64,
    127,
    128,
    255,
    256,
    4095,
    4096,
    0xffff,
    1 << 16,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX.cast_unsigned(),
    u64::MAX,
];

/// What changes are made of.
#[derive(Debug)]
pub(crate) struct Material<'a> {
    /// Words of the format.
    pub(crate) words: &'a [&'a [u8]],
    /// Another input.
    pub(crate) other: &'a [u8],
    /// Numbers that were compared, by a number that picks them.
    pub(crate) compared: fn(u64) -> [u64; 2],
}

/// Changes an input, mostly a little.
pub(crate) fn change(input: &mut Vec<u8>, random: &mut Random, material: &Material<'_>) {
    let most = 1 << random.below(4);
    for _ in 0..=random.below(most) {
        once(input, random, material);
    }
    input.truncate(LONGEST);
}

fn once(input: &mut Vec<u8>, random: &mut Random, material: &Material<'_>) {
    let length = input.len();
    match random.below(13) {
        0 | 1 if length > 0 => input[random.below(length)] ^= 1 << random.below(8),
        2 if length > 0 => input[random.below(length)] = random.byte(),
        3 => number(input, random),
        4 => add(input, random),
        5 => digits(input, random),
        6 => {
            let part = part(input, random);
            input.drain(part);
        }
        7 => {
            let copy = input[part(input, random)].to_vec();
            put(input, random, &copy);
        }
        8 => {
            let more = vec![random.byte(); 1 + random.below(16)];
            put(input, random, &more);
        }
        9 => {
            let word = random.one_of(material.words).copied().unwrap_or_default();
            put(input, random, word);
        }
        10 => {
            let piece = &material.other[part(material.other, random)];
            put(input, random, piece);
        }
        _ => {
            let pair = (material.compared)(random.next());
            compared(input, random, pair);
        }
    }
}

/// Some of the bytes, mostly few.
fn part(bytes: &[u8], random: &mut Random) -> std::ops::Range<usize> {
    let start = random.below(bytes.len() + 1);
    let most = [8, 64, LONGEST][random.below(3)].min(bytes.len() - start);
    start..start + random.below(most + 1)
}

/// Puts bytes over others, or between them.
fn put(input: &mut Vec<u8>, random: &mut Random, bytes: &[u8]) {
    let start = random.below(input.len() + 1);
    let replaced = if random.once_in(2) { bytes.len() } else { 0 };
    let end = (start + replaced).min(input.len());
    input.splice(start..end, bytes.iter().copied());
}

/// Where a number of 1, 2, 4 or 8 bytes could be.
fn place(input: &[u8], random: &mut Random) -> Option<(usize, usize)> {
    let width = 1 << random.below(4);
    let places = (input.len() + 1).checked_sub(width)?;
    (places > 0).then(|| (random.below(places), width))
}

fn number(input: &mut [u8], random: &mut Random) {
    if let Some((at, width)) = place(input, random) {
        let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
        input[at..at + width].copy_from_slice(&number[..width]);
    }
}

/// A little more or less.
fn add(input: &mut [u8], random: &mut Random) {
    let Some((at, width)) = place(input, random) else {
        return;
    };
    let mut bytes = [0; 8];
    bytes[..width].copy_from_slice(&input[at..at + width]);
    let step = 1 + random.next() % 32;
    let step = if random.once_in(2) {
        step
    } else {
        step.wrapping_neg()
    };
    let sum = u64::from_le_bytes(bytes).wrapping_add(step).to_le_bytes();
    input[at..at + width].copy_from_slice(&sum[..width]);
}

/// Another number where one is written in digits.
fn digits(input: &mut Vec<u8>, random: &mut Random) {
    let from = random.below(input.len() + 1);
    let Some(start) = input[from..].iter().position(u8::is_ascii_digit) else {
        return;
    };
    let start = from + start;
    let end = input[start..]
        .iter()
        .position(|byte| !byte.is_ascii_digit());
    let end = end.map_or(input.len(), |length| start + length);
    let old = std::str::from_utf8(&input[start..end]).ok();
    let old = old.and_then(|old| old.parse::<u64>().ok()).unwrap_or(0);
    let new = match random.below(4) {
        0 => old.wrapping_add(random.next() % 9).wrapping_sub(4),
        1 => old.wrapping_mul(2),
        2 => 1 << random.below(64),
        _ => NUMBERS[random.below(NUMBERS.len())],
    };
    input.splice(start..end, new.to_string().into_bytes());
}

/// Where one of two numbers is that were compared, the other comes in its place, in bytes or digits.
fn compared(input: &mut Vec<u8>, random: &mut Random, pair: [u64; 2]) {
    let most = pair[0].max(pair[1]);
    let width = (64 - most.leading_zeros())
        .div_ceil(8)
        .max(1)
        .next_power_of_two() as usize;
    let is_text = random.once_in(2);
    let [one, other] = pair.map(|number| {
        if is_text {
            number.to_string().into_bytes()
        } else {
            number.to_le_bytes()[..width].to_vec()
        }
    });
    let (is, wanted) = if random.once_in(2) {
        (one, other)
    } else {
        (other, one)
    };
    let from = random.below(input.len());
    let fits = |window: &[u8]| *window == is;
    let after = input[from..].windows(is.len()).position(fits);
    let found = match after {
        Some(at) => Some(from + at),
        None => input.windows(is.len()).position(fits),
    };
    if let Some(at) = found {
        input.splice(at..at + is.len(), wanted);
    }
}

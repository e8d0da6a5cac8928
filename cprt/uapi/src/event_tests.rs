//! Golden bytes, as a little-endian kernel writes them.

use super::*;

/// A miss by a page fault, three merged.
#[rustfmt::skip]
const MISS: [u8; 64] = [
    64, 0,                                          // len
    1,                                              // version
    3,                                              // kind: MISS
    1, 0, 0, 0,                                     // flags: MMAP
    0x2a, 0, 0, 0, 0, 0, 0, 0,                      // file: 42
    0x00, 0x00, 0x20, 0, 0, 0, 0, 0,                // offset: 2 MiB
    0x00, 0x30, 0x00, 0, 0, 0, 0, 0,                // length: 12 KiB
    0x15, 0xcd, 0x5b, 0x07, 0, 0, 0, 0,             // time_ns: 123456789
    3, 0, 0, 0, 0, 0, 0, 0,                         // count
    0xe8, 0x03, 0, 0,                               // tgid: 1000
    0xe9, 0x03, 0, 0,                               // tid: 1001
    7, 0, 0, 0,                                     // cpu
    0, 0, 0, 0,                                     // reserved
];

/// A million events that were not read in time.
#[rustfmt::skip]
const LOST: [u8; 64] = [
    64, 0, 1, 0,                                    // len, version, kind: LOST
    0, 0, 0, 0,                                     // flags
    0, 0, 0, 0, 0, 0, 0, 0,                         // file: none
    0, 0, 0, 0, 0, 0, 0, 0,                         // offset
    0, 0, 0, 0, 0, 0, 0, 0,                         // length
    1, 0, 0, 0, 0, 0, 0, 0,                         // time_ns
    0x40, 0x42, 0x0f, 0, 0, 0, 0, 0,                // count: 1000000
    0, 0, 0, 0,                                     // tgid
    0, 0, 0, 0,                                     // tid
    1, 0, 0, 0,                                     // cpu
    0, 0, 0, 0,                                     // reserved
];

/// An event of a future version, with another size and any contents behind its header.
#[rustfmt::skip]
const VERSION_2: [u8; 24] = [
    24, 0,                                          // len
    2,                                              // version
    3,                                              // kind
    0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
];

fn with(record: &[u8], at: usize, value: u8) -> Vec<u8> {
    let mut bytes = record.to_vec();
    bytes[at] = value;
    bytes
}

fn all(batch: &[u8]) -> (Vec<Result<Event, DecodeError>>, usize) {
    let mut events = Events::new(batch);
    let list = events.by_ref().collect();
    (list, events.skipped())
}

#[test]
fn event_fields_match_the_header_layout() {
    let miss = Event {
        kind: Kind::Miss,
        flags: EventFlags::MMAP,
        file: FileId::from_raw(42),
        offset: 2 << 20,
        length: 12 << 10,
        time_ns: 123_456_789,
        count: 3,
        tgid: 1000,
        tid: 1001,
        cpu: 7,
    };
    assert_eq!(all(&MISS), (vec![Ok(miss)], 0));
}

#[test]
fn every_kind_is_decoded_and_found_by_name() {
    for (number, kind) in Kind::ALL.into_iter().enumerate() {
        let number = u8::try_from(number).expect("there are few kinds");
        let (events, _) = all(&with(&MISS, 3, number));
        assert_eq!(events[0].map(|event| event.kind), Ok(kind));
        assert_eq!(
            Kinds::from_name(kind.name()),
            Some(Kinds::from_bits_retain(1 << number))
        );
    }
    assert_eq!(Kind::ALL.len(), c::__RFS_EVENT_MAX as usize);
}

#[test]
fn events_come_in_order_and_the_unknown_is_stepped_over() {
    let unknown_kind = with(&MISS, 3, 6);
    let batch = [&VERSION_2[..], &LOST, &unknown_kind, &VERSION_2, &MISS].concat();
    let (events, skipped) = all(&batch);
    let seen: Vec<_> = events
        .iter()
        .map(|event| event.map(|e| (e.kind, e.count)))
        .collect();
    assert_eq!(seen, [Ok((Kind::Lost, 1_000_000)), Ok((Kind::Miss, 3))]);
    assert_eq!(skipped, 3);
}

#[test]
fn a_known_version_may_have_grown() {
    let mut grown = with(&MISS, 0, 72);
    grown.extend([0xff; 8]);
    grown.extend(LOST);
    let (events, skipped) = all(&grown);
    let kinds: Vec<_> = events
        .into_iter()
        .map(|event| event.map(|e| e.kind))
        .collect();
    assert_eq!((kinds, skipped), (vec![Ok(Kind::Miss), Ok(Kind::Lost)], 0));
}

#[test]
fn unknown_flags_are_kept() {
    let (events, _) = all(&with(&MISS, 7, 0x80));
    assert_eq!(events[0].map(|event| event.flags.bits()), Ok(0x8000_0001));
}

#[test]
fn an_empty_batch_has_no_events() {
    assert_eq!(all(&[]), (vec![], 0));
}

#[test]
fn malformed_record_is_an_error_and_ends_the_batch() {
    let cases = [
        (
            "length 0",
            with(&MISS, 0, 0),
            DecodeError::Length { at: 0, len: 0 },
        ),
        (
            "length 60",
            with(&MISS, 0, 60),
            DecodeError::Length { at: 0, len: 60 },
        ),
        (
            "length 1",
            with(&MISS, 0, 1),
            DecodeError::Length { at: 0, len: 1 },
        ),
        (
            "short for version 1",
            with(&MISS, 0, 56),
            DecodeError::Short { at: 0, len: 56 },
        ),
        (
            "only a header",
            with(&MISS, 0, 8),
            DecodeError::Short { at: 0, len: 8 },
        ),
        (
            "beyond",
            with(&MISS, 0, 72),
            DecodeError::Truncated {
                at: 0,
                len: 72,
                left: 64,
            },
        ),
        (
            "far beyond",
            with(&MISS, 1, 0xff),
            DecodeError::Truncated {
                at: 0,
                len: 65344,
                left: 64,
            },
        ),
    ];
    for (name, mut bytes, error) in cases {
        assert_eq!(all(&bytes), (vec![Err(error)], 0), "{name}");
        if !name.contains("beyond") {
            bytes.extend(MISS);
            assert_eq!(all(&bytes), (vec![Err(error)], 0), "{name}, more behind it");
        }
    }
}

#[test]
fn a_batch_cut_anywhere_is_never_misread() {
    let batch = [&LOST[..], &MISS].concat();
    for cut in 0..batch.len() {
        let (events, _) = all(&batch[..cut]);
        let whole = cut / RECORD;
        assert!(events.iter().take(whole).all(Result::is_ok), "cut at {cut}");
        let left = cut % RECORD;
        let expected = match left {
            0 => None,
            1..HEADER => Some(Err(DecodeError::Header {
                at: whole * RECORD,
                left,
            })),
            _ => Some(Err(DecodeError::Truncated {
                at: whole * RECORD,
                len: RECORD,
                left,
            })),
        };
        assert_eq!(events.get(whole).copied(), expected, "cut at {cut}");
        assert_eq!(events.len(), whole + usize::from(left > 0), "cut at {cut}");
    }
}

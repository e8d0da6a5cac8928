//! Decodes records of the kernel's tracepoints of the page cache. Pure.
//!
//! | point | when | first..=last, in pages |
//! |---|---|---|
//! | `Add` | a folio gets into the page cache, for a reader or by reading ahead for it | the folio |
//! | `Get` | `read` has got hold of some folios | from there to the end of the request |
//! | `Fault` | a fault that finds nothing mapped nearby, cached or not | the page |
//! | `Map` | a fault that maps what is cached round it | what it looked at |
//!
//! A fault that the page cache answers with a huge page makes none of these; `faults.rs` and `look.rs` find those.
//! Kernels before 6.12 have `Add` only. The tracepoint's `format` says where in a record each number is.

/// How much of a request is read at once, more or less: the kernel gets hold of that many bytes at a time.
pub(super) const AT_ONCE: u64 = 2 << 20;

/// The device and the inode as the kernel numbers them, which stat does not show on every file
/// system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    /// Major and minor in 12 and 20 bits.
    pub(super) device: u32,
    pub(super) inode: u64,
}

impl Key {
    /// The key of a file with these numbers in stat, where stat shows the kernel's own.
    pub(super) fn of_stat(device: u64, inode: u64) -> Option<Self> {
        let major = libc::major(device);
        let minor = libc::minor(device);
        let fits = major < 1 << 12 && minor < 1 << 20;
        fits.then_some(Self {
            device: major << 20 | minor,
            inode,
        })
    }
}

/// A tracepoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Point {
    Add,
    Fault,
    Get,
    Map,
}

impl Point {
    pub(super) const ALL: [Self; 4] = [Self::Add, Self::Fault, Self::Get, Self::Map];

    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Add => "filemap/mm_filemap_add_to_page_cache",
            Self::Fault => "filemap/mm_filemap_fault",
            Self::Get => "filemap/mm_filemap_get_pages",
            Self::Map => "filemap/mm_filemap_map_pages",
        }
    }

    /// Whether it is an access through a mapping; for an `Add` that is unknown.
    pub(super) const fn maps(self) -> bool {
        matches!(self, Self::Fault | Self::Map)
    }
}

/// A decoded record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Raw {
    pub(super) point: Point,
    pub(super) key: Key,
    /// The first page.
    pub(super) first: u64,
    /// The page with which the read began, which may be before the first one; `None` if unknown.
    pub(super) beginning: Option<u64>,
    /// The last page, inclusive.
    pub(super) last: u64,
    pub(super) process: u32,
    pub(super) thread: u32,
    pub(super) cpu: u32,
    pub(super) time_ns: u64,
    /// It reports what a reader did before it went elsewhere, which had not been reported.
    pub(super) late: bool,
}

/// The place of a number in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) offset: u16,
    pub(super) size: u16,
}

impl Field {
    /// Parses the `format` of a tracepoint; `None` if it has no field of that name.
    pub(super) fn parse(format: &str, name: &str) -> Option<Self> {
        let line = format.lines().find(|line| declares(line, name))?;
        let number = |key| {
            let mut parts = line.split([';', '\t']);
            parts.find_map(|part| part.strip_prefix(key)?.parse().ok())
        };
        let (offset, size) = (number("offset:")?, number("size:")?);
        matches!(size, 1 | 2 | 4 | 8).then_some(Self { offset, size })
    }

    /// `None` if the record is too short.
    pub(super) fn read(self, bytes: &[u8]) -> Option<u64> {
        let at = usize::from(self.offset);
        let bytes = bytes.get(at..at + usize::from(self.size))?;
        Some(match *bytes {
            [a] => a.into(),
            [a, b] => u16::from_ne_bytes([a, b]).into(),
            [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
            _ => u64::from_ne_bytes(bytes.try_into().ok()?),
        })
    }
}

/// The places of a tracepoint's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) point: Point,
    /// The number by which the kernel knows the tracepoint.
    pub(super) id: u16,
    pub(super) device: Field,
    pub(super) inode: Field,
    pub(super) first: Field,
    pub(super) extent: Extent,
}

/// How a record gives the number of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extent {
    One,
    Last(Field),
    /// The binary logarithm of their number.
    Order(Field),
}

impl Layout {
    /// Parses the `format` of a tracepoint; `None` if it lacks a field that we need.
    pub(super) fn parse(point: Point, format: &str) -> Option<Self> {
        let field = |name| Field::parse(format, name);
        Some(Self {
            point,
            id: id_in(format)?,
            device: field("s_dev")?,
            inode: field("i_ino")?,
            first: field("index")?,
            extent: match (field("last_index"), field("order")) {
                (Some(last), _) => Extent::Last(last),
                (None, Some(order)) => Extent::Order(order),
                (None, None) => Extent::One,
            },
        })
    }

    /// The file and the pages of a record.
    fn read(&self, record: &[u8]) -> Option<(Key, u64, u64)> {
        let key = Key {
            device: u32::try_from(self.device.read(record)?).ok()?,
            inode: self.inode.read(record)?,
        };
        let first = self.first.read(record)?;
        let last = match self.extent {
            Extent::One => first,
            Extent::Last(field) => field.read(record)?,
            Extent::Order(field) => {
                let order = u32::try_from(field.read(record)?).ok()?;
                first.saturating_add(1_u64.checked_shl(order)? - 1)
            }
        };
        Some((key, first, last.max(first)))
    }
}

/// The number by which the kernel knows the tracepoint of a `format`.
pub(super) fn id_in(format: &str) -> Option<u16> {
    let id = format.lines().find_map(|line| line.strip_prefix("ID:"))?;
    id.trim().parse().ok()
}

/// Whether a line of a `format` declares the field.
fn declares(line: &str, name: &str) -> bool {
    let declared = line.trim_start().strip_prefix("field:");
    let declared = declared.and_then(|rest| rest.split(';').next());
    declared.is_some_and(|text| text.split([' ', '*']).next_back() == Some(name))
}

const RECORD_LOST: u32 = 2;
const RECORD_SAMPLE: u32 = 9;

/// Decodes the contents of a ring of perf events, and returns how many records the kernel had no room for.
pub(super) fn decode(bytes: &[u8], layouts: &[Layout], into: &mut Vec<Raw>) -> u64 {
    samples(bytes, |body| into.extend(sample(body, layouts)))
}

/// Passes on the samples of a ring, and returns how many the kernel had no room for.
pub(super) fn samples(mut bytes: &[u8], mut each: impl FnMut(&[u8])) -> u64 {
    let mut lost = 0;
    while let Some((header, _)) = bytes.split_first_chunk::<8>() {
        let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
        let size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
        let Some(body) = bytes.get(8..size) else {
            break;
        };
        match kind {
            RECORD_SAMPLE => each(body),
            RECORD_LOST => lost += word(body, 8).unwrap_or(0),
            _ => {}
        }
        bytes = &bytes[size..];
    }
    lost
}

/// The tracepoint's own record, which comes after thread, time, CPU and its length.
pub(super) fn record_in(sample: &[u8]) -> Option<&[u8]> {
    let length = usize::try_from(half(sample, 24)?).ok()?;
    sample.get(28..)?.get(..length)
}

fn sample(body: &[u8], layouts: &[Layout]) -> Option<Raw> {
    let record = record_in(body)?;
    let id = u16::from_ne_bytes([*record.first()?, *record.get(1)?]);
    let layout = layouts.iter().find(|layout| layout.id == id)?;
    let (key, first, last) = layout.read(record)?;
    Some(Raw {
        point: layout.point,
        key,
        first,
        beginning: None,
        last,
        process: half(body, 0)?,
        thread: half(body, 4)?,
        time_ns: word(body, 8)?,
        cpu: half(body, 16)?,
        late: false,
    })
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

pub(super) fn half(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const GET: &str = "name: mm_filemap_get_pages
ID: 599
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:unsigned long i_ino;\toffset:8;\tsize:8;\tsigned:0;
\tfield:dev_t s_dev;\toffset:16;\tsize:4;\tsigned:0;
\tfield:unsigned long index;\toffset:24;\tsize:8;\tsigned:0;
\tfield:unsigned long last_index;\toffset:32;\tsize:8;\tsigned:0;

print fmt: \"dev=%d:%d ino=%lx\", ((unsigned int) ((REC->s_dev) >> 20)), REC->i_ino
";

    const ADD: &str = "ID: 600
\tfield:unsigned long pfn;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned long i_ino;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned long index;\toffset:24;\tsize:8;\tsigned:0;
\tfield:dev_t s_dev;\toffset:32;\tsize:4;\tsigned:0;
\tfield:unsigned char order;\toffset:36;\tsize:1;\tsigned:0;
";

    /// The format of kernels before folios.
    const OLD: &str = "ID: 300
\tfield:struct page * page;\toffset:8;\tsize:8;\tsigned:0;
\tfield:unsigned long i_ino;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned long index;\toffset:24;\tsize:8;\tsigned:0;
\tfield:dev_t s_dev;\toffset:32;\tsize:4;\tsigned:0;
";

    pub(crate) fn layouts() -> Vec<Layout> {
        [(Point::Get, GET), (Point::Add, ADD)]
            .into_iter()
            .filter_map(|(point, format)| Layout::parse(point, format))
            .collect()
    }

    #[test]
    fn formats_tell_where_things_are() {
        let field = |offset, size| Field { offset, size };
        let [get, add] = layouts()[..] else {
            panic!("two of them");
        };
        assert_eq!(
            (get.id, get.inode, get.device),
            (599, field(8, 8), field(16, 4))
        );
        assert_eq!(
            (get.first, get.extent),
            (field(24, 8), Extent::Last(field(32, 8)))
        );
        assert_eq!((add.id, add.device), (600, field(32, 4)));
        assert_eq!(add.extent, Extent::Order(field(36, 1)));
        let old = Layout::parse(Point::Add, OLD).expect("the old one");
        assert_eq!(old.extent, Extent::One);
        for wrong in ["", "ID: 5", "ID: x\n", &ADD.replace("i_ino", "ino")] {
            assert_eq!(Layout::parse(Point::Add, wrong), None, "{wrong}");
        }
    }

    #[rustfmt::skip]
    const SAMPLE: [u8; 80] = [
        9,0,0,0, 1,0, 80,0,     // a sample of 80 bytes
        0x10,0x27,0,0,          // process 10000
        0x11,0x27,0,0,          // thread 10001
        1,0,0,0,0,0,0,0,        // after 1 ns
        1,0,0,0, 0,0,0,0,       // on CPU 1
        44,0,0,0,               // 44 bytes of the tracepoint, with padding
        0x57,2, 0, 0,           // number 599
        0x11,0x27,0,0,
        0x4d,0,0,0,0,0,0,0,     // inode 77
        0,0,0xe0,0x0f, 0,0,0,0, // device 254:0
        0,1,0,0,0,0,0,0,        // page 256
        0xff,1,0,0,0,0,0,0,     // to 511
        0,0,0,0,
    ];

    #[rustfmt::skip]
    const LOST: [u8; 24] = [
        2,0,0,0, 0,0, 24,0,     // lost records
        1,0,0,0,0,0,0,0,        // of this event
        5,0,0,0,0,0,0,0,        // so many
    ];

    #[rustfmt::skip]
    const FOLIO: [u8; 76] = [
        9,0,0,0, 1,0, 76,0,     // a sample of 76 bytes
        1,0,0,0, 2,0,0,0,       // process 1, thread 2
        9,0,0,0,0,0,0,0,
        0,0,0,0, 0,0,0,0,
        40,0,0,0,               // 40 bytes of the tracepoint
        0x58,2, 0, 0, 0,0,0,0,  // number 600
        1,1,1,1,1,1,1,1,        // the page frame
        0x4d,0,0,0,0,0,0,0,     // inode 77
        0,2,0,0,0,0,0,0,        // page 512
        0,0,0xe0,0x0f,          // device 254:0
        9, 0,0,0,               // of 2^9 pages
    ];

    #[test]
    fn records_are_read_and_what_is_not_ours_is_left_out() {
        let mut bytes = SAMPLE.to_vec();
        bytes.extend(LOST);
        bytes.extend([77, 0, 0, 0, 0, 0, 12, 0, 1, 2, 3, 4]);
        bytes.extend(FOLIO);
        bytes.extend(LOST);
        let mut raws = Vec::new();
        assert_eq!(decode(&bytes, &layouts(), &mut raws), 10);
        let key = Key {
            device: 254 << 20,
            inode: 77,
        };
        let get = Raw {
            point: Point::Get,
            key,
            first: 256,
            beginning: None,
            last: 511,
            process: 10000,
            thread: 10001,
            cpu: 1,
            time_ns: 1,
            late: false,
        };
        let add = Raw {
            point: Point::Add,
            key,
            first: 512,
            beginning: None,
            last: 1023,
            process: 1,
            thread: 2,
            cpu: 0,
            time_ns: 9,
            late: false,
        };
        assert_eq!(raws, [get, add]);
        assert_eq!(Key::of_stat(libc::makedev(254, 0), 77), Some(key));
        assert_eq!(Key::of_stat(libc::makedev(1 << 12, 0), 77), None);
    }

    #[test]
    fn truncated_broken_and_foreign_records_are_ignored() {
        let mut raws = Vec::new();
        for length in 0..SAMPLE.len() {
            assert_eq!(decode(&SAMPLE[..length], &layouts(), &mut raws), 0);
        }
        let mut broken = SAMPLE;
        // Records of size 0 would never end.
        broken[6] = 0;
        assert_eq!(decode(&broken, &layouts(), &mut raws), 0);
        let mut broken = SAMPLE;
        // More bytes of the tracepoint than the record has.
        broken[32] = 0xff;
        assert_eq!(decode(&broken, &layouts(), &mut raws), 0);
        let mut broken = FOLIO;
        // A folio of 2^200 pages.
        broken[72] = 200;
        assert_eq!(decode(&broken, &layouts(), &mut raws), 0);
        assert_eq!(raws, []);
        assert_eq!(decode(&SAMPLE, &[], &mut raws), 0);
        assert_eq!(raws, [], "not a tracepoint that PPC uses");
    }
}

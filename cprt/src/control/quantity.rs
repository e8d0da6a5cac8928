//! Quantities with a unit, as people write and read them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number of bytes: `2 MiB`, `512K`, `1G` or `4096`; each step is 1,024.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

/// A span of time: `100ms`, `2 s`, `500us`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let shift = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(no_bytes(text)),
        };
        number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(1 << shift))
            .filter(|&bytes| i64::try_from(bytes).is_ok())
            .map(Self)
            .ok_or_else(|| no_bytes(text))
    }
}

impl FromStr for TimeSpan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let nanos = match unit {
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "min" => 60_000_000_000,
            _ => return Err(no_span(text)),
        };
        number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(nanos))
            .map(|nanos| Self(Duration::from_nanos(nanos)))
            .ok_or_else(|| no_span(text))
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    (&text[..digits], text[digits..].trim_start())
}

impl fmt::Display for Bytes {
    /// With one decimal, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let step = (self.0.checked_ilog2().unwrap_or(0) / 10).min(4);
        let unit = UNITS[step as usize];
        let whole = self.0 >> (10 * step);
        let tenth = ((self.0 - (whole << (10 * step))) * 10) >> (10 * step);
        if tenth == 0 {
            f.pad(&format!("{whole} {unit}"))
        } else {
            f.pad(&format!("{whole}.{tenth} {unit}"))
        }
    }
}

impl fmt::Display for TimeSpan {
    /// With one decimal, for people.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u128); 4] = [
            ("s", 1_000_000_000),
            ("ms", 1_000_000),
            ("us", 1_000),
            ("ns", 1),
        ];
        let nanos = self.0.as_nanos();
        let (unit, size) = UNITS
            .into_iter()
            .find(|&(_, size)| nanos >= size)
            .unwrap_or(UNITS[0]);
        let (whole, tenth) = (nanos / size, nanos % size * 10 / size);
        if tenth == 0 {
            f.pad(&format!("{whole} {unit}"))
        } else {
            f.pad(&format!("{whole}.{tenth} {unit}"))
        }
    }
}

fn no_bytes(text: &str) -> String {
    format!("{text:?} is not a number of bytes such as \"2 MiB\", \"512 KiB\" or 4096")
}

fn no_span(text: &str) -> String {
    format!("{text:?} is not a span of time such as \"100 ms\" or \"2 s\"")
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, as \"2 MiB\" or 4096")
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Bytes, E> {
        match u64::try_from(number) {
            Ok(bytes) => Ok(Bytes(bytes)),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Bytes, E> {
        Ok(Bytes(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Bytes, E> {
        text.parse().map_err(E::custom)
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = TimeSpan;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a span of time with its unit, as \"100 ms\" or \"2 s\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<TimeSpan, E> {
        text.parse().map_err(E::custom)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    /// May also be a bare number.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(BytesVisitor)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}us", self.0.as_micros()))
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(SpanVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_read_with_every_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1 B", 1),
            ("512K", 512 << 10),
            ("512 KiB", 512 << 10),
            (" 2 mib ", 2 << 20),
            ("2M", 2 << 20),
            ("3 GiB", 3 << 30),
            ("1t", 1 << 40),
            ("9223372036854775807", i64::MAX.cast_unsigned()),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
        for text in [
            "",
            "MiB",
            "-1",
            "1.5 GiB",
            "2 MB",
            "2 MiB each",
            "8388608 TiB",
            "1e6",
            "0x10",
        ] {
            let error = text.parse::<Bytes>().expect_err(text);
            assert!(error.contains("such as \"2 MiB\""), "{error}");
        }
    }

    #[test]
    fn spans_are_read_with_every_unit() {
        for (text, nanos) in [
            ("0s", 0),
            ("500us", 500_000),
            ("100 ms", 100_000_000),
            (" 2 s", 2_000_000_000),
            ("1 min", 60_000_000_000),
        ] {
            assert_eq!(
                text.parse(),
                Ok(TimeSpan(Duration::from_nanos(nanos))),
                "{text}"
            );
        }
        for text in ["", "100", "s", "-1 s", "1.5 s", "1 h", "99999999999999 s"] {
            let error = text.parse::<TimeSpan>().expect_err(text);
            assert!(error.contains("such as \"100 ms\""), "{error}");
        }
    }

    #[test]
    fn bytes_are_shown_short() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            ((1 << 20) - 1, "1023.9 KiB"),
            (2 << 20, "2 MiB"),
            ((3 << 30) + (1 << 28), "3.2 GiB"),
            (5 << 50, "5120 TiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
        assert_eq!(format!("{:>8}|", Bytes(1)), "     1 B|");
    }

    #[test]
    fn spans_are_shown_short() {
        for (nanos, text) in [
            (0, "0 s"),
            (7, "7 ns"),
            (1_500, "1.5 us"),
            (100_000_000, "100 ms"),
            (999_999_999, "999.9 ms"),
            (2_000_000_000, "2 s"),
            (90_050_000_000, "90 s"),
        ] {
            assert_eq!(TimeSpan(Duration::from_nanos(nanos)).to_string(), text);
        }
        assert_eq!(
            format!("{:>6}|", TimeSpan(Duration::from_secs(2))),
            "   2 s|"
        );
    }
}

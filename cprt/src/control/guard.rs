//! The settings of `[memory]` that guard a node: kubelet's eviction threshold, and memory that is a GPU's as well.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::quantity::Bytes;

/// An amount of memory, as kubelet's configuration has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Amount {
    /// In bytes.
    Bytes(u64),
    /// Hundredths of a percent of all memory.
    Part(u16),
}

/// Whether loads leave alone what kubelet wants to be available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KubeletGuard {
    /// Where kubelet runs, with the thresholds of its configuration.
    #[default]
    Auto,
    /// Kubelet does not count.
    Off,
    /// With this threshold, wherever it runs.
    Below(Amount),
}

/// Whether the GPU shares the memory of the machine, so that only free memory counts as available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnifiedGuard {
    /// Where a GPU is known to.
    #[default]
    Auto,
    /// It does.
    On,
    /// It does not.
    Off,
}

impl Amount {
    /// The bytes, where all memory is `total`.
    #[must_use]
    pub fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Part(part) => {
                let bytes = u128::from(total) * u128::from(part) / 10_000;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
        }
    }
}

impl FromStr for Amount {
    type Err = String;

    /// A quantity of Kubernetes (`100Mi`, `1.5G`, `2e9`) or a percentage.
    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || {
            format!("{text:?} is not an amount of memory such as \"500Mi\", \"1 GiB\" or \"5%\"")
        };
        let text = text.trim();
        let amount = match text.strip_suffix('%') {
            Some(percent) => decimal(percent.trim_end(), 100, 1)
                .and_then(|part| u16::try_from(part).ok())
                .filter(|&part| part <= 10_000)
                .map(Self::Part),
            None => quantity(text).map(Self::Bytes),
        };
        amount.ok_or_else(problem)
    }
}

/// The factor of a suffix, as a fraction.
fn factor(suffix: &str) -> Option<(u128, u128)> {
    let exponent = suffix
        .strip_prefix(['e', 'E'])
        .filter(|power| !power.is_empty());
    if let Some(power) = exponent {
        let power = power.strip_prefix('+').unwrap_or(power);
        let power = power.parse::<u32>().ok().filter(|&power| power <= 18)?;
        return Some((10_u128.pow(power), 1));
    }
    Some(match suffix {
        "" => (1, 1),
        "m" => (1, 1000),
        "k" => (1000, 1),
        "M" => (1_000_000, 1),
        "G" => (1_000_000_000, 1),
        "T" => (1_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000, 1),
        "Ki" => (1 << 10, 1),
        "Mi" => (1 << 20, 1),
        "Gi" => (1 << 30, 1),
        "Ti" => (1 << 40, 1),
        "Pi" => (1 << 50, 1),
        "Ei" => (1 << 60, 1),
        _ => return None,
    })
}

fn quantity(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (times, by) = factor(&text[end..])?;
    decimal(&text[..end], times, by)
}

/// `text` times `times` divided by `by`, rounded down.
fn decimal(text: &str, times: u128, by: u128) -> Option<u64> {
    /// More digits than any amount has, and few enough that nothing overflows.
    const DIGITS: usize = 19;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.len() <= DIGITS && text.bytes().all(|c| c.is_ascii_digit());
    if whole.len() + part.len() == 0 || !digits(whole) || !digits(part) {
        return None;
    }
    let number = |text: &str| -> Option<u128> {
        Some(if text.is_empty() {
            0
        } else {
            text.parse().ok()?
        })
    };
    let tens = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let whole = number(whole)?.checked_mul(times)?;
    let part = number(part)?.checked_mul(times)? / tens;
    u64::try_from(whole.checked_add(part)? / by).ok()
}

impl fmt::Display for Amount {
    /// Exactly, so that it reads the same again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{bytes}"),
            Self::Part(part) => write!(f, "{}.{:02}%", part / 100, part % 100),
        }
    }
}

impl FromStr for KubeletGuard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "off" => Self::Off,
            // The units of this file come first: "1G" is 1 GiB here, as everywhere in it.
            _ => Self::Below(match text.parse::<Bytes>() {
                Ok(bytes) => Amount::Bytes(bytes.0),
                Err(_) => text.parse().map_err(|problem| {
                    format!("{problem}; or \"auto\", or \"off\" to ignore kubelet")
                })?,
            }),
        })
    }
}

impl fmt::Display for KubeletGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Off => f.write_str("off"),
            Self::Below(amount) => amount.fmt(f),
        }
    }
}

impl FromStr for UnifiedGuard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("{text:?} must be \"auto\", \"on\" or \"off\"")),
        }
    }
}

impl fmt::Display for UnifiedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::On => "on",
            Self::Off => "off",
        })
    }
}

impl Serialize for KubeletGuard {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for UnifiedGuard {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for KubeletGuard {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for UnifiedGuard {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_kubernetes() {
        for (text, bytes) in [
            ("100Mi", 100 << 20),
            ("1Gi", 1 << 30),
            ("1.5Gi", 3 << 29),
            ("0.5Ki", 512),
            (".5Ki", 512),
            ("500M", 500_000_000),
            ("2e9", 2_000_000_000),
            ("2E+3", 2000),
            ("1E", 1_000_000_000_000_000_000),
            ("1500m", 1),
            (" 4096 ", 4096),
            ("16Ei", u64::MAX),
        ] {
            let expected = (text != "16Ei").then_some(Amount::Bytes(bytes));
            assert_eq!(text.parse::<Amount>().ok(), expected, "{text}");
        }
        for text in [
            "",
            "Mi",
            ".",
            "-1Gi",
            "1 Gi",
            "1.2.3Gi",
            "1Xi",
            "1e19",
            "1e-3",
            "0x10",
            "99999999999999999999",
        ] {
            let problem = text.parse::<Amount>().expect_err(text);
            assert!(problem.contains("500Mi"), "{problem}");
        }
    }

    #[test]
    fn parts_of_all_memory() {
        for (text, part) in [("5%", 500), ("7.5 %", 750), ("0%", 0), ("100%", 10_000)] {
            assert_eq!(text.parse(), Ok(Amount::Part(part)), "{text}");
        }
        for text in ["%", "101%", "-1%", "5%%", "a%"] {
            assert!(text.parse::<Amount>().is_err(), "{text}");
        }
        assert_eq!(Amount::Part(750).of(1000), 75);
        assert_eq!(Amount::Part(10_000).of(u64::MAX), u64::MAX);
        assert_eq!(Amount::Bytes(7).of(1), 7);
    }

    #[test]
    fn guards_read_what_they_write() {
        let below = |amount| KubeletGuard::Below(amount);
        for (text, guard) in [
            ("auto", KubeletGuard::Auto),
            ("off", KubeletGuard::Off),
            ("1G", below(Amount::Bytes(1 << 30))),
            ("500 MiB", below(Amount::Bytes(500 << 20))),
            ("500Mi", below(Amount::Bytes(500 << 20))),
            ("7.25%", below(Amount::Part(725))),
        ] {
            assert_eq!(text.parse(), Ok(guard), "{text}");
            assert_eq!(guard.to_string().parse(), Ok(guard), "{text}");
        }
        for guard in [UnifiedGuard::Auto, UnifiedGuard::On, UnifiedGuard::Off] {
            assert_eq!(guard.to_string().parse(), Ok(guard));
        }
        let problem = "on".parse::<KubeletGuard>().expect_err("it is no amount");
        assert!(problem.contains("\"auto\""), "{problem}");
        assert!("yes".parse::<UnifiedGuard>().is_err());
    }
}

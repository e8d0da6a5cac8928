//! The section `[fleet]` of `/etc/cprt.toml`; the rest of that file is cprtd's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::error::{Result, StoreError};

/// The file that is read unless `--config` names another.
pub const PATH: &str = "/etc/cprt.toml";

/// How this node shares templates with others.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FleetConfig {
    /// The storage, as a URL; empty for none.
    pub url: String,
    /// The directory of MAIO's templates.
    pub store: PathBuf,
    /// How far apart rounds are, on average.
    #[serde(deserialize_with = "span")]
    pub interval: Duration,
    /// Upper bound on the bytes of other nodes' templates that are kept here.
    #[serde(deserialize_with = "bytes")]
    pub budget: u64,
    /// Whether this node's templates are put into the storage.
    pub put: bool,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            url: String::new(),
            store: "/var/lib/ppc/templates".into(),
            interval: Duration::from_mins(5),
            budget: 256 << 20,
            put: true,
        }
    }
}

/// The whole file, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
struct Whole {
    #[serde(default)]
    fleet: FleetConfig,
}

impl FleetConfig {
    /// Reads a file; without a name, the default one if that exists.
    ///
    /// # Errors
    /// It cannot be read, or has an error in this section.
    pub fn read(path: Option<&Path>) -> Result<Self> {
        let file = path.unwrap_or(Path::new(PATH));
        if path.is_none() && matches!(file.try_exists(), Ok(false)) {
            return Ok(Self::default());
        }
        let text = std::fs::read_to_string(file).map_err(StoreError::io(file))?;
        Self::parse(&text).map_err(|problem| StoreError::Config {
            path: file.to_owned(),
            problem,
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        let whole: Whole =
            toml::from_str(text).map_err(|error| error.to_string().trim_end().to_owned())?;
        let fleet = whole.fleet;
        if fleet.interval < Duration::from_secs(10) {
            return Err(
                "fleet.interval: must be at least 10 s, because every node sends a request in each round"
                    .to_owned(),
            );
        }
        if !fleet.store.is_absolute() {
            return Err(format!(
                "fleet.store: \"{}\" must begin with a slash",
                fleet.store.display()
            ));
        }
        Ok(fleet)
    }
}

fn span<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    let units = [("s", 1), ("min", 60), ("h", 3600)];
    let problem =
        || format!("{text:?} is not a span of time such as \"300 s\", \"5 min\" or \"1 h\"");
    number(&text, &units)
        .map(Duration::from_secs)
        .ok_or_else(|| D::Error::custom(problem()))
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    let text = String::deserialize(from)?;
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
    let problem = || format!("{text:?} is not a number of bytes such as \"256 MiB\" or \"1 GiB\"");
    number(&text, &units).ok_or_else(|| D::Error::custom(problem()))
}

fn number(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let unit = text[digits..].trim();
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    text[..digits].parse::<u64>().ok()?.checked_mul(*factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = include_str!("../../../cprt/cprt.toml");

    #[test]
    fn the_sample_is_the_defaults_and_shows_every_key() {
        assert_eq!(FleetConfig::parse(SAMPLE), Ok(FleetConfig::default()));
        assert_eq!(FleetConfig::parse(""), Ok(FleetConfig::default()));
        let (_, section) = SAMPLE.split_once("\n[fleet]\n").expect("a section");
        for key in ["url", "store", "interval", "budget", "put"] {
            assert!(section.contains(&format!("\n{key} = ")), "{key}");
        }
    }

    #[test]
    fn invalid_fleet_settings_are_rejected_with_the_reason() {
        for (text, problem) in [
            ("[fleet]\ninterval = '1 s'", "at least 10 s"),
            ("[fleet]\ninterval = '5 days'", "such as \"300 s\""),
            ("[fleet]\nbudget = '5'", "such as \"256 MiB\""),
            ("[fleet]\nbudget = '99999999999 GiB'", "such as \"256 MiB\""),
            ("[fleet]\nstore = 'here'", "must begin with a slash"),
            ("[fleet]\nbucket = 'b'", "unknown field `bucket`"),
        ] {
            let refused = FleetConfig::parse(text).expect_err("it is wrong");
            assert!(refused.contains(problem), "{text}: {refused}");
        }
        let other = "[mount.'/m']\npolicy = '/p'\n[fleet]\ninterval = '1 h'\nbudget = '1 GiB'";
        let fleet = FleetConfig::parse(other).expect("cprtd's sections are its own");
        assert_eq!((fleet.interval.as_secs(), fleet.budget), (3600, 1 << 30));
    }
}

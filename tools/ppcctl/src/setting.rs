//! `KEY=VALUE` arguments, and the libraries and paths that arguments name.

use std::path::{Path, PathBuf, absolute};
use std::str::FromStr;

use cprt::control::protocol::Settings;

use crate::args::Service;
use crate::failure::{Failure, Result};

/// One setting of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some(("", _)) => Err("the key is missing; use KEY=VALUE".to_owned()),
            Some((key, value)) => Ok(Self {
                key: key.to_owned(),
                value: value.to_owned(),
            }),
            None => Err(format!("a setting is KEY=VALUE; use {text}=VALUE")),
        }
    }
}

/// Collects the settings. A key given twice is an error, as it is not clear which value is meant.
pub(crate) fn collect(settings: Vec<Setting>) -> Result<Settings> {
    let mut all = Settings::new();
    for Setting { key, value } in settings {
        if let Some(other) = all.get(&key) {
            return Err(Failure::Usage(format!(
                "{key} is set twice, to {other} and to {value}; set it once"
            )));
        }
        all.insert(key, value);
    }
    Ok(all)
}

/// Collects the settings, with those that name the service.
pub(crate) fn with_service(settings: Vec<Setting>, service: &Service) -> Result<Settings> {
    let said = [
        ("service-id", &service.service_id),
        ("service", &service.service),
    ];
    let said = said.into_iter().filter_map(|(key, value)| {
        Some(Setting {
            key: key.to_owned(),
            value: value.clone()?,
        })
    });
    collect(settings.into_iter().chain(said).collect())
}

/// The path of a library given as a path or as a name.
pub(crate) fn library(given: &Path) -> Result<PathBuf> {
    Ok(cprt::daemon::policies::look_up(given)?)
}

/// An absolute path, for the daemon, whose current directory is another one.
pub(crate) fn full(path: &Path) -> Result<PathBuf> {
    absolute(path).map_err(|source| Failure::System {
        doing: "Looking up the current directory",
        source,
    })
}

/// The path of a mount as the kernel lists it, without links and `..`; merely absolute if it cannot be resolved.
pub(crate) fn mount(path: &Path) -> Result<PathBuf> {
    match path.canonicalize() {
        Ok(real) => Ok(real),
        // The daemon's message about such a path is the better one.
        Err(_) => full(path).map(|path| path.components().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(text: &str) -> Setting {
        text.parse().expect("a setting")
    }

    #[test]
    fn settings_are_split_at_the_first_sign() {
        for (text, key, value) in [
            ("a=b", "a", "b"),
            ("a=", "a", ""),
            ("a=b=c d", "a", "b=c d"),
        ] {
            let expected = Setting {
                key: key.into(),
                value: value.into(),
            };
            assert_eq!(setting(text), expected);
        }
    }

    #[test]
    fn malformed_setting_is_rejected_with_the_right_form() {
        for (text, problem) in [
            ("length", "a setting is KEY=VALUE; use length=VALUE"),
            ("", "a setting is KEY=VALUE; use =VALUE"),
            ("=1", "the key is missing; use KEY=VALUE"),
        ] {
            assert_eq!(text.parse::<Setting>(), Err(problem.to_owned()));
        }
    }

    #[test]
    fn key_set_twice_is_rejected() {
        let twice = collect(vec![setting("a=1"), setting("b=2"), setting("a=3")]);
        let text = twice.expect_err("a twice").to_string();
        assert_eq!(text, "a is set twice, to 1 and to 3; set it once");
    }

    #[test]
    fn mounts_are_as_the_kernel_lists_them() {
        assert_eq!(
            mount(Path::new("/proc/../proc/")).expect("a path"),
            Path::new("/proc")
        );
        let gone = mount(Path::new("/nowhere/./x/")).expect("a path");
        assert_eq!(gone, Path::new("/nowhere/x"));
    }
}

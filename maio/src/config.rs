//! The settings of MAIO.

use std::path::PathBuf;
use std::time::Duration;

use ppc::{Error, Result, Settings};

use crate::peers::default_directory;
use crate::service::{parse, service_id};
use crate::template::{Store, default_root, this_node, valid_name};

/// When a load is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recording {
    /// If there is no template, or it no longer fits.
    Auto,
    /// At each load.
    Always,
    Never,
}

/// When a load begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beginning {
    /// When a file of the model is opened.
    Open,
    /// At once, in the background until a reader comes.
    Early,
    /// At once.
    Now,
}

/// All settings, with defaults filled in.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `None`: named after the files.
    pub(crate) service: Option<String>,
    pub(crate) node: String,
    /// `None`: templates are neither read nor saved.
    pub(crate) store: Option<Store>,
    /// Where services of this node publish what they still need; `None`: this service does not.
    pub(crate) leases: Option<PathBuf>,
    /// The process from which the readers of this service descend, if that is known.
    pub(crate) process: Option<u32>,
    /// How many workers share each layer; `None`: as in the command of the first reader.
    pub(crate) tp: Option<u32>,
    pub(crate) recording: Recording,
    pub(crate) beginning: Beginning,
    /// Upper bound on held bytes.
    pub(crate) budget: u64,
    /// How long without a read until a load is over.
    pub(crate) idle: Duration,
    /// Of this service's loads, against those of others from the same device.
    pub(crate) priority: i32,
}

fn problem(key: &str, value: &str, problem: &'static str) -> Error {
    Error::Setting {
        key: key.to_owned(),
        value: value.to_owned(),
        problem,
    }
}

impl Config {
    pub(crate) fn from_settings(settings: &mut Settings) -> Result<Self> {
        let (service, tp) = service(settings)?;
        let node = settings.text("node").unwrap_or_else(this_node);
        if !valid_name(&node) {
            return Err(problem(
                "node",
                &node,
                "not a name of letters, digits, '.', '_' and '-'",
            ));
        }
        let recording = match settings.text("record").as_deref() {
            None | Some("auto") => Recording::Auto,
            Some("always") => Recording::Always,
            Some("never") => Recording::Never,
            Some(other) => return Err(problem("record", other, "not auto, always or never")),
        };
        let beginning = beginning(settings)?.unwrap_or(Beginning::Open);
        let idle = settings.text("idle").unwrap_or_else(|| "10".to_owned());
        let seconds = idle
            .parse()
            .ok()
            .filter(|seconds| (1..=3600).contains(seconds));
        let seconds = seconds.ok_or_else(|| problem("idle", &idle, "not 1 to 3600 seconds"))?;
        Ok(Self {
            service,
            node,
            store: path(settings, "store", default_root)?.map(Store::at),
            leases: path(settings, "leases", default_directory)?,
            process: process(settings)?,
            tp,
            recording,
            beginning,
            budget: settings.bytes("budget")?.unwrap_or(u64::MAX),
            idle: Duration::from_secs(seconds),
            priority: priority(settings)?,
        })
    }
}

fn process(settings: &mut Settings) -> Result<Option<u32>> {
    let Some(text) = settings.text("process") else {
        return Ok(None);
    };
    let number = text.parse().ok().filter(|&it| it > 0);
    let number = number.ok_or_else(|| problem("process", &text, "not a process number"))?;
    Ok(Some(number))
}

fn priority(settings: &mut Settings) -> Result<i32> {
    let Some(text) = settings.text("priority") else {
        return Ok(0);
    };
    let number = text.parse().ok().filter(|it| (0..=100).contains(it));
    number.ok_or_else(|| problem("priority", &text, "not 0 to 100"))
}

/// When a model is loaded, if that is set.
pub(crate) fn beginning(settings: &mut Settings) -> Result<Option<Beginning>> {
    match settings.text("begin").as_deref() {
        None => Ok(None),
        Some("open") => Ok(Some(Beginning::Open)),
        Some("early") => Ok(Some(Beginning::Early)),
        Some("now") => Ok(Some(Beginning::Now)),
        Some(other) => Err(problem("begin", other, "not open, early or now")),
    }
}

/// The service's ID, and how many workers share each layer.
fn service(settings: &mut Settings) -> Result<(Option<String>, Option<u32>)> {
    let id = settings.text("service-id");
    let pairs = settings.text("service");
    let tp = settings.text("tp");
    if let Some(id) = &id
        && !valid_name(id)
    {
        return Err(problem(
            "service-id",
            id,
            "not a name of letters, digits, '.', '_' and '-'",
        ));
    }
    let Some(text) = pairs else {
        return Ok((id, workers(tp.as_deref())?));
    };
    if id.is_some() {
        return Err(problem(
            "service",
            &text,
            "service-id is also set; set only one of them",
        ));
    }
    let wrong = |_| problem("service", &text, "not key=value,key=value");
    let pairs = parse(&text).map_err(wrong)?;
    let of_pairs = pairs
        .iter()
        .find(|(key, _)| matches!(key.as_str(), "tp" | "tensor-parallel-size"));
    let tp = tp.or_else(|| of_pairs.map(|(_, value)| value.clone()));
    let id = service_id(&pairs).map_err(wrong)?;
    Ok((Some(id), workers(tp.as_deref())?))
}

fn workers(tp: Option<&str>) -> Result<Option<u32>> {
    let Some(tp) = tp else { return Ok(None) };
    let number = tp
        .parse()
        .ok()
        .filter(|tp| (1..=crate::predict::MOST_WORKERS).contains(tp));
    let number = number.ok_or_else(|| problem("tp", tp, "not 1 to 256 workers"))?;
    Ok(Some(number))
}

fn path(
    settings: &mut Settings,
    key: &str,
    default: fn() -> Option<PathBuf>,
) -> Result<Option<PathBuf>> {
    match settings.text(key) {
        Some(none) if none == "none" => Ok(None),
        Some(path) if path.starts_with('/') => Ok(Some(PathBuf::from(path))),
        Some(other) => Err(problem(key, &other, "neither none nor an absolute path")),
        None => Ok(default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<Config> {
        let mut settings = Settings::new(pairs.iter().copied());
        let config = Config::from_settings(&mut settings)?;
        settings.finish().map(|()| config)
    }

    #[test]
    fn config_without_settings_is_valid() {
        let config = config(&[]).expect("all of it");
        assert_eq!(
            (config.service, config.tp, config.recording),
            (None, None, Recording::Auto)
        );
        assert!(config.budget == u64::MAX && valid_name(&config.node));
    }

    #[test]
    fn a_service_is_named_by_its_parameters_in_any_order() {
        let one = config(&[("service", "model=llama,tp=4")]).expect("a service");
        let other = config(&[("service", "tp=4,model=llama")]).expect("a service");
        assert_eq!((one.tp, one.service.clone()), (Some(4), other.service));
        let id = one.service.expect("an ID");
        assert_eq!(
            config(&[("service-id", &id)]).expect("a service").service,
            Some(id)
        );
    }

    #[test]
    fn invalid_setting_is_rejected_with_a_hint() {
        for (key, value, part) in [
            ("service-id", "../x", "letters"),
            ("service", "x", "key=value"),
            ("tp", "0", "256"),
            ("node", "a/b", "letters"),
            ("record", "yes", "auto"),
            ("begin", "x", "early"),
            ("budget", "x", "bytes"),
            ("idle", "0", "3600"),
            ("store", "here", "absolute"),
            ("leases", "x", "absolute"),
            ("process", "0", "process"),
        ] {
            let error = config(&[(key, value)]).expect_err("refused").to_string();
            assert!(error.contains(key) && error.contains(part), "{error}");
        }
        assert!(config(&[("service-id", "a"), ("service", "b=c")]).is_err());
        assert!(config(&[("what", "1")]).is_err());
        assert!(config(&[("store", "none")]).expect("none").store.is_none());
    }
}

//! The exported policy: MAIO for a directory of models, or for a start if one is named.

use std::ffi::CStr;

use ppc::{
    Configure, Error, Event, Evict, Features, Host, Plan, Policy, Prefetch, Result, Settings,
};

use crate::catalog::Maio;
use crate::start::Start;
use crate::template::valid_name;

/// One of the two, by the setting `start`.
#[derive(Debug)]
pub enum Library {
    /// Loads models.
    Models(Box<Maio>),
    /// Loads what a command reads from its first page on.
    Start(Box<Start>),
}

impl Policy for Library {
    const NAME: &'static CStr = Maio::NAME;
    const VERSION: &'static CStr = Maio::VERSION;
    const DESCRIPTION: &'static CStr = Maio::DESCRIPTION;
    const NEEDS: Features = Maio::NEEDS;

    fn init(host: &Host<'_>, settings: &mut Settings, plan: &mut Plan<'_>) -> Result<Self> {
        let Some(name) = settings.text("start") else {
            return Maio::init(host, settings, plan).map(|it| Self::Models(Box::new(it)));
        };
        if !valid_name(&name) {
            return Err(Error::Setting {
                key: "start".to_owned(),
                value: name,
                problem: "not a name of letters, digits, '.', '_' and '-'",
            });
        }
        Start::begin(host, name, settings, plan).map(|it| Self::Start(Box::new(it)))
    }

    fn exit(self, host: &Host<'_>) -> Result<()> {
        match self {
            Self::Models(models) => models.exit(host),
            Self::Start(start) => {
                start.exit(host);
                Ok(())
            }
        }
    }
}

impl Prefetch for Library {
    fn prefetch(
        &mut self,
        host: &Host<'_>,
        event: Option<&Event>,
        plan: &mut Plan<'_>,
    ) -> Result<()> {
        match self {
            Self::Models(models) => models.prefetch(host, event, plan),
            Self::Start(start) => start.prefetch(host, event, plan),
        }
    }
}

impl Configure for Library {
    fn configure(&mut self, host: &Host<'_>, settings: &mut Settings) -> Result<()> {
        match self {
            Self::Models(models) => models.configure(host, settings),
            // Remaining settings are refused.
            Self::Start(_) => Ok(()),
        }
    }
}

impl Evict for Library {
    fn evict(&mut self, host: &Host<'_>, event: Option<&Event>, plan: &mut Plan<'_>) -> Result<()> {
        match self {
            Self::Models(models) => models.evict(host, event, plan),
            Self::Start(_) => Ok(()),
        }
    }
}

//! A command without a directory: what it reads from its start on is recorded, and loaded ahead of it the next time.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cprt::control::config::Config;
use cprt::control::start_name::start_name;
use cprt::session::{Options, Session};
use maio::service::{parse, service_id};

use super::{or_none, policy_log};
use crate::args::{Run, Service};
use crate::failure::{Failure, Result};
use crate::setting;

/// The options of a session for the start; the model's directory has its own session. `None` if there is a model
/// and the policy is not known to tell the two apart.
pub(super) fn options(
    wanted: &Run,
    model: Option<&Path>,
    config: &Config,
) -> Result<Option<Options>> {
    let mut settings = setting::collect(wanted.settings.clone())?;
    let is_maio = is_maio(&wanted.policy);
    if model.is_some() && (!is_maio || settings.contains_key("start")) {
        return Ok(None);
    }
    if is_maio {
        if !settings.contains_key("start") {
            settings.insert(
                "start".to_owned(),
                start_name_of(Some(&wanted.service), &wanted.command)?,
            );
        }
        if let Some(model) = model {
            settings.insert("without".to_owned(), model.display().to_string());
        }
    }
    super::options_with(wanted, Path::new("/"), settings, config).map(Some)
}

/// Whether to load the model before it is opened: the command will open it soon, and imports take longer.
pub(super) fn begins_early(wanted: &Run) -> bool {
    is_maio(&wanted.policy) && !wanted.settings.iter().any(|setting| setting.key == "begin")
}

pub(super) fn is_maio(policy: &Path) -> bool {
    policy.file_stem() == Some(OsStr::new("maio"))
}

/// The name of a service's start. It differs from the service's ID, as the template of its model is in the same store.
pub(crate) fn start_name_of_service(id: &str) -> String {
    format!("start-{id}")
}

/// The name of a start, from the service if one is given, otherwise from the command.
pub(crate) fn start_name_of(service: Option<&Service>, command: &[OsString]) -> Result<String> {
    if let Some(id) = service.and_then(|it| it.service_id.as_ref()) {
        return Ok(start_name_of_service(id));
    }
    if let Some(pairs) = service.and_then(|it| it.service.as_ref()) {
        let pairs = parse(pairs).map_err(Failure::Service)?;
        let id = service_id(&pairs).map_err(Failure::Service)?;
        return Ok(start_name_of_service(&id));
    }
    let [program, arguments @ ..] = command else {
        return Ok(start_name("", &[]));
    };
    let program = found(program).unwrap_or_else(|| PathBuf::from(program));
    let text = |word: &OsStr| word.to_string_lossy().into_owned();
    let arguments: Vec<_> = arguments.iter().map(|word| text(word)).collect();
    Ok(start_name(&text(program.as_os_str()), &arguments))
}

/// The program's path, looked up as a shell does. Links are not followed: their target is the same for all environments
/// of an interpreter.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return std::path::absolute(program).ok();
    }
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|place| place.join(program));
    places.find(|place| place.is_file())
}

/// A session for the future children of this process. `None` if that is not possible; the reason is printed, unless the
/// session is only `beside` that of a model.
pub(super) fn start(wanted: &Run, options: &Options, beside: bool) -> Result<Option<Session>> {
    match Session::of_children(options, &policy_log(wanted.quiet)) {
        Err(error) if beside && Failure::is_of_backends(&error) => Ok(None),
        done => or_none(wanted, done),
    }
}

//! A command without a directory: what it reads from its start on is recorded, and loaded ahead of it the next time.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use cprt::control::protocol::Settings;
use cprt::session::{Options, Session};
use maio::service::{parse, service_id};
use maio::start_name;

use super::{or_none, policy_log};
use crate::args::{Run, Service};
use crate::failure::{Failure, Result};
use crate::setting::{self, Setting};

/// The settings of the policy, with the name that the start is known by.
pub(super) fn settings(wanted: &Run) -> Result<Settings> {
    let mut settings = wanted.settings.clone();
    if is_maio(&wanted.policy) && !settings.iter().any(|one| one.key == "start") {
        settings.push(Setting {
            key: "start".to_owned(),
            value: start_name_of(Some(&wanted.service), &wanted.command)?,
        });
    }
    setting::collect(settings)
}

fn is_maio(policy: &Path) -> bool {
    policy.file_stem() == Some(OsStr::new("maio"))
}

/// As it was said, or by the command.
pub(crate) fn start_name_of(service: Option<&Service>, command: &[OsString]) -> Result<String> {
    if let Some(id) = service.and_then(|it| it.service_id.as_ref()) {
        return Ok(id.clone());
    }
    if let Some(pairs) = service.and_then(|it| it.service.as_ref()) {
        let pairs = parse(pairs).map_err(Failure::Service)?;
        return service_id(&pairs).map_err(Failure::Service);
    }
    let [program, arguments @ ..] = command else {
        return Ok(start_name("", &[]));
    };
    let program = found(program).unwrap_or_else(|| PathBuf::from(program));
    let text = |word: &OsStr| word.to_string_lossy().into_owned();
    let arguments: Vec<_> = arguments.iter().map(|word| text(word)).collect();
    Ok(start_name(&text(program.as_os_str()), &arguments))
}

/// Where the program is, as a shell looks for it; not where links lead, as that is the same for all environments of an
/// interpreter.
fn found(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return std::path::absolute(program).ok();
    }
    let path = std::env::var_os("PATH")?;
    let mut places = std::env::split_paths(&path).map(|place| place.join(program));
    places.find(|place| place.is_file())
}

/// A session for the children that this process will have. `None` if that cannot be had; then a line has said why.
pub(super) fn start(wanted: &Run, options: &Options) -> Result<Option<Session>> {
    or_none(
        wanted,
        Session::of_children(options, &policy_log(wanted.quiet)),
    )
}

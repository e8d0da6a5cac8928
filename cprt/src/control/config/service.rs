//! The services whose starts the daemon follows. Pure.

use std::path::PathBuf;

use serde::Deserialize;

use crate::control::keep::plain_name;
use crate::control::protocol::Settings;
use crate::control::wildcard::fits;

/// What systemd executes in a unit before the unit's own program: its arguments differ each time.
const LAUNCHER: &str = "systemd-executor";

/// Recognises a process that starts a service: it has to match every key given. `*` matches anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConfiguredService {
    /// The program as it is executed, without following links: its path, or the last part of it.
    pub exe: Option<String>,
    /// Its arguments, with a blank between them.
    pub arguments: Option<String>,
    /// The unit of systemd that it is in; `.service` may be left out.
    pub unit: Option<String>,
    /// Its cgroup, from the root of cgroups.
    pub cgroup: Option<String>,
    /// The name of the image of its container; the registry may be left out.
    pub image: Option<String>,
    /// The directory of the model that it loads; without it, the one that its arguments name.
    pub model: Option<PathBuf>,
    /// Handed to the policy, as in `ppcctl run --set`.
    pub settings: Settings,
}

/// What identifies a process that executes a program.
#[derive(Clone, Copy, Debug)]
pub struct Executed<'a> {
    /// The program's path.
    pub program: &'a str,
    /// Its arguments, with a blank between them.
    pub arguments: &'a str,
    /// Its cgroup, from the root of cgroups.
    pub cgroup: &'a str,
}

impl ConfiguredService {
    /// Why this service is invalid, if it is.
    pub(super) fn check(&self, name: &str) -> Result<(), String> {
        plain_name(name)?;
        if [&self.exe, &self.unit, &self.cgroup, &self.image]
            .iter()
            .all(|it| it.is_none())
        {
            return Err("set exe, unit, cgroup or image, or every process would match".to_owned());
        }
        let texts = [
            ("exe", &self.exe),
            ("arguments", &self.arguments),
            ("unit", &self.unit),
            ("cgroup", &self.cgroup),
            ("image", &self.image),
        ];
        for (key, text) in texts {
            let text = text.as_deref();
            if text.is_some_and(|text| text.is_empty() || text.contains(char::is_control)) {
                return Err(format!("{key} is empty, or has control characters"));
            }
        }
        let slash = |path: &String| path.starts_with(['/', '*']);
        if let Some(exe) = self
            .exe
            .as_ref()
            .filter(|it| it.contains('/') && !slash(it))
        {
            return Err(format!(
                "exe = \"{exe}\" must begin with a slash, or be a name without slashes"
            ));
        }
        if let Some(cgroup) = self.cgroup.as_ref().filter(|it| !slash(it)) {
            return Err(format!("cgroup = \"{cgroup}\" must begin with a slash"));
        }
        if self
            .model
            .as_ref()
            .is_some_and(|model| !model.is_absolute())
        {
            return Err("model must begin with a slash".to_owned());
        }
        Ok(())
    }

    /// Whether this process starts the service, if it is in a container of the [right image](Self::is_of_image).
    #[must_use]
    pub fn is_started_by(&self, process: &Executed<'_>) -> bool {
        let is = |pattern: &Option<String>, text| {
            pattern.as_deref().is_none_or(|pattern| fits(pattern, text))
        };
        let exe = self.exe.as_deref().is_none_or(|exe| {
            let by_path = exe.contains('/');
            let program = if by_path {
                process.program
            } else {
                last_part(process.program)
            };
            fits(exe, program)
        });
        let unit = self.unit.as_deref().is_none_or(|unit| {
            let found = unit_of(process.cgroup);
            found.is_some_and(|found| {
                fits(unit, found)
                    || found
                        .strip_suffix(".service")
                        .is_some_and(|it| fits(unit, it))
            })
        });
        let is_launched = self.exe.is_some() || last_part(process.program) != LAUNCHER;
        exe && is_launched
            && unit
            && is(&self.arguments, process.arguments)
            && is(&self.cgroup, process.cgroup)
    }

    /// Whether it runs in containers from an image of that name, or anywhere. The name is asked for only if that
    /// matters, as it is in a file.
    pub fn is_of_image(&self, name: impl FnOnce() -> Option<String>) -> bool {
        let Some(pattern) = self.image.as_deref() else {
            return true;
        };
        name().is_some_and(|name| fits(pattern, &name) || fits(pattern, without_registry(&name)))
    }

    /// The last part of its program's path; `None` if that may be anything.
    #[must_use]
    pub fn end_of_exe(&self) -> Option<&str> {
        let end = last_part(self.exe.as_deref()?);
        (!end.chars().all(|it| it == '*')).then_some(end)
    }
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// An image's name as it is written for the usual registry: a registry has a dot or a port in its name.
fn without_registry(image: &str) -> &str {
    let is_registry = |first: &str| first.contains(['.', ':']) || first == "localhost";
    let rest = image
        .split_once('/')
        .filter(|(first, _)| is_registry(first));
    let rest = rest.map_or(image, |(_, rest)| rest);
    rest.strip_prefix("library/").unwrap_or(rest)
}

/// The unit of systemd that a cgroup is of, or is in.
fn unit_of(cgroup: &str) -> Option<&str> {
    let mut parts = cgroup.rsplit('/');
    parts.find(|part| [".service", ".scope"].iter().any(|end| part.ends_with(end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(toml: &str) -> ConfiguredService {
        toml::from_str(toml).expect("a service")
    }

    #[test]
    fn all_conditions_of_a_service_must_match() {
        let process = Executed {
            program: "/opt/venv/bin/python3",
            arguments: "serve.py --model /srv/llama --port 8000",
            cgroup: "/system.slice/llama.service/workers",
        };
        for (toml, expected) in [
            ("exe = 'python3'", true),
            ("exe = 'python*'", true),
            ("exe = 'ython3'", false),
            ("exe = '/opt/*/bin/python3'", true),
            ("exe = '/usr/bin/python3'", false),
            ("exe = 'python3'\narguments = '*--model /srv/llama *'", true),
            ("exe = 'python3'\narguments = '*--model /srv/qwen *'", false),
            ("unit = 'llama'", true),
            ("unit = 'llama.service'", true),
            ("unit = 'll*'", true),
            ("unit = 'llam'", false),
            ("unit = 'llama'\nexe = 'sh'", false),
            ("cgroup = '/system.slice/*'", true),
            ("cgroup = '/system.slice'", false),
        ] {
            assert_eq!(service(toml).is_started_by(&process), expected, "{toml}");
        }
        let elsewhere = Executed {
            cgroup: "/user.slice",
            ..process
        };
        assert!(!service("unit = '*'").is_started_by(&elsewhere));
        let launcher = Executed {
            program: "/usr/lib/systemd/systemd-executor",
            ..process
        };
        assert!(!service("unit = 'llama'").is_started_by(&launcher));
    }

    #[test]
    fn an_image_fits_with_and_without_its_registry() {
        let name = || Some("docker.io/vllm/vllm-openai:v0.9".to_owned());
        for (pattern, expected) in [
            ("vllm/vllm-openai:v0.9", true),
            ("vllm/vllm-openai:*", true),
            ("docker.io/vllm/*", true),
            ("*/vllm-openai:*", true),
            ("vllm-openai:v0.9", false),
            ("vllm/vllm-openai", false),
        ] {
            let service = service(&format!("image = '{pattern}'"));
            assert_eq!(service.is_of_image(name), expected, "{pattern}");
            assert!(!service.is_of_image(|| None), "it is in no container");
        }
        assert!(service("exe = 'a'").is_of_image(|| panic!("it does not matter")));
        for (image, expected) in [
            ("docker.io/library/redis:7", "redis:7"),
            ("localhost/a/b", "a/b"),
            ("host:5000/b@sha256:00", "b@sha256:00"),
            ("owner/b", "owner/b"),
            ("b", "b"),
        ] {
            assert_eq!(without_registry(image), expected);
        }
    }

    #[test]
    fn invalid_services_are_rejected() {
        for (name, toml, problem) in [
            ("a b", "exe = 'a'", "a name may"),
            ("a", "arguments = 'a'", "set exe"),
            ("a", "exe = ''", "exe is empty"),
            ("a", "exe = 'bin/a'", "must begin with a slash"),
            ("a", "cgroup = 'a'", "must begin with a slash"),
            ("a", "image = ''", "image is empty"),
            ("a", "exe = 'a'\nmodel = 'm'", "model must"),
        ] {
            let refused = service(toml).check(name).expect_err(toml);
            assert!(refused.contains(problem), "{toml}: {refused}");
        }
        assert_eq!(service("exe = '*/bin/a'").check("a.b_c-1"), Ok(()));
    }

    #[test]
    fn end_of_exe_is_its_last_part_unless_a_wildcard() {
        assert_eq!(service("exe = '/a/b*'").end_of_exe(), Some("b*"));
        assert_eq!(service("exe = 'b'").end_of_exe(), Some("b"));
        for any in ["exe = '/a/*'", "unit = 'a'"] {
            assert_eq!(service(any).end_of_exe(), None, "{any}");
        }
    }
}

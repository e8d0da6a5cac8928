//! Parses the command line of a mount helper: options after `-o`, including those meant for others. Pure.

use std::path::PathBuf;

use cprt::control::kind::BackendKind;
use cprt::control::protocol::Settings;
use nix::mount::MsFlags;

/// The command line of a helper of `mount`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) lower: PathBuf,
    pub(crate) at: PathBuf,
    pub(crate) options: Options,
    /// Do everything but mount.
    pub(crate) fake: bool,
    pub(crate) verbose: bool,
}

/// The options after `-o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// `None` for any.
    pub(crate) backend: Option<BackendKind>,
    pub(crate) policy: Option<PathBuf>,
    pub(crate) settings: Settings,
    /// Whether readers may bypass the page cache.
    pub(crate) odirect: Odirect,
    /// Whether pages of the page cache may get into pipes.
    pub(crate) splice: Splice,
    pub(crate) passthrough: bool,
    pub(crate) flags: MsFlags,
    pub(crate) remount: bool,
}

/// What to do with `O_DIRECT`, as in the module's option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Odirect {
    #[default]
    Pass,
    Deny,
}

/// What to do with `splice(2)` and `sendfile(2)`, as in the module's option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Splice {
    #[default]
    Pass,
    Copy,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            backend: None,
            policy: None,
            settings: Settings::new(),
            odirect: Odirect::Pass,
            splice: Splice::Pass,
            passthrough: true,
            flags: MsFlags::MS_RDONLY,
            remount: false,
        }
    }
}

/// Options common to all file systems, as flags to set or to clear.
const FLAGS: [(&str, MsFlags, bool); 16] = [
    ("nosuid", MsFlags::MS_NOSUID, true),
    ("suid", MsFlags::MS_NOSUID, false),
    ("nodev", MsFlags::MS_NODEV, true),
    ("dev", MsFlags::MS_NODEV, false),
    ("noexec", MsFlags::MS_NOEXEC, true),
    ("exec", MsFlags::MS_NOEXEC, false),
    ("noatime", MsFlags::MS_NOATIME, true),
    ("atime", MsFlags::MS_NOATIME, false),
    ("nodiratime", MsFlags::MS_NODIRATIME, true),
    ("diratime", MsFlags::MS_NODIRATIME, false),
    ("relatime", MsFlags::MS_RELATIME, true),
    ("norelatime", MsFlags::MS_RELATIME, false),
    ("strictatime", MsFlags::MS_STRICTATIME, true),
    ("nostrictatime", MsFlags::MS_STRICTATIME, false),
    ("silent", MsFlags::MS_SILENT, true),
    ("loud", MsFlags::MS_SILENT, false),
];

/// Options that are meant for `mount` or `systemd`, or that have no effect. `mount` adds "rw" by default;
/// these mounts are always read-only.
const OTHERS: [&str; 18] = [
    "", "defaults", "ro", "rw", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users",
    "owner", "group", "async", "sync", "dirsync", "mand", "nomand",
];

/// Parses the command line, without the name of the program.
pub(crate) fn line(words: &[String]) -> Result<Line, String> {
    let mut line = Line::default();
    let mut places = Vec::new();
    let (mut sloppy, mut text) = (false, Vec::new());
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
            places.push(PathBuf::from(word));
            continue;
        };
        for (at, letter) in letters.char_indices() {
            let rest = &letters[at + letter.len_utf8()..];
            match letter {
                's' => sloppy = true,
                'f' => line.fake = true,
                'n' => {}
                'v' => line.verbose = true,
                'o' | 't' | 'N' => {
                    // The value is the rest of the word, or the next word.
                    let value = match rest {
                        "" => words
                            .next()
                            .ok_or_else(|| format!("-{letter} needs a value"))?,
                        rest => rest,
                    };
                    match letter {
                        'o' => text.push(value.to_owned()),
                        't' => {}
                        _ => return Err("-N: enter the namespace first, with nsenter".to_owned()),
                    }
                    break;
                }
                other => return Err(format!("there is no option -{other}")),
            }
        }
    }
    line.options = options(&text.join(","), sloppy)?;
    match <[PathBuf; 2]>::try_from(places) {
        Ok([lower, at]) => (line.lower, line.at) = (lower, at),
        Err(_) => return Err("two directories are needed: mount.rfs LOWER MNT".to_owned()),
    }
    Ok(line)
}

fn options(text: &str, sloppy: bool) -> Result<Options, String> {
    let mut options = Options::default();
    for word in text.split(',') {
        option(word, &mut options, sloppy)?;
    }
    if options.policy.is_none() && !options.settings.is_empty() {
        return Err("settings need a policy; name it with policy=".to_owned());
    }
    Ok(options)
}

fn option(word: &str, options: &mut Options, sloppy: bool) -> Result<(), String> {
    if let Some(&(_, flag, on)) = FLAGS.iter().find(|(name, ..)| *name == word) {
        options.flags.set(flag, on);
        return Ok(());
    }
    // Some options meant for others have values.
    if OTHERS.contains(&word) || word.starts_with("x-") || word.starts_with("X-") {
        return Ok(());
    }
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    match (key, value) {
        ("comment", _) => {}
        ("remount", _) => options.remount = true,
        ("backend", "auto") => options.backend = None,
        ("backend", name) => options.backend = Some(name.parse()?),
        ("policy", "") => return Err("policy= needs a name or a path".to_owned()),
        ("policy", name) => options.policy = Some(name.into()),
        ("service-id", id) => drop(options.settings.insert("service-id".into(), id.into())),
        ("odirect", "pass") => options.odirect = Odirect::Pass,
        ("odirect", "deny") => options.odirect = Odirect::Deny,
        ("odirect", other) => return Err(format!("odirect is pass or deny, not {other}")),
        ("splice", "pass") => options.splice = Splice::Pass,
        ("splice", "copy") => options.splice = Splice::Copy,
        ("splice", other) => return Err(format!("splice is pass or copy, not {other}")),
        ("passthrough", "yes") => options.passthrough = true,
        ("passthrough", "no") => options.passthrough = false,
        ("passthrough", other) => return Err(format!("passthrough is yes or no, not {other}")),
        _ => match key.strip_prefix("set.") {
            Some(setting) if !setting.is_empty() => {
                options
                    .settings
                    .insert(setting.to_owned(), value.to_owned());
            }
            _ if sloppy => {}
            _ => {
                return Err(format!(
                    "there is no option {word}; 'mount.rfs --help' lists them"
                ));
            }
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Line, String> {
        let words: Vec<_> = text.split(' ').map(str::to_owned).collect();
        line(&words)
    }

    #[test]
    fn the_line_of_mount_is_read() {
        let line = read("/models /mnt -v -o rw,backend=fuse,noexec").expect("a line");
        assert_eq!(line.lower, PathBuf::from("/models"));
        assert_eq!(line.at, PathBuf::from("/mnt"));
        assert_eq!(line.options.backend, Some(BackendKind::Fuse));
        assert!(
            line.options
                .flags
                .contains(MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY)
        );
        assert!(line.verbose && !line.fake);
        let line = read("-sfno backend=auto -t rfs /a /b").expect("a line");
        assert!(line.fake && line.options.backend.is_none());
    }

    #[test]
    fn fstab_options_for_other_tools_are_ignored() {
        let text = "/a /b -o _netdev,nofail,x-systemd.automount,x-systemd.idle-timeout=60,noauto,\
                    comment=mine,user";
        assert_eq!(read(text).expect("a line").options, Options::default());
    }

    #[test]
    fn a_policy_has_settings() {
        let text = "/a /b -o policy=maio,service-id=7,set.window=1GiB,odirect=deny,splice=copy,passthrough=no";
        let options = read(text).expect("a line").options;
        assert_eq!(options.policy, Some("maio".into()));
        let settings: Vec<_> = options.settings.iter().collect();
        let expected = [("service-id", "7"), ("window", "1GiB")];
        assert_eq!(settings.len(), 2);
        for ((key, value), (name, text)) in settings.into_iter().zip(expected) {
            assert_eq!((key.as_str(), value.as_str()), (name, text));
        }
        assert_eq!(options.odirect, Odirect::Deny);
        assert_eq!(options.splice, Splice::Copy);
        assert!(!options.passthrough);
    }

    #[test]
    fn invalid_arguments_are_rejected_with_the_reason() {
        for (text, part) in [
            ("/a", "LOWER MNT"),
            ("/a /b /c", "LOWER MNT"),
            ("/a /b -o", "needs a value"),
            ("/a /b -q", "-q"),
            ("/a /b -N 7", "nsenter"),
            ("/a /b -o backend=magic", "module, observe or fuse"),
            ("/a /b -o odirect=maybe", "pass or deny"),
            ("/a /b -o splice=maybe", "pass or copy"),
            ("/a /b -o policy=", "needs a name"),
            ("/a /b -o service-id=7", "policy="),
            ("/a /b -o fast", "no option fast"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(read("/a /b -s -o fast").is_ok(), "sloppily");
    }
}

//! Names starts so that they are recognised again: by the program and its arguments, without the parts that differ from
//! run to run. Pure.

use sha2::{Digest as _, Sha256};

/// Options whose values do not change which files are read.
const INDIFFERENT: [&str; 13] = [
    "api-key",
    "date",
    "host",
    "job-id",
    "log-dir",
    "log-file",
    "log-level",
    "pid-file",
    "port",
    "run-id",
    "seed",
    "socket",
    "uds",
];
/// Bytes of the hash in a name.
const BYTES: usize = 6;
/// Upper bound on the length of each part that is taken from the command.
const LONGEST: usize = 40;

/// The name of a start of this program with these arguments, of letters, digits, '.', '_' and '-'.
///
/// The order of the arguments makes no difference, nor do ports, dates, process numbers and names of
/// temporary files in them.
#[must_use]
pub fn start_name(program: &str, arguments: &[String]) -> String {
    name(None, program, arguments)
}

/// As [`start_name`], in a container: the same path is another program in another image.
#[must_use]
pub fn start_name_in(image: &str, program: &str, arguments: &[String]) -> String {
    name(Some(image), program, arguments)
}

fn name(image: Option<&str>, program: &str, arguments: &[String]) -> String {
    let mut words = normalised(arguments);
    words.sort_unstable();
    let mut hash = Sha256::new();
    let command = std::iter::once(program).chain(words.iter().map(String::as_str));
    for word in image.into_iter().chain(command) {
        hash.update((word.len() as u64).to_le_bytes());
        hash.update(word);
    }
    let hash = hash.finalize();
    let hex: Vec<_> = hash[..BYTES]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let script = words.iter().find(|word| !word.starts_with('-'));
    let of_command: Vec<_> = std::iter::once(program)
        .chain(script.map(String::as_str))
        .filter_map(plain)
        .collect();
    ["start".to_owned()]
        .into_iter()
        .chain(of_command)
        .chain([hex.concat()])
        .collect::<Vec<_>>()
        .join("-")
}

/// The last part of a path, if all of it is allowed in a name.
fn plain(path: &str) -> Option<String> {
    let last = path.rsplit('/').next()?;
    let may_be = |letter: &char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '_');
    let plain = last.chars().all(|letter| may_be(&letter)) && (1..=LONGEST).contains(&last.len());
    plain.then(|| last.to_owned())
}

/// The arguments without what differs from run to run; an option with its value is one word.
fn normalised(arguments: &[String]) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        let Some(option) = argument.strip_prefix("--") else {
            words.push(without_chance(argument));
            continue;
        };
        let (name, value) = if let Some((name, value)) = option.split_once('=') {
            (name, Some(value.to_owned()))
        } else {
            let value = rest.next_if(|next| !next.starts_with('-'));
            (option, value.cloned())
        };
        let name = name.replace('_', "-");
        let says_nothing = |it: &&str| name == **it || name.ends_with(&format!("-{it}"));
        let value = value.filter(|_| !INDIFFERENT.iter().any(says_nothing));
        words.push(format!(
            "--{name}={}",
            value.as_deref().map_or(String::new(), without_chance)
        ));
    }
    words
}

/// A word with a star in place of each part that is random or a time.
fn without_chance(word: &str) -> String {
    let parts = word
        .split('/')
        .map(|part| if by_chance(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

/// Whether a part of a path is a temporary name, a UUID, a date or a time stamp.
fn by_chance(part: &str) -> bool {
    let alphanumeric = |text: &str| {
        text.chars()
            .all(|it| it.is_ascii_alphanumeric() || it == '_')
    };
    let temporary = part
        .strip_prefix("tmp")
        .map(|rest| rest.trim_start_matches(['.', '-', '_']));
    let temporary = temporary.is_some_and(|rest| rest.len() >= 6 && alphanumeric(rest));
    let digits = |length: usize, text: &str| {
        text.len() == length && text.bytes().all(|it| it.is_ascii_digit())
    };
    let hex = |text: &str| text.bytes().all(|it| it.is_ascii_hexdigit());
    let pieces: Vec<_> = part.split('-').collect();
    let lengths: Vec<_> = pieces.iter().map(|piece| piece.len()).collect();
    let uuid = lengths == [8, 4, 4, 4, 12] && pieces.iter().all(|piece| hex(piece));
    let date = matches!(pieces[..], [year, month, day]
        if digits(4, year) && digits(2, month) && digits(2, day));
    let moment = part.len() >= 10 && part.bytes().all(|it| it.is_ascii_digit());
    temporary || uuid || date || moment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid_name(name: &str) -> bool {
        let allowed = |it: char| it.is_ascii_alphanumeric() || matches!(it, '.' | '_' | '-');
        name.chars().all(allowed) && name.starts_with("start")
    }

    fn name(text: &str) -> String {
        let mut words = text.split(' ').map(str::to_owned);
        let program = words.next().expect("a program");
        let name = start_name(&program, &words.collect::<Vec<_>>());
        assert!(valid_name(&name), "{name}");
        name
    }

    #[test]
    fn start_name_ignores_parts_that_vary_between_runs() {
        let one = name("/usr/bin/python3.11 serve.py --model /srv/llama --port 8000");
        assert!(one.starts_with("start-python3.11-serve.py-"), "{one}");
        for other in [
            "/usr/bin/python3.11 serve.py --model /srv/llama --port 8001",
            "/usr/bin/python3.11 serve.py --port=8001 --model=/srv/llama",
            "/usr/bin/python3.11 --model /srv/llama --port 8000 serve.py",
        ] {
            assert_eq!(one, name(other));
        }
        let pairs = [
            ("a --out /tmp/tmpab12cd34/x", "a --out /tmp/tmp.ZZ99yy88/x"),
            (
                "a /run/123e4567-e89b-12d3-a456-426614174000",
                "a /run/00000000-e89b-12d3-a456-426614174000",
            ),
            ("a logs/2026-11-23", "a logs/2025-01-02"),
            ("a --since 1700000000", "a --since 1800000000"),
            ("a --random_seed 5", "a --random-seed 6"),
        ];
        for (one, other) in pairs {
            assert_eq!(name(one), name(other));
        }
    }

    #[test]
    fn start_name_changes_with_program_model_or_options() {
        let one = name("/usr/bin/python3 serve.py --model /srv/llama");
        for other in [
            "/usr/bin/python3 serve.py --model /srv/qwen",
            "/usr/bin/python3 train.py --model /srv/llama",
            "/opt/bin/python3 serve.py --model /srv/llama",
            "/usr/bin/python3 serve.py --model /srv/llama --quantize",
            "/usr/bin/python3 serve.py",
        ] {
            assert_ne!(one, name(other), "{other}");
        }
    }

    #[test]
    fn odd_names_are_left_out() {
        let odd = start_name(
            "/opt/my program",
            &["-c".to_owned(), "import x; y()".to_owned()],
        );
        assert!(
            valid_name(&odd) && odd.len() == "start-".len() + 12,
            "{odd}"
        );
    }
}

//! Known hashes of files: lists as sha256sum prints them, and names of blobs in a cache of Hugging Face. Pure.

use std::path::Path;

/// A SHA-256.
pub(super) type Hash = [u8; 32];

/// The hashes and names of a list.
///
/// # Errors
///
/// The number of the first line that is neither `HASH  NAME` nor `SHA256 (NAME) = HASH`.
pub(super) fn parse(text: &str) -> Result<Vec<(Hash, String)>, usize> {
    let lines = text.lines().zip(1..);
    let wanted = lines.filter(|(line, _)| !line.trim().is_empty() && !line.starts_with('#'));
    wanted
        .map(|(line, number)| entry(line.trim_end_matches('\r')).ok_or(number))
        .collect()
}

fn entry(line: &str) -> Option<(Hash, String)> {
    // A backslash in front says that the name has escapes.
    let (line, escaped) = line
        .strip_prefix('\\')
        .map_or((line, false), |line| (line, true));
    let (hash, name) = if let Some(rest) = line.strip_prefix("SHA256 (") {
        let (name, hash) = rest.rsplit_once(") = ")?;
        (hash, name)
    } else {
        let (hash, name) = line.split_once(' ')?;
        // Another blank, or a star for what was once called binary.
        (hash, name.strip_prefix([' ', '*'])?)
    };
    let name = if escaped {
        unescaped(name)?
    } else {
        name.to_owned()
    };
    (!name.is_empty()).then_some((hash_of(hash)?, name))
}

fn unescaped(name: &str) -> Option<String> {
    let mut plain = String::with_capacity(name.len());
    let mut letters = name.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => match letters.next()? {
                'n' => '\n',
                'r' => '\r',
                '\\' => '\\',
                _ => return None,
            },
            other => other,
        });
    }
    Some(plain)
}

fn hash_of(digits: &str) -> Option<Hash> {
    let mut hash = [0; 32];
    let pairs = digits.as_bytes().chunks(2);
    if digits.len() != 2 * hash.len() || !digits.bytes().all(|it| it.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, pair) in hash.iter_mut().zip(pairs) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// The hash of a blob in a cache of Hugging Face, `models--OWNER--NAME/blobs/HASH`: large files have their SHA-256 for
/// a name, small ones the number that git has for them.
pub(super) fn of_blob(real: &Path) -> Option<Hash> {
    let blobs = real.parent()?;
    let repository = blobs.parent()?.file_name()?.to_str()?;
    let (kind, name) = repository.split_once("--")?;
    let is_one = blobs.file_name()? == "blobs"
        && matches!(kind, "models" | "datasets" | "spaces")
        && !name.is_empty();
    is_one.then_some(hash_of(real.file_name()?.to_str()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGITS: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn lists_of_both_kinds_are_read() {
        let text = format!(
            "# made by hand\n{DIGITS}  a b.bin\n\n{} *sub/c\r\nSHA256 (d (1).bin) = {DIGITS}\n\\{DIGITS}  e\\nf\\\\\n",
            DIGITS.to_uppercase()
        );
        let list = parse(&text).expect("a list");
        let names: Vec<_> = list.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["a b.bin", "sub/c", "d (1).bin", "e\nf\\"]);
        assert!(list.iter().all(|(hash, _)| *hash == list[0].0));
        assert_eq!(list[0].0[..3], [0xe3, 0xb0, 0xc4]);
    }

    #[test]
    fn invalid_hash_line_is_reported_by_number() {
        for (bad, line) in [
            ("a.bin", 2),
            (&DIGITS[1..], 2),
            (&format!("{DIGITS} a"), 2),
            (&format!("{DIGITS}  "), 2),
            (&format!("{}é  a", &DIGITS[2..]), 2),
            (&format!("\\{DIGITS}  a\\x"), 2),
            (&format!("SHA256 (a) = {}", &DIGITS[2..]), 2),
        ] {
            let text = format!("{DIGITS}  good\n{bad}\n");
            assert_eq!(parse(&text), Err(line), "{bad}");
        }
    }

    #[test]
    fn blob_is_recognised_by_its_path_and_hash_length() {
        let of = |path: String| of_blob(Path::new(&path));
        let hub = "/hub/models--o--m/blobs";
        assert!(of(format!("{hub}/{DIGITS}")).is_some());
        for path in [
            format!("{hub}/{}", &DIGITS[..40]),
            format!("{hub}/{DIGITS}.incomplete"),
            format!("/hub/models--o--m/other/{DIGITS}"),
            format!("/hub/layers/blobs/{DIGITS}"),
            format!("/{DIGITS}"),
        ] {
            assert_eq!(of(path.clone()), None, "{path}");
        }
    }
}

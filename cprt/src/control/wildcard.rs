//! Patterns in which `*` matches any text, even none. Pure.

/// Whether the whole text matches the pattern.
#[must_use]
pub fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(last) = parts.next_back() else {
        return text == pattern;
    };
    let middle = text
        .strip_prefix(first)
        .and_then(|rest| rest.strip_suffix(last));
    // The earliest match of each part leaves the most for the parts after it.
    middle.is_some_and(|middle| {
        parts
            .try_fold(middle, |rest, part| {
                rest.find(part).map(|at| &rest[at + part.len()..])
            })
            .is_some()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_what_they_say() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("a", "ab", false),
            ("*", "", true),
            ("*.service", "a.service", true),
            ("*.service", "a.service.d", false),
            (
                "serve *--model /srv/*",
                "serve --tp 2 --model /srv/llama",
                true,
            ),
            ("*a*b*", "xxbxxa", false),
            ("ab*ba", "aba", false),
            ("a**b", "ab", true),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
    }
}

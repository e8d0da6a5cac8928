//! Which format the `Accept` header of a request prefers.

use super::Format;

/// Thousandths: a quality has at most three decimals.
const BEST: u16 = 1000;

/// `OpenMetrics` if the header wants it at least as much as any plain text.
pub(super) fn format(accept: &str) -> Format {
    let (mut open, mut plain) = (0, 0);
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let (mut quality, mut version) = (BEST, None);
        for part in parts {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                "q" => quality = thousandths(value),
                "version" => version = Some(value),
                _ => {}
            }
        }
        let is = |versions: &[&str]| version.is_none_or(|it| versions.contains(&it));
        match kind.as_str() {
            "application/openmetrics-text" if is(&["1.0.0"]) => open = open.max(quality),
            "text/plain" if is(&["0.0.4"]) => plain = plain.max(quality),
            _ => {}
        }
    }
    if open > 0 && open >= plain {
        Format::OpenMetrics
    } else {
        Format::Prometheus
    }
}

/// A quality from 0 to 1; 0 if the text is not a quality.
fn thousandths(quality: &str) -> u16 {
    let (whole, decimals) = quality.split_once('.').unwrap_or((quality, ""));
    let is_quality = decimals.len() <= 3 && decimals.bytes().all(|it| it.is_ascii_digit());
    match whole {
        "1" if is_quality => BEST,
        "0" if is_quality => format!("{decimals:0<3}").parse().unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_what_they_prefer() {
        for (accept, expected) in [
            // Prometheus 2.42
            (
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                 text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
                Format::OpenMetrics,
            ),
            // Prometheus 3
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text", Format::OpenMetrics),
            (
                "Application/OpenMetrics-Text; Version=\"1.0.0\"",
                Format::OpenMetrics,
            ),
            (
                "application/openmetrics-text; version=2.0.0",
                Format::Prometheus,
            ),
            ("application/openmetrics-text;q=0", Format::Prometheus),
            ("application/openmetrics-text;q=0.000", Format::Prometheus),
            (
                "application/openmetrics-text;q=0.3,text/plain;q=0.31",
                Format::Prometheus,
            ),
            (
                "application/openmetrics-text;q=0.31,text/plain;q=0.3",
                Format::OpenMetrics,
            ),
            ("application/openmetrics-text;q=lots", Format::Prometheus),
            ("application/openmetrics-text;q=0.1234", Format::Prometheus),
            ("text/plain", Format::Prometheus),
            ("*/*", Format::Prometheus),
            ("", Format::Prometheus),
            (";;,=;q,\u{1f}", Format::Prometheus),
        ] {
            assert_eq!(format(accept), expected, "{accept}");
        }
    }
}

//! SVG drawings, as text.

use std::fmt::{Display, Write as _};

/// A drawing.
#[derive(Debug)]
pub(super) struct Svg {
    width: f64,
    height: f64,
    body: String,
}

/// Escapes the special characters of HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

impl Svg {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self {
            width,
            height,
            body: String::new(),
        }
    }

    fn add(&mut self, element: impl Display) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    pub(super) fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        let (width, height) = (width.max(0.0), height.max(0.0));
        self.add(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
        ));
    }

    pub(super) fn line(&mut self, class: &str, (x, y): (f64, f64), (to_x, to_y): (f64, f64)) {
        self.add(format_args!(
            r#"<line class="{class}" x1="{x:.1}" y1="{y:.1}" x2="{to_x:.1}" y2="{to_y:.1}"/>"#
        ));
    }

    pub(super) fn dot(&mut self, class: &str, (x, y): (f64, f64)) {
        self.add(format_args!(
            r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="2.5"/>"#
        ));
    }

    /// Text that begins at a point; with the class `end` it ends there.
    pub(super) fn text(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        let text = escape(text);
        self.add(format_args!(
            r#"<text class="{class}" x="{x:.1}" y="{y:.1}">{text}</text>"#
        ));
    }

    /// A line through points.
    pub(super) fn path(&mut self, class: &str, points: &[(f64, f64)]) {
        let mut path = String::new();
        for (number, (x, y)) in points.iter().enumerate() {
            let letter = if number == 0 { 'M' } else { 'L' };
            let _ = write!(path, "{letter}{x:.1} {y:.1}");
        }
        if !path.is_empty() {
            self.add(format_args!(r#"<path class="{class}" d="{path}"/>"#));
        }
    }

    pub(super) fn finish(self, what: &str) -> String {
        let Self {
            width,
            height,
            body,
        } = self;
        let what = escape(what);
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{what}\">\n{body}</svg>\n"
        )
    }
}

/// The step between ticks of an axis up to `most`: 1, 2 or 5 times a power of ten, for four to eight ticks.
pub(super) fn step(most: f64) -> f64 {
    let mut step = 1e-3;
    for factor in [2.0, 2.5, 2.0].into_iter().cycle().take(60) {
        if most / step <= 8.0 {
            break;
        }
        step *= factor;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drawings_are_sound() {
        let mut svg = Svg::new(10.0, 20.0);
        svg.rect("a", (1.0, 2.0), (-3.0, 4.0));
        svg.text("b", (0.0, 0.0), "<1 & 2>");
        svg.path("c", &[(0.0, 1.0), (2.0, 3.0)]);
        svg.path("c", &[]);
        let text = svg.finish("\"x\"");
        assert!(text.contains(r#"width="0.0""#) && text.contains("&lt;1 &amp; 2&gt;"));
        assert!(text.contains(r#"d="M0.0 1.0L2.0 3.0""#));
        assert_eq!(text.matches("<path").count(), 1);
        assert!(text.contains("aria-label=\"&quot;x&quot;\""));
    }

    #[test]
    fn axes_have_few_round_steps() {
        for (most, expected) in [(23.0, 5.0), (5.5, 1.0), (0.9, 0.2), (400.0, 50.0)] {
            let got = step(most);
            assert!((got / expected - 1.0).abs() < 1e-6, "{most}: {got}");
        }
        assert!(step(0.0) > 0.0 && step(f64::INFINITY).is_finite());
    }
}

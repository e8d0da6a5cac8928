//! How good a template is, compared with another of the same place. Pure.

use maio::template::{Template, TemplateError, TemplateKind, diff};
use serde::{Deserialize, Serialize};

/// From how many loads or starts on a template is proven: it was recorded once, and right once.
const PROVEN: u32 = 2;
/// The part of what is read in either that two templates have in common if they are alike: of a model as much as a
/// template may be wrong before MAIO marks it; starts differ more from one to the next.
const ALIKE_MODELS: f64 = 0.95;
const ALIKE_STARTS: f64 = 0.8;

/// What is known of a template without its ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quality {
    /// How many loads it was right for; 0 if it was wrong for the last one.
    pub loads: u32,
    /// When it was recorded, in seconds since 1970.
    pub made_s: u64,
}

impl Quality {
    /// That of a template.
    #[must_use]
    pub const fn of(template: &Template) -> Self {
        Self {
            loads: template.loads,
            made_s: template.made_s,
        }
    }

    /// Whether it can be used: the last load did not find it wrong.
    #[must_use]
    pub const fn is_good(&self) -> bool {
        self.loads > 0
    }

    /// Whether a load that replayed it has found it right.
    #[must_use]
    pub const fn is_proven(&self) -> bool {
        self.loads >= PROVEN
    }

    /// The order in which a node prefers its own templates of one place: proven ones, then the newest.
    #[must_use]
    pub const fn rank(&self) -> (bool, bool, u64) {
        (self.is_good(), self.is_proven(), self.made_s)
    }
}

/// A template whose ranges have all been checked, as [`Template::to_bytes`] does, from bytes of any origin.
///
/// # Errors
/// What is wrong with it.
pub fn checked(bytes: &[u8]) -> Result<Template, TemplateError> {
    let template = Template::from_bytes(bytes)?;
    template.to_bytes()?;
    Ok(template)
}

/// Whether two templates of one place say nearly the same, whatever their order.
///
/// # Errors
/// Ranges of either are impossible.
pub fn alike(one: &Template, other: &Template) -> Result<bool, TemplateError> {
    if one.kind != other.kind {
        return Ok(false);
    }
    let (least, only) = match one.kind {
        TemplateKind::Model => (ALIKE_MODELS, None),
        // Its newest start comes first.
        TemplateKind::Start => (ALIKE_STARTS, Some(0)),
    };
    let compared = diff(one, other)?;
    let mut workers = compared.workers.iter();
    let (mut both, mut all) = (0, 0);
    for worker in workers.by_ref() {
        if only.is_none_or(|only| worker.worker == only) {
            both += worker.both;
            all += worker.both + worker.only_a + worker.only_b;
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    let share = if all == 0 {
        1.0
    } else {
        both as f64 / all as f64
    };
    Ok(share >= least)
}

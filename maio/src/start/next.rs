//! What a template of a start comes to, for tools: the decision is the policy's own. Pure.

use super::expected::ahead;
use super::{STARTS, Template, TemplateError};
use crate::extent::Extent;
use crate::template::{Group, TemplateKind};

/// What is known of a start, and what its next one is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextStart {
    /// What each of the last starts read, in its order, the newest start first.
    pub starts: Vec<Vec<Extent>>,
    /// What is loaded ahead of the next one, in this order.
    pub ahead: Vec<Extent>,
}

/// Unpacks a template of a start, and decides by it as the policy does.
///
/// # Errors
/// [`TemplateError::OfAModel`] if it is not marked as a start's; [`TemplateError::Inconsistent`] if it has ranges
/// that cannot be.
pub fn next_start(template: &Template) -> Result<NextStart, TemplateError> {
    if template.kind != TemplateKind::Start {
        return Err(TemplateError::OfAModel);
    }
    let groups = template.groups.iter().take(STARTS);
    let starts: Vec<_> = groups.map(Group::extents).collect::<Result<_, _>>()?;
    let ahead = ahead(&starts);
    Ok(NextStart { starts, ahead })
}

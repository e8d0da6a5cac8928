//! What a template of a start makes the policy load, for tools: decided by the policy's own code. Pure.

use super::expected::ahead;
use super::{STARTS, Template, TemplateError};
use crate::extent::Extent;
use crate::template::{Group, TemplateKind};

/// The record of a start, and what is loaded for the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextStart {
    /// What each of the last starts read, in its order, the newest start first.
    pub starts: Vec<Vec<Extent>>,
    /// What is loaded ahead of the next one, in this order.
    pub ahead: Vec<Extent>,
}

/// Unpacks a template of a start, and decides on it as the policy does.
///
/// # Errors
/// [`TemplateError::OfAModel`] if it is not marked as a start's; [`TemplateError::Inconsistent`] if it has ranges
/// that are impossible.
pub fn next_start(template: &Template) -> Result<NextStart, TemplateError> {
    if template.kind != TemplateKind::Start {
        return Err(TemplateError::OfAModel);
    }
    let groups = template.groups.iter().take(STARTS);
    let starts: Vec<_> = groups.map(Group::extents).collect::<Result<_, _>>()?;
    let ahead = ahead(&starts);
    Ok(NextStart { starts, ahead })
}

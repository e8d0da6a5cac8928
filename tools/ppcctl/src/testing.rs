//! How a unit test says that it cannot run here.

#[path = "../../../tests/skip.rs"]
mod skip;

pub(crate) use skip::skip;

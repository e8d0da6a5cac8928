//! The model that is loaded: a Llama-like one, made up, in real files.
//!
//! [`shape`] says which tensors it has, [`shards`] lays them into files as frameworks do, [`pattern`]
//! is what they hold: numbers that can be checked without having them.

mod pattern;
mod shape;
mod shards;
mod write;

pub(crate) use pattern::{Pattern, sum};
pub(crate) use shape::{SMALL, STANDARD, Shape, Split};
pub(crate) use shards::{CONFIG, Model, Placed, Shard};
pub(crate) use write::write;

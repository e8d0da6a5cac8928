//! The model to load: a generated one, like Llama, in real files.
//!
//! [`shape`] says which tensors it has, [`shards`] lays them out in files as frameworks do, [`pattern`]
//! is their contents: numbers that can be checked without a copy.

mod pattern;
mod shape;
mod shards;
mod write;

pub(crate) use pattern::{Pattern, sum};
pub(crate) use shape::{SMALL, STANDARD, Shape, Split};
pub(crate) use shards::{CONFIG, Model, Placed, Shard};
pub(crate) use write::write;
